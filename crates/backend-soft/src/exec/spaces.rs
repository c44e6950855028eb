//! State spaces: from the addresses of a warp's lanes to host memory, or to an error.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{Fault, FaultKind, LANES};
use crate::memory::{Extents, LOCAL_WINDOW, Memory, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};

/// A state space, as a constant parameter of handlers.
pub type Space = u8;
/// Generic addresses.
pub const GENERIC: Space = 0;
/// `.global` and `.const`.
pub const GLOBAL: Space = 1;
/// `.shared`
pub const SHARED: Space = 2;
/// `.local`
pub const LOCAL: Space = 3;
/// A kernel's `.param`.
pub const PARAM: Space = 4;

/// Memory that one warp can reach.
pub struct Spaces<'a> {
    memory: &'a Memory,
    extents: Arc<Extents>,
    /// The part of the extents that was used last.
    recent: (u64, u64),
    shared: *mut u8,
    shared_bytes: u64,
    local: *mut u8,
    local_bytes: u64,
    params: *const u8,
    param_bytes: u64,
    owned: PhantomData<&'a mut [u8]>,
}

impl<'a> Spaces<'a> {
    /// Device memory, a block's shared memory and a launch's parameters; no local memory yet.
    pub fn new(memory: &'a Memory, shared: &'a mut [u64], shared_bytes: u64, params: &'a [u64]) -> Self {
        debug_assert!(shared_bytes <= std::mem::size_of_val(shared) as u64);
        Self {
            memory,
            extents: memory.extents(),
            recent: (0, 0),
            shared: shared.as_mut_ptr().cast(),
            shared_bytes,
            local: std::ptr::null_mut(),
            local_bytes: 0,
            params: params.as_ptr().cast(),
            param_bytes: std::mem::size_of_val(params) as u64,
            owned: PhantomData,
        }
    }

    /// Goes to a warp's local memory: 32 times `lane_bytes`.
    ///
    /// # Safety
    /// `local` is neither moved, dropped nor accessed otherwise while this value refers to it.
    pub unsafe fn set_local(&mut self, local: &mut [u64], lane_bytes: u64) {
        debug_assert!(lane_bytes * LANES as u64 <= std::mem::size_of_val(local) as u64);
        self.local = local.as_mut_ptr().cast();
        self.local_bytes = lane_bytes;
    }

    /// The host addresses for the lanes of `mask`; those of other lanes mean nothing. Each is good for `size` bytes.
    ///
    /// # Errors
    /// With the lane, for the first lane whose access is misaligned or out of bounds.
    #[inline(always)]
    pub fn resolve<const SPACE: Space>(
        &mut self,
        addresses: &[u64; LANES],
        mask: u32,
        size: u64,
    ) -> Result<[u64; LANES], (usize, Fault)> {
        let live = |lane: usize| mask >> lane & 1 != 0;
        let mut low_bits = 0;
        let (mut low, mut high) = (u64::MAX, 0);
        for (lane, &address) in addresses.iter().enumerate() {
            low_bits |= if live(lane) { address } else { 0 };
            low = low.min(if live(lane) { address } else { u64::MAX });
            high = high.max(if live(lane) { address } else { 0 });
        }
        if low_bits & (size - 1) != 0 {
            return Err(misaligned(addresses, mask, size));
        }
        match SPACE {
            GLOBAL => {
                if low >= self.recent.0 && high <= self.recent.1.wrapping_sub(size) && self.recent.1 >= size {
                    return Ok(*addresses);
                }
                self.resolve_global(addresses, mask, size)
            }
            SHARED | LOCAL | PARAM => {
                let bytes = match SPACE {
                    SHARED => self.shared_bytes,
                    LOCAL => self.local_bytes,
                    _ => self.param_bytes,
                };
                if bytes < size || high > bytes - size {
                    return Err(outside(addresses, mask, bytes, size));
                }
                let base = match SPACE {
                    SHARED => self.shared as u64,
                    LOCAL => self.local as u64,
                    _ => self.params as u64,
                };
                let stride = if SPACE == LOCAL { bytes } else { 0 };
                Ok(std::array::from_fn(|lane| base.wrapping_add(addresses[lane]) + stride * lane as u64))
            }
            _ => {
                let window = |address: u64| address.wrapping_sub(SHARED_WINDOW) < 3 * WINDOW_BYTES;
                if !window(low) && !window(high) && (low > SHARED_WINDOW || high < SHARED_WINDOW) {
                    return self.resolve::<GLOBAL>(addresses, mask, size);
                }
                self.resolve_generic(addresses, mask, size)
            }
        }
    }

    #[cold]
    fn resolve_global(
        &mut self,
        addresses: &[u64; LANES],
        mask: u32,
        size: u64,
    ) -> Result<[u64; LANES], (usize, Fault)> {
        for (lane, &address) in addresses.iter().enumerate().filter(|(lane, _)| mask >> lane & 1 != 0) {
            let found = match self.extents.find(address, size) {
                // Memory may have been mapped since this slice began.
                None => {
                    self.extents = self.memory.extents();
                    self.extents.find(address, size)
                }
                found => found,
            };
            self.recent = found.ok_or((lane, Fault::new(FaultKind::IllegalAddress, address)))?;
        }
        Ok(*addresses)
    }

