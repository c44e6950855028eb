//! One region: its pages, and the file that they lie in.

use crate::access::Served;
use crate::crew::Crew;
use crate::device::{Device, Step};
use crate::habit::Habit;
use crate::pages::{Pages, Service};
use crate::protected::Protected;
use crate::twins::Count;
use crate::userfault::{Lack, Touch, Userfault};
use crate::window::{HUGE, Window};
use crate::work::{Announced, Flight};
use crate::{Error, Fault, PAGE, Range, Result, ahead, lock};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// The most pages that are transferred at once: those of a huge one, 2 MiB.
const BATCH: usize = HUGE / PAGE;

/// Bytes in a part of a region. Threads that touch different parts don't wait for each other.
const PART: usize = 64 << 20;

/// The most twins that a part of a region keeps: 32 MiB.
const TWINS: usize = 8192;

/// A region of managed memory, or a part of one: what is moved by one thread at a time.
pub(crate) struct Region {
    pub(crate) range: Range,
    /// The whole region, of which this is a part.
    pub(crate) whole: Range,
    window: Arc<Window>,
    kept: Mutex<Option<Kept>>,
    /// The last work that named it.
    named: Mutex<Announced>,
}

/// What is kept of it, until it is freed.
struct Kept {
    pages: Pages,
    habit: Habit,
    /// Whether the device reaches the file's pages, all of which are there: nothing moves.
    coherent: bool,
    /// Whether what was written has been written ahead, most of it: it is on the device already.
    ahead: bool,
}

/// What a region's pages are moved with.
pub(crate) struct Means<'a> {
    pub(crate) userfault: &'a Userfault,
    pub(crate) device: &'a dyn Device,
    pub(crate) crew: &'a Crew,
}

/// Why pages are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occasion {
    /// Work of this number is about to begin, which may reach them.
    Begin(u64),
    /// All work up to this number is complete.
    End(u64),
    /// Work is in flight, to which they are of no more use.
    Middle,
    /// They are to be dropped for another reason.
    Drop,
}

impl Region {
    /// The parts of a region whose pages, none of which is there, are those of `file`, and whose twins `twins` counts.
    pub(crate) fn parts(whole: Range, file: OwnedFd, twins: &Count) -> Result<Vec<Self>> {
        let failed = |source| Error::Kernel { range: whole, what: "mmap", source };
        let window = Arc::new(Window::new(file, whole.bytes as usize).map_err(failed)?);
        let parts = (0..whole.bytes).step_by(PART).map(|at| {
            let range = Range { base: whole.base + at, bytes: (whole.bytes - at).min(PART as u64) };
            let pages = Pages::new(range.bytes as usize / PAGE, twins);
            let kept =
                Mutex::new(Some(Kept { pages, habit: Habit::default(), coherent: false, ahead: false }));
            Self { range, whole, window: Arc::clone(&window), kept, named: Mutex::default() }
        });
        Ok(parts.collect())
    }

    /// Notes that work names it, which was announced and is not submitted yet.
    pub(crate) fn name(&self, work: Announced) {
        let mut named = lock(&self.named);
        *named = work.max(*named);
    }

    /// The last work that named it.
    pub(crate) fn named(&self) -> Announced {
        *lock(&self.named)
    }

