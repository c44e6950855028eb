//! Which devices of the machine there are for a program.

use std::fmt::Write;
use wire::DeviceFacts;

/// What is asked for of a machine's devices; all of them, if nothing.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The only one, by its number there (`HOST/N`).
    pub only: Option<u32>,
    /// Which of those there are, in this order, by their places among them or by UUID, as `CUDA_VISIBLE_DEVICES` has them.
    pub visible: Option<String>,
}

impl Choice {
    /// The devices' numbers on their machine. As CUDA does, up to the first entry that is none, or was there before.
    pub(super) fn of(&self, devices: &[DeviceFacts]) -> Vec<usize> {
        let is_meant = |number: &usize| self.only.is_none_or(|only| u32::try_from(*number) == Ok(only));
        let all: Vec<usize> = (0..devices.len()).filter(is_meant).collect();
        let Some(list) = &self.visible else { return all };
        let mut chosen = Vec::new();
        for entry in list.split(',').map(str::trim) {
            let is_it = |number: &&usize| devices.get(**number).is_some_and(|it| is_named(it, entry));
            let found = match entry.parse::<usize>() {
                Ok(place) => all.get(place),
                Err(_) => all.iter().find(is_it),
            };
            match found {
                Some(number) if !chosen.contains(number) => chosen.push(*number),
                _ => break,
            }
        }
        chosen
    }
}

/// Whether a device is called so: by as much of its UUID as tells it from others.
fn is_named(device: &DeviceFacts, entry: &str) -> bool {
    let mut name = "GPU".to_owned();
    for (at, byte) in device.uuid.iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&at) { "-" } else { "" };
        let _ = write!(name, "{dash}{byte:02x}");
    }
    entry.len() > "GPU-".len() && name.starts_with(&entry.to_ascii_lowercase().replacen("gpu", "GPU", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<DeviceFacts> {
        let device = |number: u8| DeviceFacts {
            name: format!("device {number}"),
            uuid: [0xa0 + number; 16],
            total_memory: 1,
            pci_bus_id: String::new(),
            attributes: vec![],
            stream_priorities: (0, 0),
        };
        (0..4).map(device).collect()
    }

    #[test]
    fn devices_are_chosen_as_cuda_does() {
        for (only, visible, expected) in [
            (None, None, &[0, 1, 2, 3][..]),
            (Some(2), None, &[2]),
            (Some(4), None, &[]),
            (None, Some("2,0"), &[2, 0]),
            (None, Some(" 1 ,7,0"), &[1]),
            (None, Some("1,1,0"), &[1]),
            (None, Some(""), &[]),
            (None, Some("-1"), &[]),
            (None, Some("GPU-a3a3a3a3-a3a3-a3a3-a3a3-a3a3a3a3a3a3,0"), &[3, 0]),
            (None, Some("GPU-a2,GPU-b0,1"), &[2]),
            (None, Some("GPU-"), &[]),
            (Some(3), Some("0"), &[3]),
            (Some(3), Some("1"), &[]),
        ] {
            let choice = Choice { only, visible: visible.map(str::to_owned) };
            assert_eq!(choice.of(&devices()), expected, "{choice:?}");
        }
    }
}
