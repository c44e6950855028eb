//! What becomes of a restart that its user ends, that finds too little room, or that is looked at.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dormouse_tests::{Failure, PACED, Stage};
use rustix::process::Signal;
use testkit::job::{Job, LIMIT};
use testkit::outcome::Exit;
use testkit::place::After;

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "{what} does not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |meta| meta.len())
}

/// Where the job's supervisor keeps what it claims.
fn claim(stage: &Stage) -> PathBuf {
    Path::new("/run/dormouse").join(stage.name())
}

#[test]
fn a_signal_ends_a_restart_that_prepares_and_leaves_everything_as_it_was() {
    let stage = Stage::new("interrupted").unwrap();
    let file = stage.place().cwd().join("output");
    let mut command = stage.command_into_file(PACED, &["2000"], "output");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for("the first line", || length(&file) > 0);
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let at_cut = length(&file);
    wait_for("another line", || length(&file) > at_cut + 100);
    stage.checkpoint(After::Stop).unwrap();
    child.wait().unwrap();
    let before = fs::read(&file).unwrap();

    for signal in [Signal::INT, Signal::TERM] {
        let restart = stage.place().restart(&image).unwrap();
        wait_for("the claim of the name", || claim(&stage).join("job.json").exists());
        // Caught while it prepares: the GPU server alone takes longer to start than this.
        restart.signal(Signal::STOP).unwrap();
        restart.signal(signal).unwrap();
        restart.signal(Signal::CONT).unwrap();
        let finished = restart.finish().unwrap();
        assert_eq!(finished.exit, Exit::Signal(signal.as_raw()), "{}", finished.stderr);
        assert_eq!(finished.stdout, b"");
        assert!(fs::read(&file).unwrap() == before, "the job's output was touched");
        assert!(!claim(&stage).exists());
    }
    // It can be tried again at once.
    let restart = stage.place().restart(&image).unwrap();
    wait_for("the output cut back, and more", || !fs::read(&file).unwrap().starts_with(&before));
    stage.checkpoint(After::Stop).unwrap();
    restart.finish().unwrap();
}

#[test]
fn the_shared_memory_is_as_large_as_it_was_and_too_little_is_named() {
    let stage = Stage::new("little").unwrap();
    let script =
        "echo begun; while [ ! -e go ]; do sleep 0.01; done; stat -f -c '%b blocks of %S' /run/dormouse-job";
    let mut command = stage.place().dormouse("run");
    command.args(["--name", stage.name(), "--device", "soft", "--shared-memory", "96M"]);
    command.arg("--store").arg(stage.place().store()).args(["--", "sh", "-c", script]);
    let job = dormouse_tests::first_line(Job::start(command).unwrap()).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();

    for (flags, code) in [(&["--check"][..], 1), (&[], 125)] {
        let mut little = stage.place().restart_command(&image);
        let little = little.args(["--shared-memory", "1M"]).args(flags).output().unwrap();
        Failure::of(&little).unwrap().expect(code, &["--shared-memory", "1048576 bytes"]);
    }
    fs::write(stage.place().cwd().join("go"), "").unwrap();
    let finished = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "24576 blocks of 4096\n");
}

#[test]
fn a_terminal_is_told_how_a_restart_goes_and_nobody_else() {
    let stage = Stage::new("watched").unwrap();
    let job = stage.held(PACED, &["200"]).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let whole = stage.finish(job).unwrap().stdout;

    let restart = stage.place().restart_command(stage.name());
    let words = restart.get_args().map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.current_dir(stage.place().cwd()).args(["--quiet", "--return", "--command"]);
    script.arg(format!("{} {words} > output", stage.place().dormouse("").get_program().to_str().unwrap()));
    let seen = script.arg("/dev/null").stdin(Stdio::null()).output().unwrap();
    let shown = String::from_utf8_lossy(&seen.stdout);
    assert!(seen.status.success(), "{shown}");
    assert!(shown.contains("reading") && !shown.contains("0 B/0 B"), "{shown}");
    // Which program that name stood for last.
    assert!(
        shown.contains(&format!("{} is image {}", stage.name(), &image[..12])) && shown.contains(PACED),
        "{shown}"
    );
    let output = fs::read(stage.place().cwd().join("output")).unwrap();
    assert!(!output.is_empty() && whole.ends_with(&output), "{}", String::from_utf8_lossy(&output));

    let unseen = stage.place().restart(stage.name()).unwrap().finish().unwrap();
    assert!(unseen.stderr.is_empty() && unseen.exit == Exit::Code(0), "{}", unseen.stderr);
    assert!(whole.ends_with(&unseen.stdout));
}