    /// Serves a fault, `alone` without any page but its own, or, if it `waits` for the end of work that may reach the region, not before that. `enter` is called when nobody else can look at
    /// the pages, before any of them is there, and answers whether such work may be in flight.
    pub(crate) fn serve(
        &self,
        means: &Means<'_>,
        Touch { address, fault, lack, .. }: Touch,
        (alone, waits): (bool, bool),
        enter: impl FnOnce() -> Flight,
    ) -> Result<Served> {
        let page = (address - self.range.base) as usize / PAGE;
        let mut kept = lock(&self.kept);
        let Some(Kept { pages, habit, coherent, .. }) = kept.as_mut() else { return Ok(Served::Done) };
        if *coherent {
            return self.serve_coherent(means, page, lack).map(|()| Served::Done);
        }
        let flight = enter();
        let loose = flight.loose;
        if waits && loose {
            return Ok(Served::Waits);
        }
        means.device.between(Step::Asked);
        if pages.touched().is_empty() {
            habit.came((!loose).then_some(flight.since));
        }
        if lack == Lack::Mapping && pages.is_there(page) {
            return self.remap(means, (pages, habit), page, loose).map(|()| Served::Done);
        }
        if lack == Lack::Page && pages.is_there(page) && !self.has(page) {
            pages.lost(page);
        }
        if loose {
            habit.stay_away();
        } else if !alone
            && !pages.is_there(page)
            && let Some(run) = habit.returns(Some(page))
        {
            match self.make_written(means, pages, run, Some(page)) {
                // There may be room for less.
                Err(Error::NoRoom(_)) => habit.stay_away(),
                made => return made.map(|()| Served::Done),
            }
        }
        match pages.fault(page, fault, alone) {
            Service::Wake if fault == Fault::Read => self.wake(means, page)?,
            Service::Wake => self.protect(means, page..page + 1, false)?,
            Service::Unprotect(run) => {
                self.give(pages, run.clone(), loose);
                self.protect(means, run, false)?;
            }
            Service::Fetch(run) => {
                let given = self.given_for(means, habit, fault, loose);
                let own = page..page + 1;
                let run = match self.fetch(means, pages, run.clone(), (given, loose)) {
                    // There may be room for one.
                    Err(Error::NoRoom(_)) if run != own => {
                        self.fetch(means, pages, own.clone(), (given, loose)).map(|()| own)?
                    }
                    fetched => fetched.map(|()| run)?,
                };
                self.map_all(means, &run, (Some(page), given))?;
                if run.len() >= ahead::FAST {
                    self.go_ahead(means, (pages, habit), fault, loose);
                }
            }
        }
        Ok(Served::Done)
    }

    /// Maps a page that is there: the first of what was moved ahead, or one that the program has had unmapped.
    fn remap(
        &self,
        means: &Means<'_>,
        (pages, habit): (&mut Pages, &Habit),
        page: usize,
        loose: bool,
    ) -> Result<()> {
        if !pages.is_written(page) && !means.userfault.maps_protected() {
            self.give(pages, page..page + 1, loose);
        }
        self.map(means, page, !pages.is_written(page))?;
        if let Some(fault) = pages.goes_on(page) {
            self.go_ahead(means, (pages, habit), fault, loose);
        }
        Ok(())
    }

    /// Moves what a program is going to touch that walks fast, while it is still behind it. All is mapped but the first page, so that it is heard of
    /// when it gets there. What fails is tried again then.
    fn go_ahead(&self, means: &Means<'_>, (pages, habit): (&mut Pages, &Habit), fault: Fault, loose: bool) {
        let given = self.given_for(means, habit, fault, loose);
        // Twins cost more than they help.
        if loose && given != Protected::All {
            return;
        }
        let Some(run) = pages.next(fault) else { return };
        if self.fetch(means, pages, run.clone(), (given, loose)).is_ok() {
            let _ = self.map_all(means, &(run.start + 1..run.end), (None, given));
        }
    }

    /// Copies pages from the device to the file, which has none of them that anybody has mapped. Where there is no room for all it has none.
    fn fetch(
        &self,
        means: &Means<'_>,
        pages: &mut Pages,
        run: std::ops::Range<usize>,
        (given, loose): (Protected, bool),
    ) -> Result<()> {
        match means.crew.each(&pieces(&run), |piece| self.make(means, piece)) {
            Err(Error::NoRoom(_)) => {
                self.punch_exactly(run.clone())?;
                return Err(Error::NoRoom(self.of(&run)));
            }
            made => made?,
        }
        means.device.between(Step::Fetched);
        for (part, protect) in given.parts(&run) {
            match protect {
                true => pages.fetched(part),
                false => self.give(pages, part, loose),
            }
        }
        means.device.between(Step::Noted);
        Ok(())
    }

