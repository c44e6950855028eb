//! What is taken while the job stands still: device memory by its servers, the host half by CRIU.

use super::gate::Gated;
use crate::admin::Event;
use crate::error::{Chain, Failure, Kind};
use crate::facts;
use crate::folder::write_failure;
use crate::server_process::ServerProcess;
use crate::sessions::panicked;
use crate::supervisor::Supervisor;
use image::DeviceFacts;
use server::control::{Answer, Ask};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use store::Receipt;

/// What the servers captured.
pub struct Device {
    pub receipts: Vec<Receipt>,
    pub devices: Vec<DeviceFacts>,
    /// The object tables, to rehearse.
    pub states: Vec<PathBuf>,
    pub bytes: u64,
}

/// A stopped job and its captured device memory, and how long each took.
pub struct Captured<'a> {
    pub frozen: host::Frozen<'a>,
    pub host_time: Duration,
    pub device: Device,
    pub device_time: Duration,
}

/// Device memory by the servers and the host half by CRIU, side by side: the gate keeps the device as it is.
///
/// # Errors
/// The first that fails; the job's tasks run again.
pub fn capture<'a>(
    job: &'a Supervisor,
    criu: &host::Criu,
    gated: &mut Gated<'_>,
    ask: &Ask,
    images: &Path,
    events: &Sender<Event>,
) -> Result<Captured<'a>, Failure> {
    let (done, total) = (AtomicU64::new(0), gated.bytes);
    let began = Instant::now();
    let (dumped, host_time, answers) = std::thread::scope(|scope| {
        let capturing: Vec<_> = gated
            .servers
            .iter_mut()
            .map(|server| {
                let server: &mut ServerProcess = server;
                let (done, events) = (&done, events.clone());
                scope.spawn(move || {
                    let mut before = 0;
                    server.ask(ask, &mut |now, _| {
                        let step = now.saturating_sub(before);
                        before = now;
                        let done = done.fetch_add(step, Ordering::Relaxed) + step;
                        let _ = events.send(Event::Progress { done, total });
                    })
                })
            })
            .collect();
        let dumped = job.job.dump(criu, images, &host::DumpOptions::default());
        let host_time = began.elapsed();
        let answers: Vec<_> =
            capturing.into_iter().map(|each| each.join().unwrap_or_else(|_| Err(panicked()))).collect();
        (dumped, host_time, answers)
    });
    let device_time = began.elapsed();
    let mut device = Device { receipts: Vec::new(), devices: Vec::new(), states: Vec::new(), bytes: 0 };
    let frozen = dumped.map_err(|error| dump_failure(job, &error))?;
    for answer in answers {
        device.take(answer?)?;
    }
    Ok(Captured { frozen, host_time, device, device_time })
}

impl Device {
    /// Adds what one server captured.
    fn take(&mut self, answer: Answer) -> Result<(), Failure> {
        let Answer::Captured { receipt, bytes, devices, state } = answer else {
            return Err(Failure::new(Kind::Failed, format!("a GPU server answered {answer:?}")));
        };
        self.states.push(state);
        self.receipts.push(receipt_of(&receipt)?);
        self.bytes += bytes;
        for each in devices {
            if !self.devices.contains(&each) {
                self.devices.push(each);
            }
        }
        Ok(())
    }
}

fn receipt_of(hex: &str) -> Result<Receipt, Failure> {
    let bytes = facts::from_hex(hex)
        .ok_or_else(|| Failure::new(Kind::Failed, "a GPU server's receipt is not hexadecimal"))?;
    Receipt::from_bytes(&bytes).map_err(write_failure)
}

fn dump_failure(job: &Supervisor, error: &host::DumpError) -> Failure {
    if job.job.application_ending().is_some() {
        return Failure::new(Kind::Ended, "the job ended during the checkpoint; nothing was published");
    }
    Failure::new(Kind::Failed, Chain(error).to_string())
}
