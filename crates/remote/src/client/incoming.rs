//! What the far end says, in the order in which it is to be believed.

use super::transfers::Spare;
use super::{Callback, Link};
use crate::frame::{HEADER, SHORT_MAX};
use crate::messages::{HostDone, Word};
use crate::{frame, lock};
use backend::LoadError;
use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::CuError;

/// Words that wait for contents, bytes as they came: then no more are read.
const HELD_MAX: usize = 8 << 20;
/// What each of them takes beside.
const HELD_WORD: usize = 256;
/// How long no more are read where no contents come either.
const CONTENTS_MAX: Duration = Duration::from_secs(60);
/// What kernels have printed and nobody has taken: what is printed beyond that is lost, as on a GPU.
const OUTPUT_MAX: usize = 64 << 20;
/// Host functions of graphs at a time: at the far end a thread waits for each.
const CALLED_BACK_MAX: usize = 4096;

/// What the far end has said, and what of the bulk streams has to have come before.
struct Waiting {
    after: Vec<u64>,
    call: u64,
    word: Word,
    bytes: usize,
}

#[derive(Default)]
struct Words {
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

/// Words that are to be believed only when what they speak of has come out of the bulk streams.
pub(super) struct Held {
    words: Mutex<Words>,
    /// Told when there are fewer.
    room: Condvar,
    /// Pieces that have come, by stream.
    arrived: Vec<AtomicU64>,
}

impl Held {
    pub(super) fn new(lanes: usize) -> Self {
        let arrived = (0..lanes).map(|_| AtomicU64::new(0)).collect();
        Self { words: Mutex::default(), room: Condvar::new(), arrived }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        lock(&self.words).bytes
    }

    /// Pieces that have come.
    fn all_arrived(&self) -> u64 {
        self.arrived.iter().map(|arrived| arrived.load(Ordering::Acquire)).sum()
    }

    fn has_come(&self, after: &[u64]) -> bool {
        after.iter().zip(&self.arrived).all(|(after, arrived)| arrived.load(Ordering::Acquire) >= *after)
    }
}

impl Link {
    /// The thread that reads the control stream.
    pub(super) fn receive(self: &Arc<Self>, stream: &mut (dyn Read + Send)) -> io::Result<()> {
        let mut stream = BufReader::with_capacity(64 << 10, stream);
        let mut body = Vec::new();
        loop {
            let header = frame::read(&mut stream, |header| self.limit(header), &mut body)?;
            self.hear();
            let word =
                Word::decode(header.opcode, &body).map_err(|error| frame::invalid(error.to_string()))?;
            self.believe_in_turn(header.call, word, HEADER + body.len())?;
        }
    }

    /// How long a word may be.
    fn limit(&self, header: &frame::Header) -> usize {
        let answer = || lock(&self.calls).get(&header.call).map_or(SHORT_MAX, |slot| slot.2);
        Word::limit(header.opcode, answer)
    }

    /// The thread that reads a bulk stream.
    pub(super) fn receive_bulk(
        self: &Arc<Self>,
        lane: usize,
        stream: &mut (dyn Read + Send),
    ) -> io::Result<()> {
        let mut spare = Spare::default();
        loop {
            self.transfers.receive(stream, &mut spare)?;
            self.hear();
            self.held.arrived[lane].fetch_add(1, Ordering::AcqRel);
            self.release()?;
        }
    }

    fn hear(&self) {
        self.heard.store(self.begun.elapsed().as_millis() as u64, Ordering::Release);
    }

    fn believe_in_turn(self: &Arc<Self>, call: u64, mut word: Word, bytes: usize) -> io::Result<()> {
        let after = match &mut word {
            Word::Reply { after, .. } | Word::Done { after, .. } | Word::HostCall { after, .. } => {
                std::mem::take(after)
            }
            _ => return self.believe(call, word),
        };
        if after.len() > self.held.arrived.len() {
            return Err(frame::invalid("pieces in a stream that is not there"));
        }
        let all = after.iter().fold(0u64, |all, after| all.saturating_add(*after));
        if !self.held.has_come(&after) && all > self.transfers.asked() {
            return Err(frame::invalid("more contents are said to be on their way than were asked for"));
        }
        self.hold(Waiting { after, call, word, bytes: bytes + HELD_WORD })?;
        self.release()
    }

