//! Who holds what of the memory and events that the sessions of a job share, and the way from one server to another. A thread for each
//! session listens to its server; nothing here waits for a server's answer, but for a rehearsal's end.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use server::sharing::{Gift, Refusal, ToBroker, ToServer, receive, send};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::{Claim, CuError, ShareId};

/// A server that takes no packet for this long takes part no longer.
const SILENCE: Duration = Duration::from_secs(10);

/// The broker of a job.
#[derive(Default)]
pub struct Broker(Mutex<State>);

#[derive(Default)]
struct State {
    members: BTreeMap<u32, Member>,
    /// Who holds what, those who have held longest first.
    holders: BTreeMap<ShareId, Vec<u32>>,
    /// What holders were asked to give.
    asked: BTreeMap<u64, Asked>,
    /// What nobody holds yet, while somebody may.
    waiting: Vec<Wish>,
    requests: u64,
    /// What may take memory of a device beside the sessions.
    rehearsal: Option<Rehearsal>,
    /// How many there were before.
    rehearsals: u64,
    /// How often something has come to be owned by another.
    successions: u64,
}

struct Member {
    socket: Arc<OwnedFd>,
    /// Whether it holds all of its own: a session that is being restored may come to hold something.
    ready: bool,
}

/// What a session wants.
#[derive(Clone, Copy)]
struct Wish {
    session: u32,
    /// The session's number for it.
    request: u64,
    share: ShareId,
    claim: Option<Claim>,
}

/// A rehearsal.
struct Rehearsal {
    /// Its pidfd.
    process: Arc<OwnedFd>,
    /// Whether it was ended for the program.
    gives_way: bool,
}

/// A wish, and who was asked.
struct Asked {
    wish: Wish,
    holder: u32,
}

/// A packet and for whom it is: sent where no lock is held.
struct Letter {
    to: Arc<OwnedFd>,
    message: ToServer,
    file: Option<OwnedFd>,
    /// A process that is killed before.
    behind: Option<Arc<OwnedFd>>,
}

impl Letter {
    fn send(self) {
        if let Some(process) = &self.behind
            && let Err(error) = host::pidfd::end(process)
        {
            tracing::warn!("a rehearsal that is in the program's way does not end: {error}");
        }
        if let Err(error) = send(&self.to, &self.message, self.file.as_ref().map(AsFd::as_fd)) {
            match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    tracing::debug!("a server has ended before it was told of what it shares");
                }
                _ => tracing::warn!("a server takes no packets, and shares nothing any more: {error}"),
            }
            // Whoever waits for its answer is not left waiting: whoever listens to it finds the end, and asks the next holder.
            // Where the other end is gone, that is so already.
            let _ = shutdown(&self.to, Shutdown::Both);
        }
    }
}

