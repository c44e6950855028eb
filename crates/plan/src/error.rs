//! What can be wrong with a profile, a plan or what is asked for.

use crate::units::Nanos;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No time above zero.
    #[error("the mean time between failures is {0}: it must be a time above zero, such as 40h")]
    Mtbf(String),
    /// Zero bytes a second.
    #[error("the bandwidth is zero: nothing would ever be written")]
    Bandwidth,
    /// An interval that fails more often than not, or is none.
    #[error(
        "an interval of {interval} is no use with a mean time between failures of {mtbf}: it must be above zero and shorter"
    )]
    Interval {
        /// The interval.
        interval: Nanos,
        /// What it must be shorter than.
        mtbf: Nanos,
    },
    /// A parameter of the failure law or of the costs.
    #[error("{what} is {value}: it must be {must}")]
    Parameter {
        /// Which.
        what: &'static str,
        /// As it was given.
        value: String,
        /// What it must be.
        must: &'static str,
    },
    /// Sums beyond 127 bits, times beyond 64.
    #[error("{what} overflow: no machine has that much; the profile is damaged or a bandwidth absurd")]
    Overflow {
        /// What.
        what: &'static str,
    },
    /// Later is earlier.
    #[error("time goes backwards: {what} {number} is at {at}, {back} before what came before it")]
    TimeGoesBack {
        /// `boundary` or `CPU interval`.
        what: &'static str,
        /// Its number.
        number: u64,
        /// Its time.
        at: Nanos,
        /// By how much.
        back: Nanos,
    },
    /// More live than there is.
    #[error("boundary {number} has {live} bytes live of {allocated} allocated")]
    MoreLiveThanAllocated {
        /// Its number.
        number: u64,
        /// Bytes live.
        live: u64,
        /// Bytes allocated.
        allocated: u64,
    },
    /// A stretch without a boundary, longer than the interval.
    #[error(
        "no plan keeps an interval of {interval}: {what} from {from} to {to}, and nothing can be checkpointed in between; it needs an interval of {lasts} or more, or a shorter kernel"
    )]
    TooLong {
        /// `kernel 7 ("sgemm") runs`, or what else takes so long.
        what: String,
        /// Where it begins.
        from: Nanos,
        /// Where it ends.
        to: Nanos,
        /// The interval asked for.
        interval: Nanos,
        /// The shortest that would do.
        lasts: Nanos,
    },
    /// A count that cannot be.
    #[error(
        "{asked} checkpoints cannot be: an interval of {interval} takes at least {least}, and there are {most} boundaries"
    )]
    Count {
        /// As asked.
        asked: u32,
        /// The fewest.
        least: u32,
        /// The most.
        most: u32,
        /// The interval.
        interval: Nanos,
    },
    /// An offset for which there is no ideal time to move from.
    #[error(
        "an offset of {offset} does not go with a checkpoint every {spacing}: it may be half of that at most; without --offset the plan chooses freely and is never worse"
    )]
    Offset {
        /// As asked.
        offset: Nanos,
        /// Between two ideal times.
        spacing: Nanos,
    },
    /// No boundary near an ideal time that keeps the interval.
    #[error(
        "no boundary within {offset} of {ideal}, where checkpoint {number} belongs, keeps an interval of {interval}; a longer offset would, or none: then the plan chooses freely"
    )]
    NothingNear {
        /// Which checkpoint, counted from one.
        number: u32,
        /// Where it belongs.
        ideal: Nanos,
        /// The offset.
        offset: Nanos,
        /// The interval.
        interval: Nanos,
    },
    /// Two wishes of which one at most can be had.
    #[error("{0}")]
    Together(&'static str),
    /// Not a profile, or a damaged one.
    #[error("{0}")]
    Damaged(String),
    /// Of another time.
    #[error("this {what} has format version {found}; this Dormouse reads version {known}: {advice}")]
    Version {
        /// `profile` or `plan`.
        what: &'static str,
        /// Its version.
        found: u64,
        /// Ours.
        known: u64,
        /// What to do.
        advice: &'static str,
    },
}

impl Error {
    /// About a profile's or plan's bytes.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}
