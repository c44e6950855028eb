//! What the pass makes of the marked guests, as `dormouse nvcc` compiles them: which of their kernels can stop half-way, and who stops together.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use cpt::Group::{self, Block, Thread, Warp};
use testkit::manifest::{Guest, Manifest, Set};

/// Each marked kernel by guest and name; a reason where it cannot stop.
const KERNELS: [(&str, &str, Result<Group, &str>); 13] = [
    ("marked_vectors", "add", Ok(Block)),
    ("marked_stencil", "diffuse", Ok(Block)),
    ("marked_reduction", "reduce_by_warps", Ok(Warp)),
    ("marked_reduction", "reduce", Ok(Block)),
    ("marked_solver", "solve", Ok(Block)),
    ("marked_nbody", "fly", Ok(Block)),
    ("marked_collatz", "count", Ok(Thread)),
    ("marked_template", "evolveIj", Ok(Warp)),
    ("marked_template", "evolveIm", Ok(Warp)),
    ("marked_streams", "hash", Ok(Warp)),
    ("marked_streams", "pass_on", Ok(Block)),
    ("marked_grid", "iterate", Err("a barrier of the whole grid")),
    ("marked_list", "work_on_lists", Ok(Warp)),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A guest's PTX.
fn compiled(guest: &Guest) -> String {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("guest.ptx");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    command.args(["nvcc", "-ptx", "-std=c++17", "-O2", "-lineinfo", "-arch=compute_90"]).args(&guest.flags);
    if std::env::var_os("DORMOUSE_NVCC").is_none() {
        command.env("DORMOUSE_NVCC", root().join(".prefix/cuda/bin/nvcc"));
    }
    let source = root().join("guests").join(guest.source());
    let output =
        command.arg("-I").arg(root().join("crates/mark/include")).arg(source).arg("-o").arg(&to).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}: {}", guest.name, String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(to).unwrap()
}

#[test]
fn which_can_stop_half_way() {
    let manifest = Manifest::read(&root().join("guests/guests.toml")).unwrap();
    let mut left = KERNELS.to_vec();
    for guest in manifest.set(Set::Marked) {
        let made = cpt::rewrite(&ptx::parse(&compiled(guest)).unwrap()).unwrap();
        let made = made.unwrap_or_else(|| panic!("{} has no marks", guest.name));
        let stop = made.kernels.iter().map(|(name, kernel)| (name, Ok(kernel.group)));
        let refused = made.refusals.iter().map(|refusal| (&refusal.kernel, Err(refusal.to_string())));
        for (name, found) in stop.chain(refused) {
            let is_it = |(of, kernel, _): &(&str, &str, _)| *of == guest.name && name.contains(kernel);
            let at =
                left.iter().position(is_it).unwrap_or_else(|| panic!("{}: {name}: {found:?}", guest.name));
            let (.., expected) = left.remove(at);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{}: {name}", guest.name),
                (Err(said), Err(why)) => assert!(said.contains(why), "{said}"),
                _ => panic!("{}: {name}: {found:?}, not {expected:?}", guest.name),
            }
        }
    }
    assert!(left.is_empty(), "not found: {left:?}");
}
