//! Which GPUs the machine has, as its NVML tells it, or without one as the driver does. For a process that ends soon: both keep nodes of the driver
//! open for good.

mod ask;
mod nvml;
#[cfg(test)]
mod tests;

use crate::api::{Api, DriverUnavailable, check};
use crate::device;
use wire::{CuError, Gpu, Machine};

/// Why nobody can tell.
#[derive(Debug, thiserror::Error)]
pub enum MachineUnknown {
    /// NVML is there and fails.
    #[error("{call} of the machine's libnvidia-ml.so.1 answers {code}")]
    Nvml {
        /// The call that failed.
        call: &'static str,
        /// Its `nvmlReturn_t`.
        code: u32,
    },
    /// NVML is not there, and the driver fails.
    #[error(transparent)]
    Driver(#[from] DriverUnavailable),
}

/// The machine's GPUs now.
///
/// # Errors
/// [`MachineUnknown`].
pub fn look() -> Result<Machine, MachineUnknown> {
    match nvml::Nvml::load() {
        Some(nvml) => nvml.look(),
        None => Ok(by_driver()?),
    }
}

/// The driver's version, which its half in the kernel says where its library cannot.
pub fn release() -> String {
    std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default().trim().to_owned()
}

fn by_driver() -> Result<Machine, DriverUnavailable> {
    let api = Api::load()?;
    let step = |call, code| check(code).map_err(|error| DriverUnavailable::Init { call, error });
    // SAFETY: plain initialisation.
    step("cuInit", unsafe { (api.cuInit)(0) })?;
    let mut cuda = 0;
    // SAFETY: writes the version.
    step("cuDriverGetVersion", unsafe { (api.cuDriverGetVersion)(&raw mut cuda) })?;
    let facts = device::all(&api);
    let (_, facts) =
        facts.map_err(|error: CuError| DriverUnavailable::Init { call: "cuDeviceGet", error })?;
    let mut gpus: Vec<Gpu> = facts.iter().map(Gpu::of).collect();
    gpus.sort_by_key(|gpu| gpu.pci.packed());
    Ok(Machine { driver: release(), nvml: String::new(), cuda, gpus })
}
