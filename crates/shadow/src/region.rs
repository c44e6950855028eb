//! One region: its pages, and the file that they lie in.

use crate::device::{Device, Step};
use crate::pages::{Pages, Service};
use crate::userfault::{Event, Userfault};
use crate::{Error, Fault, PAGE, Range, Result, lock};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

/// The most pages that are transferred at once: 2 MiB.
const BATCH: usize = 512;

/// The most twins that a region keeps: 32 MiB.
const TWINS: usize = 8192;

/// A region of managed memory.
pub(crate) struct Region {
    pub(crate) range: Range,
    file: OwnedFd,
    pages: Mutex<Option<Pages>>,
}

/// What a region's pages are moved with.
pub(crate) struct Means<'a> {
    pub(crate) userfault: &'a Userfault,
    pub(crate) device: &'a dyn Device,
}

impl Region {
    /// One whose pages, none of which is there, are those of `file`.
    pub(crate) fn new(range: Range, file: OwnedFd) -> Self {
        let count = range.bytes as usize / PAGE;
        Self { range, file, pages: Mutex::new(Some(Pages::new(count))) }
    }

    /// Serves a fault. `enter` is called when nobody else can look at the pages, before any of them is there, and answers
    /// whether work that may reach them may be in flight.
    pub(crate) fn serve(
        &self,
        means: &Means<'_>,
        Event { address, fault, is_unmapped }: Event,
        alone: bool,
        enter: impl FnOnce() -> bool,
    ) -> Result<()> {
        let page = (address - self.range.base) as usize / PAGE;
        let mut pages = lock(&self.pages);
        let Some(pages) = pages.as_mut() else { return Ok(()) };
        let loose = enter();
        means.device.between(Step::Asked);
        if is_unmapped && pages.is_written(page) {
            return self.map(means, page);
        }
        if pages.is_there(page) && (is_unmapped || !self.has(page)) {
            pages.lost(page);
        }
        match pages.fault(page, fault, alone) {
            Service::Wake => match fault {
                Fault::Read => {
                    self.kernel("UFFDIO_WAKE", page..page + 1, |range| means.userfault.wake(range))
                }
                Fault::Write => self.protect(means, page..page + 1, false),
            },
            Service::Unprotect(run) => {
                let mut before = vec![0; if loose { run.len() * PAGE } else { 0 }];
                self.copy_out(run.start, &mut before)?;
                let twin = |at: usize| before[(at - run.start) * PAGE..][..PAGE].into();
                pages.written(run.clone(), loose.then_some(twin));
                self.protect(means, run, false)
            }
            Service::Fetch(run) => {
                let range = self.of(&run);
                let mut bytes = vec![0; run.len() * PAGE];
                means.device.read(range.base, &mut bytes).map_err(|source| Error::Device {
                    range,
                    done: "read",
                    source,
                })?;
                means.device.between(Step::Fetched);
                let fill = |pages: &mut Pages, run, bytes: &[u8]| {
                    self.fill(means, pages, run, bytes, (fault, loose))
                };
                let mut filled = fill(pages, run.clone(), &bytes);
                if filled.as_ref().is_err_and(|error| is(error, &[Errno::EXIST])) {
                    // Somebody has read the file where it had holes: CRIU does, for one. Those are no pages of ours.
                    let rest = (run.clone()).find(|page| !pages.is_there(*page)).unwrap_or(run.end)..run.end;
                    self.punch(rest.clone())?;
                    filled = fill(pages, rest.clone(), &bytes[(rest.start - run.start) * PAGE..]);
                }
                if filled.is_ok() || pages.is_there(page) {
                    return Ok(());
                }
                // The program may have split the mapping, or there is no room for all.
                let own = (page - run.start) * PAGE;
                match fill(pages, page..page + 1, &bytes[own..own + PAGE]) {
                    Err(error) if is(&error, &[Errno::NOMEM, Errno::NOSPC]) => {
                        Err(Error::NoRoom(self.of(&(page..page + 1))))
                    }
                    filled => self.kernel("UFFDIO_COPY", page..page + 1, |_| filled),
                }
            }
        }
    }

    /// Makes missing pages, as far as that can be done.
    fn fill(
        &self,
        means: &Means<'_>,
        pages: &mut Pages,
        run: std::ops::Range<usize>,
        bytes: &[u8],
        (fault, loose): (Fault, bool),
    ) -> io::Result<()> {
        let (done, filled) = means.userfault.fill(self.of(&run).base, bytes, fault == Fault::Read);
        let there = run.start..run.start + done / PAGE;
        match fault {
            Fault::Read => pages.fetched(there),
            Fault::Write => {
                let twin = |at: usize| bytes[(at - run.start) * PAGE..][..PAGE].into();
                pages.written(there, loose.then_some(twin));
            }
        }
        filled
    }

