//! A program that asks for its own checkpoint, through `libdormouse` or not (`docs/self-checkpoint.md`).
#![allow(clippy::unwrap_used)]

use dormouse_tests::{Stage, first_line};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::job::{Finished, Job};
use testkit::outcome::Exit;
use testkit::place::After;

const GUEST: &str = "self_checkpoint";

fn finished(command: Command) -> Finished {
    let finished = Job::start(command).unwrap().finish().unwrap();
    assert_eq!(
        finished.exit,
        Exit::Code(0),
        "{}{}",
        String::from_utf8_lossy(&finished.stdout),
        finished.stderr
    );
    finished
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "it does not come to that");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn guest(stage: &Stage, how: &str) -> Finished {
    finished(stage.command(GUEST, &["40", "16", how]))
}

/// What a guest that asks for no checkpoint prints.
fn plain() -> Vec<u8> {
    guest(&Stage::new("plain").unwrap(), "plain").stdout
}

/// How often a guest was answered so.
fn answers(finished: &Finished, code: i32) -> usize {
    finished.stderr.matches(&format!("code {code} ")).count()
}

/// Every image of a job that has checkpointed itself so continues it to the same end, and is known by its program.
fn continues_from_each(how: &str, published: usize) {
    let stage = Stage::new(how).unwrap();
    let whole = guest(&stage, how);
    assert_eq!(answers(&whole, 0), published, "{}", whole.stderr);
    let images = stage.images().unwrap();
    assert!(!images.is_empty() && images.len() <= published, "{images:?}");
    for image in images {
        assert!(whole.stderr.contains(&image), "{image}: {}", whole.stderr);
        let restarted = finished(stage.place().restart_command(&image));
        assert!(whole.stdout.ends_with(&restarted.stdout), "{image}: {}", restarted.stderr);
        let here = format!("code 1 image '{image}' restarts 1");
        assert!(restarted.stderr.contains(&here), "{}", restarted.stderr);
    }
}

#[test]
fn a_program_that_checkpoints_itself_continues_from_each_image() {
    continues_from_each("loop", 3);
    let stage = Stage::new("same").unwrap();
    assert_eq!(guest(&stage, "loop").stdout, plain());
}

#[test]
fn one_that_goes_on_while_images_are_written_does() {
    continues_from_each("no_wait", 3);
}

#[test]
fn threads_and_processes_that_ask_at_once_do() {
    continues_from_each("threads", 9);
    continues_from_each("processes", 9);
}

/// The restarted run asks again, and is restarted from what it gets.
#[test]
fn a_program_that_ends_with_each_checkpoint_counts_its_restarts() {
    let stage = Stage::new("stop").unwrap();
    let first = Job::start(stage.command(GUEST, &["40", "16", "stop"])).unwrap().finish().unwrap();
    let mut printed = first.stdout;
    for restarts in 1..=3 {
        let image = stage.images().unwrap().pop().unwrap();
        let next = stage.place().restart(&image).unwrap().finish().unwrap();
        printed.extend(next.stdout);
        assert!(
            next.stderr.contains(&format!("code 1 image '{image}' restarts {restarts}")),
            "{}",
            next.stderr
        );
        assert_eq!(next.exit == Exit::Code(0), restarts == 3, "{}", next.stderr);
    }
    assert_eq!(printed, plain());
}

#[test]
fn a_checkpoint_waits_for_a_point_that_suits_the_program() {
    let stage = Stage::new("points").unwrap();
    let args = ["200", "16", "points"];
    let job = first_line(Job::start(stage.command(GUEST, &args)).unwrap()).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    // This one does not.
    let mut anywhere = stage.place().checkpoint_command(After::LeaveRunning);
    assert!(anywhere.args(["--point-wait", "0"]).status().unwrap().success());
    let whole = job.finish().unwrap();
    assert_eq!((whole.exit, answers(&whole, 2)), (Exit::Code(0), 1), "{}", whole.stderr);
    assert!(whole.stderr.contains("callbacks 1 before 1 after 0 restarted"), "{}", whole.stderr);
    let restarted = finished(stage.place().restart_command(&image));
    assert!(whole.stdout.ends_with(&restarted.stdout));
    assert!(restarted.stderr.contains("code 1 restarts 1"), "{}", restarted.stderr);
    assert!(restarted.stderr.contains("callbacks 1 before 0 after 1 restarted"), "{}", restarted.stderr);
}

