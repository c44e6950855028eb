//! NVML as a program asks for it, of a supervisor that knows two GPUs, and later one.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;
use sys::nvmlDevice_t as Device;
use transport::hello::{HelloListener, Wish};
use wire::{Gpu, Machine, Pci, Quantity as Q, Text};

// As nvml.h declares them.
unsafe extern "C" {
    fn nvmlShutdown() -> c_uint;
    fn nvmlErrorString(code: c_uint) -> *const c_char;
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> c_uint;
    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> c_uint;
    fn nvmlSystemGetConfComputeSettings(settings: *mut sys::nvmlSystemConfComputeSettings_t) -> c_uint;
    fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_uint;
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) -> c_uint;
    fn nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut Device) -> c_uint;
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> c_uint;
    fn nvmlDeviceGetHandleByUUIDV(uuid: *const sys::nvmlUUID_t, device: *mut Device) -> c_uint;
    fn nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, device: *mut Device) -> c_uint;
    fn nvmlDeviceGetIndex(device: Device, index: *mut c_uint) -> c_uint;
    fn nvmlDeviceGetName(device: Device, name: *mut c_char, length: c_uint) -> c_uint;
    fn nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint) -> c_uint;
    fn nvmlDeviceGetPciInfo_v3(device: Device, pci: *mut sys::nvmlPciInfo_t) -> c_uint;
    fn nvmlDeviceGetPciInfo_v2(device: Device, pci: *mut sys::nvmlPciInfo_t) -> c_uint;
    fn nvmlDeviceGetMemoryInfo(device: Device, memory: *mut sys::nvmlMemory_t) -> c_uint;
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut sys::nvmlMemory_v2_t) -> c_uint;
    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, memory: *mut sys::nvmlBAR1Memory_t) -> c_uint;
    fn nvmlDeviceGetPowerUsage(device: Device, power: *mut c_uint) -> c_uint;
    fn nvmlDeviceGetTotalEnergyConsumption(device: Device, energy: *mut c_ulonglong) -> c_uint;
    fn nvmlDeviceGetClockInfo(device: Device, clock: c_uint, value: *mut c_uint) -> c_uint;
    fn nvmlDeviceGetEccMode(device: Device, now: *mut c_uint, next: *mut c_uint) -> c_uint;
    fn nvmlDeviceGetTemperatureV(device: Device, temperature: *mut sys::nvmlTemperature_t) -> c_uint;
    fn nvmlDeviceGetCpuAffinity(device: Device, words: c_uint, set: *mut c_ulong) -> c_uint;
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut c_void)
    -> c_uint;
    fn nvmlDeviceGetTopologyNearestGpus(
        device: Device,
        level: c_uint,
        count: *mut c_uint,
        to: *mut Device,
    ) -> c_uint;
    fn nvmlDeviceGetP2PStatus(first: Device, second: Device, what: c_uint, status: *mut c_uint) -> c_uint;
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: Device,
        link: c_uint,
        pci: *mut sys::nvmlPciInfo_t,
    ) -> c_uint;
    fn nvmlDeviceGetGpuFabricInfoV(device: Device, info: *mut sys::nvmlGpuFabricInfoV_t) -> c_uint;
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: *mut sys::nvmlFieldValue_t) -> c_uint;
    fn nvmlDeviceSetPersistenceMode(device: Device, mode: c_uint) -> c_uint;
    fn nvmlEventSetCreate(set: *mut sys::nvmlEventSet_t) -> c_uint;
}

const OK: c_uint = 0;
const UNINITIALIZED: c_uint = 1;
const INVALID: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
const TOO_SMALL: c_uint = 7;
const LOST: c_uint = 15;
const VERSION: c_uint = 25;

