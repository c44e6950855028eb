//! Locks that end by themselves: objects that their holders write again and again.
//!
//! Why they exclude what they must is argued in `docs/image-format.md`, §7: everybody writes his own before he looks for those of others, and judges
//! theirs by the server's clock; nobody who may have lost his changes anything any more.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::S3Options;
use super::client::{BoxFuture, Client, Listed};
use crate::store::random_id;

/// What names of leases begin with that go with others of their kind, and of those that do not.
const SHARED: &str = "shared-";
const EXCLUSIVE: &str = "exclusive-";
/// For how long the end of a lease may keep its holder waiting. After that others wait until it has ended by itself.
const PARTING: Duration = Duration::from_secs(5);
/// No more of what a lease says of its holder is read.
const MOST_HOLDER: u64 = 200;
/// How often it is looked whether another's has ended.
const LOOK: Duration = Duration::from_secs(1);

/// The leases that are held through one medium. When one of them may be lost, all that it protects may be.
#[derive(Debug)]
pub(super) struct Leases {
    client: Arc<Client>,
    options: S3Options,
    held: Mutex<Vec<Arc<Held>>>,
    /// The server's clock when a lease of ours had just been written, and ours then.
    clock: Mutex<Option<(SystemTime, Duration)>>,
}

/// One that is held, as it is known.
#[derive(Debug)]
struct Held {
    path: String,
    /// When the last renewal that succeeded began, in ms of a clock that does not stop while the machine sleeps.
    renewed_ms: AtomicU64,
    lost: AtomicBool,
    ended: Notify,
}

/// Another's lease.
#[derive(Debug)]
struct Other {
    name: String,
    /// Since it was last written.
    age: Duration,
}

/// A lease; dropped, it ends.
#[derive(Debug)]
pub(super) struct Lease {
    leases: Arc<Leases>,
    held: Arc<Held>,
    renewing: Option<JoinHandle<()>>,
}

impl Leases {
    pub(super) fn new(client: Arc<Client>, options: S3Options) -> Self {
        Self { client, options, held: Mutex::default(), clock: Mutex::default() }
    }

    /// Fails if any lease may be lost: then nothing may be changed.
    pub(super) fn check(&self) -> io::Result<()> {
        let now = since_boot();
        match lock(&self.held).iter().find(|held| held.is_lost(now, self.options.valid)) {
            None => Ok(()),
            Some(held) => Err(io::Error::other(format!(
                "the lock {} could not be renewed for more than {} s, so others may have taken the store for unused",
                held.path,
                self.options.valid.as_secs()
            ))),
        }
    }

    /// Takes a lease on `path` that others may have too; waits while somebody has it alone.
    pub(super) fn shared(self: &Arc<Self>, path: &str) -> io::Result<Lease> {
        let lease = self.take_beside(path, SHARED)?;
        let until = since_boot() + self.options.wait;
        loop {
            let others = self.others(path, &lease)?;
            let Some(other) = others.iter().find(|other| other.name.starts_with(EXCLUSIVE)) else {
                return Ok(lease);
            };
            if since_boot() >= until {
                let what = self.being_removed(&format!("{}/{}", folder(path), other.name), other.age);
                return Err(io::Error::new(io::ErrorKind::WouldBlock, what));
            }
            std::thread::sleep(LOOK.min(self.options.wait));
            // Its time is the server's now.
            lease.renew()?;
        }
    }

    /// Takes a lease on `path` that nobody else has, nor any other. `None` where somebody does.
    pub(super) fn exclusive(self: &Arc<Self>, path: &str) -> io::Result<Option<Lease>> {
        let lease = self.take_beside(path, EXCLUSIVE)?;
        let others = self.others(path, &lease)?;
        Ok(others.is_empty().then_some(lease))
    }

    /// Whether the lease that is `path` itself is not renewed any more.
    pub(super) fn has_ended(&self, path: &str) -> io::Result<bool> {
        Ok(self.is_long_ago(self.client.facts(path)?.written))
    }

    /// Whether a lease that was written then, by the server's clock, would have ended. No, where that clock is not known yet.
    pub(super) fn is_long_ago(&self, written: SystemTime) -> bool {
        let now = lock(&self.clock).map(|(server, ours)| server + since_boot().saturating_sub(ours));
        now.is_some_and(|now| self.is_over(written, now))
    }

    /// Who removes images, since when nothing was heard of him, and how to go on.
    fn being_removed(&self, path: &str, age: Duration) -> String {
        let holder = self.client.get_range(path, 0..MOST_HOLDER).map(|(text, _)| printable(&text));
        let holder = holder.unwrap_or_else(|_| "somebody".to_owned());
        let (age, left) = (age.as_secs(), self.options.expiry.saturating_sub(age).as_secs());
        format!(
            "images are being removed by {holder}, who holds {path} and said so last {age} s ago: try again when that is done; if it was \
             killed, the lock ends by itself in {left} s, or at once when that object is removed"
        )
    }

