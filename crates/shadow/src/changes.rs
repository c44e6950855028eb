//! What the processor has changed in a page while the device may have changed other bytes of it.

use std::ops::Range;

/// The bytes of `now` that differ from `before`, in order, as few ranges as can be without a byte that is the same.
pub(crate) fn changes(before: &[u8], now: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let same = before[at..].iter().zip(&now[at..]).take_while(|(before, now)| before == now).count();
        let start = at + same;
        let changed = before[start..].iter().zip(&now[start..]).take_while(|(before, now)| before != now);
        at = start + changed.count();
        (start < at).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_bytes_are_left_alone() {
        let changed = |now: &str| changes(b"abcdef", now.as_bytes()).collect::<Vec<_>>();
        assert!(changed("abcdef").is_empty());
        assert_eq!(changed("Abc_-f"), [0..1, 3..5]);
        assert_eq!(changed("ABCDEF").len(), 1);
    }
}
