//! The manifest: everything about an image but its bytes.

use std::collections::HashSet;
use std::io::Read;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::{Field, Writer};
use crate::sealed::{self, Kind};
use crate::{
    ChunkId, DeviceOrdinal, Extent, FormatError, ImageId, Lineage, Machine, Object, ObjectKind, RawPath,
    limits,
};

/// The field of what was regular. Readers that do not know it may skip it.
const REGULAR: u16 = 0x8000;
/// The field of what was excluded; without it nothing was.
const EXCLUDED: u16 = 0x8001;
/// The field of the lineage.
const LINEAGE: u16 = 0x8002;
/// The field of launches that are half-way; without it there are none, or an older version wrote it.
const HALF_WAY: u16 = 0x8003;

/// One image. Field by field as §6 of `docs/image-format.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The image.
    pub id: ImageId,
    /// The machine it was taken on; the only fact outside the encoded body.
    pub machine: Machine,
    /// The job's name.
    pub job: String,
    /// Which job it is: what a restart goes on with, under whatever name. Unknown of images of older versions.
    pub lineage: Option<Lineage>,
    /// When it was cut, in ns since 1970 UTC.
    pub created_ns: u64,
    /// The version of Dormouse that wrote it.
    pub dormouse: String,
    /// The job's image before this one. Information only: nothing of it is needed.
    pub parent: Option<ImageId>,
    /// Whether it was time for it, and nobody had asked for it.
    pub regular: bool,
    /// Bytes of the job's memory that its program has excluded, and that are not in the image.
    pub excluded: u64,
    /// Launches of marked kernels that are half-way in it.
    pub half_way: u64,
    /// Whether a spare server rebuilt all objects at the same addresses before this was published.
    pub rehearsed: bool,
    /// The machine, as a restart compares it.
    pub host: HostFacts,
    /// The devices of the job.
    pub devices: Vec<DeviceFacts>,
    /// What was run.
    pub command: Command,
    /// How long the checkpoint took.
    pub cut: CutTimes,
    /// How many bytes it took. The store fills this in when it publishes.
    pub stored: StoredBytes,
    /// The files that the job has written, and what a restart does with them.
    pub job_files: Vec<JobFile>,
    /// The executables and libraries that must be there, unchanged, at a restart.
    pub mapped_files: Vec<MappedFile>,
    /// The bytes. The store adds those of the writers' receipts when it publishes.
    pub objects: Vec<Object>,
}

/// The machine that an image was taken on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HostFacts {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Host name.
    pub hostname: String,
    /// CPU model.
    pub cpu_model: String,
    /// CPU features, by the names of `/proc/cpuinfo`.
    pub cpu_features: Vec<String>,
}

/// A device of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// As the application numbers it.
    pub ordinal: DeviceOrdinal,
    /// Which backend it belongs to: `driver` or `soft`.
    pub backend: String,
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Compute capability: major × 10 + minor.
    pub compute_capability: u32,
    /// Total memory in bytes.
    pub total_memory: u64,
    /// As `cuDriverGetVersion` gives it: 13000 for CUDA 13.0.
    pub driver_version: u32,
}

/// What was run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments.
    pub args: Vec<RawPath>,
    /// Working directory.
    pub cwd: RawPath,
}

/// How long a checkpoint took, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CutTimes {
    /// Waiting for work that the driver had been given already.
    pub drain_wait: Duration,
    /// Capturing device memory.
    pub device_capture: Duration,
    /// Capturing pinned memory and the rest of the job's tmpfs.
    pub pinned_capture: Duration,
    /// The processes being frozen by CRIU.
    pub host_freeze: Duration,
    /// The longest gap that any thread of the application saw.
    pub stall: Duration,
}

/// How many bytes a checkpoint took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoredBytes {
    /// Of all objects.
    pub total: u64,
    /// Of them, zeros: not stored.
    pub zero: u64,
    /// Of them, found stored already, in this image or an older one.
    pub reused: u64,
    /// Of them, new.
    pub new: u64,
    /// What the new ones take on disk, compressed.
    pub written: u64,
}

