//! Jobs whose store is a bucket: checkpointed there, killed and continued from there, and what is told when that fails.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_tests::{Failure, PACED, Stage};
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::s3::{Proxy, Server, Trouble};

/// A job of a few seconds.
const ARGS: [&str; 1] = ["900"];
const STORE: &str = "s3://tests/jobs";

/// A `dormouse` command that finds its store by variables that are for Dormouse alone.
fn dormouse(stage: &Stage, env: &[(&'static str, String)], subcommand: &str) -> Command {
    let mut command = stage.place().dormouse(subcommand);
    command.args(["--store", STORE]);
    command.envs(env.iter().map(|(name, value)| (format!("DORMOUSE_{name}"), value)));
    command
}

fn run(stage: &Stage, env: &[(&'static str, String)]) -> Job {
    let mut command = dormouse(stage, env, "run");
    command.args(["--name", stage.name(), "--device", stage.place().device.flag(), "--"]);
    command.arg(stage.guest(PACED)).args(ARGS).env("A_MARK", "of-the-job's-own");
    stage.held_by(command).unwrap()
}

/// The supervisor writes where its job's store is, whoever asks.
fn checkpoint(stage: &Stage, more: &[&str]) -> Output {
    let mut command = stage.place().dormouse("checkpoint");
    command.args([stage.name(), "--json"]).args(more).output().unwrap()
}

fn listed(stage: &Stage, server: &Server) -> Vec<String> {
    let output = dormouse(stage, &server.env(), "ls").arg("--json").output().unwrap();
    let listing: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listing["damaged"], serde_json::json!([]));
    let images = listing["images"].as_array().unwrap().iter();
    images.map(|image| image["id"].as_str().unwrap().to_owned()).collect()
}

fn has(content: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(content).contains(text)
}

#[test]
fn a_job_that_was_killed_goes_on_from_a_bucket() {
    let stage = Stage::new("bucket").unwrap();
    let server = Server::start().unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap().stdout;
    assert_eq!(listed(&stage, &server), [""; 0]);
    let job = run(&stage, &server.env());
    for n in 1..=2 {
        let taken = checkpoint(&stage, &["--compress", "none"]);
        assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        assert_eq!(listed(&stage, &server).len(), n);
    }
    stage.place().kill_everything(job).unwrap();
    stage.let_end().unwrap();

    // What leads to the store is not in the images: they have the job's environment, without that.
    let content = server.content().unwrap();
    assert!(has(&content, "of-the-job's-own") && !has(&content, "a-secret"));
    for image in listed(&stage, &server) {
        assert!(dormouse(&stage, &server.env(), "verify").arg(image).status().unwrap().success());
    }
    let mut restart = dormouse(&stage, &server.env(), "restart");
    restart.args(["--device", stage.place().device.flag(), stage.name()]);
    let restarted = Job::start(restart).unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    let (all, after) = (String::from_utf8_lossy(&whole), String::from_utf8_lossy(&restarted.stdout));
    assert!(!after.is_empty() && all.ends_with(&*after), "{all}\nand after the restart\n{after}");

    let pruned = dormouse(&stage, &server.env(), "prune").args(["--keep-last", "1"]).status().unwrap();
    assert!(pruned.success() && listed(&stage, &server).len() == 1);
    let last = listed(&stage, &server).remove(0);
    assert!(dormouse(&stage, &server.env(), "rm").arg(last).status().unwrap().success());
    // Not a byte of them is left.
    assert_eq!(server.objects().unwrap(), ["jobs/config"]);
}

#[test]
fn a_checkpoint_that_a_bucket_does_not_take_fails_by_name_and_the_job_runs_on() {
    let stage = Stage::new("bucketless").unwrap();
    let server = Server::start().unwrap();
    let refuse = Arc::new(AtomicBool::new(true));
    let refuses = refuse.clone();
    let proxy = Proxy::start(server.address(), move |request| {
        let is_pack = request.method == "PUT" && request.target.contains("/packs/");
        if is_pack && refuses.load(Ordering::SeqCst) { Trouble::Answer(403) } else { Trouble::None }
    })
    .unwrap();
    let job = run(&stage, &proxy.env());
    let failed = Failure::of(&checkpoint(&stage, &[])).unwrap();
    failed.expect(10, &["the store is not writable", "s3://tests/jobs/", "403"]);
    assert!(!failed.message.contains("a-secret"), "{}", failed.message);
    assert_eq!(listed(&stage, &server), [""; 0]);
    refuse.store(false, Ordering::SeqCst);
    assert!(checkpoint(&stage, &["--stop"]).status.success());
    let ended = job.finish().unwrap();
    assert!(ended.stderr.contains(&format!("restart --store {STORE} ")), "{}", ended.stderr);
    assert_eq!(listed(&stage, &server).len(), 1);
}

#[test]
fn whether_a_bucket_can_be_reached_is_found_out() {
    let stage = Stage::new("reached").unwrap();
    let server = Server::start().unwrap();
    let store = |env: &[(&'static str, String)]| {
        let output = dormouse(&stage, env, "doctor").arg("--json").output().unwrap();
        let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = findings["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "store").unwrap();
        (check["ok"] == true, check["detail"].as_str().unwrap().to_owned())
    };
    assert_eq!(store(&server.env()), (true, format!("{STORE}: reached")));
    let refused = Proxy::start(server.address(), |_| Trouble::Answer(403)).unwrap();
    let (ok, detail) = store(&refused.env());
    assert!(!ok && detail.contains(STORE) && detail.contains("403"), "{detail}");

    let mut odd = stage.place().dormouse("ls");
    let odd = odd.args(["--store", "s3:///no-bucket"]).output().unwrap();
    Failure::of(&odd).unwrap().expect(2, &["it names no bucket", "s3://BUCKET/PREFIX"]);
}
