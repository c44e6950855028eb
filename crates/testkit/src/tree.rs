//! Process trees: who belongs to whom, and ending them.

use std::collections::BTreeMap;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

/// In which the kernel says when a process began (`proc_pid_stat(5)`).
const TICK: Duration = Duration::from_millis(10);

/// A process that we started, and its descendants. Dropped while it runs, it is killed with all of them: a test that fails
/// leaves nothing behind.
#[derive(Debug)]
pub struct Tree(Child);

impl Tree {
    /// The tree below a child of ours.
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// The child's pid.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// How the child ended, if it has.
    pub fn try_wait(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.0.try_wait().context("cannot wait for a child")
    }

    /// Kills all of it.
    pub fn kill(&mut self) {
        kill_all(&descendants(self.pid()).unwrap_or_default());
        // Whoever is gone already need not be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// Sends SIGKILL to processes, those that are gone included. None sees another's death: they are stopped first.
pub fn kill_all(pids: &[i32]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in pids.iter().copied().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Waits until none of these processes lives, which were there at `listed`: who has begun since then only has the number of one.
pub fn wait_until_gone(pids: &[i32], listed: Instant, limit: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + limit;
    let is_there = |pid: &i32| is_alive(*pid) && age(*pid).is_none_or(|age| age + TICK > listed.elapsed());
    let left = || pids.iter().copied().filter(|pid| is_there(pid));
    while left().next().is_some() {
        if Instant::now() > deadline {
            let left: Vec<_> = left().map(described).collect();
            bail!("still there after {limit:?}: {}", left.join("; "));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// All children of `ancestor`, their children, and so on.
pub fn descendants(ancestor: i32) -> anyhow::Result<Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").context("cannot list /proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if let Some((_, parent)) = state_and_parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.push(child);
            open.push(child);
        }
    }
    Ok(found)
}

/// What there is to say of a process that should not be there.
fn described(pid: i32) -> String {
    let read = |file| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = read("cmdline").replace('\0', " ");
    let (waits_in, call) = (read("wchan"), read("syscall"));
    let (age, state) = (age(pid), state_and_parent(pid));
    format!("process {pid}: {line:?}, of age {age:?}, {state:?}, in {waits_in:?}, {:?}", call.trim())
}

/// How long ago a process began, if it is there.
fn age(pid: i32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(uptime - ticks * TICK.as_secs_f64()).ok()
}

fn is_alive(pid: i32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// A process's state and its parent's pid, or nothing when it is gone.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes in parentheses and may hold anything, parentheses too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn grandchildren_are_found_and_their_death_is_seen() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = Instant::now() + Duration::from_secs(10);
        let grandchild = loop {
            if let [grandchild] = descendants(pid).unwrap()[..] {
                break grandchild;
            }
            assert!(Instant::now() < deadline, "the shell made no child");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(is_alive(pid) && is_alive(grandchild));
        kill_process(Pid::from_raw(grandchild).unwrap(), Signal::KILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pid));
        let own = std::process::id() as i32;
        let (now, limit) = (Instant::now(), Duration::from_millis(20));
        let there = wait_until_gone(&[own], now, limit).unwrap_err().to_string();
        assert!(there.contains("of age"), "{there}");
        let long_ago = now.checked_sub(age(own).unwrap() + Duration::from_secs(60)).unwrap_or(now);
        assert!(
            long_ago == now || wait_until_gone(&[own], long_ago, limit).is_ok(),
            "its number was another's"
        );
    }
}
