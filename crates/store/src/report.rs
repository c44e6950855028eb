//! What `dormouse ls`, `inspect` and `verify` say with `--json`. Fields are promises: they may be added to, not changed.

use std::time::Duration;

use image::{Command, Extent, FileAction, ImageId, Lineage, Manifest, ObjectKind, StoredBytes};
use serde::Serialize;

use crate::error::describe;
use crate::names::object_name;

/// One line of `ls`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageSummary {
    /// The image's id.
    pub id: ImageId,
    /// The job's name.
    pub job: String,
    /// Which job it is, where the image says so.
    #[serde(skip)]
    pub lineage: Option<Lineage>,
    /// When it was cut: RFC 3339, UTC.
    pub created: String,
    /// The same in ns since 1970, for sorting.
    #[serde(skip)]
    pub created_ns: u64,
    /// The version of Dormouse that wrote it.
    pub dormouse: String,
    /// The machine it was taken on.
    pub machine: String,
    /// The names of its devices.
    pub devices: Vec<String>,
    /// The command line.
    pub command: Vec<String>,
    /// Whether it was time for it, and nobody had asked for it.
    pub regular: bool,
    /// Whether its objects were rebuilt at the same addresses before it was published.
    pub rehearsed: bool,
    /// Launches of marked kernels that are half-way in it.
    pub half_way: u64,
    /// Bytes of all objects, and what became of them.
    pub stored: Stored,
    /// The longest gap that any thread of the application saw.
    pub stall_ms: f64,
}

/// Bytes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stored {
    /// The lengths of all objects, zeros and holes of files included: `zero` + `data`.
    pub total: u64,
    /// Of them, zeros and holes, which take no room.
    pub zero: u64,
    /// Of them, the rest: `reused` + `new`. `ls` shows it as SIZE.
    pub data: u64,
    /// Of `data`, what the store had already.
    pub reused: u64,
    /// Of `data`, what it had not.
    pub new: u64,
    /// What `new` takes, compressed.
    pub written: u64,
    /// Memory that the program has excluded, and that is not in the image: of device memory as `zero`, of the processes' own not at all.
    pub excluded: u64,
}

/// What `inspect` shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageDetails {
    /// As `ls` shows it.
    #[serde(flatten)]
    pub summary: ImageSummary,
    /// The job's image before this one.
    pub parent: Option<ImageId>,
    /// Working directory.
    pub cwd: String,
    /// The machine.
    pub host: Host,
    /// The devices.
    pub device_details: Vec<Device>,
    /// The stall and its parts.
    pub times: Times,
    /// Files that the job has written.
    pub job_files: Vec<JobFile>,
    /// Files that must be there, unchanged, at a restart.
    pub mapped_files: Vec<MappedFile>,
    /// What the image consists of.
    pub objects: Vec<Object>,
}

/// The machine of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Kernel release.
    pub kernel: String,
    /// Host name.
    pub hostname: String,
    /// CPU model.
    pub cpu_model: String,
    /// CPU features.
    pub cpu_features: Vec<String>,
}

/// A device of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// As the application numbers it.
    pub ordinal: u32,
    /// `driver` or `soft`.
    pub backend: String,
    /// Its name.
    pub name: String,
    /// Its UUID, in hex.
    pub uuid: String,
    /// Compute capability: major × 10 + minor.
    pub compute_capability: u32,
    /// Memory in bytes.
    pub total_memory: u64,
    /// As `cuDriverGetVersion` gives it.
    pub driver_version: u32,
}

/// The parts of a stall, as `checkpoint` has told them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// Waiting for the device.
    pub drain_ms: f64,
    /// Capturing device memory.
    pub device_ms: f64,
    /// Capturing what application and server share.
    pub shared_ms: f64,
    /// Frozen by CRIU.
    pub host_ms: f64,
    /// The longest gap that any thread saw.
    pub stall_ms: f64,
}

/// A file that the job has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobFile {
    /// Its path.
    pub path: String,
    /// Its length at the cut.
    pub len: u64,
    /// What a restart does: `truncate`, `put_back`, `warn`.
    pub action: FileAction,
}

/// A file that the job maps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MappedFile {
    /// Its path.
    pub path: String,
    /// Its length.
    pub size: u64,
    /// Its GNU build id in hex.
    pub build_id: Option<String>,
    /// Its BLAKE3 hash in hex.
    pub hash: Option<String>,
}

