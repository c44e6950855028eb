//! `dormouse nvcc` with a real nvcc: marks are in the PTX that it makes, whatever is made, and all else is as nvcc does it.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

const MARK: &str = ".pragma \"cpt\";";

/// A header with a marked template; nothing but the preprocessor sees it.
const HEADER: &str = r##"
#pragma once
#define MARKED _Pragma("CPT")
template <class T> __global__ void from_header(T *to, int n) {
    T sum = to[threadIdx.x];
    for (int i = 0; i < n; i++) {
        sum = sum * 3 + i;
#pragma CPT
    }
    to[threadIdx.x] = sum;
}
"##;

const SOURCE: &str = r##"
#include "marked.cuh"
#include <cstdio>
__global__ void plain(int *to, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum = sum * sum + i;
        # pragma CPT
    }
    *to = sum;
}
__host__ __device__ int on_both_sides(int n) {
    int sum = n;
    while (n--) {
        sum ^= sum * n;
        MARKED
    }
    return sum;
}
__global__ void by_macro(int *to, int n) { *to = on_both_sides(n); }
const char *text = R"(
#pragma CPT
)";
int main(int argc, char **) {
    if (argc > 99) {
        plain<<<1, 1>>>(nullptr, 1);
        by_macro<<<1, 1>>>(nullptr, 1);
        from_header<unsigned><<<1, 1>>>(nullptr, 1);
    }
    printf("%d%s", on_both_sides(7), text);
}
"##;

/// The kernels in it.
const KERNELS: [&str; 3] = ["plain", "by_macro", "from_header"];

fn nvcc() -> PathBuf {
    let named = std::env::var_os("DORMOUSE_NVCC").map(PathBuf::from);
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.prefix/cuda/bin/nvcc");
    let nvcc = named.unwrap_or(installed);
    assert!(nvcc.is_file(), "no nvcc at {}: `cargo xtask setup` installs it", nvcc.display());
    nvcc.canonicalize().unwrap()
}

/// A folder with a program's source, and one in which compilers put what they need for a moment.
struct Place {
    folder: TempDir,
    temporary: TempDir,
}

impl Place {
    fn with(source: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), temporary: tempfile::tempdir().unwrap() };
        fs::write(place.path("source.cu"), source).unwrap();
        fs::write(place.path("marked.cuh"), HEADER).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a compiler in the folder.
    fn run(&self, program: impl AsRef<OsStr>, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path()).env("TMPDIR", self.temporary.path());
        let output = command.env("DORMOUSE_NVCC", nvcc()).env_remove("DORMOUSE_LOG").output().unwrap();
        assert_eq!(fs::read_dir(self.temporary.path()).unwrap().count(), 0, "something is left");
        output
    }

    fn dormouse(&self, args: &[&str]) -> Output {
        self.run(env!("CARGO_BIN_EXE_dormouse"), &[&["nvcc"], args].concat())
    }

    /// What is made of the source without a word about it.
    fn quietly(&self, args: &[&str]) -> Vec<u8> {
        let output = self.dormouse(&[args, &["source.cu", "-o", "out"]].concat());
        assert!(output.status.success() && said(&output).is_empty(), "{args:?}: {}", said(&output));
        fs::read(self.path("out")).unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// All PTX in fatbinaries that lie somewhere in a file.
fn ptx_in(file: &[u8]) -> Vec<String> {
    const MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
    let places = file.windows(4).enumerate().filter(|(_, word)| **word == MAGIC);
    let found = places.filter_map(|(at, _)| fatbin::Fatbinary::parse(&file[at..]).ok());
    let is_ptx = |entry: &&fatbin::Entry<'_>| entry.kind == fatbin::EntryKind::Ptx;
    let texts = |binary: fatbin::Fatbinary<'_>| -> Vec<String> {
        let entries = binary.entries().iter().filter(is_ptx);
        entries.map(|entry| String::from_utf8(entry.code().unwrap().into_owned()).unwrap()).collect()
    };
    found.flat_map(texts).collect()
}

