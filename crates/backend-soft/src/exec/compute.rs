//! Turns a closure on one lane's values into a handler for a warp: the closure is the instruction's meaning, this file the
//! lane loop, the masks and the choice of vector code.
//!
//! A closure captures nothing, so that it exists as its type alone and the handler is an ordinary function pointer.

use std::ptr::NonNull;
use std::sync::LazyLock;

use super::{Compute, Elem, Inst, LANES, Lanes};

/// Whether handlers are compiled for AVX2 and FMA on this machine.
static WIDE: LazyLock<bool> = LazyLock::new(|| {
    ["avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "popcnt"].iter().all(|name| match *name {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "bmi1" => is_x86_feature_detected!("bmi1"),
        "bmi2" => is_x86_feature_detected!("bmi2"),
        "lzcnt" => is_x86_feature_detected!("lzcnt"),
        _ => is_x86_feature_detected!("popcnt"),
    })
});

/// Whether this machine has the vector instructions of the fast handlers.
pub fn wide() -> bool {
    *WIDE
}

/// The one value of a closure that captures nothing.
#[inline(always)]
pub fn conjure<F: Copy + 'static>() -> F {
    const { assert!(size_of::<F>() == 0, "an instruction's closure must not capture anything") };
    // SAFETY: F has no bytes to read, and is Copy: nothing can tell this value from the one passed.
    unsafe { *NonNull::<F>::dangling().as_ref() }
}

/// Defines a function that makes a handler from a closure: compiled once for any x86-64 and once for AVX2, chosen at run
/// time.
macro_rules! handlers {
    ($($(#[$doc:meta])* pub fn $name:ident<$($g:ident: $bound:path),*; $f:ident: $call:path>($lanes:ident, $inst:ident, $mask:ident)
        $body:block)*) => {$(
        $(#[$doc])*
        pub fn $name<$($g: $bound,)* $f: $call + Copy + 'static>(_: $f) -> Compute {
            #[inline(always)]
            unsafe fn body<$($g: $bound,)* $f: $call + Copy + 'static>($lanes: &mut Lanes<'_>, $inst: &Inst, $mask: u32) $body

            unsafe fn base<$($g: $bound,)* $f: $call + Copy + 'static>(l: &mut Lanes<'_>, i: &Inst, m: u32) {
                // SAFETY: the contract of `Compute`.
                unsafe { body::<$($g,)* $f>(l, i, m) }
            }
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            unsafe fn fast<$($g: $bound,)* $f: $call + Copy + 'static>(l: &mut Lanes<'_>, i: &Inst, m: u32) {
                // SAFETY: the contract of `Compute`.
                unsafe { body::<$($g,)* $f>(l, i, m) }
            }
            if wide() { fast::<$($g,)* $f> } else { base::<$($g,)* $f> }
        }
    )*};
}

handlers! {
    /// One source.
    pub fn un<A: Elem, D: Elem; F: Fn(A) -> D>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: lowering gave the slots the element types of the closure (contract of `Compute`).
        unsafe {
            let a = lanes.src(inst.s[0]);
            let mut out = [D::default(); LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = f(A::read(a, lane));
            }
            lanes.set(inst.d[0], &out, mask);
        }
    }

    /// Two sources.
    pub fn bin<A: Elem, B: Elem, D: Elem; F: Fn(A, B) -> D>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: as in `un`.
        unsafe {
            let (a, b) = (lanes.src(inst.s[0]), lanes.src(inst.s[1]));
            let mut out = [D::default(); LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = f(A::read(a, lane), B::read(b, lane));
            }
            lanes.set(inst.d[0], &out, mask);
        }
    }

    /// Three sources.
    pub fn ter<A: Elem, B: Elem, C: Elem, D: Elem; F: Fn(A, B, C) -> D>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: as in `un`.
        unsafe {
            let (a, b, c) = (lanes.src(inst.s[0]), lanes.src(inst.s[1]), lanes.src(inst.s[2]));
            let mut out = [D::default(); LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = f(A::read(a, lane), B::read(b, lane), C::read(c, lane));
            }
            lanes.set(inst.d[0], &out, mask);
        }
    }

    /// Four sources.
    pub fn quad<A: Elem, B: Elem, C: Elem, E: Elem, D: Elem; F: Fn(A, B, C, E) -> D>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: as in `un`.
        unsafe {
            let (a, b, c, e) = (lanes.src(inst.s[0]), lanes.src(inst.s[1]), lanes.src(inst.s[2]), lanes.src(inst.s[3]));
            let mut out = [D::default(); LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = f(A::read(a, lane), B::read(b, lane), C::read(c, lane), E::read(e, lane));
            }
            lanes.set(inst.d[0], &out, mask);
        }
    }

    /// Two sources and a predicate.
    pub fn select<A: Elem; F: Fn(A, A, bool) -> A>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: as in `un`.
        unsafe {
            let (a, b, c) = (lanes.src(inst.s[0]), lanes.src(inst.s[1]), lanes.test(inst.c[0]));
            let mut out = [A::default(); LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                *out = f(A::read(a, lane), A::read(b, lane), c >> lane & 1 != 0);
            }
            lanes.set(inst.d[0], &out, mask);
        }
    }

    /// A comparison, combined with a predicate as `inst.imm` says ([`Combine`]); the second result is that of the
    /// complementary comparison.
    pub fn compare<A: Elem, B: Elem; F: Fn(A, B) -> bool>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: as in `un`.
        unsafe {
            let (a, b) = (lanes.src(inst.s[0]), lanes.src(inst.s[1]));
            let mut bits = 0u32;
            for lane in 0..LANES {
                bits |= u32::from(f(A::read(a, lane), B::read(b, lane))) << lane;
            }
            let c = lanes.test(inst.c[0]);
            lanes.set_pred(inst.p[0], Combine::apply(inst.imm, bits, c), mask);
            lanes.set_pred(inst.p[1], Combine::apply(inst.imm, !bits, c), mask);
        }
    }

    /// Three sources and the carry flag: the result and the carry out, which is written when `inst.imm` is not 0.
    pub fn carry<A: Elem; F: Fn(A, A, A, bool) -> (A, bool)>(lanes, inst, mask) {
        let f = conjure::<F>();
        // SAFETY: as in `un`.
        unsafe {
            let (a, b, c) = (lanes.src(inst.s[0]), lanes.src(inst.s[1]), lanes.src(inst.s[2]));
            let flag = lanes.pred(super::Pred::CARRY);
            let mut bits = 0u32;
            let mut out = [A::default(); LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                let carry_in = flag >> lane & 1 != 0;
                let (value, carry) = f(A::read(a, lane), A::read(b, lane), A::read(c, lane), carry_in);
                *out = value;
                bits |= u32::from(carry) << lane;
            }
            lanes.set(inst.d[0], &out, mask);
            if inst.imm != 0 {
                lanes.set_pred(super::Pred::CARRY, bits, mask);
            }
        }
    }

    /// Logic on predicates.
    pub fn logic<; F: Fn(u32, u32) -> u32>(lanes, inst, mask) {
        // SAFETY: as in `un`.
        unsafe {
            let bits = conjure::<F>()(lanes.test(inst.c[0]), lanes.test(inst.c[1]));
            lanes.set_pred(inst.p[0], bits, mask);
        }
    }
}

/// How a comparison is combined with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Combine {
    None,
    And,
    Or,
    Xor,
}

impl Combine {
    #[inline(always)]
    fn apply(code: u64, bits: u32, with: u32) -> u32 {
        match code {
            1 => bits & with,
            2 => bits | with,
            3 => bits ^ with,
            _ => bits,
        }
    }
}
