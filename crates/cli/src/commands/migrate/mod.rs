//! `dormouse migrate`: images while the job runs, the last one of it standing still, and then it goes on elsewhere.

mod stands;
mod there;

use self::stands::{Course, Stands, tell_at_end};
use self::there::There;
use super::access;
use super::checkpoint::{bar, follow, locked};
use super::continued::{self, Checked, Continued, Place, Unstarted, Wanted, When, check_options};
use crate::flags::{Destination, Migrate};
use crate::output::Show;
use checkpoint::admin::{Asked, CheckpointOptions, Event, Report, Request, Word};
use checkpoint::{
    Failure, Kind, copy_failure, existing_store, open_failure, open_store, removal_failure, runtime,
};
use image::ImageId;
use indicatif::{HumanBytes, ProgressBar};
use runtime::JobFacts;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::{Access, Delivery, OpenError, Store};

/// What the last image may take without being made smaller by another round, bytes.
const LITTLE: u64 = 32 << 20;

/// How often it is looked what of the last image can be sent.
const LOOK: Duration = Duration::from_millis(5);

/// How long a supervisor that was killed may take to be gone.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// A job that has moved; times in milliseconds.
#[derive(Serialize)]
pub struct Migrated {
    /// The job, as it was called.
    pub job: String,
    /// Where it goes on.
    pub to: String,
    /// What it is called there.
    pub name: String,
    /// The device there.
    pub device: String,
    /// The image from which it goes on.
    pub image: String,
    /// The images that were taken while it ran.
    pub rounds: Vec<Round>,
    /// What the last one brought, while it stood still.
    pub last: Round,
    /// From its last step here to its first one there.
    pub downtime_ms: f64,
    /// Of it, capturing.
    pub stall_ms: f64,
    /// Of it, writing the image.
    pub write_ms: f64,
    /// Of it, sending what the other side lacked.
    pub send_ms: f64,
    /// Of it, restarting.
    pub start_ms: f64,
    /// From the request on.
    pub total_ms: f64,
    /// The process that has it there.
    pub supervisor: u32,
    /// Where its standard output goes there.
    pub stdout: PathBuf,
    /// Where its standard error goes there.
    pub stderr: PathBuf,
    /// What may not be as it was.
    pub warnings: Vec<String>,
}

/// An image on its way.
#[derive(Clone, Serialize)]
pub struct Round {
    /// Written to the job's store, bytes.
    pub written: u64,
    /// Sent, bytes.
    pub sent: u64,
    /// How long both took.
    pub ms: f64,
}

/// Moves a job.
pub fn run(flags: &Migrate) -> Result<Migrated, Failure> {
    check_options(&flags.options)?;
    let root = runtime::root();
    let job = runtime::find(&root, &flags.job)?;
    let watched = runtime::Watched::of(&root, &job)?;
    let began = Instant::now();
    let stands = tell_at_end(&root, &job, flags)?;
    let access = access(job.store.clone(), &flags.keys.key, &[])?;
    check_key(&job, &access)?;
    let key = access.key;
    let target = match &flags.to {
        Destination::There(address) => Target::There(Box::new(There::reach(address, key, flags)?)),
        Destination::Here => Target::Here(Place {
            store: job.store.clone(),
            keys: flags.keys.key.clone(),
            output: flags.output.clone(),
        }),
    };
    let mut moving = Moving { flags, root, job, watched, target, images: Vec::new(), last: None, stands };
    match moving.run(began) {
        Err(failure) if moving.has_lost_it(&failure) => Err(moving.after_a_loss(failure)),
        moved => {
            moving.forget_rounds();
            moved
        }
    }
}

/// Whether the job's store can be opened, or could once the job has made it: else an image would be taken that can be neither sent nor removed.
fn check_key(job: &JobFacts, access: &Access) -> Result<(), Failure> {
    if existing_store(access)?.is_some() || job.recipients.is_empty() {
        return Ok(());
    }
    if access.key.is_none() {
        let locked = OpenError::Locked { dir: access.at.to_path(), recipients: job.recipients.clone() };
        return Err(open_failure(&locked));
    }
    let recipients = job.recipients.iter().filter_map(|each| each.parse().ok()).collect();
    Access { recipients, ..access.clone() }.check_new().map_err(|error| open_failure(&error))
}

