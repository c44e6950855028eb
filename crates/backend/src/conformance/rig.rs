//! What every behaviour needs: a context, some memory, the suite's kernels.

use crate::{
    BLOCK_GRANULARITY, Backend, Launch, Range, RawBlock, RawContext, RawFunction, RawModule, RawStream,
    StreamArg,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Kernels that add, store, copy, sum up, wait and go astray.
pub(super) const BASIC: &str = include_str!("ptx/basic.ptx");
/// Variables, and a kernel that uses them.
pub(super) const VARIABLES: &str = include_str!("ptx/variables.ptx");
/// Variables in managed memory, and a kernel that uses them.
pub(super) const MANAGED: &str = include_str!("ptx/managed.ptx");
/// A kernel that prints.
pub(super) const HELLO: &str = include_str!("ptx/hello.ptx");

/// From one behaviour's memory to the next.
const STRIDE: u64 = 64 << 30;
static NEXT: AtomicU64 = AtomicU64::new(0x4000_0000_0000);

/// How long anything may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A context of the first device, and a reserved range with one mapped block.
pub(super) struct Rig<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) ctx: RawContext,
    /// The block.
    pub(super) memory: Range,
    block: Option<RawBlock>,
}

impl<'a> Rig<'a> {
    pub(super) fn new(backend: &'a dyn Backend) -> Self {
        Self::with(backend, false)
    }

    /// The same with the device's primary context.
    pub(super) fn primary(backend: &'a dyn Backend) -> Self {
        Self::with(backend, true)
    }

    fn with(backend: &'a dyn Backend, primary: bool) -> Self {
        let ctx = backend.context_create(0, 0, primary).unwrap();
        let memory = Range { base: addresses(), bytes: BLOCK_GRANULARITY };
        backend.reserve(Range { bytes: STRIDE, ..memory }).unwrap();
        let block = backend.map_block(0, memory).unwrap();
        Self { backend, ctx, memory, block: Some(block) }
    }

    /// An address in the block.
    pub(super) fn at(&self, offset: u64) -> u64 {
        assert!(offset < self.memory.bytes);
        self.memory.base + offset
    }

    pub(super) fn put(&self, address: u64, words: &[u32]) {
        let bytes = size_of_val(words) as u64;
        self.backend.copy(self.ctx, StreamArg::Legacy, address, words.as_ptr() as u64, bytes).unwrap();
    }

    /// Reads once everything is done.
    pub(super) fn get(&self, address: u64, count: usize) -> Vec<u32> {
        self.backend.context_synchronize(self.ctx).unwrap();
        let mut words = vec![0u32; count];
        let to = words.as_mut_ptr() as u64;
        self.backend.copy(self.ctx, StreamArg::Legacy, to, address, (count * 4) as u64).unwrap();
        self.backend.context_synchronize(self.ctx).unwrap();
        words
    }

    pub(super) fn load(&self, ptx: &str) -> RawModule {
        load(self.backend, self.ctx, ptx)
    }

    /// Where a variable of so many bytes lies. To a copy, what lies beyond those that the backend tells of is the host's.
    pub(super) fn variable(&self, module: RawModule, name: &str, bytes: u64) -> u64 {
        let range = self.backend.global(self.ctx, module, name).unwrap();
        assert_eq!(range.bytes, bytes);
        range.base
    }

    pub(super) fn kernel(&self, ptx: &str, name: &str) -> RawFunction {
        self.backend.function(self.ctx, self.load(ptx), name).unwrap()
    }

    pub(super) fn stream(&self, flags: u32) -> RawStream {
        self.backend.stream_create(self.ctx, flags, 0).unwrap()
    }

    /// Launches one block of `threads` threads.
    pub(super) fn launch(&self, function: RawFunction, threads: u32, stream: StreamArg, params: &[u8]) {
        self.backend.launch(self.ctx, &one_block(function, threads, stream, params)).unwrap();
    }

    /// Waits, with patience, and looking rather than waiting in the backend.
    pub(super) fn wait(&self, stream: StreamArg) {
        wait_until(|| self.backend.stream_query(self.ctx, stream).unwrap());
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // A failed context does not synchronise, and is destroyed all the same.
        let _ = self.backend.context_synchronize(self.ctx);
        if let Some(block) = self.block.take() {
            self.backend.unmap_block(block).unwrap();
        }
        self.backend.context_destroy(self.ctx).unwrap();
    }
}

/// A range of addresses that no other behaviour uses.
pub(super) fn addresses() -> u64 {
    NEXT.fetch_add(STRIDE, Ordering::Relaxed)
}

pub(super) fn load(backend: &dyn Backend, ctx: RawContext, ptx: &str) -> RawModule {
    load_managed(backend, ctx, ptx, &[])
}

/// Loads a module whose variables in managed memory lie at addresses.
pub(super) fn load_managed(
    backend: &dyn Backend,
    ctx: RawContext,
    ptx: &str,
    managed: &[(&str, u64)],
) -> RawModule {
    let image = [ptx.as_bytes(), b"\0"].concat();
    backend.module_load(ctx, &image, &[], managed).unwrap_or_else(|error| panic!("{error:?}")).code
}

pub(super) fn one_block(function: RawFunction, threads: u32, stream: StreamArg, params: &[u8]) -> Launch<'_> {
    Launch { function, grid: [1; 3], block: [threads, 1, 1], shared: 0, stream, attributes: &[], params }
}

pub(super) fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "still not done after {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Parameters as the kernels of the suite lay them out: 8-byte values, then 4-byte ones.
pub(super) fn params(wide: &[u64], narrow: &[u32]) -> Vec<u8> {
    let wide = wide.iter().flat_map(|value| value.to_le_bytes());
    wide.chain(narrow.iter().flat_map(|value| value.to_le_bytes())).collect()
}

/// Host memory known to the device: a page with flags that kernels and the suite share.
pub(super) struct Shared<'a> {
    backend: &'a dyn Backend,
    /// Never freed: what was not shown may leave it registered.
    page: &'static Page,
}

#[repr(C, align(4096))]
struct Page([std::sync::atomic::AtomicU32; 1024]);

impl<'a> Shared<'a> {
    pub(super) fn new(backend: &'a dyn Backend) -> Self {
        let page = Box::leak(Box::new(Page([const { std::sync::atomic::AtomicU32::new(0) }; 1024])));
        let shared = Self { backend, page };
        backend.register_host(shared.range()).unwrap();
        shared
    }

    fn range(&self) -> Range {
        Range { base: &raw const *self.page as u64, bytes: 4096 }
    }

    pub(super) fn address(&self, index: usize) -> u64 {
        &raw const self.page.0[index] as u64
    }

    pub(super) fn get(&self, index: usize) -> u32 {
        self.page.0[index].load(Ordering::Acquire)
    }

    pub(super) fn set(&self, index: usize, value: u32) {
        self.page.0[index].store(value, Ordering::Release);
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.backend.unregister_host(self.range()).unwrap();
        }
    }
}