impl StoredBytes {
    /// The sums of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            total: self.total.saturating_add(other.total),
            zero: self.zero.saturating_add(other.zero),
            reused: self.reused.saturating_add(other.reused),
            new: self.new.saturating_add(other.new),
            written: self.written.saturating_add(other.written),
        }
    }
}

/// What a restart does with a file that the job has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum FileAction {
    /// Cut back to its length at the checkpoint: it was only appended to.
    Truncate = 0,
    /// Put back the content in [`ObjectKind::JobFileContent`].
    PutBack = 1,
    /// Leave it and say so.
    Warn = 2,
}

/// A file that the job has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFile {
    /// Its path as the job sees it.
    pub path: RawPath,
    /// Its length at the cut, in bytes.
    pub len: u64,
    /// What to do with it.
    pub action: FileAction,
}

/// An executable or library that the job maps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// Its path as the job sees it.
    pub path: RawPath,
    /// Its length in bytes.
    pub size: u64,
    /// Its GNU build id, where it has one.
    pub build_id: Option<Vec<u8>>,
    /// The BLAKE3 hash of its content, where that was computed.
    pub hash: Option<[u8; 32]>,
}

impl Manifest {
    /// A manifest of nothing, of this machine: for struct update syntax, and for tests.
    #[must_use]
    pub fn new(job: &str) -> Self {
        Self {
            id: ImageId([0; 16]),
            machine: Machine::HOST,
            job: job.to_owned(),
            lineage: None,
            created_ns: 0,
            dormouse: env!("CARGO_PKG_VERSION").to_owned(),
            parent: None,
            regular: false,
            excluded: 0,
            half_way: 0,
            rehearsed: false,
            host: HostFacts::default(),
            devices: Vec::new(),
            command: Command::default(),
            cut: CutTimes::default(),
            stored: StoredBytes::default(),
            job_files: Vec::new(),
            mapped_files: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// The object of kind `kind`.
    #[must_use]
    pub fn object(&self, kind: &ObjectKind) -> Option<&Object> {
        self.objects.iter().find(|object| object.kind == *kind)
    }

    /// The chunks of all objects, with their lengths; one that is used several times comes as often.
    pub fn chunks(&self) -> impl Iterator<Item = (ChunkId, u32)> {
        let extents = self.objects.iter().flat_map(|object| &object.extents);
        extents.filter_map(|extent| match extent {
            Extent::Chunk { id, len } => Some((*id, *len)),
            Extent::Zero { .. } => None,
        })
    }

    /// The manifest as a file.
    ///
    /// # Errors
    /// [`FormatError`] where a reader would refuse it: a text that is too long, two objects of one kind.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Writer::default();
        self.encode(&mut body);
        let file = sealed::seal(Kind::Manifest, self.machine, body)?;
        // Refused now rather than by every reader.
        Self::read(&file[..])?;
        Ok(file)
    }

    /// Reads a manifest, of whatever machine.
    ///
    /// # Errors
    /// Any [`FormatError`].
    pub fn read(from: impl Read) -> Result<Self, FormatError> {
        let sealed = sealed::open(Kind::Manifest, from)?;
        let mut fields = sealed.fields();
        let objects_at = sealed::HEADER_LEN as u64;
        let mut manifest = Self {
            machine: sealed.machine,
            id: ImageId(fields.need(1, "it has no image id")?.array()?),
            job: fields.need(2, "it has no job")?.text(limits::TEXT)?,
            lineage: None,
            created_ns: fields.need(3, "it has no time")?.u64()?,
            dormouse: fields.need(4, "it has no dormouse version")?.text(limits::TEXT)?,
            parent: fields.maybe(5)?.map(|field| field.array().map(ImageId)).transpose()?,
            regular: false,
            excluded: 0,
            half_way: 0,
            rehearsed: fields.need(6, "it does not say whether it was rehearsed")?.bool()?,
            host: HostFacts::decode(fields.need(7, "it has no host")?)?,
            devices: fields.many(8, DeviceFacts::decode)?,
            command: Command::decode(fields.need(9, "it has no command")?)?,
            cut: CutTimes::decode(fields.need(10, "it has no times")?)?,
            stored: StoredBytes::decode(fields.need(11, "it has no sizes")?)?,
            job_files: fields.many(12, JobFile::decode)?,
            mapped_files: fields.many(13, MappedFile::decode)?,
            objects: fields.many(14, Object::decode)?,
        };
        if let Some(field) = fields.maybe(REGULAR)? {
            field.array::<0>()?;
            manifest.regular = true;
        }
        if let Some(field) = fields.maybe(EXCLUDED)? {
            manifest.excluded = field.u64()?;
        }
        if let Some(field) = fields.maybe(LINEAGE)? {
            manifest.lineage = Some(Lineage(field.array()?));
        }
        if let Some(field) = fields.maybe(HALF_WAY)? {
            manifest.half_way = field.u64()?;
        }
        fields.end()?;
        let mut kinds = HashSet::with_capacity(manifest.objects.len());
        if !manifest.objects.iter().all(|object| kinds.insert(&object.kind)) {
            let what = "two of its objects are the same thing";
            return Err(FormatError::Invalid { message: Kind::Manifest.name(), at: objects_at, what });
        }
        Ok(manifest)
    }

    fn encode(&self, out: &mut Writer) {
        out.bytes(1, &self.id.0);
        out.bytes(2, self.job.as_bytes());
        out.u64(3, self.created_ns);
        out.bytes(4, self.dormouse.as_bytes());
        self.parent.iter().for_each(|parent| out.bytes(5, &parent.0));
        out.bool(6, self.rehearsed);
        out.message(7, |out| self.host.encode(out));
        self.devices.iter().for_each(|device| out.message(8, |out| device.encode(out)));
        out.message(9, |out| self.command.encode(out));
        out.message(10, |out| self.cut.encode(out));
        out.message(11, |out| self.stored.encode(out));
        self.job_files.iter().for_each(|file| out.message(12, |out| file.encode(out)));
        self.mapped_files.iter().for_each(|file| out.message(13, |out| file.encode(out)));
        self.objects.iter().for_each(|object| out.message(14, |out| object.encode(out)));
        if self.regular {
            out.bytes(REGULAR, &[]);
        }
        if self.excluded > 0 {
            out.u64(EXCLUDED, self.excluded);
        }
        self.lineage.iter().for_each(|lineage| out.bytes(LINEAGE, &lineage.0));
        if self.half_way > 0 {
            out.u64(HALF_WAY, self.half_way);
        }
    }
}

impl HostFacts {
    fn encode(&self, out: &mut Writer) {
        out.bytes(1, self.kernel.as_bytes());
        out.bytes(2, self.hostname.as_bytes());
        out.bytes(3, self.cpu_model.as_bytes());
        self.cpu_features.iter().for_each(|feature| out.bytes(4, feature.as_bytes()));
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("the host");
        let host = Self {
            kernel: fields.need(1, "it has no kernel")?.text(limits::TEXT)?,
            hostname: fields.need(2, "it has no name")?.text(limits::TEXT)?,
            cpu_model: fields.need(3, "it has no CPU model")?.text(limits::TEXT)?,
            cpu_features: fields.many(4, |field| field.text(limits::TEXT))?,
        };
        fields.end()?;
        Ok(host)
    }
}

impl DeviceFacts {
    fn encode(&self, out: &mut Writer) {
        out.u32(1, self.ordinal.0);
        out.bytes(2, self.backend.as_bytes());
        out.bytes(3, self.name.as_bytes());
        out.bytes(4, &self.uuid);
        out.u32(5, self.compute_capability);
        out.u64(6, self.total_memory);
        out.u32(7, self.driver_version);
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("a device");
        let device = Self {
            ordinal: DeviceOrdinal(fields.need(1, "it has no ordinal")?.u32()?),
            backend: fields.need(2, "it has no backend")?.text(limits::TEXT)?,
            name: fields.need(3, "it has no name")?.text(limits::TEXT)?,
            uuid: fields.need(4, "it has no UUID")?.array()?,
            compute_capability: fields.need(5, "it has no compute capability")?.u32()?,
            total_memory: fields.need(6, "it has no memory size")?.u64()?,
            driver_version: fields.need(7, "it has no driver version")?.u32()?,
        };
        fields.end()?;
        Ok(device)
    }
}

impl Command {
    fn encode(&self, out: &mut Writer) {
        self.args.iter().for_each(|arg| out.bytes(1, &arg.0));
        out.bytes(2, &self.cwd.0);
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("the command");
        let command = Self {
            args: fields.many(1, |field| field.bytes(limits::ARGUMENT).map(RawPath))?,
            cwd: RawPath(fields.need(2, "it has no working directory")?.bytes(limits::PATH)?),
        };
        fields.end()?;
        Ok(command)
    }
}

impl CutTimes {
    fn encode(&self, out: &mut Writer) {
        let times = [self.drain_wait, self.device_capture, self.pinned_capture, self.host_freeze, self.stall];
        for (id, time) in (1..).zip(times) {
            out.u64(id, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("the times");
        let mut time = |id| fields.need(id, "a time is missing")?.u64().map(Duration::from_nanos);
        let times = Self {
            drain_wait: time(1)?,
            device_capture: time(2)?,
            pinned_capture: time(3)?,
            host_freeze: time(4)?,
            stall: time(5)?,
        };
        fields.end()?;
        Ok(times)
    }
}

impl StoredBytes {
    fn encode(&self, out: &mut Writer) {
        let sizes = [self.total, self.zero, self.reused, self.new, self.written];
        (1..).zip(sizes).for_each(|(id, size)| out.u64(id, size));
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("the sizes");
        let mut size = |id| fields.need(id, "a size is missing")?.u64();
        let sizes =
            Self { total: size(1)?, zero: size(2)?, reused: size(3)?, new: size(4)?, written: size(5)? };
        fields.end()?;
        Ok(sizes)
    }
}

impl JobFile {
    fn encode(&self, out: &mut Writer) {
        out.bytes(1, &self.path.0);
        out.u64(2, self.len);
        out.u8(3, self.action as u8);
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("a job file");
        let path = RawPath(fields.need(1, "it has no path")?.bytes(limits::PATH)?);
        let len = fields.need(2, "it has no length")?.u64()?;
        let action = fields.need(3, "it has no action")?;
        let action = match action.u8()? {
            0 => FileAction::Truncate,
            1 => FileAction::PutBack,
            2 => FileAction::Warn,
            _ => return Err(action.invalid("its action is not known")),
        };
        fields.end()?;
        Ok(Self { path, len, action })
    }
}

impl MappedFile {
    fn encode(&self, out: &mut Writer) {
        out.bytes(1, &self.path.0);
        out.u64(2, self.size);
        self.build_id.iter().for_each(|id| out.bytes(3, id));
        self.hash.iter().for_each(|hash| out.bytes(4, hash));
    }

    fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("a mapped file");
        let file = Self {
            path: RawPath(fields.need(1, "it has no path")?.bytes(limits::PATH)?),
            size: fields.need(2, "it has no size")?.u64()?,
            build_id: fields.maybe(3)?.map(|field| field.bytes(limits::BUILD_ID)).transpose()?,
            hash: fields.maybe(4)?.map(|field| field.array()).transpose()?,
        };
        fields.end()?;
        Ok(file)
    }
}
