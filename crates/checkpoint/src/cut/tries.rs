//! Trying again and again until a job is idle.

use crate::admin::{CheckpointOptions, Event};
use crate::error::{Failure, Kind};
use crate::supervisor::{Supervisor, ended_before};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// First pause before the gate is tried again; it doubles each time.
const BACK_OFF: Duration = Duration::from_millis(100);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long the gate stays open for a process that has asked for something, and how long in all before that counts as an attempt.
const ASKING_PAUSE: Duration = Duration::from_millis(30);
const ASKING_MOST: Duration = Duration::from_secs(10);

/// How long a child of `vfork` may take before it is waited for while the job runs, how often it is looked whether it is there still, and for how long
/// it is waited for before the process that does so counts as one that does not stop.
const UNSTOPPABLE_LEAST: Duration = Duration::from_millis(100);
const UNSTOPPABLE_LOOK: Duration = Duration::from_millis(5);
const UNSTOPPABLE_MOST: Duration = Duration::from_secs(10);

/// What kept a job from being idle.
pub enum Hindrance {
    /// A sentence each.
    Held(Vec<String>),
    /// A process asks for its GPU.
    Asking {
        /// Since when it might have been idle, had none asked; it might not yet, where a point of the program's is still to come.
        since: Option<Instant>,
    },
    /// A process which [cannot be stopped](host::Job::unstoppable). Nothing stands still while that is waited for.
    Unstoppable(host::Unstoppable),
}

/// The attempts of one checkpoint or suspension.
pub struct Tries<'a> {
    job: &'a Supervisor,
    options: &'a CheckpointOptions,
    events: &'a Sender<Event>,
    pause: Duration,
    retries: u32,
    /// Since when one could not be stopped.
    unstoppable: Option<Instant>,
}

impl<'a> Tries<'a> {
    /// None made yet.
    pub fn new(job: &'a Supervisor, options: &'a CheckpointOptions, events: &'a Sender<Event>) -> Self {
        Self { job, options, events, pause: BACK_OFF, retries: 0, unstoppable: None }
    }

    /// What keeps the job from being stopped for longer than a moment, if something does.
    #[must_use]
    pub fn unstoppable(&mut self) -> Option<Hindrance> {
        let (mut stuck, begun) = (self.job.job.unstoppable(), Instant::now());
        while !stuck.is_empty() && begun.elapsed() < UNSTOPPABLE_LEAST {
            std::thread::sleep(UNSTOPPABLE_LOOK);
            let still = self.job.job.unstoppable();
            stuck.retain(|thread| still.contains(thread));
        }
        if stuck.is_empty() {
            self.unstoppable = None;
        }
        stuck.pop().map(Hindrance::Unstoppable)
    }

    /// How many have failed.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// [`Kind::NotIdle`] when there have been enough of them, [`Kind::Ended`] when the job has ended.
    pub fn again(&mut self, hindrance: Hindrance) -> Result<(), Failure> {
        let since = self.unstoppable.take();
        if let Hindrance::Unstoppable(holder) = &hindrance {
            if since.is_none() {
                let _ = self.events.send(Event::Step { step: format!("waiting for {}", holder.what) });
            }
            self.unstoppable = since.or_else(|| Some(Instant::now()));
        }
        let is_news = since.is_none_or(|since| since.elapsed() < UNSTOPPABLE_MOST);
        let holders = match hindrance {
            // It is answered in a moment, and no sign of a job that does not get idle; but one that asks all the time shall not hold this up for ever.
            // Until the point or the moment is there nothing counts: that wait ends by itself.
            Hindrance::Asking { since } if since.is_none_or(|since| since.elapsed() < ASKING_MOST) => {
                return self.wait(ASKING_PAUSE);
            }
            Hindrance::Asking { .. } => vec!["a process that asks for its GPU".to_owned()],
            Hindrance::Unstoppable(_) if is_news => return self.wait(ASKING_PAUSE),
            Hindrance::Unstoppable(holder) => {
                let message =
                    format!("the job cannot be stopped for {}, and runs on; try again later", holder.what);
                return Err(Failure::new(Kind::NotIdle, message));
            }
            Hindrance::Held(holders) => holders,
        };
        if self.retries >= self.options.retries {
            return Err(self.not_idle(&holders));
        }
        self.retries += 1;
        let held_by = holders.join("; ");
        // Whoever asked may have gone, which is seen before the next try.
        let _ = self.events.send(Event::Retry { number: self.retries, of: self.options.retries, held_by });
        self.wait(self.pause)?;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    fn wait(&self, pause: Duration) -> Result<(), Failure> {
        if self.job.ends_within(pause) { Err(ended_before()) } else { Ok(()) }
    }

    fn not_idle(&self, holders: &[String]) -> Failure {
        let message = format!(
            "the job was not idle within {} ms of closing the gate, tried {}, and runs on: held by {}. \
             Give it longer with --gate-deadline",
            self.options.gate_deadline_ms,
            match self.retries {
                0 => "once".to_owned(),
                more => format!("{} times", more + 1),
            },
            holders.join("; ")
        );
        Failure::new(Kind::NotIdle, message)
    }
}
