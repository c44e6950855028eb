//! The tables of functions that cudart and NVIDIA's libraries ask `cuGetExportTable` for. They are documented nowhere;
//! sizes and answers here are those of driver 580, observed from outside. Everything in them is answered in this
//! process.
//!
//! Programs call the entries without checking them, so a table has none that is NULL: what is not known logs its
//! position and fails.

pub mod context_storage;
mod cudart;
mod integrity;
mod slots;
mod tools;

use std::ffi::c_void;

use crate::report::{self, Unsupported};

/// The table with this id (bytes in memory order); `None`, reported, where there is none.
pub fn table(id: [u8; 16]) -> Option<*const c_void> {
    let table = match u128::from_be_bytes(id) {
        0x6bd5fb6c_5bf4e74a_8987d939_12fd9df9 => cudart::INTERFACE.address(),
        0xa094798c_2e742e74_93f20800_200c0a66 => tools::CALLBACK_HOOKS.address(),
        0x42d85a81_23f6cb47_8298f6e7_8a3aecdc => tools::TLS.address(),
        0xc693336e_1121df11_a8c368f3_55d89593 => context_storage::TABLE.address(),
        0x263e8860_7cd26143_92f6bbd5_006dfa7e => cudart::CONTEXT_CHECKS.address(),
        0xd4082055_bde6704b_8d34ba12_3c66e1f2 => integrity::TABLE.address(),
        0x21318c60_97143248_8ca641ff_7324c8f2 => tools::CONTEXT.address(),
        0x6e163fbe_b958444d_835ce182_aff1991e => tools::FUNCTIONS.address(),
        0x1734dc26_800d4745_8726c0f1_e7dd8bca => tools::CUBLAS_LT.address(),
        0x7cb63f9b_9ca48e42_a484beb6_6e6aed7f => tools::PROFILER.address(),
        // Who asks for these does without: cudart and the libraries (logging), NVRTC (the driver's cache of compilations), the
        // driver's own libnvidia-ml, CUPTI.
        0xf8cff951_21468b4e_b9e2fb46_9e7c0dd9
        | 0xda9151d3_3ae6cc41_a5c04f26_d533e328
        | 0x69a28e9f_24498b47_b030c5da_330ea4e9
        | 0xd7bd8af8_e7acca4a_bdbcfb1f_1b3fcf33 => return None,
        _ => {
            report::report(Unsupported::PrivateTable(id));
            return None;
        }
    };
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(hex: &str) -> [u8; 16] {
        u128::from_str_radix(hex, 16).map(u128::to_be_bytes).unwrap_or_default()
    }

    /// The sizes that driver 580.159.04 answers.
    #[test]
    fn tables_start_with_the_size_of_a_real_driver() {
        for (hex, size) in [
            ("6bd5fb6c5bf4e74a8987d93912fd9df9", 0x68),
            ("a094798c2e742e7493f20800200c0a66", 0x38),
            ("42d85a8123f6cb478298f6e78a3aecdc", 0x18),
            ("263e88607cd2614392f6bbd5006dfa7e", 0x78),
            ("d4082055bde6704b8d34ba123c66e1f2", 0x18),
            ("21318c60971432488ca641ff7324c8f2", 0x2e8),
            ("6e163fbeb958444d835ce182aff1991e", 0x318),
            ("1734dc26800d47458726c0f1e7dd8bca", 0x88),
            ("7cb63f9b9ca48e42a484beb66e6aed7f", 0x218),
        ] {
            let table = table(id(hex)).unwrap_or_else(|| panic!("no table {hex}")).cast::<usize>();
            // SAFETY: every table has at least the three words that are read first, and as many as the first says.
            let words = unsafe { std::slice::from_raw_parts(table, table.read() / size_of::<usize>()) };
            assert_eq!(words.first(), Some(&size), "{hex}");
            assert!(words.iter().all(|word| *word != 0), "{hex} has a NULL entry");
        }
    }

    #[test]
    fn an_entry_that_is_not_known_fails_and_is_reported() {
        let table = table(id("21318c60971432488ca641ff7324c8f2")).unwrap_or(std::ptr::null());
        // SAFETY: the table has 93 words, of which this is a function that looks at no argument.
        let code = unsafe { table.cast::<extern "C" fn(usize) -> u32>().add(16).read()(1) };
        assert_eq!(code, 801);
        assert!(report::made().contains(&Unsupported::PrivateSlot { table: "TOOLS_CONTEXT", slot: 16 }));
    }

    #[test]
    fn other_tables_are_refused() {
        assert_eq!(table([0x11; 16]), None);
        assert_eq!(table(id("f8cff95121468b4eb9e2fb469e7c0dd9")), None);
    }
}
