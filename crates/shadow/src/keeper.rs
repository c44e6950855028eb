//! Keeps the shadows of a session's regions in step with the device.

use crate::access::{Access, Served, Waiting};
use crate::crew::Crew;
use crate::device::{Device, Step};
use crate::region::{Means, Occasion, Region};
use crate::returns::{self, Returns};
use crate::trial::{Change, Trial};
use crate::twins::Count;
use crate::userfault::{Touch, Userfault};
use crate::vigil::Vigil;
use crate::work::{Flight, Work};
use crate::{Error, Fault, PAGE, Range, Result, lock, serve};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Which regions something concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// All of them: nobody can tell.
    All,
    /// Those that these ranges meet.
    Ranges(&'a [Range]),
}

/// The shadows of a session, and the threads that serve faults.
pub struct Keeper {
    shared: Arc<Shared>,
    stop: OwnedFd,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share.
pub(crate) struct Shared {
    pub(crate) userfault: Userfault,
    pub(crate) device: Arc<dyn Device>,
    crew: Crew,
    work: Work,
    pub(crate) vigil: Vigil,
    access: Access,
    waiting: Mutex<Waiting>,
    /// Held by who looks for the end of work.
    looking: Mutex<()>,
    /// By the first address behind each.
    regions: Mutex<BTreeMap<u64, Arc<Region>>>,
    /// Those that may have pages, by their address. A region is entered here before a page of it is fetched, and leaves when none is there, both
    /// while it is locked.
    active: Mutex<BTreeMap<u64, Arc<Region>>>,
    cohering: Mutex<Cohering>,
    twins: Count,
    pub(crate) returns: Returns,
    /// Whether [`Keeper::change`] has something to do.
    due: AtomicBool,
    /// When all was last brought up to date without a call.
    refreshed: Mutex<Instant>,
}

/// Which regions are coherent, and whether they had better be. To be locked before any region.
#[derive(Default)]
struct Cohering {
    trial: Trial,
    change: Option<Change>,
    /// Those that went to and fro with the last work.
    candidates: Vec<Arc<Region>>,
    coherent: Vec<Arc<Region>>,
}

/// How long what a side has written may stay unknown to the other while work is in flight.
pub(crate) const REFRESH: Duration = Duration::from_millis(100);
/// The most bytes that are coherent at a time: what a checkpoint writes back inside of its cut.
const COHERENT: u64 = 64 << 20;

/// Work has been announced; it may be given to the device before this is dropped, and not after.
#[must_use]
pub struct Reach<'a>(Option<&'a Work>);

impl Drop for Reach<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.0 {
            work.submitted();
        }
    }
}

