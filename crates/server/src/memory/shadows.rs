//! Managed memory by shadow pages (`docs/shadow-pages.md`): device memory here, and in the application, at the same address, a file
//! whose pages are kept in step with it.

use super::aside::Aside;
use super::managed::Managed;
use super::rows::Rows;
use super::side::{Side, chain};
use super::staging::Staging;
use crate::application::Mappings;
use crate::buffers::BufferPool;
use crate::failure::{Failure, Result};
use crate::objects::{Stream, in_use};
use crate::session::{Reached, Session};
use crate::{lock, write};
use backend::Range;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use shadow::{Device, Keeper, Reach, Scope, Userfault};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::Duration;
use wire::{ContextId, CuError, MemoryOperation, PinnedId};

/// Threads that serve faults.
const THREADS: usize = 2;
/// How long the application's userfaultfd may take to come here.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most regions, each of which takes a mapping in the application and one here: of the 65,530 that a process has half are left.
const REGIONS: usize = 32 << 10;
/// Descriptors that their files leave to all else.
const SPARE: u64 = 256;
/// Regions are whole pages.
pub const PAGE: u64 = shadow::PAGE as u64;

/// A managed region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShadowRecord {
    /// The number in its file's name.
    pub id: PinnedId,
    /// The context that it belongs to.
    pub ctx: ContextId,
    /// Where the device memory begins in which it lies.
    pub allocation: u64,
    /// Its pages.
    pub range: Range,
    /// Whether they are kept: the application has mapped them, and is not about to unmap them.
    pub kept: bool,
}

/// The managed memory of a session.
pub struct Shadows {
    /// Which of it is to have shadow pages.
    managed: Managed,
    dir: PathBuf,
    side: Arc<Side>,
    live: Mutex<BTreeMap<u64, ShadowRecord>>,
    /// Those of `live`.
    ids: Mutex<BTreeSet<PinnedId>>,
    /// There from the time on when the application has given its userfaultfd.
    keeper: OnceLock<Keeper>,
    /// There before the keeper is.
    aside: OnceLock<Aside>,
    /// Why there will be none, if that is known.
    refused: Mutex<Option<String>>,
    arrived: Condvar,
    /// Whether a stream has ever been given a word to wait for: whatever writes memory may let work go that was submitted before.
    waited: AtomicBool,
}

impl Shadows {
    /// None yet; files will be in `dir`.
    #[must_use]
    pub(crate) fn new(pool: &Arc<BufferPool>, dir: PathBuf, managed: Managed) -> Self {
        Self {
            managed,
            dir,
            side: Arc::new(Side {
                staging: Staging::new(pool),
                backend: Arc::clone(pool.backend()),
                session: OnceLock::new(),
                still: RwLock::default(),
                noted: Mutex::default(),
            }),
            live: Mutex::default(),
            ids: Mutex::default(),
            keeper: OnceLock::new(),
            aside: OnceLock::new(),
            refused: Mutex::default(),
            arrived: Condvar::new(),
            waited: AtomicBool::new(false),
        }
    }

    /// Whose memory it is.
    pub fn belong_to(&self, session: Weak<Session>) {
        // A session has its own.
        let _ = self.side.session.set(session);
    }

    /// Whether the folder of the session is there no more: it is reached through the supervisor.
    #[must_use]
    pub(crate) fn is_orphaned(&self) -> bool {
        !self.dir.exists()
    }

    /// Whether managed memory is to be had in no other way.
    #[must_use]
    pub(crate) fn are_all(&self) -> bool {
        self.managed == Managed::Exclusive
    }

    /// Whether a new region of so many bytes is to be kept this way.
    #[must_use]
    pub fn are_wanted(&self, bytes: u64) -> bool {
        // A program that has some already, from before a restart with another choice, goes on as if nothing had been chosen.
        let managed = match self.managed {
            Managed::Coherent if !lock(&self.live).is_empty() => Managed::default(),
            chosen => chosen,
        };
        managed.has_shadows(bytes)
    }

