//! `dormouse cat`

use super::store_access;
use crate::flags::Cat;
use checkpoint::{Failure, JobRecord, Kind, find_image, open_store, read_failure};
use host::files::Restoration;
use image::{FileAction, Object, ObjectKind};
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use store::{Image, ReadError, find_object};

/// Writes an object to standard output. Who reads it may stop when it has had enough.
pub fn run(flags: &Cat) -> Result<(), Failure> {
    let store = open_store(&store_access(&flags.store)?)?;
    let id = find_image(&store, &flags.image)?;
    let image = store.open_foreign_image(&id).map_err(read_failure)?;
    let object = find(&image, &flags.object)?;
    let (offset, len) = (flags.offset.unwrap_or(0), object.len());
    if offset > len {
        let message = format!("{} has {len} bytes, --offset {offset} is behind its end", flags.object);
        return Err(Failure::new(Kind::Usage, message));
    }
    let end = flags.length.map_or(len, |length| offset.saturating_add(length).min(len));
    let out = io::stdout();
    let guarded = out.is_terminal() && !flags.force;
    let mut out = Output { out: out.lock(), guarded };
    let written = image.copy_range_to(&object.kind, offset..end, &mut out);
    match written.and_then(|_| {
        let object = flags.object.clone();
        out.flush().map_err(|error| ReadError::Sink { object, offset: end, error })
    }) {
        Err(ReadError::Sink { error, .. }) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(ReadError::Sink { error, .. }) if error.kind() == ErrorKind::InvalidData => {
            Err(Failure::new(Kind::Failed, error.to_string()))
        }
        done => done.map_err(read_failure),
    }
}

/// The object that `reference` means; for a file that the job has written, by its path, the one that holds what a restart puts back.
fn find<'a>(image: &'a Image, reference: &str) -> Result<&'a Object, Failure> {
    let manifest = image.manifest();
    let not_found = |error: &dyn Display| Failure::new(Kind::NotFound, error.to_string());
    let error = match find_object(manifest, reference) {
        Ok(object) => return Ok(object),
        Err(error) => error,
    };
    let path = reference.strip_prefix("file:").unwrap_or(reference);
    let Some(file) = manifest.job_files.iter().find(|file| file.path.to_string() == path) else {
        return Err(not_found(&error));
    };
    if file.action != FileAction::PutBack {
        let what = format!(
            "image {} does not hold what was in {path}: a restart leaves that where it is",
            manifest.id
        );
        return Err(not_found(&what));
    }
    // Under which name it is held only the record says.
    let len = find_object(manifest, "record")
        .map_or(0, |record| usize::try_from(record.len()).unwrap_or(usize::MAX));
    let record = image.read_to_vec(&ObjectKind::HostRecord, len).map_err(read_failure)?;
    let written = JobRecord::read(&record, manifest)?.host.written;
    let name = written.into_iter().find_map(|each| match each.restoration {
        Restoration::Contents(name) if each.path.as_os_str().as_bytes() == file.path.0 => Some(name),
        _ => None,
    });
    name.and_then(|name| find_object(manifest, &format!("criu:{name}")).ok()).ok_or_else(|| not_found(&error))
}

/// Standard output, into which nothing goes that a terminal would take for a command.
struct Output<W> {
    out: W,
    guarded: bool,
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.guarded && bytes.iter().any(|byte| byte.is_ascii_control() && !b"\n\t".contains(byte)) {
            let message = "it is not text, which a terminal may take amiss: send it to a file or a program, or give --force";
            return Err(io::Error::new(ErrorKind::InvalidData, message));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use image::{JobFile, Manifest, RawPath};
    use serde_json::{Value, json};
    use store::{Store, WriteOptions};

    #[test]
    fn what_a_file_held_is_found_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        let saved = |path: &str, name: &str| {
            let restoration = json!({ "Contents": name });
            json!({ "path": path, "length": 3, "mode": 0o644, "owner": [0, 0], "open": true, "restoration": restoration })
        };
        let golden = include_str!("../../../checkpoint/tests/golden/job-record-4.json");
        let mut record: Value = serde_json::from_str(golden).unwrap();
        record["host"]["written"] = json!([saved("/srv/a", "written-0"), saved("/srv/b", "written-1")]);
        writer.put(ObjectKind::HostRecord, record.to_string().as_bytes()).unwrap();
        for (name, bytes) in [("written-0", b"one"), ("written-1", b"two")] {
            writer.put(ObjectKind::CriuFile { name: RawPath::from(name) }, bytes).unwrap();
        }
        let file = |path: &str, action| JobFile { path: RawPath::from(path), len: 3, action };
        let job_files = vec![
            file("/srv/a", FileAction::PutBack),
            file("/srv/b", FileAction::PutBack),
            file("/srv/log", FileAction::Truncate),
            file("/srv/lost", FileAction::PutBack),
        ];
        let manifest = Manifest { job_files, ..Manifest::new("job") };
        let id = draft.publish(manifest, vec![writer.finish().unwrap()]).unwrap().id;
        let image = store.open_foreign_image(&id).unwrap();
        for (reference, bytes) in [("/srv/b", b"two"), ("file:/srv/a", b"one"), ("criu:written-1", b"two")] {
            let found = find(&image, reference).unwrap();
            assert_eq!(image.read_to_vec(&found.kind, 3).unwrap(), bytes, "{reference}");
        }
        for (wrong, words) in [
            ("/srv/log", "a restart leaves that where it is"),
            ("file:/srv/lost", "has no object"),
            ("/srv/c", "has no object"),
        ] {
            let failure = find(&image, wrong).unwrap_err();
            assert!(failure.kind == Kind::NotFound && failure.message.contains(words), "{failure:?}");
        }
    }

    #[test]
    fn a_terminal_gets_text_only() {
        let mut out = Output { out: Vec::new(), guarded: true };
        out.write_all("a line\tof text, für alle\n".as_bytes()).unwrap();
        for bad in [&b"\0"[..], b"\x1b[2J", b"text\x07", b"\x7f"] {
            let error = out.write_all(bad).unwrap_err();
            assert!(error.to_string().contains("--force"), "{error}");
        }
        out.guarded = false;
        out.write_all(b"\0\x1b").unwrap();
        assert!(out.out.ends_with(b"alle\n\0\x1b"));
    }
}
