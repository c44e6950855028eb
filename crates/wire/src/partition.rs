//! Sets of a device's multiprocessors (`CUdevResource`), which green contexts run on. The device library's own descriptions are its
//! secret; here a set is how one comes to it: what is split, and which parts are taken.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use serde::{Deserialize, Serialize};

/// What a set has, as `CUdevSmResource`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SmCount {
    /// Multiprocessors.
    pub count: u32,
    /// The smallest part it can be split into.
    pub minimum: u32,
    /// What the sizes of parts are multiples of.
    pub alignment: u32,
}

impl Wire for SmCount {
    fn encode(&self, to: &mut Encoder<'_>) {
        (self.count, (self.minimum, self.alignment)).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (count, (minimum, alignment)) = Wire::decode(from)?;
        Ok(Self { count, minimum, alignment })
    }
}

/// `cuDevSmResourceSplitByCount`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SmSplit {
    /// Into how many parts at most.
    pub groups: u32,
    /// How many multiprocessors each has at least.
    pub minimum: u32,
    /// `CUdevSmResourceSplit_flags`.
    pub flags: u32,
}

impl Wire for SmSplit {
    fn encode(&self, to: &mut Encoder<'_>) {
        (self.groups, (self.minimum, self.flags)).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (groups, (minimum, flags)) = Wire::decode(from)?;
        Ok(Self { groups, minimum, flags })
    }
}

/// The part of a split that is none of its groups.
pub const SM_REMAINDER: u32 = u32::MAX;

/// A split, and the parts of it that are taken together: groups by number, or [`SM_REMAINDER`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SmStep {
    /// The split.
    pub split: SmSplit,
    /// The parts.
    pub taken: Vec<u32>,
}

impl Wire for SmStep {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.split.encode(to);
        self.taken.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self { split: Wire::decode(from)?, taken: Wire::decode(from)? })
    }
}

/// A set of multiprocessors: the device's, split and taken of step by step.
pub type SmSet = Vec<SmStep>;

/// The most steps of a set.
pub const SM_STEPS_MAX: usize = 16;
/// The most groups that a split may make.
pub const SM_GROUPS_MAX: u32 = 1024;
