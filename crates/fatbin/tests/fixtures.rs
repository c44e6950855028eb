//! Fatbinaries that nvcc made of `tests/data/module.cu`.
#![allow(clippy::unwrap_used, missing_docs)]

use fatbin::{
    Arch, Compression, Cubin, EntryKind, Fatbinary, Image, ImageKind, Linkage, ModuleFacts, ParamFacts,
    VariableSpace, Variant, measure,
};

const NONE: &[u8] = include_bytes!("data/none.fatbin");
const SPEED: &[u8] = include_bytes!("data/speed.fatbin");
const SIZE: &[u8] = include_bytes!("data/size.fatbin");
const RDC: &[u8] = include_bytes!("data/rdc.fatbin");

fn base(sm: u32) -> Arch {
    Arch { sm, variant: Variant::Base }
}

#[test]
fn entries() {
    let fatbinary = Fatbinary::parse(NONE).unwrap();
    let entries: Vec<_> = fatbinary.entries().iter().map(|e| (e.kind, e.arch, e.compression)).collect();
    assert_eq!(
        entries,
        [
            (EntryKind::Elf, base(80), Compression::None),
            (EntryKind::Elf, Arch { sm: 90, variant: Variant::Specific }, Compression::None),
            (EntryKind::Ptx, base(75), Compression::None),
        ]
    );
    assert_eq!(fatbinary.entries()[2].version, (9, 0));
    assert_eq!(fatbinary.architectures().to_string(), "SASS for sm_80 and sm_90a, PTX for compute_75");
    assert_eq!(
        Fatbinary::parse(RDC).unwrap().architectures().to_string(),
        "SASS for sm_100f, PTX for compute_100f"
    );
    let rdc = Fatbinary::parse(RDC).unwrap();
    let ptx = &rdc.entries()[1];
    assert_eq!(
        (ptx.kind, ptx.compression, ptx.identifier),
        (EntryKind::Ptx, Compression::Lz4, Some("module.cu"))
    );
    assert!(String::from_utf8_lossy(ptx.options.unwrap()).contains("--compile-only"));
    assert!(!ptx.is_debug() && ptx.stored_size() < 4000);
}

#[test]
fn choosing_for_a_device() {
    let fatbinary = Fatbinary::parse(SIZE).unwrap();
    let cubin = |device| fatbinary.cubin_for(device).map(|entry| entry.arch.sm);
    let ptx = |device| fatbinary.ptx_for(device).map(|entry| entry.arch.sm);
    assert_eq!(
        (cubin(80), cubin(86), cubin(90), cubin(100), cubin(75)),
        (Some(80), Some(80), Some(90), None, None)
    );
    assert_eq!((ptx(70), ptx(75), ptx(120)), (None, Some(75), Some(75)));
}

/// One module, stored in three ways, as machine code for two architectures and as PTX: the same facts.
#[test]
fn facts() {
    for (bytes, wide) in [(NONE, 1000), (SPEED, 1000), (SIZE, 20000)] {
        for entry in Fatbinary::parse(bytes).unwrap().entries() {
            check_facts(&ModuleFacts::of_entry(entry).unwrap(), entry.kind, wide);
        }
    }
}

fn check_facts(facts: &ModuleFacts, kind: EntryKind, wide: u64) {
    let mut kernels: Vec<_> = facts.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    kernels.sort();
    assert_eq!(kernels, ["heap", "small", "wide"]);
    let params = |name: &str| {
        let kernel = facts.kernel(name).unwrap();
        assert_eq!(kernel.linkage, Linkage::Global);
        (kernel.params.iter().map(|p| (p.offset, p.size)).collect::<Vec<_>>(), kernel.param_bytes)
    };
    assert_eq!(params("small"), (vec![(0, 1), (8, 8), (16, 8), (24, 8)], 32));
    assert_eq!(params("wide"), (vec![(0, wide + 4), (wide + 8, 8)], wide + 16));
    assert_eq!(params("heap"), (vec![(0, 8)], 8));
    let registers = |kernel: &fatbin::KernelFacts| {
        kernel.registers.is_some_and(|registers| (1..=255).contains(&registers))
    };
    let are_told = facts.kernels.iter().filter(|kernel| registers(kernel)).count();
    assert_eq!(are_told, if kind == EntryKind::Elf { 3 } else { 0 });

    let variable = |name: &str| {
        let found = facts.variables.iter().find(|v| v.name == name).unwrap_or_else(|| panic!("no {name}"));
        (found.space, found.size, found.initialised, found.managed)
    };
    use VariableSpace::{Constant, Global};
    assert_eq!(variable("counter"), (Global, 4, false, false));
    assert_eq!(variable("weights"), (Global, 16, true, false));
    assert_eq!(variable("hidden"), (Global, 28, false, false));
    assert_eq!(variable("total"), (Global, 8, true, true));
    assert_eq!(variable("taps"), (Constant, 20, true, false));
    // A cubin keeps no trace of which constants the program left out.
    assert_eq!(variable("limits"), (Constant, 6, kind == EntryKind::Elf, false));

    assert_eq!(facts.imports.len(), 2, "{:?}", facts.imports);
    assert!(facts.uses_heap() && facts.uses_printf() && !facts.launches_kernels());
}