/// It would come to a point only after an hour.
#[test]
fn a_checkpoint_that_is_given_up_waits_for_no_point_and_is_in_nobodys_way() {
    let stage = Stage::new("given-up").unwrap();
    let program = "import dormouse, os, time\ndormouse.convenient_point()\nprint('here', flush=True)\n\
                   while not os.path.exists('go'): time.sleep(0.01)";
    let mut command = stage.place().run_command(Path::new("python3"), &["-c".to_owned(), program.to_owned()]);
    command.env("PYTHONPATH", stage.place().kit.part("python"));
    let job = first_line(Job::start(command).unwrap()).unwrap();
    let checkpoint = |wait: &str| {
        let mut command = stage.place().checkpoint_command(After::LeaveRunning);
        command.args(["--point-wait", wait]).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut given_up = checkpoint("3600").spawn().unwrap();
    // Its turn has come before it makes the store.
    wait_until(|| stage.place().store().join("config").exists());
    assert_eq!(checkpoint("0").status().unwrap().code(), Some(4), "it is under way");
    given_up.kill().unwrap();
    given_up.wait().unwrap();
    wait_until(|| checkpoint("0").status().is_ok_and(|status| status.success()));
    std::fs::write(stage.place().cwd().join("go"), "").unwrap();
    assert_eq!(job.finish().unwrap().exit, Exit::Code(0));
    assert_eq!(stage.images().unwrap().len(), 1);
}

#[test]
fn so_do_regular_ones_also_of_a_job_that_was_restarted() {
    let stage = Stage::new("every").unwrap();
    let args = ["400", "16", "points"];
    let whole = finished(stage.command_with(&["--every", "1s"], GUEST, &args));
    assert!(answers(&whole, 2) >= 1, "{}", whole.stderr);
    let image = stage.images().unwrap().remove(0);
    let mut restart = stage.place().restart_command(&image);
    restart.args(["--every", "1s"]);
    let restarted = finished(restart);
    assert!(whole.stdout.ends_with(&restarted.stdout));
    assert!(answers(&restarted, 1) == 1 && answers(&restarted, 2) >= 1, "{}", restarted.stderr);
}

#[test]
fn a_store_that_cannot_be_written_is_told_to_the_program_which_goes_on() {
    let stage = Stage::new("unwritten").unwrap();
    std::fs::write(stage.place().store(), "no folder").unwrap();
    let finished = guest(&stage, "loop");
    assert_eq!((answers(&finished, -10), finished.stdout), (3, plain()), "{}", finished.stderr);
    assert_eq!(finished.stderr.matches("store: Not a directory").count(), 3, "{}", finished.stderr);
}

#[test]
fn a_device_that_does_not_get_idle_is_told_to_the_program_which_goes_on() {
    let finished = guest(&Stage::new("spins").unwrap(), "spin");
    assert_eq!(answers(&finished, -5), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("kernel"), "{}", finished.stderr);
}

#[test]
fn somebody_elses_checkpoint_that_is_under_way_is_told_to_the_program_which_goes_on() {
    let stage = Stage::new("busy").unwrap();
    let job = stage.started(GUEST, &["40", "16", "told"]).unwrap();
    let mut other = stage.place().checkpoint_command(After::LeaveRunning);
    // It waits for the kernel, which waits for the program, which asks first.
    other.args(["--gate-deadline", "60"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let other = other.spawn().unwrap();
    // Its turn has come before it makes the store.
    wait_until(|| stage.place().store().join("config").exists());
    let go = stage.place().cwd().join("go");
    std::fs::write(&go, "").unwrap();
    let other = other.wait_with_output().unwrap();
    std::fs::remove_file(&go).unwrap();
    let finished = job.finish().unwrap();
    assert!(other.status.success(), "{other:?}");
    assert_eq!((finished.exit, answers(&finished, -4)), (Exit::Code(0), 1), "{}", finished.stderr);
    assert!(finished.stderr.contains("under way"), "{}", finished.stderr);
}

/// A program that asks once, and says what it was told and how much a point costs.
const PROGRAM: &str = r#"
#include <dormouse.h>
#include <stdio.h>
int main(void) {
    dormouse_outcome outcome = DORMOUSE_OUTCOME_INIT;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int points = dormouse_convenient_point(), code = dormouse_checkpoint(0, &outcome);
    for (int i = 0; i < 1000; i++) points += dormouse_convenient_point() - (dormouse_available() ? 0 : DORMOUSE_NOT_HERE);
    printf("%d %d %u %s\n", code, points, dormouse_restarts(), outcome.image);
    printf("%d\n", code < 0 ? code : ckptSelf());
    return 0;
}
"#;

/// The program, linked with the library in one way or the other.
fn linked(stage: &Stage, how: &str) -> PathBuf {
    let (source, program) = (stage.place().cwd().join("asks.c"), stage.place().cwd().join(how));
    std::fs::write(&source, PROGRAM).unwrap();
    let (include, lib) = (stage.place().kit.part("include"), stage.place().kit.part("lib"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(include).arg(&source).arg("-o").arg(&program);
    match how {
        "static" => gcc.arg(lib.join("libdormouse.a")).args(["-lpthread", "-ldl", "-lm"]),
        _ => gcc.arg("-L").arg(&lib).arg("-ldormouse").arg(format!("-Wl,-rpath,{}", lib.display())),
    };
    let output = gcc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn a_program_that_is_linked_with_the_library_runs_with_and_without_dormouse() {
    for how in ["static", "shared"] {
        let stage = Stage::new(how).unwrap();
        let program = linked(&stage, how);
        let natively = stage.place().run_natively(&program, &[]).unwrap().finish().unwrap();
        assert_eq!(String::from_utf8_lossy(&natively.stdout), "-100 -100 0 \n-100\n", "{}", natively.stderr);
        let under = finished(stage.place().run_command(&program, &[]));
        let images = stage.images().unwrap();
        let said = String::from_utf8_lossy(&under.stdout).into_owned();
        assert_eq!(said, format!("0 0 0 {}\n0\n", images[0]), "{}", under.stderr);
        for (image, said) in images.iter().zip([format!("1 0 1 {}\n0\n", images[0]), "1\n".to_owned()]) {
            let restarted = finished(stage.place().restart_command(image));
            assert_eq!(String::from_utf8_lossy(&restarted.stdout), said, "{}", restarted.stderr);
        }
    }
}

const EXCLUDED: &str = "excluded";

fn excluding(stage: &Stage, how: &str) -> Finished {
    finished(stage.command(EXCLUDED, &["2", "1", how]))
}

/// What the store says of an image's bytes.
fn stored(stage: &Stage, image: &str) -> serde_json::Value {
    stage.inspect(image).unwrap()["stored"].clone()
}

/// How many words of its two buffers a guest has found changed, at each of its steps.
fn lost(finished: &Finished) -> Vec<(u64, u64)> {
    let words = |line: &str| {
        let (_, rest) = line.split_once("lost ")?;
        let mut words = rest.split(' ');
        Some((words.next()?.parse().ok()?, words.nth(1)?.parse().ok()?))
    };
    finished.stderr.lines().filter_map(words).collect()
}

const EXCLUDED_BYTES: u64 = 32 << 20;

#[test]
fn what_a_program_excludes_is_in_no_image_and_all_else_is() {
    let plain = Stage::new("nothing-excluded").unwrap();
    let whole = excluding(&plain, "plain");
    let stage = Stage::new("excluded").unwrap();
    let excluding = excluding(&stage, "exclude");
    assert_eq!(excluding.stdout, whole.stdout);
    assert_eq!(lost(&excluding), [(0, 0); 2], "the run that goes on has it all");
    let images = [&plain, &stage].map(|stage| stage.images().unwrap());
    let [all, less] =
        [(&plain, &images[0]), (&stage, &images[1])].map(|(stage, images)| stored(stage, &images[0]));
    let bytes = |stored: &serde_json::Value, what: &str| stored[what].as_u64().unwrap();
    assert_eq!(bytes(&all, "excluded"), 0);
    assert_eq!(bytes(&less, "excluded"), 2 * EXCLUDED_BYTES, "{less}");
    // Not bytes written: how much is compressed is chosen by how fast the store is.
    let saved = bytes(&all, "data") - bytes(&less, "data");
    assert!(saved > 2 * EXCLUDED_BYTES / 10 * 9, "{saved}: {all} {less}");
    for image in &images[1] {
        let verified =
            stage.place().dormouse("verify").arg(image).arg("--store").arg(stage.place().store()).status();
        assert!(verified.unwrap().success());
        let restarted = finished(stage.place().restart_command(image));
        assert!(whole.stdout.ends_with(&restarted.stdout), "{image}: {}", restarted.stderr);
        let (device, host) = lost(&restarted)[0];
        assert!(device > 0 && host > 0, "it was saved: {}", restarted.stderr);
        // Exclusions survive the restart, and so the checkpoint after it, and that restart.
        let next = stage.images().unwrap().pop().unwrap();
        assert_eq!(bytes(&stored(&stage, &next), "excluded"), 2 * EXCLUDED_BYTES);
    }
}

#[test]
fn memory_that_is_not_excluded_any_more_is_in_the_image() {
    let stage = Stage::new("included").unwrap();
    let whole = excluding(&stage, "end");
    for image in stage.images().unwrap() {
        assert_eq!(stored(&stage, &image)["excluded"], 0);
        let restarted = finished(stage.place().restart_command(&image));
        assert!(whole.stdout.ends_with(&restarted.stdout), "{image}: {}", restarted.stderr);
        assert_eq!(lost(&restarted)[0], (0, 0), "{}", restarted.stderr);
    }
}

/// The command that runs the guest in Python.
fn python(stage: &Stage, in_a_job: bool, args: &[&str]) -> Command {
    let script = stage.guest("self_checkpoint.py").display().to_string();
    stage.python(in_a_job, &[&[&*script], args].concat())
}

#[test]
fn so_does_one_in_python() {
    let stage = Stage::new("python").unwrap();
    let natively = finished(python(&stage, false, &[]));
    assert!(natively.stderr.contains("ask step 11: None restarts 0"), "{}", natively.stderr);
    let whole = finished(python(&stage, true, &[]));
    assert_eq!(whole.stdout, natively.stdout);
    let images = stage.images().unwrap();
    assert_eq!(images.len(), 3, "{}", whole.stderr);
    for image in &images {
        // An array of 8 MiB, but for pages that it shares.
        let excluded = stored(&stage, image)["excluded"].as_u64().unwrap();
        assert!((7 << 20..=8 << 20).contains(&excluded), "{image}: {excluded}");
        let restarted = finished(stage.place().restart_command(image));
        assert!(whole.stdout.ends_with(&restarted.stdout), "{image}: {}", restarted.stderr);
        let here = format!("Checkpoint(image='{image}', restarted=True, ticket=0) restarts 1");
        assert!(restarted.stderr.contains(&here), "{}", restarted.stderr);
    }
    let stage = Stage::new("python-unwritten").unwrap();
    std::fs::write(stage.place().store(), "no folder").unwrap();
    let refused = finished(python(&stage, true, &[]));
    assert_eq!(
        (refused.stdout, refused.stderr.matches("code 10 ").count()),
        (natively.stdout, 3),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_checkpoint_waits_for_a_point_of_one_in_python() {
    let stage = Stage::new("python-points").unwrap();
    let job = first_line(Job::start(python(&stage, true, &["200", "points"])).unwrap()).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let whole = job.finish().unwrap();
    assert_eq!(whole.exit, Exit::Code(0), "{}", whole.stderr);
    assert_eq!(whole.stderr.matches("Checkpoint(image=None, restarted=False").count(), 1, "{}", whole.stderr);
    let restarted = finished(stage.place().restart_command(&image));
    assert!(whole.stdout.ends_with(&restarted.stdout));
    assert!(restarted.stderr.contains("restarted=True, ticket=0) restarts 1"), "{}", restarted.stderr);
}

/// Says what is no question, and too many, on the job's socket; then asks properly.
const ODD: &str = r#"
import os, socket, struct, time
def say(packet):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(20)
    s.connect("/run/dormouse-job/hello.sock")
    s.send(packet)
    try:
        answer = s.recv(4096)
    except OSError:
        return "nothing"
    kind, code = struct.unpack_from("<II", answer, 4) if len(answer) >= 12 else (0, 0)
    return {0: "nothing", 3: "refused", 10: "ticket", 11: "not asked, code %d" % code}.get(kind, "other")
def ask(*words): return b"DORM" + struct.pack("<%dI" % len(words), *words)
for packet in [ask(9), ask(9, 1), ask(9, 1, 1), ask(9, 1, 1, 2), ask(9, 1, 0, 0), ask(9, 1, 4, 0), ask(9, 1, 1, 0, 0), ask(9, 1, 3, 7), ask(10, 5, 0),
               b"MROD" + ask(9, 1, 1, 0)[4:], os.urandom(3000)]:
    assert say(packet) == "nothing", packet
print("another version:", say(ask(9, 2, 1, 0)))
said = [say(ask(9, 1, 2, 0)) for _ in range(200)]
print("too often:", said[0], "not asked, code 4" in said)
try:
    open("/run/dormouse-job/board", "r+b").close()
    os.truncate("/run/dormouse-job/board", 5)
except OSError:
    pass
time.sleep(3)
print("at last:", say(ask(9, 1, 1, 0)))
while not os.path.exists("go"): time.sleep(0.01)
"#;

#[test]
fn what_is_no_question_is_refused_and_harms_nobody() {
    let stage = Stage::new("odd").unwrap();
    let args = ["-c".to_owned(), ODD.to_owned()];
    let mut command = stage.place().run_command(Path::new("python3"), &args);
    command.env("PYTHONUNBUFFERED", "1");
    let job = Job::start(command).unwrap();
    wait_until(|| stage.images().is_ok_and(|images| !images.is_empty()));
    std::fs::write(stage.place().cwd().join("go"), "").unwrap();
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let said = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert_eq!(
        said, "another version: refused\ntoo often: ticket True\nat last: ticket\n",
        "{}",
        finished.stderr
    );
    // Whoever spoils his job's board learns of nothing, and has his checkpoint.
    assert_eq!(stage.images().unwrap().len(), 1, "{}", finished.stderr);
}