impl Broker {
    /// Lets a session take part; the descriptor is its server's. `restored`: it comes from an image, and is not ready yet.
    ///
    /// # Errors
    /// When there is no socket or thread to be had.
    pub fn join(self: &Arc<Self>, session: u32, restored: bool) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&ours, Timeout::Send, Some(SILENCE))?;
        let socket = Arc::new(ours);
        self.state().members.insert(session, Member { socket: Arc::clone(&socket), ready: !restored });
        let (broker, listened) = (Arc::clone(self), Arc::clone(&socket));
        let listening = std::thread::Builder::new().name("broker".into()).spawn(move || {
            broker.listen(session, &listened);
            broker.leave(session, &listened);
        });
        listening.inspect_err(|_| self.leave(session, &socket))?;
        Ok(theirs)
    }

    /// Tells a session's server which process it serves.
    ///
    /// # Errors
    /// As [`Self::give_userfault`]'s.
    pub fn introduce(&self, session: u32, pid: i32, pidfd: BorrowedFd<'_>) -> io::Result<()> {
        self.give(session, &ToServer::Application { pid }, pidfd)
    }

    /// Gives a session's server the userfaultfd of its application.
    ///
    /// # Errors
    /// `NotConnected` when it takes no part any more; the socket's.
    pub fn give_userfault(&self, session: u32, userfault: BorrowedFd<'_>) -> io::Result<()> {
        self.give(session, &ToServer::Userfault, userfault)
    }

    /// A session has no server any more, and holds nothing; who listens to that server need not have noticed yet.
    pub fn forget(&self, session: u32) {
        let letters = self.state().leave(session);
        letters.into_iter().for_each(Letter::send);
    }

    /// Has a rehearsal give way to the program from now on, whose process this is, by its pidfd; until it is gone.
    pub fn rehearses(&self, process: OwnedFd) -> Rehearsing<'_> {
        self.state().rehearsal = Some(Rehearsal { process: Arc::new(process), gives_way: false });
        Rehearsing(self)
    }

    fn give(&self, session: u32, message: &ToServer, file: BorrowedFd<'_>) -> io::Result<()> {
        let socket = self.state().members.get(&session).map(|member| Arc::clone(&member.socket));
        send(&*socket.ok_or(io::ErrorKind::NotConnected)?, message, Some(file))
    }

    /// How often something has come to be owned by another session.
    #[must_use]
    pub fn successions(&self) -> u64 {
        self.state().successions
    }

    /// Whether any of these sessions holds something that none of them owns.
    #[must_use]
    pub fn is_owned_outside(&self, sessions: &BTreeSet<u32>) -> bool {
        let among = |session: &u32| sessions.contains(session);
        self.state()
            .holders
            .values()
            .any(|holders| !holders.first().is_some_and(among) && holders.iter().any(among))
    }

    /// Whether this session holds something that another holds, too.
    #[must_use]
    pub fn shares(&self, session: u32) -> bool {
        self.state().holders.values().any(|holders| holders.len() > 1 && holders.contains(&session))
    }

    fn listen(&self, session: u32, socket: &OwnedFd) {
        loop {
            match receive::<ToBroker>(socket) {
                Ok(Some((message, file))) => {
                    let letters = self.state().take(session, message, file);
                    letters.into_iter().for_each(Letter::send);
                }
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!("session {session} shares nothing any more: {error}");
                    return;
                }
            }
        }
    }

    /// A session has ended: others own what it held.
    fn leave(&self, session: u32, socket: &Arc<OwnedFd>) {
        let mut state = self.state();
        // Another session may have its number by now.
        if state.members.get(&session).is_some_and(|member| Arc::ptr_eq(&member.socket, socket)) {
            let letters = state.leave(session);
            drop(state);
            letters.into_iter().for_each(Letter::send);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rehearsal that gives way to the program. Dropped when its process has ended: who found no room before then may find some.
#[must_use]
pub struct Rehearsing<'a>(&'a Broker);

impl Rehearsing<'_> {
    /// Whether it has.
    #[must_use]
    pub fn has_given_way(&self) -> bool {
        self.0.state().rehearsal.as_ref().is_some_and(|rehearsal| rehearsal.gives_way)
    }
}

impl Drop for Rehearsing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.rehearsal = None;
        state.rehearsals += 1;
    }
}

impl State {
    fn take(&mut self, session: u32, message: ToBroker, file: Option<OwnedFd>) -> Vec<Letter> {
        match message {
            ToBroker::Hold(share) => {
                let holders = self.holders.entry(share).or_default();
                if !holders.contains(&session) {
                    holders.push(session);
                }
                self.wake()
            }
            ToBroker::Release(share) => {
                self.release(share, session);
                Vec::new()
            }
            ToBroker::Ready => {
                if let Some(member) = self.members.get_mut(&session) {
                    member.ready = true;
                }
                self.wake()
            }
            ToBroker::Open { request, share, claim } => {
                self.waiting.push(Wish { session, request, share, claim });
                self.wake()
            }
            ToBroker::Given { request, gift } => self.given(session, request, gift, file),
            ToBroker::Owned { request, shares } => {
                let owner = |share| self.holders.get(share).and_then(|holders| holders.first());
                let owned = shares.iter().map(|share| owner(share) == Some(&session)).collect();
                self.letter(session, ToServer::Owned { request, owned }, None)
            }
            ToBroker::NoRoom { request } => {
                let ended = self.rehearsals + u64::from(self.rehearsal.is_some());
                let mut letters = self.letter(session, ToServer::Room { request, ended }, None);
                for letter in &mut letters {
                    letter.behind = self.rehearsal.as_mut().map(|rehearsal| {
                        rehearsal.gives_way = true;
                        Arc::clone(&rehearsal.process)
                    });
                }
                letters
            }
        }
    }

