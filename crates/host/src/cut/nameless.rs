//! Files in memory that have no names, and of whose contents CRIU has not heard ([`super::withheld`]): where those belong in its images. CRIU has
//! two kinds of them: page maps, for what the kernel keeps apart (shared anonymous memory and memory files), and files for those that had
//! names on a tmpfs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;

use crate::criu::ghost;
use crate::criu::pagemap::{PAGE, Pagemap};
use crate::tasks::Task;

/// What a file of CRIU's images lacks.
#[derive(Debug)]
pub(super) struct Lacking {
    /// Which file.
    pub(super) name: String,
    /// How many bytes it has.
    pub(super) written: u64,
    /// What belongs behind them: bytes that are known, and then a part of the file.
    pub(super) parts: Vec<(Vec<u8>, Range<u64>)>,
    /// The file itself.
    pub(super) file: Arc<File>,
}

/// What the `images` of `tasks`, which stand still, lack of these files. Page maps are completed.
pub(super) fn lacking(images: &Path, tasks: &[Task], files: Vec<File>) -> io::Result<Vec<Lacking>> {
    let mut once = BTreeMap::new();
    for file in files {
        let meta = file.metadata()?;
        once.insert((meta.dev(), meta.ino()), file);
    }
    if once.is_empty() {
        return Ok(Vec::new());
    }
    let kernels = File::from(memfd_create("", MemfdFlags::CLOEXEC)?).metadata()?.dev();
    let all = once.into_iter().map(|(key, file)| {
        if key.0 == kernels { in_pages(images, tasks, key.1, file) } else { in_file(images, key, file) }
    });
    all.collect()
}

/// What the kernel keeps apart, by whose number CRIU names its page map.
fn in_pages(images: &Path, tasks: &[Task], inode: u64, file: File) -> io::Result<Lacking> {
    let path = images.join(format!("pagemap-shmem-{inode}.img"));
    let end = match is_anonymous(&file)? {
        // CRIU has it as long as it is mapped, and a restart goes no further than that.
        true => mapped(tasks, inode)?,
        false => u64::MAX,
    };
    let runs: Vec<_> = data(&file)?
        .into_iter()
        .map(|run| run.start / PAGE * PAGE..run.end.next_multiple_of(PAGE).min(end))
        .filter(|run| !run.is_empty())
        .collect();
    let image = fs::read(&path)?;
    let pagemap = Pagemap::of(&image).filter(|pagemap| pagemap.runs().next().is_none());
    let pagemap = pagemap.and_then(|pagemap| pagemap.with_left_out(&runs)).ok_or_else(|| unlike(&path))?;
    let name = pagemap.pages_file();
    fs::write(path, pagemap.completed())?;
    let parts = runs.into_iter().map(|run| (Vec::new(), run)).collect();
    Ok(Lacking { name, written: 0, parts, file: file.into() })
}

/// What had a name once.
fn in_file(images: &Path, key: (u64, u64), file: File) -> io::Result<Lacking> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        let Some(name) =
            entry.file_name().to_str().filter(|name| name.starts_with("ghost-file-")).map(str::to_owned)
        else {
            continue;
        };
        // One that has contents is another's.
        if entry.metadata()?.len() > PAGE {
            continue;
        }
        let image = fs::read(entry.path())?;
        if ghost::is_without_contents(&image, key) {
            let parts = data(&file)?.into_iter().map(|run| (ghost::before(&run), run)).collect();
            return Ok(Lacking { name, written: image.len() as u64, parts, file: file.into() });
        }
    }
    let why = format!("CRIU has written no image of file {} of device {:x}", key.1, key.0);
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

/// Whether it is memory that processes share because one is the other's child.
fn is_anonymous(file: &File) -> io::Result<bool> {
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(name == Path::new("/dev/zero (deleted)"))
}

/// The end of what processes have mapped of a file that the kernel keeps apart.
fn mapped(tasks: &[Task], inode: u64) -> io::Result<u64> {
    let mut end = 0;
    for task in tasks {
        // Whoever is over has none.
        let maps = fs::read_to_string(format!("/proc/{}/maps", task.outer)).unwrap_or_default();
        end = maps.lines().filter_map(|line| end_of(line, inode)).fold(end, u64::max);
    }
    if end == 0 {
        Err(io::Error::new(io::ErrorKind::NotFound, "nobody has mapped shared memory"))
    } else {
        Ok(end)
    }
}

/// Where a mapping of shared anonymous memory ends in that.
fn end_of(line: &str, inode: u64) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    let is_it = fields.nth(1)?.parse() == Ok(inode) && fields.next() == Some("/dev/zero");
    let number = |text| u64::from_str_radix(text, 16).ok();
    number(end)?.checked_sub(number(start)?)?.checked_add(number(offset)?).filter(|_| is_it)
}

/// Where a file has contents.
fn data(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(runs),
            Err(error) => return Err(error.into()),
        };
        at = seek(file, SeekFrom::Hole(start))?;
        runs.push(start..at);
    }
}

fn unlike(path: &Path) -> io::Error {
    let why = format!("{} is not what CRIU writes of memory of which it has not heard", path.display());
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn where_a_file_has_contents_is_found() {
        let file = File::from(memfd_create("", MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(data(&file).unwrap(), []);
        file.write_all_at(&[1; 5000], 2 * PAGE).unwrap();
        file.write_all_at(&[1], 9 * PAGE).unwrap();
        file.set_len(20 * PAGE).unwrap();
        assert_eq!(data(&file).unwrap(), [2 * PAGE..4 * PAGE, 9 * PAGE..10 * PAGE]);
        assert!(!is_anonymous(&file).unwrap());
    }

    #[test]
    fn mappings_of_shared_anonymous_memory_are_known() {
        let line =
            "7f0000001000-7f0000003000 rw-s 00005000 00:01 42                         /dev/zero (deleted)";
        assert_eq!(end_of(line, 42), Some(0x7000));
        assert_eq!(end_of(line, 43), None);
        assert_eq!(end_of(&line.replace("/dev/zero", "/memfd:zero"), 42), None);
        assert_eq!(end_of("7f0000001000-7f0000003000 rw-p 00000000 00:00 0", 0), None);
    }
}