    /// Makes pages in the file that are as on the device, not more than a huge one has.
    fn make(&self, means: &Means<'_>, run: &std::ops::Range<usize>) -> Result<()> {
        let there = self.pages_of_file(run);
        let no_room = |_| Error::NoRoom(self.of(run));
        if self.window.is_huge(there.start) {
            self.window.make(there).map_err(no_room)?;
            return self.read(means, run);
        }
        let mut bytes = vec![0; run.len() * PAGE];
        self.read_into(means, run, &mut bytes)?;
        self.window.write(there.start, &bytes).map_err(no_room)
    }

    /// Reads pages of the device into those of the file.
    fn read(&self, means: &Means<'_>, run: &std::ops::Range<usize>) -> Result<()> {
        // SAFETY: pages that the file has, and only who has locked the region writes, or the crew for him while he waits, to whom each of these runs,
        // none of which meets another, is given once: the application has them not mapped, or may not write them. What a system call still writes that was under way before that lands as anywhere else that two write at once.
        let bytes = unsafe { &mut *self.bytes(run) };
        self.read_into(means, run, bytes)
    }

    fn read_into(&self, means: &Means<'_>, run: &std::ops::Range<usize>, bytes: &mut [u8]) -> Result<()> {
        let range = self.of(run);
        let failed = |source| Error::Device { range, done: "read", source };
        means.device.read(range.base, bytes).map_err(failed)
    }

    /// Notes that pages that are there may be written, with their twins where work may be in flight.
    fn give(&self, pages: &mut Pages, run: std::ops::Range<usize>, loose: bool) {
        // SAFETY: as in `read`; these are only copied.
        let twin = |at: usize| unsafe { &*self.bytes(&(at..at + 1)) }.into();
        pages.written(run, loose.then_some(twin));
    }

    /// Writes back what the application has changed. Then all pages are dropped, and `over` is called when that is done and nobody else can have
    /// looked at them since; or they are kept, and brought up to date when work is complete.
    /// Answers whether they go to and fro with work, most of the region.
    pub(crate) fn retire(&self, means: &Means<'_>, occasion: Occasion, over: impl FnOnce()) -> Result<bool> {
        let mut kept = lock(&self.kept);
        let Some(Kept { pages, habit, coherent: false, ahead }) = kept.as_mut() else { return Ok(false) };
        let touched = pages.touched();
        // Another thread has just dropped them, behind the same work, to come back.
        let are_to_come = touched.is_empty() && matches!(occasion, Occasion::End(_));
        if !are_to_come {
            habit.stay_away();
        }
        if touched.is_empty() {
            over();
            return Ok(false);
        }
        let changed = pages.changed(BATCH);
        let known = (&*pages, *ahead);
        means.crew.each(&changed, |run| {
            self.protect(means, run.clone(), true)?;
            means.device.between(Step::Protected);
            self.write_back(means, known, run.clone())
        })?;
        changed.iter().for_each(|run| pages.clean(run.clone()));
        *ahead = false;
        means.device.between(Step::Written);
        let seen = pages.seen();
        let is_most = 2 * seen.count >= self.count();
        habit.look(self.count(), || pages.there(usize::MAX), &changed);
        let mut renews = false;
        let stay = match occasion {
            Occasion::Begin(work) => habit.begins(seen, &changed, work),
            Occasion::End(work) if habit.ends(seen, work) => {
                renews = habit.renews(pages.there(usize::MAX));
                !renews && means.crew.each(&pages.there(BATCH), |run| self.read(means, run)).is_ok()
            }
            Occasion::End(_) | Occasion::Drop => false,
            Occasion::Middle => {
                habit.was_in_vain();
                false
            }
        };
        if !stay {
            self.punch(touched)?;
            pages.dropped();
            habit.dropped();
            means.device.between(Step::Dropped);
            over();
        }
        Ok(is_most && (stay || renews))
    }

