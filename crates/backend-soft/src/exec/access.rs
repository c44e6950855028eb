//! Handlers that touch memory, made from closures as those of [`compute`](super::compute) are.
//!
//! Device memory is read and written through raw pointers only, by every thread of the process: no reference to it is ever
//! made. Where a program races, values may be old or new, as on a GPU; aligned elements are not torn, because they are moved by
//! single instructions.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::compute::{conjure, wide};
use super::spaces::{LOCAL, SHARED, Space};
use super::{Access, Elem, Fault, Inst, LANES, Lanes};

/// Address operand: the base is a 32-bit register.
pub const NARROW: u8 = 1;
/// Address operand: relative to the frame's local memory.
pub const IN_FRAME: u8 = 2;

/// A value as it lies in memory.
///
/// # Safety
/// Any bits are a value.
pub unsafe trait Stored: Copy + Default + 'static {}
// SAFETY: integers and floating-point numbers.
unsafe impl Stored for u8 {}
// SAFETY: as above.
unsafe impl Stored for i8 {}
// SAFETY: as above.
unsafe impl Stored for u16 {}
// SAFETY: as above.
unsafe impl Stored for i16 {}
// SAFETY: as above.
unsafe impl Stored for u32 {}
// SAFETY: as above.
unsafe impl Stored for i32 {}
// SAFETY: as above.
unsafe impl Stored for u64 {}

/// The addresses of an access.
///
/// # Safety
/// As [`Access`].
#[inline(always)]
unsafe fn addresses(lanes: &Lanes<'_>, inst: &Inst) -> [u64; LANES] {
    let mode = inst.mode;
    // SAFETY: lowering gave slot 0 the type that the mode tells.
    unsafe {
        if mode & NARROW != 0 {
            let base = lanes.all::<u32>(inst.s[0]);
            base.map(|base| u64::from(base.wrapping_add(inst.imm as u32)))
        } else {
            let base = lanes.all::<u64>(inst.s[0]);
            let offset = inst.imm.wrapping_add(if mode & IN_FRAME != 0 { lanes.local_base } else { 0 });
            base.map(|base| base.wrapping_add(offset))
        }
    }
}

/// The host addresses of an access.
///
/// # Safety
/// As [`Access`].
#[inline(always)]
pub(super) unsafe fn resolve<const SPACE: Space>(
    lanes: &mut Lanes<'_>,
    inst: &Inst,
    mask: u32,
    size: usize,
    at: &mut [u64; LANES],
) -> Result<(), Box<Fault>> {
    // SAFETY: the contract of `Access`.
    *at = unsafe { addresses(lanes, inst) };
    lanes.spaces.resolve::<SPACE>(at, mask, size as u64).map_err(|misplaced| located(lanes, mask, *misplaced))
}

#[cold]
fn located(lanes: &Lanes<'_>, mask: u32, (lane, fault): (usize, Fault)) -> Box<Fault> {
    // A lane that is not active stood for the first that is.
    let lane = if mask >> lane & 1 != 0 { lane } else { mask.trailing_zeros() as usize };
    Box::new(lanes.fault(fault, lane))
}

/// Whether 32 elements of `size` bytes lie one behind the other.
#[inline(always)]
fn contiguous(at: &[u64; LANES], size: usize) -> bool {
    let mut gaps = 0;
    for (lane, address) in at.iter().enumerate() {
        gaps |= address ^ at[0].wrapping_add((lane * size) as u64);
    }
    gaps == 0
}

macro_rules! accesses {
    ($($(#[$doc:meta])* pub fn $name:ident<$($g:ident: $bound:path),*; $f:ident: $call:path>($lanes:ident, $inst:ident, $mask:ident)
        $body:block)*) => {$(
        $(#[$doc])*
        pub fn $name<const SPACE: Space, $($g: $bound,)* $f: $call + Copy + 'static>(_: $f) -> Access {
            #[inline(always)]
            unsafe fn body<const SPACE: Space, $($g: $bound,)* $f: $call + Copy + 'static>(
                $lanes: &mut Lanes<'_>, $inst: &Inst, $mask: u32,
            ) -> Result<(), Box<Fault>> $body

            unsafe fn base<const SPACE: Space, $($g: $bound,)* $f: $call + Copy + 'static>(
                l: &mut Lanes<'_>, i: &Inst, m: u32,
            ) -> Result<(), Box<Fault>> {
                // SAFETY: the contract of `Access`.
                unsafe { body::<SPACE, $($g,)* $f>(l, i, m) }
            }
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            unsafe fn fast<const SPACE: Space, $($g: $bound,)* $f: $call + Copy + 'static>(
                l: &mut Lanes<'_>, i: &Inst, m: u32,
            ) -> Result<(), Box<Fault>> {
                // SAFETY: the contract of `Access`.
                unsafe { body::<SPACE, $($g,)* $f>(l, i, m) }
            }
            if wide() { fast::<SPACE, $($g,)* $f> } else { base::<SPACE, $($g,)* $f> }
        }
    )*};
}

