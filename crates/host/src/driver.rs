//! Where the machine's own GPU driver lies: what a job must not see, and what is put in its place.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders in which a driver library lies though `ldconfig` may not name it.
const FOLDERS: [&str; 9] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",
];

/// Every path at which the machine has a driver library called `name` or `name.VERSION` (`libcuda.so`).
#[must_use]
pub fn library_paths(name: &str) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if is_version_of(&entry.file_name().to_string_lossy(), name) && entry.path().is_file() {
                found.insert(entry.path());
            }
        }
    }
    found.extend(named_by_ldconfig(name));
    found.into_iter().collect()
}

/// `libcuda.so`, `libcuda.so.1` and `libcuda.so.580.1`, but not `libcudart.so`.
fn is_version_of(file: &str, name: &str) -> bool {
    file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn named_by_ldconfig(name: &str) -> Vec<PathBuf> {
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|p| Path::new(p).exists());
    let Ok(output) = Command::new(ldconfig.unwrap_or("ldconfig")).arg("-p").output() else {
        return Vec::new();
    };
    parse_ldconfig(&String::from_utf8_lossy(&output.stdout), name)
}

fn parse_ldconfig(text: &str, name: &str) -> Vec<PathBuf> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(" => "));
    lines
        .filter(|(entry, _)| is_version_of(entry.split(' ').next().unwrap_or(""), name))
        // A 32-bit library is of no use to us and must stay.
        .filter(|(entry, _)| entry.contains("x86-64"))
        .map(|(_, path)| PathBuf::from(path))
        .filter(|path| path.is_file())
        .collect()
}

/// What to mount so that every name of the machine's driver library leads to `shim` (a path as the job sees it). Empty where the
/// machine has no driver: then [`crate::JobSpec::library_dir`] is the way.
#[must_use]
pub fn binds(shim: &Path, library: &str) -> Vec<(PathBuf, PathBuf)> {
    library_paths(library).into_iter().map(|path| (shim.to_owned(), path)).collect()
}

/// `/dev/nvidia*`, to be hidden.
#[must_use]
pub fn device_nodes() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with("nvidia")).map(|e| e.path()).collect()
}

/// What is in a job's `/dev` in place of [`device_nodes`], so that programs which look for a GPU there find one: the machine's
/// nodes, and in any case the first GPU's and that of all.
#[must_use]
pub fn blank_nodes() -> Vec<PathBuf> {
    let is_node = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device());
    let usual = ["/dev/nvidiactl", "/dev/nvidia0"].map(PathBuf::from);
    let all: BTreeSet<PathBuf> = device_nodes().into_iter().filter(is_node).chain(usual).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_libraries_do_not_match() {
        assert!(is_version_of("libcuda.so", "libcuda.so"));
        assert!(is_version_of("libcuda.so.580.159.04", "libcuda.so"));
        assert!(!is_version_of("libcudart.so.13", "libcuda.so"));
        assert!(!is_version_of("libcuda.so_backup", "libcuda.so"));
    }

    #[test]
    fn only_64_bit_entries_of_ldconfig_count() {
        let file = std::env::current_exe().unwrap_or_default();
        let text = format!(
            "2 libs found in cache\n\tlibcuda.so.1 (libc6,x86-64) => {0}\n\tlibcuda.so.1 (libc6) => /usr/lib32/libcuda.so.1\n",
            file.display()
        );
        assert_eq!(parse_ldconfig(&text, "libcuda.so"), [file]);
    }
}
