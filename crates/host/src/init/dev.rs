//! A copy of the machine's `/dev` without what shall not be seen.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

/// Copies the nodes, links and folders of `/dev` to `target`; what is there already stays. Other file systems mounted in `/dev`
/// (shm, pts, mqueue, hugepages) are left out; empty `shm` and `pts` are made.
pub(crate) fn populate(target: &Path, hide: &[PathBuf]) -> io::Result<()> {
    let device = fs::metadata("/dev")?.dev();
    copy_folder(Path::new("/dev"), target, device, hide)?;
    for (name, mode) in [("shm", 0o1777), ("pts", 0o755)] {
        let folder = target.join(name);
        match fs::create_dir(&folder) {
            Ok(()) => fs::set_permissions(folder, fs::Permissions::from_mode(mode))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    let ptmx = target.join("ptmx");
    match fs::remove_file(&ptmx) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    std::os::unix::fs::symlink("pts/ptmx", ptmx)
}

fn copy_folder(from: &Path, to: &Path, device: u64, hide: &[PathBuf]) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(to) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if hide.contains(&from) {
            continue;
        }
        // A node may vanish while we look: hot-plugging.
        let Ok(meta) = fs::symlink_metadata(&from) else { continue };
        let kind = meta.file_type();
        let made = if kind.is_dir() {
            if meta.dev() == device { copy_folder(&from, &to, device, hide) } else { Ok(()) }
        } else if kind.is_symlink() {
            fs::read_link(&from).and_then(|link| std::os::unix::fs::symlink(link, &to))
        } else if kind.is_char_device() {
            copy_node(&to, FileType::CharacterDevice, &meta)
        } else if kind.is_block_device() {
            copy_node(&to, FileType::BlockDevice, &meta)
        } else {
            Ok(())
        };
        match made {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn copy_node(to: &Path, kind: FileType, meta: &fs::Metadata) -> io::Result<()> {
    rustix::fs::mknodat(CWD, to, kind, Mode::from_raw_mode(meta.mode() & 0o7777), meta.rdev())?;
    std::os::unix::fs::chown(to, Some(meta.uid()), Some(meta.gid()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777))
}
