//! A software device, and kernels on it that are stopped at some moments and launched again until they are done.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use backend::{
    BLOCK_GRANULARITY, Backend, COOPERATIVE, Launch, Range, RawBlock, RawContext, RawModule, RawStream,
    StreamArg,
};
use backend_soft::{Options, SoftBackend};
use cpt::{Kernel, context};

static BACKEND: LazyLock<SoftBackend> = LazyLock::new(|| SoftBackend::new(Options::default()));
/// Addresses that have been reserved, and have no memory now.
static FREE: Mutex<Vec<Range>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0x2800_0000_0000);

/// What is launched: blocks, threads of each, shared memory of each; whether all are on the device at a time.
#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: u32,
    pub block: u32,
    pub shared: u32,
    pub cooperative: bool,
}

/// Modules on the device, which each launch takes the next one of, and memory that is gone with them.
pub struct Gpu {
    ctx: RawContext,
    modules: Vec<RawModule>,
    launches: Cell<usize>,
    work: RawStream,
    beside: RawStream,
    memory: RefCell<Vec<(RawBlock, Range)>>,
}

/// When threads are asked to stop.
pub enum When {
    Never,
    /// Before the launch: nothing begins, and what is half-way gets to the next marker.
    Before,
    /// So long after it.
    After(Duration),
}

/// How often a kernel stopped, and how often a block was half-way then.
#[derive(Default, Debug)]
pub struct Stops {
    pub launches: usize,
    pub half_way: usize,
    /// How many were after the last launch.
    pub last: usize,
    /// Blocks that went on for want of room.
    pub no_room: usize,
}

impl Gpu {
    pub fn new(text: &str) -> Self {
        Self::of(&[text])
    }

    pub fn of(texts: &[&str]) -> Self {
        let ctx = BACKEND.context_create(0, 0, false).unwrap();
        let load = |text: &&str| {
            let loaded = BACKEND.module_load(ctx, text.as_bytes(), &[], &[]);
            loaded.unwrap_or_else(|error| panic!("{}", error.detail)).code
        };
        let modules = texts.iter().map(load).collect();
        let stream = || BACKEND.stream_create(ctx, 1, 0).unwrap();
        let (work, beside, memory) = (stream(), stream(), RefCell::default());
        Self { ctx, modules, launches: Cell::new(0), work, beside, memory }
    }

    /// Zeroed device memory.
    pub fn alloc(&self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(BLOCK_GRANULARITY);
        let mut free = FREE.lock().unwrap();
        let range = match free.iter().position(|range| range.bytes == bytes) {
            Some(known) => free.swap_remove(known),
            None => {
                let base = NEXT.fetch_add(bytes + BLOCK_GRANULARITY, Ordering::Relaxed);
                let range = Range { base, bytes };
                BACKEND.reserve(range).unwrap();
                range
            }
        };
        self.memory.borrow_mut().push((BACKEND.map_block(0, range).unwrap(), range));
        range.base
    }

    /// Copies now, whatever runs.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> backend::Result<()> {
        let stream = StreamArg::Created(self.beside);
        BACKEND.copy(self.ctx, stream, to, from, bytes)?;
        BACKEND.stream_synchronize(self.ctx, stream)
    }

    pub fn put<T: Copy>(&self, address: u64, values: &[T]) {
        self.copy(address, values.as_ptr() as u64, size_of_val(values) as u64).unwrap();
    }

    pub fn get<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut out = vec![T::default(); count];
        self.copy(out.as_mut_ptr() as u64, address, size_of_val(&out[..]) as u64).unwrap();
        out
    }

    pub fn launch(&self, name: &str, shape: Shape, params: &[u8]) {
        let module = self.modules[self.launches.replace(self.launches.get() + 1) % self.modules.len()];
        let function = BACKEND.function(self.ctx, module, name).unwrap();
        let launch = Launch {
            function,
            grid: [shape.grid, 1, 1],
            block: [shape.block, 1, 1],
            shared: shape.shared,
            stream: StreamArg::Created(self.work),
            attributes: if shape.cooperative { &[COOPERATIVE] } else { &[] },
            params,
        };
        BACKEND.launch(self.ctx, &launch).unwrap();
    }

    pub fn wait(&self) {
        self.end().unwrap();
    }

    /// Waits, and tells what has gone wrong.
    pub fn end(&self) -> backend::Result<()> {
        BACKEND.stream_synchronize(self.ctx, StreamArg::Created(self.work))
    }

    /// Launches a kernel, has it stop as `when` says of each launch, and again until all its threads are done. `capacity` blocks can be half-way. Its parameters
    /// may depend on where the context is. It may end with an error.
    pub fn run_with_stops(
        &self,
        kernel: &Kernel,
        shape: Shape,
        params: &dyn Fn(u64) -> Vec<u8>,
        capacity: u32,
        when: &mut dyn FnMut(&Stops) -> When,
    ) -> backend::Result<Stops> {
        let (blocks, threads) = (u64::from(shape.grid), u64::from(shape.block));
        let words = context::words(threads) * blocks;
        let frame = kernel.frame.bytes(threads, shape.shared.into());
        let context = self.alloc(context::BYTES);
        let done = self.alloc(words * 4);
        let [mut from, mut into] =
            [(); 2].map(|()| (self.alloc(blocks * 4), self.alloc(frame * u64::from(capacity))));
        let mut params = params(context);
        params.resize(kernel.context as usize, 0);
        params.extend(context.to_le_bytes());
        let mut stops = Stops::default();
        loop {
            self.put(into.0, &vec![0u8; (blocks * 4) as usize]);
            self.put(into.1, &vec![0u8; (frame * u64::from(capacity)) as usize]);
            let when = when(&stops);
            let head = context::Head {
                capacity,
                done,
                from: if stops.launches > 0 { from.0 } else { 0 },
                into: into.0,
                frames_from: from.1,
                frames_into: into.1,
            };
            self.put(context, &head.to_bytes());
            self.put(context + context::STOP, &[u32::from(matches!(when, When::Before))]);
            self.launch(&kernel.twin, shape, &params);
            stops.launches += 1;
            if let When::After(pause) = when {
                std::thread::sleep(pause);
                self.copy(context + context::STOP, &1u32 as *const u32 as u64, 4)?;
            }
            self.end()?;
            let slots = self.get::<u32>(into.0, blocks as usize);
            let half_way = slots.iter().filter(|slot| (1..context::NO_ROOM).contains(*slot)).count();
            stops.half_way += half_way;
            stops.last = half_way;
            stops.no_room += slots.iter().filter(|slot| **slot == context::NO_ROOM).count();
            let done =
                self.get::<u32>(done, words as usize).iter().map(|word| word.count_ones()).sum::<u32>();
            if u64::from(done) == blocks * threads {
                assert_eq!(half_way, 0, "all are done");
                return Ok(stops);
            }
            assert!(stops.launches < 10_000, "no end: {done} threads are done");
            // What has not been launched since is where it was; here all that was half-way has been.
            std::mem::swap(&mut from, &mut into);
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for (block, range) in self.memory.borrow_mut().drain(..) {
            BACKEND.unmap_block(block).unwrap();
            FREE.lock().unwrap().push(range);
        }
        BACKEND.context_destroy(self.ctx).unwrap();
    }
}