    /// Writes to the device what the application has changed, and goes on changing: its pages stay where they are, as they are, also for what a system call that is under way still writes into them, of which
    /// nobody hears. So all of them count as written, and who retires them looks for what is different by then. Those with twins, which are few, are left for that.
    pub(crate) fn write_ahead(&self, means: &Means<'_>) -> Result<()> {
        let mut kept = lock(&self.kept);
        let Some(Kept { pages, coherent: false, ahead, .. }) = kept.as_mut() else { return Ok(()) };
        let changed = pages.changed_alone(BATCH);
        *ahead = !changed.is_empty();
        means.crew.each(&changed, |run| {
            let range = self.of(run);
            let mut now = vec![0; run.len() * PAGE];
            // SAFETY: both are as long. The application may write these pages meanwhile, so they are copied once, each byte old or new, and nobody else looks at them.
            unsafe { self.bytes(run).cast::<u8>().copy_to_nonoverlapping(now.as_mut_ptr(), now.len()) };
            means.device.between(Step::Ahead);
            let written = means.device.write(range.base, &now, std::slice::from_ref(&(0..now.len())));
            written.map_err(|source| Error::Device { range, done: "written", source })
        })
    }

    /// Lets pages be written that are kept and that the application has written each time: it would only fault. Answers whether others come back. `enter` as in [`Self::serve`].
    pub(crate) fn give_back(&self, means: &Means<'_>, enter: impl FnOnce() -> Flight) -> Result<bool> {
        let mut kept = lock(&self.kept);
        let Some(Kept { pages, habit, coherent: false, .. }) = kept.as_mut() else { return Ok(false) };
        if !habit.keeps() || pages.touched().is_empty() || enter().loose {
            return Ok(habit.is_returning());
        }
        for run in habit.written() {
            if run.clone().all(|page| pages.is_there(page) && !pages.is_written(page)) {
                self.give(pages, run.clone(), false);
                means.device.between(Step::Noted);
                self.protect(means, run.clone(), false)?;
            }
        }
        Ok(habit.is_returning())
    }

    /// Makes some of the pages that come back, to be written. Answers whether there are more. `enter` as in [`Self::serve`].
    pub(crate) fn come_back(&self, means: &Means<'_>, enter: impl FnOnce() -> Flight) -> Result<bool> {
        let mut kept = lock(&self.kept);
        let Some(Kept { pages, habit, coherent: false, .. }) = kept.as_mut() else { return Ok(false) };
        if !habit.is_returning() || enter().loose {
            habit.stay_away();
            return Ok(false);
        }
        if let Some(run) = habit.returns(None) {
            // What cannot be had now comes when it is touched, as any other page.
            self.make_written(means, pages, run, None).inspect_err(|_| habit.stay_away())?;
        }
        Ok(habit.is_returning())
    }

    /// None of its pages comes back any more.
    pub(crate) fn stay_away(&self) {
        if let Some(kept) = lock(&self.kept).as_mut() {
            kept.habit.stay_away();
        }
    }

    /// Makes those pages of a run that are not there, to be written: no work that may reach them is in flight.
    fn make_written(
        &self,
        means: &Means<'_>,
        pages: &mut Pages,
        run: std::ops::Range<usize>,
        waited: Option<usize>,
    ) -> Result<()> {
        for run in pages.missing(run) {
            self.fetch(means, pages, run.clone(), (Protected::None, false))?;
            self.map_all(means, &run, (waited, Protected::None))?;
        }
        Ok(())
    }

    /// The most bytes of a region that can be coherent: what a part has, and a habit sees.
    const COHERENT: u64 = (Habit::MOST * PAGE) as u64;

