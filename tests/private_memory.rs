//! How the processes' own memory comes into an image. That it is that of the cut the guest itself tells, in every scenario.
#![allow(clippy::unwrap_used)]

use dormouse_tests::Stage;
use serde_json::Value;
use std::process::Command;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::After;

/// A job of some seconds, which changes 16 MiB and more again and again in two processes.
const ARGS: [&str; 2] = ["16000", "8"];

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

/// Whether this kernel tells which pages a process has (`PAGEMAP_SCAN`, Linux 6.7), so that CRIU need not hear of them.
fn scans() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

#[test]
fn it_is_forked_where_the_job_goes_on_and_copied_where_it_stops() {
    let stage = Stage::new("private").unwrap();
    let job = stage.started("private_memory", &ARGS).unwrap();
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
    job.finish().unwrap();
    let images = stage.images().unwrap();
    assert_eq!(images.len(), 3);
    for image in &images {
        let restarted = stage.place().restart(image).unwrap().finish().unwrap();
        assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    }
}
