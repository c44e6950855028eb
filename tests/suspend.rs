//! Suspended jobs, beyond what happens to every guest (`matrix.rs`).
#![allow(clippy::unwrap_used)]

use dormouse_tests::{Failure, PACED, Stage};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::job::Job;
use testkit::kit::Kit;
use testkit::outcome::Exit;
use testkit::place::{After, Place, Suspension};

/// Some seconds of work.
const ARGS: [&str; 1] = ["800"];

fn suspend(stage: &Stage) {
    assert_eq!(stage.place().suspend().unwrap(), Suspension::Suspended);
}

/// The job as `dormouse ps` has it.
fn listed(stage: &Stage) -> Value {
    let output = stage.place().dormouse("ps").arg("--json").output().unwrap();
    let jobs: Value = serde_json::from_slice(&output.stdout).unwrap();
    let jobs = jobs["jobs"].as_array().unwrap().clone();
    jobs.into_iter().find(|job| job["job"] == stage.name()).unwrap()
}

/// The processes of the job that run this program.
fn running(stage: &Stage, job: &Job, program: &str) -> Vec<i32> {
    let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let all = stage.place().processes(job).unwrap();
    all.into_iter().filter(|pid| comm(pid).trim_end() == program).collect()
}

/// User and system time, in clock ticks.
fn processor_time(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn what_is_asleep_does_nothing_and_is_told_of() {
    let stage = Stage::new("asleep").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    assert_eq!(listed(&stage)["suspended"], Value::Null);
    Failure::of(&stage.place().asked("resume").output().unwrap()).unwrap().expect(4, &["is not suspended"]);
    suspend(&stage);
    assert!(listed(&stage)["asleep_bytes"].as_u64().unwrap() > 512 << 10, "its memory lies somewhere");
    let [program] = running(&stage, &job, PACED)[..] else { panic!("there is one") };
    let before = (processor_time(program), job.stdout.so_far());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((processor_time(program), job.stdout.so_far()), before);
    let resume = format!("dormouse resume {}", stage.name());
    stage.refused_checkpoint(&[]).unwrap().expect(4, &["suspended", &resume]);
    Failure::of(&stage.place().asked("suspend").output().unwrap())
        .unwrap()
        .expect(4, &["suspended", &resume]);
    stage.place().resume().unwrap();
    assert_eq!(listed(&stage)["suspended"], Value::Null);
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
}

/// In its store, which has nothing of it afterwards, nor of one that is killed.
#[test]
fn device_memory_may_wait_in_the_store() {
    let stage = Stage::new("stored-sleep").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let beside = || {
        let entries = std::fs::read_dir(stage.place().store()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("asleep-")).count()
    };
    for _ in 0..2 {
        let output = stage.place().asked("suspend").arg("--to-store").output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["host_bytes"], 0, "{output:?}");
        // How little becomes of it is the compression's affair.
        let [device, stored] = ["device_bytes", "store_bytes"].map(|bytes| report[bytes].as_u64().unwrap());
        assert!(device >= 512 << 10 && stored > 4 << 10, "{report}");
        assert_eq!((beside(), stage.images().unwrap().len()), (1, 1));
        stage.place().resume().unwrap();
        let resumed = Instant::now();
        while beside() > 0 {
            assert!(resumed.elapsed() < Duration::from_secs(10), "the store is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, &finished.stdout), (Exit::Code(0), &whole.stdout), "{}", finished.stderr);
    let mut restart = stage.place().restart_command(&image);
    stage.hold(&mut restart);
    let job = Job::start(restart).unwrap();
    while !stage.place().asked("suspend").arg("--to-store").output().unwrap().status.success() {
        std::thread::sleep(Duration::from_millis(50));
    }
    let program = running(&stage, &job, PACED);
    testkit::tree::kill_all(&program);
    job.finish().unwrap();
    assert_eq!(beside(), 0);
}

#[test]
fn regular_checkpoints_are_left_out_while_a_job_is_asleep() {
    let stage = Stage::new("regular-sleep").unwrap();
    let job = stage.held_by(stage.command_with(&["--every", "1s"], PACED, &ARGS)).unwrap();
    suspend(&stage);
    let before = stage.images().unwrap().len();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(stage.images().unwrap().len(), before);
    stage.place().resume().unwrap();
    let resumed = Instant::now();
    while stage.images().unwrap().len() == before {
        assert!(resumed.elapsed() < Duration::from_secs(60), "none is taken any more");
        std::thread::sleep(Duration::from_millis(50));
    }
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(!finished.stderr.contains("warning"), "{}", finished.stderr);
}

/// A kit whose `dormouse` can be made one that cannot be started.
fn kit_of_its_own(folder: &Path) -> Kit {
    let whole = Kit::locate().unwrap();
    let bin = folder.join("kit/bin");
    std::fs::create_dir_all(&bin).unwrap();
    for program in std::fs::read_dir(whole.dormouse().parent().unwrap()).unwrap() {
        let program = program.unwrap();
        std::fs::copy(program.path(), bin.join(program.file_name())).unwrap();
    }
    for entry in std::fs::read_dir(whole.part("")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "bin" {
            symlink(entry.path(), folder.join("kit").join(entry.file_name())).unwrap();
        }
    }
    Kit::at(&folder.join("kit")).unwrap()
}

#[test]
fn what_cannot_be_resumed_stays_asleep() {
    let stage = Stage::new("stays").unwrap();
    let kit = kit_of_its_own(stage.place().folder);
    let place = Place { kit: &kit, ..stage.place() };
    let native = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held_by(place.run_command(&stage.guest(PACED), &ARGS.map(str::to_owned))).unwrap();
    suspend(&stage);
    let may_run = |mode| std::fs::set_permissions(kit.dormouse(), PermissionsExt::from_mode(mode)).unwrap();
    may_run(0o644);
    for _ in 0..2 {
        let failed = stage.place().asked("resume").output().unwrap();
        Failure::of(&failed).unwrap().expect(1, &["cannot start the GPU server of session 1"]);
        assert_ne!(listed(&stage)["suspended"], Value::Null);
    }
    may_run(0o755);
    stage.place().resume().unwrap();
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, finished.stdout), (Exit::Code(0), native.stdout), "{}", finished.stderr);
}

#[test]
fn a_job_that_is_killed_in_its_sleep_is_gone() {
    for who in [PACED, "dormouse"] {
        let stage = Stage::new("never-wakes").unwrap();
        let job = stage.held(PACED, &ARGS).unwrap();
        suspend(&stage);
        let doomed = running(&stage, &job, who);
        assert!(!doomed.is_empty(), "{who}");
        let all = stage.place().processes(&job).unwrap();
        let kill = Command::new("kill").arg("-KILL").args(doomed.iter().map(i32::to_string)).status();
        assert!(kill.unwrap().success());
        assert_eq!(job.finish().unwrap().exit, Exit::Signal(9), "{who}");
        let until = Instant::now() + Duration::from_secs(30);
        while all.iter().any(|pid| Path::new(&format!("/proc/{pid}/exe")).exists()) {
            assert!(Instant::now() < until, "{who}: processes are left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What waits for a stopped process by a signal gets it when it goes on.
#[test]
fn a_signal_waits_until_it_is_awake() {
    let stage = Stage::new("signalled").unwrap();
    let job = stage.held(PACED, &["2000"]).unwrap();
    suspend(&stage);
    let supervisor = job.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &supervisor]).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(200));
    assert_ne!(listed(&stage)["suspended"], Value::Null);
    stage.place().resume().unwrap();
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(15));
}

#[test]
fn one_of_several_processes_may_die_in_the_sleep_of_all() {
    let stage = Stage::new("several").unwrap();
    let guest = stage.guest(PACED).display().to_string();
    let script = format!("{guest} 100000 >/dev/null & {guest} 600; kill %1; wait; echo over");
    let job = stage.held_by(stage.shell(&script)).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while stage.place().servers(&job).unwrap().len() < 2 {
        assert!(Instant::now() < until, "there are two sessions");
        std::thread::sleep(Duration::from_millis(5));
    }
    suspend(&stage);
    let is_endless = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        line.split('\0').nth(1) == Some("100000")
    };
    let endless = running(&stage, &job, PACED).into_iter().find(is_endless).unwrap();
    assert!(Command::new("kill").args(["-KILL", &endless.to_string()]).status().unwrap().success());
    let output = stage.place().asked("resume").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["sessions"], 1, "{output:?}");
    let finished = stage.finish(job).unwrap();
    assert!(String::from_utf8_lossy(&finished.stdout).ends_with("over\n"), "{}", finished.stderr);
}

