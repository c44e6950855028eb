//! Variables in managed memory (`__managed__`): how those of some code lie in one piece of it.

use backend::Range;
use fatbin::ManagedVariable;
use serde::{Deserialize, Serialize};
use wire::ManagedVariables;

/// Each begins at a multiple of this, as allocations do.
const ALIGNMENT: u64 = 256;
/// Managed memory begins at a multiple of this: no variable can be asked to do better.
const PAGE: u64 = 4096;

/// Where a variable in managed memory lies, as long as its code is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bound {
    /// Its symbol.
    pub name: String,
    /// Its bytes.
    pub range: Range,
}

/// The variables in managed memory of some code, one behind the other.
#[derive(Clone, Default, Debug)]
pub struct ManagedLayout {
    /// With what each has before it.
    variables: Vec<(ManagedVariable, u64)>,
    bytes: u64,
}

impl ManagedLayout {
    /// Lays them out.
    ///
    /// # Errors
    /// A sentence about one that cannot be.
    pub fn of(all: Vec<ManagedVariable>) -> Result<Self, String> {
        let mut layout = Self::default();
        for variable in all {
            let ManagedVariable { name, size, align, .. } = &variable;
            if !align.is_power_of_two() || *align > PAGE {
                return Err(format!("the variable {name} in managed memory is aligned to {align} bytes"));
            }
            let offset = layout.bytes.checked_next_multiple_of(ALIGNMENT.max(*align));
            let end = offset.and_then(|offset| offset.checked_add(*size));
            let (Some(offset), Some(end)) = (offset, end) else {
                return Err(format!("the variable {name} in managed memory is larger than any memory"));
            };
            layout.bytes = end;
            layout.variables.push((variable, offset));
        }
        Ok(layout)
    }

    /// Bytes for all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty()
    }

    /// As the application is told.
    #[must_use]
    pub fn told(&self) -> ManagedVariables {
        let told = |(variable, offset): &(ManagedVariable, u64)| wire::ManagedVariable {
            name: variable.name.clone(),
            offset: *offset,
            bytes: variable.size,
        };
        ManagedVariables { bytes: self.bytes, variables: self.variables.iter().map(told).collect() }
    }

    /// Where they lie in memory that begins at `base`.
    #[must_use]
    pub fn at(&self, base: u64) -> Vec<Bound> {
        let bound = |(variable, offset): &(ManagedVariable, u64)| Bound {
            name: variable.name.clone(),
            range: Range { base: base + offset, bytes: variable.size },
        };
        self.variables.iter().map(bound).collect()
    }

    /// What they hold at first there, at which address, as far as that is not zeros.
    pub fn contents(&self, base: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let address = move |name: &str| {
            let found = self.variables.iter().find(|(variable, _)| variable.name == name);
            found.map_or(0, |(_, offset)| base + offset)
        };
        self.variables.iter().map(move |(variable, offset)| {
            let mut contents = variable.initial.clone();
            for pointer in &variable.pointers {
                let value = address(&pointer.target).wrapping_add(pointer.addend).to_le_bytes();
                let end = pointer.offset.saturating_add(8).min(variable.size) as usize;
                let start = pointer.offset.min(variable.size) as usize;
                if contents.len() < end {
                    contents.resize(end, 0);
                }
                contents[start..end].copy_from_slice(&value[..end - start]);
            }
            (base + offset, contents)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatbin::Pointer;

    fn variable(name: &str, size: u64, align: u64) -> ManagedVariable {
        ManagedVariable { name: name.into(), size, align, initial: Vec::new(), pointers: Vec::new() }
    }

    #[test]
    fn variables_lie_behind_each_other() {
        let pointer = Pointer { offset: 8, target: "b".into(), addend: 2 };
        let a = ManagedVariable { initial: vec![7], pointers: vec![pointer], ..variable("a", 16, 8) };
        let layout = ManagedLayout::of(vec![a, variable("b", 5000, 1024), variable("c", 1, 1)]);
        let layout = layout.expect("they can be laid out");
        let places: Vec<_> =
            layout.at(1 << 20).iter().map(|bound| (bound.range.base, bound.range.bytes)).collect();
        let base = 1 << 20;
        assert_eq!(places, [(base, 16), (base + 1024, 5000), (base + 6144, 1)]);
        assert_eq!(layout.bytes(), 6145);
        let (at, contents) = layout.contents(base).next().expect("the first");
        assert_eq!((at, contents[0]), (base, 7));
        assert_eq!(contents[8..], (base + 1026).to_le_bytes());
    }

    #[test]
    fn what_cannot_be_laid_out_is_named() {
        for strange in [
            variable("far", 8, 8192),
            variable("far", 8, 3),
            variable("far", 8, 0),
            variable("far", u64::MAX, 1),
        ] {
            let said = ManagedLayout::of(vec![variable("near", 1, 1), strange]).expect_err("it cannot be");
            assert!(said.contains("far"), "{said}");
        }
    }
}
