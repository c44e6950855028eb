//! IEEE arithmetic in the four directions, and what PTX adds to it: flushing, saturation, its one NaN.

use std::arch::asm;

/// A rounding direction, as the processor's control register wants it (bits 13 and 14, all exceptions masked).
pub const NEAREST: u32 = 0x1f80;
/// Towards minus infinity.
pub const DOWN: u32 = 0x3f80;
/// Towards plus infinity.
pub const UP: u32 = 0x5f80;
/// Towards zero.
pub const ZERO: u32 = 0x7f80;

/// Defines an operation that runs one instruction under a rounding direction. Rust code must never see another direction than
/// the default, so the switch, the instruction and the switch back are one piece of assembly.
macro_rules! directed {
    ($($(#[$doc:meta])* $name:ident($ty:ty: $($arg:ident),*) = $text:literal;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $name<const MODE: u32>(mut first: $ty, $($arg: $ty),*) -> $ty {
            let (mode, default) = (MODE, NEAREST);
            // SAFETY: changes only the register of its result; the control register is as before when it ends.
            unsafe {
                asm!(
                    "ldmxcsr [{mode}]",
                    $text,
                    "ldmxcsr [{default}]",
                    mode = in(reg) &mode,
                    default = in(reg) &default,
                    first = inout(xmm_reg) first,
                    $($arg = in(xmm_reg) $arg,)*
                    options(nostack, readonly),
                );
            }
            first
        }
    )*};
}

directed! {
    /// `first + b`
    add32(f32: b) = "addss {first}, {b}";
    /// `first + b`
    add64(f64: b) = "addsd {first}, {b}";
    /// `first - b`
    sub32(f32: b) = "subss {first}, {b}";
    /// `first - b`
    sub64(f64: b) = "subsd {first}, {b}";
    /// `first × b`
    mul32(f32: b) = "mulss {first}, {b}";
    /// `first × b`
    mul64(f64: b) = "mulsd {first}, {b}";
    /// `first / b`
    div32(f32: b) = "divss {first}, {b}";
    /// `first / b`
    div64(f64: b) = "divsd {first}, {b}";
    /// `√b`
    sqrt32(f32: b) = "sqrtss {first}, {b}";
    /// `√b`
    sqrt64(f64: b) = "sqrtsd {first}, {b}";
    /// `first × b + c`; only on processors that have the instruction
    fma64(f64: b, c) = "vfmadd213sd {first}, {b}, {c}";
}

/// `1 / a`
#[inline]
pub fn rcp32<const MODE: u32>(a: f32) -> f32 {
    div32::<MODE>(1.0, a)
}

/// `1 / a`
#[inline]
pub fn rcp64<const MODE: u32>(a: f64) -> f64 {
    div64::<MODE>(1.0, a)
}

/// `a × b + c` rounded once.
#[inline]
pub fn fma32<const MODE: u32>(a: f32, b: f32, c: f32) -> f32 {
    // The product of two single-precision numbers is exact in double precision, and a sum rounded to odd there keeps what
    // the second rounding must know.
    let sum = add_to_odd::<MODE>(f64::from(a) * f64::from(b), f64::from(c));
    narrow32::<MODE>(sum)
}

/// The sum, rounded towards zero but with the last bit set where that was inexact.
#[inline]
pub fn add_to_odd<const MODE: u32>(a: f64, b: f64) -> f64 {
    if add64::<DOWN>(a, b) == add64::<UP>(a, b) || !(a + b).is_finite() {
        // Where nothing is rounded the direction still decides the sign of zero.
        add64::<MODE>(a, b)
    } else {
        f64::from_bits(add64::<ZERO>(a, b).to_bits() | 1)
    }
}

/// Double to single precision.
#[inline]
pub fn narrow32<const MODE: u32>(value: f64) -> f32 {
    if MODE == NEAREST {
        return value as f32;
    }
    let (mode, default) = (MODE, NEAREST);
    let mut out = 0f32;
    // SAFETY: as in `directed!`.
    unsafe {
        asm!(
            "ldmxcsr [{mode}]",
            "cvtsd2ss {out}, {value}",
            "ldmxcsr [{default}]",
            mode = in(reg) &mode,
            default = in(reg) &default,
            out = inout(xmm_reg) out,
            value = in(xmm_reg) value,
            options(nostack, readonly),
        );
    }
    out
}

/// What differs between single and double precision in PTX.
pub trait Float: Copy {
    /// Results that are not a number have one representation (single precision), or the processor's (double).
    fn canonical(self) -> Self;
    /// Subnormals become zeros of their sign.
    fn flush(self) -> Self;
    /// To [0, 1]; what is not a number becomes 0.
    fn saturate(self) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn canonical(self) -> Self {
        // In integers: a compiler may take any value that is not a number for any other.
        let bits = self.to_bits();
        f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { bits })
    }
    #[inline(always)]
    fn flush(self) -> Self {
        let bits = self.to_bits();
        if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { self }
    }
    #[inline(always)]
    fn saturate(self) -> Self {
        // Comparisons with what is not a number fail, and so does 0 > -0.
        let low = if self > 0.0 { self } else { 0.0 };
        if low < 1.0 { low } else { 1.0 }
    }
}

impl Float for f64 {
    #[inline(always)]
    fn canonical(self) -> Self {
        self
    }
    #[inline(always)]
    fn flush(self) -> Self {
        self
    }
    #[inline(always)]
    fn saturate(self) -> Self {
        let low = if self > 0.0 { self } else { 0.0 };
        if low < 1.0 { low } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_differ_by_one_unit() {
        let third = |down: f32, up: f32| {
            (up.to_bits() - down.to_bits(), down as f64 * 3.0 < 1.0, up as f64 * 3.0 > 1.0)
        };
        assert_eq!(third(div32::<DOWN>(1.0, 3.0), div32::<UP>(1.0, 3.0)), (1, true, true));
        assert_eq!(div32::<ZERO>(-1.0, 3.0), -div32::<DOWN>(1.0, 3.0));
        assert_eq!(add64::<UP>(1.0, 1e-300), 1.0 + f64::EPSILON);
        assert_eq!(add64::<DOWN>(1.0, 1e-300), 1.0);
        assert_eq!(1.0f64 + 1e-300, 1.0);
        assert_eq!(sqrt64::<UP>(0.0, 2.0).to_bits() - sqrt64::<DOWN>(0.0, 2.0).to_bits(), 1);
    }

    #[test]
    fn fused_is_rounded_once() {
        let cases = [
            (1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0),
            (3.1e20, 1e-39, 1e-41),
            (0.1, 10.0, -1.0),
            (1e30, 1e30, -1.0),
        ];
        for (a, b, c) in cases {
            assert_eq!(fma32::<NEAREST>(a, b, c).to_bits(), a.mul_add(b, c).to_bits(), "{a} {b} {c}");
            let exact = fma32::<DOWN>(a, b, c) <= fma32::<NEAREST>(a, b, c);
            assert!(exact && fma32::<NEAREST>(a, b, c) <= fma32::<UP>(a, b, c), "{a} {b} {c}");
        }
    }

    #[test]
    fn saturation_takes_nan_and_minus_zero_to_zero() {
        assert_eq!(f32::NAN.saturate().to_bits(), 0);
        assert_eq!((-0.0f32).saturate().to_bits(), 0);
        assert_eq!((2.0f32).saturate(), 1.0);
        assert_eq!(f32::from_bits(0x8000_0001).flush().to_bits(), 0x8000_0000);
    }
}
