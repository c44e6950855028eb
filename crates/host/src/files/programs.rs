//! Executables and libraries, and every other file the job has mapped: a restart needs them unchanged.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::maps::{self, Mapped};
use crate::tasks::OuterPid;
use crate::tmpfs::JOB_DIR;

/// A file that was mapped at the cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFile {
    /// Where it lies.
    #[serde(with = "crate::raw")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// What tells it from another of the same length.
    pub identity: Identity,
}

/// What a file is recognised by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// The linker's build id.
    BuildId(Vec<u8>),
    /// BLAKE3 of its contents, where there is no build id.
    Contents([u8; 32]),
    /// Seconds and nanoseconds of its last change: too long to hash, and without a build id.
    Modified(i64, i64),
}

/// Longer files without a build id are recognised by their time.
const LONGEST_HASHED: u64 = 64 << 20;

/// Every file on the machine's own disks that one of `tasks` has mapped, but for shared writable mappings.
pub(crate) fn mapped_by(tasks: &[OuterPid]) -> Vec<ProgramFile> {
    let mut files: BTreeMap<PathBuf, Option<ProgramFile>> = BTreeMap::new();
    for task in tasks {
        for Mapped { written, inode, path, .. } in maps::of(*task) {
            if written || path.starts_with(JOB_DIR) || path.as_os_str().as_bytes().ends_with(b" (deleted)") {
                continue;
            }
            // Only what is the same file out here as inside.
            files.entry(path).or_insert_with_key(|path| {
                let meta = fs::metadata(path).ok()?;
                (meta.is_file() && meta.ino() == inode).then(|| identify(path, &meta)).flatten()
            });
        }
    }
    files.into_values().flatten().collect()
}

/// What has happened to the file since, if anything has.
pub(crate) fn changed(file: &ProgramFile) -> Option<String> {
    let meta = match fs::metadata(&file.path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Some("is missing".into()),
        Err(e) => return Some(format!("cannot be read: {e}")),
    };
    if meta.len() != file.size {
        return Some(format!("has changed: {} bytes now, {} at the checkpoint", meta.len(), file.size));
    }
    match identify(&file.path, &meta) {
        Some(now) if now.identity == file.identity => None,
        Some(ProgramFile { identity: Identity::BuildId(_), .. }) => {
            Some("has changed: another build id".into())
        }
        Some(_) => Some("has changed: same length, other contents".into()),
        None => Some("cannot be read".into()),
    }
}

fn identify(path: &Path, meta: &fs::Metadata) -> Option<ProgramFile> {
    let mut file = File::open(path).ok()?;
    let identity = if let Some(id) = build_id(&mut file).ok().flatten() {
        Identity::BuildId(id)
    } else if meta.len() <= LONGEST_HASHED {
        let mut hasher = blake3::Hasher::new();
        file.rewind().ok()?;
        hasher.update_reader(&mut file).ok()?;
        Identity::Contents(*hasher.finalize().as_bytes())
    } else {
        Identity::Modified(meta.mtime(), meta.mtime_nsec())
    };
    Some(ProgramFile { path: path.to_owned(), size: meta.len(), identity })
}

/// The GNU build id of a 64-bit little-endian ELF file.
fn build_id(file: &mut (impl Read + Seek)) -> io::Result<Option<Vec<u8>>> {
    const PT_NOTE: u32 = 4;
    const LONGEST_NOTES: u64 = 64 * 1024;
    let mut header = [0; 64];
    if file.read_exact(&mut header).is_err() || &header[..6] != b"\x7fELF\x02\x01" {
        return Ok(None);
    }
    let (table, entry_size, entries) =
        (u64_at(&header, 32), u64::from(u16_at(&header, 54)), u16_at(&header, 56));
    if entry_size < 56 {
        return Ok(None);
    }
    for index in 0..u64::from(entries) {
        let mut entry = [0; 56];
        file.seek(SeekFrom::Start(table.saturating_add(index * entry_size)))?;
        file.read_exact(&mut entry)?;
        let (offset, length) = (u64_at(&entry, 8), u64_at(&entry, 32));
        if u32_at(&entry, 0) != PT_NOTE || length > LONGEST_NOTES {
            continue;
        }
        file.seek(SeekFrom::Start(offset))?;
        let mut notes = Vec::new();
        file.take(length).read_to_end(&mut notes)?;
        if let Some(id) = id_in_notes(&notes) {
            return Ok(Some(id.to_owned()));
        }
    }
    Ok(None)
}

fn id_in_notes(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while notes.len() >= 12 {
        let (name, text, kind) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize, u32_at(notes, 8));
        let text_at = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = text_at.checked_add(text)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12 + name) == Some(b"GNU\0") {
            return notes.get(text_at..end);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn a_change_is_noticed() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"one").unwrap();
        let recorded = identify(file.path(), &file.path().metadata().unwrap()).unwrap();
        assert_eq!(changed(&recorded), None);
        fs::write(file.path(), b"two").unwrap();
        assert!(changed(&recorded).unwrap().contains("other contents"));
        fs::write(file.path(), b"three").unwrap();
        assert!(changed(&recorded).unwrap().contains("5 bytes now, 3 at the checkpoint"));
        fs::remove_file(file.path()).unwrap();
        assert_eq!(changed(&recorded).unwrap(), "is missing");
    }

    #[test]
    fn a_build_id_is_found_among_notes() {
        let note = |name: &[u8], kind: u32, text: &[u8]| {
            let mut n = Vec::new();
            n.extend((name.len() as u32).to_le_bytes());
            n.extend((text.len() as u32).to_le_bytes());
            n.extend(kind.to_le_bytes());
            n.extend(name);
            n.resize(n.len().next_multiple_of(4), 0);
            n.extend(text);
            n.resize(n.len().next_multiple_of(4), 0);
            n
        };
        let notes = [note(b"GNU\0", 1, b"abi tag."), note(b"GNU\0", 3, b"the id")].concat();
        assert_eq!(id_in_notes(&notes), Some(&b"the id"[..]));
        for cut in 0..notes.len() - 2 {
            assert_eq!(id_in_notes(&notes[..cut]), None, "cut at {cut}");
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_files_are_no_trouble(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let elf = [b"\x7fELF\x02\x01", &bytes[..]].concat();
            let _ = build_id(&mut io::Cursor::new(elf));
            let _ = id_in_notes(&bytes);
        }
    }
}
