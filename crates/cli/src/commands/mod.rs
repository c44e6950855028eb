//! One file for each command.

pub mod checkpoint;
pub mod doctor;
pub mod images;
pub mod manual;
pub mod ps;
pub mod restart;
pub mod run;
pub mod server;

use crate::flags;
use ::checkpoint::{Failure, Kind};
use std::path::{Path, PathBuf};

/// The folder of the store.
pub fn store_dir(flags: &flags::Store) -> PathBuf {
    if let Some(dir) = &flags.store {
        return dir.clone();
    }
    if rustix::process::geteuid().is_root() {
        return "/var/lib/dormouse".into();
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    std::env::var_os("XDG_DATA_HOME")
        .map_or_else(|| home.join(".local/share"), PathBuf::from)
        .join("dormouse")
}

/// Where calls go on this machine: the value of `--device` for servers. Says so when it is not what one would hope for.
pub fn device(flags: flags::Device) -> &'static str {
    match flags {
        flags::Device::Gpu => "gpu",
        flags::Device::Soft => "soft",
        flags::Device::Auto if Path::new("/dev/nvidiactl").exists() => "gpu",
        flags::Device::Auto => {
            eprintln!(
                "dormouse: no GPU on this machine: using the software device (--device soft to ask for it)"
            );
            "soft"
        }
    }
}

/// Our `libcuda.so.1`: `$DORMOUSE_SHIM`, or where a bundle or a build folder has it.
pub fn shim() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("DORMOUSE_SHIM") {
        return Ok(path.into());
    }
    let program =
        std::env::current_exe().map_err(|error| Failure::of("cannot find this program's folder", &error))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["../lib/libcuda.so.1", "libcuda_shim.so"].map(|place| folder.join(place));
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let looked = places.map(|place| place.display().to_string()).join(" and ");
        Failure::new(
            Kind::Failed,
            format!("Dormouse's libcuda.so.1 is missing (looked for {looked}); set DORMOUSE_SHIM"),
        )
    })
}
