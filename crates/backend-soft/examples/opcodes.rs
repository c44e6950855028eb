//! The other half of `tests/suite/opcodes/record.c`: `write DIR` makes what it reads, `hash DIR` prints `golden.txt`, `compare DIR` tells
//! every result that the software device computes otherwise.

#[path = "../tests/suite/common/mod.rs"]
mod common;
#[path = "../tests/suite/opcodes/table.rs"]
mod table;

use std::error::Error;
use std::path::Path;

use common::Gpu;
use common::Param::U64;
use table::{Case, THREADS};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, what, dir] = arguments.as_slice() else {
        return Err("usage: opcodes write|hash|compare DIR".into());
    };
    let (dir, cases) = (Path::new(dir), table::cases());
    match what.as_str() {
        "write" => write(dir, &cases),
        "hash" => hash(dir, &cases),
        _ => compare(dir, &cases),
    }
}

fn write(dir: &Path, cases: &[Case]) -> Result<(), Box<dyn Error>> {
    let mut inputs = Vec::new();
    for case in cases {
        let mut values = table::inputs(case);
        values.resize(3 * THREADS, 0);
        inputs.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    std::fs::write(dir.join("opcodes.ptx"), table::module(cases))?;
    std::fs::write(dir.join("inputs.bin"), inputs)?;
    println!("{} cases", cases.len());
    Ok(())
}

fn recorded(dir: &Path) -> Result<Vec<Vec<u64>>, Box<dyn Error>> {
    let bytes = std::fs::read(dir.join("results.bin"))?;
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|b| b.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b))).collect();
    Ok(words.chunks_exact(THREADS).map(<[u64]>::to_vec).collect())
}

fn hash(dir: &Path, cases: &[Case]) -> Result<(), Box<dyn Error>> {
    for (case, values) in cases.iter().zip(recorded(dir)?) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        let hash = bytes
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        println!("{hash:016x} {}", case.text);
    }
    Ok(())
}

fn compare(dir: &Path, cases: &[Case]) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::new(&table::module(cases));
    for (index, (case, expected)) in cases.iter().zip(recorded(dir)?).enumerate() {
        let inputs = table::inputs(case);
        let (input, output) = (gpu.upload(&inputs), gpu.alloc(8 * THREADS as u64));
        let ran =
            gpu.run(&format!("k{index}"), [1; 3], [THREADS as u32, 1, 1], 0, &[U64(input), U64(output)]);
        ran.map_err(|error| format!("{}: {error}", case.text))?;
        let results = gpu.download::<u64>(output, THREADS);
        let wrong: Vec<usize> = (0..THREADS).filter(|&thread| results[thread] != expected[thread]).collect();
        if let Some(&first) = wrong.first() {
            println!("{}: {} of {THREADS} differ", case.text, wrong.len());
            for &thread in wrong.iter().take(4).chain(wrong.last()) {
                let of: Vec<String> =
                    inputs.chunks(THREADS).map(|source| format!("{:#x}", source[thread])).collect();
                println!(
                    "    {}: got {:#x}, the GPU {:#x}",
                    of.join(", "),
                    results[thread],
                    expected[thread]
                );
            }
            let _ = first;
        }
    }
    Ok(())
}
