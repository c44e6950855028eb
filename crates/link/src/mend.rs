//! The client's session: its connections are made, and made again when they break.

use crate::dial::{Dial, DialError};
use crate::line::Line;
use crate::lines::{Lines, silence, wait_for_end};
use crate::protocol::{Answer, Hello, Role, Token};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long after one that failed the next is made: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long nobody need listen there until that means that `dormouse serve` has ended, and its sessions with it.
const NOBODY: Duration = Duration::from_secs(1);

pub(crate) struct Session {
    dial: Dial,
    number: u64,
    token: Token,
    lines: Lines,
    grace: Duration,
    /// How many lines are without a connection.
    broken: AtomicUsize,
}

impl Session {
    pub fn new(dial: Dial, number: u64, token: Token, lines: Lines, grace: Duration) -> Self {
        Self { dial, number, token, lines, grace, broken: AtomicUsize::new(0) }
    }

    /// Makes the connections that are not there yet, all at once: they take one another's round trips. Then looks after them.
    pub fn begin(self: &Arc<Self>) -> Result<(), DialError> {
        let of = |error| self.dial.of(error);
        thread::scope(|scope| {
            let missing = self.lines.iter().filter(|line| line.closed().0 == 0);
            let all: Vec<_> = missing.map(|line| scope.spawn(|| self.join(&self.dial, line))).collect();
            let ended = || of(io::Error::other("a thread ended"));
            all.into_iter().try_for_each(|each| each.join().unwrap_or_else(|_| Err(ended())))
        })?;
        if self.grace.is_zero() {
            return Ok(());
        }
        for line in self.lines.iter() {
            let (session, line) = (self.clone(), line.clone());
            let keep = move || session.keep(&line);
            thread::Builder::new().name("link-keep".into()).spawn(keep).map_err(of)?;
        }
        Ok(())
    }

    /// Gives a line a connection.
    fn join(&self, dial: &Dial, line: &Line) -> Result<(), DialError> {
        let hello = Hello::Join { token: self.token.clone(), role: line.role(), arrived: line.arrived() };
        let (mut lane, mut answer) = dial.connection(self.number, &hello)?;
        if dial.is_over_rdma() && !line.role().is_control() {
            answer = dial.go_beside(&mut lane, line.writes(), answer)?;
        }
        match answer {
            Answer::Joined { arrived } => {
                let resumed = line.resume(lane, silence(line.role()), |_, _| Ok(arrived));
                resumed.map_err(|error| self.dial.of(error))
            }
            _ => Err(DialError::NotDormouse { machine: self.dial.machine() }),
        }
    }

    /// Looks after a line until the session is over.
    fn keep(&self, line: &Line) {
        let mut count = 0;
        while let Some((next, socket)) = line.connection_after(count) {
            if count > 0 && self.broken.fetch_sub(1, Ordering::AcqRel) == 1 {
                tracing::info!("the connection to {} is there again", self.dial.machine());
            }
            count = next;
            let error = wait_for_end(socket);
            let why = error.to_string();
            line.has_ended(count, error);
            if !line.wants_another() {
                return;
            }
            if line.role() == Role::ControlDown && !line.closed().1 {
                // Something between may answer for the peer, so that TCP hears nothing of a silence: all lines are doubtful.
                self.lines.iter().for_each(|line| line.end_connection(Some(false)));
            }
            if self.broken.fetch_add(1, Ordering::AcqRel) == 0 {
                let (machine, grace) = (self.dial.machine(), self.grace.as_secs());
                tracing::warn!(
                    "the connection to {machine} broke ({why}); it is tried again for {grace} s, as long as somebody listens there"
                );
            }
            if let Err(why) = self.mend(line) {
                return self.lines.end(&why);
            }
        }
    }

    /// Makes its connection again; or tells why that is in vain.
    fn mend(&self, line: &Line) -> Result<(), String> {
        let begun = Instant::now();
        let mut pause = PAUSE.0;
        loop {
            let left = self.grace.saturating_sub(begun.elapsed());
            let Err(error) = self.join(&self.dial.again(left.min(ATTEMPT)), line) else { return Ok(()) };
            let patience = match &error {
                DialError::ConnectionRefused { .. } => NOBODY.min(self.grace),
                DialError::NoRdma { .. } => self.grace,
                error if error.may_pass() => self.grace,
                error => return Err(error.to_string()),
            };
            tracing::debug!("{error}");
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let tried = begun.elapsed().as_secs_f32();
                return Err(format!(
                    "its connection broke, and was not to be had again within {tried:.1} s: {error}"
                ));
            }
            thread::sleep(pause.min(left));
            if !line.wants_another() {
                return Ok(());
            }
            pause = (2 * pause).min(PAUSE.1);
        }
    }
}
