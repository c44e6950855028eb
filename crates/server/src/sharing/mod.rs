//! What sessions of a job share: device memory and events. Each thing shared has a [`ShareId`]; the sessions that have it *hold* it. The
//! supervisor's broker knows who holds what, and carries descriptors from one server to another. Of the holders the one who has held
//! longest *owns* it: it writes the contents into an image, and makes it anew at a restart, from which the others get it.
//! `docs/ipc.md` tells the whole.

mod packet;

pub use packet::{Gift, NAMES_MAX, Refusal, ToBroker, ToServer, receive, send};

use crate::Application;
use crate::failure::{Failure, Result};
use crate::lock;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;
use wire::{Claim, CuError, ShareId};

/// How often whoever waits for another session looks whether its own has ended.
const LOOK: Duration = Duration::from_millis(50);

/// A gift, and its descriptor.
pub type Given = (Gift, Option<OwnedFd>);

/// Whoever holds things.
pub trait Giver: Send + Sync {
    /// What another session needs to have it too. Must not wait for another session.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it is not there, or the claim is none.
    fn give(&self, share: ShareId, claim: Option<Claim>) -> Result<Given>;

    /// Learns which process its application is.
    fn take_application(&self, application: Application);

    /// Takes the userfaultfd of its application.
    fn take_userfault(&self, userfault: OwnedFd);
}

/// An answer of the broker's.
enum Answer {
    Opened(Result<Given>),
    Owned(Vec<bool>),
    Room(u64),
}

/// A session's way to the others.
pub struct Sharing {
    way: Way,
    /// How many rehearsals of the job have ended, as far as this session has asked.
    rehearsals: AtomicU64,
    giver: OnceLock<Weak<dyn Giver>>,
}

enum Way {
    /// There is none: nobody else holds anything.
    Alone,
    /// The same, for a rehearsal: what others own is made anew.
    Rehearsal,
    Broker(Broker),
}

struct Broker {
    socket: OwnedFd,
    next: AtomicU64,
    /// Who waits for an answer; `None` when there will be none any more.
    waiting: Mutex<Option<BTreeMap<u64, mpsc::Sender<Answer>>>>,
}

impl std::fmt::Debug for Sharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.way {
            Way::Alone => "Sharing(alone)",
            Way::Rehearsal => "Sharing(rehearsal)",
            Way::Broker(_) => "Sharing(broker)",
        })
    }
}

fn gone() -> Failure {
    Failure::new(
        CuError::DEVICE_UNAVAILABLE,
        "the supervisor is gone, or has let go of this session, which took no answers",
    )
}

/// A name that nothing has yet.
///
/// # Errors
/// When the kernel has no random bytes.
pub fn fresh() -> Result<ShareId> {
    let mut id = [0; 16];
    match rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == id.len() => Ok(ShareId(id)),
        _ => Err(Failure::new(CuError::UNKNOWN, "the kernel has no random bytes")),
    }
}

impl Sharing {
    /// No other session.
    #[must_use]
    pub fn alone() -> Arc<Self> {
        Self::by(Way::Alone)
    }

    /// A rehearsal, whose session is a stand-in for one that shares.
    #[must_use]
    pub fn rehearsal() -> Arc<Self> {
        Self::by(Way::Rehearsal)
    }

