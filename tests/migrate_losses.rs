//! Who moves a job, who has it and who takes it over, killed while images are sent and while it is started: the job goes on in one place, or its image is told of.
#![allow(clippy::unwrap_used)]

use crate::migrate::{ARGS, apart, migrate, output, report, wait_for_end};
use dormouse_tests::{Failure, PACED, Stage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::After;
use testkit::served::Served;
use testkit::tree;

/// When somebody is killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum When {
    /// The first image is on its way, or being tried.
    Rounds,
    /// The last one is on its way, and is or will be begun there.
    Last,
    /// It is being started there.
    Start,
}

/// Another machine.
struct There {
    server: Served,
    folder: PathBuf,
}

impl There {
    /// Before the job begins, which does not wait for it.
    fn new(stage: &Stage) -> Self {
        let folder = tempfile::Builder::new().tempdir_in(stage.place().folder).unwrap().keep();
        let server = apart(|| {
            // Whoever moves a job does not look for one that is gone for longer.
            stage.receiving_with(&folder, &["--jobs"], "127.0.0.1", |receive| {
                receive.args(["--grace", "2s"]);
            })
        });
        let server = server.unwrap();
        Self { server, folder }
    }
}

/// A migration under way to another machine, which stands still there.
struct Moving {
    mover: Option<Child>,
    server: Served,
    /// The session's process there.
    arrival: i32,
    /// What starts the job there, if it is as far.
    newcomer: Option<i32>,
    there: PathBuf,
    stage_name: String,
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether an image has come to the store there, and of another all that it will consist of is known.
fn is_last(there: &Path) -> bool {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(there.join("store").join(folder)).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    !names("images").is_empty() && names("tmp").iter().any(|draft| draft.join("manifest").exists())
}

/// A descendant that carries out this command of `dormouse`, and does not only try whether that can be.
fn descendant(ancestor: i32, command: &str) -> Option<i32> {
    let is_it = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&str> = line.split('\0').collect();
        words.get(1) == Some(&command) && !words.contains(&"--check")
    };
    tree::descendants(ancestor).ok()?.into_iter().find(is_it)
}

