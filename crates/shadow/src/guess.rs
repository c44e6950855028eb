//! A guess at what a program will do again.

/// Something that was seen several times in a row is expected, for as many times more; then it is looked at again.
#[derive(Debug, Default)]
pub(crate) struct Guess {
    /// How often it was so in a row.
    again: u32,
    /// How often it will be expected yet.
    left: u32,
}

impl Guess {
    /// How often something has to be seen before it is expected.
    const SURE: u32 = 2;
    /// The most times that it is expected without a look, as a power of two.
    const LONGEST: u32 = 6;

    /// Whether it is expected: nobody need look.
    pub(crate) fn is_sure(&self) -> bool {
        self.left > 0
    }

    /// Whether it was so the last times that somebody looked.
    pub(crate) fn was_right(&self) -> bool {
        self.again >= Self::SURE
    }

    /// Somebody has looked.
    pub(crate) fn looked(&mut self, is_so: bool) {
        self.again = if is_so { (self.again + 1).min(Self::LONGEST) } else { 0 };
        self.left = if self.again >= Self::SURE { 1 << self.again } else { 0 };
    }

    /// It was counted on once.
    pub(crate) fn used(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// It is not so.
    pub(crate) fn was_wrong(&mut self) {
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_again_and_again_is_looked_at_ever_more_seldom() {
        let mut guess = Guess::default();
        let mut looks = |is_so: bool, times: usize| {
            (0..times)
                .filter(|_| {
                    let looks = !guess.is_sure();
                    if looks {
                        guess.looked(is_so)
                    } else {
                        guess.used()
                    }
                    looks
                })
                .count()
        };
        assert_eq!(looks(true, 2), 2, "once may be chance");
        assert!(looks(true, 1000) < 20);
        looks(false, 100);
        assert_eq!(looks(false, 100), 100, "it is not so any more");
    }
}
