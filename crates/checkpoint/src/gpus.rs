//! Which of a machine's GPUs the processes of a job see. A program may say that for itself (`CUDA_VISIBLE_DEVICES`, CUDA C++ Programming
//! Guide, "CUDA Environment Variables"), process by process, and a job may have other GPUs after a restart than before.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Where CUDA is told of it.
pub const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// How much of a list is looked at: as much as a machine with many GPUs has, by UUID.
const LENGTH_MAX: usize = 4096;

/// Which GPUs a job is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Those with the most memory left.
    Free,
    /// These.
    These(List),
}

/// How the first is said.
const FREE: &str = "free";

impl FromStr for Asked {
    type Err = NoList;

    fn from_str(text: &str) -> Result<Self, NoList> {
        if text == FREE { Ok(Self::Free) } else { text.parse().map(Self::These) }
    }
}

/// GPUs of a machine, each by its number or UUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List(Vec<String>);

/// No such list.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoList {
    /// Something in it is no GPU.
    #[error(
        "expected GPUs by number or UUID, separated by commas, as CUDA_VISIBLE_DEVICES has them, such as 0,2, or `free`"
    )]
    NoGpu,
    /// CUDA would look no further than that.
    #[error("GPU {0} is there twice; name each once")]
    Twice(String),
    /// No machine has so many.
    #[error("it has {0} bytes; name no more than the GPUs of this machine, which take {LENGTH_MAX} at most")]
    Long(usize),
}

impl FromStr for List {
    type Err = NoList;

    fn from_str(text: &str) -> Result<Self, NoList> {
        let is_good = |entry: &str| {
            let number = !entry.is_empty() && entry.len() <= 4 && entry.bytes().all(|b| b.is_ascii_digit());
            number || entry.starts_with("GPU-") || entry.starts_with("MIG-")
        };
        if text.len() > LENGTH_MAX {
            return Err(NoList::Long(text.len()));
        }
        let entries: Vec<String> = entries(text).map(str::to_owned).collect();
        if !entries.iter().all(|entry| is_good(entry)) {
            return Err(NoList::NoGpu);
        }
        // 00 is 0.
        let mut seen = BTreeSet::new();
        match entries.iter().find(|entry| !seen.insert(entry.trim_start_matches('0'))) {
            Some(twice) => Err(NoList::Twice(twice.clone())),
            None => Ok(Self(entries)),
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// What a process sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// The GPUs that the job has.
    #[default]
    Jobs,
    /// All of the machine, which the job was not given.
    Machines,
    /// These, in this order.
    Of(Vec<Gpu>),
}

/// One of those that a process sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpu {
    /// The job's, counted from 0.
    Jobs(usize),
    /// Another, as the program called it.
    Called(String),
}

impl Seen {
    /// Whether they are just the job's.
    #[must_use]
    pub fn is_jobs(&self) -> bool {
        *self == Self::Jobs
    }
}

/// The GPUs of a job; without a list, all of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Those it was begun with: by them its processes call theirs.
    pub first: Option<String>,
    /// Those it has.
    pub now: Option<String>,
}

impl Gpus {
    /// What this process's environment says, for a job that begins.
    #[must_use]
    pub fn of_environment() -> Self {
        let now = from_environment();
        Self { first: now.clone(), now }
    }

    /// The same for a job that was begun with `first`, or what was asked for.
    #[must_use]
    pub fn of_restart(first: Option<String>, asked: Option<&List>) -> Self {
        Self { first, now: asked.map(List::to_string).or_else(from_environment) }
    }

    /// What a process means whose environment has this list.
    #[must_use]
    pub fn seen(&self, list: Option<&str>) -> Seen {
        let Some(list) = list else {
            return if self.first.is_some() { Seen::Machines } else { Seen::Jobs };
        };
        if self.first.as_deref() == Some(list) {
            return Seen::Jobs;
        }
        let gpu = |entry: &str| {
            let place = match &self.first {
                Some(first) => entries(first).position(|each| each == entry),
                None => entry.parse().ok(),
            };
            place.map_or_else(|| Gpu::Called(entry.to_owned()), Gpu::Jobs)
        };
        Seen::Of(entries(looked_at(list)).map(gpu).collect())
    }

