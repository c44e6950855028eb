//! Which devices of the machine there are for a program: of those that its far end has for it, those that it asks for.

use wire::{DeviceFacts, uuid};

/// What is asked for of a machine's devices; all of them, if nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// The only one, by its number there (`HOST/N`).
    pub only: Option<u32>,
    /// Which of those there are, in this order, by their places among them or by UUID, as `CUDA_VISIBLE_DEVICES` has them.
    pub visible: Option<String>,
}

impl Choice {
    /// The devices' numbers on their machine. As CUDA does, up to the first entry that is none, or was there before.
    #[must_use]
    pub fn of(&self, devices: &[DeviceFacts]) -> Vec<usize> {
        let is_meant = |number: &usize| self.only.is_none_or(|only| u32::try_from(*number) == Ok(only));
        let all: Vec<usize> = (0..devices.len()).filter(is_meant).collect();
        let Some(list) = &self.visible else { return all };
        let called = |number: usize| devices.get(number).map(|device| (number, uuid(&device.uuid)));
        backend::visible(list, &all.into_iter().filter_map(called).collect::<Vec<_>>())
    }
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
