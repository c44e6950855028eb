//! How the processes' own memory comes into an image. That it is that of the cut the guest itself tells, in every scenario.
#![allow(clippy::unwrap_used)]

use dormouse_tests::Stage;
use serde_json::Value;
use std::process::Command;
use testkit::job::Job;
use testkit::manifest::Managed;
use testkit::outcome::Exit;
use testkit::place::{After, Place};

/// A job of seconds, which changes 16 MiB and more again and again, and 4 MiB in another process and in a thread until it is told to end.
const ARGS: [&str; 2] = ["8000", "8"];

/// Takes a checkpoint and tells what it says.
fn take(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How many processes of the guest's the job has, copies included.
fn guests(stage: &Stage, job: &Job) -> usize {
    let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let all = stage.place().processes(job).unwrap();
    all.iter().filter(|pid| comm(pid).trim_end() == "private_memory").count()
}

/// Shadow pages come with terabytes of private addresses, in which nothing is.
#[test]
fn it_is_forked_beside_shadow_pages_too() {
    let stage = Stage::new("shadow").unwrap();
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let run = place.run_command(&stage.guest("private_memory"), &ARGS.map(str::to_owned));
    let job = stage.held_by(run).unwrap();
    let said = take(place.checkpoint_command(After::LeaveRunning));
    assert!(said["private_forked"].as_u64().unwrap() > 12 << 20 || !scans(), "{said}");
    stage.finish(job).unwrap();
    let restarted = place.restart(&stage.images().unwrap()[0]).unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
}

/// Huge pages of the machine's, as many as this and as there were, as long as this lives.
struct HugePages(String);

impl HugePages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    /// None where there can be no more.
    fn more(count: u32) -> Option<Self> {
        let read = || std::fs::read_to_string(Self::FILE).ok()?.trim().parse::<u32>().ok();
        let before = read()?;
        std::fs::write(Self::FILE, (before + count).to_string()).ok()?;
        let more = Self(before.to_string());
        (read()? >= before + count).then_some(more)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, &self.0);
    }
}

/// Checkpoints the guest of such a sort, which is over after so many seconds at the earliest, as it goes on, and restarts it; answers what the checkpoint
/// has said.
fn awkward(sort: &str, seconds: &str) -> Value {
    let stage = Stage::new(sort).unwrap();
    let job = stage.held("odd_processes", &[sort, seconds]).unwrap();
    let said = take(stage.place().checkpoint_command(After::LeaveRunning));
    assert_eq!(stage.finish(job).unwrap().exit, Exit::Code(0), "{sort}");
    let image = &stage.images().unwrap()[0];
    let restarted = stage.place().restart(image).unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{sort}: {}", String::from_utf8_lossy(&restarted.stdout));
    said
}

#[test]
fn a_stopped_child_has_its_memory_after_a_restart() {
    let said = awkward("stopped", "1");
    assert!(said["private_forked"].as_u64().unwrap() > 8 << 20, "{said}");
}

#[test]
fn huge_pages_are_as_they_were_after_a_restart() {
    // For the guest, and for the one that is restarted.
    let _pages = HugePages::more(8).expect("this test needs 8 huge pages, 16 MiB of memory in a piece");
    let said = awkward("huge", "1");
    assert!(said["private_forked"].as_u64().unwrap() < 8 << 20, "{said}");
}

/// It belongs to the machine, and CRIU finds it when the job stands still.
#[test]
fn a_segment_of_system_v_is_refused_by_name() {
    let stage = Stage::new("segment").unwrap();
    let job = stage.held("odd_processes", &["segment", "1"]).unwrap();
    let refused = stage.refused_checkpoint(&[]).unwrap();
    let why = "process 2 of the job (odd_processes) has attached System V shared memory (shmat)";
    assert!(refused.message.contains(why), "{}", refused.message);
    assert_eq!(stage.finish(job).unwrap().exit, Exit::Code(0));
}

/// Files in memory without names, of which one is in two processes.
#[test]
fn shared_memory_is_copied_and_not_written_by_criu() {
    let stage = Stage::new("shared").unwrap();
    let job = stage.held("shared_memory", &["2000", "4"]).unwrap();
    for then in [After::LeaveRunning, After::LeaveRunning, After::Stop] {
        let said = take(stage.place().checkpoint_command(then));
        // Six areas of 4 MiB, one that nobody has mapped, and what lies behind the holes; CRIU reads pages with nothing in them, and has them made.
        let copied = said["shared_copied"].as_u64().unwrap();
        assert_eq!((28 << 20..29 << 20).contains(&copied), scans(), "{said}");
    }
    stage.finish(job).unwrap();
    for image in &stage.images().unwrap() {
        let restarted = stage.place().restart(image).unwrap().finish().unwrap();
        assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    }
}

#[test]
fn hundreds_of_files_in_memory_are_as_they_were_after_a_restart() {
    let said = awkward("many", "1");
    let copied = said["shared_copied"].as_u64().unwrap();
    assert_eq!((300 << 20..310 << 20).contains(&copied), scans(), "{said}");
}

/// As long as its child takes nothing stands still; where that is longer than one waits the checkpoint fails, and says why.
#[test]
fn who_waits_for_a_child_of_vfork_is_waited_for() {
    let said = awkward("vforked", "5");
    assert!(said["private_forked"].as_u64().unwrap() > 8 << 20, "{said}");
    assert!(said["stall_ms"].as_f64().unwrap() < 3000.0, "it stood still for its child: {said}");

    let stage = Stage::new("vforking").unwrap();
    let job = stage.started("odd_processes", &["vforked", "15"]).unwrap();
    let refused = stage.refused_checkpoint(&[]).unwrap();
    assert_eq!(refused.code, Some(5), "{}", refused.message);
    let why = "process 2 of the job (odd_processes), which waits for a child of vfork";
    assert!(refused.message.contains(why), "{}", refused.message);
    assert_eq!(job.finish().unwrap().exit, Exit::Code(0));
}

/// Whether this kernel tells which pages a process has (`PAGEMAP_SCAN`, Linux 6.7), so that CRIU need not hear of them.
fn scans() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

#[test]
fn it_is_forked_where_the_job_goes_on_and_copied_where_it_stops() {
    let stage = Stage::new("private").unwrap();
    let job = stage.held("private_memory", &ARGS).unwrap();
    assert_eq!(guests(&stage, &job), 2);
    let bytes = |said: &Value, field: &str| said[field].as_u64().unwrap();
    for _ in 0..2 {
        let said = take(stage.place().checkpoint_command(After::LeaveRunning));
        assert!(bytes(&said, "private_forked") > 12 << 20, "{said}");
        // What a fork does not have, and is in the guest for that.
        assert!(bytes(&said, "private_copied") > 4 << 20, "{said}");
        assert_eq!(bytes(&said, "private_withheld") > 16 << 20, scans(), "{said}");
        assert_eq!(guests(&stage, &job), 2, "no copy is left");
    }
    let said = take(stage.place().checkpoint_command(After::Stop));
    assert_eq!(bytes(&said, "private_forked"), 0, "{said}");
    assert!(bytes(&said, "private_copied") > 16 << 20, "{said}");
    assert_eq!(bytes(&said, "private_withheld") > 16 << 20, scans(), "{said}");
    stage.finish(job).unwrap();
    let images = stage.images().unwrap();
    assert_eq!(images.len(), 3);
    for image in &images {
        let restarted = stage.place().restart(image).unwrap().finish().unwrap();
        assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    }
}
