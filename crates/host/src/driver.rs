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

/// Libraries of the driver's that ask the kernel for video engines and the like past `libcuda.so.1`, and which in a job, where the
/// driver's nodes are blank, wait for ever or crash. Programs do without them where they cannot be loaded.
const PAST_CUDA: [&str; 3] = ["libnvcuvid.so", "libnvidia-encode.so", "libnvidia-opticalflow.so"];

/// Every path at which the machine has a driver library called `name` or `name.VERSION` (`libcuda.so`).
#[must_use]
pub fn library_paths(name: &str) -> Vec<PathBuf> {
    let mut found = in_folders(FOLDERS.map(Path::new), name);
    found.extend(named_by_ldconfig(name));
    found.into_iter().collect()
}

fn in_folders<'a>(folders: impl IntoIterator<Item = &'a Path>, name: &str) -> BTreeSet<PathBuf> {
    let entries = folders.into_iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let named = entries.filter(|entry| is_version_of(&entry.file_name().to_string_lossy(), name));
    named.map(|entry| entry.path()).filter(|path| path.is_file()).collect()
}

/// Every path of the machine's libraries that do not work in a job, to be hidden.
#[must_use]
pub fn libraries_past_cuda() -> Vec<PathBuf> {
    PAST_CUDA.iter().flat_map(|name| library_paths(name)).collect()
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
    fn every_name_of_a_library_is_found() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        for name in ["libnvcuvid.so.580.1", "libnvcuvid.so.1", "libnvcuvidiac.so.1", "libcuda.so.1"] {
            fs::write(folder.path().join(name), "")?;
        }
        std::os::unix::fs::symlink("libnvcuvid.so.1", folder.path().join("libnvcuvid.so"))?;
        std::os::unix::fs::symlink("gone", folder.path().join("libnvcuvid.so.2"))?;
        let found = in_folders([folder.path(), Path::new("/nowhere")], PAST_CUDA[0]);
        let names = ["libnvcuvid.so", "libnvcuvid.so.1", "libnvcuvid.so.580.1"];
        assert_eq!(found, names.map(|name| folder.path().join(name)).into());
        Ok(())
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