/// Where a job goes on.
enum Target {
    /// On this machine, which reads the job's own store.
    Here(Place),
    /// On another.
    There(Box<There>),
}

impl Target {
    fn place(&self) -> String {
        match self {
            Self::Here(_) => "this machine".to_owned(),
            Self::There(there) => there.place(),
        }
    }

    fn bring(&mut self, from: &Store, image: &ImageId) -> Result<u64, Failure> {
        match self {
            Self::Here(_) => Ok(0),
            Self::There(there) => there.bring(from, image),
        }
    }

    fn expect(&mut self, from: &Store) -> Result<Option<Delivery>, Failure> {
        match self {
            Self::Here(_) => Ok(None),
            Self::There(there) => there.expect(from),
        }
    }

    fn check(&self, wanted: &Wanted, job: &JobFacts) -> Result<Checked, Failure> {
        match self {
            Self::Here(place) => continued::check(wanted, place, Some(job.supervisor)),
            Self::There(there) => there.check(wanted),
        }
    }
}

/// A migration under way.
struct Moving<'a> {
    flags: &'a Migrate,
    root: PathBuf,
    job: JobFacts,
    /// Its supervisor.
    watched: runtime::Watched,
    target: Target,
    /// Those that were taken while it ran.
    images: Vec<ImageId>,
    /// The one that was taken when it stood still.
    last: Option<ImageId>,
    stands: Arc<Mutex<Stands>>,
}

