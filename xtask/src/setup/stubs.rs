//! What `-lcuda` and `-cudart shared` find: the toolkit has both libraries under plain names, the wheels have not.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use cuda_list::List;

use crate::process::{quiet, step};

/// Adds them to the CUDA compiler at `prefix`, where they are missing.
pub fn complete(prefix: &Path) -> anyhow::Result<()> {
    let lib = prefix.join("lib");
    let runtime = lib.join("libcudart.so");
    if !runtime.exists() {
        std::os::unix::fs::symlink(newest_runtime(&lib)?, &runtime)
            .with_context(|| format!("cannot link {}", runtime.display()))?;
    }
    let source = source(&cuda_list::list()?);
    let folder = lib.join("stubs");
    let (library, text) = (folder.join("libcuda.so"), folder.join("libcuda.c"));
    if library.exists() && std::fs::read_to_string(&text).is_ok_and(|made_from| made_from == source) {
        return Ok(());
    }
    step("making a libcuda.so to link against");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(&text, &source).with_context(|| format!("cannot write {}", text.display()))?;
    quiet(Command::new("gcc").args(["-shared", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&library).arg(&text))
        .map(drop)
}

/// The runtime's file, such as `libcudart.so.13`.
fn newest_runtime(lib: &Path) -> anyhow::Result<String> {
    let names = std::fs::read_dir(lib).with_context(|| format!("cannot list {}", lib.display()))?;
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    match names.filter(|name| name.starts_with("libcudart.so.")).max() {
        Some(name) => Ok(name),
        None => bail!("{} has no libcudart.so.*", lib.display()),
    }
}

/// A library of which only the names count: at run time the loader finds the machine's libcuda.so.1, or Dormouse's.
fn source(list: &List) -> String {
    let mut text = String::from("/* Made from the list of driver functions: names to link against. */\n");
    for version in list.functions().flat_map(|(_, function)| &function.versions) {
        let per_thread = version.per_thread.iter().map(|variant| &variant.symbol);
        for symbol in std::iter::once(&version.symbol).chain(per_thread) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "void {symbol}(void) {{}}");
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn programs_link_against_every_function() {
        let prefix = tempfile::tempdir().unwrap();
        let lib = prefix.path().join("lib");
        std::fs::create_dir(&lib).unwrap();
        assert!(complete(prefix.path()).is_err(), "there is no runtime to be linked");
        std::fs::write(lib.join("libcudart.so.13"), "").unwrap();
        for _ in 0..2 {
            complete(prefix.path()).unwrap();
        }
        assert_eq!(std::fs::read_link(lib.join("libcudart.so")).unwrap().to_str(), Some("libcudart.so.13"));
        let program = prefix.path().join("program");
        let text = "int cuInit(unsigned); int cuLaunchKernel_ptsz(); int cuMemAlloc_v2();\n\
                    int main(void) { return cuInit(0) + cuLaunchKernel_ptsz() + cuMemAlloc_v2(); }\n";
        std::fs::write(prefix.path().join("program.c"), text).unwrap();
        let mut link = Command::new("gcc");
        link.arg("-o").arg(&program).arg(prefix.path().join("program.c"));
        quiet(link.arg("-L").arg(lib.join("stubs")).arg("-lcuda")).unwrap();
        let needed = quiet(Command::new("objdump").arg("-p").arg(&program)).unwrap().stdout;
        assert!(String::from_utf8(needed).unwrap().contains("libcuda.so.1"));
    }
}
