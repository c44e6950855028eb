//! Where a running program is in its plan, by the kernels it launches.
//!
//! A planned boundary is known by its [`Mark`]: the names of the last kernels, its own the last of them, and how many boundaries with the same
//! had come by then. A kernel that comes or goes somewhere else changes nothing; one within those names costs one of the places of this sort, so that the next one counts, which in a loop is
//! the same place one turn later.

use crate::Error;
use crate::model::NamesHash;
use crate::planfile::{Checkpoint, Part, PartPlan, Plan};
use crate::units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// So many names, the last kernels', tell one sort of place from another.
pub const WINDOW: usize = 16;
/// So long before a planned boundary, in the profile, is the one at which a checkpoint is prepared.
pub const AHEAD: Nanos = Nanos(1_000_000_000);
/// What a name weighs more than the one after it; odd, so that none is lost.
const WEIGHT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The names of the last [`WINDOW`] kernels, as one number.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Window {
    /// Hashes of the names, the oldest first.
    names: std::collections::VecDeque<u64>,
    sum: u64,
}

impl Window {
    /// Of the last kernels and this one.
    #[must_use]
    pub fn with(&self, name: u64) -> u64 {
        let oldest = if self.names.len() < WINDOW { 0 } else { self.names.front().copied().unwrap_or(0) };
        let gone = oldest.wrapping_mul(WEIGHT.wrapping_pow(WINDOW as u32));
        self.sum.wrapping_mul(WEIGHT).wrapping_add(name).wrapping_sub(gone)
    }

    /// One more kernel; answers what [`Self::with`] does.
    pub fn push(&mut self, name: u64) -> u64 {
        self.sum = self.with(name);
        // What was read from an image may have any length.
        while self.names.len() >= WINDOW {
            self.names.pop_front();
        }
        self.names.push_back(name);
        self.sum
    }
}

/// What a boundary is recognised by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// [`Window`] at the boundary, its kernel the last.
    #[serde(with = "hex")]
    pub names: u64,
    /// How many boundaries with the same come before it, and it.
    pub occurrence: u64,
}

/// As sixteen digits: not every reader of JSON has numbers of 64 bits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let digits = String::deserialize(from)?;
        u64::from_str_radix(&digits, 16).map_err(D::Error::custom)
    }
}

/// The marks of the boundaries that are asked for, by their numbers, in a program that launches what `each` tells, name by name.
pub(crate) fn marks(numbers: &[u32], each: impl Fn(&mut dyn FnMut(u64))) -> HashMap<u32, Mark> {
    let wanted: HashMap<u32, ()> = numbers.iter().map(|number| (*number, ())).collect();
    let sums_at = |see: &mut dyn FnMut(u32, u64)| {
        let (mut window, mut number) = (Window::default(), 0);
        each(&mut |name| {
            see(number, window.push(name));
            number += 1;
        });
    };
    let mut counts = HashMap::new();
    sums_at(&mut |number, sum| {
        if wanted.contains_key(&number) {
            counts.insert(sum, 0_u64);
        }
    });
    let mut marks = HashMap::with_capacity(wanted.len());
    sums_at(&mut |number, sum| {
        let Some(count) = counts.get_mut(&sum) else { return };
        *count += 1;
        if wanted.contains_key(&number) {
            marks.insert(number, Mark { names: sum, occurrence: *count });
        }
    });
    marks
}

/// What a boundary is in the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nothing.
    Other,
    /// [`AHEAD`] of the checkpoint with this number.
    Near(usize),
    /// Where a checkpoint is planned: its number.
    Planned(usize),
}

/// How far a program has come, for an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Passed {
    window: Window,
    /// How many boundaries of each sort that the plan names.
    counts: Vec<(u64, u64)>,
    /// The next checkpoint.
    next: usize,
}

/// Follows a program through its plan.
#[derive(Debug)]
pub struct Follower {
    window: Window,
    counts: HashMap<u64, u64>,
    /// By sort and occurrence.
    places: HashMap<(u64, u64), Seen>,
    /// How long it is to each checkpoint from where it is near.
    leads: Vec<Nanos>,
    next: usize,
    longest: Nanos,
}