/// The memory that another process has made, and that has been killed.
#[test]
fn what_a_process_leaves_in_its_sleep_others_have_when_they_wake() {
    let stage = Stage::new("heir").unwrap();
    let whole = stage.started("heir", &["60", "1"]).unwrap().finish().unwrap();
    let job = stage.held("heir", &["60", "1"]).unwrap();
    suspend(&stage);
    // It was begun by way of /proc/self/exe.
    let owner = running(&stage, &job, "exe");
    assert_eq!(owner.len(), 1);
    let listed = Instant::now();
    testkit::tree::kill_all(&owner);
    testkit::tree::wait_until_gone(&owner, listed, Duration::from_secs(10)).unwrap();
    let output = stage.place().asked("resume").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["sessions"], 1, "{output:?}");
    // Who owns it now has it in an image, too.
    let image = stage.checkpoint(After::Stop).unwrap();
    let before = stage.finish(job).unwrap();
    let finished = Job::start(stage.place().restart_command(&image)).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!([before.stdout, finished.stdout].concat(), whole.stdout);
}

#[test]
fn whoever_traces_the_job_is_in_the_way_by_name() {
    let stage = Stage::new("traced-sleep").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let [program] = running(&stage, &job, PACED)[..] else { panic!("there is one") };
    let tracing = || {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: a request that has no address and no data.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, program, null, null) };
        assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
        let refused = stage.place().asked("suspend").output().unwrap();
        let by = format!("traced by process {}", rustix::thread::gettid());
        Failure::of(&refused).unwrap().expect(6, &[&by]);
    };
    // It is let go when whoever traces it ends.
    std::thread::scope(|scope| scope.spawn(tracing).join()).unwrap();
    assert_eq!(stage.finish(job).unwrap().exit, Exit::Code(0));
}

