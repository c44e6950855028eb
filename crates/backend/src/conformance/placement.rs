use super::rig::{Rig, VARIABLES, load};
use crate::{Backend, Range, RawModule};

/// Loads the module with variables, in its recorded place if there is one.
fn place(rig: &Rig<'_>, replay: Option<&[Range]>) -> (RawModule, Vec<Range>) {
    let mut module = None;
    let ranges = rig
        .backend
        .place(replay, &mut || {
            module = Some(load(rig.backend, rig.ctx, VARIABLES));
            Ok(())
        })
        .unwrap();
    (module.unwrap(), ranges)
}

/// Within one process an object can only be made again in its place when the first is gone and its range given back; where
/// the device library keeps it, a rehearsal in a process of its own shows the rest.
pub(super) fn made_again_in_the_same_place(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (module, ranges) = place(&rig, None);
    for range in &ranges {
        assert!(backend.holds(*range), "{range}");
    }
    let counter = backend.global(rig.ctx, module, "counter").unwrap();
    backend.module_unload(rig.ctx, module).unwrap();
    if ranges.iter().any(|range| backend.holds(*range)) {
        return;
    }
    let (again, same) = place(&rig, Some(&ranges));
    assert_eq!(same, ranges);
    assert_eq!(backend.global(rig.ctx, again, "counter").unwrap(), counter);
    // What comes after it lies elsewhere.
    let (other, _) = place(&rig, None);
    assert_ne!(backend.global(rig.ctx, other, "counter").unwrap(), counter);
}

pub(super) fn given_back_ranges_are_told(backend: &dyn Backend) {
    let nowhere = Range { base: 0x3fff_0000_0000, bytes: 2 << 20 };
    assert!(!backend.holds(nowhere));
    let failed = backend.place(None, &mut || Err(wire::CuError::INVALID_VALUE));
    assert_eq!(failed, Err(wire::CuError::INVALID_VALUE));
    // A failure leaves the next one its turn.
    assert_eq!(backend.place(None, &mut || Ok(())), Ok(vec![]));
}
