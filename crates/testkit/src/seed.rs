//! Numbers that look random and can be had again.

/// A stream of numbers from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Seed(u64);

impl Seed {
    /// The stream for one round of one scenario of one guest.
    pub fn of_round(base: u64, guest: &str, scenario: &str, round: u32) -> Self {
        // FNV-1a over what tells rounds apart.
        let bytes = guest.bytes().chain([0]).chain(scenario.bytes()).chain([0]).chain(round.to_le_bytes());
        let hash = bytes.fold(base ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next fraction, from 0 to less than 1.
    pub fn fraction(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.draw() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_differ_and_repeat() {
        let mut a = Seed::of_round(1, "guest", "chain", 0);
        let mut again = Seed::of_round(1, "guest", "chain", 0);
        let mut b = Seed::of_round(1, "guest", "chain", 1);
        let first = a.draw();
        assert_eq!(first, again.draw());
        assert_ne!(first, b.draw());
        assert!((0..1000).all(|_| (0.0..1.0).contains(&a.fraction())));
    }
}