    /// Makes a region of zeros, as fresh managed memory is everywhere.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there are as many as there can be, as [`Self::restore`]'s, and the backend's.
    pub fn make(&self, record: ShadowRecord, stream: &Stream) -> Result<()> {
        let count = lock(&self.live).len();
        if count >= most_regions() || !may_open_more() {
            let detail = format!(
                "{count} regions with shadow pages are as many as there can be: each is an open file (`ulimit -Hn`), and {REGIONS} are the most"
            );
            return Err(Failure::new(CuError::OUT_OF_MEMORY, detail));
        }
        self.side.clear(stream, record.range)?;
        self.restore(record)
    }

    /// Makes the file of a region, a hole from end to end.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an id in use, `UNKNOWN` when the file cannot be made, or could not be opened with all others.
    pub fn restore(&self, record: ShadowRecord) -> Result<()> {
        let mut live = lock(&self.live);
        if live.len() >= most_regions() {
            let detail = format!(
                "{} regions with shadow pages are as many as this server may have open files for; raise its limit (ulimit -Hn)",
                live.len()
            );
            return Err(Failure::new(CuError::UNKNOWN, detail));
        }
        if lock(&self.ids).contains(&record.id) {
            return Err(in_use(record.id));
        }
        let path = self.path(record.id);
        // After a restart it is there already, as long as it was, and empty: its contents have gone to the device.
        let oflags = OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(&path, oflags, Mode::from_raw_mode(0o600))
            .and_then(|file| rustix::fs::ftruncate(&file, record.range.bytes))
            .map_err(|error| Failure::new(CuError::UNKNOWN, format!("{}: {error}", path.display())))?;
        lock(&self.ids).insert(record.id);
        live.insert(record.range.base, record);
        Ok(())
    }

    /// The application has mapped the region that begins there: from now on its pages are kept.
    ///
    /// # Errors
    /// `INVALID_VALUE` where none does, `UNKNOWN` when it cannot be kept.
    pub fn keep(&self, base: u64) -> Result<()> {
        self.keep_what_is_mapped(base, None)
    }

    fn keep_what_is_mapped(&self, base: u64, mappings: Option<&Mappings>) -> Result<()> {
        let Some(record) = lock(&self.live).get(&base).copied() else {
            return Err(Failure::new(CuError::INVALID_VALUE, format!("{base:#x} is no managed memory")));
        };
        let keeper = self.await_keeper()?;
        let oflags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path(record.id);
        let file = rustix::fs::open(&path, oflags, Mode::empty())
            .map_err(|error| Failure::new(CuError::UNKNOWN, format!("{}: {error}", path.display())))?;
        match mappings {
            Some(mappings) => {
                let mapped =
                    mappings.of_file(record.range.base, record.range.bytes, &file).map_err(|error| {
                        Failure::new(CuError::UNKNOWN, format!("{}: {error}", path.display()))
                    })?;
                keeper.add_parts(convert(record.range), &mapped, file)
            }
            None => keeper.add(convert(record.range), file),
        }
        .map_err(failed)?;
        self.note_kept(base, true);
        Ok(())
    }

    /// The application is about to unmap the region that begins there, and nobody uses it any more: its pages are kept no longer.
    ///
    /// # Errors
    /// `INVALID_VALUE` where none does.
    pub fn leave(&self, base: u64) -> Result<()> {
        let keeper = self.keeper.get().filter(|_| self.note_kept(base, false));
        let missing = || Failure::new(CuError::INVALID_VALUE, format!("{base:#x} is no managed memory"));
        // It is kept no longer, whatever that fails with.
        if let Err(error) = keeper.ok_or_else(missing)?.remove(base) {
            self.tell(&failed(error));
        }
        Ok(())
    }

    fn note_kept(&self, base: u64, kept: bool) -> bool {
        lock(&self.live).get_mut(&base).map(|record| record.kept = kept).is_some()
    }

