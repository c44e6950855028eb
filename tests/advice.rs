//! What a user is told is true: a command that is printed does what it says, what cannot be done is refused by name, and nothing is
//! passed over in silence.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use dormouse_tests::{Failure, PACED, Stage, first_line};
use testkit::job::{Finished, Job};
use testkit::outcome::Exit;
use testkit::place::After;
use testkit::tree;

/// The command that the last line of a stopped job's supervisor tells.
fn told(finished: &Finished) -> String {
    let line = finished.stderr.lines().last().unwrap_or_default();
    let (_, command) = line.split_once("continue with '").unwrap_or_else(|| panic!("{}", finished.stderr));
    command.strip_suffix('\'').unwrap().to_owned()
}

/// Does what was told, from another folder.
fn follow(stage: &Stage, command: &str) -> Finished {
    let program = stage.place().dormouse("").get_program().to_owned();
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("dormouse() {{ \"$DORMOUSE\" \"$@\"; }}; {command}"))
        .env("DORMOUSE", program);
    shell.current_dir("/").stdin(Stdio::null());
    Job::start(shell).unwrap().finish().unwrap()
}

#[test]
fn the_command_that_continues_a_stopped_job_continues_its_newest_image() {
    let stage = Stage::new("told").unwrap();
    let elsewhere = stage.place().folder.join("else where");
    let job = stage.held(PACED, &["1000"]).unwrap();
    let older = stage.checkpoint(After::LeaveRunning).unwrap();
    let mut stop = stage.place().checkpoint_command(After::Stop);
    let stopped = stop.arg("--store").arg(&elsewhere).output().unwrap();
    stage.let_end().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    let newest: serde_json::Value = serde_json::from_slice(&stopped.stdout).unwrap();
    let newest = newest["image"].as_str().unwrap();
    let before = job.finish().unwrap();
    // The job's name would mean the older image, in the job's own store.
    let command = told(&before);
    assert_eq!(command, format!("dormouse restart --store '{}' {}", elsewhere.display(), &newest[..12]));
    assert_ne!(newest, older);
    let after = follow(&stage, &command);
    assert_eq!(after.exit, Exit::Code(0), "{}", after.stderr);
    let whole = stage.undisturbed(&["1000"]).unwrap();
    assert!([before.stdout, after.stdout].concat() == whole.stdout, "something was done twice, or lost");
}

#[test]
fn a_store_that_was_named_is_named() {
    let stage = Stage::new("named").unwrap();
    let job = stage.held(PACED, &["1000"]).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let command = told(&job.finish().unwrap());
    let store = stage.place().store();
    assert_eq!(command, format!("dormouse restart --store {} {}", store.display(), stage.name()));

    let restarted = stage.place().restart(&image).unwrap();
    let restarted = first_line(restarted).unwrap();
    stage.checkpoint(After::Stop).unwrap();
    stage.let_end().unwrap();
    assert_eq!(told(&restarted.finish().unwrap()), command);
    let after = follow(&stage, &command);
    assert_eq!(after.exit, Exit::Code(0), "{}", after.stderr);
    assert!(String::from_utf8_lossy(&after.stdout).contains("done sum"));
}

fn truncate(file: &Path, length: u64) {
    let file = fs::File::options().write(true).open(file).unwrap();
    file.set_len(length).unwrap();
}

#[test]
fn a_damaged_newest_image_is_not_passed_over() {
    let stage = Stage::new("passed-over").unwrap();
    let job = stage.held(PACED, &["1000"]).unwrap();
    let older = stage.checkpoint(After::LeaveRunning).unwrap();
    let newest = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    let ask = |command: &str, args: &[&str]| {
        let mut command = stage.place().dormouse(command);
        command.arg("--store").arg(stage.place().store()).args(args).output().unwrap()
    };
    let manifest = stage.place().store().join(format!("images/{newest}.img"));
    truncate(&manifest, manifest.metadata().unwrap().len() / 2);
    for (command, args, code) in [
        ("restart", &[stage.name(), "--check"][..], 7),
        ("restart", &[stage.name()], 125),
        ("verify", &[stage.name()], 7),
        ("inspect", &[stage.name()], 7),
    ] {
        let words = ["is damaged", &newest, &format!("by its id: {older}")];
        Failure::of(&ask(command, args)).unwrap().expect(code, &words);
    }
    Failure::of(&ask("ls", &[])).unwrap().expect(7, &[&older[..12], &format!("damaged: image {newest}")]);
    assert!(ask("restart", &[&older, "--check"]).status.success());

    // Whose it is can no longer be read.
    truncate(&manifest, 80);
    let check = ask("restart", &[stage.name(), "--check"]);
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(
        check.status.success() && said.contains(&newest) && said.contains("may be a newer one"),
        "{said}"
    );
}

#[test]
fn a_folder_that_a_job_was_in_is_missed_by_name() {
    let stage = Stage::new("homeless").unwrap();
    let home = stage.place().cwd().join("home");
    fs::create_dir(&home).unwrap();
    let job = Job::start(stage.shell("cd home; echo begun; while [ ! -e ../go ]; do sleep 0.01; done; pwd"))
        .unwrap();
    let job = first_line(job).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    fs::remove_dir(&home).unwrap();
    for (flags, code) in [(&["--check"][..], 8), (&[], 125)] {
        let output = stage.place().restart_command(&image).args(flags).output().unwrap();
        let failure = Failure::of(&output).unwrap();
        failure.expect(code, &[home.to_str().unwrap(), "bring it back"]);
        assert!(!failure.message.contains("CRIU"), "{}", failure.message);
    }
    fs::create_dir(&home).unwrap();
    fs::write(stage.place().cwd().join("go"), "").unwrap();
    let finished = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!(
        (finished.exit, &*finished.stdout),
        (Exit::Code(0), format!("{}\n", home.display()).as_bytes())
    );
}