/// Whether each kernel has a mark.
fn assert_marked(ptx: &str, how: &[&str]) {
    for kernel in KERNELS {
        let is_it = |body: &&str| body.split('(').next().is_some_and(|name| name.contains(kernel));
        let body = ptx.split(".entry ").skip(1).find(is_it);
        let body = body.unwrap_or_else(|| panic!("{how:?}: no {kernel} in {ptx}"));
        assert!(body.contains(MARK), "{how:?}: {kernel} has no mark");
    }
}

#[test]
fn marks_are_in_ptx() {
    let place = Place::with(SOURCE);
    for flags in [&["-ptx"][..], &["-ptx", "-O3", "-rdc=true", "-arch=compute_90"], &["-x", "cu", "-ptx"]] {
        assert_marked(&String::from_utf8(place.quietly(flags)).unwrap(), flags);
    }
}

#[test]
fn marks_are_in_whatever_is_linked_and_nobody_warns_of_them() {
    let place = Place::with(SOURCE);
    let strict = ["-O3", "-Xcompiler", "-Wall,-Wextra,-Werror", "-Werror", "all-warnings"];
    let one = "arch=compute_90,code=sm_90";
    for flags in [
        &["-arch=sm_90"][..],
        &["-c", "-gencode", one],
        &["-c", "-arch=compute_90", "-code=sm_90"],
        &["-c", "--generate-code=arch=compute_90,code=[sm_90]"],
        &["-c", "-t", "2", "-gencode", one, "-gencode", "arch=compute_80,code=sm_80"],
        &["-fatbin", "-gencode", one, "-lineinfo"],
    ] {
        let texts = ptx_in(&place.quietly(&[&strict[..], flags].concat()));
        let (machines, kept) = (flags.iter().filter(|flag| flag.contains("code=sm")).count(), texts.len());
        assert!(kept >= machines.max(1), "{flags:?}: PTX of {kept} architectures");
        texts.iter().for_each(|ptx| assert_marked(ptx, flags));
    }
}

#[test]
fn the_program_is_as_without_dormouse() {
    let place = Place::with(SOURCE);
    place.quietly(&["-arch=sm_90"]);
    let marked = Command::new(place.path("out")).output().unwrap();
    assert!(place.run(nvcc(), &["-arch=sm_90", "source.cu", "-o", "native"]).status.success());
    let native = Command::new(place.path("native")).output().unwrap();
    assert_eq!((marked.status, said(&marked)), (native.status, said(&native)));
    assert!(said(&marked).ends_with("\n#pragma CPT\n"), "a string is no source");
}

#[test]
fn several_files_are_compiled_at_once() {
    let place = Place::with(SOURCE);
    fs::copy(place.path("source.cu"), place.path("other.cu")).unwrap();
    let output = place.dormouse(&["-c", "-gencode", "arch=compute_90,code=sm_90", "source.cu", "other.cu"]);
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    for object in ["source.o", "other.o"] {
        let texts = ptx_in(&fs::read(place.path(object)).unwrap());
        assert_eq!(texts.len(), 1, "{object}");
        assert_marked(&texts[0], &[object]);
    }
}

#[test]
fn what_is_linked_later_has_marks() {
    let place = Place::with(SOURCE);
    let alone = "arch=compute_90,code=sm_90";
    for flags in [&["-dc", "-arch=sm_90"][..], &["-c", "-rdc=true"], &["-dc", "-gencode", alone]] {
        let texts = ptx_in(&place.quietly(flags));
        assert_eq!(texts.len(), 1, "{flags:?}");
        assert_marked(&texts[0], flags);
    }
    // And so has the program, beside the machine code that was linked.
    let texts = ptx_in(&place.quietly(&["-rdc=true", "-gencode", alone]));
    assert_eq!(texts.len(), 1);
    assert_marked(&texts[0], &["-rdc=true"]);
}