    /// Has processor and device reach the same pages: all of them are made, and can be written; then the device gives up its own. No work is in flight and none begins.
    /// Answers whether it is so: `enter` as in [`Self::serve`], `over` as in [`Self::retire`].
    pub(crate) fn cohere(
        &self,
        means: &Means<'_>,
        enter: impl FnOnce() -> Flight,
        over: impl FnOnce(),
    ) -> Result<bool> {
        let mut kept = lock(&self.kept);
        let Some(Kept { pages, habit, coherent: coherent @ false, .. }) = kept.as_mut() else {
            return Ok(false);
        };
        if self.range != self.whole || self.range.bytes > Self::COHERENT || enter().loose || pages.twins() > 0
        {
            return Ok(false);
        }
        habit.stay_away();
        for run in pages.there(usize::MAX) {
            self.give(pages, run.clone(), false);
            means.device.between(Step::Noted);
            self.protect(means, run, false)?;
        }
        match self.make_written(means, pages, 0..self.count(), None) {
            Err(Error::NoRoom(_)) => return Ok(false),
            made => made?,
        }
        means.device.between(Step::Whole);
        if let Err(error) = means.device.cohere(self.range, self.window.file().as_fd()) {
            tracing::debug!(region = %self.range, error, "managed memory does not become coherent");
            return Ok(false);
        }
        *coherent = true;
        over();
        tracing::debug!(region = %self.range, "managed memory is coherent for a while");
        Ok(true)
    }

    /// Has pages of its own on the device again, if it is coherent, and the truth of all of them here. `enter` as in [`Self::serve`].
    pub(crate) fn separate(&self, means: &Means<'_>, enter: impl FnOnce() -> Flight) -> Result<()> {
        let mut kept = lock(&self.kept);
        let Some(Kept { coherent: coherent @ true, .. }) = kept.as_mut() else { return Ok(()) };
        let separated = means.device.separate(self.range);
        separated.map_err(|source| Error::Device { range: self.range, done: "had again", source })?;
        means.device.between(Step::Whole);
        *coherent = false;
        enter();
        tracing::debug!(region = %self.range, "managed memory is kept by shadows again");
        Ok(())
    }

    /// Serves a fault of a page of the file that is for both: the program has had it unmapped, or taken out of the file.
    fn serve_coherent(&self, means: &Means<'_>, page: usize, lack: Lack) -> Result<()> {
        match lack {
            Lack::Right => self.protect(means, page..page + 1, false),
            Lack::Mapping => self.map(means, page, false),
            Lack::Page => {
                let there = self.pages_of_file(&(page..page + 1));
                self.window.make(there).map_err(|_| Error::NoRoom(self.of(&(page..page + 1))))?;
                self.map(means, page, false)
            }
        }
    }

    /// Writes a run of written pages, which nobody can write now, to the device; what is not there already, if most of it is `ahead`.
    fn write_back(
        &self,
        means: &Means<'_>,
        (pages, ahead): (&Pages, bool),
        run: std::ops::Range<usize>,
    ) -> Result<()> {
        let range = self.of(&run);
        let mut there = None;
        if ahead {
            self.read_into(means, &run, there.insert(vec![0; run.len() * PAGE]))?;
        }
        // SAFETY: as in `read`.
        let bytes = unsafe { &*self.bytes(&run) };
        let parts = pages.to_write(run, bytes, there.as_deref());
        let written = if parts.is_empty() { Ok(()) } else { means.device.write(range.base, bytes, &parts) };
        written.map_err(|source| Error::Device { range, done: "written", source })
    }

    /// Which pages are protected that a fault fetches.
    fn given_for(&self, means: &Means<'_>, habit: &Habit, fault: Fault, loose: bool) -> Protected {
        match fault {
            Fault::Write => Protected::None,
            // A kernel that cannot map them protected never tells of a write.
            Fault::Read if !means.userfault.maps_protected() => Protected::None,
            Fault::Read if loose => Protected::All,
            Fault::Read => habit.protected(self.count()),
        }
    }

    /// How many pages it has.
    fn count(&self) -> usize {
        self.range.bytes as usize / PAGE
    }

    /// Empties the file, which nobody has used.
    pub(crate) fn empty(&self) -> Result<()> {
        self.punch(0..self.count())
    }

