//! What cases work with: a context, an arena, registered host memory, a module.

use crate::{BLOCK_GRANULARITY, Backend, Launch, Range, RawContext, RawFunction, RawModule, StreamArg};
use std::cell::Cell;

/// The kernels of the cases; PTX text ends in a NUL, as the application passes it.
pub const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Where the arena of the suite lies: behind what a server would use.
const ARENA: Range = Range { base: 0x2f00_0000_0000, bytes: 1 << 32 };

pub struct Rig<'a> {
    pub backend: &'a dyn Backend,
    pub ctx: RawContext,
    pub module: RawModule,
    next: Cell<u64>,
}

impl<'a> Rig<'a> {
    pub fn new(backend: &'a dyn Backend) -> Self {
        backend.reserve(ARENA).expect("the arena is free");
        let mut ctx = None;
        let make = &mut || backend.context_create(0, 0, true).map(|made| ctx = Some(made));
        backend.place(None, make).expect("a context");
        let ctx = ctx.expect("place has run make");
        let module = backend.module_load(ctx, KERNELS.as_bytes(), &[]).expect("the suite's kernels load");
        Self { backend, ctx, module, next: Cell::new(ARENA.base) }
    }

    /// A fresh part of the arena, with nothing behind it.
    pub fn free_range(&self, bytes: u64) -> Range {
        let bytes = bytes.next_multiple_of(BLOCK_GRANULARITY);
        let base = self.next.replace(self.next.get() + bytes);
        assert!(base + bytes <= ARENA.end(), "the suite's arena is too small");
        Range { base, bytes }
    }

    /// Fresh device memory.
    pub fn memory(&self, bytes: u64) -> u64 {
        let range = self.free_range(bytes);
        self.backend.map_block(0, range).expect("a block");
        range.base
    }

    pub fn function(&self, name: &str) -> RawFunction {
        self.backend.function(self.ctx, self.module, name).expect(name)
    }

    /// Launches `blocks` blocks of `threads` threads.
    pub fn launch(&self, stream: StreamArg, name: &str, [blocks, threads]: [u32; 2], params: &[u8]) -> crate::Result<()> {
        self.backend.launch(self.ctx, &launch(self.function(name), stream, [blocks, threads], params))
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.backend
            .copy(self.ctx, StreamArg::Legacy, address, bytes.as_ptr() as u64, bytes.len() as u64)
            .expect("copy to the device");
        self.wait();
    }

    pub fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.backend
            .copy(self.ctx, StreamArg::Legacy, out.as_mut_ptr() as u64, address, bytes as u64)
            .expect("copy to the host");
        self.wait();
        out
    }

    pub fn read_u64(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().expect("8 bytes"))
    }

    pub fn wait(&self) {
        self.backend.context_synchronize(self.ctx).expect("the device gets idle");
    }

    pub fn counter(&self) -> u64 {
        self.backend.global(self.ctx, self.module, "counter").expect("counter").base
    }
}

pub fn launch<'p>(
    function: RawFunction,
    stream: StreamArg,
    [blocks, threads]: [u32; 2],
    params: &'p [u8],
) -> Launch<'p> {
    Launch { function, grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0, stream, attributes: &[], params }
}

/// Parameters, each aligned to its size.
pub fn params(each: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for bytes in each {
        out.resize(out.len().next_multiple_of(bytes.len()), 0);
        out.extend_from_slice(bytes);
    }
    out
}

/// Page-aligned host memory that stays where it is.
pub struct HostPages {
    memory: Vec<u8>,
    start: usize,
    pub bytes: usize,
}

impl HostPages {
    pub fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, bytes }
    }

    pub fn range(&self) -> Range {
        Range { base: self.memory.as_ptr() as u64 + self.start as u64, bytes: self.bytes as u64 }
    }

    pub fn slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}