fn gpu(index: u32, power: u32) -> Gpu {
    let mut gpu = Gpu::default();
    gpu.uuid = format!("GPU-0011{index:04x}-0123-4567-89ab-00112233445{index}");
    gpu.name = format!("A GPU, number {index}");
    gpu.pci = Pci { domain: 1, bus: 0x1b + index, device: 0, id: 0x2335_10de, subsystem: 0x18be_10de };
    gpu.capability = (9, 0);
    gpu.set_text(Text::Serial, format!("serial-{index}"));
    for (quantity, which, value) in [
        (Q::Memory, 0, 1000),
        (Q::Memory, 1, 50),
        (Q::Memory, 2, 650),
        (Q::Memory, 3, 300),
        (Q::PowerUsage, 0, u64::from(power)),
        (Q::Bar1Memory, 0, u64::from(power)),
        (Q::Bar1Memory, 1, u64::from(power)),
        (Q::Bar1Memory, 2, u64::from(power)),
        (Q::TotalEnergyConsumption, 0, 1 << 40),
        (Q::ClockInfo, 2, 3201),
        (Q::EccMode, 0, 1),
        (Q::EccMode, 1, 0),
        (Q::Temperature, 0, 41),
        (Q::CpuAffinity, 1, 0xff),
        (Q::TopologyCommonAncestor, 1 - index as u16, 50),
        (Q::P2PStatus, Q::pair(1 - index as u16, 1), 5),
        (Q::NvLinkRemotePciInfo, 3, Pci { domain: 2, bus: 0xc1, device: 4, ..Pci::default() }.packed()),
    ] {
        gpu.set_number(quantity, which, value);
    }
    gpu
}

/// A supervisor whose GPUs draw more power, and have more memory mapped for others, from question to question; the second is gone when
/// there is none to `left`.
struct Supervisor {
    asked: AtomicU32,
    left: AtomicUsize,
}

impl Supervisor {
    fn serve(job: &std::path::Path) -> Arc<Self> {
        let listener = HelloListener::bind(&job.join("hello.sock")).unwrap();
        let supervisor = Arc::new(Self { asked: AtomicU32::new(0), left: AtomicUsize::new(2) });
        let this = Arc::clone(&supervisor);
        std::thread::spawn(move || {
            while let Ok(caller) = listener.accept() {
                let Wish::Devices(pending) = caller.hear(Duration::from_secs(5)).unwrap() else { panic!() };
                let power = 100 + this.asked.fetch_add(1, Ordering::SeqCst);
                let mut gpus = vec![gpu(0, power), gpu(1, power)];
                gpus.truncate(this.left.load(Ordering::SeqCst));
                let machine =
                    Machine { driver: "580.65.06".into(), nvml: "13.580.65.06".into(), cuda: 13010, gpus };
                pending.tell(machine).unwrap();
            }
        });
        supervisor
    }
}

fn text(fill: impl Fn(*mut c_char, c_uint) -> c_uint) -> String {
    let mut buffer = [1 as c_char; 96];
    assert_eq!(fill(buffer.as_mut_ptr(), 96), OK);
    // SAFETY: filled, with a NUL.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().unwrap().to_owned();
    // The NUL needs room too, and what is too small is left alone.
    let exact = text.len() as c_uint;
    buffer[0] = 77;
    assert_eq!((fill(buffer.as_mut_ptr(), exact), buffer[0]), (TOO_SMALL, 77));
    assert_eq!(fill(buffer.as_mut_ptr(), exact + 1), OK);
    assert_eq!(fill(ptr::null_mut(), 96), INVALID);
    text
}

