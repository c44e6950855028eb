//! A block: warps, shared memory, barriers.

use super::barrier::{self, Barriers};
use super::copies::Copies;
use super::warp::{Warp, WarpState};
use super::{Fault, FaultKind, LANES, Lanes, Launch, Row, Spaces};

/// Instructions a warp executes before the next one's turn.
const WARP_SLICE: i64 = 1 << 12;

/// Whether a block has more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// It has used its slice.
    Running,
    /// All its threads have ended.
    Done,
}

/// The whole state of a block between two slices.
#[derive(Debug, Default)]
pub struct Block {
    index: [u32; 3],
    warps: Vec<Warp>,
    threads: Vec<[Row; 3]>,
    shared: Vec<u64>,
    barriers: Barriers,
    copies: Copies,
}

impl Block {
    /// Sets up block `number` of a grid at the kernel's start, in the memory of whatever block was here before.
    ///
    /// # Errors
    /// When the kernel needs more local memory than a thread can have.
    pub fn start(&mut self, launch: &Launch, number: u64) -> Result<(), Fault> {
        self.index = launch.block_index(number);
        self.barriers = Barriers::default();
        self.copies = Copies::default();
        self.shared.clear();
        self.shared.resize(launch.shared_bytes.div_ceil(8) as usize, 0);
        let threads = launch.threads();
        let warps = threads.div_ceil(LANES as u32) as usize;
        if self.threads.len() != warps {
            self.threads = (0..warps).map(|warp| thread_ids(launch.block, warp)).collect();
        }
        self.warps.resize_with(warps, Warp::default);
        let kernel = &launch.image.functions[launch.kernel];
        for (warp, index) in self.warps.iter_mut().zip(0u32..) {
            let lanes = (threads - index * LANES as u32).min(LANES as u32);
            warp.live = if lanes == LANES as u32 { !0 } else { (1 << lanes) - 1 };
            warp.start(launch.kernel, kernel)?;
        }
        Ok(())
    }

    /// Runs for about `slice` instructions.
    ///
    /// # Errors
    /// The first execution error of a thread; the block is then of no further use.
    pub fn run(&mut self, launch: &Launch, mut slice: i64) -> Result<BlockState, Fault> {
        let spaces = Spaces::new(&launch.memory, &mut self.shared, launch.shared_bytes, &launch.params);
        let Some(first) = self.threads.first() else { return Ok(BlockState::Done) };
        let mut lanes = Lanes::new(spaces, launch, self.index, first, &mut self.barriers, &mut self.copies);
        loop {
            let (mut done, mut ready) = (0, 0);
            for (index, warp) in self.warps.iter_mut().enumerate() {
                (lanes.threads, lanes.warp) = (&self.threads[index], index as u32);
                let mut left = WARP_SLICE;
                match warp.run(&mut lanes, &mut left)? {
                    WarpState::Done => done += 1,
                    WarpState::Ready => ready += 1,
                    WarpState::Parked => {}
                }
                slice -= WARP_SLICE - left;
            }
            if done == self.warps.len() {
                return Ok(BlockState::Done);
            }
            if !barrier::release(&mut self.warps, &mut lanes) && ready == 0 {
                return Err(Fault { block: self.index, ..Fault::new(FaultKind::Deadlock, 0) });
            }
            if std::mem::take(&mut lanes.gives_way) {
                // Whoever it waits for may need the processor: another block, or the host.
                std::thread::yield_now();
                slice = 0;
            }
            if slice <= 0 {
                return Ok(BlockState::Running);
            }
        }
    }
}

/// `%tid` of the lanes of a warp.
fn thread_ids([x, y, _]: [u32; 3], warp: usize) -> [Row; 3] {
    let at = |lane: usize| (warp * LANES + lane) as u32;
    [
        Row(std::array::from_fn(|lane| at(lane) % x)),
        Row(std::array::from_fn(|lane| at(lane) / x % y)),
        Row(std::array::from_fn(|lane| at(lane) / x / y)),
    ]
}
