//! The machine's NVML, found at run time and asked by its functions' shapes.

use super::MachineUnknown;
use super::ask::{NUMBERS, Shape, TEXTS, TextShape};
use crate::api::SHIM_MARKER;
use libloading::Library;
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use sys::nvmlDevice_t as Device;
use wire::{GPUS_MAX, Gpu, Machine, Pci, Quantity};

/// Links that a GPU may have.
const LINKS: u16 = sys::NVML_NVLINK_MAX_LINKS as u16;
/// What a link may be capable of, and what two GPUs may be of each other.
const CAPABILITIES: u16 = 6;

/// The library, initialised.
pub struct Nvml(Library);

type Result<T> = std::result::Result<T, MachineUnknown>;

impl Nvml {
    /// None where there is none, or it is Dormouse's own.
    pub fn load() -> Option<Self> {
        // SAFETY: the initialisers are the vendor's; nothing else of this process depends on their order.
        Self::of(unsafe { Library::new("libnvidia-ml.so.1") }.ok()?)
    }

    /// None if it is Dormouse's own.
    pub fn of(library: Library) -> Option<Self> {
        // SAFETY: only the symbol's presence is asked for.
        let ours = unsafe { library.get::<*const c_void>(SHIM_MARKER) }.is_ok();
        (!ours).then_some(Self(library))
    }

    /// Every GPU.
    pub fn look(&self) -> Result<Machine> {
        // SAFETY: of this type.
        let init: unsafe extern "C" fn() -> c_uint = unsafe { self.find("nvmlInit_v2") }?;
        // SAFETY: plain initialisation.
        succeed("nvmlInit_v2", unsafe { init() })?;
        let mut cuda: c_int = 0;
        // SAFETY: of this type.
        let version: unsafe extern "C" fn(*mut c_int) -> c_uint =
            unsafe { self.find("nvmlSystemGetCudaDriverVersion") }?;
        // SAFETY: writes the version.
        succeed("nvmlSystemGetCudaDriverVersion", unsafe { version(&raw mut cuda) })?;
        let devices = self.devices()?;
        let mut gpus = devices.iter().map(|device| self.gpu(*device)).collect::<Result<Vec<_>>>()?;
        for (gpu, device) in gpus.iter_mut().zip(&devices) {
            self.neighbours(gpu, *device, &devices);
        }
        Ok(Machine {
            driver: self.version("nvmlSystemGetDriverVersion")?,
            nvml: self.version("nvmlSystemGetNVMLVersion")?,
            cuda,
            gpus,
        })
    }

    fn devices(&self) -> Result<Vec<Device>> {
        let mut count: c_uint = 0;
        // SAFETY: of these types.
        let (number, by_index) = unsafe {
            (
                self.find::<unsafe extern "C" fn(*mut c_uint) -> c_uint>("nvmlDeviceGetCount_v2")?,
                self.find::<unsafe extern "C" fn(c_uint, *mut Device) -> c_uint>(
                    "nvmlDeviceGetHandleByIndex_v2",
                )?,
            )
        };
        // SAFETY: writes the number.
        succeed("nvmlDeviceGetCount_v2", unsafe { number(&raw mut count) })?;
        let one = |index| {
            let mut device: Device = std::ptr::null_mut();
            // SAFETY: writes the handle.
            succeed("nvmlDeviceGetHandleByIndex_v2", unsafe { by_index(index, &raw mut device) })
                .map(|()| device)
        };
        (0..count.min(GPUS_MAX as c_uint)).map(one).collect()
    }

