//! `dormouse doctor`: what works on this machine, tried rather than guessed.

use super::{has_gpu, libraries};
use crate::flags::Doctor;
use crate::output::{Show, table};
use checkpoint::{Chain, Failure, Kind, check_store};
use host::criu::{Capabilities, Resource, Verdict};
use host::privilege::{self, Capability};
use indicatif::HumanBytes;
use serde::Serialize;
use shadow::Userfault;
use std::io::{self, Write};
use std::process::ExitCode;
use store::Access;

/// One thing that was tried.
#[derive(Serialize)]
pub struct Check {
    /// What, in a word that scripts can rely on.
    name: String,
    /// Whether it works.
    ok: bool,
    /// Whether it was tried: where not even a bare process can be restored, nothing else can be.
    tested: bool,
    /// Whether jobs can run and be checkpointed without it.
    optional: bool,
    /// What was found, or what to do.
    detail: String,
}

#[derive(Serialize)]
pub struct Findings {
    pub checks: Vec<Check>,
}

/// Tries everything that a job needs.
pub fn run(flags: &Doctor) -> Result<Findings, Failure> {
    let mut checks: Vec<Check> = Capability::all().map(held).collect();
    checks.push(match libraries(false) {
        Ok(libraries) => found("shim", libraries.shim.display().to_string()),
        Err(failure) => missing("shim", failure.message),
    });
    match host::Criu::find() {
        Err(error) => checks.push(missing("criu", Chain(&error).to_string())),
        Ok(criu) => {
            checks.push(found("criu", criu.to_string()));
            let capabilities = criu.probe(None);
            checks.extend(Resource::ALL.map(|resource| carried(&capabilities, resource)));
        }
    }
    checks.push(store(&super::store_access(&flags.store)?));
    checks.push(gpu());
    checks.push(shadow_pages());
    checks.push(found("software-device", "PTX on the CPU: --device soft".to_owned()));
    Ok(Findings { checks })
}

fn held(capability: Capability) -> Check {
    let name = capability.to_string();
    if capability.is_held() {
        return found(&name, capability.purpose().to_owned());
    }
    // CRIU gets by without this one, unless the job raised its limits.
    let optional = capability == Capability::SysResource;
    let detail = format!("{}: {}", capability.purpose(), privilege::advice());
    Check { optional, ..missing(&name, detail) }
}

fn carried(capabilities: &Capabilities, resource: Resource) -> Check {
    let name = format!("criu-{}", resource.name());
    match capabilities.verdict(resource) {
        Verdict::Works => found(&name, format!("{resource} are dumped and restored")),
        Verdict::Fails(why) => missing(&name, why.to_owned()),
        Verdict::Untested => {
            let detail = format!("whether {resource} are dumped and restored: no process is");
            Check { tested: false, ..missing(&name, detail) }
        }
    }
}

/// The store that images go to without `--store`.
fn store(access: &Access) -> Check {
    if let Err(failure) = check_store(access) {
        return missing("store", format!("{failure}; choose another with --store or DORMOUSE_STORE"));
    }
    let at = &access.at;
    let Some(dir) = at.as_folder() else { return found("store", format!("{at}: reached")) };
    let free = dir.ancestors().find_map(|place| rustix::fs::statvfs(place).ok());
    let free = free.map_or(0, |place| place.f_bavail.saturating_mul(place.f_frsize));
    if free == 0 {
        let detail = format!(
            "{}: 0 B free; make room there, or choose another with --store or DORMOUSE_STORE",
            dir.display()
        );
        return missing("store", detail);
    }
    let there = if dir.exists() { "writable" } else { "not there yet; the first checkpoint makes it" };
    found("store", format!("{}: {there}, {} free", dir.display(), HumanBytes(free)))
}

/// What `--managed shadow` needs of the kernel.
fn shadow_pages() -> Check {
    let opened = Userfault::create().and_then(Userfault::open);
    let (ok, detail) = match opened {
        Ok(_) => (true, "a userfaultfd: --managed auto, shadow and exclusive".to_owned()),
        Err(error) => {
            let of_user_mode = Userfault::create_for_user_mode().and_then(Userfault::open);
            let besides = if of_user_mode.is_ok() {
                "; without these there is `dormouse run --user-faults`"
            } else {
                ""
            };
            let detail = format!(
                "no userfaultfd ({error}): managed memory is coherent, and refused with --managed exclusive; shadow pages need Linux 5.19, and CAP_SYS_PTRACE or \
                 vm.unprivileged_userfaultfd = 1{besides}"
            );
            (false, detail)
        }
    };
    Check { name: "shadow-pages".to_owned(), ok, tested: true, optional: true, detail }
}

/// The driver itself is not asked: initialising it takes a server's place on the GPU.
fn gpu() -> Check {
    let libraries = host::driver::library_paths("libcuda.so");
    let (ok, detail) = match (has_gpu(), libraries.first()) {
        (true, Some(library)) => (true, format!("driver library {}", library.display())),
        (true, None) => {
            (false, "there is a GPU, but no libcuda.so.1; install the driver's library".to_owned())
        }
        (false, _) => (false, "no GPU; programs run on the software device".to_owned()),
    };
    Check { name: "gpu".to_owned(), ok, tested: true, optional: true, detail }
}

pub fn found(name: &str, detail: String) -> Check {
    Check { name: name.to_owned(), ok: true, tested: true, optional: false, detail }
}

fn missing(name: &str, detail: String) -> Check {
    Check { name: name.to_owned(), ok: false, tested: true, optional: false, detail }
}

impl Findings {
    fn all_well(&self) -> bool {
        self.checks.iter().all(|check| check.ok || check.optional)
    }
}

impl Show for Findings {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let rows: Vec<Vec<String>> = self
            .checks
            .iter()
            .map(|check| {
                let state = match (check.ok, check.optional) {
                    _ if !check.tested => "untested",
                    (true, _) => "ok",
                    (false, true) => "none",
                    (false, false) => "MISSING",
                };
                vec![state.to_owned(), check.name.clone(), check.detail.clone()]
            })
            .collect();
        table(out, &rows)?;
        let verdict =
            if self.all_well() { "programs can be run and checkpointed" } else { "something is missing" };
        writeln!(out, "\n{verdict}")
    }

    fn code(&self) -> ExitCode {
        if self.all_well() { ExitCode::SUCCESS } else { Kind::Unavailable.exit_code().into() }
    }
}