    /// Keeps the pages that were kept before, in a session that was restored. The program may have unmapped some of them, or mapped
    /// something else over them; `mappings` is asked when its userfaultfd is there.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub(crate) fn keep_again(&self, mappings: impl FnOnce() -> Result<Option<Mappings>>) -> Result<()> {
        let kept: Vec<_> = self.records().into_iter().filter(|record| record.kept).collect();
        if kept.is_empty() {
            return Ok(());
        }
        self.await_keeper()?;
        let mappings = mappings()?;
        kept.into_iter().try_for_each(|record| self.keep_what_is_mapped(record.range.base, mappings.as_ref()))
    }

    /// Forgets a region that the application has mapped no more. `None` where none begins.
    pub fn remove(&self, base: u64) -> Option<ShadowRecord> {
        let record = lock(&self.live).get(&base).copied()?;
        // First: what others' work may reach is written back until it is kept no more, and copied by its record.
        let kept = self.keeper.get().filter(|_| record.kept);
        if let Some(Err(error)) = kept.map(|keeper| keeper.remove(base)) {
            tracing::warn!(%error, "managed memory");
        }
        lock(&self.live).remove(&base)?;
        lock(&self.ids).remove(&record.id);
        let _ = rustix::fs::unlink(self.path(record.id));
        Some(record)
    }

    /// Forgets everything of a context that is ending.
    pub fn remove_context(&self, ctx: ContextId) {
        for record in self.records().into_iter().filter(|record| record.ctx == ctx) {
            self.remove(record.range.base);
        }
    }

    /// Every region.
    #[must_use]
    pub fn records(&self) -> Vec<ShadowRecord> {
        lock(&self.live).values().copied().collect()
    }

    /// Takes the application's userfaultfd.
    pub fn take(&self, userfault: OwnedFd) {
        self.side.staging.fill();
        let device = Arc::clone(&self.side) as Arc<dyn Device>;
        let made = Userfault::open(userfault).and_then(|opened| {
            Ok((Aside::new()?, Keeper::new(opened, device, (THREADS, self.managed.access()))?))
        });
        let mut refused = lock(&self.refused);
        match made {
            // The application has one memory, and needs no second.
            Ok((aside, keeper)) => {
                let _ = self.aside.set(aside);
                let _ = self.keeper.set(keeper);
            }
            Err(error) => {
                let reason = format!(
                    "the application's managed memory cannot be kept: {error}; --managed=coherent needs no userfaultfd"
                );
                tracing::error!("{reason}");
                *refused = Some(reason);
            }
        }
        self.arrived.notify_all();
    }

    fn await_keeper(&self) -> Result<&Keeper> {
        let awaited = |refused: &mut Option<String>| self.keeper.get().is_none() && refused.is_none();
        let waited = self.arrived.wait_timeout_while(lock(&self.refused), PATIENCE, awaited);
        let (refused, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.keeper.get().ok_or_else(|| {
            let reason = refused.clone().unwrap_or_else(|| {
                format!(
                    "the application's userfaultfd, by which its managed memory is kept, has not come in {} s: try again where the machine is less busy, or with \
                     --managed=coherent",
                    PATIENCE.as_secs()
                )
            });
            Failure::new(CuError::UNKNOWN, reason)
        })
    }

    /// To be called before a message is executed whose work may reach so much; what is given lives until it has been.
    ///
    /// # Errors
    /// When what the application has written cannot be written to the device.
    pub(crate) fn reach(&self, reached: impl FnOnce() -> Reached) -> Result<Option<Reach<'_>>> {
        let Some(keeper) = self.keeper.get() else { return Ok(None) };
        let reach = match reached() {
            Reached::Nothing => return Ok(None),
            Reached::Named(ranges) if !self.waited.load(Ordering::Relaxed) => {
                keeper.reach(Scope::Ranges(&ranges))
            }
            Reached::Named(_) | Reached::Anything => keeper.reach(Scope::All),
        };
        reach.map(Some).map_err(failed)
    }

    /// To be called before operations on memory are submitted.
    pub(crate) fn note_waits(&self, operations: &[MemoryOperation]) {
        if operations.iter().any(|operation| matches!(operation, MemoryOperation::Wait { .. })) {
            self.waited.store(true, Ordering::Relaxed);
        }
    }

    /// To be called before the application learns that work is complete.
    ///
    /// # Errors
    /// When what the application has written cannot be written to the device.
    pub fn settle(&self) -> Result<()> {
        self.keeper.get().map_or(Ok(()), Keeper::settle).map_err(failed)
    }

    /// Whether regions had better become coherent, or be so no more: to be asked behind [`Self::settle`].
    #[must_use]
    pub(crate) fn is_change_due(&self) -> bool {
        self.managed.may_cohere()
            && self.side.backend.reaches_host()
            && self.keeper.get().is_some_and(Keeper::is_change_due)
    }

    /// Does what is due. No work is under way, and none begins.
    ///
    /// # Errors
    /// When a region cannot have its memory on the device again.
    pub(crate) fn change(&self) -> Result<()> {
        self.keeper.get().map_or(Ok(()), Keeper::change).map_err(failed)
    }

    /// Where regions begin that are coherent for a while, of those that `of` names.
    pub(crate) fn coherent(&self, of: impl Fn(&ShadowRecord) -> bool) -> Vec<u64> {
        let mut coherent = self.keeper.get().map_or_else(Vec::new, Keeper::coherent);
        if !coherent.is_empty() {
            let live = lock(&self.live);
            coherent.retain(|base| live.get(base).is_some_and(&of));
        }
        coherent
    }

    /// As [`Self::separate`], of the one that begins there.
    pub(crate) fn separate_one(&self, base: u64) -> Result<()> {
        self.keeper.get().map_or(Ok(()), |keeper| keeper.separate_one(base)).map_err(failed)
    }

    /// Has all regions on their devices that are coherent for a while. No work is under way, and none begins.
    ///
    /// # Errors
    /// As [`Self::change`]'s.
    pub(crate) fn separate(&self) -> Result<()> {
        self.keeper.get().map_or(Ok(()), Keeper::separate).map_err(failed)
    }

    /// Has nothing copied from or to any region as long as what is given lives.
    pub(crate) fn hold_still(&self) -> RwLockWriteGuard<'_, ()> {
        write(&self.side.still)
    }

    /// A context in which regions of a device may be copied.
    pub(crate) fn any_context(&self, of_device: impl Fn(ContextId) -> bool) -> Option<ContextId> {
        lock(&self.live).values().map(|record| record.ctx).find(|ctx| of_device(*ctx))
    }

    /// Has later calls of the program told that what it or the device wrote may be lost.
    pub(crate) fn tell(&self, failure: &Failure) {
        tracing::error!(%failure, "managed memory");
        if let Some(session) = self.side.session.get().and_then(Weak::upgrade) {
            session.link.control().set_error(failure.code);
        }
    }

    /// Whether there may be something to settle.
    #[must_use]
    pub fn are_kept(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// Does something on another thread than a stream's own, which must not call the device library, and waits for it.
    ///
    /// # Errors
    /// What it fails with, of which later calls are told, too.
    pub(crate) fn aside(self: &Arc<Self>, step: fn(&Self) -> Result<()>) -> std::result::Result<(), CuError> {
        // Nothing is kept without it.
        let Some(aside) = self.aside.get() else { return Ok(()) };
        let this = Arc::clone(self);
        let done = aside.run(move || step(&this));
        let done = done.unwrap_or_else(|| Err(Failure::new(CuError::UNKNOWN, "a thread panicked")));
        done.map_err(|failure| {
            self.tell(&failure);
            failure.code
        })
    }

    /// Notes that the application has asked for work that is not complete.
    pub fn asked(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.asked();
        }
    }

    /// The session ends: pages come only where the application still touches them.
    pub(crate) fn rest(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.rest();
        }
    }

    /// Waits for what is being made still: whoever makes it has the session, and would end it.
    pub(crate) fn await_rest(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.await_rest();
        }
    }

    /// Has most of what the application has written on the device, while it goes on: [`Self::write_back`] has less to do then.
    ///
    /// # Errors
    /// As [`Self::write_back`]'s.
    pub fn write_ahead(&self) -> Result<()> {
        self.keeper.get().map_or(Ok(()), Keeper::write_ahead).map_err(failed)
    }

    /// Has everything that is kept by shadows on the device, and the files empty; what is coherent work sees as it is. If the application stands still, behind
    /// `separate`, the device has the truth, alone.
    ///
    /// # Errors
    /// When what the application has written cannot be written to the device.
    pub fn write_back(&self) -> Result<()> {
        self.keeper.get().map_or(Ok(()), Keeper::write_back).map_err(failed)
    }

    /// Has what is written back from now on noted, for [`Self::noted`].
    pub(crate) fn note_writes(&self) {
        *lock(&self.side.noted) = Some(Vec::new());
    }

    /// What has been written back since [`Self::note_writes`]; nothing is noted any more.
    pub(crate) fn noted(&self) -> Vec<Range> {
        lock(&self.side.noted).take().unwrap_or_default()
    }

    /// Whether the bytes lie in one region whose pages are kept.
    #[must_use]
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        self.around(address, bytes).is_some_and(|record| record.kept)
    }

    /// The region that the bytes lie in.
    pub(super) fn around(&self, address: u64, bytes: u64) -> Option<ShadowRecord> {
        let live = lock(&self.live);
        let before = live.range(..=address).next_back().map(|(_, record)| *record);
        before.filter(|record| record.range.contains(address, bytes))
    }

    /// Puts bytes into a region, on the device, of which the program has touched none.
    ///
    /// # Errors
    /// The backend's.
    pub fn put(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let (to, whole) = ((address, bytes.len()), [Rows::one(0..bytes.len())]);
        self.side.copy(to, (address, bytes.as_ptr() as u64), &whole).map_err(|error| {
            let code = error.downcast_ref::<CuError>().copied();
            Failure::new(code.unwrap_or(CuError::UNKNOWN), error.to_string())
        })
    }

    fn path(&self, id: PinnedId) -> PathBuf {
        self.dir.join(format!("shadow-{}", id.0))
    }
}