impl Moving<'_> {
    fn run(&mut self, began: Instant) -> Result<Migrated, Failure> {
        let (rounds, device, mut warnings) = self.go_ahead()?;
        let name = self.flags.name.clone().unwrap_or_else(|| self.job.job.clone());
        let over = self.go_over()?;
        locked(&self.stands).course = Course::Gone(self.target.place());
        warnings.extend(over.report.warnings.iter().chain(&over.warnings).cloned());
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Migrated {
            job: self.job.job.clone(),
            to: self.target.place(),
            name,
            device,
            image: over.report.image,
            rounds,
            downtime_ms: over.since_ms + ms(over.send + over.start),
            stall_ms: over.report.stall_ms,
            write_ms: (over.since_ms - over.report.stall_ms).max(0.0),
            send_ms: ms(over.send),
            start_ms: ms(over.start),
            last: Round { written: over.report.written, sent: over.sent, ms: over.since_ms + ms(over.send) },
            total_ms: ms(began.elapsed()),
            supervisor: over.continued.supervisor,
            stdout: over.continued.stdout,
            stderr: over.continued.stderr,
            warnings,
        })
    }

    /// Takes images while the job runs, as long as that makes the last one smaller, and tries the first of them there.
    fn go_ahead(&mut self) -> Result<(Vec<Round>, String, Vec<String>), Failure> {
        let mut rounds: Vec<Round> = Vec::new();
        let mut checked = None;
        let mut warnings = Vec::new();
        loop {
            let round = Instant::now();
            let bar = self.bar();
            let options = CheckpointOptions { passing: true, ..self.options() };
            let mut asked = self.asked(&Request::Checkpoint(options))?;
            let last = asked.until(Event::is_last, |event| follow(&bar, event));
            bar.finish_and_clear();
            let report = match last? {
                Event::Published(report) => report,
                other => return Err(failed(other)),
            };
            let image = parse(&report.image)?;
            self.images.push(image);
            locked(&self.stands).ahead.push(report.image.clone());
            let sent = self.target.bring(&self.store()?, &image)?;
            if checked.is_none() {
                let there = self.target.check(&self.wanted(&report), &self.job)?;
                warnings.extend(there.warnings);
                checked = Some(there.device);
            }
            let ms = round.elapsed().as_secs_f64() * 1e3;
            let before = rounds.last().map(|round| round.written);
            rounds.push(Round { written: report.written, sent, ms });
            // Not less than before: as much is written meanwhile as can be copied.
            let is_stuck = before.is_some_and(|before| report.written > before / 4 * 3);
            if report.written <= LITTLE || is_stuck || rounds.len() >= self.flags.rounds as usize {
                return Ok((rounds, checked.unwrap_or_default(), warnings));
            }
        }
    }

    /// Has the job stand still, and go on there; or here again, if it cannot.
    fn go_over(&mut self) -> Result<Over, Failure> {
        let bar = self.bar();
        let mut delivery = self.target.expect(&self.store()?)?;
        let mut asked = self.asked(&Request::HandOver(self.options()))?;
        let (standing, followed) = followed(&mut asked, delivery.as_mut(), &bar);
        bar.finish_and_clear();
        let (report, since_ms) = match standing? {
            Event::Standing { report, since_ms } => (report, since_ms),
            other => return Err(failed(other)),
        };
        let sending = Instant::now();
        let image = parse(&report.image)?;
        self.last = Some(image);
        let wanted = self.wanted(&report);
        let brought = followed.and_then(|()| self.bring_last(&image, &wanted, delivery.as_mut()));
        let sent = match brought {
            Ok(sent) => sent,
            Err(failure) => return Err(self.keep(&mut asked, failure)),
        };
        let send = sending.elapsed();
        let starting = Instant::now();
        let mut warnings = Vec::new();
        let continued = match &self.target {
            Target::Here(place) => self.start_here(&mut asked, (&wanted, place))?,
            Target::There(there) => {
                self.start_there(&mut asked, (&wanted, there, delivery), &mut warnings)?
            }
        };
        let start = starting.elapsed();
        Ok(Over { report, since_ms, sent, send, start, continued, warnings })
    }

    /// Has the last image there; answers how many bytes were sent for it.
    fn bring_last(
        &mut self,
        image: &ImageId,
        wanted: &Wanted,
        delivery: Option<&mut Delivery>,
    ) -> Result<u64, Failure> {
        match (&self.target, delivery) {
            (Target::There(there), Some(delivery)) => there.deliver(delivery, wanted, image),
            _ => self.store().and_then(|store| self.target.bring(&store, image)),
        }
    }

    /// One of the two only runs on this machine: the other waits for the end of this one, whoever is killed meanwhile.
    fn start_here(
        &self,
        asked: &mut Asked,
        (wanted, place): (&Wanted, &Place),
    ) -> Result<Continued, Failure> {
        // Before there is somebody who waits for the end of the old one: it does not go on from here unless it is told to.
        self.goes();
        match asked.say(&Word::Starting { place: self.target.place() }) {
            // What has ended by itself does not go on either.
            Err(failure) if failure.kind != Kind::Ended => return Err(failure),
            _ => {}
        }
        let mut starting = match continued::begin(wanted, place, When::After(self.job.supervisor)) {
            Ok(starting) => starting,
            Err(failure) => return Err(self.keep(asked, failure)),
        };
        match self.end(asked) {
            Ok(()) => {}
            // It has ended by itself, and its image is there.
            Err(failure) if failure.kind == Kind::Ended => {}
            Err(failure) => {
                starting.give_up();
                return Err(failure);
            }
        }
        let failure = match starting.finish() {
            Ok(continued) => return Ok(continued),
            Err(Unstarted::Failed(failure)) => failure,
            Err(Unstarted::Unknown(failure)) => {
                let message = format!("{}; the job is not started a second time", failure.message);
                return Err(self.with_image(Failure { message, ..failure }, &wanted.image));
            }
        };
        let as_before = Wanted { job: self.job.job.clone(), options: Vec::new(), ..wanted.clone() };
        match continued::start(&as_before, place) {
            Ok(Continued { supervisor, .. }) => {
                let message = format!(
                    "{}; job {} goes on as it was, from image {}, with process {supervisor}",
                    failure.message, as_before.job, wanted.image
                );
                Err(Failure { message, ..failure })
            }
            Err(Unstarted::Failed(again) | Unstarted::Unknown(again)) => {
                let message = format!("{}; nor as it was: {}", failure.message, again.message);
                Err(self.with_image(Failure { message, ..failure }, &wanted.image))
            }
        }
    }

    /// The job stands still until it runs there, or certainly does not.
    fn start_there(
        &self,
        asked: &mut Asked,
        (wanted, there, delivery): (&Wanted, &There, Option<Delivery>),
        warnings: &mut Vec<String>,
    ) -> Result<Continued, Failure> {
        if let Err(failure) = there.is_there() {
            return Err(self.keep(asked, failure));
        }
        self.goes();
        asked.say(&Word::Starting { place: there.place() })?;
        match there.start(wanted, delivery) {
            Ok(continued) => {
                // It runs there, whatever has become of it here.
                warnings.extend(self.end(asked).err().map(|failure| failure.message));
                Ok(continued)
            }
            Err(Unstarted::Failed(failure)) => Err(self.keep(asked, failure)),
            Err(Unstarted::Unknown(failure)) => {
                let message = format!(
                    "{}; the job may run at {}, or have run, and does not here any more: look there",
                    failure.message,
                    there.place()
                );
                Err(self.with_image(Failure { message, ..failure }, &wanted.image))
            }
        }
    }

    /// A failure behind which somebody has to see to the job.
    fn with_image(&self, failure: Failure, image: &str) -> Failure {
        let restart = format!("dormouse restart --store {} {image}", self.job.store);
        Failure { message: format!("{}. Its image is there: '{restart}'", failure.message), ..failure }
    }

    /// From now on the job may run there, whatever becomes of this process.
    fn goes(&self) {
        locked(&self.stands).course = Course::Goes(self.target.place());
    }

    /// Has the job end where it was.
    fn end(&self, asked: &mut Asked) -> Result<(), Failure> {
        self.goes();
        asked.say(&Word::Taken { place: self.target.place() })?;
        match asked.until(Event::is_last, |_| {})? {
            Event::Published(_) => Ok(()),
            other => Err(failed(other)),
        }
    }

    /// Has the job go on where it was, since it cannot elsewhere; the failure, with what became of the job.
    fn keep(&self, asked: &mut Asked, why: Failure) -> Failure {
        let said = asked.say(&Word::Kept { why: why.message.clone() });
        match said.and_then(|()| asked.until(Event::is_last, |_| {})) {
            Ok(Event::Failed(kept)) => {
                locked(&self.stands).course = Course::Stays;
                Failure { message: kept.message, ..why }
            }
            Ok(other) => failed(other),
            Err(failure) => failure,
        }
    }

    fn asked(&self, request: &Request) -> Result<Asked, Failure> {
        Asked::of(&runtime::admin_socket(&self.root, &self.job.job), request)
    }

    fn options(&self) -> CheckpointOptions {
        CheckpointOptions {
            gate_deadline_ms: self.flags.patience.gate_deadline_ms(),
            retries: self.flags.patience.retries,
            compress: self.flags.compress.into(),
            ..CheckpointOptions::default()
        }
    }

    fn wanted(&self, report: &Report) -> Wanted {
        let job = self.flags.name.clone().unwrap_or_else(|| self.job.job.clone());
        Wanted {
            image: report.image.clone(),
            store: self.flags.shared_store.then(|| self.job.store.clone()),
            job,
            options: self.flags.options.clone(),
            within_s: self.flags.start_within.as_secs(),
        }
    }

    fn store(&self) -> Result<Store, Failure> {
        open_store(&access(self.job.store.clone(), &self.flags.keys.key, &[])?)
    }

    fn bar(&self) -> ProgressBar {
        bar(!self.flags.json.json)
    }

    /// Whether the job runs nowhere any more, since its supervisor was killed.
    fn has_lost_it(&self, failure: &Failure) -> bool {
        let patience = if failure.kind == Kind::Ended { LAST_BREATH } else { Duration::ZERO };
        self.watched.was_killed(patience)
    }

    /// What was taken ahead may be all that is left of a job that is lost.
    fn after_a_loss(&mut self, failure: Failure) -> Failure {
        let Some(newest) = self.last.or(self.images.last().copied()) else { return failure };
        if self.last.is_none() {
            self.images.pop();
            locked(&self.stands).ahead.pop();
        }
        self.forget_rounds();
        let message = format!("{}: its supervisor was killed", failure.message);
        self.with_image(Failure { message, ..failure }, &newest.to_string())
    }

    /// Removes what was taken ahead, here and there: what is not in the last image is of no use.
    fn forget_rounds(&mut self) {
        locked(&self.stands).forgets = true;
        if let Target::There(there) = &self.target {
            there.forget(&self.images);
        }
        let removed = self.store().and_then(|store| store.remove(&self.images).map_err(removal_failure));
        if let Err(failure) = removed {
            tracing::warn!("images that were taken ahead stay in {}: {failure}", self.job.store);
        }
    }
}