fn signal(pid: i32, signal: Signal) {
    // Who has ended meanwhile takes none.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

impl Moving {
    /// Moves the stage's job until then.
    fn begin(stage: &Stage, there: There, when: When) -> Self {
        Self::begin_with(stage, there, when, &[])
    }

    fn begin_with(stage: &Stage, There { server, folder: there }: There, when: When, flags: &[&str]) -> Self {
        let mut command = migrate(stage, &server.address, &[]);
        server.known_to(command.args(flags));
        let mut mover = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut until = |what: &str, found: &mut dyn FnMut() -> bool| {
            until(what, || {
                if mover.try_wait().unwrap().is_some() {
                    let mut said = String::new();
                    mover.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
                    mover.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
                    panic!("{what}: it has ended before: {said}");
                }
                found().then_some(())
            });
        };
        let session = || server.sessions().first().copied();
        until("a session", &mut || session().is_some());
        let arrival = session().unwrap();
        let mut newcomer = None;
        match when {
            When::Rounds => until("an image", &mut || there.join("store/config").exists()),
            When::Last => until("the last image", &mut || is_last(&there)),
            When::Start => until("a start", &mut || {
                newcomer = descendant(arrival, "restart");
                newcomer.is_some()
            }),
        }
        for pid in newcomer.iter().chain([&arrival]) {
            signal(*pid, Signal::STOP);
        }
        let stage_name = stage.name().to_owned();
        Self { mover: Some(mover), server, arrival, newcomer, there, stage_name }
    }

    fn goes_on(&self) {
        for pid in self.newcomer.iter().chain([&self.arrival]) {
            signal(*pid, Signal::CONT);
        }
    }

    fn kill_mover(&mut self) {
        let mut mover = self.mover.take().unwrap();
        mover.kill().unwrap();
        mover.wait().unwrap();
        self.goes_on();
    }

    /// Whoever accepts connections, with whom sessions go.
    fn kill_front(&self) {
        tree::kill_all(&[self.server.front().cast_signed()]);
        self.goes_on();
    }

    /// The session's process, which nobody waits for: whoever accepts connections knows that it is gone.
    fn kill_receiver(&self) {
        tree::kill_all(&[self.arrival]);
        self.goes_on();
    }

    fn ended(&mut self) -> Output {
        self.mover.take().unwrap().wait_with_output().unwrap()
    }

    /// What the job has printed there.
    fn printed(&self) -> Vec<u8> {
        std::fs::read(self.there.join("output").join(format!("{}.out", self.stage_name))).unwrap_or_default()
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        signal(self.arrival, Signal::KILL);
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: i32) -> bool {
    let is_stopped = |thread: PathBuf| {
        std::fs::read_to_string(thread.join("status")).is_ok_and(|status| status.contains("State:\tT"))
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.into_iter().all(|thread| is_stopped(thread.unwrap().path()))
}

/// Has a restart that is stopped come to where it says that its program may run, and not further: whoever waits for it is stopped when he has begun to, and there is no room for what he is to hear.
fn comes_to_its_word(restart: i32, waits: i32) {
    let environment = String::from_utf8(std::fs::read(format!("/proc/{restart}/environ")).unwrap()).unwrap();
    let socket = environment.split('\0').find_map(|each| each.strip_prefix("NOTIFY_SOCKET=")).unwrap();
    let word = Path::new(socket).with_file_name("may-run");
    let word = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(word).unwrap();
    let is_said = || poll(&mut [PollFd::new(&word, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0;
    until("somebody waits", || is_said().then_some(()));
    signal(waits, Signal::STOP);
    // Before that he may hear one thing more.
    until("a stop", || is_stopped(waits).then_some(()));
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    other.connect(socket).unwrap();
    let full = until("no room", || other.send(b"STATUS=on its way").err());
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    signal(restart, Signal::CONT);
    let (write, length) = (libc::SYS_write.to_string(), format!("{:#x}", "X_DORMOUSE_MAY_RUN=1".len()));
    until("its word", || {
        let call = std::fs::read_to_string(format!("/proc/{restart}/syscall")).ok()?;
        let words: Vec<&str> = call.split(' ').collect();
        (words.first() == Some(&&*write) && words.get(3) == Some(&&*length)).then_some(())
    });
}

/// The GPU server of a job that has one.
fn server(restart: i32) -> i32 {
    descendant(restart, "server").unwrap()
}

/// It runs nowhere, and goes on from the last image as if nothing had been.
fn goes_on_from_its_image(stage: &Stage, job: Job) {
    let ended = job.finish().unwrap();
    assert_eq!(ended.exit, Exit::Signal(9), "{}", ended.stderr);
    stage.let_end().unwrap();
    let image = stage.images().unwrap().last().unwrap().clone();
    let rest = stage.place().restart(&image).unwrap().finish().unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    assert_eq!([ended.stdout, rest.stdout].concat(), whole.stdout, "{}", rest.stderr);
}

/// Until the other side may have started it, a job goes on where it was, as often as that happens; it compares its numbers itself.
#[test]
fn a_job_goes_on_here_whoever_is_killed_before_it_may_run_there() {
    let stage = Stage::new("kept").unwrap();
    let job = stage.started(PACED, &["6000"]).unwrap();
    let moving = |when| Moving::begin(&stage, There::new(&stage), when);
    let mut lost = moving(When::Rounds);
    lost.kill_receiver();
    Failure::of(&lost.ended()).unwrap().expect(9, &[&lost.server.address, "the session is lost"]);
    let mut gone = moving(When::Rounds);
    gone.kill_mover();
    let mut without_front = moving(When::Rounds);
    without_front.kill_front();
    Failure::of(&without_front.ended())
        .unwrap()
        .expect(9, &[&without_front.server.address, "the session is lost"]);
    // It stands still, and nothing of it has been begun there, or nothing that may run.
    let mut lost_late = moving(When::Last);
    lost_late.kill_receiver();
    let failure = Failure::of(&lost_late.ended()).unwrap();
    failure.expect(9, &["the job goes on where it was", "the session is lost"]);
    let mut gone_late = moving(When::Last);
    gone_late.kill_mover();
    let mut failed = moving(When::Start);
    signal(failed.newcomer.unwrap(), Signal::KILL);
    failed.goes_on();
    let failure = Failure::of(&failed.ended()).unwrap();
    failure.expect(1, &["the job goes on where it was", "ended before it said that the program runs"]);
    let printed = job.stdout.so_far().len();
    until("a line more", || (job.stdout.so_far().len() > printed).then_some(()));
    stage.checkpoint(After::Stop).unwrap();
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Signal(9), "{}", finished.stderr);
    for moving in [lost, gone, without_front, lost_late, gone_late, failed] {
        assert_eq!(moving.printed(), b"", "it ran there, too");
    }
}

/// From its word on the job is the other side's, whatever fails there then: here the last that the program needs of a server that is gone.
#[test]
fn what_fails_when_it_may_run_there_does_not_go_on_here() {
    let stage = Stage::new("fails-late").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut moving = Moving::begin(&stage, There::new(&stage), When::Start);
    let restart = moving.newcomer.unwrap();
    signal(moving.arrival, Signal::CONT);
    comes_to_its_word(restart, moving.arrival);
    tree::kill_all(&[server(restart)]);
    moving.goes_on();
    let failure = Failure::of(&moving.ended()).unwrap();
    failure.expect(1, &["may have run until then", "does not here any more", "dormouse restart --store"]);
    assert_eq!(moving.printed(), b"");
    goes_on_from_its_image(&stage, job);
}

/// The time for its start is over when it may run, which takes longer than that in all.
#[test]
fn what_is_slow_when_it_may_run_there_goes_on_there() {
    const WITHIN: Duration = Duration::from_secs(6);
    let stage = Stage::new("slow").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let within = format!("{}s", WITHIN.as_secs());
    let flags = ["--start-within", &within];
    let mut moving = Moving::begin_with(&stage, There::new(&stage), When::Start, &flags);
    let restart = moving.newcomer.unwrap();
    signal(moving.arrival, Signal::CONT);
    comes_to_its_word(restart, moving.arrival);
    let server = server(restart);
    signal(server, Signal::STOP);
    moving.goes_on();
    std::thread::sleep(WITHIN + Duration::from_secs(1));
    signal(server, Signal::CONT);
    let moved = report(&moving.ended());
    let left = stage.finish(job).unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    let rest = wait_for_end(&moved);
    let whole = stage.undisturbed(&ARGS).unwrap();
    assert_eq!([left.stdout, rest].concat(), whole.stdout);
}

/// Whoever moved it says so with his last words, and where to look.
#[test]
fn who_is_interrupted_when_it_is_started_there_says_where_to_look() {
    let stage = Stage::new("interrupted-late").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut moving = Moving::begin(&stage, There::new(&stage), When::Start);
    signal(moving.arrival, Signal::CONT);
    comes_to_its_word(moving.newcomer.unwrap(), moving.arrival);
    signal(moving.mover.as_ref().unwrap().id().cast_signed(), Signal::INT);
    let output = moving.ended();
    assert_eq!(output.status.signal(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let goes = format!("runs at {} soon, as {}", moving.server.address, stage.name());
    for word in [&*goes, "`dormouse ps` says so here and there", "images that were taken ahead stay"] {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    moving.goes_on();
    let left = job.finish().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    stage.let_end().unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap().stdout;
    until("its end there", || ([&left.stdout[..], &moving.printed()].concat() == whole).then_some(()));
}

/// What was taken ahead is all that is left of it.
#[test]
fn a_job_that_is_lost_on_its_way_goes_on_from_what_was_taken_ahead() {
    let stage = Stage::new("lost-ahead").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut moving = Moving::begin(&stage, There::new(&stage), When::Rounds);
    let image = until("an image here", || stage.images().unwrap().pop());
    // Who moves it hears of that a moment later, which nobody can see.
    std::thread::sleep(Duration::from_secs(2));
    tree::kill_all(&[job.pid()]);
    moving.goes_on();
    let failure = Failure::of(&moving.ended()).unwrap();
    let restart = format!("dormouse restart --store {} {image}", stage.place().store().display());
    failure.expect(3, &["its supervisor was killed", "Its image is there", &restart]);
    let ended = job.finish().unwrap();
    assert_eq!(ended.exit, Exit::Signal(9), "{}", ended.stderr);
    stage.let_end().unwrap();
    let rest = stage.place().restart(&image).unwrap().finish().unwrap();
    // What it has printed since comes again.
    let whole = stage.undisturbed(&ARGS).unwrap().stdout;
    assert!(whole.starts_with(&ended.stdout) && whole.ends_with(&rest.stdout), "{}", rest.stderr);
    assert!(ended.stdout.len() + rest.stdout.len() >= whole.len());
}

/// With other options on this machine: what has begun with them does not begin once more without.
#[test]
fn what_fails_when_it_may_run_here_is_not_started_again() {
    let stage = Stage::new("fails-here").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut command = migrate(&stage, "here", &[]);
    let mover = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let waits = mover.id().cast_signed();
    let restart = until("a start", || descendant(waits, "restart"));
    signal(restart, Signal::STOP);
    comes_to_its_word(restart, waits);
    tree::kill_all(&[server(restart)]);
    signal(waits, Signal::CONT);
    let failure = Failure::of(&mover.wait_with_output().unwrap()).unwrap();
    failure.expect(1, &["may have run until then", "not started a second time", "dormouse restart --store"]);
    let printed = output(&stage).join(format!("{}.out", stage.name()));
    assert_eq!(std::fs::read(printed).unwrap(), b"");
    goes_on_from_its_image(&stage, job);
}
