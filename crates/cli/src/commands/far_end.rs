//! `dormouse far-end`: a session's process on the machine that serves, which has the device for one client.

use super::{remote, server};
use crate::flags::{Device, FarEnd};
use ::remote::{Choice, Quota};
use checkpoint::Chain;
use link::far_end::{FarEndError, FarEndOptions};
use link::{Confinement, MemoryShare, Service};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Serves one client.
pub fn run(flags: &FarEnd) -> ExitCode {
    let options = FarEndOptions {
        insecure_loopback: flags.insecure_loopback,
        service: Service::Devices,
        confinement: Some(Confinement {
            user: flags.user,
            network: flags.rdma,
            // What a driver's library calls, or that of RDMA, is not known well enough to be listed (docs/security.md).
            system_calls: flags.device == Device::Soft && !flags.rdma,
        }),
        rdma: flags.rdma,
        grace: Duration::from_millis(flags.grace_ms),
    };
    let idle = flags.idle_ms.map(Duration::from_millis);
    let ended = link::far_end::control().map_err(FarEndError::from).and_then(|control| {
        link::far_end(control, &options, |facts| {
            // The smaller of what the server gives anybody and what this client may have.
            let memory = [flags.device_memory, facts.quota.memory].into_iter().flatten().min();
            let backend = server::local(flags.device, memory)?;
            let devices = Choice { only: None, visible: facts.quota.devices.clone() };
            let count = devices.of(backend.devices()).len();
            let together = facts.memory.clone().map(|share| Arc::new(Together(share)) as _);
            let quota = Quota { memory, together, devices, ..Quota::default() };
            if usize::try_from(facts.device).is_ok_and(|device| device < count) {
                Ok(move |wires| remote::serve(wires, backend, quota, idle))
            } else {
                Err(format!(
                    "it has no device number {} for this client (they count from 0, and there are {count})",
                    facts.device
                ))
            }
        })
    });
    code(ended)
}

/// The device memory that all sessions of a client have together.
#[derive(Debug)]
struct Together(Arc<MemoryShare>);

impl ::remote::Together for Together {
    fn take(&self, bytes: u64) -> bool {
        self.0.take(bytes)
    }

    fn give_back(&self, bytes: u64) {
        self.0.give_back(bytes);
    }

    fn leaves(&self) {
        self.0.leaves();
    }

    fn left(&self) -> u64 {
        self.0.left()
    }
}

/// The exit code of a session's process.
pub fn code(ended: Result<(), FarEndError>) -> ExitCode {
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
