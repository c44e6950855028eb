//! How the application's handles are written into a session's state: as their numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wire::{
    ContextId, EventId, FunctionId, GraphExecId, KernelId, LibraryId, ModuleId, PhysicalId, PinnedId, PoolId,
    StreamId,
};

/// A virtual handle, for `#[serde(with = "crate::ids")]`.
pub(crate) trait Id: Copy {
    fn number(self) -> u32;
    fn from_number(number: u32) -> Self;
}

macro_rules! ids {
    ($($name:ident),*) => {$(
        impl Id for $name {
            fn number(self) -> u32 {
                self.0
            }
            fn from_number(number: u32) -> Self {
                Self(number)
            }
        }
    )*};
}
ids!(
    ContextId,
    EventId,
    FunctionId,
    GraphExecId,
    KernelId,
    LibraryId,
    ModuleId,
    PhysicalId,
    PinnedId,
    PoolId,
    StreamId
);

pub(crate) fn serialize<T: Id, S: Serializer>(id: &T, to: S) -> Result<S::Ok, S::Error> {
    id.number().serialize(to)
}

pub(crate) fn deserialize<'de, T: Id, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    u32::deserialize(from).map(T::from_number)
}
