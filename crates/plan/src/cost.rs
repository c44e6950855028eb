//! What a checkpoint costs, in whole numbers: no rounding decides between two plans.

use crate::Error;
use crate::units::{Bandwidth, Nanos};

/// The bytes of one checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Of the processor's half.
    pub cpu: u64,
    /// Of the device's half.
    pub gpu: u64,
}

/// Cost of a checkpoint: so much for each, and for each byte. The unit is a second over [`Rates::per_second`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    fixed: u128,
    cpu: u128,
    gpu: u128,
    per_second: u128,
}

/// What checkpoints were measured to take on a machine (`dormouse checkpoint --json`, `docs/benchmarks.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// How long a checkpoint of nothing holds the program up.
    pub stall: Nanos,
    /// How fast device memory is copied while the program stands still.
    pub copy: Bandwidth,
    /// How fast copies are written when it has gone on.
    pub write: Bandwidth,
    /// By how many thousandths the program is slower meanwhile.
    pub traffic: u32,
}

impl Rates {
    /// The paper's: everything is written at `disk` (its B), and the device's half comes over `link` (its B2) first.
    ///
    /// # Errors
    /// [`Error::Overflow`] for bandwidths without a common measure.
    pub fn of_bandwidths(disk: Bandwidth, link: Bandwidth) -> Result<Self, Error> {
        let (disk, link) = (u128::from(disk.get()), u128::from(link.get()));
        let per_second = common(disk, link)?;
        let cpu = per_second / disk;
        Ok(Self { fixed: 0, cpu, gpu: cpu + per_second / link, per_second }.reduced())
    }

    /// What the program loses: the stall, and a share of the time that copies are written.
    ///
    /// # Errors
    /// [`Error::Overflow`] for bandwidths without a common measure, [`Error::Parameter`] for traffic that leaves the program nothing.
    pub fn of_measured(measured: Measured) -> Result<Self, Error> {
        const NANOS: u128 = 1_000_000_000;
        if measured.traffic > 1000 {
            let value = format!("{} %", f64::from(measured.traffic) / 10.0);
            return Err(Error::Parameter { what: "the traffic's share", value, must: "from 0 to 100 %" });
        }
        let (copy, write) = (u128::from(measured.copy.get()), u128::from(measured.write.get()) * 1000);
        let per_second = common(common(copy, write)?, NANOS)?;
        let written = per_second / write * u128::from(measured.traffic);
        let fixed = u128::from(measured.stall.0)
            .checked_mul(per_second / NANOS)
            .ok_or(Error::Overflow { what: "costs" })?;
        Ok(Self { fixed, cpu: written, gpu: written + per_second / copy, per_second }.reduced())
    }

    /// Without a common divisor: costs stay small.
    fn reduced(self) -> Self {
        let divisor = [self.fixed, self.cpu, self.gpu].into_iter().fold(self.per_second, gcd);
        Self {
            fixed: self.fixed / divisor,
            cpu: self.cpu / divisor,
            gpu: self.gpu / divisor,
            per_second: self.per_second / divisor,
        }
    }

    /// What a checkpoint costs.
    ///
    /// # Errors
    /// [`Error::Overflow`] beyond 128 bits.
    pub fn cost(&self, sizes: Sizes) -> Result<u128, Error> {
        let part = |bytes: u64, rate: u128| u128::from(bytes).checked_mul(rate);
        let cost = part(sizes.cpu, self.cpu)
            .zip(part(sizes.gpu, self.gpu))
            .and_then(|(cpu, gpu)| cpu.checked_add(gpu)?.checked_add(self.fixed));
        cost.ok_or(Error::Overflow { what: "costs" })
    }

    /// What bytes of the device cost alone, in a sum that may stand beside as many others as there are boundaries.
    pub(crate) fn device_bytes(&self, bytes: u128) -> Result<u128, Error> {
        let cost = bytes.checked_mul(self.gpu).filter(|cost| *cost < 1 << 120);
        cost.ok_or(Error::Overflow { what: "costs" })
    }

