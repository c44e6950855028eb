//! `dormouse server`: a GPU server, on whichever device it was told.

use crate::flags::{Device, Server, Target};
use backend::Backend;
use backend_driver::{Driver, DriverUnavailable};
use rustix::process::{Signal, getpid, kill_process};
use server::memory::Layout;
use std::process::ExitCode;
use std::sync::Arc;

/// Serves one application process until its supervisor ends it.
pub fn run(flags: &Server) -> ExitCode {
    let layout = match flags.device {
        Target::Here(Device::Nested) => Layout::nested(flags.session),
        _ => Layout::of_session(flags.session),
    };
    let settings = server::Settings { managed: flags.managed, preempt_after: flags.preempt_after };
    match server::serve(&flags.dir, flags.session, layout, (flags.shares, settings), || {
        open(&flags.device, flags.device_memory)
    }) {
        Ok(()) => end(),
        Err(error) if error.is_orphaned() => end(),
        // The supervisor has been told, and says it.
        Err(error) => {
            tracing::debug!("GPU server of session {}: {}", flags.session, checkpoint::Chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Ends this process at once. The device library's own way out waits for kernels, and nobody may be left to end a server that waits.
fn end() -> ExitCode {
    let _ = kill_process(getpid(), Signal::KILL);
    ExitCode::SUCCESS
}

/// The backend for a device, wherever it is.
fn open(target: &Target, memory: Option<u64>) -> Result<Arc<dyn Backend>, String> {
    match target {
        Target::Here(device) => local(*device, memory),
        // Without its device a server is none, and the supervisor hears of it in this way.
        Target::Remote(address) => {
            let visible = std::env::var(checkpoint::gpus::VARIABLE).ok();
            let lost = || host::signals::exit_at_once(checkpoint::LOST_MACHINE);
            match super::remote::open(address, visible, lost) {
                Ok(device) => Ok(Arc::new(device)),
                Err(failure) => Err(failure.message),
            }
        }
    }
}

/// The backend for a device of this machine, of which no more than so much memory is given; why not, as a sentence.
pub fn local(device: Device, memory: Option<u64>) -> Result<Arc<dyn Backend>, String> {
    let driver = |opened: Result<Driver, DriverUnavailable>| {
        let limited = opened.map(|driver| Arc::new(driver.limited(memory)) as Arc<dyn Backend>);
        limited.map_err(|error| checkpoint::Chain(&error).to_string())
    };
    match device {
        Device::Soft => {
            let options = backend_soft::Options::from_environment();
            let memory = memory.map_or(options.memory, |memory| memory.min(options.memory));
            Ok(Arc::new(backend_soft::SoftBackend::new(backend_soft::Options { memory, ..options })))
        }
        Device::Gpu | Device::Auto => driver(Driver::open()),
        Device::Nested => driver(Driver::open_nested()),
    }
}
