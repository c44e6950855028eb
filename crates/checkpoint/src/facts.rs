//! What a manifest says about the machine and the job's files.

use host::files::{Identity, ProgramFile, Restoration, WrittenFile};
use image::{FileAction, HostFacts, JobFile, MappedFile, RawPath};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in ns since 1970 UTC.
#[must_use]
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// This machine.
#[must_use]
pub fn host() -> HostFacts {
    let uname = rustix::system::uname();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    HostFacts {
        kernel: uname.release().to_string_lossy().into_owned(),
        hostname: uname.nodename().to_string_lossy().into_owned(),
        cpu_model: field("model name"),
        cpu_features: field("flags").split_whitespace().map(str::to_owned).collect(),
    }
}

/// A file the job has written, as a manifest lists it.
#[must_use]
pub fn job_file(file: &WrittenFile) -> JobFile {
    JobFile {
        path: RawPath::from(file.path.as_os_str()),
        len: file.length,
        action: match file.restoration {
            Restoration::Truncate => FileAction::Truncate,
            Restoration::Contents(_) => FileAction::PutBack,
            Restoration::LengthOnly => FileAction::Warn,
        },
    }
}

/// A file the job has mapped, as a manifest lists it.
#[must_use]
pub fn mapped_file(file: &ProgramFile) -> MappedFile {
    let (build_id, hash) = match &file.identity {
        Identity::BuildId(id) => (Some(id.clone()), None),
        Identity::Contents(hash) => (None, Some(*hash)),
        Identity::Modified(..) => (None, None),
    };
    MappedFile { path: RawPath::from(file.path.as_os_str()), size: file.size, build_id, hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel() {
        assert!(!host().kernel.is_empty());
    }
}