#[test]
fn whoever_traces_the_job_is_named() {
    let stage = Stage::new("watched-by").unwrap();
    let job = stage.held(PACED, &["400"]).unwrap();
    let guest = tree::descendants(job.pid()).unwrap().into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == PACED)
    });
    // PTRACE_SEIZE
    let script = format!(
        "import ctypes, time\nassert ctypes.CDLL(None).ptrace(0x4206, {}, 0, 0) == 0\nprint('begun', flush=True); time.sleep(1000)",
        guest.unwrap()
    );
    let mut tracer = Command::new("python3");
    let tracer = first_line(
        Job::start({
            tracer.args(["-c", &script]);
            tracer
        })
        .unwrap(),
    )
    .unwrap();
    let whom = format!("({PACED}) is traced by process {} (python3)", tracer.pid());
    stage.refused_checkpoint(&[]).unwrap().expect(6, &["nothing was written", &whom]);
    assert!(!stage.place().store().exists(), "something was written");
    tree::kill_all(&[tracer.pid()]);
    tracer.finish().unwrap();
    stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
}

/// A kernel that cannot stop where it is marked is told of by its own name when it is loaded, and not again by who rehearses that.
#[test]
fn a_marked_kernel_that_cannot_stop_is_told_of_once() {
    let stage = Stage::new("told-once").unwrap();
    let script = r#"
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
kernel = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry _Z7advanceIfEvPT_i() {
    .reg .pred %some;
    .reg .b32 %thread;
    mov.u32 %thread, %tid.x;
    setp.gt.u32 %some, %thread, 3;
    @%some bra $behind;
    .pragma "cpt";
$behind:
    bar.sync 0;
    ret;
}
"""
context, module = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), kernel) == 0
print("begun", flush=True)
time.sleep(1000)
"#;
    let args = ["-c", script].map(str::to_owned);
    let job = stage.place().run(Path::new("/usr/bin/python3"), &args).unwrap();
    let job = first_line(job).unwrap();
    let report = stage.place().checkpoint_command(After::Stop).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["rehearsed"], true, "nobody has loaded it again: {report}");
    let told = job.finish().unwrap().stderr;
    let refusals = told.lines().filter(|line| line.contains("cannot be stopped half-way"));
    let refusals: Vec<_> = refusals.collect();
    assert!(matches!(refusals[..], [once] if once.contains("kernel advance<float> cannot")), "{told}");
}

#[test]
fn whoever_the_job_is_connected_to_is_named() {
    let stage = Stage::new("connected").unwrap();
    let path = stage.place().cwd().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let script = "import socket, time\ns = socket.socket(socket.AF_UNIX); s.connect('socket')\nprint('begun', flush=True); time.sleep(1000)";
    let args = ["-c", script].map(str::to_owned);
    let job = stage.place().run(Path::new("/usr/bin/python3"), &args).unwrap();
    let job = first_line(job).unwrap();
    let outside = listener.accept().unwrap();
    let whom = format!("(python3) is connected by a UNIX socket to process {} ", std::process::id());
    let failure = stage.refused_checkpoint(&[]).unwrap();
    failure.expect(6, &["nothing was written, it runs on", &whom]);
    assert!(!failure.message.contains("sk-unix"), "{}", failure.message);
    assert!(stage.images().unwrap().is_empty());
    drop(outside);
    stage.place().kill_everything(job).unwrap();
}

#[test]
fn images_are_removed_and_the_others_and_the_job_are_not_concerned() {
    let stage = Stage::new("removed").unwrap();
    let ask = |command: &str, args: &[&str]| {
        let mut command = stage.place().dormouse(command);
        command.arg("--store").arg(stage.place().store()).args(args).output().unwrap()
    };
    let rm = |args: &[&str]| -> serde_json::Value {
        let output = ask("rm", &[args, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let job = stage.held(PACED, &["900"]).unwrap();
    let older = stage.checkpoint(After::LeaveRunning).unwrap();
    let newest = stage.checkpoint(After::Stop).unwrap();
    let mut output = job.finish().unwrap().stdout;
    Failure::of(&ask("rm", &[stage.name()])).unwrap().expect(2, &[stage.name(), "prune"]);
    Failure::of(&ask("rm", &[&newest[..8], "ffffffff"])).unwrap().expect(3, &["ffffffff"]);

    let planned = rm(&["--dry-run", &older[..8]]);
    assert_eq!(stage.images().unwrap().len(), 2);
    let removed = rm(&[&older[..8]]);
    assert_eq!((&removed["freed"], &removed["images"][0]), (&planned["freed"], &older.into()));
    assert_eq!(stage.images().unwrap(), [&newest[..]]);
    assert!(ask("verify", &[&newest]).status.success());

    let job = first_line(stage.place().restart(&newest).unwrap()).unwrap();
    let removed = rm(&[&newest]);
    assert!(removed["freed"].as_u64().unwrap() > 0 && removed["kept"].is_null(), "{removed}");
    assert_eq!(fs::read_dir(stage.place().store().join("packs")).unwrap().count(), 0);
    // All of it is written again.
    let again = stage.checkpoint(After::Stop).unwrap();
    output.extend(stage.finish(job).unwrap().stdout);
    assert!(ask("verify", &[&again]).status.success());
    let last = stage.place().restart(stage.name()).unwrap().finish().unwrap();
    assert_eq!(last.exit, Exit::Code(0), "{}", last.stderr);
    output.extend(last.stdout);
    assert!(output == stage.undisturbed(&["900"]).unwrap().stdout);
}
