//! What an instruction can reach: the frame, the block's shared memory, the threads' local memory, the device.

use std::marker::PhantomData;

use super::barrier::Barriers;
use super::copies::Copies;
use super::{Condition, Elem, Fault, Frame, Function, LANES, Launch, Pred, Row, Slot, Spaces};

/// One warp of a block, positioned in a frame.
pub struct Lanes<'a> {
    rows: *mut Row,
    preds: *mut u32,
    consts: *const Row,
    frame: PhantomData<&'a mut Frame>,
    /// Start of the frame's local memory, from the start of each lane's.
    pub local_base: u64,
    /// Memory.
    pub spaces: Spaces<'a>,
    /// The launch.
    pub launch: &'a Launch,
    /// `%ctaid`
    pub block: [u32; 3],
    /// `%tid`
    pub threads: &'a [Row; 3],
    /// The block's barriers.
    pub barriers: &'a mut Barriers,
    /// The block's asynchronous copies.
    pub copies: &'a mut Copies,
    /// `%warpid`
    pub warp: u32,
    /// Whether a thread has asked to let others run (`nanosleep`).
    pub gives_way: bool,
}

impl<'a> Lanes<'a> {
    /// A warp that is in no frame yet.
    pub fn new(
        spaces: Spaces<'a>,
        launch: &'a Launch,
        block: [u32; 3],
        threads: &'a [Row; 3],
        barriers: &'a mut Barriers,
        copies: &'a mut Copies,
    ) -> Self {
        let nowhere = std::ptr::null_mut();
        Self {
            rows: nowhere,
            preds: nowhere.cast(),
            consts: nowhere,
            frame: PhantomData,
            local_base: 0,
            spaces,
            launch,
            block,
            threads,
            barriers,
            copies,
            warp: 0,
            gives_way: false,
        }
    }

    /// Goes to a frame.
    ///
    /// # Safety
    /// Until the next call of this function, `frame` is neither moved, dropped nor accessed otherwise, `function` is not dropped, and only
    /// instructions of `function` are executed.
    pub unsafe fn enter(&mut self, frame: &mut Frame, function: &Function) {
        debug_assert!(frame.rows.len() >= function.rows && frame.preds.len() >= function.preds);
        self.rows = frame.rows.as_mut_ptr();
        self.preds = frame.preds.as_mut_ptr();
        self.consts = function.consts.as_ptr();
        self.local_base = frame.local_base;
    }

    /// The rows of a source.
    ///
    /// # Safety
    /// The slot belongs to an instruction of the function of the current frame: lowering then made the frame and the
    /// constants large enough for it.
    #[inline(always)]
    pub unsafe fn src(&self, slot: Slot) -> *const Row {
        let base = if slot.as_constant().is_some() { self.consts } else { self.rows.cast_const() };
        // SAFETY: this function's contract.
        unsafe { base.add(slot.index()) }
    }

    /// The rows of a destination.
    ///
    /// # Safety
    /// As [`Self::src`], for a slot that is not a constant.
    #[inline(always)]
    pub unsafe fn dst(&mut self, slot: Slot) -> *mut Row {
        debug_assert!(slot.as_constant().is_none());
        // SAFETY: this function's contract.
        unsafe { self.rows.add(slot.index()) }
    }

    /// All lanes of a source.
    ///
    /// # Safety
    /// As [`Self::src`].
    #[inline(always)]
    pub unsafe fn all<T: Elem>(&self, slot: Slot) -> [T; LANES] {
        // SAFETY: this function's contract.
        let rows = unsafe { self.src(slot) };
        // SAFETY: as above; the index is below LANES.
        std::array::from_fn(|lane| unsafe { T::read(rows, lane) })
    }

    /// Writes the lanes of `mask`.
    ///
    /// # Safety
    /// As [`Self::dst`].
    #[inline(always)]
    pub unsafe fn set<T: Elem>(&mut self, slot: Slot, out: &[T; LANES], mask: u32) {
        // SAFETY: this function's contract; `out` does not lie in the frame.
        unsafe { super::rows::commit(self.dst(slot), out, mask) }
    }

    /// A predicate, one bit a lane.
    ///
    /// # Safety
    /// As [`Self::src`].
    #[inline(always)]
    pub unsafe fn pred(&self, pred: Pred) -> u32 {
        // SAFETY: this function's contract.
        unsafe { *self.preds.add(usize::from(pred.0)) }
    }

    /// A condition, one bit a lane.
    ///
    /// # Safety
    /// As [`Self::src`].
    #[inline(always)]
    pub unsafe fn test(&self, condition: Condition) -> u32 {
        // SAFETY: this function's contract.
        let bits = unsafe { self.pred(condition.pred) };
        if condition.negated { !bits } else { bits }
    }

    /// Writes a predicate's lanes of `mask`.
    ///
    /// # Safety
    /// As [`Self::src`]; the predicate is not [`Pred::TRUE`] or [`Pred::FALSE`].
    #[inline(always)]
    pub unsafe fn set_pred(&mut self, pred: Pred, bits: u32, mask: u32) {
        // SAFETY: this function's contract.
        let old = unsafe { &mut *self.preds.add(usize::from(pred.0)) };
        *old = *old & !mask | bits & mask;
    }

    /// The lane's error with what is known here about where it happened.
    pub fn fault(&self, fault: Fault, lane: usize) -> Fault {
        let thread = std::array::from_fn(|axis| self.threads[axis].0[lane]);
        Fault { thread: Some(thread), ..fault }
    }
}