/// Waits until the job stands still, and sends what is whole of its image meanwhile.
fn followed(
    asked: &mut Asked,
    delivery: Option<&mut Delivery>,
    bar: &ProgressBar,
) -> (Result<Event, Failure>, Result<(), Failure>) {
    let (begun, images) = channel();
    let stands = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stands = &stands;
        let following = delivery.map(|delivery| scope.spawn(move || send_ahead(delivery, &images, stands)));
        let standing = asked.until(
            |event| matches!(event, Event::Standing { .. }),
            |event| {
                if let Event::Begun { image } = event
                    && let Ok(image) = image.parse()
                {
                    // Nobody sends it ahead where nothing is sent.
                    let _ = begun.send(image);
                }
                follow(bar, event);
            },
        );
        stands.store(true, Ordering::Release);
        drop(begun);
        let panicked = |_| Err(Failure::new(Kind::Failed, "a thread that sent the image has panicked"));
        (standing, following.map_or(Ok(()), |following| following.join().unwrap_or_else(panicked)))
    })
}

/// Sends what is whole of an image that is being written, from when it is known which that is until it `stands` there.
fn send_ahead(
    delivery: &mut Delivery,
    images: &Receiver<ImageId>,
    stands: &AtomicBool,
) -> Result<(), Failure> {
    let Ok(image) = images.recv() else { return Ok(()) };
    while !stands.load(Ordering::Acquire) {
        delivery.follow(image, stands).map_err(copy_failure)?;
        // It ends with the last image.
        if images.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
    }
    Ok(())
}

