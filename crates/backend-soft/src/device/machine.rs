//! What the device says to those who watch it.

use wire::{Gpu, Machine, Quantity};

use super::backend::{DRIVER_VERSION, Options};
use super::facts::{MULTIPROCESSORS, facts};

/// The first driver with the interface that the device has: programs ask for at least some version.
pub const DRIVER: &str = "580.65.06";
/// CUDA cores of a multiprocessor of this compute capability.
const CORES: u32 = 128;

/// The machine's devices, were they GPUs.
#[must_use]
pub fn machine(options: &Options) -> Machine {
    let gpus = (0..options.devices).map(|index| gpu(index, options)).collect();
    Machine { driver: DRIVER.into(), nvml: format!("13.{DRIVER}"), cuda: DRIVER_VERSION, gpus }
}

/// Each process has a device of its own, whose memory is its own: nobody else uses any.
fn gpu(index: usize, options: &Options) -> Gpu {
    let memory = options.memory;
    let mut gpu = Gpu::of(&facts(index, options));
    for (quantity, which, value) in [
        (Quantity::Memory, 1, 0),
        (Quantity::Memory, 2, memory),
        (Quantity::Memory, 3, 0),
        (Quantity::MinorNumber, 0, index as u64),
        (Quantity::NumGpuCores, 0, u64::from(MULTIPROCESSORS * CORES)),
        // NVML counts architectures as compute capabilities do since Volta, but for Turing and Ampere.
        (Quantity::Architecture, 0, u64::from(options.capability / 10)),
        (Quantity::ComputeMode, 0, 0),
        (Quantity::PersistenceMode, 0, 1),
        (Quantity::DisplayMode, 0, 0),
        (Quantity::DisplayActive, 0, 0),
        (Quantity::PerformanceState, 0, 0),
    ] {
        gpu.set_number(quantity, which, value);
    }
    gpu
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_apart() {
        let machine = machine(&Options { devices: 2, memory: 1 << 30, ..Options::default() });
        let [first, second] = &machine.gpus[..] else { panic!("{machine:?}") };
        assert!(first.uuid != second.uuid && first.pci.bus != second.pci.bus);
        assert_eq!(second.number(Quantity::MinorNumber, 0), Some(1));
        let memory: Vec<_> = (0..4).map(|which| first.number(Quantity::Memory, which)).collect();
        assert_eq!(memory, [Some(1 << 30), Some(0), Some(1 << 30), Some(0)]);
    }
}
