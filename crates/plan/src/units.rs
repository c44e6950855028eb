//! Times, bandwidths and the mean time between failures: numbers that cannot be zero where zero makes no sense.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU64;

/// A time or a length of time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// As many seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// As many milliseconds.
    #[must_use]
    pub fn millis(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{ns} ns"),
            1_000..1_000_000 => write!(f, "{} µs", three_digits(ns / 1e3)),
            1_000_000..1_000_000_000 => write!(f, "{} ms", three_digits(ns / 1e6)),
            1_000_000_000..10_000_000_000_000 => write!(f, "{} s", three_digits(ns / 1e9)),
            _ => write!(f, "{} h", three_digits(ns / 3.6e12)),
        }
    }
}

/// Bytes, in the unit that suits them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = if self.0 == 0 { 0 } else { self.0.ilog2() as usize / 10 };
        write!(f, "{} {}", three_digits(self.0 as f64 / (1_u64 << (10 * unit)) as f64), units[unit])
    }
}

fn three_digits(value: f64) -> String {
    let places = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Bytes a second, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bandwidth(NonZeroU64);

impl Bandwidth {
    /// So many bytes a second.
    ///
    /// # Errors
    /// [`Error::Bandwidth`] for zero.
    pub fn per_second(bytes: u64) -> Result<Self, Error> {
        NonZeroU64::new(bytes).map(Self).ok_or(Error::Bandwidth)
    }

    /// Bytes a second.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Mean time between failures of one part, or of a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mtbf(NonZeroU64);

impl Mtbf {
    /// From nanoseconds.
    ///
    /// # Errors
    /// [`Error::Mtbf`] for zero.
    pub fn of(time: Nanos) -> Result<Self, Error> {
        NonZeroU64::new(time.0).map(Self).ok_or(Error::Mtbf("zero".to_owned()))
    }

    /// From seconds, as people and scripts give them.
    ///
    /// # Errors
    /// [`Error::Mtbf`] for what is no time above zero, or more than five centuries.
    pub fn of_seconds(seconds: f64) -> Result<Self, Error> {
        let ns = seconds * 1e9;
        // A NaN is in no range.
        if (1.0..u64::MAX as f64).contains(&ns) {
            Self::of(Nanos(ns as u64))
        } else {
            Err(Error::Mtbf(format!("{seconds} s")))
        }
    }

    /// Nanoseconds.
    #[must_use]
    pub fn nanos(self) -> Nanos {
        Nanos(self.0.get())
    }

    /// Equation (2-2): of two parts, either of which stops the whole.
    #[must_use]
    pub fn in_series(self, other: Self) -> Self {
        Self(NonZeroU64::new(harmonic(self, other, 1)).unwrap_or(NonZeroU64::MIN))
    }

    /// The rule of thumb of half the MTBF.
    #[must_use]
    pub fn half(self) -> Nanos {
        Nanos(self.0.get() / 2)
    }

    /// Half the MTBF of two parts in series, rounded once.
    #[must_use]
    pub fn half_in_series(self, other: Self) -> Nanos {
        Nanos(harmonic(self, other, 2))
    }
}

/// `1 / (divisor · (1/a + 1/b))`, rounded down: a gap of whole nanoseconds is within the one just when it is within the other.
fn harmonic(a: Mtbf, b: Mtbf, divisor: u128) -> u64 {
    let (a, b) = (u128::from(a.0.get()), u128::from(b.0.get()));
    // At most half the greater of two u64, and their product fits 128 bits.
    u64::try_from(a * b / (divisor * (a + b))).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn equation_2_2() {
        let [cpu, gpu] = [400.0, 240.0].map(|seconds| Mtbf::of_seconds(seconds).unwrap());
        assert_eq!(cpu.in_series(gpu).nanos(), Nanos(150_000_000_000));
        assert_eq!(cpu.half_in_series(gpu), Nanos(75_000_000_000));
        let longest = Mtbf::of(Nanos(u64::MAX)).unwrap();
        assert_eq!(longest.in_series(longest).nanos(), Nanos(u64::MAX / 2));
        let shortest = Mtbf::of(Nanos(1)).unwrap();
        assert_eq!((shortest.in_series(shortest).nanos(), shortest.half()), (Nanos(1), Nanos(0)));
    }

    #[test]
    fn what_is_no_mtbf_is_refused() {
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-10, 1e11] {
            assert!(matches!(Mtbf::of_seconds(seconds), Err(Error::Mtbf(_))), "{seconds}");
        }
        assert!(matches!(Mtbf::of(Nanos(0)), Err(Error::Mtbf(_))));
        assert!(matches!(Bandwidth::per_second(0), Err(Error::Bandwidth)));
    }

    #[test]
    fn people_read_them() {
        let texts = [0, 999, 1500, 2_000_000, 75_000_000_000, 1_000_000_000_000, 36_000_000_000_000]
            .map(|ns| Nanos(ns).to_string());
        assert_eq!(texts, ["0 ns", "999 ns", "1.5 µs", "2 ms", "75 s", "1000 s", "10 h"]);
        assert_eq!(
            [0, 1023, 3 << 29, u64::MAX].map(|b| Bytes(b).to_string()),
            ["0 B", "1023 B", "1.5 GiB", "16 EiB"]
        );
    }
}
