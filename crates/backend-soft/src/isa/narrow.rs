//! Short floating-point formats: one exact conversion from double precision for all of them, and back.

/// A binary format of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent: u32,
    /// Bits of the fraction.
    pub fraction: u32,
    /// What becomes of values that are not a number.
    pub nan: u16,
    /// The largest finite value, without sign.
    pub max: u16,
    /// Whether the format has infinities.
    pub infinite: bool,
}

/// Half precision.
pub const HALF: Format = Format { exponent: 5, fraction: 10, nan: 0x7fff, max: 0x7bff, infinite: true };
/// bfloat16.
pub const BFLOAT: Format = Format { exponent: 8, fraction: 7, nan: 0x7fff, max: 0x7f7f, infinite: true };
/// 8 bits, 4 of them exponent.
pub const E4M3: Format = Format { exponent: 4, fraction: 3, nan: 0x7f, max: 0x7e, infinite: false };
/// 8 bits, 5 of them exponent.
pub const E5M2: Format = Format { exponent: 5, fraction: 2, nan: 0x7f, max: 0x7b, infinite: true };

/// Rounding directions of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To nearest, ties to even.
    Even,
    /// To nearest, ties away from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

impl Direction {
    /// Whether a magnitude with this last bit grows by one unit, given what was cut off in units of half of one: 0 nothing,
    /// 1 less than half, 2 half, 3 more.
    pub fn grows(self, negative: bool, odd: bool, cut: u32) -> bool {
        match self {
            Self::Even => cut == 3 || cut == 2 && odd,
            Self::Away => cut >= 2,
            Self::Zero => false,
            Self::Down => negative && cut != 0,
            Self::Up => !negative && cut != 0,
        }
    }
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The nearest value (in the given direction) of the format.
    pub fn round(self, value: f64, direction: Direction) -> u16 {
        let bits = value.to_bits();
        let negative = bits >> 63 != 0;
        let sign = u16::from(negative) << (self.exponent + self.fraction);
        if value.is_nan() {
            return self.nan;
        }
        let overflow = |direction: Direction| match direction {
            _ if !self.infinite => self.nan,
            Direction::Zero => self.max,
            Direction::Down if !negative => self.max,
            Direction::Up if negative => self.max,
            _ => self.max + 1,
        };
        if value.is_infinite() {
            return sign | if self.infinite { self.max + 1 } else { self.nan };
        }
        if value == 0.0 {
            return sign;
        }
        // value = significand × 2^(exponent - 52), significand with 53 bits unless it is a subnormal, which is far below
        // every format here.
        let raw = (bits >> 52 & 0x7ff) as i32;
        let significand = bits & ((1 << 52) - 1) | u64::from(raw != 0) << 52;
        let exponent = raw.max(1) - 1023;
        let least = 1 - self.bias();
        let drop = 52 - self.fraction as i32 + (least - exponent).max(0);
        let (kept, cut) = if drop > 60 {
            (0, 1)
        } else {
            let half = 1u64 << (drop - 1);
            let rest = significand & ((half << 1) - 1);
            let cut = match rest.cmp(&half) {
                _ if rest == 0 => 0,
                std::cmp::Ordering::Less => 1,
                std::cmp::Ordering::Equal => 2,
                std::cmp::Ordering::Greater => 3,
            };
            (significand >> drop, cut)
        };
        let magnitude = kept + u64::from(direction.grows(negative, kept & 1 != 0, cut));
        // The hidden bit of a normal number adds one to the exponent field below; a carry out of the fraction does too.
        let field = (exponent.max(least) - least) as u64;
        let encoded = (field << self.fraction) + magnitude;
        if encoded > u64::from(self.max) { sign | overflow(direction) } else { sign | encoded as u16 }
    }

    /// The value of a pattern.
    pub fn value(self, bits: u16) -> f64 {
        let negative = bits >> (self.exponent + self.fraction) & 1 != 0;
        let magnitude = bits & ((1 << (self.exponent + self.fraction)) - 1);
        let field = i32::from(magnitude >> self.fraction);
        let fraction = f64::from(magnitude & ((1 << self.fraction) - 1));
        let unit = 2f64.powi(1 - self.bias() - self.fraction as i32);
        let value = if magnitude > self.max {
            if self.infinite && magnitude == self.max + 1 { f64::INFINITY } else { f64::NAN }
        } else if field == 0 {
            fraction * unit
        } else {
            (fraction + f64::from(1u32 << self.fraction)) * unit * 2f64.powi(field - 1)
        };
        if negative { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_returns() {
        for format in [HALF, BFLOAT, E4M3, E5M2] {
            let bits = 1 + format.exponent + format.fraction;
            for pattern in 0..1u32 << bits {
                let value = format.value(pattern as u16);
                if !value.is_nan() {
                    for direction in [Direction::Even, Direction::Zero, Direction::Up, Direction::Down] {
                        assert_eq!(format.round(value, direction), pattern as u16, "{format:?} {pattern:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn bfloat_is_the_upper_half_of_single_precision() {
        for bits in
            [0x3f80_8000u32, 0x3f81_8000, 0x3f80_8001, 0x7f7f_ffff, 0x0000_8000, 0x8000_0001, 0x007f_ffff]
        {
            let value = f64::from(f32::from_bits(bits));
            let even = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            assert_eq!(u32::from(BFLOAT.round(value, Direction::Even)), even, "{bits:#x}");
            assert_eq!(u32::from(BFLOAT.round(value, Direction::Zero)), bits >> 16, "{bits:#x}");
        }
    }

    #[test]
    fn half_rounds_to_even_at_the_edges() {
        assert_eq!(HALF.round(65519.999, Direction::Even), 0x7bff);
        assert_eq!(HALF.round(65520.0, Direction::Even), 0x7c00);
        assert_eq!(HALF.round(2f64.powi(-25), Direction::Even), 0);
        assert_eq!(HALF.round(2f64.powi(-25) * 1.0001, Direction::Even), 1);
        assert_eq!(HALF.round(-(2f64.powi(-25)), Direction::Down), 0x8001);
        assert_eq!(HALF.round(1e300, Direction::Down), 0x7bff);
        assert_eq!(E4M3.round(1e9, Direction::Even), 0x7f);
    }
}