#[test]
fn machine_code_alone_is_told_of_if_anything_is_marked() {
    let place = Place::with(SOURCE);
    let output = place.dormouse(&["-cubin", "-arch=sm_90", "source.cu"]);
    assert!(output.status.success());
    let text = said(&output);
    assert!(text.contains("dormouse: warning: source.cu: its marked kernels will not stop half-way: what is made of them has no PTX"), "{text}");
    assert!(text.contains("-gencode arch=compute_90,code=compute_90"), "{text}");
    let by_header = "__global__ void k() { asm volatile(\".pragma \\\"cpt\\\";\" ::: \"memory\"); }";
    let text = said(&Place::with(by_header).dormouse(&["-cubin", "source.cu"]));
    assert!(text.contains("source.cu: its marked kernels"), "{text}");
    assert_eq!(said(&Place::with("__global__ void k() {}").dormouse(&["-cubin", "source.cu"])), "");
}

#[test]
fn ptxas_makes_the_same_machine_code_of_it() {
    let place = Place::with(SOURCE);
    let with = place.dormouse(&["-cubin", "-arch=sm_90", "source.cu", "-o", "with.cubin"]);
    assert!(with.status.success() && !said(&with).contains("unsupported"), "{}", said(&with));
    place.dormouse(&["-ptx", "-arch=sm_90", "source.cu"]);
    let without = place
        .run(nvcc().with_file_name("ptxas"), &["-m64", "-arch=sm_90", "source.ptx", "-o", "without.cubin"]);
    assert!(said(&without).contains("Pragma 'cpt' unsupported"), "{}", said(&without));
    assert!(fs::read(place.path("with.cubin")).unwrap() == fs::read(place.path("without.cubin")).unwrap());
}

#[test]
fn the_host_compiler_is_the_users() {
    let place = Place::with(SOURCE);
    let script = place.path("my-g++");
    fs::write(&script, "#!/bin/sh\necho \"$@\" >> \"$(dirname \"$0\")/log\"\nexec g++ \"$@\"\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for flags in [["-ccbin", "./my-g++"], ["-ccbin=./my-g++", "-O2"]] {
        place.quietly(&flags);
        let log = fs::read_to_string(place.path("log")).unwrap();
        fs::remove_file(place.path("log")).unwrap();
        assert!(log.contains("-D__CUDA_ARCH__=") && log.contains("-o out"), "{log}");
    }
}

#[test]
fn what_fails_fails_as_with_nvcc() {
    let place = Place::with("__global__ void k() { undeclared(); }\n");
    for args in [&["-c", "source.cu"][..], &["-c", "absent.cu"], &["--no-such-option"], &[], &["-cubin"]] {
        let (dormouse, native) = (place.dormouse(args), place.run(nvcc(), args));
        assert_eq!((dormouse.status, said(&dormouse)), (native.status, said(&native)), "{args:?}");
        assert!(!dormouse.status.success());
    }
}

#[test]
fn a_mark_that_would_change_the_program_is_refused() {
    let place = Place::with(
        "__global__ void k(int n) {\n    for (int i = 0; i < n; i++)\n#pragma CPT\n        n--;\n}\n",
    );
    let output = place.dormouse(&["-c", "source.cu"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("source.cu:3: #pragma CPT would be all that"), "{}", said(&output));
}

#[test]
fn nothing_is_left_of_what_is_interrupted() {
    let place = Place::with(SOURCE);
    let left = || fs::read_dir(place.temporary.path()).unwrap().count();
    // The first is there while nvcc is only asked; with the second and third nvcc itself would still leave them.
    for files in [1, 4, 5, 6, 7, 8] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(["nvcc", "-c", "-arch=all-major", "source.cu"]).current_dir(place.folder.path());
        command.env("TMPDIR", place.temporary.path()).env("DORMOUSE_NVCC", nvcc()).stderr(Stdio::null());
        let mut compiler = command.process_group(0).spawn().unwrap();
        let begun = Instant::now();
        while left() < files && compiler.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it makes no {files} files");
            std::thread::sleep(Duration::from_millis(1));
        }
        // As a terminal does: all of them at once.
        kill_process_group(Pid::from_child(&compiler), Signal::INT).unwrap();
        assert!(!compiler.wait().unwrap().success());
        let begun = Instant::now();
        while left() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{} files are left", left());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn it_is_a_compiler_by_its_name() {
    let place = Place::with(SOURCE);
    let compiler = place.path("dormouse-nvcc");
    symlink(env!("CARGO_BIN_EXE_dormouse"), &compiler).unwrap();
    for args in [&["--version"][..], &["--help"], &["-v", "__cmake_determine_cuda"]] {
        let (named, native) = (place.run(&compiler, args), place.run(nvcc(), args));
        assert_eq!((named.status, said(&named)), (native.status, said(&native)), "{args:?}");
    }
    assert!(place.run(&compiler, &["-ptx", "source.cu", "-o", "out"]).status.success());
    assert_marked(&fs::read_to_string(place.path("out")).unwrap(), &["by its name"]);
}