/// Relocatable code: `static` names are made unique, other symbols are global, and their type is NVIDIA's own.
#[test]
fn facts_of_relocatable_code() {
    let fatbinary = Fatbinary::parse(RDC).unwrap();
    let cubin = ModuleFacts::of_entry(&fatbinary.entries()[0]).unwrap();
    let ptx = ModuleFacts::of_entry(&fatbinary.entries()[1]).unwrap();
    for facts in [&cubin, &ptx] {
        let wide = facts.kernel("wide").unwrap();
        assert_eq!(
            wide.params,
            [ParamFacts { offset: 0, size: 20004 }, ParamFacts { offset: 20008, size: 8 }]
        );
        let counter = facts.variable("counter").unwrap();
        assert_eq!(
            (counter.linkage, counter.size, counter.space),
            (Linkage::Global, 4, VariableSpace::Global)
        );
        let hidden = facts.variables.iter().find(|variable| variable.name.ends_with("hidden")).unwrap();
        assert_eq!((hidden.linkage, hidden.size), (Linkage::Local, 28));
        assert!(facts.variable("total").unwrap().managed);
        assert!(facts.uses_heap());
    }
}

#[test]
fn payloads() {
    let code = |bytes: &[u8], index: usize| {
        Fatbinary::parse(bytes).unwrap().entries()[index].code().unwrap().into_owned()
    };
    assert_eq!(code(NONE, 2), code(SPEED, 2), "stored plainly and as LZ4");
    assert!(code(NONE, 2).ends_with(b"\n") && code(SIZE, 2).ends_with(b"\n"), "PTX comes without padding");
    let cubin = code(SIZE, 1);
    let cubin = Cubin::parse(&cubin).unwrap();
    assert_eq!(cubin.sm(), 90);
    assert!(!cubin.section(".text.wide").unwrap().is_empty());
    assert!(cubin.section(".text.narrow").is_none());
}

#[test]
fn lengths() {
    let kind_and_length = |bytes: &[u8]| {
        // What follows in memory does not count, and is not looked at.
        let padded: Vec<u8> = bytes.iter().copied().chain([0xEE; 100]).collect();
        let mut furthest = 0;
        let mut source = |offset: u64, buffer: &mut [u8]| {
            furthest = furthest.max(offset as usize + buffer.len());
            buffer.copy_from_slice(&padded[offset as usize..][..buffer.len()]);
            true
        };
        let measured = measure(&mut source, 1 << 30).unwrap();
        assert!(furthest <= bytes.len());
        assert_eq!(measured, measure(&mut padded.as_slice(), 1 << 30).unwrap());
        (measured.kind, measured.length as usize)
    };
    for fatbinary in [NONE, SPEED, SIZE, RDC] {
        assert_eq!(kind_and_length(fatbinary), (ImageKind::Fatbinary, fatbinary.len()));
        for entry in Fatbinary::parse(fatbinary).unwrap().entries() {
            let mut code = entry.code().unwrap().into_owned();
            if entry.kind == EntryKind::Elf {
                let (kind, length) = kind_and_length(&code);
                assert_eq!(kind, ImageKind::Cubin);
                // Entries are padded to eight bytes.
                assert!(length <= code.len() && code.len() - length < 8, "{length} of {}", code.len());
                assert!(matches!(Image::parse(&code), Ok(Image::Cubin(..))));
            } else {
                code.push(0);
                assert_eq!(kind_and_length(&code), (ImageKind::Ptx, code.len()));
                let image = Image::parse(&code).unwrap();
                assert_eq!(image.architectures(), {
                    let ptx = vec![entry.arch];
                    fatbin::Architectures { sass: vec![], ptx }
                });
            }
        }
    }
}

/// Code that is not linked has its own section types for memory that takes no room in the file.
#[test]
fn sections_without_contents() {
    let mut cubin = Fatbinary::parse(RDC).unwrap().entries()[0].code().unwrap().into_owned();
    let before = measure(&mut cubin.as_slice(), 1 << 30).unwrap();
    let table = u64::from_le_bytes(cubin[40..48].try_into().unwrap()) as usize;
    let global =
        cubin[table..].chunks(64).position(|section| section[4..8] == 0x7000_0007u32.to_le_bytes()).unwrap();
    let size = table + global * 64 + 32;
    cubin[size..size + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert_eq!(measure(&mut cubin.as_slice(), 1 << 30).unwrap(), before);
    assert_eq!(ModuleFacts::of_cubin(&cubin).unwrap().kernels.len(), 3);
}