    /// What every GPU has, and what this one has besides.
    fn gpu(&self, device: Device) -> Result<Gpu> {
        let text = |name| {
            self.text(name, &TextShape::Room, device).ok_or(MachineUnknown::Nvml { call: name, code: 0 })
        };
        // SAFETY: of this type.
        let find: unsafe extern "C" fn(Device, *mut sys::nvmlPciInfo_t) -> c_uint =
            unsafe { self.find("nvmlDeviceGetPciInfo_v3") }?;
        // SAFETY: a record of numbers and texts, all of which may be zero.
        let mut pci: sys::nvmlPciInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: fills the record.
        succeed("nvmlDeviceGetPciInfo_v3", unsafe { find(device, &raw mut pci) })?;
        let capability = self.several("nvmlDeviceGetCudaComputeCapability", device).unwrap_or_default();
        let mut gpu = Gpu::default();
        gpu.uuid = text("nvmlDeviceGetUUID")?;
        gpu.name = text("nvmlDeviceGetName")?;
        gpu.pci = address(&pci);
        gpu.capability = (capability[0], capability[1]);
        for (quantity, name, shape) in NUMBERS {
            self.number(&mut gpu, *quantity, name, shape, device);
        }
        for (text, name, shape) in TEXTS {
            if let Some(value) = self.text(name, shape, device) {
                gpu.set_text(*text, value);
            }
        }
        self.records(&mut gpu, device);
        Ok(gpu)
    }

    fn number(&self, gpu: &mut Gpu, quantity: Quantity, name: &str, shape: &Shape, device: Device) {
        match shape {
            Shape::Number => {
                // SAFETY: a function of this shape, which writes the number.
                if let Some(value) = unsafe { self.filled(name, |f: NumberOf<c_uint>, to| f(device, to)) } {
                    gpu.set_number(quantity, 0, u64::from(value));
                }
            }
            Shape::Long => {
                // SAFETY: as above.
                let value = unsafe { self.filled(name, |f: NumberOf<c_ulonglong>, to| f(device, to)) };
                if let Some(value) = value {
                    gpu.set_number(quantity, 0, value);
                }
            }
            Shape::Several(count) => {
                let values = self.several(name, device).unwrap_or_default();
                (0..*count)
                    .zip(values)
                    .for_each(|(which, value)| gpu.set_number(quantity, which, value.into()));
            }
            Shape::Which(count) => {
                type Which = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_uint;
                for which in 0..*count {
                    // SAFETY: as above.
                    let value = unsafe { self.filled(name, |f: Which, to| f(device, which.into(), to)) };
                    if let Some(value) = value {
                        gpu.set_number(quantity, which, u64::from(value));
                    }
                }
            }
            Shape::Words(count) => {
                type Words = unsafe extern "C" fn(Device, c_uint, *mut c_ulong) -> c_uint;
                const MOST: usize = 16;
                let count = (*count).min(MOST as u16);
                // SAFETY: as above, of as many words as there is room for.
                let words = unsafe {
                    self.filled(name, |f: Words, to: *mut [c_ulong; MOST]| f(device, count.into(), to.cast()))
                };
                for (which, word) in (0..count).zip(words.unwrap_or_default()).filter(|(_, word)| *word != 0)
                {
                    gpu.set_number(quantity, which, word);
                }
            }
        }
    }

