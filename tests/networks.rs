//! A program whose device is on another machine, over a network: each machine is a network namespace, and a pair of `veth` interfaces
//! is the only way between them, or anywhere.
#![allow(clippy::unwrap_used)]

use crate::remote::the_same;
use dormouse_tests::planned::finish;
use dormouse_tests::{Stage, first_line};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::{After, Device};

/// The server's machine; this thread, and what it starts, is on the client's.
struct Elsewhere(File);

impl Elsewhere {
    const ADDRESS: &str = "192.0.2.2";

    /// Moves this thread to a machine of its own, beside another.
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
fn a_network_is_the_only_way_between_a_program_and_its_device() {
    let elsewhere = match Elsewhere::beside() {
        Ok(elsewhere) => elsewhere,
        Err(why) => {
            println!("NOT RUN: two machines need network namespaces and veth interfaces, and {why}");
            return;
        }
    };
    let stage = Stage::new("network").unwrap();
    let server = elsewhere.at_it(|| stage.served(Device::Soft, Elsewhere::ADDRESS)).unwrap();
    server.is_trusted().unwrap();
    assert!(server.address.starts_with(Elsewhere::ADDRESS), "{}", server.address);
    the_same(&stage, &server, &["reduction", "streams", "pinned", "graphs", "managed_shadow"]);
    // And an image is made here, of memory that is there.
    let args = ["600", "40"];
    let whole = finish(stage.command("vector_loop", &args)).unwrap().stdout;
    let job = first_line(Job::start(stage.command_at(&server, "vector_loop", &args)).unwrap()).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let mut printed = job.finish().unwrap().stdout;
    let ended = Job::start(stage.restart_at(&server, &image)).unwrap().finish().unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(printed, whole);
}