#[test]
fn a_profile_is_not_cut_off() {
    let stage = Stage::new("recorded").unwrap();
    let job = stage.held_by(stage.command_with(&["--profile", "profile"], PACED, &ARGS)).unwrap();
    let refused = stage.place().asked("suspend").output().unwrap();
    Failure::of(&refused).unwrap().expect(6, &["--profile"]);
    assert_eq!(stage.finish(job).unwrap().exit, Exit::Code(0));
}

/// Whoever hears that a job is suspended can resume it, however near its end was.
#[test]
fn a_job_that_ends_meanwhile_is_not_suspended() {
    let stage = Stage::new("near-end").unwrap();
    const TURNS: u32 = 16;
    let mut suspended = 0;
    // For so many seconds a job that can be suspended lives, and one that cannot: each turn is nearer to both.
    let (mut enough, mut too_few) = (4.0, 0.0);
    for _ in 0..TURNS {
        let lives = f64::midpoint(enough, too_few);
        let words = ["-c".to_owned(), format!("echo ready; exec sleep {lives:.4}")];
        let run = stage.place().run("/bin/sh".as_ref(), &words).unwrap();
        let job = dormouse_tests::first_line(run).unwrap();
        if stage.place().suspend().unwrap() == Suspension::Suspended {
            stage.place().resume().unwrap();
            suspended += 1;
            enough = lives;
        } else {
            too_few = lives;
        }
        let finished = job.finish().unwrap();
        assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    }
    assert!((1..TURNS).contains(&suspended), "{suspended} of {TURNS} were suspended");
}