impl Keeper {
    /// One for the faults that `userfault` tells, with so many threads to serve them.
    ///
    /// # Errors
    /// When no thread or descriptor can be had.
    pub fn new(
        userfault: Userfault,
        device: Arc<dyn Device>,
        (threads, access): (usize, Access),
    ) -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let begun = Arc::clone(&device);
        let shared = Shared {
            userfault,
            device,
            crew: Crew::new(move || begun.begun())?,
            work: Work::default(),
            vigil: Vigil::default(),
            access,
            waiting: Mutex::default(),
            looking: Mutex::default(),
            regions: Mutex::default(),
            active: Mutex::default(),
            cohering: Mutex::default(),
            twins: Count::default(),
            returns: Returns::default(),
            due: AtomicBool::new(false),
            refreshed: Mutex::new(Instant::now()),
        };
        let mut keeper =
            Self { shared: Arc::new(shared), stop: rustix::event::eventfd(0, flags)?, threads: Vec::new() };
        for _ in 0..threads {
            let (shared, stop) = (keeper.shared.clone(), keeper.stop.try_clone()?);
            let thread = std::thread::Builder::new().name("shadow".to_owned());
            keeper.threads.push(thread.spawn(move || serve::run(&shared, &stop))?);
        }
        let shared = keeper.shared.clone();
        let thread = std::thread::Builder::new().name("shadow-returns".to_owned());
        keeper.threads.push(thread.spawn(move || returns::run(&shared))?);
        Ok(keeper)
    }

    /// Keeps the shadow of a region: whole pages, at which the application has mapped `file`, which is empty, from its beginning.
    ///
    /// # Errors
    /// `NoRegion` for what cannot be one, `Kernel` when the application has no such mapping there.
    pub fn add(&self, range: Range, file: OwnedFd) -> Result<()> {
        self.add_parts(range, &[range], file)
    }

    /// [`Self::add`] of a region of which the application has only `mapped` left, which lie in it.
    ///
    /// # Errors
    /// As [`Self::add`]'s.
    pub fn add_parts(&self, range: Range, mapped: &[Range], file: OwnedFd) -> Result<()> {
        let mut regions = lock(&self.shared.regions);
        let is_whole = (range.base | range.bytes).is_multiple_of(PAGE as u64);
        let is_free =
            !regions.range(range.base + 1..).next().is_some_and(|(_, next)| next.range.meets(&range));
        if !is_whole || !is_free || range.bytes == 0 || range.base.checked_add(range.bytes).is_none() {
            return Err(Error::NoRegion(range));
        }
        for &range in mapped {
            let registered = self.shared.userfault.register(range);
            registered.map_err(|source| Error::Kernel { range, what: "UFFDIO_REGISTER", source })?;
        }
        for part in Region::parts(range, file, &self.shared.twins)? {
            part.empty()?;
            regions.insert(part.range.end(), Arc::new(part));
        }
        drop(regions);
        if self.shared.device.is_busy() {
            // What was given to the device before may come to know of the region, and nobody has announced it.
            self.shared.work.announce(true);
            self.shared.work.submitted();
        }
        Ok(())
    }

    /// Keeps the shadow of a region no more, and nothing that is in it. Nobody may touch it any more.
    ///
    /// # Errors
    /// `NoRegion` where none begins at `base`, or the kernel's.
    pub fn remove(&self, base: u64) -> Result<()> {
        // The device may have to wait for work, and that for whoever touches another region.
        let mut ended = self.shared.separate_one(base);
        let mut regions = lock(&self.shared.regions);
        let found = regions.range(base.saturating_add(1)..).next();
        let Some((_, first)) = found.filter(|(_, region)| region.whole.base == base) else {
            return Err(Error::NoRegion(Range { base, bytes: 0 }));
        };
        let parts: Vec<_> =
            regions.range(base + 1..=first.whole.end()).map(|(_, part)| part.clone()).collect();
        // With the lock held: nobody adds a region there before all of this one is gone.
        for part in parts {
            regions.remove(&part.range.end());
            // Each part, whatever becomes of the one before it.
            ended = ended.and(part.end(&self.shared.means()));
            lock(&self.shared.active).remove(&part.range.base);
        }
        drop(regions);
        let cohering = &mut *lock(&self.shared.cohering);
        cohering.candidates.retain(|region| region.whole.base != base);
        // Also one that could not be separated: the next region at its addresses is another.
        cohering.coherent.retain(|region| region.whole.base != base);
        ended
    }

    /// Announces work that may reach these regions: what the application has written in them is on the device when this returns.
    ///
    /// # Errors
    /// When that fails; the work must not be submitted then.
    pub fn reach(&self, scope: Scope<'_>) -> Result<Reach<'_>> {
        let shared = &*self.shared;
        shared.vigil.called();
        let named = match scope {
            // Of a region that is added before it is complete, too.
            Scope::All => Vec::new(),
            Scope::Ranges(ranges) => match shared.regions_in(ranges) {
                none if none.is_empty() => return Ok(Reach(None)),
                named => named,
            },
        };
        let work = shared.work.announce(scope == Scope::All);
        let reach = Reach(Some(&shared.work));
        shared.device.between(Step::Announced);
        named.iter().for_each(|region| region.name(work));
        // Those that are named may have pages or not: whoever makes one has locked the region, and knows of the work if it is late.
        let reached = if scope == Scope::All { shared.active(|_| true) } else { named };
        let occasion = match shared.access {
            Access::Concurrent => Occasion::Begin(work.number),
            Access::Exclusive => Occasion::Drop,
        };
        shared.retire(&reached, occasion)?;
        Ok(reach)
    }

    /// To be called when the application has asked for work, and learns that it is not complete: it does not only wait in memory.
    pub fn asked(&self) {
        self.shared.vigil.called();
    }

    /// To be called when the application is about to learn that work is complete: it sees from then on what that has written.
    ///
    /// # Errors
    /// When what it has written itself cannot be written back.
    pub fn settle(&self) -> Result<()> {
        self.shared.vigil.called();
        self.shared.settle()
    }

    /// Whether regions had better become coherent, or be so no more: to be asked behind [`Self::settle`].
    #[must_use]
    pub fn is_change_due(&self) -> bool {
        self.shared.due.load(Ordering::Relaxed)
    }

    /// Does what is due, if that can be. No work that may reach managed memory is in flight, and none is announced before this returns.
    ///
    /// # Errors
    /// When a region has no place on the device any more.
    pub fn change(&self) -> Result<()> {
        let shared = &*self.shared;
        let cohering = &mut *lock(&shared.cohering);
        shared.due.store(false, Ordering::Relaxed);
        match cohering.change.take() {
            None => Ok(()),
            Some(Change::Separate) => shared.separate(cohering).inspect_err(|_| {
                cohering.change = Some(Change::Separate);
                shared.due.store(true, Ordering::Relaxed);
            }),
            Some(Change::Cohere) => {
                for region in std::mem::take(&mut cohering.candidates) {
                    // It goes on as it is.
                    if let Err(error) = shared.cohere(cohering, &region) {
                        tracing::debug!(region = %region.range, %error, "managed memory does not become coherent");
                    }
                }
                cohering.trial.cohered(Instant::now(), !cohering.coherent.is_empty());
                Ok(())
            }
        }
    }

    /// Makes the region that begins at `base` coherent, whatever its cycles take; when [`Self::change`] can be called. Answers whether it is.
    ///
    /// # Errors
    /// `NoRegion`, or as [`Self::change`]'s.
    pub fn cohere(&self, base: u64) -> Result<bool> {
        let region = self.shared.region_around(base).filter(|region| region.range.base == base);
        let region = region.ok_or(Error::NoRegion(Range { base, bytes: 0 }))?;
        self.shared.cohere(&mut lock(&self.shared.cohering), &region)
    }

    /// Where regions begin that are coherent: [`Self::remove`] of one waits for all work of the device.
    #[must_use]
    pub fn coherent(&self) -> Vec<u64> {
        lock(&self.shared.cohering).coherent.iter().map(|region| region.whole.base).collect()
    }

    /// Has all regions kept by shadows, for one who needs their place on the device. No work that may reach managed memory is in flight, and none is announced before
    /// this returns.
    ///
    /// # Errors
    /// As [`Self::change`]'s.
    pub fn separate(&self) -> Result<()> {
        let cohering = &mut *lock(&self.shared.cohering);
        if !cohering.coherent.is_empty() {
            cohering.trial.separated();
        }
        self.shared.separate(cohering)
    }

    /// The same of the one that begins at `base`.
    ///
    /// # Errors
    /// As [`Self::change`]'s.
    pub fn separate_one(&self, base: u64) -> Result<()> {
        self.shared.separate_one(base)
    }

    /// Writes to the device what the application has written, which goes on, so that little is left for [`Self::write_back`] when it stands still. Pages stay:
    /// what a system call under way writes into one is not lost.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn write_ahead(&self) -> Result<()> {
        let shared = &*self.shared;
        // What came only now would be written back where it is not touched, too, and when everything stands still.
        shared.returns.give_up().iter().for_each(|region| region.stay_away());
        shared.active(|_| true).iter().try_for_each(|region| region.write_ahead(&shared.means()))
    }

    /// Nothing is moved any more but for who touches a page, and what is being moved: the session ends.
    pub fn rest(&self) {
        self.shared.returns.end();
    }

    /// Waits for what is being moved, behind [`Self::rest`].
    pub fn await_rest(&self) {
        drop(self.shared.returns.give_up());
    }

    /// Writes back all that the application has written. If it stands still and no region is coherent the device has the truth, alone.
    ///
    /// # Errors
    /// When something cannot be written back.
    pub fn write_back(&self) -> Result<()> {
        self.shared.retire(&self.shared.active(|_| true), Occasion::Drop).map(drop)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.rest();
        if rustix::io::write(&self.stop, &1u64.to_ne_bytes()).is_ok() {
            // One that panicked has said so; one may be who drops this.
            let others = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
            self.threads.drain(..).filter(others).for_each(|thread| drop(thread.join()));
        }
    }
}

