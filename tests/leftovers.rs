//! Whatever is killed, and whenever: memory and folders for temporary files are as they were.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use dormouse_tests::{Mount, PACED, Stage, first_line};
use testkit::job::{Job, LIMIT};
use testkit::outcome::Exit;
use testkit::place::After;

/// A stage whose processes share nothing with other tests that they could leave something in.
struct Clean {
    stage: Stage,
    temporary: PathBuf,
    _shared_memory: Mount,
}

impl Clean {
    fn new(name: &str) -> Self {
        let stage = Stage::new(name).unwrap();
        let temporary = stage.place().cwd().join("temporary");
        std::fs::create_dir(&temporary).unwrap();
        let shared_memory = Mount::tmpfs("/dev/shm".into(), "mode=1777").unwrap();
        Self { stage, temporary, _shared_memory: shared_memory }
    }

    fn start(&self, mut command: Command) -> Job {
        command.env("TMPDIR", &self.temporary);
        first_line(Job::start(command).unwrap()).unwrap()
    }

    fn run(&self) -> Command {
        self.stage.command(PACED, &["2000"])
    }

    /// A CRIU that never answers when it is asked to dump, but makes the second of the two files then.
    fn mute_criu(&self) -> (PathBuf, PathBuf) {
        let folder = self.stage.place().cwd();
        let (criu, reached) = (folder.join("criu"), folder.join("reached"));
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && echo Version: 4.2 && exit\n: > {}\nexec sleep 1000\n",
            reached.display()
        );
        std::fs::write(&criu, script).unwrap();
        std::fs::set_permissions(&criu, PermissionsExt::from_mode(0o755)).unwrap();
        (criu, reached)
    }

    #[track_caller]
    fn kill_everything(&self, job: Job) {
        self.stage.place().kill_everything(job).unwrap();
        for folder in [Path::new("/dev/shm"), &self.temporary] {
            let left: Vec<_> =
                std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "left over: {left:?}");
        }
    }
}

#[test]
fn killed_after_a_checkpoint_and_after_a_restart() {
    let clean = Clean::new("killed-after");
    let job = clean.start(clean.run());
    let image = clean.stage.checkpoint(After::LeaveRunning).unwrap();
    clean.kill_everything(job);
    let job = clean.start(clean.stage.place().restart_command(&image));
    clean.kill_everything(job);
}

#[test]
fn killed_in_the_middle_of_a_checkpoint() {
    let clean = Clean::new("killed-amid");
    let (criu, reached) = clean.mute_criu();
    let mut command = clean.run();
    command.env("DORMOUSE_CRIU", &criu);
    let job = clean.start(command);
    let mut checkpoint = clean.stage.place().checkpoint_command(After::LeaveRunning).spawn().unwrap();
    let began = Instant::now();
    while !reached.exists() {
        assert!(began.elapsed() < LIMIT, "CRIU is not asked");
        std::thread::sleep(Duration::from_millis(2));
    }
    // Meanwhile the server captures its device memory and hands its object table over.
    std::thread::sleep(Duration::from_millis(500));
    clean.kill_everything(job);
    checkpoint.wait().unwrap();
}

#[test]
fn a_criu_that_never_answers_is_given_up_and_the_job_goes_on() {
    let clean = Clean::new("mute-criu");
    let (criu, _) = clean.mute_criu();
    let mut command = clean.stage.command(PACED, &["1500"]);
    command.env("DORMOUSE_CRIU", &criu).env("DORMOUSE_CRIU_SILENCE", "1");
    let job = clean.start(command);
    // Killed, and found by the probe that follows to be of no use at all.
    clean
        .stage
        .refused_checkpoint(&[])
        .unwrap()
        .expect(9, &["CRIU 4.2 at", "it got nowhere for 1 s and was killed"]);
    let finished = job.finish().unwrap();
    assert!(finished.exit == Exit::Code(0), "{finished:?}");
}

/// The device library would wait for such a kernel, and for a stream that waits for a word.
#[test]
fn a_server_ends_though_its_device_does_not_become_idle() {
    let stage = Stage::new("never-idle").unwrap();
    for _ in 0..4 {
        let job = stage.started("spin", &["600000", "1"]).unwrap();
        job.signal(Signal::KILL).unwrap();
        // Whoever is left keeps what it prints to open, and that is waited for.
        assert_eq!(job.finish().unwrap().exit, Exit::Signal(9));
    }
}
