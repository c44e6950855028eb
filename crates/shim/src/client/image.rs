//! Module images: measured where they lie, and written to a file of the session's folder for the server.

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cuda_abi::{CuError, CuResult};
use fatbin::{ImageKind, WRAPPER_SIZE, Wrapper, measure};
use wire::UploadId;

use crate::log::{self, Level};

/// Images longer than this are taken for damaged.
const IMAGE_MAX: u64 = 4 << 30;

/// A file for the server, which takes it; removed here if the server never saw it.
pub struct Upload {
    /// Its id.
    pub id: UploadId,
    path: PathBuf,
}

impl Upload {
    /// Writes the image that `image` points to: a wrapper, fatbinary, cubin or PTX.
    ///
    /// # Errors
    /// `INVALID_VALUE` for NULL, `INVALID_IMAGE` for what is none.
    ///
    /// # Safety
    /// `image` must point to a whole image.
    pub unsafe fn from_memory(folder: &Path, id: UploadId, image: *const c_void) -> CuResult<Self> {
        // SAFETY: as the caller says.
        let bytes = unsafe { bytes_at(image.cast()) }?;
        Self::write(folder, id, bytes)
    }

    /// Writes an image that is in hand.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the file cannot be written.
    pub fn write(folder: &Path, id: UploadId, bytes: &[u8]) -> CuResult<Self> {
        let upload = Self { id, path: folder.join(format!("upload-{}", id.0)) };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&upload.path);
        made.and_then(|mut file| file.write_all(bytes)).map_err(|error| {
            log::message(Level::Error, format_args!("cannot write {}: {error}", upload.path.display()));
            CuError::OUT_OF_MEMORY
        })?;
        Ok(upload)
    }
}

impl Upload {
    /// Takes the file that the server has left under an id.
    ///
    /// # Errors
    /// `UNKNOWN` when it cannot be read.
    pub fn take(folder: &Path, id: UploadId) -> CuResult<Vec<u8>> {
        let left = Self { id, path: folder.join(format!("upload-{}", id.0)) };
        std::fs::read(&left.path).map_err(|error| {
            log::message(Level::Error, format_args!("cannot read {}: {error}", left.path.display()));
            CuError::UNKNOWN
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The server has usually taken it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The image that `image` points to, through a wrapper if that is what it is.
///
/// # Safety
/// As [`Upload::from_memory`]; the bytes must stay.
unsafe fn bytes_at<'a>(image: *const u8) -> CuResult<&'a [u8]> {
    if image.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: `measure` asks only for bytes that an image like this must have.
    let (kind, bytes) = unsafe { whole(image) }?;
    if kind != ImageKind::Wrapper {
        return Ok(bytes);
    }
    let wrapped = bytes
        .first_chunk::<WRAPPER_SIZE>()
        .and_then(Wrapper::parse)
        .map(|wrapper| std::ptr::with_exposed_provenance::<u8>(wrapper.fatbinary as usize))
        .filter(|data| !data.is_null())
        .ok_or(CuError::INVALID_IMAGE)?;
    // SAFETY: a wrapper points to a whole image.
    match unsafe { whole(wrapped) }? {
        (ImageKind::Wrapper, _) => Err(CuError::INVALID_IMAGE),
        (_, bytes) => Ok(bytes),
    }
}

/// What stands at `start`, all of it.
///
/// # Safety
/// As [`bytes_at`].
unsafe fn whole<'a>(start: *const u8) -> CuResult<(ImageKind, &'a [u8])> {
    let mut source = |offset: u64, buffer: &mut [u8]| {
        // SAFETY: within the image, as `measure` promises.
        unsafe {
            std::ptr::copy_nonoverlapping(start.add(offset as usize), buffer.as_mut_ptr(), buffer.len())
        };
        true
    };
    let measured = measure(&mut source, IMAGE_MAX).map_err(|error| {
        log::message(Level::Error, format_args!("no device code at {start:p}: {error}"));
        CuError::INVALID_IMAGE
    })?;
    // SAFETY: the image has this many bytes, as its own header says, and the application keeps them.
    Ok((measured.kind, unsafe { std::slice::from_raw_parts(start, measured.length as usize) }))
}