/// The last step.
struct Over {
    report: Report,
    since_ms: f64,
    sent: u64,
    send: Duration,
    start: Duration,
    continued: Continued,
    warnings: Vec<String>,
}

fn failed(event: Event) -> Failure {
    match event {
        Event::Failed(failure) => failure,
        event => super::checkpoint::unexpected(&event),
    }
}

fn parse(image: &str) -> Result<ImageId, Failure> {
    let odd =
        |_| Failure::new(Kind::Failed, format!("the job's supervisor answered with the image {image:?}"));
    image.parse().map_err(odd)
}

impl Show for Migrated {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "job {} goes on at {} ({}), from image {}",
            self.name, self.to, self.device, self.image
        )?;
        writeln!(
            out,
            "it stood still for {:.0} ms (capture {:.0}, writing {:.0}, sending {:.0}, restart {:.0}); {:.1} s in all",
            self.downtime_ms,
            self.stall_ms,
            self.write_ms,
            self.send_ms,
            self.start_ms,
            self.total_ms / 1e3
        )?;
        let written: u64 = self.rounds.iter().map(|round| round.written).sum();
        let sent: u64 = self.rounds.iter().map(|round| round.sent).sum();
        writeln!(
            out,
            "{} written and {} sent while it ran, in {} images; {} and {} while it stood still",
            HumanBytes(written),
            HumanBytes(sent),
            self.rounds.len(),
            HumanBytes(self.last.written),
            HumanBytes(self.last.sent)
        )?;
        writeln!(out, "its output goes to {} and {}", self.stdout.display(), self.stderr.display())?;
        self.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
    }
}
