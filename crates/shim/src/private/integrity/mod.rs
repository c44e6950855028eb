//! `INTEGRITY_CHECK`: cudart asks the driver to prove that the tables it handed out are its own. The proof covers their
//! addresses, so it is made in the process that has them.

mod hmac;
mod md2;

use std::ffi::{c_int, c_uint, c_void};

use cuda_abi::{CuError, CuResult};

use super::{cudart, slots::Table};
use crate::facts::{self, DeviceIdentity};

/// The table; the second entry sets something that nothing depends on.
pub static TABLE: Table<3> = Table::new::<4>(&[(1, check as *const c_void), (2, set as *const c_void)]);

/// The answers to the two questions that are not hashed, told apart by the version's last digit.
const FIXED: [[u64; 2]; 2] =
    [[0x3341_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8], [0x1841_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8]];

const KEY: [u8; 16] =
    [0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52, 0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F];

/// Everything that the proof covers.
struct Question<'a> {
    driver_version: i32,
    version: u32,
    pid: u32,
    thread: u32,
    cudart_table: u64,
    integrity_table: u64,
    integrity_function: u64,
    unix_seconds: u64,
    devices: &'a [DeviceIdentity],
}

impl Question<'_> {
    fn answer(&self) -> [u8; 16] {
        if let Some([low, high]) = FIXED.get((self.version % 10) as usize) {
            return ((u128::from(*high) << 64) | u128::from(*low)).to_le_bytes();
        }
        let mut message = Vec::with_capacity(48 + 28 * self.devices.len());
        message.extend(self.driver_version.to_le_bytes());
        message.extend(self.version.to_le_bytes());
        message.extend(self.pid.to_le_bytes());
        message.extend(self.thread.to_le_bytes());
        for word in [self.cudart_table, self.integrity_table, self.integrity_function, self.unix_seconds] {
            message.extend(word.to_le_bytes());
        }
        for device in self.devices {
            message.extend(device.uuid);
            for number in [device.pci_domain, device.pci_bus, device.pci_device] {
                message.extend(number.to_le_bytes());
            }
        }
        hmac::hmac_md2(&KEY, &message)
    }
}

unsafe extern "C" fn check(version: c_uint, unix_seconds: u64, out: *mut [u8; 16]) -> c_uint {
    let answer = || -> CuResult {
        if out.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        let question = Question {
            driver_version: facts::driver_version(),
            version,
            pid: std::process::id(),
            // SAFETY: always succeeds. The proof covers the low half.
            thread: unsafe { libc::pthread_self() } as u32,
            cudart_table: cudart::INTERFACE.address().addr() as u64,
            integrity_table: TABLE.address().addr() as u64,
            integrity_function: (check as *const c_void).addr() as u64,
            unix_seconds,
            devices: facts::get()?.devices(),
        };
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { out.write(question.answer()) };
        Ok(())
    };
    answer().map_or_else(CuError::code, |()| 0)
}

extern "C" fn set() -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from driver 580.159.04 on an H200.
    #[test]
    fn answers_are_those_of_a_real_driver() {
        let device = DeviceIdentity {
            uuid: 0x8e384fa48d13d7a297530d29689285c5_u128.to_be_bytes(),
            pci_domain: 0,
            pci_bus: 0,
            pci_device: 6,
        };
        for (version, expected) in [
            (13000, 0x5c67cb031c184133e8d14c1faa83d38e_u128),
            (13001, 0x5c67cb031c184118e8d14c1faa83d38e),
            (13002, 0x3bd337841f63352c87c98ab4e4632318),
            (13003, 0xda38c564cf029621c5c842b95e5b0176),
            (13009, 0xf2fc1c461de2110489c6818d0dfa2466),
            (13010, 0x5c67cb031c184133e8d14c1faa83d38e),
            (13011, 0x5c67cb031c184118e8d14c1faa83d38e),
        ] {
            let question = Question {
                driver_version: 13000,
                version,
                pid: 492,
                thread: 0x43af_c740,
                cudart_table: 0x7f18_4364_c680,
                integrity_table: 0x7f18_4364_c660,
                integrity_function: 0x7f18_3dfa_b350,
                unix_seconds: 1_700_000_000,
                devices: &[device],
            };
            assert_eq!(question.answer(), expected.to_be_bytes(), "{version}");
        }
    }
}
