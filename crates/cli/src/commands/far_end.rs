//! `dormouse far-end`: a session's process on the machine that serves, which has the device for one client.

use super::server;
use crate::flags::{Device, FarEnd};
use backend::Backend;
use checkpoint::Chain;
use link::Wires;
use link::far_end::{FarEndError, FarEndOptions};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Does what the client asks of the device, until it is gone.
fn serve(wires: Wires, backend: Arc<dyn Backend>) {
    // Here `remote::serve(wires, backend, quota)` goes: the crate `remote` is not part of this tree yet.
    tracing::error!("a client is here for {} devices, and nothing serves it yet", backend.devices().len());
    drop(wires);
}

/// Serves one client.
pub fn run(flags: &FarEnd) -> ExitCode {
    let options = FarEndOptions {
        insecure_loopback: flags.insecure_loopback,
        user: Some(flags.user),
        // What a driver's library calls is not known well enough to be listed (docs/security.md).
        system_calls: flags.device == Device::Soft,
        idle: flags.idle_ms.map(Duration::from_millis),
    };
    let ended = link::far_end::control().map_err(FarEndError::from).and_then(|control| {
        link::far_end(control, &options, |facts| {
            // The smaller of what the server gives anybody and what this client may have.
            let memory = [flags.device_memory, facts.quota.memory].into_iter().flatten().min();
            let backend = server::open(flags.device, memory)?;
            let count = backend.devices().len();
            if usize::try_from(facts.device).is_ok_and(|device| device < count) {
                Ok(|wires| serve(wires, backend))
            } else {
                Err(format!(
                    "it has no device number {} (they count from 0, and there are {count})",
                    facts.device
                ))
            }
        })
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // Strangers come by all day.
        Err(error @ (FarEndError::Client { .. } | FarEndError::Refused { .. })) => {
            tracing::info!("{}", Chain(&error));
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("a session's process: {}", Chain(&error));
            ExitCode::FAILURE
        }
    }
}
