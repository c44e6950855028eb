//! `dormouse run`

use super::{device, shim, store_dir};
use crate::exit::OWN_FAILURE;
use crate::flags::Run;
use crate::output::complain;
use checkpoint::supervisor::{self, Settings};
use checkpoint::{Failure, Kind, runtime};
use std::path::Path;
use std::process::ExitCode;

/// Runs a program as a job and ends as it does.
pub fn run(flags: Run) -> ExitCode {
    match start(flags) {
        Ok(ending) => ending.exit_like_it(),
        Err((failure, code)) => {
            complain(&failure);
            ExitCode::from(code)
        }
    }
}

fn start(flags: Run) -> Result<host::Ending, (Failure, u8)> {
    let own = |failure| (failure, OWN_FAILURE);
    let io = |error: std::io::Error| own(Failure::of("cannot prepare the job", &error));
    // Before any thread exists: signals are waited for, not handled.
    let signals = host::signals::Forwarder::block().map_err(io)?;
    let program = Path::new(&flags.program[0]).to_owned();
    let settings = Settings {
        name: flags.name.unwrap_or_else(|| default_name(&program)),
        device: device(flags.machine.device).to_owned(),
        store: store_dir(&flags.store),
        shared_memory: flags.machine.shared_memory,
    };
    let spec = host::JobSpec::inherit(flags.program).map_err(io)?;
    supervisor::run(settings, spec, &shim().map_err(own)?, signals).map_err(|failure| {
        // As a shell has it.
        let code = match failure.kind {
            Kind::NotFound => 127,
            Kind::CannotExecute => 126,
            _ => OWN_FAILURE,
        };
        (failure, code)
    })
}

/// The program's name and the first number that is free.
fn default_name(program: &Path) -> String {
    let name: String = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(40)
        .collect();
    let name = name.trim_start_matches('-');
    let base = if name.is_empty() { "job" } else { name };
    let taken: Vec<String> =
        runtime::list(&runtime::root()).unwrap_or_default().into_iter().map(|job| job.job).collect();
    (1u32..).map(|number| format!("{base}-{number}")).find(|name| !taken.contains(name)).unwrap_or_default()
}
