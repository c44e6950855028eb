//! What of a device's memory becomes an object of an image.

use crate::memory::arena::BlockState;
use crate::memory::{Excluded, View};
use crate::snapshot::INLINE_VARIABLE;
use crate::state::SessionState;
use backend::Range;
use image::MemoryKind;

/// A piece of device memory that becomes an object.
pub(super) struct Piece {
    pub(super) device: usize,
    pub(super) kind: MemoryKind,
    /// What the object is called: its address, or its handle.
    pub(super) name: u64,
    pub(super) range: Range,
    /// What in it is live; the rest is written as zeros.
    pub(super) live: Vec<Range>,
}

impl Piece {
    /// Memory that the application maps itself, whole but for what is excluded of it, counted from its beginning.
    pub(super) fn of_view(view: &View, excluded: Option<&Excluded>) -> Self {
        let View { handle, device, range, .. } = *view;
        let whole = vec![Range { base: 0, bytes: range.bytes }];
        let mut live = excluded.map_or(whole.clone(), |excluded| excluded.without(whole));
        live.iter_mut().for_each(|part| part.base += range.base);
        Self { device, kind: MemoryKind::Physical, name: handle, range, live }
    }
}

/// The pieces of device memory that become objects: each large allocation, each block that small ones share,
/// each large variable. What is excluded is not live.
pub(super) fn pieces(state: &SessionState, excluded: &Excluded) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (device, arena) in state.arenas.iter().enumerate() {
        let Some(arena) = arena else { continue };
        let mut live = arena.allocations.iter().map(|allocation| allocation.range).peekable();
        for BlockState { range: block, shared, .. } in &arena.blocks {
            let mut inside = Vec::new();
            while let Some(range) = live.next_if(|range| range.base < block.end()) {
                inside.push(range);
            }
            // Nothing behind the last live byte is worth an object's zeros.
            let Some(end) = inside.iter().map(|range| range.end()).max() else { continue };
            let range = Range { base: block.base, bytes: end - block.base };
            let live = excluded.without(if *shared { inside } else { vec![range] });
            pieces.push(Piece { device, kind: MemoryKind::Allocation, name: range.base, range, live });
        }
    }
    for record in state.sharing.owned_imports() {
        let (range, kind) = (record.range, MemoryKind::Allocation);
        pieces.push(Piece {
            device: record.device as usize,
            kind,
            name: range.base,
            range,
            live: vec![range],
        });
    }
    for module in &state.modules {
        let of_context = state.contexts.iter().find(|(ctx, _)| ctx.id == module.record.ctx);
        let Some((ctx, _)) = of_context else { continue };
        for variable in module.variables.iter().filter(|variable| variable.range.bytes > INLINE_VARIABLE) {
            let (device, range) = (ctx.device as usize, variable.range);
            let kind = MemoryKind::Global;
            pieces.push(Piece { device, kind, name: range.base, range, live: vec![range] });
        }
    }
    pieces
}

/// Clears what of `room`, which holds the bytes of `range`, belongs to no live allocation, so that garbage costs nothing.
pub(super) fn clear_dead(range: Range, live: &[Range], room: &mut [u8]) {
    let first = live.partition_point(|each| each.end() <= range.base);
    let mut at = range.base;
    let clear = |room: &mut [u8], from: u64, to: u64| {
        if let Some(dead) = room.get_mut((from - range.base) as usize..(to - range.base) as usize) {
            dead.fill(0);
        }
    };
    for each in live[first..].iter().take_while(|each| each.base < range.end()) {
        if each.base > at {
            clear(room, at, each.base);
        }
        at = at.max(each.end().min(range.end()));
    }
    clear(room, at, range.end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_bytes_are_kept() {
        let live =
            [Range { base: 100, bytes: 10 }, Range { base: 120, bytes: 5 }, Range { base: 140, bytes: 100 }];
        let mut room = vec![1; 50];
        clear_dead(Range { base: 105, bytes: 50 }, &live, &mut room);
        let kept: Vec<u64> = (0..50).filter(|i| room[*i as usize] == 1).map(|i| i + 105).collect();
        let expected: Vec<u64> = (105..110).chain(120..125).chain(140..155).collect();
        assert_eq!(kept, expected);
    }
}