    /// What comes in structures.
    fn records(&self, gpu: &mut Gpu, device: Device) {
        let mut say = |quantity, values: &[u64]| {
            (0..).zip(values).for_each(|(which, value)| gpu.set_number(quantity, which, *value));
        };
        let sized = |version: u32, bytes: usize| bytes as c_uint | version << 24;
        // SAFETY: each function fills a record of this type, which may start out as zeros.
        unsafe {
            let memory = self.filled(
                "nvmlDeviceGetMemoryInfo_v2",
                |f: NumberOf<sys::nvmlMemory_v2_t>, to: *mut sys::nvmlMemory_v2_t| {
                    (*to).version = sized(2, size_of::<sys::nvmlMemory_v2_t>());
                    f(device, to)
                },
            );
            let older =
                || self.filled("nvmlDeviceGetMemoryInfo", |f: NumberOf<sys::nvmlMemory_t>, to| f(device, to));
            if let Some(memory) = memory {
                say(Quantity::Memory, &[memory.total, memory.reserved, memory.free, memory.used]);
            } else if let Some(memory) = older() {
                say(Quantity::Memory, &[memory.total, 0, memory.free, memory.used]);
            }
            let bar1 = |f: NumberOf<sys::nvmlBAR1Memory_t>, to| f(device, to);
            if let Some(bar1) = self.filled("nvmlDeviceGetBAR1MemoryInfo", bar1) {
                say(Quantity::Bar1Memory, &[bar1.bar1Total, bar1.bar1Free, bar1.bar1Used]);
            }
            let rates = |f: NumberOf<sys::nvmlUtilization_t>, to| f(device, to);
            if let Some(rates) = self.filled("nvmlDeviceGetUtilizationRates", rates) {
                say(Quantity::UtilizationRates, &[rates.gpu.into(), rates.memory.into()]);
            }
            let attributes = |f: NumberOf<sys::nvmlDeviceAttributes_t>, to| f(device, to);
            if let Some(of) = self.filled("nvmlDeviceGetAttributes_v2", attributes) {
                let counts = [
                    of.multiprocessorCount,
                    of.sharedCopyEngineCount,
                    of.sharedDecoderCount,
                    of.sharedEncoderCount,
                    of.sharedJpegCount,
                    of.sharedOfaCount,
                    of.gpuInstanceSliceCount,
                    of.computeInstanceSliceCount,
                ]
                .map(u64::from);
                say(Quantity::Attributes, &[&counts[..], &[of.memorySizeMB]].concat());
            }
            type Affinity = unsafe extern "C" fn(Device, c_uint, *mut c_ulong, c_uint) -> c_uint;
            let nodes =
                |f: Affinity, to: *mut [c_ulong; 4]| f(device, 4, to.cast(), sys::NVML_AFFINITY_SCOPE_NODE);
            if let Some(nodes) = self.filled("nvmlDeviceGetMemoryAffinity", nodes) {
                say(Quantity::MemoryAffinity, &nodes);
            }
        }
    }

    /// What it can say of other GPUs, and of its links.
    fn neighbours(&self, gpu: &mut Gpu, device: Device, all: &[Device]) {
        type Ancestor = unsafe extern "C" fn(Device, Device, *mut c_uint) -> c_uint;
        type Peer = unsafe extern "C" fn(Device, Device, c_uint, *mut c_uint) -> c_uint;
        type Link<T> = unsafe extern "C" fn(Device, c_uint, *mut T) -> c_uint;
        type Capability = unsafe extern "C" fn(Device, c_uint, c_uint, *mut c_uint) -> c_uint;
        let mut say = |quantity, which, value: Option<c_uint>| {
            if let Some(value) = value {
                gpu.set_number(quantity, which, u64::from(value));
            }
        };
        // SAFETY: functions of these shapes, which write one number or record.
        unsafe {
            for (index, other) in (0u16..).zip(all) {
                let ancestor = |f: Ancestor, to| f(device, *other, to);
                say(
                    Quantity::TopologyCommonAncestor,
                    index,
                    self.filled("nvmlDeviceGetTopologyCommonAncestor", ancestor),
                );
                for capability in 0..CAPABILITIES {
                    let status = |f: Peer, to| f(device, *other, capability.into(), to);
                    let which = Quantity::pair(index, capability);
                    say(Quantity::P2PStatus, which, self.filled("nvmlDeviceGetP2PStatus", status));
                }
            }
            for link in 0..LINKS {
                let of = |f: Link<c_uint>, to| f(device, link.into(), to);
                let state = self.filled("nvmlDeviceGetNvLinkState", of);
                say(Quantity::NvLinkState, link, state);
                if state != Some(sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED) {
                    continue;
                }
                say(Quantity::NvLinkVersion, link, self.filled("nvmlDeviceGetNvLinkVersion", of));
                let kind = self.filled("nvmlDeviceGetNvLinkRemoteDeviceType", of);
                say(Quantity::NvLinkRemoteDeviceType, link, kind);
                for capability in 0..CAPABILITIES {
                    let can = |f: Capability, to| f(device, link.into(), capability.into(), to);
                    let which = Quantity::pair(link, capability);
                    say(Quantity::NvLinkCapability, which, self.filled("nvmlDeviceGetNvLinkCapability", can));
                }
            }
            for link in 0..LINKS {
                let remote = |f: Link<sys::nvmlPciInfo_t>, to| f(device, link.into(), to);
                if let Some(remote) = self.filled("nvmlDeviceGetNvLinkRemotePciInfo_v2", remote) {
                    gpu.set_number(Quantity::NvLinkRemotePciInfo, link, address(&remote).packed());
                }
            }
        }
    }