/// How many regions may have shadow pages: each has a file that stays open.
fn most_regions() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(SPARE);
    usize::try_from(files).unwrap_or(usize::MAX).min(REGIONS)
}

/// Whether that leaves enough to all else: a device may have files of its own for memory. Before Linux 6.2 nobody says how many are open.
fn may_open_more() -> bool {
    let open = std::fs::metadata("/proc/self/fd").map_or(0, |all| all.len());
    getrlimit(Resource::Nofile).current.is_none_or(|most| open + SPARE < most)
}

fn convert(range: Range) -> shadow::Range {
    shadow::Range { base: range.base, bytes: range.bytes }
}

fn failed(error: shadow::Error) -> Failure {
    let code = match &error {
        shadow::Error::Device { source, .. } => source.downcast_ref::<CuError>().copied(),
        shadow::Error::NoRoom(_) => Some(CuError::OUT_OF_MEMORY),
        _ => None,
    };
    Failure::new(code.unwrap_or(CuError::UNKNOWN), chain(&error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing {
    use super::*;
    use backend::Backend;
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use shadow::DeviceError;

    /// A device that has failed since it was last read.
    struct Failed;

    impl Device for Failed {
        fn read(&self, _: u64, _: &mut [u8]) -> std::result::Result<(), DeviceError> {
            Ok(())
        }

        fn write(
            &self,
            _: u64,
            _: &[u8],
            _: &[std::ops::Range<usize>],
        ) -> std::result::Result<(), DeviceError> {
            Err(CuError::ILLEGAL_ADDRESS.into())
        }

        fn is_busy(&self) -> bool {
            false
        }

        fn failed(&self, error: shadow::Error) {
            panic!("{error}");
        }
    }

    /// Managed memory that cannot be settled: what work has written behind which the processor has written, too.
    pub(crate) fn that_cannot_be_settled() -> Arc<Shadows> {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let shadows = Shadows::new(&BufferPool::new(&backend), PathBuf::new(), Managed::Shadow);
        let userfault = Userfault::open(Userfault::create_for_user_mode().unwrap()).unwrap();
        let keeper = Keeper::new(userfault, Arc::new(Failed), (1, Managed::Shadow.access())).unwrap();
        let file = rustix::fs::memfd_create("shadow", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes, which stays until the process ends.
        let page =
            unsafe { mmap(std::ptr::null_mut(), PAGE as usize, access, MapFlags::SHARED, &file, 0) }.unwrap();
        keeper.add(shadow::Range { base: page as u64, bytes: PAGE }, file).unwrap();
        drop(keeper.reach(Scope::All).unwrap());
        // SAFETY: the page's first byte, which nobody else touches.
        unsafe { page.cast::<u8>().write_volatile(1) };
        assert!(shadows.keeper.set(keeper).is_ok() && shadows.aside.set(Aside::new().unwrap()).is_ok());
        Arc::new(shadows)
    }
}