impl Follower {
    /// At the start of a program, or where it was when an image was taken.
    ///
    /// # Errors
    /// [`Error::Together`] for a plan of checkpoints that are not the whole job's; [`Error::Damaged`] for one without marks.
    pub fn new(plan: &Plan, passed: Option<Passed>) -> Result<Self, Error> {
        let part = Self::part(plan)?;
        let mut places = HashMap::new();
        for (number, checkpoint) in part.checkpoints.iter().enumerate() {
            let Some(mark) = checkpoint.mark else {
                return Err(Error::damaged(
                    "the plan's boundaries have no marks: make it again with `dormouse plan`",
                ));
            };
            if let Some(ahead) = checkpoint.ahead {
                places.entry((ahead.names, ahead.occurrence)).or_insert(Seen::Near(number));
            }
            places.insert((mark.names, mark.occurrence), Seen::Planned(number));
        }
        let counts = places.keys().map(|(names, _)| (*names, 0)).collect();
        let longest = part.interval_ns.unwrap_or(part.longest_gap_ns);
        let mut follower = Self {
            window: Window::default(),
            counts,
            places,
            leads: part.checkpoints.iter().map(lead).collect(),
            next: 0,
            longest,
        };
        if let Some(passed) = passed {
            follower.window = passed.window;
            follower.next = passed.next.min(follower.leads.len());
            for (names, count) in passed.counts {
                // A plan may be another than the one by which the image was taken.
                if let Some(known) = follower.counts.get_mut(&names) {
                    *known = count;
                }
            }
        }
        Ok(follower)
    }

    /// What of a plan can be acted on: processor and device are one image.
    fn part(plan: &Plan) -> Result<&PartPlan, Error> {
        let job = plan.parts.iter().find(|part| part.part == Part::Job);
        job.ok_or(Error::Together(
            "a plan with --model async cannot be acted on: an image is of processor and device together",
        ))
    }

    /// The longest gap that the plan leaves between two checkpoints.
    #[must_use]
    pub fn longest(&self) -> Nanos {
        self.longest
    }

    /// What the boundary before this kernel is, which has not been passed yet. A checkpoint that has been taken, or given up, is none.
    #[must_use]
    pub fn at(&self, name: u64) -> Seen {
        let names = self.window.with(name);
        let Some(count) = self.counts.get(&names) else { return Seen::Other };
        match self.places.get(&(names, count + 1)) {
            Some(Seen::Planned(number) | Seen::Near(number)) if *number < self.next => Seen::Other,
            Some(seen) => *seen,
            None => Seen::Other,
        }
    }

    /// The kernel is launched.
    pub fn pass(&mut self, name: u64) {
        let names = self.window.push(name);
        if let Some(count) = self.counts.get_mut(&names) {
            *count += 1;
        }
    }

    /// How long it took in the profile from where this checkpoint is near to where it is.
    #[must_use]
    pub fn lead(&self, number: usize) -> Nanos {
        self.leads.get(number).copied().unwrap_or_default()
    }

    /// Whether the program has come to any place of a sort that the plan names, if that names any.
    #[must_use]
    pub fn is_recognised(&self) -> bool {
        self.counts.is_empty() || self.counts.values().any(|count| *count > 0)
    }

    /// The checkpoint with this number has been taken or given up, and all before it.
    pub fn done(&mut self, number: usize) {
        self.next = self.next.max(number.saturating_add(1)).min(self.leads.len());
    }

    /// The number of the next checkpoint.
    #[must_use]
    pub fn next(&self) -> usize {
        self.next
    }

    /// For an image.
    #[must_use]
    pub fn passed(&self) -> Passed {
        let mut counts: Vec<_> = self.counts.iter().map(|(names, count)| (*names, *count)).collect();
        counts.sort_unstable();
        Passed { window: self.window.clone(), counts, next: self.next }
    }
}

fn lead(checkpoint: &Checkpoint) -> Nanos {
    let ahead = checkpoint.ahead_ns.unwrap_or(checkpoint.at_ns);
    Nanos(checkpoint.at_ns.0.saturating_sub(ahead.0))
}

/// A kernel's name, as [`Follower`] wants it.
#[must_use]
pub fn name(kernel: &str) -> u64 {
    NamesHash::of_name(kernel)
}
