//! The side of the job: asks, and waits for answers.

use crate::Folder;
use crate::messages::{Answer, Ask, LOAD_MAX, Told, What, greet, receive, send};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use wires::Wires;

/// The machine that a job moves to. Cheap to clone; its session ends with the last.
#[derive(Clone)]
pub struct Arrival(Arc<Session>);

/// A session, and who waits in it.
pub(crate) struct Session {
    to: Stream,
    /// For what is written to files.
    bulk: Vec<Stream>,
    open_files: Mutex<OpenFiles>,
    waiting: Mutex<Waiting>,
    /// The last number, of an ask or of something open.
    number: AtomicU64,
    /// How long what is asked of the folder may take.
    within: Duration,
    hang_up: Arc<dyn Fn() + Send + Sync>,
}

/// Who waits for which answer; nobody any more, and why, once the session is lost.
enum Waiting {
    For(HashMap<u64, Asked>),
    Lost(String),
}

/// Who waits, and how long for.
struct Asked {
    tell: SyncSender<Heard>,
    since: Instant,
    within: Duration,
}

/// A way to the other side.
struct Stream {
    out: Mutex<Box<dyn Write + Send>>,
    /// Since when somebody writes, which takes as long as the other side lets it.
    since: Mutex<Option<Instant>>,
}

impl Stream {
    fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out: Mutex::new(out), since: Mutex::default() }
    }
}

/// How many files go by each bulk stream.
struct OpenFiles {
    by_stream: Vec<usize>,
    /// The stream of the last one.
    last: usize,
}

impl OpenFiles {
    /// Takes the stream by which the fewest go; of several the next one, since the end of the last file may still be under way on that.
    fn open(&mut self) -> usize {
        let streams = self.by_stream.len();
        let next = (1..=streams).map(|ahead| (self.last + ahead) % streams);
        // There is one at least, as `Wires` has it.
        self.last = next.min_by_key(|stream| self.by_stream.get(*stream)).unwrap_or(0);
        self.by_stream.get_mut(self.last).into_iter().for_each(|files| *files += 1);
        self.last
    }

    fn close(&mut self, stream: usize) {
        self.by_stream.get_mut(stream).into_iter().for_each(|files| *files -= 1);
    }
}

/// The bulk stream that all of one file goes by, so that it is in order.
pub(crate) struct FileStream {
    session: Arc<Session>,
    number: usize,
}

impl FileStream {
    /// Says something about a file that is being written, which is not answered.
    pub(crate) fn tell(&self, what: What, load: &[u8]) -> io::Result<()> {
        self.session.send(self.stream(), &Ask { number: 0, what }, load)
    }

    /// Asks about it, behind what was written to it, and waits for the answer.
    pub(crate) fn ask(&self, what: What) -> io::Result<(Told, Vec<u8>)> {
        self.session.ask_with(self.stream(), what, &[], self.session.within)
    }

    fn stream(&self) -> &Stream {
        self.session.bulk.get(self.number).unwrap_or(&self.session.to)
    }
}

impl fmt::Debug for FileStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileStream").field(&self.number).finish()
    }
}

impl Drop for FileStream {
    fn drop(&mut self) {
        self.session.open_files().close(self.number);
    }
}

type Heard = (Result<Told, io::Error>, Vec<u8>);

impl Arrival {
    /// Begins to ask; the streams are those of a session with a machine on which [`serve()`](crate::serve()) runs. Where an answer about the folder, or a piece of a file,
    /// takes longer than `within`, the session is lost: a machine whose disk has stopped says that it is there all the same.
    ///
    /// # Errors
    /// When the other side speaks another version, or nothing.
    pub fn connect(wires: Wires, within: Duration) -> io::Result<Self> {
        let Wires { mut control_out, mut control_in, bulk_out, hang_up, patience, .. } = wires;
        greet(&mut *control_out, &mut *control_in)?;
        let bulk: Vec<_> = bulk_out.into_iter().map(Stream::new).collect();
        let session = Arc::new(Session {
            to: Stream::new(control_out),
            open_files: Mutex::new(OpenFiles { by_stream: vec![0; bulk.len()], last: 0 }),
            bulk,
            waiting: Mutex::new(Waiting::For(HashMap::new())),
            number: AtomicU64::new(0),
            within,
            hang_up,
        });
        let heard = Arc::downgrade(&session);
        thread::spawn(move || hear(&heard, &mut *control_in));
        let says = Arc::downgrade(&session);
        thread::spawn(move || keep_saying(&says, patience.says_every()));
        let watched = Arc::downgrade(&session);
        thread::spawn(move || watch(&watched, patience.says_every().min(within / 4)));
        Ok(Self(session))
    }

    /// The folder there; `name` is what messages call it.
    #[must_use]
    pub fn folder(&self, name: &str) -> Folder {
        Folder::new(Arc::clone(&self.0), name)
    }

