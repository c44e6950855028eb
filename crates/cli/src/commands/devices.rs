//! `dormouse devices`

use crate::flags::{Devices, Target};
use crate::output::{Show, table};
use checkpoint::{Chain, Failure, Kind};
use indicatif::BinaryBytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use wire::{Encoder, Gpu, Greeting, Machine, Quantity, Wire};

#[derive(Serialize)]
pub struct Found {
    driver: String,
    cuda: i32,
    devices: Vec<Listed>,
}

/// One of them.
#[derive(Serialize)]
struct Listed {
    uuid: String,
    name: String,
    pci_bus_id: String,
    compute_capability: String,
    texts: BTreeMap<&'static str, String>,
    /// Where one name has several numbers, in order; null where one is missing.
    numbers: BTreeMap<&'static str, Vec<Option<u64>>>,
}

/// Lists the machine's devices.
pub fn run(flags: &Devices) -> Result<Found, Failure> {
    let Machine { driver, cuda, gpus, .. } = look(&flags.device)?;
    Ok(Found { driver, cuda, devices: gpus.iter().map(one).collect() })
}

/// Says it as the hello socket does.
pub fn greet(target: &Target) -> ExitCode {
    let answer =
        look(target).map_or_else(|failure| Greeting::Refused { reason: failure.message }, Greeting::Machine);
    let mut bytes = Vec::new();
    answer.encode(&mut Encoder::new(&mut bytes));
    let mut out = io::stdout();
    match out.write_all(&bytes).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn look(target: &Target) -> Result<Machine, Failure> {
    let device = match target {
        Target::Here(device) => super::device(*device)?,
        Target::Remote(address) => return super::remote::machine(address),
    };
    if device == "soft" {
        return Ok(backend_soft::machine(&backend_soft::Options::from_environment()));
    }
    backend_driver::machine::look()
        .map_err(|error| Failure::new(Kind::Unavailable, Chain(&error).to_string()))
}

fn one(gpu: &Gpu) -> Listed {
    let mut numbers: BTreeMap<_, Vec<Option<u64>>> = BTreeMap::new();
    for (quantity, which, value) in gpu.numbers() {
        let all = numbers.entry(quantity.name()).or_default();
        let which = usize::from(which);
        if all.len() <= which {
            all.resize(which + 1, None);
        }
        all[which] = Some(value);
    }
    let pci = gpu.pci;
    Listed {
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        pci_bus_id: format!("{:04X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device),
        compute_capability: format!("{}.{}", gpu.capability.0, gpu.capability.1),
        texts: gpu.texts().map(|(text, value)| (text.name(), value.to_owned())).collect(),
        numbers,
    }
}

impl Show for Found {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let driver = if self.driver.is_empty() { "unknown" } else { &self.driver };
        writeln!(out, "driver {driver}, CUDA {}.{}", self.cuda / 1000, self.cuda % 1000 / 10)?;
        let head = ["DEVICE", "NAME", "CAPABILITY", "PCI", "MEMORY", "USED", "UUID"];
        let mut rows = vec![head.map(String::from).to_vec()];
        rows.extend(self.devices.iter().enumerate().map(|(index, device)| {
            let memory = |which| {
                let bytes = device.numbers.get(Quantity::Memory.name()).and_then(|all| *all.get(which)?);
                bytes.map_or_else(|| "?".to_owned(), |bytes| BinaryBytes(bytes).to_string())
            };
            vec![
                index.to_string(),
                device.name.clone(),
                device.compute_capability.clone(),
                device.pci_bus_id.clone(),
                memory(0),
                memory(3),
                device.uuid.clone(),
            ]
        }));
        table(out, &rows)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_software_device_is_listed() {
        let json = crate::flags::Json { json: true };
        let found = run(&Devices { device: Target::Here(crate::flags::Device::Soft), greeting: false, json })
            .unwrap();
        let mut text = Vec::new();
        found.show(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let value = serde_json::to_value(&found).unwrap();
        let device = &value["devices"][0];
        for field in ["uuid", "name", "pci_bus_id", "compute_capability"] {
            let said = device[field].as_str().unwrap();
            assert!(!said.is_empty() && text.contains(said), "{field}: {said:?} in {text}");
        }
        let memory = device["numbers"]["memory"].as_array().unwrap();
        assert_eq!((memory.len(), &memory[0]), (4, &memory[2]));
    }

    #[test]
    fn numbers_keep_their_places() {
        let mut gpu = Gpu::default();
        gpu.set_number(Quantity::ClockInfo, 2, 7);
        gpu.set_number(Quantity::ClockInfo, 0, 5);
        assert_eq!(one(&gpu).numbers["clock"], [Some(5), None, Some(7)]);
    }
}
