//! Files in memory that have no names, and of whose contents CRIU has not heard ([`super::withheld`]): where those belong in its images. CRIU has
//! two kinds of them: page maps, for what the kernel keeps apart (shared anonymous memory and memory files), and files for those that had names on a
//! tmpfs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;

use crate::criu::ghost::{self, Ghost};
use crate::criu::memfd;
use crate::criu::pagemap::{PAGE, Pagemap};

/// What a file of CRIU's images lacks.
#[derive(Debug)]
pub(super) struct Lacking {
    /// Which file.
    pub(super) name: String,
    /// How many bytes it has.
    pub(super) written: u64,
    /// What belongs behind them: bytes that are known, and then a part of the file in memory.
    pub(super) parts: Vec<(Vec<u8>, Range<u64>)>,
    /// That file, as long as CRIU keeps it.
    pub(super) file: Arc<Path>,
}

/// What the `images` lack of these files, which nobody changes. Page maps are completed.
pub(super) fn lacking(images: &Path, files: Vec<PathBuf>) -> io::Result<Vec<Lacking>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let written = Written::read(images)?;
    let mut all = BTreeMap::new();
    for path in files {
        // One at a time: there may be more than one may have open.
        let file = File::open(&path)?;
        let meta = file.metadata()?;
        let key = (meta.dev(), meta.ino());
        // Its page map is complete, if CRIU has asked more than once.
        if all.contains_key(&key) {
            continue;
        }
        let is_apart = meta.dev() == written.kernels;
        let lacking =
            if is_apart { written.in_pages(&file, meta.ino()) } else { written.in_file(&file, &meta) };
        let (name, written, parts) = lacking?;
        all.insert(key, Lacking { name, written, parts, file: path.into() });
    }
    Ok(all.into_values().collect())
}

/// The name of a file, how long it is, and what it lacks.
type Found = (String, u64, Vec<(Vec<u8>, Range<u64>)>);

/// What CRIU has written of files in memory.
struct Written<'a> {
    images: &'a Path,
    /// The file system that the kernel has for those that it keeps apart.
    kernels: u64,
    /// How long those are.
    sizes: BTreeMap<u64, u64>,
    /// Others, by file system and number: how long they are, the image's name, and how much is in it.
    ghosts: BTreeMap<(u32, u64), (u64, String, u64)>,
}

impl<'a> Written<'a> {
    fn read(images: &'a Path) -> io::Result<Self> {
        let kernels = File::from(memfd_create("", MemfdFlags::CLOEXEC)?).metadata()?.dev();
        let path = images.join("memfd.img");
        let sizes = match fs::read(&path) {
            Ok(image) => memfd::sizes(&image).ok_or_else(|| unlike(&path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let mut ghosts = BTreeMap::new();
        for entry in fs::read_dir(images)? {
            let entry = entry?;
            let name =
                entry.file_name().to_str().filter(|name| name.starts_with("ghost-file-")).map(str::to_owned);
            let Some(name) = name else { continue };
            let bytes = entry.metadata()?.len();
            // One that is longer has contents.
            if bytes <= PAGE
                && let Some(Ghost { device, inode, size }) = Ghost::of(&fs::read(entry.path())?)
            {
                ghosts.insert((device, inode), (size, name, bytes));
            }
        }
        Ok(Self { images, kernels, sizes, ghosts })
    }

    /// What the kernel keeps apart, by whose number CRIU names its page map.
    fn in_pages(&self, file: &File, inode: u64) -> io::Result<Found> {
        let path = self.images.join(format!("pagemap-shmem-{inode}.img"));
        let size = self.sizes.get(&inode).ok_or_else(|| unlike(&path))?;
        let whole = |run: Range<u64>| run.start / PAGE * PAGE..run.end.next_multiple_of(PAGE);
        let runs: Vec<_> = data(file, *size)?.into_iter().map(whole).collect();
        let image = fs::read(&path)?;
        let pagemap = Pagemap::of(&image).filter(|pagemap| pagemap.runs().next().is_none());
        let pagemap =
            pagemap.and_then(|pagemap| pagemap.with_left_out(&runs)).ok_or_else(|| unlike(&path))?;
        let name = pagemap.pages_file();
        fs::write(path, pagemap.completed())?;
        Ok((name, 0, runs.into_iter().map(|run| (Vec::new(), run)).collect()))
    }

    /// What had a name once.
    fn in_file(&self, file: &File, meta: &fs::Metadata) -> io::Result<Found> {
        let key = (ghost::device(meta.dev()), meta.ino());
        let (size, name, written) = self.ghosts.get(&key).ok_or_else(|| {
            let why = format!("CRIU has written no image of file {} of device {:#x}", meta.ino(), meta.dev());
            io::Error::new(io::ErrorKind::NotFound, why)
        })?;
        let parts = data(file, *size)?.into_iter().map(|run| (ghost::before(&run), run)).collect();
        Ok((name.clone(), *written, parts))
    }
}

/// Where a file has contents, up to there.
fn data(file: &File, end: u64) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = seek(file, SeekFrom::Hole(start))?;
        runs.extend(Some(start..at.min(end)).filter(|run| !run.is_empty()));
    }
    Ok(runs)
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
        assert_eq!(data(&file, u64::MAX).unwrap(), []);
        file.write_all_at(&[1; 5000], 2 * PAGE).unwrap();
        file.write_all_at(&[1], 9 * PAGE).unwrap();
        file.set_len(20 * PAGE).unwrap();
        assert_eq!(data(&file, 20 * PAGE).unwrap(), [2 * PAGE..4 * PAGE, 9 * PAGE..10 * PAGE]);
        // It has become longer since CRIU has looked.
        for (end, last) in [(3 * PAGE + 5, 3 * PAGE + 5), (9 * PAGE, 4 * PAGE)] {
            let runs = data(&file, end).unwrap();
            assert_eq!((runs.len(), &runs[0]), (1, &(2 * PAGE..last)));
        }
    }
}
