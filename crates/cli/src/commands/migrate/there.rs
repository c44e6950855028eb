//! Another machine, on which `dormouse receive` runs.

use crate::commands::continued::{Checked, Continued, Question, Unstarted, Wanted};
use crate::commands::remote;
use crate::flags::Migrate;
use arrival::{Arrival, Folder, SayError};
use checkpoint::{Chain, Failure, Kind, copy_failure, open_failure, read_failure};
use image::ImageId;
use indicatif::{ProgressBar, ProgressStyle};
use link::{Address, DialOptions, Keys, Service, Trust, dial};
use serde::de::DeserializeOwned;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;
use store::media::Media;
use store::{CopyOptions, Delivery, Key, ReadError, Store};

/// How long the other machine may take for what is asked of its store, breaks of the line included: the job may stand still meanwhile.
const WITHIN: Duration = Duration::from_secs(600);
/// How much longer than `--start-within` it may say nothing of a start: that may have been allowed there, and each step behind that has a limit of its own.
const BEHIND_START: Duration = Duration::from_secs(1800);

/// The other machine.
pub struct There {
    machine: String,
    arrival: Arrival,
    folder: Folder,
    key: Key,
    /// Once something is to be brought there.
    store: Option<Store>,
    /// How long a start may take there.
    start_within: Duration,
    shared: bool,
    shows: bool,
}

impl There {
    /// Opens a session.
    ///
    /// # Errors
    /// Why there is none.
    pub fn reach(address: &Address, key: Key, flags: &Migrate) -> Result<Self, Failure> {
        let keys = Keys::default();
        let options = DialOptions { service: Service::Jobs, ..DialOptions::default() };
        let dialled = dial(address, Trust::Keys(&keys), &options);
        let (wires, _) = dialled.map_err(|error| remote::failure(&error))?;
        let machine = address.machine();
        let arrival = Arrival::connect(wires, WITHIN)
            .map_err(|error| Failure::new(Kind::Unreachable, format!("{machine}: {}", Chain(&error))))?;
        let folder = arrival.folder(&machine);
        let (shared, shows) = (flags.shared_store, !flags.json.json);
        let start_within = flags.start_within;
        Ok(Self { machine, arrival, folder, key, store: None, start_within, shared, shows })
    }

    /// The store there; encrypted for whom that is for which the job's own is.
    fn store(&mut self, from: &Store) -> Result<&Store, Failure> {
        if self.store.is_none() {
            let media = Arc::new(self.folder.clone());
            let opened = Store::open_or_create_with(media, &self.key, from.recipients());
            self.store = Some(opened.map_err(|error| open_failure(&error))?);
        }
        self.store.as_ref().ok_or_else(|| Failure::new(Kind::Store, "there is no store"))
    }

    /// Asks, and waits for as long as a start may take, and what is around it.
    fn ask<T: DeserializeOwned>(&self, question: &Question) -> Result<T, SayError> {
        let question = serde_json::to_vec(question).map_err(|error| SayError::Unsaid(error.into()))?;
        let answer = self.arrival.say(&question, self.start_within.saturating_add(BEHIND_START))?;
        serde_json::from_slice(&answer).map_err(|error| SayError::Unanswered(error.into()))
    }

    fn lost(&self, error: &dyn std::error::Error) -> Failure {
        Failure::new(Kind::Unreachable, format!("{}: {}", self.machine, Chain(error)))
    }

    /// What went wrong there, where its paths, keys and processes are.
    fn theirs(&self, failure: Failure) -> Failure {
        Failure { message: format!("{}: {}", self.machine, failure.message), ..failure }
    }

    /// How much is lacking there is not known before all is compared, for which nobody waits.
    fn bar(&self) -> ProgressBar {
        if !self.shows || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{spinner} sending {bytes} {bytes_per_sec}");
        ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
    }

    /// As messages have it.
    pub fn place(&self) -> String {
        self.machine.clone()
    }