    fn letter(&self, to: u32, message: ToServer, file: Option<OwnedFd>) -> Vec<Letter> {
        let member = self.members.get(&to);
        let to = member.map(|member| Arc::clone(&member.socket));
        to.map(|to| Letter { to, message, file, behind: None }).into_iter().collect()
    }

    fn release(&mut self, share: ShareId, session: u32) {
        if let Some(holders) = self.holders.get_mut(&share) {
            let before = holders.first().copied();
            holders.retain(|holder| *holder != session);
            let after = holders.first().copied();
            self.successions += u64::from(after.is_some() && after != before);
            if after.is_none() {
                self.holders.remove(&share);
            }
        }
    }

    /// Looks at all that is waited for: who can be asked is, and what nobody will hold any more is refused.
    fn wake(&mut self) -> Vec<Letter> {
        let mut letters = Vec::new();
        for wish in std::mem::take(&mut self.waiting) {
            let holder = self.holders.get(&wish.share).and_then(|holders| holders.first()).copied();
            match holder {
                Some(holder) if holder != wish.session => {
                    self.requests += 1;
                    let (request, Wish { share, claim, .. }) = (self.requests, wish);
                    self.asked.insert(request, Asked { wish, holder });
                    letters.extend(self.letter(holder, ToServer::Give { request, share, claim }, None));
                }
                _ => self.waiting.push(wish),
            }
        }
        letters.extend(self.refuse_in_vain());
        letters
    }

    /// Refuses what nobody can come to hold: all others are ready, or wait themselves.
    fn refuse_in_vain(&mut self) -> Vec<Letter> {
        let waits = |session: &u32| self.waiting.iter().any(|wish| wish.session == *session);
        let may_come = self.members.iter().any(|(session, member)| !member.ready && !waits(session));
        if may_come {
            return Vec::new();
        }
        let vain = std::mem::take(&mut self.waiting);
        vain.into_iter()
            .flat_map(|wish| {
                let reason = "no process of this job has it (any more); one of another job, or of none, cannot be opened";
                let gift = Err(Refusal::new(CuError::INVALID_HANDLE, reason));
                self.letter(wish.session, ToServer::Opened { request: wish.request, gift }, None)
            })
            .collect()
    }

    /// A holder answers.
    fn given(
        &mut self,
        session: u32,
        request: u64,
        gift: Result<Gift, Refusal>,
        file: Option<OwnedFd>,
    ) -> Vec<Letter> {
        // What it was not asked for is dropped.
        if self.asked.get(&request).is_none_or(|asked| asked.holder != session) {
            return Vec::new();
        }
        let Some(Asked { wish, .. }) = self.asked.remove(&request) else { return Vec::new() };
        let holds = self.holders.get(&wish.share).is_some_and(|holders| holders.contains(&session));
        if gift.is_err() && !holds {
            // It let go of it before it heard the question.
            self.waiting.push(wish);
            return self.wake();
        }
        self.letter(wish.session, ToServer::Opened { request: wish.request, gift }, file)
    }