    /// Takes a word once there is room for it: what those before it wait for comes without it.
    fn hold(&self, word: Waiting) -> io::Result<()> {
        let held = &self.held;
        let (mut arrived, mut since) = (held.all_arrived(), Instant::now());
        let mut words = lock(&held.words);
        while words.bytes > 0 && words.bytes + word.bytes > HELD_MAX && !self.is_lost() {
            let step = Duration::from_millis(100);
            words = held.room.wait_timeout(words, step).unwrap_or_else(PoisonError::into_inner).0;
            // It is not the far end that is silent.
            self.hear();
            let before = std::mem::replace(&mut arrived, held.all_arrived());
            if arrived != before {
                since = Instant::now();
            } else if since.elapsed() > CONTENTS_MAX {
                return Err(frame::invalid(format!(
                    "{} words wait for contents, none of which have come for {CONTENTS_MAX:?}",
                    words.waiting.len()
                )));
            }
        }
        words.bytes += word.bytes;
        words.waiting.push_back(word);
        Ok(())
    }

    /// Believes what waits for pieces that have come.
    fn release(self: &Arc<Self>) -> io::Result<()> {
        let mut words = lock(&self.held.words);
        while words.waiting.front().is_some_and(|next| self.held.has_come(&next.after)) {
            let Some(next) = words.waiting.pop_front() else { break };
            words.bytes -= next.bytes;
            self.held.room.notify_one();
            self.believe(next.call, next.word)?;
        }
        Ok(())
    }

    /// None of this waits for anything.
    fn believe(self: &Arc<Self>, call: u64, word: Word) -> io::Result<()> {
        match word {
            Word::Reply { error, detail, body, .. } => {
                let answer = match CuError::from_code(error) {
                    None => Ok(body.0),
                    Some(code) => Err(LoadError { code, detail }),
                };
                match lock(&self.calls).remove(&call) {
                    Some(slot) => slot.fill(answer),
                    None => return Err(frame::invalid("an answer that nobody has asked for")),
                }
            }
            Word::Done { tickets, .. } => {
                let mut whole = true;
                let ended =
                    |transfer: u64, succeeded: bool| whole &= self.transfers.end(transfer) || !succeeded;
                let known = self.progress.done(&tickets, |word| self.mirrors.write(word), ended);
                if !known || !whole {
                    return Err(frame::invalid(
                        "something is complete that was not asked for, or has not come",
                    ));
                }
            }
            Word::Failed { ctx, error } => {
                if let Some(error) = CuError::from_code(error) {
                    self.progress.failed(ctx, error);
                }
            }
            Word::Changes { base, runs } => {
                if !self.mirrors.apply(base, &runs.0) {
                    return Err(frame::invalid("changes outside of a mirror"));
                }
            }
            Word::HostCall { call, function, error, .. } => self.call_back(call, function, error)?,
            Word::Ack { control, bulk } => {
                if !self.out.acked(control) || !self.uploads.used(bulk) {
                    return Err(frame::invalid("more has been read than was sent"));
                }
            }
            Word::Output { data } => {
                let mut output = lock(&self.output);
                if output.len() + data.0.len() <= OUTPUT_MAX {
                    output.extend(data.0);
                }
            }
            Word::Data { transfer, offset, data } => self.transfers.put(transfer, offset, &data.0)?,
            Word::Ping => {}
        }
        Ok(())
    }

    fn call_back(self: &Arc<Self>, call: u64, function: u64, error: u32) -> io::Result<()> {
        let callback = {
            let mut callbacks = lock(&self.callbacks);
            let found = callbacks.get(&function).cloned();
            if let Some(Callback::Once(_)) = found {
                callbacks.remove(&function);
            }
            found.ok_or_else(|| frame::invalid("a host function that is not there"))?
        };
        if let Callback::Graph(_) = callback
            && self.called_back.fetch_add(1, Ordering::AcqRel) >= CALLED_BACK_MAX
        {
            return Err(frame::invalid("more host functions of graphs are called at a time than can be"));
        }
        let (link, status) = (Arc::clone(self), CuError::from_code(error).map_or(Ok(()), Err));
        self.workers.run(move || {
            match callback {
                Callback::Once(ref function) => {
                    if let Some(function) = lock(function).take() {
                        function(status);
                    }
                }
                Callback::Graph(ref function) => (function.0)(status),
            }
            // What is read from now on is read behind it.
            let count = match callback {
                Callback::Once(_) => &link.hosting,
                Callback::Graph(_) => &link.called_back,
            };
            count.fetch_sub(1, Ordering::AcqRel);
            // It may have written to memory that the stream's work reads.
            link.push_changes();
            link.tell_always(&HostDone { call });
        });
        Ok(())
    }
}
