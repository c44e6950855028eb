//! Messages that wait for memory: in a session that was restored and goes on before all its memory is filled.

use super::Session;
use super::reached::Reached;
use crate::memory::DeviceMemory;
use crate::restore::{FillError, Filling, Progress};
use backend::Range;
use std::sync::Arc;
use wire::Request;

impl Session {
    fn to_be_filled(&self) -> Option<&Arc<Filling>> {
        self.filling.get().filter(|filling| !filling.is_over())
    }

    /// How far the filling of memory is, in a session that did not wait for it.
    #[must_use]
    pub fn filling(&self) -> Option<Progress> {
        self.filling.get().map(|filling| filling.progress())
    }

    /// Waits until all memory is filled, and hears now and then how far it is.
    ///
    /// # Errors
    /// Why some never will be.
    pub fn finish_filling(&self, progress: impl FnMut(Progress)) -> Result<(), Arc<FillError>> {
        self.filling.get().map_or(Ok(()), |filling| filling.finish(progress))?;
        self.compare_with_source();
        Ok(())
    }

    /// Whether some memory does not hold yet what it is to hold.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.to_be_filled().is_some()
    }

    /// Waits until whatever memory a message can reach is filled; false when the session ends first.
    pub(super) fn await_filled(&self, request: &Request) -> bool {
        let Some(filling) = self.to_be_filled() else { return true };
        match self.needs(request) {
            Reached::Nothing => true,
            Reached::Named(ranges) => {
                let ranges: Vec<Range> = ranges.iter().map(convert).collect();
                filling.await_ranges(&ranges, || self.is_ending())
            }
            Reached::Anything => self.await_all_filled(),
        }
    }

    /// The same for all memory.
    pub(super) fn await_all_filled(&self) -> bool {
        self.to_be_filled().is_none_or(|filling| filling.await_all(|| self.is_ending()))
    }

    /// The same for some of it.
    pub(crate) fn await_range_filled(&self, range: Range) -> bool {
        self.to_be_filled().is_none_or(|filling| filling.await_ranges(&[range], || self.is_ending()))
    }

    /// What has to be filled before a message is executed: what its work can reach, and what it would free. Whatever is not known to
    /// be harmless is not.
    fn needs(&self, request: &Request) -> Reached {
        match Reached::by(request) {
            Reached::Nothing => match request {
                Request::MemFree(m) => self.needs_allocation(m.address),
                Request::MemFreeAsync(m) => self.needs_allocation(m.address),
                // With shadow pages it is cleared, and so is nothing else that is new.
                Request::ManagedAlloc(m) if !self.shadows.are_wanted(m.bytes) => Reached::Nothing,
                Request::GetFacts(_)
                | Request::ContextCreate(_)
                | Request::ContextSynchronize(_)
                | Request::ContextGetLimit(_)
                | Request::ContextSetCacheConfig(_)
                | Request::PeerAccess(_)
                | Request::CanAccessPeer(_)
                | Request::TakeOutput(_)
                | Request::Notice(_)
                | Request::MemAlloc(_)
                | Request::Exclude(_)
                | Request::MemInfo(_)
                | Request::PinnedAlloc(_)
                | Request::PinnedFree(_)
                | Request::SlabFree(_)
                | Request::HostRegister(_)
                | Request::ManagedKeep(_)
                | Request::ManagedLeave(_)
                | Request::SlotWait(_)
                | Request::CopyToSlotWait(_)
                | Request::StreamCreate(_)
                | Request::StreamDestroy(_)
                | Request::StreamSynchronize(_)
                | Request::StreamQuery(_)
                | Request::StreamWaitEvent(_)
                | Request::StreamGetAttribute(_)
                | Request::StreamSetAttribute(_)
                | Request::EventCreate(_)
                | Request::EventDestroy(_)
                | Request::EventRecord(_)
                | Request::EventRecordNow(_)
                | Request::EventQuery(_)
                | Request::EventSynchronize(_)
                | Request::EventElapsed(_)
                | Request::ModuleLoad(_)
                | Request::ModuleGetFunction(_)
                | Request::ModuleGetGlobal(_)
                | Request::ModuleListFunctions(_)
                | Request::LibraryLoad(_)
                | Request::LibraryGetKernel(_)
                | Request::LibraryGetGlobal(_)
                | Request::LibraryListKernels(_)
                | Request::LibraryGetModule(_)
                | Request::LibraryManaged(_)
                | Request::KernelGetFunction(_)
                | Request::FunctionGetAttribute(_)
                | Request::FunctionSetAttribute(_)
                | Request::FunctionSetCacheConfig(_)
                | Request::OccupancyBlocks(_)
                | Request::OccupancyShared(_)
                | Request::OccupancyClusters(_)
                | Request::HostFunction(_)
                | Request::GraphInstantiate(_)
                | Request::GraphUpdate(_)
                | Request::GraphNodeEnable(_)
                | Request::TextureCreate(_)
                | Request::TextureDestroy(_)
                | Request::SurfaceCreate(_)
                | Request::SurfaceDestroy(_)
                | Request::TensorMapEncode(_)
                | Request::MemAllocAsync(_)
                | Request::PoolCreate(_)
                | Request::PoolGetAttribute(_)
                | Request::AddressReserve(_)
                | Request::PhysicalCreate(_)
                | Request::PhysicalProperties(_) => Reached::Nothing,
                _ => Reached::Anything,
            },
            work => work,
        }
    }

    /// The block of the allocation that begins there, which may go with it; all memory where none does.
    fn needs_allocation(&self, address: u64) -> Reached {
        let block = self.devices.iter().find_map(|memory: &DeviceMemory| {
            memory.find(address).filter(|found| found.range.base == address)?;
            memory.block_around(address)
        });
        block.map_or(Reached::Anything, |Range { base, bytes }| {
            Reached::Named(vec![shadow::Range { base, bytes }])
        })
    }
}

fn convert(range: &shadow::Range) -> Range {
    Range { base: range.base, bytes: range.bytes }
}
