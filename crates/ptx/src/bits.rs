//! Sets of small integers.

/// A set of integers below a bound that is fixed when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitSet {
    words: Box<[u64]>,
}

impl BitSet {
    /// An empty set for integers below `bound`.
    pub fn new(bound: usize) -> Self {
        Self { words: vec![0; bound.div_ceil(64)].into() }
    }

    /// Adds `bit`.
    ///
    /// # Panics
    /// When it is not below the bound.
    pub fn insert(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    /// Takes `bit` out.
    ///
    /// # Panics
    /// When it is not below the bound.
    pub fn remove(&mut self, bit: usize) {
        self.words[bit / 64] &= !(1 << (bit % 64));
    }

    /// Whether `bit` is in the set; false beyond the bound.
    pub fn contains(&self, bit: usize) -> bool {
        self.words.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Adds all of `other`, a set of the same bound.
    pub fn union_with(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// Becomes `uses ∪ (out ∖ kills)`; true when that changes it.
    pub(crate) fn assign_transfer(&mut self, out: &Self, kills: &Self, uses: &Self) -> bool {
        let mut changed = false;
        for (index, word) in self.words.iter_mut().enumerate() {
            let new = uses.words[index] | (out.words[index] & !kills.words[index]);
            changed |= new != *word;
            *word = new;
        }
        changed
    }

    /// How many integers are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The integers, increasing.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(index * 64 + bit)
            })
        })
    }
}