    /// Has an image there, and answers how many bytes had to be sent for that.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn bring(&mut self, from: &Store, image: &ImageId) -> Result<u64, Failure> {
        if self.shared {
            return Ok(0);
        }
        // A session that is lost looks like a store that is damaged.
        self.copied(from, image).map_err(|failure| self.is_there().err().unwrap_or(failure))
    }

    fn copied(&mut self, from: &Store, image: &ImageId) -> Result<u64, Failure> {
        let bar = self.bar();
        let to = self.store(from)?;
        let copied = from.copy_to(to, &[*image], &CopyOptions::default(), &mut |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let report = copied.map_err(copy_failure)?;
        match (&report.damaged[..], &report.gone[..]) {
            ([], []) => Ok(report.images.iter().map(|image| image.written).sum()),
            ([damaged, ..], _) => Err(Failure::new(Kind::Damaged, damaged.problem.clone())),
            ([], [image, ..]) => Err(read_failure(ReadError::NoImage { image: *image, dir: from.dir() })),
        }
    }

    /// Begins to bring an image there that is still to be taken; `None` where nothing has to be brought.
    ///
    /// # Errors
    /// When the store there cannot take it.
    pub fn expect(&mut self, from: &Store) -> Result<Option<Delivery>, Failure> {
        if self.shared {
            return Ok(None);
        }
        let to = self.store(from)?.clone();
        if to.id() == from.id() {
            return Ok(None);
        }
        let delivery = from.deliver_to(&to).map_err(copy_failure);
        delivery.map(Some).map_err(|failure| self.is_there().err().unwrap_or(failure))
    }

    /// Has what is lacking of an image there, and begins to continue it meanwhile; answers how many bytes had to be sent for all of it.
    ///
    /// # Errors
    /// When it cannot be copied, or begun.
    pub fn deliver(&self, delivery: &mut Delivery, wanted: &Wanted, image: &ImageId) -> Result<u64, Failure> {
        let bar = self.bar();
        let delivered = delivery.announce(image).map_err(copy_failure).and_then(|()| {
            let begun: Result<Result<(), Failure>, _> = self.ask(&Question::Begin(wanted.clone()));
            begun.map_err(|error| self.lost(&error))?.map_err(|failure| self.theirs(failure))?;
            delivery.complete(&mut |bytes| bar.inc(bytes)).map_err(copy_failure)
        });
        bar.finish_and_clear();
        delivered.map_err(|failure| self.is_there().err().unwrap_or(failure))?;
        Ok(delivery.sent())
    }

    /// Whether an image that is there can go on there.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, wanted: &Wanted) -> Result<Checked, Failure> {
        let answer: Result<Result<Checked, Failure>, _> = self.ask(&Question::Check(wanted.clone()));
        answer.map_err(|error| self.lost(&error))?.map_err(|failure| self.theirs(failure))
    }

    /// Whether it can be asked to start something now.
    ///
    /// # Errors
    /// Why not.
    pub fn is_there(&self) -> Result<(), Failure> {
        self.folder.list("").map(drop).map_err(|error| self.lost(&error))
    }

    /// Has it go on there; what was delivered for that may run from the moment that it has its name.
    ///
    /// # Errors
    /// [`Unstarted`].
    pub fn start(&self, wanted: &Wanted, delivery: Option<Delivery>) -> Result<Continued, Unstarted> {
        let is_begun = delivery.is_some();
        if let Err(error) = delivery.map_or(Ok(()), Delivery::publish) {
            // What has come of that is found out by asking.
            tracing::warn!("{}: {error}", self.machine);
        }
        match self.ask(&Question::Start(wanted.clone())) {
            Ok(Ok(continued)) => Ok(continued),
            Ok(Err(Unstarted::Failed(failure))) => Err(Unstarted::Failed(self.theirs(failure))),
            Ok(Err(Unstarted::Unknown(failure))) => Err(Unstarted::Unknown(self.theirs(failure))),
            Err(SayError::Unsaid(error)) if !is_begun => Err(Unstarted::Failed(self.lost(&error))),
            Err(SayError::Unsaid(error)) => Err(Unstarted::Unknown(self.lost(&error))),
            Err(SayError::Unanswered(error)) => Err(Unstarted::Unknown(self.lost(&error))),
        }
    }

    /// Removes images there that are of no use any more.
    pub fn forget(&self, images: &[ImageId]) {
        let Some(store) = &self.store else { return };
        if let Err(error) = store.remove(images) {
            tracing::warn!("images that were taken ahead stay at {}: {error}", self.machine);
        }
    }
}
