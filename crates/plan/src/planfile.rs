//! A plan, and the file that a later run of the program acts on: versioned JSON (`docs/planning.md`).

use crate::Error;
use crate::follow::Mark;
use crate::model::Model;
use crate::units::Nanos;
use serde::{Deserialize, Serialize};

/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;
/// What a plan says it is.
const FORMAT: &str = "dormouse-plan";

/// What is checkpointed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Processor and device.
    Job,
    /// The device's half.
    Device,
    /// The processor's half.
    Cpu,
}

impl Part {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Device => "device",
            Self::Cpu => "cpu",
        }
    }
}

/// What is least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The checkpoints' costs.
    Cost,
    /// The same, of what has changed since the checkpoint before.
    IncrementalCost,
    /// The expected time of the run.
    RunTime,
}

/// A plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Which model it is of.
    pub model: Model,
    /// What is least.
    pub objective: Objective,
    /// When the program ended in the profile.
    pub end_ns: Nanos,
    /// The job, or device and processor.
    pub parts: Vec<PartPlan>,
}

/// The checkpoints of one part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartPlan {
    /// Which part.
    pub part: Part,
    /// The longest gap that is allowed, if it is bounded.
    pub interval_ns: Option<Nanos>,
    /// The longest gap that is left.
    pub longest_gap_ns: Nanos,
    /// Bytes of all its checkpoints.
    pub bytes: u64,
    /// What they cost together, in seconds, each for itself.
    pub cost_s: f64,
    /// In order.
    pub checkpoints: Vec<Checkpoint>,
}

/// One checkpoint, and what its boundary is recognised by.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The number of the kernel before which it is, or of the processor's interval.
    pub boundary: u32,
    /// The kernel.
    pub kernel: Option<String>,
    /// A hash of the names of all kernels before it, in order: [`NamesHash`](crate::model::NamesHash).
    pub names_hash: Option<String>,
    /// The same in a run that may differ a little: [`Follower`](crate::follow::Follower).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// The boundary at which to get ready, if there is one between the last checkpoint and this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Mark>,
    /// When that was in the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ns: Option<Nanos>,
    /// When it was in the profile.
    pub at_ns: Nanos,
    /// When it is to be taken wherever the program is.
    pub latest_ns: Nanos,
    /// Bytes of the processor's half.
    pub cpu_bytes: u64,
    /// Bytes of the device's half that were live.
    pub gpu_bytes: u64,
    /// What it costs, in seconds.
    pub cost_s: f64,
}

#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    version: u64,
    #[serde(flatten)]
    plan: &'a Plan,
}

/// What every version has.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

impl Plan {
    /// The file's text.
    ///
    /// # Errors
    /// [`Error::Damaged`] never, for plans that this library makes.
    pub fn to_json(&self) -> Result<String, Error> {
        let written = Written { format: FORMAT, version: VERSION, plan: self };
        let text = serde_json::to_string_pretty(&written);
        text.map(|text| text + "\n")
            .map_err(|error| Error::damaged(format!("the plan cannot be written: {error}")))
    }

    /// Reads a plan, and checks that its checkpoints are in order and within the program.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Version`].
    pub fn from_json(text: &[u8]) -> Result<Self, Error> {
        let broken = |error: serde_json::Error| Error::damaged(format!("this is no plan: {error}"));
        let head: Head = serde_json::from_slice(text).map_err(broken)?;
        if head.format != FORMAT {
            return Err(Error::damaged(format!("this is no plan: its format is {:?}", head.format)));
        }
        if head.version != VERSION {
            let advice = "make it again with `dormouse plan`";
            return Err(Error::Version { what: "plan", found: head.version, known: VERSION, advice });
        }
        let plan: Self = serde_json::from_slice(text).map_err(broken)?;
        for part in &plan.parts {
            let ascend = part.checkpoints.is_sorted_by(|a, b| a.boundary < b.boundary && a.at_ns <= b.at_ns);
            if !ascend
                || part.checkpoints.iter().any(|each| each.at_ns > plan.end_ns || each.latest_ns < each.at_ns)
            {
                return Err(Error::damaged(format!(
                    "the plan's checkpoints of the {} are not in order",
                    part.part.name()
                )));
            }
        }
        Ok(plan)
    }
}
