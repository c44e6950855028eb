//! Arithmetic, spelling by spelling, against what an H200 computed (`opcodes/golden.txt`: recorded by `opcodes/record.c`).
#![allow(clippy::unwrap_used)]

mod table;

use std::collections::HashMap;

use crate::common::Gpu;
use crate::common::Param::U64;
use table::THREADS;

/// FNV-1a over the results' bytes.
fn hash(values: &[u64]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn results_are_those_of_a_gpu() {
    let golden: HashMap<&str, u64> = include_str!("opcodes/golden.txt")
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(hash, text)| (text, u64::from_str_radix(hash, 16).unwrap()))
        .collect();
    let cases = table::cases();
    let gpu = Gpu::new(&table::module(&cases));
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let input = gpu.upload(&table::inputs(case));
        let output = gpu.alloc(8 * THREADS as u64);
        gpu.run(&format!("k{index}"), [1; 3], [THREADS as u32, 1, 1], 0, &[U64(input), U64(output)]).unwrap();
        let results = gpu.download::<u64>(output, THREADS);
        let expected =
            *golden.get(case.text.as_str()).unwrap_or_else(|| panic!("{} is not recorded", case.text));
        if hash(&results) != expected {
            wrong.push(case.text.as_str());
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ: {wrong:#?}", wrong.len(), cases.len());
}