    /// Numbers that a function writes one by one: two at most.
    fn several(&self, name: &str, device: Device) -> Option<[c_uint; 2]> {
        type Two = unsafe extern "C" fn(Device, *mut c_uint, *mut c_uint) -> c_uint;
        // SAFETY: a function of this shape, which writes both numbers.
        unsafe {
            self.filled(name, |f: Two, to: *mut [c_uint; 2]| f(device, to.cast(), to.cast::<c_uint>().add(1)))
        }
    }

    fn text(&self, name: &str, shape: &TextShape, device: Device) -> Option<String> {
        type Text = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_uint;
        type Bounded = unsafe extern "C" fn(Device, *mut c_char) -> c_uint;
        const ROOM: usize = 96;
        const { assert!(ROOM >= sys::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE as usize) };
        // SAFETY: a function of this shape, which writes a text of at most so many bytes.
        let text = unsafe {
            match shape {
                TextShape::Room => {
                    self.filled(name, |f: Text, to: *mut [u8; ROOM]| f(device, to.cast(), ROOM as c_uint))
                }
                TextShape::Bounded => {
                    self.filled(name, |f: Bounded, to: *mut [u8; ROOM]| f(device, to.cast()))
                }
            }
        }?;
        Some(CStr::from_bytes_until_nul(&text).ok()?.to_string_lossy().into_owned())
    }

    fn version(&self, name: &'static str) -> Result<String> {
        type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_uint;
        const ROOM: usize = 96;
        // SAFETY: as in `text`.
        let text = unsafe { self.filled(name, |f: Text, to: *mut [u8; ROOM]| f(to.cast(), ROOM as c_uint)) };
        let text = text.ok_or(MachineUnknown::Nvml { call: name, code: 0 })?;
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy);
        Ok(text.unwrap_or_default().into_owned())
    }

    /// What the function `name` writes, if there is one and it succeeds.
    ///
    /// # Safety
    /// The function is an `F`, `call` calls it rightly, and a `T` may be all zeros.
    unsafe fn filled<F: Copy, T>(&self, name: &str, call: impl FnOnce(F, *mut T) -> c_uint) -> Option<T> {
        // SAFETY: the caller's promise.
        let function = *unsafe { self.0.get::<F>(name) }.ok()?;
        // SAFETY: the caller's promise.
        let mut value: T = unsafe { std::mem::zeroed() };
        (call(function, &raw mut value) == sys::nvmlReturn_enum_NVML_SUCCESS).then_some(value)
    }

    /// # Safety
    /// The function is an `F`.
    unsafe fn find<F: Copy>(&self, name: &'static str) -> Result<F> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.0.get::<F>(name) }.map(|found| *found);
        let code = sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND;
        found.map_err(|_| MachineUnknown::Nvml { call: name, code })
    }
}

/// A function that fills one thing for a GPU.
type NumberOf<T> = unsafe extern "C" fn(Device, *mut T) -> c_uint;

fn succeed(call: &'static str, code: c_uint) -> Result<()> {
    if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(MachineUnknown::Nvml { call, code }) }
}

fn address(pci: &sys::nvmlPciInfo_t) -> Pci {
    Pci {
        domain: pci.domain,
        bus: pci.bus,
        device: pci.device,
        id: pci.pciDeviceId,
        subsystem: pci.pciSubSystemId,
    }
}
