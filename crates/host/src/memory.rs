//! How much memory this machine has to spare, and how many processes.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Copies, of a job's processes and of its device memory, make room where less memory is left than that, bytes.
pub const SHORT: u64 = 128 << 20;
/// What is written to memory makes room where less is left than that, bytes: several servers may write there, and the supervisor.
pub const SHORT_FOR_STORES: u64 = 2 * SHORT;
/// How fast memory may go: a program writes some 1 MB in each millisecond, for which the kernel copies pages; several threads, several times as much.
const BYTES_PER_MS: u64 = 16 << 20;

/// How long so many bytes last at least.
#[must_use]
pub fn lasts(bytes: u64) -> Duration {
    Duration::from_millis(bytes / BYTES_PER_MS)
}

/// How many more processes and threads this process's control groups let there be, if they say.
pub(crate) fn processes_left() -> Option<u64> {
    tightest([&PIDS_V2, &PIDS_V1])
}

/// Bytes of memory of their own that processes may ask for still, where the machine promises no more than it has (`vm.overcommit_memory` is 2).
pub(crate) fn promises_left() -> Option<u64> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let left = || kilobytes(&meminfo, "CommitLimit:").saturating_sub(kilobytes(&meminfo, "Committed_AS:"));
    (mode.trim() == "2").then(left)
}

/// Bytes that can be written to memory without swapping, and without being slowed down: what the machine has available, or what this
/// process's control groups leave of it. 0 where nobody says.
#[must_use]
pub fn available() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = kilobytes(&meminfo, "MemAvailable:");
    tightest([&V2, &V1]).map_or(machine, |left| left.min(machine))
}

/// Bytes that can be written to memory, by swapping if need be, before the kernel kills somebody for more; none where nobody says.
#[must_use]
pub fn before_kills() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let swap = kilobytes(&meminfo, "SwapFree:");
    let machine = kilobytes(&meminfo, "MemAvailable:").saturating_add(swap);
    let groups = [Groups { limits: &["memory.max"], swap, ..V2 }, V1];
    tightest([&groups[0], &groups[1]]).map_or(machine, |left| left.min(machine)).into()
}

/// What the limits on this process leave, of whichever version of control groups it is in.
fn tightest(versions: [&Groups; 2]) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    versions.into_iter().filter_map(|version| version.left(Path::new(version.root), &groups)).min()
}

/// Where a version of control groups says what.
struct Groups {
    root: &'static str,
    /// What precedes the group's path in `/proc/self/cgroup`.
    line: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    /// What makes room when asked to, in `memory.stat`: the page cache of files, and caches of the kernel's.
    cache: &'static [&'static str],
    /// How much of the rest the machine can swap out, which version 2 bounds by `memory.swap.max`, bytes.
    swap: u64,
}

const V2: Groups = Groups {
    root: "/sys/fs/cgroup",
    line: "0::/",
    // Above the second one the kernel slows down all that the group does.
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    cache: &["inactive_file ", "active_file ", "slab_reclaimable "],
    swap: 0,
};
const V1: Groups = Groups {
    root: "/sys/fs/cgroup/memory",
    line: ":memory:/",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    cache: &["total_inactive_file ", "total_active_file "],
    swap: 0,
};

const PIDS_V2: Groups = Groups { limits: &["pids.max"], used: "pids.current", cache: &[], ..V2 };
const PIDS_V1: Groups = Groups {
    root: "/sys/fs/cgroup/pids",
    line: ":pids:/",
    limits: &["pids.max"],
    used: "pids.current",
    cache: &[],
    swap: 0,
};

impl Groups {
    /// What the tightest limit from this process's group up to `root` leaves.
    fn left(&self, root: &Path, groups: &str) -> Option<u64> {
        let group = groups.lines().find_map(|line| line.split_once(self.line))?.1;
        let folder = root.join(group);
        let above = folder.ancestors().take_while(|folder| folder.starts_with(root));
        above.filter_map(|folder| self.left_by(folder)).min()
    }

    fn left_by(&self, folder: &Path) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| -> Option<u64> { read(name)?.trim().parse().ok() };
        let (limit, used) = (self.limits.iter().filter_map(|name| number(name)).min()?, number(self.used)?);
        let stat = read("memory.stat").unwrap_or_default();
        let field = |name: &str| -> u64 {
            stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
        };
        let cache: u64 = self.cache.iter().map(|name| field(name)).sum();
        let left = limit.saturating_sub(used.saturating_sub(cache));
        let bound = || Some(number("memory.swap.max")?.saturating_sub(number("memory.swap.current")?));
        let swap = if self.swap > 0 { bound().map_or(self.swap, |left| left.min(self.swap)) } else { 0 };
        Some(left.saturating_add(swap))
    }
}

/// A field of `/proc/meminfo` or `/proc/PID/status`, in bytes; 0 where there is none.
pub(crate) fn kilobytes(text: &str, field: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let number = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    number.map_or(0, |kilobytes| kilobytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_machine_has_some() {
        assert!(available() > 1 << 20);
        assert!(before_kills().unwrap() > 1 << 20);
    }

    #[test]
    fn fields_are_in_kilobytes() {
        let text = "Name:\tinit\nRssAnon:\t     12 kB\nVmSwap:\t 1 kB\n";
        assert_eq!(kilobytes(text, "RssAnon:"), 12 << 10);
        assert_eq!(kilobytes(text, "RssShmem:"), 0);
        assert_eq!(kilobytes("RssAnon: many kB", "RssAnon:"), 0);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        let group = |folder: &Path, max: &str, current: &str, stat: &str| {
            for (name, text) in [("memory.max", max), ("memory.current", current), ("memory.stat", stat)] {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        group(&inner, "max\n", "500\n", "");
        let left = || V2.left(root.path(), "4:memory:/elsewhere\n0::/outer/inner\n");
        assert_eq!(left(), None);
        group(inner.parent().unwrap(), "1000\n", "900\n", "anon 1\ninactive_file 100\nactive_file 50\n");
        assert_eq!(left(), Some(250));
        group(&inner, "600\n", "500\n", "");
        assert_eq!(left(), Some(100));
        fs::write(inner.join("memory.high"), "550\n").unwrap();
        assert_eq!(left(), Some(50));
        // What slows it down, or has not been swapped out yet, is there before anybody is killed.
        let kills = Groups { limits: &["memory.max"], swap: 70, ..V2 };
        let before_kills = || kills.left(root.path(), "0::/outer/inner\n");
        assert_eq!(before_kills(), Some(170));
        for (name, text) in [("memory.swap.max", "50"), ("memory.swap.current", "20")] {
            fs::write(inner.join(name), text).unwrap();
        }
        fs::write(inner.join("memory.stat"), "slab_reclaimable 8\n").unwrap();
        assert_eq!(before_kills(), Some(138));
        assert_eq!(V1.left(root.path(), "0::/outer/inner\n"), None);
        for (name, text) in [("pids.max", "100"), ("pids.current", "93")] {
            fs::write(inner.join(name), text).unwrap();
        }
        assert_eq!(PIDS_V2.left(root.path(), "0::/outer/inner\n"), Some(7));
    }
}
