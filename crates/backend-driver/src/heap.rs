//! Heaps of kernels: the driver keeps them to itself. They lie in low addresses that it asks for by itself, and it does not tell
//! what in them is handed out.

use crate::driver::Driver;
use backend::{DeviceHeap, Heaps, RawContext, Result};
use wire::CuError;

impl Heaps for Driver {
    fn heap(&self, _: RawContext) -> Result<Option<DeviceHeap>> {
        Err(CuError::NOT_SUPPORTED)
    }

    fn heap_restore(&self, _: RawContext, _: &DeviceHeap) -> Result<()> {
        Err(CuError::NOT_SUPPORTED)
    }
}
