//! What the pass makes of the marked guests, as `dormouse nvcc` compiles them: which of their kernels can stop half-way, who stops together, and how many bytes
//! a block is kept in.
#![allow(clippy::unwrap_used)]

#[path = "../../cpt/tests/suite/reference.rs"]
mod reference;

use std::path::{Path, PathBuf};
use std::process::Command;

use cpt::Group::{self, Block, Grid, Thread, Warp};
use testkit::manifest::{Guest, Library, Manifest, Set};

/// Each marked kernel by guest and name.
const KERNELS: [(&str, &str, Group); 17] = [
    ("marked_vectors", "add", Block),
    ("marked_stencil", "diffuse", Block),
    ("marked_reduction", "reduce_by_warps", Warp),
    ("marked_reduction", "reduce", Block),
    ("marked_solver", "solve", Block),
    ("marked_nbody", "fly", Block),
    ("marked_collatz", "count", Thread),
    ("marked_template", "evolveIj", Warp),
    ("marked_template", "evolveIm", Warp),
    ("marked_streams", "hash", Warp),
    ("marked_streams", "pass_on", Block),
    ("marked_graph", "hash", Warp),
    ("marked_managed", "hash", Warp),
    ("marked_grid", "iterate", Grid),
    ("marked_list", "work_on_lists", Thread),
    ("marked_printf", "tell", Block),
    ("marked_linked", "work_in_rounds", Warp),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The PTX of one of a guest's sources.
fn compiled(guest: &Guest, source: &str) -> ptx::ast::Module {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("guest.ptx");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.args(["nvcc", "-ptx", "-std=c++17", "-O2", "-lineinfo", "-arch=compute_90"]).args(&guest.flags);
    if std::env::var_os("DORMOUSE_NVCC").is_none() {
        command.env("DORMOUSE_NVCC", root().join(".prefix/cuda/bin/nvcc"));
    }
    let source = root().join("guests").join(source);
    let output =
        command.arg("-I").arg(root().join("crates/mark/include")).arg(source).arg("-o").arg(&to).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}: {}", guest.name, String::from_utf8_lossy(&output.stderr));
    ptx::parse(&std::fs::read_to_string(to).unwrap()).unwrap()
}

#[test]
fn which_can_stop_half_way() {
    let manifest = Manifest::read(&root().join("guests/guests.toml")).unwrap();
    let mut left = KERNELS.to_vec();
    // What a program compiles itself is not in its source's PTX.
    let compiled_before = |guest: &&Guest| !guest.libraries.contains(&Library::Nvrtc);
    for guest in manifest.set(Set::Marked).filter(compiled_before) {
        // As is done before: what is linked is one module, and what kernels allocate with is in it.
        let mut module = ptx::link(guest.sources().map(|source| compiled(guest, &source)).collect()).unwrap();
        let _ = heap::rewrite(&mut module);
        let made = cpt::rewrite(&module).unwrap();
        let made = made.unwrap_or_else(|| panic!("{} has no marks", guest.name));
        assert!(made.refusals.is_empty(), "{:?}", made.refusals);
        let twins = ptx::parse(&made.text).unwrap();
        for (name, kernel) in &made.kernels {
            let is_it = |(of, known, _): &(&str, &str, _)| *of == guest.name && name.contains(known);
            let at = left.iter().position(is_it).unwrap_or_else(|| panic!("{}: {name}", guest.name));
            assert_eq!(kernel.group, left.remove(at).2, "{}: {name}", guest.name);
            assert!(reference::check(&twins, kernel) <= 1.2);
            reference::nothing_else_is_read(&twins, name, kernel);
            let (kept, least) = reference::bytes(&twins, kernel, 128);
            println!("{}: {name}: {kept} bytes, {least} at least", guest.name);
            assert!(
                kept as f64 <= least as f64 * 1.2,
                "{}: {name}: {kept} bytes, {least} needed",
                guest.name
            );
        }
    }
    assert!(left.is_empty(), "not found: {left:?}");
}