    /// Asks whoever has the folder, who may take so long.
    ///
    /// # Errors
    /// [`SayError`].
    pub fn say(&self, question: &[u8], within: Duration) -> Result<Vec<u8>, SayError> {
        if question.len() > LOAD_MAX {
            let long = io::Error::new(io::ErrorKind::InvalidInput, "a question that is too long");
            return Err(SayError::Unsaid(long));
        }
        if let Waiting::Lost(why) = &*self.0.waiting() {
            return Err(SayError::Unsaid(lost(why)));
        }
        let answer = self.0.ask_with(&self.0.to, What::Say, question, within);
        answer.map(|(_, load)| load).map_err(SayError::Unanswered)
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SayError {
    /// Nobody was asked.
    #[error(transparent)]
    Unsaid(io::Error),
    /// Nobody knows what has come of it.
    #[error(transparent)]
    Unanswered(io::Error),
}

impl Session {
    /// A name for something that is opened.
    pub(crate) fn name(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&self, what: What) -> io::Result<(Told, Vec<u8>)> {
        self.ask_with(&self.to, what, &[], self.within)
    }

    fn ask_with(
        &self,
        to: &Stream,
        what: What,
        load: &[u8],
        within: Duration,
    ) -> io::Result<(Told, Vec<u8>)> {
        let number = self.name();
        let (tell, told) = sync_channel(1);
        match &mut *self.waiting() {
            Waiting::For(waiting) => {
                waiting.insert(number, Asked { tell, since: Instant::now(), within });
            }
            Waiting::Lost(why) => return Err(lost(why)),
        }
        self.send(to, &Ask { number, what }, load)?;
        // What it took to get there is not the other side's to answer for.
        if let Waiting::For(waiting) = &mut *self.waiting()
            && let Some(asked) = waiting.get_mut(&number)
        {
            asked.since = Instant::now();
        }
        let gone = |_| match &*self.waiting() {
            Waiting::Lost(why) => lost(why),
            Waiting::For(_) => lost("it does not answer"),
        };
        let (answer, load) = told.recv().map_err(gone)?;
        answer.map(|told| (told, load))
    }

    /// Says something that is not answered.
    pub(crate) fn tell(&self, what: What) -> io::Result<()> {
        self.send(&self.to, &Ask { number: 0, what }, &[])
    }

    /// How many files can be written at a time without waiting for each other.
    pub(crate) fn side_by_side(&self) -> usize {
        self.bulk.len()
    }

    /// A bulk stream for another file.
    pub(crate) fn file_stream(self: &Arc<Self>) -> FileStream {
        let number = self.open_files().open();
        FileStream { session: Arc::clone(self), number }
    }

    fn open_files(&self) -> MutexGuard<'_, OpenFiles> {
        self.open_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, to: &Stream, ask: &Ask, load: &[u8]) -> io::Result<()> {
        let note = |since: Option<Instant>| *to.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
        let mut out = to.out.lock().unwrap_or_else(PoisonError::into_inner);
        note(Some(Instant::now()));
        let sent = send(&mut **out, ask, load);
        note(None);
        sent.map_err(|error| {
            self.lose(&error.to_string());
            match &*self.waiting() {
                Waiting::Lost(why) => lost(why),
                Waiting::For(_) => lost(&error),
            }
        })
    }

    /// What has taken longer than it may: how long that is.
    fn overdue(&self) -> Option<Duration> {
        let asked = match &*self.waiting() {
            Waiting::For(waiting) => {
                waiting.values().find(|asked| asked.since.elapsed() > asked.within).map(|asked| asked.within)
            }
            Waiting::Lost(_) => None,
        };
        let is_stuck = |stream: &Stream| {
            let since = *stream.since.lock().unwrap_or_else(PoisonError::into_inner);
            since.is_some_and(|since| since.elapsed() > self.within)
        };
        let stuck = || std::iter::once(&self.to).chain(&self.bulk).any(is_stuck).then_some(self.within);
        asked.or_else(stuck)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody is answered any more.
    fn lose(&self, why: &str) {
        let mut waiting = self.waiting();
        if matches!(*waiting, Waiting::For(_)) {
            *waiting = Waiting::Lost(why.to_owned());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        (self.hang_up)();
    }
}

fn lost(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, format!("the session is lost: {why}"))
}

fn hear(session: &Weak<Session>, from: &mut dyn Read) {
    loop {
        let answer = receive::<Answer>(from);
        let Some(session) = session.upgrade() else { return };
        let why = match answer {
            Ok(Some((Answer { number: 0, .. }, _))) => continue,
            Ok(Some((Answer { number, told }, load))) => {
                let waits = match &mut *session.waiting() {
                    Waiting::For(waiting) => waiting.remove(&number),
                    Waiting::Lost(_) => return,
                };
                match waits {
                    Some(waits) => {
                        // Whoever asked waits, or has gone with an error.
                        let _ = waits.tell.send((told.map_err(io::Error::from), load));
                        continue;
                    }
                    None => "it answers what nobody has asked".to_owned(),
                }
            }
            Ok(None) => "the other side has ended it".to_owned(),
            Err(error) => error.to_string(),
        };
        session.lose(&why);
        return;
    }
}

/// The other side takes a silent session for a lost one.
fn keep_saying(session: &Weak<Session>, every: Duration) {
    loop {
        thread::sleep(every);
        let Some(session) = session.upgrade() else { return };
        if session.tell(What::Nothing).is_err() {
            return;
        }
    }
}

/// Loses a session in which something takes longer than it may.
fn watch(session: &Weak<Session>, every: Duration) {
    loop {
        thread::sleep(every);
        let Some(session) = session.upgrade() else { return };
        if let Some(within) = session.overdue() {
            session.lose(&format!("what was asked was not done within {} s", within.as_secs_f32()));
            (session.hang_up)();
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_spread_over_streams() {
        let mut files = OpenFiles { by_stream: vec![0; 3], last: 0 };
        assert_eq!([(); 6].map(|()| files.open()), [1, 2, 0, 1, 2, 0]);
        files.close(2);
        files.close(2);
        assert_eq!([(); 3].map(|()| files.open()), [2, 2, 0]);
        // One after the other, each by the next.
        let mut files = OpenFiles { by_stream: vec![0; 2], last: 0 };
        for stream in [1, 0, 1] {
            assert_eq!(files.open(), stream);
            files.close(stream);
        }
    }
}
