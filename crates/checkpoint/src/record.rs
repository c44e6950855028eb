//! What an image says of a job beside its bytes.

use crate::error::{Failure, Kind};
use crate::folder::Entry;
use crate::sessions::SessionRecord;
use image::{Lineage, Manifest};
use serde::{Deserialize, Serialize};

/// What the supervisor records in an image, as [`image::ObjectKind::HostRecord`], in JSON. A reader skips fields it does not know.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobRecord {
    /// Which version of this record it is: [`Self::VERSION`].
    pub version: u32,
    /// The host half.
    pub host: host::HostRecord,
    /// The GPU sessions.
    pub sessions: Vec<SessionRecord>,
    /// What the job has in common with whatever is restarted from the image.
    pub lineage: Lineage,
    /// Where calls went: the value of `--device`.
    pub device: String,
    /// The most that the job's tmpfs may hold, bytes.
    pub shared_memory: u64,
    /// The job's tmpfs, beside the bytes of its files.
    pub shared: Vec<Entry>,
    /// CRIU's folder, likewise.
    pub criu: Vec<Entry>,
}

/// All that is looked at before the versions are known to fit.
#[derive(Deserialize)]
struct Versions {
    version: u32,
    host: HostVersion,
}

#[derive(Deserialize)]
struct HostVersion {
    version: u32,
}

impl JobRecord {
    /// The version written, and the newest that is read; see [`host::HostRecord::VERSION`].
    pub const VERSION: u32 = 1;

    /// Reads the record of the image that has this manifest.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] when a newer Dormouse has written it, [`Kind::Damaged`].
    pub fn read(json: &[u8], manifest: &Manifest) -> Result<Self, Failure> {
        let image = manifest.id;
        let damaged = |error: serde_json::Error| {
            Failure::new(Kind::Damaged, format!("the job's record in image {image} cannot be read: {error}"))
        };
        let Versions { version, host: HostVersion { version: host } } =
            serde_json::from_slice(json).map_err(damaged)?;
        let newest = host::HostRecord::VERSION;
        if version > Self::VERSION || host > newest {
            let message = format!(
                "image {image} was written by dormouse {}, whose records of jobs are of version {version}.{host}; \
                 this one reads them up to {}.{newest}: restart it with that dormouse, or a newer one",
                manifest.dormouse,
                Self::VERSION
            );
            return Err(Failure::new(Kind::Mismatch, message));
        }
        serde_json::from_slice(json).map_err(damaged)
    }
}
