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

/// Instructions that a program may have chosen to use when it started, by the beginnings of their names in `/proc/cpuinfo`. The other
/// flags are the kernel's business.
const INSTRUCTIONS: [&str; 33] = [
    "sse",
    "pni",
    "ssse3",
    "avx",
    "bmi",
    "fma",
    "f16c",
    "aes",
    "vaes",
    "pclmulqdq",
    "vpclmulqdq",
    "gfni",
    "sha_ni",
    "sha512",
    "sm3",
    "sm4",
    "amx",
    "popcnt",
    "abm",
    "movbe",
    "adx",
    "rdrand",
    "rdseed",
    "rdtscp",
    "rdpid",
    "xsave",
    "clflushopt",
    "clwb",
    "fsgsbase",
    "erms",
    "fsrm",
    "movdir",
    "serialize",
];

/// Instructions that a machine had and this one lacks.
#[must_use]
pub fn missing_instructions(before: &HostFacts, here: &HostFacts) -> Vec<String> {
    let is_instruction = |name: &&String| INSTRUCTIONS.iter().any(|beginning| name.starts_with(beginning));
    let missing = before.cpu_features.iter().filter(|name| !here.cpu_features.contains(name));
    missing.filter(is_instruction).cloned().collect()
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
    fn instructions_are_missed_and_nothing_else_is() {
        let cpu = |features: &[&str]| HostFacts {
            cpu_features: features.iter().map(|&name| name.to_owned()).collect(),
            ..HostFacts::default()
        };
        let here = cpu(&["sse2", "avx2", "ibpb"]);
        assert_eq!(
            missing_instructions(&cpu(&["avx512f", "sse2", "stibp", "vaes"]), &here),
            ["avx512f", "vaes"]
        );
        assert!(missing_instructions(&cpu(&[]), &here).is_empty());
        assert!(missing_instructions(&host(), &host()).is_empty() && !host().cpu_features.is_empty());
    }

    #[test]
    fn this_machine_has_a_kernel() {
        assert!(!host().kernel.is_empty());
    }
}
