//! Memory of the application's own that the device reaches: its pages are moved to a file that the server has mapped at the same address,
//! and back. `docs/registered-memory.md` tells the whole.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use cuda_abi::{CuError, CuResult};
use wire::{HostRegister, HostUnregister, PinnedId, Stream, StreamQuery};

use super::context::Owner;
use super::forking;
use super::memory::{Allocation, Kind};
use super::moving::{Pages, move_in, move_out};
use super::thread::Call;
use crate::log::{self, Level};

/// What the pages of a range are.
enum Found {
    /// Some of them are not there.
    Nothing,
    /// Ordinary memory: private to the process, readable and writable.
    Ordinary,
    /// Something else is among them.
    Other,
}

impl Call<'_> {
    /// Registers memory. Its pages are moved where the device reaches them; what cannot be moved stays where it is, and copies from and
    /// to it are staged.
    ///
    /// # Errors
    /// `INVALID_VALUE` where there is no memory, `HOST_MEMORY_ALREADY_REGISTERED`, what earlier work has failed with, what the server says.
    pub fn register_host(&mut self, base: u64, bytes: u64, flags: u32) -> CuResult {
        let context = Arc::clone(self.context()?);
        let pages = Pages::around(base, bytes).ok_or(CuError::INVALID_VALUE)?;
        forking::watch();
        let _moving = forking::moving(self.session);
        let found = look(pages);
        if matches!(found, Found::Nothing) {
            return Err(CuError::INVALID_VALUE);
        }
        let number = self.session.next_id();
        let kind = Kind::Registered { flags, file: None };
        let registration = Allocation { base, bytes, owner: Owner::new(&context), number, kind };
        if !self.session.memory.register(registration) {
            // A context that has failed says just that, of memory too whose registration could not be ended since.
            self.ask(&StreamQuery { ctx: context.id, stream: Stream::Legacy })?;
            return Err(CuError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if matches!(found, Found::Other) || self.session.memory.has_moved(pages) {
            return Ok(());
        }
        let id = PinnedId(self.session.next_id());
        let asked = self.ask(&HostRegister { ctx: context.id, pinned: id, address: base, bytes, flags });
        match asked.and_then(|()| move_in(pages, &self.place(id)?).map_err(|error| self.unmade(id, error))) {
            Ok(()) => {
                self.session.memory.set_file(base, Some(id));
                Ok(())
            }
            // The server has something of its own there, or the threads of this process cannot be held.
            Err(CuError::MAP_FAILED) => {
                let text = format_args!("memory registered at {base:#x} is out of kernels' reach");
                log::message(Level::Warn, text);
                Ok(())
            }
            Err(error) => {
                self.session.memory.remove(base, |_| true);
                Err(error)
            }
        }
    }

    /// The server's side of what could not be moved goes.
    fn unmade(&mut self, id: PinnedId, error: CuError) -> CuError {
        self.free_file(id).err().unwrap_or(error)
    }

    /// Ends a registration. The contents stay where they are.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`; `INVALID_VALUE` for an address inside of a registration; `MAP_FAILED` when the pages cannot be moved back,
    /// then it is registered still.
    pub fn unregister_host(&mut self, base: u64) -> CuResult {
        let registered = |kind: &Kind| matches!(kind, Kind::Registered { .. });
        let _moving = forking::moving(self.session);
        let found = self.session.memory.find(base).filter(|found| registered(&found.kind));
        let found = found.ok_or(CuError::HOST_MEMORY_NOT_REGISTERED)?;
        if found.base != base {
            return Err(CuError::INVALID_VALUE);
        }
        if matches!(found.kind, Kind::Registered { file: Some(_), .. }) {
            // What is under way has to arrive.
            self.ask(&HostUnregister {})?;
            self.take_back(&found)?;
        }
        self.session.memory.remove(base, registered);
        Ok(())
    }

    /// Moves the pages of a registration back, of which no work is under way.
    ///
    /// # Errors
    /// As [`Self::unregister_host`].
    pub fn take_back(&mut self, found: &Allocation) -> CuResult {
        let Kind::Registered { file: Some(id), .. } = found.kind else { return Ok(()) };
        let pages = Pages::around(found.base, found.bytes).ok_or(CuError::INVALID_VALUE)?;
        move_out(pages, &self.place(id)?.hello)?;
        self.session.memory.set_file(found.base, None);
        self.free_file(id)
    }

    fn place(&self, id: PinnedId) -> CuResult<Place> {
        Place::of(&self.session.folder, id)
    }
}

/// Where a registration's file is, and where to ask for stillness.
pub(super) struct Place {
    /// The file.
    pub file: CString,
    /// The supervisor's socket.
    pub hello: PathBuf,
}

impl Place {
    /// That of a registration of the session whose files lie in `folder`.
    pub(super) fn of(folder: &std::path::Path, id: PinnedId) -> CuResult<Self> {
        let file = folder.join(format!("pinned-{}", id.0));
        let file = CString::new(file.as_os_str().as_bytes()).map_err(|_| CuError::MAP_FAILED)?;
        Ok(Self { file, hello: folder.with_file_name("hello.sock") })
    }
}

/// What is mapped there.
fn look(pages: Pages) -> Found {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return Found::Other };
    among(&maps, pages)
}

fn among(maps: &str, pages: Pages) -> Found {
    let (mut at, mut ordinary) = (pages.start(), true);
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (Some((start, end)), Some(access)) =
            (words.next().and_then(|range| range.split_once('-')), words.next())
        else {
            continue;
        };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let (start, end) = (number(start), number(end));
        if end <= at {
            continue;
        }
        if start > at || at >= pages.end() {
            break;
        }
        ordinary &= access == "rw-p";
        at = end;
    }
    match at >= pages.end() {
        false => Found::Nothing,
        true if ordinary => Found::Ordinary,
        true => Found::Other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_memory_is_told_from_other() {
        let maps = "\
10000-20000 r--p 00000000 08:01 123 /bin/program
20000-30000 rw-p 00010000 08:01 123 /bin/program
30000-40000 rw-p 00000000 00:00 0 [heap]
50000-60000 rw-s 00000000 00:01 7 /dev/shm/a b
60000-70000 rw-p 00000000 00:00 0 
";
        let kind = |base, bytes| match among(maps, Pages::around(base, bytes).unwrap()) {
            Found::Nothing => 'n',
            Found::Ordinary => 'y',
            Found::Other => 'o',
        };
        for (base, bytes, expected) in [
            (0x20000, 0x10000, 'y'),
            (0x2ffff, 2, 'y'),
            (0x3fff0, 16, 'y'),
            (0x3fff0, 17, 'n'),
            (0x1ffff, 1, 'o'),
            (0x1ffff, 2, 'o'),
            (0x40000, 1, 'n'),
            (0x5ffff, 2, 'o'),
            (0x60000, 0x10000, 'y'),
            (0x60000, 0x10001, 'n'),
            (0x1000, 1, 'n'),
            (0x80000, 1, 'n'),
        ] {
            assert_eq!(kind(base, bytes), expected, "{base:#x}+{bytes:#x}");
        }
        assert!(Pages::around(u64::MAX - 1, 2).is_none() && Pages::around(0x1000, u64::MAX).is_none());
    }
}
