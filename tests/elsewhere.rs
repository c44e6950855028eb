//! Another machine: a network namespace, which a pair of `veth` interfaces joins to the one of who makes it, and nothing joins to any other.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;

use anyhow::{Context, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The server's machine; this thread, and what it starts, is on the client's.
#[derive(Debug)]
pub struct Elsewhere(File);

impl Elsewhere {
    /// Where it listens.
    pub const ADDRESS: &str = "192.0.2.2";

    /// Moves this thread to a machine of its own, beside another.
    ///
    /// # Errors
    /// What this kernel, or whoever runs the tests, lacks for that.
    pub fn beside() -> anyhow::Result<Self> {
        let there = thread::spawn(alone).join().map_err(|_| anyhow!("a thread panicked"))??;
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
    ///
    /// # Errors
    /// What that says, or the kernel.
    pub fn at_it<T: Send>(&self, act: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let act = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).context("setns")?;
            act()
        };
        thread::scope(|scope| scope.spawn(act).join()).map_err(|_| anyhow!("a thread panicked"))?
    }
}

/// Moves this thread into a network namespace in which there is a loopback, which CRIU needs, and nothing else.
fn alone() -> anyhow::Result<File> {
    // SAFETY: only what this thread sees of the network changes, and it has no socket.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("unshare")?;
    ip(&["link", "set", "lo", "up"])?;
    File::open("/proc/thread-self/ns/net").context("the namespace")
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words).output().context("ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {said}", words.join(" "));
    Ok(())
}
