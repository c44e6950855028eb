//! The list of the functions that are answered, and what answers them.

#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};

use wire::{Quantity as Q, Text as T};

use super::{Answer, Device, device, fabric, identity, numbers, processes, sys, system};
use crate::log::{self, Level};

/// Runs an implementation and turns what it answers into an `nvmlReturn_t`.
fn answer(name: &str, implementation: impl FnOnce() -> Answer) -> c_uint {
    let code = implementation().map_or_else(|error| error.0, |()| sys::nvmlReturn_enum_NVML_SUCCESS);
    if log::enabled(Level::Trace) {
        log::message(Level::Trace, format_args!("{name}: {code}"));
    }
    code
}

/// Exports functions: name, parameters as nvml.h has them, implementation and what it takes before them.
macro_rules! functions {
    ($($name:ident($($arg:ident: $ty:ty),*) = $path:path $([$($first:expr),*])?;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_uint {
                // SAFETY: the caller keeps the contract that nvml.h states for the function, which is the implementation's.
                answer(stringify!($name), || unsafe { $path($($($first,)*)? $($arg),*) })
            }
        )*

        /// Every function that is answered, but for `nvmlErrorString`.
        pub const ANSWERED: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Gives what a code means.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    system::error_text(result).as_ptr()
}

#[rustfmt::skip]
functions! {
    // The library and the driver.
    nvmlInit() = system::init;
    nvmlInit_v2() = system::init;
    nvmlInitWithFlags(flags: c_uint) = system::init_with_flags;
    nvmlShutdown() = system::shutdown;
    nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) = system::driver_version;
    nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) = system::nvml_version;
    nvmlSystemGetCudaDriverVersion(version: *mut c_int) = system::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) = system::cuda_version;
    nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) = system::process_name;
    nvmlSystemGetConfComputeState(state: *mut sys::nvmlConfComputeSystemState_t) = system::conf_compute_state;
    nvmlSystemGetConfComputeSettings(settings: *mut sys::nvmlSystemConfComputeSettings_t) = system::conf_compute_settings;
    nvmlUnitGetCount(count: *mut c_uint) = system::count_none;
    nvmlGetExcludedDeviceCount(count: *mut c_uint) = system::count_none;
    nvmlGetBlacklistDeviceCount(count: *mut c_uint) = system::count_none;

    // Which devices there are.
    nvmlDeviceGetCount(count: *mut c_uint) = identity::count;
    nvmlDeviceGetCount_v2(count: *mut c_uint) = identity::count;
    nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut Device) = identity::by_index;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) = identity::by_index;
    nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut Device) = identity::by_serial;
    nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) = identity::by_uuid;
    nvmlDeviceGetHandleByUUIDV(uuid: *const sys::nvmlUUID_t, device: *mut Device) = identity::by_uuid_v;
    nvmlDeviceGetHandleByPciBusId(address: *const c_char, device: *mut Device) = identity::by_pci_bus_id;
    nvmlDeviceGetHandleByPciBusId_v2(address: *const c_char, device: *mut Device) = identity::by_pci_bus_id;
    nvmlDeviceGetIndex(device: Device, index: *mut c_uint) = identity::index;
    nvmlDeviceGetName(device: Device, name: *mut c_char, length: c_uint) = identity::name;
    nvmlDeviceGetUUID(device: Device, uuid: *mut c_char, length: c_uint) = identity::uuid;
    nvmlDeviceGetCudaComputeCapability(device: Device, major: *mut c_int, minor: *mut c_int) = identity::capability;
    nvmlDeviceGetPciInfo(device: Device, pci: *mut identity::PciInfo1) = identity::pci_v1;
    nvmlDeviceGetPciInfo_v2(device: Device, pci: *mut identity::PciInfo2) = identity::pci_v2;
    nvmlDeviceGetPciInfo_v3(device: Device, pci: *mut sys::nvmlPciInfo_t) = identity::pci;
    nvmlDeviceGetPciInfoExt(device: Device, pci: *mut sys::nvmlPciInfoExt_t) = identity::pci_ext;
    nvmlDeviceGetSerial(device: Device, text: *mut c_char, length: c_uint) = identity::other_text[T::Serial];
    nvmlDeviceGetVbiosVersion(device: Device, text: *mut c_char, length: c_uint) = identity::other_text[T::VbiosVersion];
    nvmlDeviceGetBoardPartNumber(device: Device, text: *mut c_char, length: c_uint) = identity::other_text[T::BoardPartNumber];
    nvmlDeviceGetInforomImageVersion(device: Device, text: *mut c_char, length: c_uint) = identity::other_text[T::InforomImageVersion];
    nvmlDeviceGetGspFirmwareVersion(device: Device, text: *mut c_char) = gsp_firmware;

    // What they are.
    nvmlDeviceGetAttributes(device: Device, attributes: *mut sys::nvmlDeviceAttributes_t) = device::attributes;
    nvmlDeviceGetAttributes_v2(device: Device, attributes: *mut sys::nvmlDeviceAttributes_t) = device::attributes;
    nvmlDeviceGetMinorNumber(device: Device, value: *mut c_uint) = numbers::number[Q::MinorNumber];
    nvmlDeviceGetBoardId(device: Device, value: *mut c_uint) = numbers::number[Q::BoardId];
    nvmlDeviceGetMultiGpuBoard(device: Device, value: *mut c_uint) = numbers::number[Q::MultiGpuBoard];
    nvmlDeviceGetModuleId(device: Device, value: *mut c_uint) = numbers::number[Q::ModuleId];
    nvmlDeviceGetNumGpuCores(device: Device, value: *mut c_uint) = numbers::number[Q::NumGpuCores];
    nvmlDeviceGetArchitecture(device: Device, value: *mut c_uint) = numbers::number[Q::Architecture];
    nvmlDeviceGetBrand(device: Device, value: *mut c_uint) = numbers::number[Q::Brand];
    nvmlDeviceGetBusType(device: Device, value: *mut c_uint) = numbers::number[Q::BusType];
    nvmlDeviceGetMemoryBusWidth(device: Device, value: *mut c_uint) = numbers::number[Q::MemoryBusWidth];
    nvmlDeviceGetIrqNum(device: Device, value: *mut c_uint) = numbers::number[Q::IrqNum];
    nvmlDeviceGetNumaNodeId(device: Device, value: *mut c_uint) = numbers::number[Q::NumaNodeId];
    nvmlDeviceGetCpuAffinity(device: Device, words: c_uint, set: *mut c_ulong) = numbers::set[Q::CpuAffinity];
    nvmlDeviceGetCpuAffinityWithinScope(device: Device, words: c_uint, set: *mut c_ulong, scope: c_uint) = numbers::set_within[Q::CpuAffinity];
    nvmlDeviceGetMemoryAffinity(device: Device, words: c_uint, set: *mut c_ulong, scope: c_uint) = numbers::set_within[Q::MemoryAffinity];
    nvmlDeviceGetMaxPcieLinkGeneration(device: Device, value: *mut c_uint) = numbers::number[Q::MaxPcieLinkGeneration];
    nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Device, value: *mut c_uint) = numbers::number[Q::GpuMaxPcieLinkGeneration];
    nvmlDeviceGetMaxPcieLinkWidth(device: Device, value: *mut c_uint) = numbers::number[Q::MaxPcieLinkWidth];
    nvmlDeviceGetPcieLinkMaxSpeed(device: Device, value: *mut c_uint) = numbers::number[Q::PcieLinkMaxSpeed];

    // How they are set.
    nvmlDeviceGetComputeMode(device: Device, value: *mut c_uint) = numbers::number[Q::ComputeMode];
    nvmlDeviceGetPersistenceMode(device: Device, value: *mut c_uint) = numbers::number[Q::PersistenceMode];
    nvmlDeviceGetDisplayMode(device: Device, value: *mut c_uint) = numbers::number[Q::DisplayMode];
    nvmlDeviceGetDisplayActive(device: Device, value: *mut c_uint) = numbers::number[Q::DisplayActive];
    nvmlDeviceGetEccMode(device: Device, now: *mut c_uint, next: *mut c_uint) = numbers::pair[Q::EccMode];
    nvmlDeviceGetDefaultEccMode(device: Device, value: *mut c_uint) = numbers::number[Q::DefaultEccMode];
    nvmlDeviceGetMigMode(device: Device, now: *mut c_uint, next: *mut c_uint) = numbers::pair[Q::MigMode];
    nvmlDeviceIsMigDeviceHandle(device: Device, value: *mut c_uint) = device::is_mig;
    nvmlDeviceGetMaxMigDeviceCount(device: Device, value: *mut c_uint) = device::is_mig;
    nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: c_uint, mig: *mut Device) = device::mig_by_index;
    nvmlDeviceGetPowerManagementMode(device: Device, value: *mut c_uint) = numbers::number[Q::PowerManagementMode];
    nvmlDeviceGetPowerManagementLimit(device: Device, value: *mut c_uint) = numbers::number[Q::PowerManagementLimit];
    nvmlDeviceGetPowerManagementDefaultLimit(device: Device, value: *mut c_uint) = numbers::number[Q::PowerManagementDefaultLimit];
    nvmlDeviceGetPowerManagementLimitConstraints(device: Device, least: *mut c_uint, most: *mut c_uint) = numbers::pair[Q::PowerManagementLimitConstraints];
    nvmlDeviceGetEnforcedPowerLimit(device: Device, value: *mut c_uint) = numbers::number[Q::EnforcedPowerLimit];
    nvmlDeviceGetMaxClockInfo(device: Device, clock: c_uint, value: *mut c_uint) = numbers::chosen[Q::MaxClockInfo, 4];
    nvmlDeviceGetApplicationsClock(device: Device, clock: c_uint, value: *mut c_uint) = numbers::chosen[Q::ApplicationsClock, 4];
    nvmlDeviceGetDefaultApplicationsClock(device: Device, clock: c_uint, value: *mut c_uint) = numbers::chosen[Q::DefaultApplicationsClock, 4];
    nvmlDeviceGetTemperatureThreshold(device: Device, threshold: c_uint, value: *mut c_uint) = numbers::chosen[Q::TemperatureThreshold, 8];
    nvmlDeviceGetSupportedClocksEventReasons(device: Device, value: *mut c_ulonglong) = numbers::long[Q::SupportedClocksEventReasons];
    nvmlDeviceGetSupportedClocksThrottleReasons(device: Device, value: *mut c_ulonglong) = numbers::long[Q::SupportedClocksEventReasons];

    // How they do.
    nvmlDeviceGetMemoryInfo(device: Device, memory: *mut sys::nvmlMemory_t) = device::memory;
    nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut sys::nvmlMemory_v2_t) = device::memory_v2;
    nvmlDeviceGetBAR1MemoryInfo(device: Device, memory: *mut sys::nvmlBAR1Memory_t) = device::bar1;
    nvmlDeviceGetUtilizationRates(device: Device, rates: *mut sys::nvmlUtilization_t) = device::utilization;
    nvmlDeviceGetEncoderUtilization(device: Device, value: *mut c_uint, period: *mut c_uint) = numbers::pair[Q::EncoderUtilization];
    nvmlDeviceGetDecoderUtilization(device: Device, value: *mut c_uint, period: *mut c_uint) = numbers::pair[Q::DecoderUtilization];
    nvmlDeviceGetJpgUtilization(device: Device, value: *mut c_uint, period: *mut c_uint) = numbers::pair[Q::JpgUtilization];
    nvmlDeviceGetOfaUtilization(device: Device, value: *mut c_uint, period: *mut c_uint) = numbers::pair[Q::OfaUtilization];
    nvmlDeviceGetTemperature(device: Device, sensor: c_uint, value: *mut c_uint) = numbers::chosen[Q::Temperature, 1];
    nvmlDeviceGetTemperatureV(device: Device, temperature: *mut sys::nvmlTemperature_t) = device::temperature;
    nvmlDeviceGetPowerUsage(device: Device, value: *mut c_uint) = numbers::number[Q::PowerUsage];
    nvmlDeviceGetTotalEnergyConsumption(device: Device, value: *mut c_ulonglong) = numbers::long[Q::TotalEnergyConsumption];
    nvmlDeviceGetClockInfo(device: Device, clock: c_uint, value: *mut c_uint) = numbers::chosen[Q::ClockInfo, 4];
    nvmlDeviceGetClock(device: Device, clock: c_uint, id: c_uint, value: *mut c_uint) = numbers::clock;
    nvmlDeviceGetCurrentClocksEventReasons(device: Device, value: *mut c_ulonglong) = numbers::long[Q::CurrentClocksEventReasons];
    nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, value: *mut c_ulonglong) = numbers::long[Q::CurrentClocksEventReasons];
    nvmlDeviceGetPerformanceState(device: Device, value: *mut c_uint) = numbers::number[Q::PerformanceState];
    nvmlDeviceGetPowerState(device: Device, value: *mut c_uint) = numbers::number[Q::PerformanceState];
    nvmlDeviceGetFanSpeed(device: Device, value: *mut c_uint) = numbers::number[Q::FanSpeed];
    nvmlDeviceGetNumFans(device: Device, value: *mut c_uint) = numbers::number[Q::NumFans];
    nvmlDeviceGetPcieReplayCounter(device: Device, value: *mut c_uint) = numbers::number[Q::PcieReplayCounter];
    nvmlDeviceGetCurrPcieLinkGeneration(device: Device, value: *mut c_uint) = numbers::number[Q::CurrPcieLinkGeneration];
    nvmlDeviceGetCurrPcieLinkWidth(device: Device, value: *mut c_uint) = numbers::number[Q::CurrPcieLinkWidth];
    nvmlDeviceGetPcieSpeed(device: Device, value: *mut c_uint) = numbers::number[Q::PcieSpeed];
    nvmlDeviceGetFieldValues(device: Device, count: c_int, values: *mut sys::nvmlFieldValue_t) = device::field_values;

    // Who uses them.
    nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, processes: *mut c_void) = processes::none;

    // How they are connected.
    nvmlDeviceGetTopologyCommonAncestor(first: Device, second: Device, level: *mut c_uint) = fabric::ancestor;
    nvmlDeviceGetTopologyNearestGpus(device: Device, level: c_uint, count: *mut c_uint, devices: *mut Device) = fabric::nearest;
    nvmlDeviceOnSameBoard(first: Device, second: Device, same: *mut c_int) = fabric::on_same_board;
    nvmlDeviceGetP2PStatus(first: Device, second: Device, what: c_uint, status: *mut c_uint) = fabric::p2p;
    nvmlDeviceGetNvLinkState(device: Device, link: c_uint, value: *mut c_uint) = numbers::chosen[Q::NvLinkState, sys::NVML_NVLINK_MAX_LINKS as u16];
    nvmlDeviceGetNvLinkVersion(device: Device, link: c_uint, value: *mut c_uint) = numbers::chosen[Q::NvLinkVersion, sys::NVML_NVLINK_MAX_LINKS as u16];
    nvmlDeviceGetNvLinkRemoteDeviceType(device: Device, link: c_uint, value: *mut c_uint) = numbers::chosen[Q::NvLinkRemoteDeviceType, sys::NVML_NVLINK_MAX_LINKS as u16];
    nvmlDeviceGetNvLinkCapability(device: Device, link: c_uint, what: c_uint, can: *mut c_uint) = fabric::capability;
    nvmlDeviceGetNvLinkRemotePciInfo(device: Device, link: c_uint, pci: *mut identity::PciInfo1) = fabric::remote_pci_v1;
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: c_uint, pci: *mut sys::nvmlPciInfo_t) = fabric::remote_pci;
    nvmlDeviceGetGpuFabricInfo(device: Device, info: *mut sys::nvmlGpuFabricInfo_t) = fabric::fabric;
    nvmlDeviceGetGpuFabricInfoV(device: Device, info: *mut sys::nvmlGpuFabricInfoV_t) = fabric::fabric_v;
}

/// The one text whose length the caller does not say: nvml.h gives it this much room.
unsafe fn gsp_firmware(device: Device, text: *mut c_char) -> Answer {
    // SAFETY: the caller gives as much.
    unsafe {
        identity::other_text(T::GspFirmwareVersion, device, text, sys::NVML_GSP_FIRMWARE_VERSION_BUF_SIZE)
    }
}