    /// The list for the server of a process that sees this.
    #[must_use]
    pub fn list(&self, seen: &Seen) -> Option<String> {
        let gpus = match seen {
            Seen::Jobs => return self.now.clone(),
            Seen::Machines => return None,
            Seen::Of(gpus) => gpus,
        };
        let called = |gpu: &Gpu| match (gpu, &self.now) {
            (Gpu::Jobs(place), Some(now)) => entries(now).nth(*place).map(str::to_owned),
            (Gpu::Jobs(place), None) => Some(place.to_string()),
            (Gpu::Called(name), _) => Some(name.clone()),
        };
        // As CUDA does: what comes behind one that is not there is not seen.
        Some(gpus.iter().map_while(called).collect::<Vec<_>>().join(","))
    }
}

fn from_environment() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// What a process may mean of a list: CUDA looks no further than the first entry that is no GPU of the machine or is there twice, and such there is
/// in any longer one.
fn looked_at(list: &str) -> &str {
    let Some(beginning) = list.as_bytes().get(..=LENGTH_MAX) else { return list };
    let end = beginning.iter().rposition(|byte| *byte == b',').unwrap_or(0);
    list.get(..end).unwrap_or_default()
}

/// What a list names.
pub fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn gpus(first: Option<&str>, now: Option<&str>) -> Gpus {
        Gpus { first: first.map(str::to_owned), now: now.map(str::to_owned) }
    }

    #[test]
    fn a_process_sees_here_what_it_says() {
        for first in [None, Some("0,1"), Some("2,GPU-8a,7")] {
            let here = gpus(first, first);
            for said in
                [None, Some(""), Some("1"), Some("1,0"), Some("GPU-8a"), Some("7,2"), Some("-1"), first]
            {
                assert_eq!(here.list(&here.seen(said)).as_deref(), said, "{first:?}, {said:?}");
            }
        }
    }

    #[test]
    fn elsewhere_it_sees_those_in_their_places() {
        for (first, said, now, sees) in [
            (None, None, Some("4,5"), Some("4,5")),
            (None, Some("1"), Some("4,5"), Some("5")),
            (None, Some("1,0"), Some("4,5"), Some("5,4")),
            (None, Some("0,3,1"), Some("4,5"), Some("4")),
            (Some("2,3"), Some("2,3"), None, None),
            (Some("2,3"), Some("3"), None, Some("1")),
            (Some("2,3"), Some("3"), Some("GPU-5"), Some("")),
            (Some("2,3"), Some("0"), Some("6,7"), Some("0")),
            (Some("2,3"), None, Some("6"), None),
        ] {
            let seen = gpus(first, first).seen(said);
            assert_eq!(gpus(first, now).list(&seen).as_deref(), sees, "{first:?}, {said:?}, {now:?}");
        }
    }

    #[test]
    fn lists_name_gpus() {
        for good in ["0", "1,0", " 3, 4", "GPU-8a6b,2", "MIG-1"] {
            assert!(good.parse::<List>().is_ok(), "{good}");
        }
        for bad in ["", ",", "-1", "all", "0,,1", "12345", "0;1"] {
            assert_eq!(bad.parse::<List>(), Err(NoList::NoGpu), "{bad}");
        }
        for (bad, twice) in [("0,1,0", "0"), ("1,01", "01"), ("GPU-8a, GPU-8a", "GPU-8a")] {
            assert_eq!(bad.parse::<List>(), Err(NoList::Twice(twice.to_owned())), "{bad}");
        }
        assert_eq!("free".parse(), Ok(Asked::Free));
        assert_eq!("1,0".parse(), Ok(Asked::These("1,0".parse().unwrap())));
        let long = vec!["1"; 4000].join(",");
        assert_eq!(long.parse::<List>(), Err(NoList::Long(7999)));
    }

    #[test]
    fn of_a_list_without_end_the_beginning_counts() {
        let here = gpus(None, None);
        let list = |said: &str| here.list(&here.seen(Some(said))).unwrap();
        let many = |entry: &str| vec![entry; 4000].join(",");
        assert_eq!(list(&format!("1,0,{}", "x".repeat(5000))), "1,0");
        assert_eq!(list(&"x".repeat(5000)), "", "and not all of the machine's");
        assert!(many("0").starts_with(&list(&many("0"))) && list(&many("0")).len() > 4000);
        // The job's own is that, however long.
        let own = many("2");
        assert_eq!(gpus(Some(&own), Some("5")).seen(Some(&own)), Seen::Jobs);
    }
}
