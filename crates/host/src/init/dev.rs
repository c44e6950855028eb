//! A copy of the machine's `/dev` without what shall not be seen.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

/// Copies the nodes, links and folders of `/dev` to `target`; what is there already stays. Other file systems mounted in `/dev`
/// (shm, pts, mqueue, hugepages) are left out; empty `shm` and `pts` are made. Nodes to `hide` are left out, those to be `blank`
/// are made whether the machine has them or not.
pub(crate) fn populate<'a>(
    target: &Path,
    hide: &[PathBuf],
    blank: impl IntoIterator<Item = &'a PathBuf>,
) -> io::Result<()> {
    make_folder(target)?;
    blank.into_iter().try_for_each(|node| make_blank(target, node))?;
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

/// The blank nodes of the `/dev` in `folder`, as the job sees them.
pub(crate) fn blanks(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let null = fs::metadata("/dev/null")?.rdev();
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        let name = entry.file_name();
        if meta.file_type().is_char_device() && meta.rdev() == null && name != "null" {
            found.push(Path::new("/dev").join(name));
        }
    }
    Ok(found)
}

/// A node that can be opened, and carried by CRIU, with nothing behind it. All are alike, since CRIU compares their modes.
fn make_blank(target: &Path, node: &Path) -> io::Result<()> {
    // An image says which there were, and may say anything: a name right below `/dev` and nothing else.
    let (Some(Component::Normal(name)), None) = ({
        let mut below = node.strip_prefix("/dev").unwrap_or(Path::new("")).components();
        (below.next(), below.next())
    }) else {
        return Err(rustix::io::Errno::INVAL.into());
    };
    let null = fs::metadata("/dev/null")?.rdev();
    let node = target.join(name);
    match rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o666), null) {
        Ok(()) => fs::set_permissions(&node, fs::Permissions::from_mode(0o666)),
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

fn copy_folder(from: &Path, to: &Path, device: u64, hide: &[PathBuf]) -> io::Result<()> {
    make_folder(to)?;
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
