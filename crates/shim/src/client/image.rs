//! Module images: measured where they lie, and written to a file of the session's folder for the server.

use std::borrow::Cow;
use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cuda_abi::{CuError, CuResult};
use fatbin::{Fatbinary, ImageKind, WRAPPER_SIZE, Wrapper, measure};
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
        Self::write(folder, id, &bytes)
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

/// The image that `image` points to, through a wrapper if that is what it is; behind it, the PTX of what it was linked of.
///
/// # Safety
/// As [`Upload::from_memory`]; the bytes must stay.
unsafe fn bytes_at<'a>(image: *const u8) -> CuResult<Cow<'a, [u8]>> {
    if image.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: `measure` asks only for bytes that an image like this must have.
    let (kind, bytes) = unsafe { whole(image) }?;
    if kind != ImageKind::Wrapper {
        return Ok(bytes.into());
    }
    let wrapper = bytes.first_chunk::<WRAPPER_SIZE>().and_then(Wrapper::parse);
    let wrapper = wrapper.filter(|wrapper| wrapper.fatbinary != 0).ok_or(CuError::INVALID_IMAGE)?;
    // SAFETY: a wrapper points to a whole image.
    let bytes = match unsafe { whole(std::ptr::with_exposed_provenance(wrapper.fatbinary as usize)) }? {
        (ImageKind::Wrapper, _) => return Err(CuError::INVALID_IMAGE),
        (_, bytes) => bytes,
    };
    // SAFETY: so does all that one of its version says it was linked of.
    let units = unsafe { units_of(&wrapper) };
    Ok(if units.is_empty() { bytes.into() } else { [bytes, &units].concat().into() })
}

/// What relocatable code was linked of (`nvcc -rdc=true`), of which it is machine code: a fatbinary with the PTX of each object, one behind the other; nothing where none has any,
/// or one cannot be read, which is no reason not to load what was linked.
///
/// # Safety
/// The wrapper must be a whole one of this process.
unsafe fn units_of(wrapper: &Wrapper) -> Vec<u8> {
    /// `FATBINC_LINK_VERSION`
    const LINKED: u32 = 2;
    let (mut units, mut has_ptx) = (Vec::new(), false);
    if wrapper.version != LINKED || wrapper.extra == 0 {
        return units;
    }
    let mut next: *const *const u8 = std::ptr::with_exposed_provenance(wrapper.extra as usize);
    loop {
        // SAFETY: an array of addresses, which ends behind the first that is NULL.
        let unit = unsafe { next.read() };
        if unit.is_null() {
            return if has_ptx { units } else { Vec::new() };
        }
        // SAFETY: each is one of a whole image.
        let Ok((_, bytes)) = (unsafe { whole(unit) }) else { return Vec::new() };
        let unit = match Fatbinary::parse(bytes) {
            Ok(unit) => unit,
            Err(error) => {
                log::message(
                    Level::Warn,
                    format_args!("what device code was linked of is not used: {error}"),
                );
                return Vec::new();
            }
        };
        has_ptx |= !unit.architectures().ptx.is_empty();
        units.extend(unit.ptx_alone());
        // SAFETY: the array goes on.
        next = unsafe { next.add(1) };
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LINKED: &[u8] = include_bytes!("../../../fatbin/tests/data/speed.fatbin");
    const UNITS: [&[u8]; 2] = [
        include_bytes!("../../../fatbin/tests/data/rdc.fatbin"),
        include_bytes!("../../../fatbin/tests/data/size.fatbin"),
    ];

    /// As nvcc has it in a program.
    #[repr(C)]
    struct InMemory {
        magic: u32,
        version: u32,
        fatbinary: *const u8,
        extra: *const *const u8,
    }

    fn sent(version: u32, units: &[*const u8]) -> Vec<u8> {
        let magic = 0x4662_43B1;
        let extra = if units.is_empty() { std::ptr::null() } else { units.as_ptr() };
        let wrapper = InMemory { magic, version, fatbinary: LINKED.as_ptr(), extra };
        for address in units.iter().chain([&wrapper.fatbinary]) {
            let _ = address.expose_provenance();
        }
        let _ = wrapper.extra.expose_provenance();
        // SAFETY: all that it leads to is there.
        unsafe { bytes_at((&raw const wrapper).cast()) }.unwrap().into_owned()
    }

    #[test]
    fn what_code_was_linked_of_is_sent_with_it() {
        let units = [UNITS[0].as_ptr(), UNITS[1].as_ptr(), std::ptr::null()];
        let alone = UNITS.map(|unit| Fatbinary::parse(unit).unwrap().ptx_alone());
        assert_eq!(sent(2, &units), [LINKED, &alone[0], &alone[1]].concat());
        assert_eq!(sent(2, &[]), LINKED);
        assert_eq!(sent(1, &units), LINKED, "a file's name is there in the first version");
        // What cannot be read is no reason not to load what was linked.
        let mut damaged = UNITS[0].to_vec();
        damaged[16..24].fill(0xff);
        assert_eq!(sent(2, &[damaged.as_ptr(), std::ptr::null()]), LINKED);
    }
}