    /// Writes back what the application has changed, and drops all pages; `over` is called when that is done and nobody else can have
    /// looked at them since.
    pub(crate) fn retire(&self, means: &Means<'_>, over: impl FnOnce()) -> Result<()> {
        let mut pages = lock(&self.pages);
        let Some(pages) = pages.as_mut() else { return Ok(()) };
        let mut buffer = Vec::new();
        for run in pages.changed(BATCH) {
            self.protect(means, run.clone(), true)?;
            means.device.between(Step::Protected);
            buffer.resize(run.len() * PAGE, 0);
            self.copy_out(run.start, &mut buffer)?;
            self.write_back(means, pages, run.clone(), &buffer)?;
            pages.clean(run);
            means.device.between(Step::Written);
        }
        let touched = pages.touched();
        if !touched.is_empty() {
            self.punch(touched)?;
            pages.dropped();
            means.device.between(Step::Dropped);
        }
        over();
        Ok(())
    }

    /// Writes a run of written pages, in which there is `bytes`, to the device.
    fn write_back(
        &self,
        means: &Means<'_>,
        pages: &Pages,
        run: std::ops::Range<usize>,
        bytes: &[u8],
    ) -> Result<()> {
        let range = self.of(&run);
        let parts = pages.to_write(run, bytes);
        let written = if parts.is_empty() { Ok(()) } else { means.device.write(range.base, bytes, &parts) };
        written.map_err(|source| Error::Device { range, done: "written", source })
    }

    /// Empties the file, which nobody has used.
    pub(crate) fn empty(&self) -> Result<()> {
        self.punch(0..self.range.bytes as usize / PAGE)
    }

    /// Whether it has so many twins that they had better go.
    pub(crate) fn has_many_twins(&self) -> bool {
        lock(&self.pages).as_ref().is_some_and(|pages| pages.twins() > TWINS)
    }

    /// The region is freed: nothing of it is kept.
    pub(crate) fn end(&self, means: &Means<'_>) -> Result<()> {
        *lock(&self.pages) = None;
        match means.userfault.unregister(self.range) {
            // The application has ended, or has them mapped no more.
            Err(error) if is(&error, &[Errno::INVAL, Errno::NOMEM]) => Ok(()),
            asked => self.kernel("UFFDIO_UNREGISTER", 0..self.range.bytes as usize / PAGE, |_| asked),
        }
    }

    fn of(&self, run: &std::ops::Range<usize>) -> Range {
        Range { base: self.range.base + (run.start * PAGE) as u64, bytes: (run.len() * PAGE) as u64 }
    }

    /// Lets a run of pages, which are there, be written no more, or again.
    fn protect(&self, means: &Means<'_>, run: std::ops::Range<usize>, protect: bool) -> Result<()> {
        let ask = |range| means.userfault.protect(range, protect);
        match ask(self.of(&run)) {
            // Older kernels want them to be in one mapping, and the program may have split it.
            Err(error) if is(&error, &[Errno::NOENT]) => {
                run.into_iter().try_for_each(|page| self.kernel("UFFDIO_WRITEPROTECT", page..page + 1, ask))
            }
            asked => self.kernel("UFFDIO_WRITEPROTECT", run, |_| asked),
        }
    }

    /// Maps a page that is there.
    fn map(&self, means: &Means<'_>, page: usize) -> Result<()> {
        self.kernel("UFFDIO_CONTINUE", page..page + 1, |range| match means.userfault.map(range) {
            // It has been done since.
            Err(error) if is(&error, &[Errno::EXIST]) => means.userfault.wake(range),
            mapped => mapped,
        })
    }

    /// Takes pages out of the file, and of the application.
    fn punch(&self, run: std::ops::Range<usize>) -> Result<()> {
        self.kernel("fallocate", run, |range| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(&self.file, flags, range.base - self.range.base, range.bytes)?)
        })
    }

    /// Asks something of the kernel about a run of pages. Where the application has ended or has them mapped no more nothing is to do.
    fn kernel(
        &self,
        what: &'static str,
        run: std::ops::Range<usize>,
        ask: impl FnOnce(Range) -> io::Result<()>,
    ) -> Result<()> {
        let range = self.of(&run);
        match ask(range) {
            Err(error) if is(&error, &[Errno::SRCH, Errno::NOENT]) => Ok(()),
            Err(source) => Err(Error::Kernel { range, what, source }),
            Ok(()) => Ok(()),
        }
    }

    /// Whether the file has a page.
    fn has(&self, page: usize) -> bool {
        let at = (page * PAGE) as u64;
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(at)) == Ok(at)
    }

    /// Copies what is in pages that nobody can write.
    fn copy_out(&self, page: usize, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = page * PAGE + done;
            let range = Range { base: self.range.base + at as u64, bytes: (bytes.len() - done) as u64 };
            let failed = |source| Error::Kernel { range, what: "pread", source };
            match rustix::io::pread(&self.file, &mut bytes[done..], at as u64) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(())
    }
}

fn is(error: &io::Error, codes: &[Errno]) -> bool {
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}
