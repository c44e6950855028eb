//! Devices of another machine: this end of a session with its `dormouse serve`, and the other.

use backend::Backend;
use checkpoint::{Chain, Failure, Kind};
use link::{Address, DialError, DialOptions, Keys, Trust, dial};
use remote::{Choice, Quota, RemoteBackend, Wires};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Gpu, Machine, Quantity};

/// A session with a machine that serves, as its devices, or those of them that `visible` names; `gone` is called when it is lost.
pub fn open(
    address: &Address,
    visible: Option<String>,
    gone: impl Fn() + Send + Sync + 'static,
) -> Result<RemoteBackend, Failure> {
    let keys = Keys::default();
    let (wires, _) =
        dial(address, Trust::Keys(&keys), &DialOptions::default()).map_err(|error| failure(&error))?;
    let machine = address.machine();
    let lost = move |why: &str| {
        tracing::error!("the session with {machine} is lost: {why}");
        gone();
    };
    let choice = Choice { only: address.device(), visible };
    RemoteBackend::connect(wires, &choice, lost)
        .map_err(|error| Failure::new(Kind::Unreachable, format!("{}: {}", address.machine(), Chain(&error))))
}

/// For how long a job that has lost its machine waits for it to be there again.
const AWAITED: Duration = Duration::from_secs(600);
/// The pauses between tries: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// Waits until a machine can be reached that a job has lost: nobody is there to try again.
///
/// # Errors
/// When it does not come back in time, or has told something that it would tell again.
pub fn await_machine(address: &Address) -> Result<(), Failure> {
    let (keys, begun, mut pause) = (Keys::default(), Instant::now(), PAUSES[0]);
    let mut told = false;
    loop {
        match dial(address, Trust::Keys(&keys), &DialOptions::default()) {
            Ok(_) => return Ok(()),
            Err(error) if error.may_pass() && begun.elapsed() < AWAITED => {
                if !std::mem::replace(&mut told, true) {
                    let minutes = AWAITED.as_secs() / 60;
                    eprintln!(
                        "dormouse: the restart waits for {} for {minutes} minutes: {error}",
                        address.machine()
                    );
                }
            }
            Err(error) => return Err(failure(&error)),
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSES[1]);
    }
}

/// The machine's GPUs, as far as they are known here: what NVML watches is not.
pub fn machine(address: &Address) -> Result<Machine, Failure> {
    let device = open(address, None, || {})?;
    let (driver, cuda) = (device.driver_release(), device.driver_version());
    let gpu = |facts| {
        let mut gpu = Gpu::of(facts);
        let total = facts.total_memory;
        for (which, bytes) in [(1, 0), (2, total), (3, 0)] {
            gpu.set_number(Quantity::Memory, which, bytes);
        }
        gpu
    };
    let gpus = device.devices().iter().map(gpu).collect();
    Ok(Machine { nvml: nvml(&driver, cuda), driver, cuda, gpus })
}

/// The version that NVML has, of a driver for this CUDA: nothing where the driver's is not known.
fn nvml(driver: &str, cuda: i32) -> String {
    if driver.is_empty() { String::new() } else { format!("{}.{driver}", cuda / 1000) }
}

/// Serves one client until it is gone.
pub fn serve(mut wires: Wires, backend: Arc<dyn Backend>, quota: Quota, idle: Option<Duration>) {
    wires.patience.idle = idle;
    if let Err(error) = remote::serve(wires, backend, quota) {
        tracing::info!("a session ended: {}", Chain(&error));
    }
}

/// Why there is no session, as an exit code.
pub fn failure(error: &DialError) -> Failure {
    match error {
        DialError::OwnKeys(error) => super::serve::keys_failure(error),
        _ => Failure::new(Kind::Unreachable, Chain(error).to_string()),
    }
}
