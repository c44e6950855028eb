//! What the far end says, in the order in which it is to be believed.

use super::transfers::Spare;
use super::{Callback, Link};
use crate::messages::{HostDone, Word};
use crate::{frame, lock};
use backend::LoadError;
use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use wire::CuError;

/// Words that are to be believed only when what they speak of has come out of the bulk streams.
pub(super) struct Held {
    words: Mutex<VecDeque<(Vec<u64>, u64, Word)>>,
    /// Pieces that have come, by stream.
    arrived: Vec<AtomicU64>,
}

impl Held {
    pub(super) fn new(lanes: usize) -> Self {
        let arrived = (0..lanes).map(|_| AtomicU64::new(0)).collect();
        Self { words: Mutex::default(), arrived }
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
            let header = frame::read(&mut stream, |_| Word::LIMIT, &mut body)?;
            self.hear();
            let word =
                Word::decode(header.opcode, &body).map_err(|error| frame::invalid(error.to_string()))?;
            self.believe_in_turn(header.call, word)?;
        }
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

    fn believe_in_turn(self: &Arc<Self>, call: u64, mut word: Word) -> io::Result<()> {
        let after = match &mut word {
            Word::Reply { after, .. } | Word::Done { after, .. } | Word::HostCall { after, .. } => {
                std::mem::take(after)
            }
            _ => return self.believe(call, word),
        };
        if after.len() > self.held.arrived.len() {
            return Err(frame::invalid("pieces in a stream that is not there"));
        }
        lock(&self.held.words).push_back((after, call, word));
        self.release()
    }

    /// Believes what waits for pieces that have come.
    fn release(self: &Arc<Self>) -> io::Result<()> {
        let mut words = lock(&self.held.words);
        while words.front().is_some_and(|(after, ..)| self.held.has_come(after)) {
            if let Some((_, call, word)) = words.pop_front() {
                self.believe(call, word)?;
            }
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
            Word::Output { data } => lock(&self.output).extend(data.0),
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
            if let Callback::Once(_) = callback {
                link.hosting.fetch_sub(1, Ordering::AcqRel);
            }
            // It may have written to memory that the stream's work reads.
            link.push_changes();
            link.tell_always(&HostDone { call });
        });
        Ok(())
    }
}