    fn leave(&mut self, session: u32) -> Vec<Letter> {
        self.members.remove(&session);
        let held: Vec<ShareId> = self
            .holders
            .iter()
            .filter(|(_, holders)| holders.contains(&session))
            .map(|(share, _)| *share)
            .collect();
        held.into_iter().for_each(|share| self.release(share, session));
        self.waiting.retain(|wish| wish.session != session);
        self.asked.retain(|_, asked| asked.wish.session != session);
        // Whoever owns it now is asked in its place.
        let orphans: Vec<u64> = self
            .asked
            .iter()
            .filter(|(_, asked)| asked.holder == session)
            .map(|(request, _)| *request)
            .collect();
        for request in orphans {
            self.waiting.extend(self.asked.remove(&request).map(|asked| asked.wish));
        }
        self.wake()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_send_buffer_size;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::unix::process::ExitStatusExt;

    const SHARE: ShareId = ShareId([3; 16]);

    /// A server played by a test.
    struct Server(OwnedFd);

    impl Server {
        fn join(broker: &Arc<Broker>, session: u32, restored: bool) -> Self {
            let socket = broker.join(session, restored).unwrap();
            set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
            Self(socket)
        }

        fn say(&self, message: &ToBroker) {
            send(&self.0, message, None).unwrap();
        }

        fn hear(&self) -> (ToServer, Option<OwnedFd>) {
            receive(&self.0).unwrap().unwrap()
        }

        fn open(&self, request: u64) {
            self.say(&ToBroker::Open { request, share: SHARE, claim: None });
        }

        fn owns(&self) -> bool {
            self.say(&ToBroker::Owned { request: 99, shares: vec![SHARE] });
            let (ToServer::Owned { request: 99, owned }, _) = self.hear() else { panic!("another answer") };
            owned == [true]
        }

        /// Answers a question with a file.
        fn give(&self) {
            let (ToServer::Give { request, share: SHARE, .. }, _) = self.hear() else {
                panic!("no question")
            };
            let file = tempfile::tempfile().unwrap();
            let gift = Ok(Gift::Memory { device: 0, bytes: 4096, handle_types: 0, compressible: false });
            send(&self.0, &ToBroker::Given { request, gift }, Some(file.as_fd())).unwrap();
        }

        fn gets(&self, expected: u64) {
            let (ToServer::Opened { request, gift: Ok(Gift::Memory { bytes: 4096, .. }) }, Some(_)) =
                self.hear()
            else {
                panic!("it gets nothing")
            };
            assert_eq!(request, expected);
        }

        fn gets_nothing(&self) {
            let (ToServer::Opened { gift: Err(Refusal { code, .. }), .. }, None) = self.hear() else {
                panic!("it gets something")
            };
            assert_eq!(code, CuError::INVALID_HANDLE.code());
        }
    }

    #[test]
    fn what_one_holds_another_gets_and_may_come_to_own() {
        let broker = Arc::new(Broker::default());
        let [first, second, third] = [1, 2, 3].map(|session| Server::join(&broker, session, false));
        second.open(1);
        second.gets_nothing();
        first.say(&ToBroker::Hold(SHARE));
        assert!(first.owns());
        second.open(2);
        first.give();
        second.gets(2);
        second.say(&ToBroker::Hold(SHARE));
        assert!(!second.owns() && first.owns());
        let is_outside = |sessions: &[u32]| broker.is_owned_outside(&sessions.iter().copied().collect());
        assert!(is_outside(&[2]) && !is_outside(&[1]) && !is_outside(&[1, 2]) && !is_outside(&[3]));
        assert_eq!((broker.successions(), broker.shares(1), broker.shares(2)), (0, true, true));
        third.open(3);
        // It ends before it has answered.
        assert!(matches!(first.hear(), (ToServer::Give { .. }, None)));
        drop(first);
        second.give();
        third.gets(3);
        assert!(second.owns() && !is_outside(&[2]) && broker.successions() == 1);
        third.say(&ToBroker::Hold(ShareId([4; 16])));
        assert!(!third.owns() && !broker.shares(2) && !broker.shares(3));
        second.say(&ToBroker::Release(SHARE));
        assert!(!second.owns());
        third.open(4);
        third.gets_nothing();
    }

    #[test]
    fn who_lets_go_before_the_question_is_no_obstacle() {
        let broker = Arc::new(Broker::default());
        let [first, second, third] = [1, 2, 3].map(|session| Server::join(&broker, session, false));
        for each in [&first, &second] {
            each.say(&ToBroker::Hold(SHARE));
            each.owns();
        }
        third.open(1);
        let (ToServer::Give { request, .. }, _) = first.hear() else { panic!("no question") };
        first.say(&ToBroker::Release(SHARE));
        let gift = Err(Refusal::new(CuError::INVALID_HANDLE, "there is none"));
        first.say(&ToBroker::Given { request, gift: gift.clone() });
        second.give();
        third.gets(1);
        // A refusal of one who has it is the answer.
        third.open(2);
        let (ToServer::Give { request, .. }, _) = second.hear() else { panic!("no question") };
        second.say(&ToBroker::Given { request, gift });
        third.gets_nothing();
    }

    /// As when it is stopped, or does nothing but ask.
    #[test]
    fn who_takes_nothing_keeps_nobody_waiting() {
        let broker = Arc::new(Broker::default());
        let [first, second] = [1, 2].map(|session| Server::join(&broker, session, false));
        first.say(&ToBroker::Hold(SHARE));
        assert!(first.owns());
        let to_first = Arc::clone(&broker.state().members[&1].socket);
        set_socket_send_buffer_size(&*to_first, 1).unwrap();
        set_socket_timeout(&*to_first, Timeout::Send, Some(Duration::from_millis(20))).unwrap();
        let requests = 100;
        (0..requests).for_each(|request| second.open(request));
        (0..requests).for_each(|_| second.gets_nothing());
        assert!(broker.state().asked.is_empty() && !broker.state().members.contains_key(&1));
        second.say(&ToBroker::Hold(SHARE));
        assert!(second.owns());
    }

    #[test]
    fn sessions_that_are_restored_wait_for_each_other_as_long_as_it_makes_sense() {
        let broker = Arc::new(Broker::default());
        let [first, second, third] = [1, 2, 3].map(|session| Server::join(&broker, session, true));
        second.open(1);
        first.say(&ToBroker::Hold(SHARE));
        first.give();
        second.gets(1);
        // Nobody has that: all others have to say so.
        let nothing = ToBroker::Open { request: 2, share: ShareId([4; 16]), claim: None };
        second.say(&nothing);
        first.say(&ToBroker::Ready);
        drop(third);
        second.gets_nothing();
    }

    #[test]
    fn answers_that_nobody_asked_for_are_dropped() {
        let broker = Arc::new(Broker::default());
        let [first, second] = [1, 2].map(|session| Server::join(&broker, session, false));
        first.say(&ToBroker::Hold(SHARE));
        assert!(first.owns());
        second.open(7);
        let (ToServer::Give { request, .. }, _) = first.hear() else { panic!("no question") };
        let gift = Ok(Gift::Event { bytes: vec![1] });
        // Not by whoever was asked.
        second.say(&ToBroker::Given { request, gift: gift.clone() });
        second.say(&ToBroker::Release(SHARE));
        first.say(&ToBroker::Given { request: request + 1, gift: gift.clone() });
        first.say(&ToBroker::Given { request, gift: gift.clone() });
        assert_eq!(second.hear().0, ToServer::Opened { request: 7, gift });
    }

    #[test]
    fn a_rehearsal_gives_way_to_who_has_no_room() {
        let broker = Arc::new(Broker::default());
        let [first, second] = [1, 2].map(|session| Server::join(&broker, session, false));
        let ended_for = |server: &Server| {
            server.say(&ToBroker::NoRoom { request: 5 });
            let (ToServer::Room { request: 5, ended }, None) = server.hear() else {
                panic!("another answer")
            };
            ended
        };
        let begin = || {
            let process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()).unwrap();
            (process, broker.rehearses(pidfd))
        };
        assert_eq!(ended_for(&first), 0, "there is none");
        let (mut process, rehearsing) = begin();
        assert!(!rehearsing.has_given_way());
        assert_eq!(ended_for(&first), 1);
        // It has ended by then; and whoever asks next, too, may find the room that it had.
        assert_eq!(process.try_wait().unwrap().unwrap().signal(), Some(9));
        assert!(rehearsing.has_given_way());
        assert_eq!(ended_for(&second), 1);
        drop(rehearsing);
        assert_eq!([&first, &second].map(ended_for), [1, 1], "there was one");

        // One that nobody was in want of room for is over, and has given it back.
        let (mut process, rehearsing) = begin();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(!rehearsing.has_given_way());
        drop(rehearsing);
        assert_eq!([&first, &second].map(ended_for), [2, 2]);
    }
}
