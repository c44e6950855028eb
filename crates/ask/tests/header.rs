//! The C header is what the library has: it compiles as C and as C++, its constants and types are the library's, and every function is there.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = include_str!("../include/dormouse.h");
const LIBRARY: &str = include_str!("../src/ffi.rs");

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn compiled(compiler: &str, flags: &[&str], source: &str, name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (dir.join(name), dir.join(format!("{name}.out")));
    std::fs::write(&from, source).unwrap();
    let mut command = Command::new(compiler);
    command.args(flags).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(include());
    let output = command.arg(&from).arg("-o").arg(&to).output().unwrap();
    assert!(output.status.success(), "{compiler} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    to
}

#[test]
fn it_compiles_as_c_and_as_cpp() {
    let source = "#include <dormouse.h>\nint main(void) { dormouse_outcome o = DORMOUSE_OUTCOME_INIT; return (int)(o.size - sizeof o); }\n";
    for (number, standard) in ["-std=c99", "-std=c17"].iter().enumerate() {
        let program = compiled("gcc", &[standard], source, &format!("header{number}.c"));
        assert!(Command::new(program).status().unwrap().success());
    }
    for (number, standard) in ["-std=c++11", "-std=c++20"].iter().enumerate() {
        compiled("g++", &[standard], source, &format!("header{number}.cpp"));
    }
}

#[test]
fn its_constants_and_types_are_the_librarys() {
    let source = r#"
#include <dormouse.h>
#include <stdio.h>
int main(void) {
    printf("%d %d %d %d %d %d\n", DORMOUSE_API_VERSION, DORMOUSE_OK, DORMOUSE_RESTARTED, DORMOUSE_TAKEN, DORMOUSE_USAGE, DORMOUSE_NOT_HERE);
    printf("%d %d\n", DORMOUSE_NO_WAIT, DORMOUSE_STOP);
    printf("%d %d %d\n", DORMOUSE_BEFORE, DORMOUSE_AFTER, DORMOUSE_AFTER_RESTART);
    printf("%zu %zu %zu %zu %zu\n", sizeof(dormouse_outcome), offsetof(dormouse_outcome, code), offsetof(dormouse_outcome, ticket),
           offsetof(dormouse_outcome, image), offsetof(dormouse_outcome, text));
    return 0;
}
"#;
    let output = Command::new(compiled("gcc", &["-std=c17"], source, "constants.c")).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.lines().collect::<Vec<_>>(), dormouse_ask::layout().lines().collect::<Vec<_>>());
}

#[test]
fn every_function_is_on_both_sides() {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let exported: Vec<&str> = LIBRARY
        .split("extern \"C\" fn ")
        .skip(1)
        .filter_map(|rest| rest.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty() && name.chars().all(plain) && *name != "never")
        .collect();
    let declared: Vec<&str> = HEADER
        .lines()
        .filter(|line| line.starts_with("int ") || line.starts_with("unsigned "))
        .filter_map(|line| line.split_once('(')?.0.split_once(' '))
        .map(|(_, name)| name)
        .collect();
    assert_eq!(exported.len(), 13, "{exported:?}");
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(exported), sorted(declared));
}
