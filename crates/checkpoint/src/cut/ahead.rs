//! What can be written before the job is stopped, because it never changes: Dormouse's own programs on the job's tmpfs, tens of
//! megabytes that the first image of a store has to hold.

use crate::error::Failure;
use crate::folder::write_failure;
use crate::supervisor::library;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::path::Path;
use store::ChunkWriter;

/// Writes the chunks of these files of `tmpfs`. They are saved with all others when the job stands still, whatever is in them then.
///
/// # Errors
/// When the store cannot take them.
pub fn write_ahead(tmpfs: &host::Tmpfs, writer: &ChunkWriter) -> Result<(), Failure> {
    let files = [library(&tmpfs.path()), tmpfs.init_program()];
    files.iter().filter_map(|path| open(path)).try_for_each(|file| writer.ahead(&file)).map_err(write_failure)
}

/// Opens a regular file; the job may have put anything in its place.
fn open(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
}
