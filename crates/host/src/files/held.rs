//! What a process holds of the file system.

use std::fs;
use std::path::PathBuf;

use super::maps;
use crate::tasks::OuterPid;

/// The path of everything that a stopped process has open or mapped, of its program, its root and its working folder.
pub(crate) fn held_by(task: OuterPid) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(format!("/proc/{task}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|link| fs::read_link(link.path()).ok())
        .collect();
    paths.extend(
        ["cwd", "root", "exe"].iter().filter_map(|what| fs::read_link(format!("/proc/{task}/{what}")).ok()),
    );
    let mut mapped: Vec<PathBuf> = maps::of(task).into_iter().map(|mapping| mapping.path).collect();
    mapped.dedup();
    paths.extend(mapped);
    paths.retain(|path| path.is_absolute());
    paths
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn this_process_holds_its_program_its_folder_and_what_it_has_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = held_by(OuterPid(std::process::id() as i32));
        for path in
            [std::env::current_exe().unwrap(), std::env::current_dir().unwrap(), file.path().to_owned()]
        {
            assert!(held.contains(&path), "{} is not in {held:?}", path.display());
        }
    }
}
