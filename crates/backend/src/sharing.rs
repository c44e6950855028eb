//! The chapter of [`Backend`](crate::Backend) on what the servers of a job share with each other.

use crate::{RawBlock, RawContext, RawEvent, RawPhysical, Result};
use std::os::fd::OwnedFd;

/// What it takes to use an event of another process of the same device library.
#[derive(Debug)]
pub struct SharedEvent {
    /// A descriptor, where the device library needs one.
    pub file: Option<OwnedFd>,
    /// Bytes that mean something to the device library alone.
    pub bytes: Vec<u8>,
}

/// Memory and events of other processes.
pub trait Sharing {
    /// The memory behind a block, as [`Backend::physical_create`](crate::Backend::physical_create) gives it: to be released by itself.
    fn block_physical(&self, block: RawBlock) -> Result<RawPhysical>;
    /// A descriptor by which another process gets to the memory. It holds the memory as long as it is open.
    fn physical_export(&self, physical: RawPhysical) -> Result<OwnedFd>;
    /// The memory behind such a descriptor: `bytes` bytes of `device`.
    fn physical_import(&self, device: usize, file: OwnedFd, bytes: u64) -> Result<RawPhysical>;
    /// What another process needs to use an event, which was made for that (`CU_EVENT_INTERPROCESS`).
    fn event_export(&self, ctx: RawContext, event: RawEvent) -> Result<SharedEvent>;
    /// An event of another process: records on either side are what both see.
    fn event_import(&self, ctx: RawContext, shared: SharedEvent) -> Result<RawEvent>;
}
