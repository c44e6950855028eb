//! The machine's GPUs, as programs that watch them (NVML) see them.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use crate::facts::DeviceFacts;
use cuda_abi::sys::CUdevice_attribute as A;

/// The most GPUs that are told of.
pub const GPUS_MAX: usize = 32;

/// All GPUs, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// The driver's version, as `580.65.06`.
    pub driver: String,
    /// NVML's.
    pub nvml: String,
    /// The newest CUDA that the driver knows, as `13000`.
    pub cuda: i32,
    /// Every GPU, in the order of their PCI addresses.
    pub gpus: Vec<Gpu>,
}

/// One GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gpu {
    /// As NVML writes it: `GPU-` and the UUID.
    pub uuid: String,
    /// What people call it.
    pub name: String,
    /// Where it is.
    pub pci: Pci,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// What else it has to say in words.
    texts: Vec<(u16, String)>,
    /// What else it has to say in numbers: quantity and which of several, value.
    numbers: Vec<((u16, u16), u64)>,
}

/// A PCI address and what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pci {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device.
    pub device: u32,
    /// Device and vendor.
    pub id: u32,
    /// The same of the subsystem.
    pub subsystem: u32,
}

impl Gpu {
    /// What a device's CUDA facts say of it.
    #[must_use]
    pub fn of(facts: &DeviceFacts) -> Self {
        let of = |wanted: A| facts.attribute(wanted as i32).and_then(|value| u32::try_from(value).ok());
        let number = |attribute| of(attribute).unwrap_or(0);
        let mut gpu = Self {
            uuid: uuid(&facts.uuid),
            name: facts.name.clone(),
            pci: Pci {
                domain: number(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                bus: number(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                device: number(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
                ..Pci::default()
            },
            capability: (
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            ..Self::default()
        };
        gpu.set_number(Quantity::Memory, 0, facts.total_memory);
        for (quantity, attribute) in [
            (Quantity::Attributes, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            (Quantity::MemoryBusWidth, A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
        ] {
            if let Some(value) = of(attribute) {
                gpu.set_number(quantity, 0, u64::from(value));
            }
        }
        gpu
    }

    /// A number, where the GPU has it. `which` tells several of a kind apart: see [`Quantity`].
    #[must_use]
    pub fn number(&self, quantity: Quantity, which: u16) -> Option<u64> {
        self.numbers.iter().find(|(of, _)| *of == (quantity as u16, which)).map(|(_, value)| *value)
    }

    /// Says a number, once.
    pub fn set_number(&mut self, quantity: Quantity, which: u16, value: u64) {
        self.numbers.push(((quantity as u16, which), value));
    }

    /// A text, where the GPU has it.
    #[must_use]
    pub fn text(&self, text: Text) -> Option<&str> {
        self.texts.iter().find(|(of, _)| *of == text as u16).map(|(_, value)| value.as_str())
    }

    /// Says a text, once.
    pub fn set_text(&mut self, text: Text, value: String) {
        self.texts.push((text as u16, value));
    }

    /// Every number that has a name.
    pub fn numbers(&self) -> impl Iterator<Item = (Quantity, u16, u64)> {
        self.numbers.iter().filter_map(|&((of, which), value)| Some((Quantity::of_code(of)?, which, value)))
    }

    /// Every text that has a name.
    pub fn texts(&self) -> impl Iterator<Item = (Text, &str)> {
        self.texts.iter().filter_map(|(of, value)| Some((Text::of_code(*of)?, value.as_str())))
    }

    /// Forgets what it can say of other GPUs and of links to them.
    fn forget_neighbours(&mut self) {
        self.numbers.retain(|((of, _), _)| *of < Quantity::TopologyCommonAncestor as u16);
    }
}

/// A device's UUID as NVML writes it.
#[must_use]
pub fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&index) { "-" } else { "" };
        text.push_str(&format!("{dash}{byte:02x}"));
    }
    text
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum $name { $($(#[$each])* $variant),* }

        impl $name {
            /// All of them, by their codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }

            fn of_code(code: u16) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }
    };
}

codes! {
    /// What a GPU may tell in words: NVML's texts of the same names.
    Text {
        /// Serial number of the board.
        Serial "serial",
        /// Version of the VBIOS.
        VbiosVersion "vbios-version",
        /// Part number of the board.
        BoardPartNumber "board-part-number",
        /// Version of the infoROM.
        InforomImageVersion "inforom-image-version",
        /// Version of the GSP's firmware.
        GspFirmwareVersion "gsp-firmware-version",
    }
}

codes! {
    /// What a GPU may tell in numbers: NVML's functions of the same names, in their units. In brackets what several are told
    /// apart by.
    Quantity {
        /// Bytes [total, reserved, free, used].
        Memory "memory",
        /// Bytes [total, free, used].
        Bar1Memory "bar1-memory",
        /// Percent of the last while [GPU, memory].
        UtilizationRates "utilization",
        /// [utilization, sampling period].
        EncoderUtilization "encoder-utilization",
        /// [utilization, sampling period].
        DecoderUtilization "decoder-utilization",
        /// [utilization, sampling period].
        JpgUtilization "jpg-utilization",
        /// [utilization, sampling period].
        OfaUtilization "ofa-utilization",
        /// °C, by sensor.
        Temperature "temperature",
        /// °C, by threshold.
        TemperatureThreshold "temperature-threshold",
        /// Milliwatts.
        PowerUsage "power-usage",
        /// Milliwatts.
        EnforcedPowerLimit "enforced-power-limit",
        /// Milliwatts.
        PowerManagementLimit "power-management-limit",
        /// Milliwatts.
        PowerManagementDefaultLimit "power-management-default-limit",
        /// Milliwatts [least, most].
        PowerManagementLimitConstraints "power-management-limit-constraints",
        /// Whether power is managed.
        PowerManagementMode "power-management-mode",
        /// Millijoules since the driver was loaded.
        TotalEnergyConsumption "total-energy-consumption",
        /// MHz, by clock.
        ClockInfo "clock",
        /// MHz, by clock.
        MaxClockInfo "max-clock",
        /// MHz, by clock.
        ApplicationsClock "applications-clock",
        /// MHz, by clock.
        DefaultApplicationsClock "default-applications-clock",
        /// Bits.
        CurrentClocksEventReasons "current-clocks-event-reasons",
        /// Bits.
        SupportedClocksEventReasons "supported-clocks-event-reasons",
        /// 0 is the fastest.
        PerformanceState "performance-state",
        /// Percent.
        FanSpeed "fan-speed",
        /// How many.
        NumFans "fans",
        /// How many.
        PcieReplayCounter "pcie-replay-counter",
        /// Generation.
        CurrPcieLinkGeneration "current-pcie-link-generation",
        /// Lanes.
        CurrPcieLinkWidth "current-pcie-link-width",
        /// Generation.
        MaxPcieLinkGeneration "max-pcie-link-generation",
        /// Generation.
        GpuMaxPcieLinkGeneration "gpu-max-pcie-link-generation",
        /// Lanes.
        MaxPcieLinkWidth "max-pcie-link-width",
        /// MB/s.
        PcieSpeed "pcie-speed",
        /// `NVML_PCIE_LINK_MAX_SPEED_…`.
        PcieLinkMaxSpeed "pcie-link-max-speed",
        /// The node's: `/dev/nvidia<N>`.
        MinorNumber "minor-number",
        /// The board's.
        BoardId "board-id",
        /// Whether there are several GPUs on the board.
        MultiGpuBoard "multi-gpu-board",
        /// The baseboard's slot.
        ModuleId "module-id",
        /// CUDA cores.
        NumGpuCores "cores",
        /// `NVML_DEVICE_ARCH_…`.
        Architecture "architecture",
        /// `NVML_BRAND_…`.
        Brand "brand",
        /// `NVML_BUS_TYPE_…`.
        BusType "bus-type",
        /// Bits.
        MemoryBusWidth "memory-bus-width",
        /// The interrupt.
        IrqNum "irq",
        /// The NUMA node.
        NumaNodeId "numa-node",
        /// 64 processors each, by word.
        CpuAffinity "cpu-affinity",
        /// 64 NUMA nodes each, by word.
        MemoryAffinity "memory-affinity",
        /// `NVML_COMPUTEMODE_…`.
        ComputeMode "compute-mode",
        /// Whether the driver stays loaded.
        PersistenceMode "persistence-mode",
        /// Whether a display is connected.
        DisplayMode "display-mode",
        /// Whether a display is lit.
        DisplayActive "display-active",
        /// Whether on [now, after the next restart].
        EccMode "ecc-mode",
        /// Whether on by default.
        DefaultEccMode "default-ecc-mode",
        /// Whether on [now, after the next restart].
        MigMode "mig-mode",
        /// Multiprocessors, and of what else it has [shared copy engines, decoders, encoders, JPEG, OFA, GPU slices, compute
        /// slices, memory in MB].
        Attributes "attributes",
        /// `NVML_TOPOLOGY_…` [other GPU].
        TopologyCommonAncestor "topology",
        /// `NVML_P2P_STATUS_…` [[`Quantity::pair`] of other GPU and `NVML_P2P_CAPS_INDEX_…`].
        P2PStatus "p2p-status",
        /// Whether active, by link.
        NvLinkState "nvlink-state",
        /// Version, by link.
        NvLinkVersion "nvlink-version",
        /// Whether it can [[`Quantity::pair`] of link and capability].
        NvLinkCapability "nvlink-capability",
        /// `NVML_NVLINK_DEVICE_TYPE_…`, by link.
        NvLinkRemoteDeviceType "nvlink-remote-device-type",
        /// [`Pci::packed`], by link.
        NvLinkRemotePciInfo "nvlink-remote-pci",
    }
}

impl Quantity {
    /// Two numbers, the second below 16, by which one of several is told.
    #[must_use]
    pub fn pair(first: u16, second: u16) -> u16 {
        first.saturating_mul(16).saturating_add(second & 15)
    }

    /// Whether it changes while the machine runs. What does not is answered as it was when first asked for.
    #[must_use]
    pub fn is_live(self) -> bool {
        use Quantity as Q;
        matches!(
            self,
            Q::Memory
                | Q::Bar1Memory
                | Q::UtilizationRates
                | Q::EncoderUtilization
                | Q::DecoderUtilization
                | Q::JpgUtilization
                | Q::OfaUtilization
                | Q::Temperature
                | Q::PowerUsage
                | Q::EnforcedPowerLimit
                | Q::PowerManagementLimit
                | Q::TotalEnergyConsumption
                | Q::ClockInfo
                | Q::ApplicationsClock
                | Q::CurrentClocksEventReasons
                | Q::PerformanceState
                | Q::FanSpeed
                | Q::PcieReplayCounter
                | Q::CurrPcieLinkGeneration
                | Q::CurrPcieLinkWidth
                | Q::PcieSpeed
        )
    }
}

impl Pci {
    /// Domain, bus and device, as a quantity.
    #[must_use]
    pub fn packed(self) -> u64 {
        u64::from(self.domain) << 32 | u64::from(self.bus & 0xff) << 8 | u64::from(self.device & 0xff)
    }

    /// From a quantity; the rest is not known.
    #[must_use]
    pub fn unpacked(packed: u64) -> Self {
        let byte = |shift: u32| (packed >> shift) as u32 & 0xff;
        Self { domain: (packed >> 32) as u32, bus: byte(8), device: byte(0), ..Self::default() }
    }
}

impl Wire for Pci {
    fn encode(&self, to: &mut Encoder<'_>) {
        [self.domain, self.bus, self.device, self.id, self.subsystem].encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [domain, bus, device, id, subsystem] = Wire::decode(from)?;
        Ok(Self { domain, bus, device, id, subsystem })
    }
}

impl Wire for Gpu {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.uuid.encode(to);
        self.name.encode(to);
        self.pci.encode(to);
        self.capability.encode(to);
        self.texts.encode(to);
        self.numbers.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (uuid, name) = (Wire::decode(from)?, Wire::decode(from)?);
        let (pci, capability) = (Wire::decode(from)?, Wire::decode(from)?);
        let (texts, numbers) = (Wire::decode(from)?, Wire::decode(from)?);
        Ok(Self { uuid, name, pci, capability, texts, numbers })
    }
}

impl Wire for Machine {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.driver.encode(to);
        self.nvml.encode(to);
        self.cuda.encode(to);
        self.gpus.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (driver, nvml, cuda) = (Wire::decode(from)?, Wire::decode(from)?, Wire::decode(from)?);
        let gpus: Vec<Gpu> = Wire::decode(from)?;
        if gpus.len() > GPUS_MAX {
            return Err(DecodeError::TooLong(gpus.len()));
        }
        Ok(Self { driver, nvml, cuda, gpus })
    }
}

impl Machine {
    /// Appends at most `room` bytes: what is long and seldom asked for is left out where there is not enough of it.
    pub(crate) fn encode_within(&self, room: usize, to: &mut Encoder<'_>) {
        let mut bytes = Vec::new();
        self.encode(&mut Encoder::new(&mut bytes));
        if bytes.len() > room || self.gpus.len() > GPUS_MAX {
            let mut short = self.clone();
            short.gpus.truncate(GPUS_MAX);
            short.gpus.iter_mut().for_each(Gpu::forget_neighbours);
            bytes.clear();
            short.encode(&mut Encoder::new(&mut bytes));
        }
        to.put(&bytes);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::GREETING_MAX;

    /// As many words and numbers as a GPU can have.
    fn talkative(index: u32, others: u16) -> Gpu {
        let mut gpu = Gpu { uuid: format!("GPU-{index:036}"), name: "x".repeat(96), ..Gpu::default() };
        Text::ALL.iter().for_each(|text| gpu.set_text(*text, "y".repeat(64)));
        for quantity in Quantity::ALL {
            let count = if *quantity < Quantity::TopologyCommonAncestor { 4 } else { others * 8 };
            (0..count).for_each(|which| gpu.set_number(*quantity, which, u64::MAX));
        }
        gpu
    }

    #[test]
    fn a_machine_fits_into_a_greeting() {
        for (gpus, others) in [(8, 18), (GPUS_MAX as u32, 32), (100, 32)] {
            let machine = Machine {
                gpus: (0..gpus).map(|index| talkative(index, others)).collect(),
                ..Machine::default()
            };
            let mut bytes = Vec::new();
            machine.encode_within(GREETING_MAX, &mut Encoder::new(&mut bytes));
            assert!(bytes.len() <= GREETING_MAX, "{gpus}: {}", bytes.len());
            let mut from = Decoder::new(&bytes);
            let told = Machine::decode(&mut from).unwrap();
            from.finish().unwrap();
            assert_eq!(told.gpus.len(), (gpus as usize).min(GPUS_MAX));
            let last = told.gpus.last().unwrap();
            assert_eq!(last.number(Quantity::Memory, 3), Some(u64::MAX));
            assert_eq!(last.number(Quantity::NvLinkState, 17).is_some(), gpus == 8);
            assert_eq!(last.text(Text::Serial).map(str::len), Some(64));
        }
    }

    #[test]
    fn a_device_is_the_same_gpu() {
        let attributes = [
            (A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0x1b),
            (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
            (A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
        ];
        let gpu = Gpu::of(&DeviceFacts {
            name: "a GPU".into(),
            uuid: std::array::from_fn(|index| index as u8 * 0x11),
            total_memory: 1 << 37,
            pci_bus_id: "0000:1B:00.0".into(),
            attributes: attributes.map(|(attribute, value)| (attribute as i32, value)).to_vec(),
            stream_priorities: (0, 0),
        });
        assert_eq!(gpu.uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!((gpu.pci.bus, gpu.capability, gpu.name.as_str()), (0x1b, (9, 0), "a GPU"));
        assert_eq!(gpu.number(Quantity::Memory, 0), Some(1 << 37));
        assert_eq!(gpu.number(Quantity::Attributes, 0), Some(132));
        assert_eq!(gpu.number(Quantity::MemoryBusWidth, 0), None);
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        let machine = Machine { gpus: vec![Gpu::default()], ..Machine::default() };
        let mut bytes = Vec::new();
        machine.encode(&mut Encoder::new(&mut bytes));
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&1000u32.to_le_bytes());
        assert_eq!(Machine::decode(&mut Decoder::new(&bytes)), Err(DecodeError::TooLong(1000)));
        let many = Machine { gpus: vec![Gpu::default(); GPUS_MAX + 1], ..Machine::default() };
        bytes.clear();
        many.encode(&mut Encoder::new(&mut bytes));
        assert_eq!(Machine::decode(&mut Decoder::new(&bytes)), Err(DecodeError::TooLong(GPUS_MAX + 1)));
    }

    #[test]
    fn a_pci_address_is_one_number() {
        let pci = Pci { domain: 0x1_0000, bus: 0xfe, device: 0x1f, ..Pci::default() };
        assert_eq!(Pci::unpacked(pci.packed()), pci);
    }
}