    /// The broker at the other end of a socket.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn over(socket: OwnedFd) -> io::Result<Arc<Self>> {
        let broker = Broker { socket, next: AtomicU64::new(1), waiting: Mutex::new(Some(BTreeMap::new())) };
        let sharing = Self::by(Way::Broker(broker));
        let listening = Arc::clone(&sharing);
        std::thread::Builder::new().name("sharing".into()).spawn(move || {
            if let Way::Broker(broker) = &listening.way {
                broker.listen(&listening.giver);
            }
        })?;
        Ok(sharing)
    }

    fn by(way: Way) -> Arc<Self> {
        Arc::new(Self { way, rehearsals: AtomicU64::new(0), giver: OnceLock::new() })
    }

    /// Others are given what they want by `giver`, on a thread of their own.
    pub fn give_from(&self, giver: Weak<dyn Giver>) {
        // A session has its own way.
        let _ = self.giver.set(giver);
    }

    fn say(&self, message: &ToBroker) {
        if let Way::Broker(broker) = &self.way
            && let Err(error) = send(&broker.socket, message, None)
        {
            tracing::debug!("the broker is gone: {error}");
        }
    }

    /// This session has it, and can give it.
    pub fn hold(&self, share: ShareId) {
        self.say(&ToBroker::Hold(share));
    }

    /// Waits until the broker has heard all that was said: whoever learns of it from this session from now on can ask for it. Not
    /// while a lock is held that a gift needs.
    ///
    /// # Errors
    /// `DEVICE_UNAVAILABLE` when the broker is gone.
    pub fn settle(&self) -> Result<()> {
        let Way::Broker(broker) = &self.way else { return Ok(()) };
        let answer = broker.ask(|request| ToBroker::Owned { request, shares: Vec::new() }, || false);
        answer.map(drop)
    }

    /// It no longer has.
    pub fn release(&self, share: ShareId) {
        self.say(&ToBroker::Release(share));
    }

    /// What the session has of its own from an image it holds.
    pub fn ready(&self) {
        self.say(&ToBroker::Ready);
    }

    /// Gets it from whoever owns it; `give_up` ends the wait. `None` in a rehearsal: it is to be made anew.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when nobody has it; what the owner answers.
    pub fn open(
        &self,
        share: ShareId,
        claim: Option<Claim>,
        give_up: impl Fn() -> bool,
    ) -> Result<Option<Given>> {
        let broker = match &self.way {
            Way::Alone => return Err(Failure::new(CuError::INVALID_HANDLE, format!("nobody has {share}"))),
            Way::Rehearsal => return Ok(None),
            Way::Broker(broker) => broker,
        };
        match broker.ask(|request| ToBroker::Open { request, share, claim }, give_up)? {
            Answer::Opened(given) => given.map(Some),
            Answer::Owned(_) | Answer::Room(_) => Err(gone()),
        }
    }

    /// Which of these the session is to write into an image. What it has let go of the broker knows then, also when it is asked
    /// about nothing: it would call this session the owner, to others.
    ///
    /// # Errors
    /// `DEVICE_UNAVAILABLE` when the broker is gone.
    pub fn owned(&self, shares: &[ShareId]) -> Result<Vec<bool>> {
        let Way::Broker(broker) = &self.way else { return Ok(vec![true; shares.len()]) };
        if shares.is_empty() {
            self.settle()?;
        }
        let mut all = Vec::with_capacity(shares.len());
        for shares in shares.chunks(NAMES_MAX) {
            let ask = |request| ToBroker::Owned { request, shares: shares.to_vec() };
            match broker.ask(ask, || false)? {
                Answer::Owned(owned) if owned.len() == shares.len() => all.extend(owned),
                _ => return Err(gone()),
            }
        }
        Ok(all)
    }

    /// How many rehearsals of the job have ended, as far as is known here.
    pub fn rehearsals(&self) -> u64 {
        self.rehearsals.load(Ordering::Relaxed)
    }

    /// Has a rehearsal end that may take memory of a device; how many have ended then. What found no room when there were fewer may find
    /// some now. Not while a lock is held that a gift needs; `give_up` ends the wait.
    pub fn end_rehearsal(&self, give_up: impl Fn() -> bool) -> u64 {
        let Way::Broker(broker) = &self.way else { return 0 };
        if let Ok(Answer::Room(ended)) = broker.ask(|request| ToBroker::NoRoom { request }, give_up) {
            self.rehearsals.fetch_max(ended, Ordering::Relaxed);
        }
        self.rehearsals()
    }
}