    #[inline(never)]
    fn resolve_generic(
        &mut self,
        addresses: &[u64; LANES],
        mask: u32,
        size: u64,
    ) -> Result<[u64; LANES], (usize, Fault)> {
        let mut out = [0; LANES];
        for (lane, &address) in addresses.iter().enumerate().filter(|(lane, _)| mask >> lane & 1 != 0) {
            let mut one = [0; LANES];
            let only = 1 << lane;
            let resolved = if address.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES {
                one[lane] = address - SHARED_WINDOW;
                self.resolve::<SHARED>(&one, only, size)
            } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES {
                one[lane] = address - LOCAL_WINDOW;
                self.resolve::<LOCAL>(&one, only, size)
            } else if address.wrapping_sub(PARAM_WINDOW) < WINDOW_BYTES {
                one[lane] = address - PARAM_WINDOW;
                self.resolve::<PARAM>(&one, only, size)
            } else {
                one[lane] = address;
                self.resolve::<GLOBAL>(&one, only, size)
            };
            out[lane] = resolved.map_err(|(lane, fault)| (lane, Fault { address, ..fault }))?[lane];
        }
        Ok(out)
    }

    /// Reads bytes at a generic address of one lane, up to `limit` or to the first zero byte (which is left out).
    ///
    /// # Errors
    /// When it runs out of memory that exists.
    pub fn read_string(&mut self, lane: usize, address: u64, limit: usize) -> Result<Vec<u8>, Fault> {
        let mut text = Vec::new();
        while text.len() < limit {
            match self.read_byte(lane, address.wrapping_add(text.len() as u64))? {
                0 => break,
                byte => text.push(byte),
            }
        }
        Ok(text)
    }

    /// Reads a little-endian value of at most 8 bytes at a generic address of one lane.
    ///
    /// # Errors
    /// When nothing is there.
    pub fn read_value(&mut self, lane: usize, address: u64, bytes: u64) -> Result<u64, Fault> {
        (0..bytes).try_fold(0, |value, index| {
            Ok(value | u64::from(self.read_byte(lane, address.wrapping_add(index))?) << (8 * index))
        })
    }

    fn read_byte(&mut self, lane: usize, address: u64) -> Result<u8, Fault> {
        let mut addresses = [0; LANES];
        addresses[lane] = address;
        let at = self.resolve::<GENERIC>(&addresses, 1 << lane, 1).map_err(|(_, fault)| fault)?[lane];
        // SAFETY: `resolve` found a byte there.
        Ok(unsafe { (at as *const u8).read_volatile() })
    }

    /// Writes 4 bytes into a lane's local memory.
    ///
    /// # Errors
    /// When that is out of bounds.
    pub fn write_local(&mut self, lane: usize, address: u64, value: u32) -> Result<(), Fault> {
        let mut addresses = [0; LANES];
        addresses[lane] = address;
        let at = self.resolve::<LOCAL>(&addresses, 1 << lane, 4).map_err(|(_, fault)| fault)?[lane];
        // SAFETY: `resolve` checked bounds and alignment.
        unsafe { (at as *mut u32).write(value) };
        Ok(())
    }

    /// Copies bytes between two places of every lane's local memory.
    ///
    /// # Errors
    /// When either is out of bounds.
    pub fn copy_local(&mut self, dst: u64, src: u64, bytes: u64, mask: u32) -> Result<(), Fault> {
        let fits = |at: u64| at <= self.local_bytes && bytes <= self.local_bytes - at;
        if !fits(dst) || !fits(src) {
            return Err(Fault::new(FaultKind::StackOverflow, dst.max(src)));
        }
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let start = self.local_bytes * lane as u64;
            // SAFETY: both ranges lie in this lane's part of the local memory, checked above; they may overlap.
            unsafe {
                std::ptr::copy(
                    self.local.add((start + src) as usize),
                    self.local.add((start + dst) as usize),
                    bytes as usize,
                );
            }
        }
        Ok(())
    }
}

#[cold]
fn misaligned(addresses: &[u64; LANES], mask: u32, size: u64) -> (usize, Fault) {
    first(addresses, mask, FaultKind::Misaligned, |address| address & (size - 1) != 0)
}

#[cold]
fn outside(addresses: &[u64; LANES], mask: u32, bytes: u64, size: u64) -> (usize, Fault) {
    first(addresses, mask, FaultKind::IllegalAddress, |address| bytes < size || address > bytes - size)
}

fn first(addresses: &[u64; LANES], mask: u32, kind: FaultKind, wrong: impl Fn(u64) -> bool) -> (usize, Fault) {
    let lane = (0..LANES).find(|lane| mask >> lane & 1 != 0 && wrong(addresses[*lane])).unwrap_or(0);
    (lane, Fault::new(kind, addresses[lane]))
}