    /// What of a cost does not fit into a time in which nobody waits.
    #[must_use]
    pub fn beyond(&self, cost: u128, idle: Nanos) -> u128 {
        // Rounded down: what is counted as hidden is.
        let hidden =
            u128::from(idle.0).checked_mul(self.per_second).map_or(u128::MAX, |units| units / 1_000_000_000);
        cost.saturating_sub(hidden)
    }

    /// How many units a second has.
    #[must_use]
    pub fn per_second(&self) -> u128 {
        self.per_second
    }

    /// A cost in seconds.
    #[must_use]
    pub fn seconds(&self, cost: u128) -> f64 {
        cost as f64 / self.per_second as f64
    }
}

/// Checks that a planner may add up costs, and a price for each, without looking.
///
/// # Errors
/// [`Error::Overflow`] beyond 127 bits.
pub(crate) fn check_sum(costs: &[u128]) -> Result<(), Error> {
    let total = costs.iter().try_fold(0_u128, |sum, cost| sum.checked_add(*cost));
    let priced = total.and_then(|total| (total + 1).checked_mul(costs.len() as u128 + 2));
    match priced {
        Some(priced) if priced <= i128::MAX as u128 => Ok(()),
        _ => Err(Error::Overflow { what: "costs" }),
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The least common multiple.
fn common(a: u128, b: u128) -> Result<u128, Error> {
    (a / gcd(a, b)).checked_mul(b).ok_or(Error::Overflow { what: "bandwidths" })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bandwidth(bytes: u64) -> Bandwidth {
        Bandwidth::per_second(bytes).unwrap()
    }

    #[test]
    fn the_paper_s_costs() {
        let rates = Rates::of_bandwidths(bandwidth(2_000_000_000), bandwidth(5_000_000_000)).unwrap();
        let cost = rates.cost(Sizes { cpu: 4_000_000_000, gpu: 10_000_000_000 }).unwrap();
        // 14 GB to disk, of which 10 GB come over the link first.
        assert!((rates.seconds(cost) - 9.0).abs() < 1e-12, "{rates:?}");
        assert_eq!((rates.cpu, rates.gpu), (5, 7));
    }

    #[test]
    fn measured_costs() {
        let measured = Measured {
            stall: Nanos(20_000_000),
            copy: bandwidth(1_000_000_000_000),
            write: bandwidth(2_000_000_000),
            traffic: 50,
        };
        let rates = Rates::of_measured(measured).unwrap();
        let cost = rates.cost(Sizes { cpu: 0, gpu: 40_000_000_000 }).unwrap();
        assert!((rates.seconds(cost) - (0.02 + 0.04 + 1.0)).abs() < 1e-12, "{rates:?}");
        assert!(matches!(
            Rates::of_measured(Measured { traffic: 1001, ..measured }),
            Err(Error::Parameter { .. })
        ));
    }

    #[test]
    fn sizes_that_overflow_are_told() {
        let rates = Rates::of_bandwidths(bandwidth(u64::MAX), bandwidth(u64::MAX - 1)).unwrap();
        assert_eq!(
            rates.cost(Sizes { cpu: u64::MAX, gpu: u64::MAX }),
            Err(Error::Overflow { what: "costs" })
        );
        assert_eq!(check_sum(&[u128::MAX, 1]), Err(Error::Overflow { what: "costs" }));
        assert_eq!(check_sum(&[1 << 125; 8]), Err(Error::Overflow { what: "costs" }));
        assert_eq!(check_sum(&[1 << 90; 8]), Ok(()));
        let huge = Measured {
            stall: Nanos(u64::MAX),
            copy: bandwidth(u64::MAX),
            write: bandwidth(u64::MAX - 1),
            traffic: 1,
        };
        assert_eq!(Rates::of_measured(huge), Err(Error::Overflow { what: "bandwidths" }));
    }

    #[test]
    fn idle_time_hides_what_fits() {
        let rates = Rates::of_bandwidths(bandwidth(1000), bandwidth(1000)).unwrap();
        let cost = rates.cost(Sizes { cpu: 3000, gpu: 0 }).unwrap();
        assert_eq!(rates.beyond(cost, Nanos(3_000_000_000)), 0);
        assert_eq!(rates.seconds(rates.beyond(cost, Nanos(1_000_000_000))), 2.0);
        assert_eq!(rates.beyond(cost, Nanos(u64::MAX)), 0);
    }
}
