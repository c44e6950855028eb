//! Which C library a binary needs.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::process::quiet;

/// Where the bundle has programs and libraries of ours.
const FOLDERS: [&str; 7] = ["bin", "checks", "lib", "lib/criu", "python/dormouse", "guests", "bench"];

/// The programs and libraries of ours in the bundle.
pub fn binaries(bundle: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let folder = bundle.join(folder);
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_file() && is_elf(&path)? {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Fails when one of our programs, libraries or guests needs a symbol newer than `limit`, and names it.
pub fn check(bundle: &Path, limit: &str) -> anyhow::Result<()> {
    let limit = version(limit).context("the limit is a version")?;
    for file in binaries(bundle)? {
        let output = quiet(Command::new("objdump").arg("--dynamic-syms").arg(&file))?;
        let table = String::from_utf8_lossy(&output.stdout);
        if let Some(line) = newer_than(&table, &limit) {
            bail!("{} needs a newer C library than it may: {line}", file.display());
        }
    }
    Ok(())
}

fn is_elf(file: &Path) -> anyhow::Result<bool> {
    let mut magic = Vec::new();
    let open = File::open(file).and_then(|file| file.take(4).read_to_end(&mut magic));
    open.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(magic == b"\x7fELF")
}

/// The first line of objdump's symbol table that asks for a newer version of glibc.
fn newer_than<'t>(table: &'t str, limit: &[u32]) -> Option<&'t str> {
    table.lines().find(|line| {
        let asked = line.split(['(', ')', ' ', '\t']).find_map(|word| word.strip_prefix("GLIBC_"));
        asked.is_some_and(|asked| version(asked).is_none_or(|asked| &asked[..] > limit))
    })
}

/// `2.28` as numbers; nothing for what is no version, such as `PRIVATE`.
fn version(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
0000000000000000      DF *UND*	0000000000000000 (GLIBC_2.2.5) free
0000000000000000      DF *UND*	0000000000000000 (GLIBC_2.28) fcntl64
0000000000001000 g    DF .text	0000000000000010  Base        cuInit
";

    #[test]
    fn what_is_old_enough_passes() {
        assert_eq!(newer_than(TABLE, &[2, 28]), None);
    }

    #[test]
    fn what_is_too_new_is_named() {
        let line = newer_than(TABLE, &[2, 17]);
        assert!(line.is_some_and(|line| line.contains("fcntl64")), "{line:?}");
        let newer = TABLE.replace("GLIBC_2.2.5", "GLIBC_2.34");
        assert!(newer_than(&newer, &[2, 28]).is_some_and(|line| line.contains("free")));
        let private = TABLE.replace("GLIBC_2.2.5", "GLIBC_PRIVATE");
        assert!(newer_than(&private, &[2, 28]).is_some());
    }
}
