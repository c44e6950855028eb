//! `dormouse.cuh` with plain nvcc: marks in device code, and nothing in host code.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"
#include <dormouse.cuh>
__host__ __device__ inline int twice(int x) {
    if (x > 3) DORMOUSE_CPT(); else x++;
    return 2 * x;
}
template <class T> __global__ void count(T *to, int n) {
    T sum = 0;
    for (int i = 0; i < n; i++) {
        sum = sum * 3 + twice(i);
        DORMOUSE_CPT();
    }
    *to = sum;
}
int host(int x) { DORMOUSE_CPT(); return twice(x); }
template __global__ void count(unsigned *, int);
"#;

fn nvcc() -> PathBuf {
    let named = std::env::var_os("DORMOUSE_NVCC").map(PathBuf::from);
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.prefix/cuda/bin/nvcc");
    let nvcc = named.unwrap_or(installed);
    assert!(nvcc.is_file(), "no nvcc at {}: `cargo xtask setup` installs it", nvcc.display());
    nvcc
}

/// Runs a compiler on the source, quietly; what it makes.
fn compiled(compiler: &Path, flags: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("source.cu"), folder.path().join("out"));
    std::fs::write(&from, SOURCE).unwrap();
    let mut command = Command::new(compiler);
    command.args(flags).arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    let output = command.arg(&from).arg("-o").arg(&to).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{flags:?}: {said}");
    std::fs::read(to).unwrap()
}

#[test]
fn nvcc_keeps_it_in_ptx() {
    for standard in ["-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"] {
        let ptx = compiled(&nvcc(), &["-ptx", "-O3", standard]);
        let ptx = String::from_utf8(ptx).unwrap();
        assert!(ptx.matches(".pragma \"cpt\";").count() >= 2, "{standard}: {ptx}");
    }
}

#[test]
fn it_is_in_the_fatbin_of_whoever_keeps_ptx() {
    // Warned of are markers that ptxas does not know, which -w keeps to itself.
    let bytes = compiled(&nvcc(), &["-fatbin", "-O3", "-arch=sm_90", "-Xptxas", "-w"]);
    let fatbinary = fatbin::Fatbinary::parse(&bytes).unwrap();
    let ptx = fatbinary.ptx_for(90).unwrap().code().unwrap().into_owned();
    assert!(String::from_utf8(ptx).unwrap().contains(".pragma \"cpt\";"));
}

#[test]
fn it_is_nothing_in_host_code() {
    let quiet = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", "c++", "-c"];
    let defines = ["-D__host__=", "-D__device__=", "-D__global__="];
    for standard in ["-std=c++11", "-std=c++20"] {
        let object = compiled(Path::new("g++"), &[&quiet[..], &defines, &[standard]].concat());
        assert!(!object.windows(3).any(|bytes| bytes == b"cpt"), "{standard}");
    }
}
