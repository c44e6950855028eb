//! `dormouse server`: a GPU server, on whichever device it was told.

use crate::flags::{Device, Server};
use backend::Backend;
use std::process::ExitCode;
use std::sync::Arc;

/// Serves one application process until its supervisor ends it.
pub fn run(flags: &Server) -> ExitCode {
    match server::serve(&flags.dir, flags.session, flags.shares, || open(flags.device)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_orphaned() => {
            tracing::debug!("GPU server of session {}: its supervisor is gone", flags.session);
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("GPU server of session {}: {}", flags.session, checkpoint::Chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The backend for a device; why not, as a sentence.
fn open(device: Device) -> Result<Arc<dyn Backend>, String> {
    match device {
        Device::Soft => Ok(Arc::new(backend_soft::SoftBackend::new(backend_soft::Options::default()))),
        Device::Gpu | Device::Auto => backend_driver::Driver::open()
            .map(|driver| Arc::new(driver) as _)
            .map_err(|error| checkpoint::Chain(&error).to_string()),
    }
}