    fn take_beside(self: &Arc<Self>, path: &str, kind: &str) -> io::Result<Lease> {
        let id: String = random_id()?.iter().map(|byte| format!("{byte:02x}")).collect();
        Lease::take(self, format!("{}/{kind}{id}", folder(path)))
    }

    fn is_over(&self, written: SystemTime, now: SystemTime) -> bool {
        now.duration_since(written).is_ok_and(|age| age >= self.options.expiry)
    }

    /// The leases on `path` that have not ended, without `own`, which has just been written. Those that have are removed.
    fn others(&self, path: &str, own: &Lease) -> io::Result<Vec<Other>> {
        let folder = folder(path);
        let mut listed = self.client.list(&folder)?;
        // Not before: what is behind the server's clock makes nobody's lease end too early.
        let listed_at = since_boot();
        let is_own =
            |entry: &Listed| own.held.path.strip_prefix(&folder) == Some(&format!("/{}", entry.name));
        let own = listed.iter().position(is_own).and_then(|at| listed.swap_remove(at).object);
        let Some(own) = own else {
            return Err(io::Error::other(format!("the server does not list {folder} as it is")));
        };
        *lock(&self.clock) = Some((own.written, listed_at));
        let mut others = Vec::new();
        for Listed { name, object } in listed {
            match object {
                Some(object) if self.is_over(object.written, own.written) => {
                    tracing::info!(%name, "a lock has ended that was not given back");
                    self.client.remove(&format!("{folder}/{name}"))?;
                }
                Some(object) => {
                    let age = own.written.duration_since(object.written).unwrap_or_default();
                    others.push(Other { name, age });
                }
                None => {}
            }
        }
        Ok(others)
    }
}

impl Lease {
    /// Writes the lease, and goes on writing it.
    pub(super) fn take(leases: &Arc<Leases>, path: String) -> io::Result<Self> {
        let (renewed_ms, lost, ended) = (AtomicU64::new(0), AtomicBool::new(false), Notify::new());
        let held = Arc::new(Held { path, renewed_ms, lost, ended });
        let mut lease = Self { leases: leases.clone(), held: held.clone(), renewing: None };
        lease.renew()?;
        lock(&leases.held).push(held.clone());
        let renewal = leases.client.putting(&held.path, whose());
        let renewing = renew_on(held, leases.options.clone(), renewal);
        lease.renewing = Some(leases.client.spawn(renewing)?);
        Ok(lease)
    }

    fn renew(&self) -> io::Result<()> {
        let began = since_boot();
        self.leases.client.put(&self.held.path, whose())?;
        self.held.renewed(began);
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.ended.notify_one();
        let client = &self.leases.client;
        let renewing = self.renewing.take();
        // A renewal that is under way would come after the end.
        let _ = client.wait(async { tokio::time::timeout(PARTING, async { renewing?.await.ok() }).await });
        if let Err(error) = client.remove_within(&self.held.path, PARTING) {
            tracing::debug!(%error, "a lock could not be given back; it ends by itself");
        }
        lock(&self.leases.held).retain(|held| !Arc::ptr_eq(held, &self.held));
    }
}

impl Held {
    fn renewed(&self, began: Duration) {
        self.renewed_ms.store(u64::try_from(began.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Once lost, it is lost for ever: others may have come and gone since.
    fn is_lost(&self, now: Duration, valid: Duration) -> bool {
        let renewed = Duration::from_millis(self.renewed_ms.load(Ordering::Acquire));
        if now.saturating_sub(renewed) > valid {
            self.lost.store(true, Ordering::Release);
        }
        self.lost.load(Ordering::Acquire)
    }
}

/// Renews a lease until it ends or is lost.
async fn renew_on(held: Arc<Held>, options: S3Options, renewal: impl Fn() -> BoxFuture<io::Result<()>>) {
    while tokio::time::timeout(options.beat, held.ended.notified()).await.is_err() {
        let began = since_boot();
        if held.is_lost(began, options.valid) {
            tracing::warn!("the lock {} could not be renewed in time and is lost", held.path);
            return;
        }
        match renewal().await {
            Ok(()) if held.is_lost(began, options.valid) => return,
            Ok(()) => held.renewed(began),
            Err(error) => tracing::debug!(%error, "a lock could not be renewed; it will be tried again"),
        }
    }
}

/// What an object says to people, as far as it is a line of text.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().next().unwrap_or_default().chars().filter(|char| !char.is_control()).collect()
}

/// For people who look into the bucket, and who are kept waiting.
fn whose() -> Vec<u8> {
    let host = rustix::system::uname();
    format!("process {} on {}\n", std::process::id(), host.nodename().to_string_lossy()).into_bytes()
}

/// Where the leases on `path` lie.
fn folder(path: &str) -> String {
    format!("{path}.locks")
}

/// Time since this machine was started, asleep or not.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
