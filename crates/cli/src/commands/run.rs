//! `dormouse run`

use super::{again, libraries, profile_file, store_access, target, tell_of_far_memory};
use crate::exit::OWN_FAILURE;
use crate::flags::{KEY_VARIABLE, Run};
use crate::output::{complain, tell_end};
use checkpoint::gpus::Gpus;
use checkpoint::starting::{self, Name, Settings};
use checkpoint::supervisor::Ended;
use checkpoint::{Failure, Kind};
use server::memory::Managed;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use store::Access;

/// Most memory that rings and pinned memory may take, bytes, when the user has not said.
const SHARED_MEMORY: u64 = 64 << 30;

/// Runs a program as a job and ends as it does.
pub fn run(flags: Run) -> ExitCode {
    let on_failure = flags.on_failure.clone();
    match start(flags) {
        Ok(ended) => {
            again::restart(&ended, &on_failure, None);
            tell_end(&ended);
            ended.ending.exit_like_it()
        }
        Err((failure, code)) => {
            complain(&failure);
            ExitCode::from(code)
        }
    }
}

fn start(flags: Run) -> Result<Ended, (Failure, u8)> {
    let own = |failure| (failure, OWN_FAILURE);
    let io = |error: std::io::Error| own(Failure::of("cannot prepare the job", &error));
    if flags.user_faults && flags.machine.managed == Some(Managed::Coherent) {
        let message = "--user-faults is for managed memory that has shadow pages, and with --managed=coherent none has: leave one of them out";
        return Err((Failure::new(Kind::Usage, message), Kind::Usage.exit_code()));
    }
    tell_of_far_memory(&flags.machine, flags.machine.managed.unwrap_or_default());
    // Before any thread exists: signals are waited for, not handled.
    let signals = host::signals::Forwarder::block().map_err(io)?;
    let program = Path::new(&flags.program[0]).to_owned();
    let profile = profile_file(&flags.record, &[flags.regularly.plan.as_ref(), flags.trace.trace.as_ref()])
        .map_err(own)?;
    let settings = Settings {
        point_wait: flags.regularly.point_wait(),
        name: flags.name.map_or_else(|| Name::Numbered(base_name(&program)), Name::Exactly),
        device: target(&flags.machine).map_err(own)?,
        managed: flags.machine.managed.unwrap_or_default(),
        preempt_after: flags.machine.preempt_after.and_then(|turn| turn.0),
        store: Access { recipients: flags.encrypt, ..store_access(&flags.store).map_err(own)? },
        trace: flags.trace.trace,
        regularly: flags.regularly.wanted().map_err(own)?,
        profile,
        continued: flags.on_failure.restart_on_failure.is_some(),
        store_is_default: flags.store.store.is_none(),
        shared_memory: flags.machine.shared_memory.unwrap_or(SHARED_MEMORY),
        device_memory: flags.machine.device_memory,
        gpus: Gpus::of_environment(),
    };
    let mut spec = host::JobSpec::inherit(flags.program).map_err(io)?;
    // They would be in its images, where they open the store to whoever has one of them, or say where its key lies.
    let is_ours = |name: &[u8]| {
        name == KEY_VARIABLE.as_bytes()
            || name == link::keys::FOLDER_VARIABLE.as_bytes()
            || name.starts_with(store::media::S3::OWN_VARIABLES.as_bytes())
    };
    spec.env.retain(|(name, _)| !is_ours(name.as_bytes()));
    let libraries = libraries(flags.user_faults).map_err(own)?;
    starting::run(settings, spec, &libraries, signals).map_err(|failure| {
        // As a shell has it.
        let code = match failure.kind {
            Kind::NotFound => 127,
            Kind::CannotExecute => 126,
            _ => OWN_FAILURE,
        };
        (failure, code)
    })
}

/// The program's name, as far as a job can have it.
fn base_name(program: &Path) -> String {
    let name: String = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(40)
        .collect();
    let name = name.trim_start_matches('-');
    if name.is_empty() { "job".to_owned() } else { name.to_owned() }
}