#[test]
// SAFETY of what is called: every pointer is this test's, and leads to what the function writes or reads.
#[allow(clippy::undocumented_unsafe_blocks)]
fn a_program_is_told_of_its_gpus() {
    let job = tempfile::tempdir().unwrap();
    let mut number = 0;
    assert_eq!(unsafe { nvmlDeviceGetCount_v2(&raw mut number) }, UNINITIALIZED);
    assert_eq!(unsafe { nvmlShutdown() }, UNINITIALIZED);
    assert!(cuda_shim::nvml::start(job.path()).is_err(), "there is no supervisor");
    let supervisor = Supervisor::serve(job.path());
    cuda_shim::nvml::start(job.path()).unwrap();
    cuda_shim::nvml::start(job.path()).unwrap();
    assert_eq!(supervisor.asked.load(Ordering::SeqCst), 1);
    assert_eq!(unsafe { nvmlShutdown() }, OK);

    assert_eq!((unsafe { nvmlDeviceGetCount_v2(&raw mut number) }, number), (OK, 2));
    assert_eq!(unsafe { nvmlDeviceGetCount_v2(ptr::null_mut()) }, INVALID);
    assert_eq!(text(|to, length| unsafe { nvmlSystemGetDriverVersion(to, length) }), "580.65.06");
    let mut cuda = 0;
    assert_eq!((unsafe { nvmlSystemGetCudaDriverVersion_v2(&raw mut cuda) }, cuda), (OK, 13000));

    // Who is who.
    let mut second: Device = ptr::null_mut();
    let mut other: Device = ptr::null_mut();
    assert_eq!(unsafe { nvmlDeviceGetHandleByIndex_v2(2, &raw mut second) }, INVALID);
    assert_eq!(unsafe { nvmlDeviceGetHandleByIndex_v2(1, &raw mut second) }, OK);
    assert_eq!(text(|to, length| unsafe { nvmlDeviceGetName(second, to, length) }), "A GPU, number 1");
    let uuid = text(|to, length| unsafe { nvmlDeviceGetUUID(second, to, length) });
    assert_eq!(uuid, "GPU-00110001-0123-4567-89ab-001122334451");
    let uuid = c"GPU-00110001-0123-4567-89ab-001122334451";
    for (found, result) in [
        (unsafe { nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut other) }, OK),
        (unsafe { nvmlDeviceGetHandleBySerial(c"serial-1".as_ptr(), &raw mut other) }, OK),
        (unsafe { nvmlDeviceGetHandleByPciBusId_v2(c"0001:1C:00.0".as_ptr(), &raw mut other) }, OK),
        (unsafe { nvmlDeviceGetHandleByPciBusId_v2(c"00000001:1c:00.0".as_ptr(), &raw mut other) }, OK),
        (unsafe { nvmlDeviceGetHandleByUUID(c"GPU-no".as_ptr(), &raw mut other) }, NOT_FOUND),
        (unsafe { nvmlDeviceGetHandleByPciBusId_v2(c"0000:1C:00.0".as_ptr(), &raw mut other) }, NOT_FOUND),
        (unsafe { nvmlDeviceGetHandleByPciBusId_v2(c"nowhere".as_ptr(), &raw mut other) }, INVALID),
        (unsafe { nvmlDeviceGetHandleByUUID(ptr::null(), &raw mut other) }, INVALID),
    ] {
        assert_eq!((found, other), (result, second));
    }
    let mut by_bytes: sys::nvmlUUID_t = unsafe { std::mem::zeroed() };
    by_bytes.type_ = sys::nvmlUUIDType_t_NVML_UUID_TYPE_BINARY;
    by_bytes.value.bytes = 0x0011_0001_0123_4567_89ab_0011_2233_4451u128.to_be_bytes();
    other = ptr::null_mut();
    assert_eq!(unsafe { nvmlDeviceGetHandleByUUIDV(&raw const by_bytes, &raw mut other) }, VERSION);
    by_bytes.version = size_of::<sys::nvmlUUID_t>() as c_uint | 1 << 24;
    assert_eq!(
        (unsafe { nvmlDeviceGetHandleByUUIDV(&raw const by_bytes, &raw mut other) }, other),
        (OK, second)
    );
    assert_eq!((unsafe { nvmlDeviceGetIndex(second, &raw mut number) }, number), (OK, 1));
    for wrong in [ptr::null_mut(), second.wrapping_byte_add(1), second.wrapping_byte_add(0x100)] {
        assert_eq!(unsafe { nvmlDeviceGetIndex(wrong, &raw mut number) }, INVALID);
    }
    let mut pci: sys::nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { nvmlDeviceGetPciInfo_v3(second, &raw mut pci) }, OK);
    assert_eq!(unsafe { CStr::from_ptr(pci.busId.as_ptr()) }, c"00000001:1C:00.0");
    assert_eq!(unsafe { CStr::from_ptr(pci.busIdLegacy.as_ptr()) }, c"0001:1C:00.0");
    assert_eq!((pci.bus, pci.pciDeviceId, pci.pciSubSystemId), (0x1c, 0x2335_10de, 0x18be_10de));
    // The older form ends where the newer one has its longer text.
    pci.busId[0] = 77;
    assert_eq!((unsafe { nvmlDeviceGetPciInfo_v2(second, &raw mut pci) }, pci.busId[0]), (OK, 77));

    // How they do, as it was a moment ago and as it is later.
    let mut memory: sys::nvmlMemory_t = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { nvmlDeviceGetMemoryInfo(second, &raw mut memory) }, OK);
    assert_eq!((memory.total, memory.free, memory.used), (1000, 650, 350));
    let mut memory: sys::nvmlMemory_v2_t = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { nvmlDeviceGetMemoryInfo_v2(second, &raw mut memory) }, VERSION);
    memory.version = size_of::<sys::nvmlMemory_v2_t>() as c_uint | 2 << 24;
    assert_eq!(unsafe { nvmlDeviceGetMemoryInfo_v2(second, &raw mut memory) }, OK);
    assert_eq!((memory.total, memory.reserved, memory.free, memory.used), (1000, 50, 650, 300));
    assert_eq!((unsafe { nvmlDeviceGetPowerUsage(second, &raw mut number) }, number >= 100), (OK, true));
    let before = number;
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!((unsafe { nvmlDeviceGetPowerUsage(second, &raw mut number) }, number > before), (OK, true));
    let mut energy = 0;
    assert_eq!(
        (unsafe { nvmlDeviceGetTotalEnergyConsumption(second, &raw mut energy) }, energy),
        (OK, 1 << 40)
    );
    assert_eq!((unsafe { nvmlDeviceGetClockInfo(second, 2, &raw mut number) }, number), (OK, 3201));
    assert_eq!(unsafe { nvmlDeviceGetClockInfo(second, 1, &raw mut number) }, NOT_SUPPORTED);
    assert_eq!(unsafe { nvmlDeviceGetClockInfo(second, 4, &raw mut number) }, INVALID);
    let mut next = 9;
    let ecc = unsafe { nvmlDeviceGetEccMode(second, &raw mut number, &raw mut next) };
    assert_eq!((ecc, number, next), (OK, 1, 0));
    let version = size_of::<sys::nvmlTemperature_t>() as c_uint | 1 << 24;
    let mut heat = sys::nvmlTemperature_t { version, sensorType: 0, temperature: 0 };
    assert_eq!((unsafe { nvmlDeviceGetTemperatureV(second, &raw mut heat) }, heat.temperature), (OK, 41));
    heat.sensorType = 1;
    assert_eq!(unsafe { nvmlDeviceGetTemperatureV(second, &raw mut heat) }, INVALID);
    let mut set = [9; 3];
    assert_eq!(unsafe { nvmlDeviceGetCpuAffinity(second, 1, set.as_mut_ptr()) }, TOO_SMALL);
    assert_eq!((unsafe { nvmlDeviceGetCpuAffinity(second, 3, set.as_mut_ptr()) }, set), (OK, [0, 0xff, 0]));
    number = 7;
    let none = unsafe { nvmlDeviceGetComputeRunningProcesses_v3(second, &raw mut number, ptr::null_mut()) };
    assert_eq!((none, number), (OK, 0));

    // How they are connected.
    let mut first: Device = ptr::null_mut();
    assert_eq!(unsafe { nvmlDeviceGetHandleByIndex_v2(0, &raw mut first) }, OK);
    number = 1;
    let near = unsafe { nvmlDeviceGetTopologyNearestGpus(second, 50, &raw mut number, &raw mut other) };
    assert_eq!((near, number, other), (OK, 1, first));
    assert_eq!((unsafe { nvmlDeviceGetP2PStatus(second, first, 1, &raw mut number) }, number), (OK, 5));
    assert_eq!(unsafe { nvmlDeviceGetP2PStatus(second, first, 0, &raw mut number) }, NOT_SUPPORTED);
    assert_eq!(unsafe { nvmlDeviceGetP2PStatus(second, first, 6, &raw mut number) }, INVALID);
    assert_eq!(unsafe { nvmlDeviceGetNvLinkRemotePciInfo_v2(second, 3, &raw mut pci) }, OK);
    assert_eq!(unsafe { CStr::from_ptr(pci.busId.as_ptr()) }, c"00000002:C1:04.0");
    assert_eq!(unsafe { nvmlDeviceGetNvLinkRemotePciInfo_v2(second, 18, &raw mut pci) }, INVALID);
    // The second version is shorter: what follows it is left alone.
    let mut fabric: sys::nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
    (fabric.state, fabric.healthSummary) = (3, 77);
    assert_eq!(unsafe { nvmlDeviceGetGpuFabricInfoV(second, &raw mut fabric) }, VERSION);
    fabric.version = size_of::<sys::nvmlGpuFabricInfo_v2_t>() as c_uint | 2 << 24;
    assert_eq!(unsafe { nvmlDeviceGetGpuFabricInfoV(second, &raw mut fabric) }, OK);
    assert_eq!((fabric.state, fabric.healthSummary), (0, 77));

    // What there is none of.
    let version = size_of::<sys::nvmlSystemConfComputeSettings_t>() as c_uint | 1 << 24;
    let mut settings = sys::nvmlSystemConfComputeSettings_t {
        version,
        environment: 9,
        ccFeature: 9,
        devToolsMode: 9,
        multiGpuMode: 9,
    };
    assert_eq!((unsafe { nvmlSystemGetConfComputeSettings(&raw mut settings) }, settings.ccFeature), (OK, 0));
    let mut fields: [sys::nvmlFieldValue_t; 2] = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { nvmlDeviceGetFieldValues(second, 2, fields.as_mut_ptr()) }, OK);
    assert_eq!(fields.map(|field| field.nvmlReturn), [NOT_SUPPORTED; 2]);
    assert_eq!(unsafe { nvmlDeviceSetPersistenceMode(second, 1) }, NOT_SUPPORTED);
    assert_eq!(unsafe { nvmlEventSetCreate(ptr::null_mut()) }, NOT_SUPPORTED);
    assert_eq!(unsafe { CStr::from_ptr(nvmlErrorString(NOT_SUPPORTED)) }, c"Not Supported");
    assert_eq!(unsafe { CStr::from_ptr(nvmlErrorString(12345)) }, c"Unknown Error");

    // What a structure says is of one moment, however many pass.
    let (begun, mut moments) = (std::time::Instant::now(), BTreeSet::new());
    while begun.elapsed() < Duration::from_millis(700) {
        let mut memory = sys::nvmlBAR1Memory_t { bar1Total: 0, bar1Free: 0, bar1Used: 0 };
        assert_eq!(unsafe { nvmlDeviceGetBAR1MemoryInfo(second, &raw mut memory) }, OK);
        assert_eq!((memory.bar1Free, memory.bar1Used), (memory.bar1Total, memory.bar1Total));
        moments.insert(memory.bar1Total);
    }
    assert!(moments.len() > 1, "{moments:?}");

    // A restart where there is one GPU: who the second is is still known, and that it is lost.
    supervisor.left.store(1, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(120));
    assert_eq!(unsafe { nvmlDeviceGetPowerUsage(second, &raw mut number) }, LOST);
    assert_eq!(unsafe { nvmlDeviceGetPowerUsage(first, &raw mut number) }, OK);
    assert_eq!(text(|to, length| unsafe { nvmlDeviceGetName(second, to, length) }), "A GPU, number 1");
    assert_eq!(unsafe { nvmlShutdown() }, OK);
    assert_eq!(unsafe { nvmlDeviceGetName(second, ptr::null_mut(), 0) }, UNINITIALIZED);
}

#[test]
fn the_documentation_names_what_is_answered() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nvml.md")).unwrap();
    let table = page.split("## Functions that are answered").nth(1).unwrap();
    let named: BTreeSet<&str> = table.split('`').filter(|word| word.starts_with("nvml")).collect();
    let answered: BTreeSet<&str> =
        cuda_shim::nvml::ANSWERED.iter().copied().chain(["nvmlErrorString"]).collect();
    assert_eq!(named, answered);
}

#[test]
fn every_function_is_on_one_of_the_lists() {
    let every: BTreeSet<&str> =
        include_str!("nvml_functions.txt").lines().filter(|line| !line.starts_with('#')).collect();
    let answered: BTreeSet<&str> =
        cuda_shim::nvml::ANSWERED.iter().copied().chain(["nvmlErrorString"]).collect();
    let refused: BTreeSet<&str> = cuda_shim::nvml::REFUSED.iter().copied().collect();
    assert!(answered.is_disjoint(&refused));
    assert_eq!(&answered | &refused, every);
}