    /// Whether it has so many twins that they had better go.
    pub(crate) fn has_many_twins(&self) -> bool {
        self.twins() > TWINS
    }

    /// How many of its pages have twins.
    pub(crate) fn twins(&self) -> usize {
        lock(&self.kept).as_ref().map_or(0, |kept| kept.pages.twins())
    }

    /// The region is freed: nothing of it is kept.
    pub(crate) fn end(&self, means: &Means<'_>) -> Result<()> {
        *lock(&self.kept) = None;
        match means.userfault.unregister(self.range) {
            // The application has ended, or has them mapped no more.
            Err(error) if is(&error, &[Errno::INVAL, Errno::NOMEM]) => Ok(()),
            asked => self.kernel("UFFDIO_UNREGISTER", 0..self.count(), |_| asked),
        }
    }

    /// These pages of it, in its file.
    fn pages_of_file(&self, run: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        let before = (self.range.base - self.whole.base) as usize / PAGE;
        before + run.start..before + run.end
    }

    fn bytes(&self, run: &std::ops::Range<usize>) -> *mut [u8] {
        let pages = self.pages_of_file(run);
        self.window.at(pages.start * PAGE..pages.end * PAGE)
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

    /// Maps pages that the file has. Where the kernel refuses some, since the program has split the mapping, they are mapped when they are touched;
    /// but one that somebody waits for at once.
    fn map_all(
        &self,
        means: &Means<'_>,
        run: &std::ops::Range<usize>,
        (waited, given): (Option<usize>, Protected),
    ) -> Result<()> {
        means.crew.each(&pieces(run), |piece| {
            for (part, protect) in given.parts(piece) {
                let (done, mapped) = means.userfault.map(self.of(&part), protect);
                let refused = part.start + done / PAGE..part.end;
                if let Some(page) = waited.filter(|page| mapped.is_err() && refused.contains(page)) {
                    self.map(means, page, protect)?;
                }
            }
            Ok(())
        })
    }

    /// Maps a page that the file has, for whom waits for it.
    fn map(&self, means: &Means<'_>, page: usize, protect: bool) -> Result<()> {
        self.kernel("UFFDIO_CONTINUE", page..page + 1, |range| match means.userfault.map(range, protect).1 {
            // It has been done since, or somebody has taken the page out: who waits tries again.
            Err(error) if is(&error, &[Errno::EXIST, Errno::FAULT]) => means.userfault.wake(range),
            mapped => mapped,
        })
    }

    fn wake(&self, means: &Means<'_>, page: usize) -> Result<()> {
        self.kernel("UFFDIO_WAKE", page..page + 1, |range| means.userfault.wake(range))
    }

    /// Takes pages out of the file, and of the application, and what the kernel has in one piece with them: none of that is there.
    fn punch(&self, run: std::ops::Range<usize>) -> Result<()> {
        let begin = run.start * PAGE / HUGE * HUGE;
        let end = (run.end * PAGE).next_multiple_of(HUGE).min(self.range.bytes as usize);
        self.punch_exactly(begin / PAGE..end / PAGE)
    }

    fn punch_exactly(&self, run: std::ops::Range<usize>) -> Result<()> {
        self.kernel("fallocate", run, |range| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let at = range.base - self.whole.base;
            Ok(rustix::fs::fallocate(self.window.file(), flags, at, range.bytes)?)
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
        let at = (self.pages_of_file(&(page..page + 1)).start * PAGE) as u64;
        rustix::fs::seek(self.window.file(), rustix::fs::SeekFrom::Data(at)) == Ok(at)
    }
}

/// What of a run lies in one huge page each.
fn pieces(run: &std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    let first = run.start / BATCH * BATCH;
    (first..run.end).step_by(BATCH).map(|at| at.max(run.start)..(at + BATCH).min(run.end)).collect()
}

fn is(error: &io::Error, codes: &[Errno]) -> bool {
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}