impl Broker {
    fn ask(&self, message: impl FnOnce(u64) -> ToBroker, give_up: impl Fn() -> bool) -> Result<Answer> {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, wait) = mpsc::channel();
        lock(&self.waiting).as_mut().ok_or_else(gone)?.insert(request, answer);
        let sent = send(&self.socket, &message(request), None);
        let answered = sent.map_err(|_| gone()).and_then(|()| {
            loop {
                match wait.recv_timeout(LOOK) {
                    Ok(answer) => return Ok(answer),
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
                    Err(mpsc::RecvTimeoutError::Timeout) if give_up() => {
                        return Err(Failure::new(CuError::DEVICE_UNAVAILABLE, "the session has ended"));
                    }
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                }
            }
        });
        if let Some(waiting) = lock(&self.waiting).as_mut() {
            waiting.remove(&request);
        }
        answered
    }

    fn answered(&self, request: u64, answer: Answer) {
        let waiting = lock(&self.waiting).as_mut().and_then(|waiting| waiting.remove(&request));
        // Whoever asked may have given up.
        let _ = waiting.map(|waiting| waiting.send(answer));
    }

    fn listen(&self, giver: &OnceLock<Weak<dyn Giver>>) {
        loop {
            match receive::<ToServer>(&self.socket) {
                Ok(Some((ToServer::Give { request, share, claim }, _))) => {
                    let giver = giver.get().and_then(Weak::upgrade).ok_or_else(gone);
                    let (gift, file) = match giver.and_then(|giver| giver.give(share, claim)) {
                        Ok((gift, file)) => (Ok(gift), file),
                        Err(failure) => (Err(Refusal::new(failure.code, failure.detail)), None),
                    };
                    let given = ToBroker::Given { request, gift };
                    if let Err(error) = send(&self.socket, &given, file.as_ref().map(AsFd::as_fd)) {
                        tracing::debug!("the broker is gone: {error}");
                    }
                }
                Ok(Some((ToServer::Opened { request, gift }, file))) => {
                    let gift = gift.map(|gift| (gift, file)).map_err(|Refusal { code, reason }| {
                        Failure::new(CuError::from_code(code).unwrap_or(CuError::UNKNOWN), reason)
                    });
                    self.answered(request, Answer::Opened(gift));
                }
                Ok(Some((ToServer::Application { pid }, file))) => {
                    if let Some((giver, file)) = giver.get().and_then(Weak::upgrade).zip(file) {
                        giver.take_application(Application::new(pid, file));
                    }
                }
                Ok(Some((ToServer::Userfault, file))) => {
                    if let Some((giver, file)) = giver.get().and_then(Weak::upgrade).zip(file) {
                        giver.take_userfault(file);
                    }
                }
                Ok(Some((ToServer::Owned { request, owned }, _))) => {
                    self.answered(request, Answer::Owned(owned));
                }
                Ok(Some((ToServer::Room { request, ended }, _))) => {
                    self.answered(request, Answer::Room(ended));
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!("what other sessions share is out of reach: {error}");
                    break;
                }
            }
        }
        // Nobody is answered any more.
        *lock(&self.waiting) = None;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn who_holds_nothing_has_been_heard_to_let_go() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let sharing = Sharing::over(theirs).unwrap();
        let share = ShareId([1; 16]);
        sharing.release(share);
        let asking = std::thread::spawn(move || sharing.owned(&[]));
        assert_eq!(receive::<ToBroker>(&ours).unwrap().unwrap().0, ToBroker::Release(share));
        let Some((ToBroker::Owned { request, shares }, _)) = receive::<ToBroker>(&ours).unwrap() else {
            panic!("nobody is asked")
        };
        assert!(shares.is_empty() && !asking.is_finished());
        send(&ours, &ToServer::Owned { request, owned: Vec::new() }, None).unwrap();
        assert!(asking.join().unwrap().unwrap().is_empty());
    }
}
