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

/// An access to where nothing is, and its lane. (Boxed: what usually happens is that nothing is returned.)
pub type Misplaced = Box<(usize, Fault)>;

/// Memory that one warp can reach.
pub struct Spaces<'a> {
    memory: &'a Memory,
    extents: Arc<Extents>,
    /// The part of the extents that was used last, and the one before.
    recent: (u64, u64),
    older: (u64, u64),
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
            older: (0, 0),
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

    /// The block's shared memory, and its size.
    pub fn shared(&self) -> (*const u8, u64) {
        (self.shared, self.shared_bytes)
    }

    /// Turns the addresses of the lanes of `mask` into host addresses, each good for `size` bytes. Other lanes get the address of
    /// an active one, so that reading is safe in every lane.
    ///
    /// # Errors
    /// With the lane, for the first lane whose access is misaligned or out of bounds.
    #[inline(always)]
    pub fn resolve<const SPACE: Space>(
        &mut self,
        addresses: &mut [u64; LANES],
        mask: u32,
        size: u64,
    ) -> Result<(), Misplaced> {
        if mask != !0 {
            let first = addresses[mask.trailing_zeros() as usize & (LANES - 1)];
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = if mask >> lane & 1 != 0 { *address } else { first };
            }
        }
        let (start, bytes) = match SPACE {
            SHARED => (0, self.shared_bytes),
            LOCAL => (0, self.local_bytes),
            PARAM => (0, self.param_bytes),
            GLOBAL => (self.recent.0, self.recent.1 - self.recent.0),
            _ => (SHARED_WINDOW, 3 * WINDOW_BYTES),
        };
        let mut low_bits = 0;
        if SPACE == GENERIC {
            let mut windows = 0;
            for address in addresses.iter() {
                low_bits |= address;
                windows |= u64::from(address.wrapping_sub(start) < bytes);
            }
            if low_bits & (size - 1) != 0 {
                return Err(misaligned(addresses, size));
            }
            return if windows == 0 {
                self.resolve::<GLOBAL>(addresses, !0, size)
            } else {
                self.resolve_generic(addresses, size)
            };
        }
        let mut outside = u64::from(bytes < size);
        let last = bytes.wrapping_sub(size);
        for address in addresses.iter() {
            low_bits |= address;
            outside |= u64::from(address.wrapping_sub(start) > last);
        }
        if low_bits & (size - 1) != 0 {
            return Err(misaligned(addresses, size));
        }
        if outside != 0 {
            return match SPACE {
                GLOBAL => self.find_global(addresses, size),
                _ => Err(out_of_bounds(addresses, bytes, size)),
            };
        }
        let (base, stride) = match SPACE {
            GLOBAL => return Ok(()),
            SHARED => (self.shared as u64, 0),
            LOCAL => (self.local as u64, bytes),
            _ => (self.params as u64, 0),
        };
        for (lane, address) in addresses.iter_mut().enumerate() {
            *address = address.wrapping_add(base + stride * lane as u64);
        }
        Ok(())
    }

    #[inline(never)]
    fn find_global(&mut self, addresses: &[u64; LANES], size: u64) -> Result<(), Misplaced> {
        std::mem::swap(&mut self.recent, &mut self.older);
        let (start, end) = self.recent;
        let within = |address: &u64| *address >= start && *address < end && size <= end - *address;
        if addresses.iter().all(within) {
            return Ok(());
        }
        for (lane, &address) in addresses.iter().enumerate() {
            let found = match self.extents.find(address, size) {
                // Memory may have been mapped since this slice began.
                None => {
                    self.extents = self.memory.extents();
                    self.extents.find(address, size)
                }
                found => found,
            };
            self.recent =
                found.ok_or_else(|| Box::new((lane, Fault::new(FaultKind::IllegalAddress, address))))?;
        }
        Ok(())
    }

    #[inline(never)]
    fn resolve_generic(&mut self, addresses: &mut [u64; LANES], size: u64) -> Result<(), Misplaced> {
        for (lane, address) in addresses.iter_mut().enumerate() {
            *address = self.resolve_one(lane, *address, size).map_err(|fault| Box::new((lane, fault)))?;
        }
        Ok(())
    }

    /// The host address for a generic address of one lane.
    fn resolve_one(&mut self, lane: usize, address: u64, size: u64) -> Result<u64, Fault> {
        let mut all = [0; LANES];
        let only = 1 << lane;
        let resolved = if address.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES {
            all[lane] = address - SHARED_WINDOW;
            self.resolve::<SHARED>(&mut all, only, size)
        } else if address.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES {
            all[lane] = address - LOCAL_WINDOW;
            self.resolve::<LOCAL>(&mut all, only, size)
        } else if address.wrapping_sub(PARAM_WINDOW) < WINDOW_BYTES {
            all[lane] = address - PARAM_WINDOW;
            self.resolve::<PARAM>(&mut all, only, size)
        } else {
            all[lane] = address;
            self.resolve::<GLOBAL>(&mut all, only, size)
        };
        resolved.map_err(|misplaced| Fault { address, ..misplaced.1 })?;
        Ok(all[lane])
    }

    /// Reads an element of a texture or surface: at most 16 bytes at an address of device memory.
    ///
    /// # Errors
    /// When nothing is there any more.
    pub fn read_element(&mut self, lane: usize, address: u64, bytes: u64) -> Result<[u8; 16], Fault> {
        let at = self.resolve_one(lane, address, bytes)? as *const u8;
        let mut element = [0; 16];
        let bytes = (bytes as usize).min(element.len());
        // SAFETY: `resolve_one` found that many bytes there, which stay while the extents are held.
        unsafe { std::ptr::copy_nonoverlapping(at, element.as_mut_ptr(), bytes) };
        Ok(element)
    }

    /// Writes an element of a surface.
    ///
    /// # Errors
    /// When nothing is there any more.
    pub fn write_element(&mut self, lane: usize, address: u64, element: &[u8]) -> Result<(), Fault> {
        let at = self.resolve_one(lane, address, element.len() as u64)? as *mut u8;
        // SAFETY: `resolve_one` found that many bytes there, which stay while the extents are held.
        unsafe { std::ptr::copy_nonoverlapping(element.as_ptr(), at, element.len()) };
        Ok(())
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
        let at = self.resolve_one(lane, address, 1)?;
        // SAFETY: `resolve_one` found a byte there.
        Ok(unsafe { (at as *const u8).read_volatile() })
    }

    /// Writes the low `bytes` bytes of a value, at most 8, into a lane's local memory.
    ///
    /// # Errors
    /// When that is out of bounds.
    pub fn write_local(&mut self, lane: usize, address: u64, value: u64, bytes: u64) -> Result<(), Fault> {
        let value = value.to_le_bytes();
        let bytes = bytes.min(value.len() as u64);
        let at = self.resolve_one(lane, LOCAL_WINDOW + address, bytes)? as *mut u8;
        // SAFETY: `resolve_one` checked that many bytes, and the value has as many.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), at, bytes as usize) };
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
fn misaligned(addresses: &[u64; LANES], size: u64) -> Misplaced {
    first(addresses, FaultKind::Misaligned, |address| address & (size - 1) != 0)
}

#[cold]
fn out_of_bounds(addresses: &[u64; LANES], bytes: u64, size: u64) -> Misplaced {
    first(addresses, FaultKind::IllegalAddress, |address| bytes < size || address > bytes - size)
}

/// Lanes that are not active repeat an active one's address, and so its error.
fn first(addresses: &[u64; LANES], kind: FaultKind, wrong: impl Fn(u64) -> bool) -> Misplaced {
    let lane = addresses.iter().position(|address| wrong(*address)).unwrap_or(0);
    Box::new((lane, Fault::new(kind, addresses[lane])))
}
