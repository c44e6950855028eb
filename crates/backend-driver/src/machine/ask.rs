//! Which of NVML's functions tell what, by their shapes.

use wire::{Quantity, Text};

/// How a function of one GPU answers; after the GPU come
pub enum Shape {
    /// where an `unsigned int` goes.
    Number,
    /// where an `unsigned long long` goes.
    Long,
    /// where this many `unsigned int` go, each of its own, or side by side in a structure.
    Several(u16),
    /// which of so many, and where an `unsigned int` goes.
    Which(u16),
    /// how many words, and where those go.
    Words(u16),
}

/// What is asked of each GPU.
#[rustfmt::skip]
pub const NUMBERS: &[(Quantity, &str, Shape)] = {
    use Quantity as Q;
    use Shape::{Long, Number, Several, Which, Words};
    &[
        (Q::EncoderUtilization, "nvmlDeviceGetEncoderUtilization", Several(2)),
        (Q::DecoderUtilization, "nvmlDeviceGetDecoderUtilization", Several(2)),
        (Q::JpgUtilization, "nvmlDeviceGetJpgUtilization", Several(2)),
        (Q::OfaUtilization, "nvmlDeviceGetOfaUtilization", Several(2)),
        (Q::Temperature, "nvmlDeviceGetTemperature", Which(1)),
        (Q::TemperatureThreshold, "nvmlDeviceGetTemperatureThreshold", Which(8)),
        (Q::PowerUsage, "nvmlDeviceGetPowerUsage", Number),
        (Q::EnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit", Number),
        (Q::PowerManagementLimit, "nvmlDeviceGetPowerManagementLimit", Number),
        (Q::PowerManagementDefaultLimit, "nvmlDeviceGetPowerManagementDefaultLimit", Number),
        (Q::PowerManagementLimitConstraints, "nvmlDeviceGetPowerManagementLimitConstraints", Several(2)),
        (Q::PowerManagementMode, "nvmlDeviceGetPowerManagementMode", Number),
        (Q::TotalEnergyConsumption, "nvmlDeviceGetTotalEnergyConsumption", Long),
        (Q::ClockInfo, "nvmlDeviceGetClockInfo", Which(4)),
        (Q::MaxClockInfo, "nvmlDeviceGetMaxClockInfo", Which(4)),
        (Q::ApplicationsClock, "nvmlDeviceGetApplicationsClock", Which(4)),
        (Q::DefaultApplicationsClock, "nvmlDeviceGetDefaultApplicationsClock", Which(4)),
        (Q::CurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksThrottleReasons", Long),
        (Q::SupportedClocksEventReasons, "nvmlDeviceGetSupportedClocksThrottleReasons", Long),
        (Q::PerformanceState, "nvmlDeviceGetPerformanceState", Number),
        (Q::FanSpeed, "nvmlDeviceGetFanSpeed", Number),
        (Q::NumFans, "nvmlDeviceGetNumFans", Number),
        (Q::PcieReplayCounter, "nvmlDeviceGetPcieReplayCounter", Number),
        (Q::CurrPcieLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration", Number),
        (Q::CurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth", Number),
        (Q::MaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", Number),
        (Q::GpuMaxPcieLinkGeneration, "nvmlDeviceGetGpuMaxPcieLinkGeneration", Number),
        (Q::MaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth", Number),
        (Q::PcieSpeed, "nvmlDeviceGetPcieSpeed", Number),
        (Q::PcieLinkMaxSpeed, "nvmlDeviceGetPcieLinkMaxSpeed", Number),
        (Q::MinorNumber, "nvmlDeviceGetMinorNumber", Number),
        (Q::BoardId, "nvmlDeviceGetBoardId", Number),
        (Q::MultiGpuBoard, "nvmlDeviceGetMultiGpuBoard", Number),
        (Q::ModuleId, "nvmlDeviceGetModuleId", Number),
        (Q::NumGpuCores, "nvmlDeviceGetNumGpuCores", Number),
        (Q::Architecture, "nvmlDeviceGetArchitecture", Number),
        (Q::Brand, "nvmlDeviceGetBrand", Number),
        (Q::BusType, "nvmlDeviceGetBusType", Number),
        (Q::MemoryBusWidth, "nvmlDeviceGetMemoryBusWidth", Number),
        (Q::IrqNum, "nvmlDeviceGetIrqNum", Number),
        (Q::NumaNodeId, "nvmlDeviceGetNumaNodeId", Number),
        (Q::CpuAffinity, "nvmlDeviceGetCpuAffinity", Words(16)),
        (Q::ComputeMode, "nvmlDeviceGetComputeMode", Number),
        (Q::PersistenceMode, "nvmlDeviceGetPersistenceMode", Number),
        (Q::DisplayMode, "nvmlDeviceGetDisplayMode", Number),
        (Q::DisplayActive, "nvmlDeviceGetDisplayActive", Number),
        (Q::EccMode, "nvmlDeviceGetEccMode", Several(2)),
        (Q::DefaultEccMode, "nvmlDeviceGetDefaultEccMode", Number),
        (Q::MigMode, "nvmlDeviceGetMigMode", Several(2)),
    ]
};

/// How a function of one GPU answers in words; after the GPU come
pub enum TextShape {
    /// where the text goes, and how many bytes may.
    Room,
    /// where the text goes, which nvml.h bounds.
    Bounded,
}

/// And in words.
pub const TEXTS: &[(Text, &str, TextShape)] = &[
    (Text::Serial, "nvmlDeviceGetSerial", TextShape::Room),
    (Text::VbiosVersion, "nvmlDeviceGetVbiosVersion", TextShape::Room),
    (Text::BoardPartNumber, "nvmlDeviceGetBoardPartNumber", TextShape::Room),
    (Text::InforomImageVersion, "nvmlDeviceGetInforomImageVersion", TextShape::Room),
    (Text::GspFirmwareVersion, "nvmlDeviceGetGspFirmwareVersion", TextShape::Bounded),
];
