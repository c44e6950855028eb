//! What an image says of a job beside its bytes.

use crate::error::{Failure, Kind};
use crate::folder::Entry;
use crate::sessions::SessionRecord;
use image::{Lineage, Manifest};
use serde::{Deserialize, Serialize};
use server::memory::Managed;
use std::time::Duration;

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
    /// The most memory of each device that a process may take, bytes, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<u64>,
    /// The GPUs that the job was begun with, if not all of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
    /// How managed memory of processes that have none yet is had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Managed>,
    /// How long a marked kernel may have a device that other streams of its process wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_after: Option<Duration>,
    /// In place of that, once: whether it is to have shadow pages.
    #[serde(default, skip_serializing)]
    pub shadows: bool,
    /// The job's tmpfs, beside the bytes of its files.
    pub shared: Vec<Entry>,
    /// CRIU's folder, likewise.
    pub criu: Vec<Entry>,
}

impl JobRecord {
    /// How managed memory of processes that have none yet is had.
    #[must_use]
    pub fn managed(&self) -> Managed {
        let once = if self.shadows { Managed::Shadow } else { Managed::Coherent };
        self.managed.unwrap_or(once)
    }

    /// How it is had from now on, where something else may be `asked` for; `Err` with a sentence where that cannot be: what there is stays as it was.
    pub fn managed_as(&self, asked: Option<Managed>) -> Result<Managed, String> {
        let had = self.managed();
        let asked = asked.unwrap_or(had);
        let changes = asked != had && [had, asked].contains(&Managed::Exclusive);
        if !changes || self.sessions.is_empty() {
            return Ok(asked);
        }
        Err(format!(
            "the job's managed memory is as --managed={} has it, and what there is stays so: it cannot be had as --managed={} has it. Leave that out (and \
             DORMOUSE_MANAGED), or start the program anew",
            had.name(),
            asked.name()
        ))
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A record as the first version of it was written: images hold it for ever.
    const GOLDEN: &str = include_str!("../tests/golden/job-record-1.json");
    /// As since the host's second version, which has the files that the job was given.
    const SECOND: &str = include_str!("../tests/golden/job-record-2.json");
    /// As since there are blank device nodes.
    const THIRD: &str = include_str!("../tests/golden/job-record-3.json");
    /// As since there are the folders and files that the job was in or was reading.
    const FOURTH: &str = include_str!("../tests/golden/job-record-4.json");

    fn manifest() -> Manifest {
        let id = "00112233445566778899aabbccddeeff".parse().unwrap();
        Manifest { id, dormouse: "0.9.0".into(), ..Manifest::new("train") }
    }

    fn read(value: &Value) -> Result<JobRecord, Failure> {
        JobRecord::read(value.to_string().as_bytes(), &manifest())
    }

    /// When this fails, images that exist cannot be read, or what is written is not what they hold: a new field needs a serde default
    /// and a golden record of its own beside this one, a new meaning needs a new version.
    #[test]
    fn every_version_is_read_and_the_newest_written_as_it_was() {
        let mut first: Value = serde_json::from_str(GOLDEN).unwrap();
        let record = read(&first).unwrap();
        for later in ["files", "blank", "needed"] {
            first["host"][later] = json!([]);
        }
        assert_eq!(serde_json::to_value(&record).unwrap(), first);
        assert_eq!((record.version, record.host.version), (1, 1));

        let mut second: Value = serde_json::from_str(SECOND).unwrap();
        let record = read(&second).unwrap();
        for later in ["blank", "needed"] {
            second["host"][later] = json!([]);
        }
        assert_eq!(serde_json::to_value(&record).unwrap(), second);

        let mut third: Value = serde_json::from_str(THIRD).unwrap();
        let record = read(&third).unwrap();
        third["host"]["needed"] = json!([]);
        assert_eq!(serde_json::to_value(&record).unwrap(), third);

        let fourth: Value = serde_json::from_str(FOURTH).unwrap();
        let record = read(&fourth).unwrap();
        assert_eq!(serde_json::to_value(&record).unwrap(), fourth);
        assert_eq!((record.version, record.host.version), (JobRecord::VERSION, host::HostRecord::VERSION));

        // Since there are shadow pages. Who does not know them refuses the session's state.
        let mut fifth = fourth;
        fifth["sessions"][0]["shadows"] = json!(true);
        assert_eq!(serde_json::to_value(read(&fifth).unwrap()).unwrap(), fifth);

        // Since device memory may be limited. Who does not know that gives the job all there is.
        let mut sixth = fifth;
        sixth["device_memory"] = json!(64 << 20);
        let record = read(&sixth).unwrap();
        assert_eq!(record.device_memory, Some(64 << 20));
        assert_eq!(serde_json::to_value(record).unwrap(), sixth);

        // Since it says what is to be had of processes to come, too. Who does not know that gives them coherent memory.
        let mut seventh = sixth;
        assert_eq!(read(&seventh).unwrap().managed(), Managed::Coherent);
        seventh["shadows"] = json!(true);
        assert_eq!(read(&seventh).unwrap().managed(), Managed::Shadow);
        let mut eighth = seventh;
        eighth.as_object_mut().unwrap().remove("shadows");
        eighth["managed"] = json!("auto");
        let record = read(&eighth).unwrap();
        assert_eq!(record.managed(), Managed::Auto);
        assert_eq!(serde_json::to_value(record).unwrap(), eighth);

        // Since marked kernels may take turns. Who does not know that lets each have the device to its end.
        let mut ninth = eighth;
        ninth["preempt_after"] = json!({ "secs": 0, "nanos": 20_000_000 });
        let record = read(&ninth).unwrap();
        assert_eq!(record.preempt_after, Some(Duration::from_millis(20)));
        assert_eq!(serde_json::to_value(record).unwrap(), ninth);

        // Since it says by what shadow pages may be kept. Who does not know that finds out when the program is to go on.
        let mut tenth = ninth;
        tenth["sessions"][0]["unprivileged"] = json!(true);
        let record = read(&tenth).unwrap();
        assert!(record.sessions[0].unprivileged);
        assert_eq!(serde_json::to_value(record).unwrap(), tenth);
    }

    #[test]
    fn programs_that_run_keep_exclusive_memory_and_get_none() {
        let mut record = read(&serde_json::from_str(FOURTH).unwrap()).unwrap();
        record.managed = Some(Managed::Auto);
        assert!(!record.sessions.is_empty());
        assert_eq!(record.managed_as(None), Ok(Managed::Auto));
        assert_eq!(record.managed_as(Some(Managed::Shadow)), Ok(Managed::Shadow));
        let refused = record.managed_as(Some(Managed::Exclusive)).unwrap_err();
        assert!(refused.contains("--managed=auto") && refused.contains("--managed=exclusive"), "{refused}");
        record.managed = Some(Managed::Exclusive);
        assert!(record.managed_as(Some(Managed::Auto)).is_err());
        assert_eq!(record.managed_as(Some(Managed::Exclusive)), Ok(Managed::Exclusive));
        record.sessions.clear();
        assert_eq!(record.managed_as(Some(Managed::Auto)), Ok(Managed::Auto));
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        for place in ["/version", "/host/version"] {
            let mut newer: Value = serde_json::from_str(GOLDEN).unwrap();
            *newer.pointer_mut(place).unwrap() = json!(9);
            // Whatever else it is by then.
            newer.as_object_mut().unwrap().remove("lineage");
            let failure = read(&newer).unwrap_err();
            assert_eq!(failure.kind, Kind::Mismatch, "{failure}");
            for word in ["00112233", "dormouse 0.9.0", "9", "restart it with"] {
                assert!(failure.message.contains(word), "{failure}");
            }
        }
    }

    #[test]
    fn damage_is_damage_and_additions_are_none() {
        let mut record: Value = serde_json::from_str(GOLDEN).unwrap();
        record.as_object_mut().unwrap().insert("addition".into(), json!({ "to": "come" }));
        read(&record).unwrap();
        record.as_object_mut().unwrap().remove("lineage");
        assert_eq!(read(&record).unwrap_err().kind, Kind::Damaged);
        for text in ["", "{}", "null", "[1]"] {
            assert_eq!(
                JobRecord::read(text.as_bytes(), &manifest()).unwrap_err().kind,
                Kind::Damaged,
                "{text}"
            );
        }
    }

    /// The property of the fuzz target: what is refused is damage or of a newer version, and what is understood is written, and read back the same.
    fn check(json: &[u8]) {
        match JobRecord::read(json, &manifest()) {
            Ok(record) => {
                let written = serde_json::to_vec(&record).unwrap();
                let again = JobRecord::read(&written, &manifest()).unwrap();
                assert_eq!(serde_json::to_vec(&again).unwrap(), written);
            }
            Err(failure) => {
                assert!(matches!(failure.kind, Kind::Damaged | Kind::Mismatch), "{failure}");
                assert!(failure.message.contains("image 00112233"), "{failure}");
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_damage() {
        let whole = FOURTH.trim_end();
        for len in 0..whole.len() {
            let failure = JobRecord::read(&whole.as_bytes()[..len], &manifest()).unwrap_err();
            assert_eq!(failure.kind, Kind::Damaged, "{len}: {failure}");
        }
    }

    #[test]
    fn flipped_bits_are_refused_or_understood() {
        let mut json = FOURTH.as_bytes().to_vec();
        for bit in 0..json.len() * 8 {
            json[bit / 8] ^= 1 << (bit % 8);
            check(&json);
            json[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// In the place of each value whatever JSON has.
    #[test]
    fn values_that_nobody_writes_are_refused_or_understood() {
        fn places(value: &Value, at: &str, found: &mut Vec<String>) {
            found.push(at.to_owned());
            let within: Vec<(String, &Value)> = match value {
                Value::Array(all) => all.iter().enumerate().map(|(n, each)| (n.to_string(), each)).collect(),
                Value::Object(all) => all.iter().map(|(name, each)| (name.clone(), each)).collect(),
                _ => Vec::new(),
            };
            within.iter().for_each(|(name, each)| places(each, &format!("{at}/{name}"), found));
        }
        let whole: Value = serde_json::from_str(FOURTH).unwrap();
        let mut found = Vec::new();
        places(&whole, "", &mut found);
        assert!(found.len() > 100);
        for place in found {
            for odd in [
                json!(u64::MAX),
                json!(i64::MIN),
                json!(1e300),
                json!(null),
                json!([256]),
                json!("\0"),
                json!({}),
            ] {
                let mut changed = whole.clone();
                *changed.pointer_mut(&place).unwrap() = odd;
                check(changed.to_string().as_bytes());
            }
        }
        // Deeper than anything, where it is skipped and where it is not.
        let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        check(deep.as_bytes());
        check(FOURTH.replacen('{', &format!(r#"{{"addition":{deep},"#), 1).as_bytes());
    }
}
