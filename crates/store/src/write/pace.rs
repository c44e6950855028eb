//! How fast a medium takes bytes.

use std::time::Duration;

/// How fast the store takes bytes, of late.
pub(super) struct Pace {
    bytes: f64,
    ns: f64,
}

impl Pace {
    /// So many bytes count as of late.
    const LATE: f64 = (64 << 20) as f64;

    /// So many bytes have taken so long.
    pub(super) fn add(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes as f64;
        self.ns += time.as_nanos() as f64;
        if self.bytes > Self::LATE {
            let part = Self::LATE / self.bytes;
            (self.bytes, self.ns) = (self.bytes * part, self.ns * part);
        }
    }

    /// For each byte.
    pub(super) fn ns(&self) -> f64 {
        self.ns / self.bytes
    }
}

impl Default for Pace {
    /// A store of 1 GB/s, until something has been written.
    fn default() -> Self {
        Self { bytes: 1e6, ns: 1e6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_long_ago_counts_no_more() {
        let mut pace = Pace::default();
        assert!((pace.ns() - 1.0).abs() < 1e-9);
        (0..20).for_each(|_| pace.add(64 << 20, Duration::from_secs(1)));
        let slow = pace.ns();
        assert!((14.0..15.0).contains(&slow), "{slow}");
        (0..20).for_each(|_| pace.add(64 << 20, Duration::from_millis(10)));
        assert!(pace.ns() < 0.2, "{}", pace.ns());
    }
}
