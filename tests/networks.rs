//! A program whose device is on another machine, over a network: each machine is a network namespace, and a pair of `veth` interfaces
//! is the only way between them, or anywhere.
#![allow(clippy::unwrap_used)]

use crate::migrate::{apart, report, wait_for_end};
use crate::remote::the_same;
use dormouse_tests::{Failure, PACED, Stage};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde_json::Value;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::{After, Device};

/// The server's machine; this thread, and what it starts, is on the client's.
struct Elsewhere(File);

impl Elsewhere {
    const ADDRESS: &str = "192.0.2.2";

    /// Moves this thread to a machine of its own, beside another.
    ///
    /// # Errors
    /// What this kernel, or whoever runs the tests, lacks for that.
    fn beside() -> Result<Self, String> {
        let there = std::thread::spawn(alone).join().unwrap()?;
        alone()?;
        let elsewhere = Self(there);
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), elsewhere.0.as_raw_fd());
        ip(&["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &namespace])?;
        let up = |device: &str, address: &str| {
            ip(&["address", "add", &format!("{address}/30"), "dev", device])?;
            ip(&["link", "set", device, "up"])
        };
        up("near", "192.0.2.1")?;
        elsewhere.at_it(|| up("far", Self::ADDRESS))?;
        Ok(elsewhere)
    }

    /// The same, where it has running jobs of its own as well.
    fn apart<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.at_it(|| apart(act))
    }

    /// Does something on the server's machine.
    fn at_it<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let act = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        };
        std::thread::scope(|scope| scope.spawn(act).join()).unwrap()
    }
}

/// Moves this thread into a network namespace in which there is a loopback, which CRIU needs, and nothing else.
fn alone() -> Result<File, String> {
    // SAFETY: only what this thread sees of the network changes, and it has no socket.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| format!("unshare: {error}"))?;
    ip(&["link", "set", "lo", "up"])?;
    File::open("/proc/thread-self/ns/net").map_err(|error| format!("the namespace: {error}"))
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {said}", words.join(" "))) }
}

#[test]
fn a_job_moves_to_another_machine() {
    let elsewhere = Elsewhere::beside().unwrap();
    let stage = Stage::new("moves").unwrap();
    let there = stage.place().folder.join("there");
    let server = elsewhere.apart(|| stage.receiving(&there, &["--jobs"], Elsewhere::ADDRESS)).unwrap();
    let args = ["800"];
    let whole = stage.undisturbed(&args).unwrap().stdout;
    let migrate = |flags: &[&str], options: &[&str]| {
        let mut command = stage.place().asked("migrate");
        command.args(["--to", &server.address]).args(flags).arg("--").args(options);
        server.known_to(&mut command);
        command.output().unwrap()
    };
    let job = stage.held(PACED, &args).unwrap();
    // What cannot be started there goes on here.
    let refused = migrate(&[], &["--trace", "/no/such/folder/trace"]);
    Failure::of(&refused).unwrap().expect(1, &["the job goes on where it was", "/no/such/folder"]);
    let moved = report(&migrate(&[], &["--every", "1h"]));
    println!("{moved:#}");
    let left = job.finish().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    let place = format!("the job goes on at {}", server.address);
    assert!(left.stderr.contains(&place), "{}", left.stderr);
    stage.let_end().unwrap();
    let rest = wait_for_end(&moved);
    assert_eq!([left.stdout, rest].concat(), whole);
    // One image is left of all that: here, and there with all that it needs.
    let image = moved["image"].as_str().unwrap();
    let near = stage.images().unwrap();
    assert!(near.contains(&image.to_owned()) && near.len() == 2, "{near:?}: the one before was not taken");
    let verify = |store: &Path| {
        let mut command = stage.place().dormouse("verify");
        command.args([image, "--read-data"]).arg("--store").arg(store).output().unwrap()
    };
    assert!(verify(&there.join("store")).status.success(), "{:?}", verify(&there.join("store")));
    // Where both see the job's store, nothing is sent; the name is free again here, and there.
    let job = stage.held_by(stage.place().restart_command(image)).unwrap();
    let moved = report(&migrate(&["--shared-store", "--name", "other"], &[]));
    let left = stage.finish(job).unwrap();
    assert_eq!((left.exit, &moved["last"]["sent"]), (Exit::Signal(9), &Value::from(0)), "{}", left.stderr);
    let rest = wait_for_end(&moved);
    let end = [left.stdout, rest].concat();
    assert!(whole.ends_with(&end) && !end.is_empty(), "{}", String::from_utf8_lossy(&end));
}

#[test]
fn a_network_is_the_only_way_between_a_program_and_its_device() {
    let elsewhere = Elsewhere::beside().unwrap();
    let stage = Stage::new("network").unwrap();
    let server = elsewhere.at_it(|| stage.served(Device::Soft, Elsewhere::ADDRESS)).unwrap();
    server.is_trusted().unwrap();
    assert!(server.address.starts_with(Elsewhere::ADDRESS), "{}", server.address);
    the_same(&stage, &server, &["reduction", "streams", "pinned", "graphs", "managed_shadow"]);
    // And an image is made here, of memory that is there.
    let args = ["600"];
    let whole = stage.undisturbed(&args).unwrap().stdout;
    let job = stage.held_by(stage.command_at(&server, PACED, &args)).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let mut printed = stage.finish(job).unwrap().stdout;
    let ended = Job::start(stage.restart_at(&server, &image)).unwrap().finish().unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(printed, whole);
}