/// CMake takes it for nvcc: it finds out what that can do, compiles and links with it, and what is linked has the marks.
#[test]
fn cmake_builds_a_project_with_it() {
    let place = Place::with(SOURCE);
    let compiler = place.path("dormouse-nvcc");
    symlink(env!("CARGO_BIN_EXE_dormouse"), &compiler).unwrap();
    // Machine code alone is what CMake asks for, and a library of objects whose device code is linked later.
    let project = r#"
cmake_minimum_required(VERSION 3.18)
project(marked LANGUAGES CXX CUDA)
add_library(kernels STATIC library.cu)
add_executable(out source.cu)
target_link_libraries(out kernels)
set_target_properties(kernels out PROPERTIES CUDA_SEPARABLE_COMPILATION ON CUDA_ARCHITECTURES 90-real)
"#;
    fs::write(place.path("CMakeLists.txt"), project).unwrap();
    let library =
        "#include \"marked.cuh\"\nvoid in_library() { from_header<short><<<1, 1>>>(nullptr, 1); }\n";
    fs::write(place.path("library.cu"), library).unwrap();
    let source = SOURCE.replace("plain<<<", "in_library();\n        plain<<<");
    fs::write(place.path("source.cu"), format!("void in_library();\n{source}")).unwrap();
    let run = |args: &[&str]| {
        let output = place.run("cmake", args);
        assert!(output.status.success(), "cmake {args:?}: {}", said(&output));
        said(&output)
    };
    let configured =
        run(&["-S", ".", "-B", "build", &format!("-DCMAKE_CUDA_COMPILER={}", compiler.display())]);
    assert!(configured.contains("The CUDA compiler identification is NVIDIA"), "{configured}");
    let built = run(&["--build", "build", "--verbose"]);
    let warnings = ["warning:", "warning #", "Warning"].iter().any(|word| built.contains(word));
    assert!(!warnings && built.contains("-dlink"), "{built}");
    let texts = ptx_in(&fs::read(place.path("build/out")).unwrap());
    assert_eq!(texts.len(), 2, "one of each source");
    assert!(texts.iter().all(|ptx| ptx.contains(MARK)));
    let printed = place.run(place.path("build/out"), &[]);
    assert!(printed.status.success() && said(&printed).contains("#pragma CPT"), "{}", said(&printed));
}

#[test]
fn without_a_compiler_it_says_where_it_looked() {
    let run = |named: Option<&Path>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(["nvcc", "--version"]).env_clear().env("PATH", "/nowhere");
        command.envs(named.map(|path| ("DORMOUSE_NVCC", path)));
        let output = command.output().unwrap();
        (output.status.code(), said(&output))
    };
    if !Path::new("/usr/local/cuda/bin/nvcc").exists() {
        let (code, text) = run(None);
        assert!(code == Some(127) && text.contains("nvcc is not found"), "{text}");
    }
    let (code, text) = run(Some(Path::new("/nowhere/nvcc")));
    assert!(code == Some(127) && text.contains("/nowhere/nvcc, which is no file"), "{text}");
    let (code, text) = run(Some(Path::new(env!("CARGO_BIN_EXE_dormouse"))));
    assert!(code == Some(127) && text.contains("Dormouse itself"), "{text}");
}
