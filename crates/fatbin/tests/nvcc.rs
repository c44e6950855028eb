//! Against nvcc itself, where there is one: what it writes is read, and what we print of its PTX assembles to the
//! very same machine code. Set `DORMOUSE_NVCC` to its path to use another than the one that `cargo xtask setup`
//! installs; without any, these tests say so and check nothing.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fatbin::{Compression, Cubin, EntryKind, Fatbinary, ModuleFacts};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/module.cu");
const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ptx/tests/data/kernels.cu");
const SYNTAX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ptx/tests/data/syntax.ptx");
const INITIALISERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ptx/tests/data/initialisers.ptx");
const SM90: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ptx/tests/data/sm90.ptx");

/// The compiler: the one that the environment names, or else what `cargo xtask setup` installs.
fn nvcc() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.prefix/cuda/bin/nvcc");
    let nvcc = std::env::var_os("DORMOUSE_NVCC").map_or(installed, PathBuf::from);
    assert!(
        nvcc.exists(),
        "no nvcc at {}: `cargo xtask setup` installs it, or DORMOUSE_NVCC names one",
        nvcc.display()
    );
    nvcc
}

fn run(program: &Path, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {errors}", program.display());
}

fn compile(nvcc: &Path, arguments: &[&str], source: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    run(nvcc, &[arguments, &[source, "-o", output.to_str().unwrap()]].concat());
    fs::read(output).unwrap()
}

#[test]
fn every_way_to_compress() {
    let nvcc = nvcc();
    let archs = [
        "-fatbin",
        "-gencode",
        "arch=compute_80,code=[sm_80,compute_80]",
        "-gencode",
        "arch=compute_90,code=sm_90",
    ];
    let mut codes = Vec::new();
    for (mode, accepted) in [
        ("none", &[Compression::None][..]),
        ("speed", &[Compression::None, Compression::Lz4]),
        ("size", &[Compression::Zstd]),
        ("balance", &[Compression::None, Compression::Zstd]),
        ("default", &[Compression::None, Compression::Zstd]),
    ] {
        let bytes = compile(&nvcc, &[&archs[..], &[&format!("--compress-mode={mode}")]].concat(), MODULE);
        let fatbinary = Fatbinary::parse(&bytes).unwrap();
        assert_eq!(fatbinary.architectures().to_string(), "SASS for sm_80 and sm_90, PTX for compute_80");
        for entry in fatbinary.entries() {
            assert!(accepted.contains(&entry.compression), "{mode}: {:?}", entry.compression);
            assert_eq!(ModuleFacts::of_entry(entry).unwrap().kernels.len(), 3);
        }
        let ptx = fatbinary.ptx_for(80).unwrap().code().unwrap().into_owned();
        codes.push(ptx);
    }
    assert!(codes.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn machine_code_and_ptx_tell_the_same() {
    let nvcc = nvcc();
    for options in [&["-rdc=true"][..], &["-G"], &["-lineinfo", "-DWIDE=30000"]] {
        let arguments =
            [&["-fatbin", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"], options].concat();
        let bytes = compile(&nvcc, &arguments, MODULE);
        let fatbinary = Fatbinary::parse(&bytes).unwrap();
        let facts = |kind: EntryKind| {
            let entry = fatbinary.entries().iter().find(|entry| entry.kind == kind).unwrap();
            assert_eq!(entry.is_debug(), options == ["-G"]);
            let mut facts = ModuleFacts::of_entry(entry).unwrap();
            facts.kernels.sort_by(|a, b| a.name.cmp(&b.name));
            facts.variables.sort_by(|a, b| a.name.cmp(&b.name));
            // What PTX does not tell.
            let told = facts.kernels.iter().filter(|kernel| kernel.registers.is_some()).count();
            assert_eq!(told, if kind == EntryKind::Elf { facts.kernels.len() } else { 0 }, "{options:?}");
            facts.kernels.iter_mut().for_each(|kernel| kernel.registers = None);
            // What a cubin does not tell; and it has a copy of each string that PTX merges, and its own stubs.
            facts.variables.iter_mut().for_each(|variable| variable.initialised = false);
            facts.imports.retain(|name| !name.starts_with("__cuda"));
            facts.imports.sort();
            facts
        };
        let (cubin, ptx) = (facts(EntryKind::Elf), facts(EntryKind::Ptx));
        assert_eq!(cubin.kernels, ptx.kernels, "{options:?}");
        assert_eq!(cubin.imports, ptx.imports, "{options:?}");
        for variable in &ptx.variables {
            let found = cubin.variables.iter().find(|v| v.name.ends_with(&variable.name));
            let found = found.unwrap_or_else(|| panic!("{options:?}: no {} in the cubin", variable.name));
            assert_eq!(
                (found.size, found.space, found.managed),
                (variable.size, variable.space, variable.managed)
            );
        }
    }
}

/// Assembles with ptxas and gives the code of each kernel.
fn assemble(ptxas: &Path, arch: &str, ptx: &str) -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("input.ptx"), folder.path().join("output.cubin"));
    fs::write(&input, ptx).unwrap();
    let arch = format!("-arch={arch}");
    run(ptxas, &["-c", &arch, input.to_str().unwrap(), "-o", output.to_str().unwrap()]);
    let bytes = fs::read(output).unwrap();
    let cubin = Cubin::parse(&bytes).unwrap();
    let names = ModuleFacts::of_cubin(&bytes).unwrap().kernels.into_iter().map(|kernel| kernel.name);
    names.map(|name| (name.clone(), cubin.section(&format!(".text.{name}")).unwrap().to_vec())).collect()
}

#[test]
fn printed_ptx_assembles_to_the_same_machine_code() {
    let nvcc = nvcc();
    let ptxas = nvcc.with_file_name("ptxas");
    let text = |path: &str| fs::read_to_string(path).unwrap();
    let of_nvcc = |options: &[&str], source: &str| {
        String::from_utf8(compile(&nvcc, &[&["-ptx", "-arch=compute_80"], options].concat(), source)).unwrap()
    };
    let texts = [
        ("sm_80", text(SYNTAX)),
        ("sm_80", text(INITIALISERS)),
        ("sm_90a", text(SM90)),
        ("sm_80", of_nvcc(&[], MODULE)),
        ("sm_80", of_nvcc(&[], KERNELS)),
        ("sm_80", of_nvcc(&["-rdc=true"], KERNELS)),
        ("sm_80", of_nvcc(&["-lineinfo", "-use_fast_math"], KERNELS)),
        ("sm_80", of_nvcc(&["-G"], KERNELS)),
    ];
    for (arch, text) in texts {
        let printed = ptx::parse(&text).unwrap().to_string();
        let (expected, found) = (assemble(&ptxas, arch, &text), assemble(&ptxas, arch, &printed));
        assert!(!expected.is_empty());
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            match printed.contains(".target sm_80, debug") {
                // Unoptimised, ptxas numbers registers by where declarations stand; we print them first.
                true => assert_eq!(expected.len(), found.len(), "{name}"),
                false => assert!(expected == found, "{name} differs"),
            }
        }
        assert_eq!(expected.len(), found.len());
    }
}