impl Shared {
    fn means(&self) -> Means<'_> {
        Means { userfault: &self.userfault, device: &*self.device, crew: &self.crew }
    }

    /// Serves a fault. Where there is no room, all others' pages make it.
    pub(crate) fn serve(&self, touch: Touch) -> Result<()> {
        /// Other threads may have taken the room that was made.
        const TRIES: usize = 16;
        let Some(region) = self.region_around(touch.address) else {
            // It was one when somebody touched it.
            let range = Range { base: touch.address / PAGE as u64 * PAGE as u64, bytes: PAGE as u64 };
            let woken = self.userfault.wake(range);
            return woken.map_err(|source| Error::Kernel { range, what: "UFFDIO_WAKE", source });
        };
        let waits = self.access == Access::Exclusive && !self.device.is_awaited(touch.thread);
        if waits && self.flight(&region).loose && !self.device.is_busy() {
            // Nobody may ask for the end of work that has come.
            self.settle()?;
        }
        let page = touch.address / PAGE as u64 * PAGE as u64;
        if self.flight(&region).loose && self.vigil.touched(touch.thread, page, touch.fault == Fault::Read) {
            self.device.awaited(page);
        }
        let enter = || self.enter(&region);
        for _ in 0..TRIES {
            match region.serve(&self.means(), touch, (false, waits), enter) {
                Ok(Served::Waits) => {
                    lock(&self.waiting).push(touch);
                    return Ok(());
                }
                Err(Error::NoRoom(_)) => drop(self.retire(&self.active(|_| true), Occasion::Drop)?),
                Ok(Served::Done) if region.has_many_twins() => {
                    return self.retire(&[Arc::clone(&region)], Occasion::Drop).map(drop);
                }
                Ok(Served::Done) if self.twins.get() > Count::MOST => {
                    return self.retire(&self.active(|region| region.twins() > 0), Occasion::Drop).map(drop);
                }
                served => return served.map(drop),
            }
        }
        if region.serve(&self.means(), touch, (true, waits), enter)? == Served::Waits {
            lock(&self.waiting).push(touch);
        }
        Ok(())
    }

    /// Serves who has waited for the end of work, if it has come. Answers, if somebody still waits, when to look again.
    pub(crate) fn serve_waiting(&self) -> Option<Duration> {
        if lock(&self.waiting).is_empty() {
            return None;
        }
        // One looks, and the others serve faults meanwhile.
        let Ok(looking) = self.looking.try_lock() else { return None };
        let long = lock(&self.waiting).long();
        long.into_iter().for_each(|address| self.device.held(address));
        if !self.device.is_busy() {
            let touches = lock(&self.waiting).take();
            for touch in touches {
                if let Err(error) = self.serve(touch) {
                    self.device.failed(error);
                }
            }
        }
        // Who has put one aside meanwhile found somebody looking.
        drop(looking);
        lock(&self.waiting).look()
    }

    /// Brings all up to date that work in flight and the application have written, if that is due: nobody who waits for it waits for ever.
    pub(crate) fn refresh(&self) {
        // One thread, however long it takes; the others serve faults.
        let Ok(mut refreshed) = self.refreshed.try_lock() else { return };
        if refreshed.elapsed() < REFRESH {
            return;
        }
        self.vigil.refreshed();
        if let Err(error) = self.settle() {
            // The next call is told; nobody waits for this.
            tracing::debug!(%error, "managed memory is not brought up to date");
        }
        *refreshed = Instant::now();
    }

    /// Brings up to date what work has reached, and looks whether all of it is complete.
    pub(crate) fn settle(&self) -> Result<()> {
        let Some(glimpse) = self.work.glimpse() else { return Ok(()) };
        // In this order: what is announced meanwhile, and what is fetched before the list is made, is met below.
        let occasion = match glimpse.all_submitted {
            false => Occasion::Drop,
            true if self.device.is_busy() => Occasion::Middle,
            true => Occasion::End(glimpse.announced),
        };
        self.device.between(Step::Looked);
        let known = self.work.known();
        let loose = self.active(|region| known.flight(region.named()).loose);
        let to_and_fro = self.retire(&loose, occasion)?;
        if occasion != Occasion::End(glimpse.announced) {
            return Ok(());
        }
        let is_first = self.work.settled(&glimpse);
        self.device.between(Step::Settled);
        for region in &loose {
            if region.give_back(&self.means(), || self.enter(region))? {
                self.returns.push(region);
            }
        }
        if is_first {
            self.note_cycle(to_and_fro);
        }
        Ok(())
    }

    /// Has some pages of a region come back; answers whether there are more. What fails is tried again when they are touched, and who touches them hears of it.
    pub(crate) fn comes_back(&self, region: &Arc<Region>) -> bool {
        let come = region.come_back(&self.means(), || self.enter(region));
        come.inspect_err(|error| tracing::debug!(%error, "managed memory does not come back"))
            .unwrap_or(false)
    }

    /// All work is complete; these regions go to and fro with it.
    fn note_cycle(&self, to_and_fro: Vec<Arc<Region>>) {
        // Where a change is under way, which may wait for work, the next cycle is as good.
        let Ok(mut cohering) = self.cohering.try_lock() else { return };
        let cohering = &mut *cohering;
        // What was slower and could not be undone yet, since something else happened, is still to be.
        if cohering.change == Some(Change::Separate) {
            return;
        }
        cohering.change = cohering.trial.cycle(Instant::now(), !to_and_fro.is_empty());
        if !to_and_fro.is_empty() {
            cohering.candidates = to_and_fro;
        }
        self.due.store(cohering.change.is_some(), Ordering::Relaxed);
    }

    /// Makes a region coherent, if that can be.
    fn cohere(&self, cohering: &mut Cohering, region: &Arc<Region>) -> Result<bool> {
        let bytes: u64 = cohering.coherent.iter().map(|region| region.range.bytes).sum();
        let over = || drop(lock(&self.active).remove(&region.range.base));
        let done = bytes + region.range.bytes <= COHERENT
            && region.cohere(&self.means(), || self.enter(region), over)?;
        if done {
            cohering.coherent.push(Arc::clone(region));
        }
        Ok(done)
    }

    /// Has the region that begins at `base` kept by shadows, if it is coherent.
    fn separate_one(&self, base: u64) -> Result<()> {
        let cohering = &mut *lock(&self.cohering);
        let Some(at) = cohering.coherent.iter().position(|region| region.whole.base == base) else {
            return Ok(());
        };
        let region = Arc::clone(&cohering.coherent[at]);
        region.separate(&self.means(), || self.enter(&region))?;
        cohering.coherent.swap_remove(at);
        if cohering.coherent.is_empty() {
            cohering.trial.separated();
        }
        Ok(())
    }

    /// Has regions kept by shadows that are coherent.
    fn separate(&self, cohering: &mut Cohering) -> Result<()> {
        let mut separated = Ok(());
        // Each of them, whatever becomes of the one before it.
        cohering.coherent.retain(|region| {
            let done = region.separate(&self.means(), || self.enter(region));
            let stays = done.is_err();
            separated = std::mem::replace(&mut separated, Ok(())).and(done);
            stays
        });
        separated
    }

    /// The region, or the part of one, that an address lies in.
    fn region_around(&self, address: u64) -> Option<Arc<Region>> {
        let regions = lock(&self.regions);
        let (_, first) = regions.range(address.saturating_add(1)..).next()?;
        (first.range.base <= address).then(|| first.clone())
    }

    /// The regions that ranges meet.
    fn regions_in(&self, ranges: &[Range]) -> Vec<Arc<Region>> {
        let regions = lock(&self.regions);
        let met = ranges.iter().flat_map(|range| {
            let from = regions.range(range.base.saturating_add(1)..).map(|(_, region)| region);
            from.take_while(|region| region.range.base < range.end()).cloned()
        });
        let mut met: Vec<_> = met.collect();
        met.sort_by_key(|region| region.range.base);
        met.dedup_by_key(|region| region.range.base);
        met
    }

    /// What is known of the work that may reach a region.
    fn flight(&self, region: &Region) -> Flight {
        let named = region.named();
        self.work.known().flight(named)
    }

    /// Enters a region, which is locked, into the list of those that may have pages, and looks **then** whether work may be in flight.
    fn enter(&self, region: &Arc<Region>) -> Flight {
        lock(&self.active).insert(region.range.base, Arc::clone(region));
        self.device.between(Step::Locked);
        self.flight(region)
    }

    /// Those of the regions that may have pages.
    fn active(&self, wanted: impl Fn(&Arc<Region>) -> bool) -> Vec<Arc<Region>> {
        let active: Vec<_> = lock(&self.active).values().cloned().collect();
        self.device.between(Step::Listed);
        active.into_iter().filter(wanted).collect()
    }

    /// Writes back the pages of regions that may have some, and drops or keeps them. Answers which go to and fro with work.
    fn retire(&self, listed: &[Arc<Region>], occasion: Occasion) -> Result<Vec<Arc<Region>>> {
        let mut to_and_fro = Vec::new();
        for region in listed {
            let over = || drop(lock(&self.active).remove(&region.range.base));
            if region.retire(&self.means(), occasion, over)? {
                to_and_fro.push(Arc::clone(region));
            }
        }
        Ok(to_and_fro)
    }
}