accesses! {
    /// Loads `inst.width` elements; the closure turns memory's type into the register's.
    pub fn load<M: Stored, D: Elem; F: Fn(M) -> D>(lanes, inst, mask) {
        let f = conjure::<F>();
        let mut at = [0; LANES];
        let (size, width) = (size_of::<M>(), usize::from(inst.width));
        // SAFETY: `resolve` checked `width` elements at each address of the mask's lanes; slots as lowering made them.
        unsafe {
            resolve::<SPACE>(lanes, inst, mask, size * width, &mut at)?;
            if width == 1 && mask == !0 && contiguous(&at, size) {
                let values = (at[0] as *const [M; LANES]).read();
                lanes.set(inst.d[0], &values.map(f), mask);
                return Ok(());
            }
            for element in 0..width {
                let mut out = [D::default(); LANES];
                for (at, out) in at.iter().zip(&mut out) {
                    *out = f((*at as *const M).add(element).read_volatile());
                }
                lanes.set(inst.d[element], &out, mask);
            }
        }
        Ok(())
    }

    /// Stores `inst.width` elements; the closure turns the register's type into memory's.
    pub fn store<S: Elem, M: Stored; F: Fn(S) -> M>(lanes, inst, mask) {
        let f = conjure::<F>();
        let mut at = [0; LANES];
        let (size, width) = (size_of::<M>(), usize::from(inst.width));
        // SAFETY: as in `load`.
        unsafe {
            resolve::<SPACE>(lanes, inst, mask, size * width, &mut at)?;
            if width == 1 && mask == !0 && contiguous(&at, size) {
                let values: [M; LANES] = lanes.all::<S>(inst.stored(0)).map(f);
                (at[0] as *mut [M; LANES]).write(values);
                return Ok(());
            }
            for element in 0..width {
                let source = lanes.src(inst.stored(element));
                for (lane, at) in at.iter().enumerate() {
                    if mask >> lane & 1 != 0 {
                        (*at as *mut M).add(element).write_volatile(f(S::read(source, lane)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Replaces a value by what the closure makes of it and two operands, atomically; gives the old value.
    pub fn atomic<T: Atomic; F: Fn(T, T, T) -> T>(lanes, inst, mask) {
        let f = conjure::<F>();
        let mut at = [0; LANES];
        // SAFETY: `resolve` checked size and alignment; slots as lowering made them.
        unsafe {
            resolve::<SPACE>(lanes, inst, mask, size_of::<T>(), &mut at)?;
            let (b, c) = (lanes.all::<T>(inst.s[1]), lanes.all::<T>(inst.s[2]));
            let mut out = [T::default(); LANES];
            for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                let apply = |old| f(old, b[lane], c[lane]);
                // A block runs on one thread at a time, and nobody else reaches its shared memory.
                let own = SPACE == SHARED || SPACE == LOCAL;
                out[lane] = if own { T::replace(at[lane], apply) } else { T::update(at[lane], apply) };
            }
            lanes.set(inst.d[0], &out, mask);
        }
        Ok(())
    }
}

/// A type that the host can replace atomically.
pub trait Atomic: Elem {
    /// Replaces the value at an address by `f` of it, and gives the old one.
    ///
    /// # Safety
    /// The address is aligned and good for a value.
    unsafe fn update(at: u64, f: impl Fn(Self) -> Self) -> Self;

    /// The same where no other thread reaches the address.
    ///
    /// # Safety
    /// As [`Self::update`].
    #[inline(always)]
    unsafe fn replace(at: u64, f: impl Fn(Self) -> Self) -> Self {
        let cell = at as *mut Self;
        // SAFETY: this function's contract.
        unsafe {
            let old = cell.read();
            cell.write(f(old));
            old
        }
    }
}

macro_rules! atomics {
    ($($ty:ty: $atomic:ty),*) => {$(
        impl Atomic for $ty {
            #[inline(always)]
            unsafe fn update(at: u64, f: impl Fn(Self) -> Self) -> Self {
                // SAFETY: this function's contract; other threads access it by single instructions.
                let cell = unsafe { <$atomic>::from_ptr(at as *mut $ty) };
                let mut old = cell.load(Ordering::Relaxed);
                loop {
                    match cell.compare_exchange_weak(old, f(old), Ordering::SeqCst, Ordering::Relaxed) {
                        Ok(old) => return old,
                        Err(seen) => old = seen,
                    }
                }
            }
        }
    )*};
}
atomics!(u16: AtomicU16, u32: AtomicU32, u64: AtomicU64);