/// A part of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Object {
    /// Sort of object: `device_memory`, `session_state`, `shared_file`, `criu_file`, `job_file_content`, `host_record`.
    pub kind: &'static str,
    /// Its name, as [`crate::find_object`] takes it.
    pub object: String,
    /// What it is, in words.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// Of them, zeros.
    pub zero: u64,
    /// Chunks of the rest.
    pub chunks: u64,
}

impl ImageSummary {
    /// What an image's manifest says of it.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Self {
        Self {
            id: manifest.id,
            job: manifest.job.clone(),
            lineage: manifest.lineage,
            created: rfc3339(manifest.created_ns),
            created_ns: manifest.created_ns,
            dormouse: manifest.dormouse.clone(),
            machine: manifest.machine.to_string(),
            devices: manifest.devices.iter().map(|device| device.name.clone()).collect(),
            command: manifest.command.args.iter().map(ToString::to_string).collect(),
            regular: manifest.regular,
            rehearsed: manifest.rehearsed,
            half_way: manifest.half_way,
            stored: Stored::of(manifest),
            stall_ms: ms(manifest.cut.stall),
        }
    }
}

impl Stored {
    fn of(manifest: &Manifest) -> Self {
        let StoredBytes { total, zero, reused, new, written } = manifest.stored;
        let (data, excluded) = (total.saturating_sub(zero), manifest.excluded);
        Self { total, zero, data, reused, new, written, excluded }
    }
}

impl ImageDetails {
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let Command { cwd, .. } = &manifest.command;
        let cut = &manifest.cut;
        Self {
            summary: ImageSummary::of(manifest),
            parent: manifest.parent,
            cwd: cwd.to_string(),
            host: Host {
                kernel: manifest.host.kernel.clone(),
                hostname: manifest.host.hostname.clone(),
                cpu_model: manifest.host.cpu_model.clone(),
                cpu_features: manifest.host.cpu_features.clone(),
            },
            device_details: manifest.devices.iter().map(Device::of).collect(),
            times: Times {
                drain_ms: ms(cut.drain_wait),
                device_ms: ms(cut.device_capture),
                shared_ms: ms(cut.pinned_capture),
                host_ms: ms(cut.host_freeze),
                stall_ms: ms(cut.stall),
            },
            job_files: manifest.job_files.iter().map(JobFile::of).collect(),
            mapped_files: manifest.mapped_files.iter().map(MappedFile::of).collect(),
            objects: manifest.objects.iter().map(Object::of).collect(),
        }
    }
}

impl Device {
    fn of(device: &image::DeviceFacts) -> Self {
        Self {
            ordinal: device.ordinal.0,
            backend: device.backend.clone(),
            name: device.name.clone(),
            uuid: hex(&device.uuid),
            compute_capability: device.compute_capability,
            total_memory: device.total_memory,
            driver_version: device.driver_version,
        }
    }
}

impl JobFile {
    fn of(file: &image::JobFile) -> Self {
        Self { path: file.path.to_string(), len: file.len, action: file.action }
    }
}

impl MappedFile {
    fn of(file: &image::MappedFile) -> Self {
        Self {
            path: file.path.to_string(),
            size: file.size,
            build_id: file.build_id.as_deref().map(hex),
            hash: file.hash.as_ref().map(|hash| hex(hash)),
        }
    }
}

impl Object {
    fn of(object: &image::Object) -> Self {
        let zeros = object.extents.iter().filter(|extent| matches!(extent, Extent::Zero { .. }));
        Self {
            kind: kind_name(&object.kind),
            object: object_name(&object.kind),
            name: describe(&object.kind),
            len: object.len(),
            zero: zeros.clone().map(Extent::len).fold(0, u64::saturating_add),
            chunks: (object.extents.len() - zeros.count()) as u64,
        }
    }
}

/// The sort of an object.
pub(crate) fn kind_name(kind: &ObjectKind) -> &'static str {
    match kind {
        ObjectKind::DeviceMemory { .. } => "device_memory",
        ObjectKind::SessionState { .. } => "session_state",
        ObjectKind::SharedFile { .. } => "shared_file",
        ObjectKind::CriuFile { .. } => "criu_file",
        ObjectKind::JobFileContent { .. } => "job_file_content",
        ObjectKind::HostRecord => "host_record",
        _ => "other",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A time in ns since 1970 UTC, to the millisecond.
#[must_use]
pub fn rfc3339(ns: u64) -> String {
    humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
}
