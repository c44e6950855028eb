//! One file for each command.

mod again;
pub mod cat;
pub mod checkpoint;
mod continued;
pub mod copy;
pub mod devices;
pub mod diff;
pub mod doctor;
pub mod far_end;
mod free;
pub mod images;
pub mod keys;
pub mod manual;
pub mod migrate;
pub mod nvcc;
pub mod plan;
pub mod profile;
pub mod prune;
pub mod ps;
pub mod receive;
pub mod remote;
pub mod restart;
pub mod rm;
pub mod run;
pub mod serve;
pub mod server;
pub mod suspend;

use crate::flags;
use ::checkpoint::libraries::Libraries;
use ::checkpoint::{Failure, Kind};
use ::server::memory::Managed;
use std::path::{Path, PathBuf};
use store::{Access, Identities, Key, Location, Recipient};

/// Where the store is, and what opens it.
pub fn store_access(flags: &flags::Store) -> Result<Access, Failure> {
    access(store_location(flags), &flags.keys.key, &[])
}

/// A store, the keys in these files, and for whom it is to be encrypted.
pub fn access(at: Location, keys: &[PathBuf], recipients: &[Recipient]) -> Result<Access, Failure> {
    let key = match keys {
        [] => Key::None,
        files => {
            // The command that continues a job names them, wherever that is typed.
            let whole = files.iter().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
            let read = Identities::read(&whole.collect::<Vec<_>>());
            Key::Identities(read.map_err(|error| Failure::new(Kind::Store, error.to_string()))?)
        }
    };
    Ok(Access { at, key, recipients: recipients.to_vec() })
}

/// Where the store is.
fn store_location(flags: &flags::Store) -> Location {
    if let Some(location) = &flags.store {
        return location.clone();
    }
    if rustix::process::geteuid().is_root() {
        return Location::Folder("/var/lib/dormouse".into());
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let data = std::env::var_os("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from);
    Location::Folder(data.join("dormouse"))
}

/// Where a profile goes, if one is wanted: wherever it is named from.
///
/// # Errors
/// [`Kind::Failed`] when its folder is not there, which is better known before the program runs; [`Kind::Usage`] when it is a folder, or one of `others`,
/// which it would replace.
pub fn profile_file(flags: &flags::Record, others: &[Option<&PathBuf>]) -> Result<Option<PathBuf>, Failure> {
    let Some(file) = &flags.profile else { return Ok(None) };
    let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let is_other = others.iter().flatten().any(|other| real(other) == real(file));
    if is_other || file.is_dir() {
        let why = if is_other { "another option names it, too" } else { "it is a folder" };
        let message = format!("a profile cannot be written to {}: {why}; name another file", file.display());
        return Err(Failure::new(Kind::Usage, message));
    }
    let about = |error: std::io::Error| {
        Failure::of(format_args!("cannot write a profile to {}", file.display()), &error)
    };
    let file = std::path::absolute(file).map_err(about)?;
    std::fs::metadata(file.parent().unwrap_or(Path::new("/"))).map_err(about)?;
    Ok(Some(file))
}

/// Where the kernel's half of the driver is asked.
const DRIVER_NODE: &str = "/dev/nvidiactl";

/// Whether this machine has a GPU that can be asked for.
pub fn has_gpu() -> bool {
    Path::new(DRIVER_NODE).exists()
}

/// Where calls go on this machine: the value of `--device` for servers. Says so when it is not what one would hope for.
///
/// # Errors
/// [`Kind::Mismatch`] when a GPU is asked for where there is none.
pub fn device(flags: flags::Device) -> Result<&'static str, Failure> {
    Ok(match flags {
        flags::Device::Gpu if !has_gpu() => {
            let message = format!(
                "there is no device for --device gpu: {DRIVER_NODE} does not exist; use --device soft for the software device"
            );
            return Err(Failure::new(Kind::Mismatch, message));
        }
        flags::Device::Gpu => "gpu",
        flags::Device::Soft => "soft",
        flags::Device::Nested => "nested",
        flags::Device::Auto if has_gpu() => "gpu",
        flags::Device::Auto => {
            eprintln!(
                "dormouse: no GPU on this machine: using the software device (--device soft to ask for it)"
            );
            "soft"
        }
    })
}

/// What a job's GPU servers are told of where calls go: to another machine, whose address is tried, if one is given.
pub fn target(machine: &flags::Machine) -> Result<String, Failure> {
    let Some(address) = &machine.gpu else { return device(machine.device).map(str::to_owned) };
    if machine.device_memory.is_some() {
        let message = "--device-memory is for this machine's devices: `dormouse serve --device-memory` and `dormouse keys authorize --memory` bound what sessions take of another's";
        return Err(Failure::new(Kind::Usage, message));
    }
    remote::open(address, None, || {})?;
    Ok(flags::Target::Remote(address.clone()).to_string())
}

/// Warns where processor and kernels are to have memory in common that lies on two machines.
pub fn tell_of_far_memory(machine: &flags::Machine, managed: Managed) {
    if let Some(address) = machine.gpu.as_ref().filter(|_| managed == Managed::Coherent) {
        tracing::warn!(
            "with --managed=coherent managed memory is in step with the device at {address} where the program waits for it, and every millisecond or \
             so in between: a kernel sees what is written meanwhile late and in any order, and additions of both sides to one word are lost (docs/remote.md)"
        );
    }
}

/// What a job is given: our `libcuda.so.1`, `$DORMOUSE_SHIM` or where a bundle or a build folder has it; and, for `user_faults`, what lies beside it.
pub fn libraries(user_faults: bool) -> Result<Libraries, Failure> {
    let shim = shim()?;
    let bounce = user_faults.then(|| {
        let places = [host::BOUNCE, "libbounce.so"].map(|name| shim.with_file_name(name));
        find("library for --user-faults", &places, "install all of Dormouse")
    });
    Ok(Libraries { shim, bounce: bounce.transpose()? })
}

fn shim() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("DORMOUSE_SHIM") {
        return Ok(path.into());
    }
    let program =
        std::env::current_exe().map_err(|error| Failure::of("cannot find this program's folder", &error))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["../lib/libcuda.so.1", "libcuda_shim.so"].map(|place| folder.join(place));
    find("libcuda.so.1", &places, "set DORMOUSE_SHIM")
}

/// The first of these that there is; where there is none it is said what to do.
fn find(what: &str, places: &[PathBuf], remedy: &str) -> Result<PathBuf, Failure> {
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        let looked = looked.join(" and ");
        Failure::new(Kind::Failed, format!("Dormouse's {what} is missing (looked for {looked}); {remedy}"))
    })
}
