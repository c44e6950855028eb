//! A software device with one module, whose heap is ours.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use backend::{BLOCK_GRANULARITY, Backend, Launch, Range, RawBlock, RawContext, RawModule, StreamArg};
use backend_soft::{Options, SoftBackend};
use heap::Layout;

static BACKEND: LazyLock<SoftBackend> = LazyLock::new(|| SoftBackend::new(Options::default()));
static NEXT: AtomicU64 = AtomicU64::new(0x2900_0000_0000);

/// A module on the device, and memory that is gone with it.
pub struct Gpu {
    ctx: RawContext,
    module: RawModule,
    memory: Vec<RawBlock>,
    /// The heap.
    pub heap: Range,
}

impl Gpu {
    /// With a heap of `limit` bytes.
    pub fn new(kernels: &str, limit: u64) -> Self {
        let mut module = ptx::parse(kernels).unwrap();
        assert!(heap::rewrite(&mut module).is_some());
        let ctx = BACKEND.context_create(0, 0, false).unwrap();
        let loaded = BACKEND.module_load(ctx, module.to_string().as_bytes(), &[], &[]);
        let module = loaded.unwrap_or_else(|error| panic!("{}", error.detail)).code;
        let mut gpu = Self { ctx, module, memory: Vec::new(), heap: Range { base: 0, bytes: 0 } };
        let bytes = Layout::bytes(limit);
        gpu.heap = Range { base: gpu.alloc(bytes), bytes };
        gpu.tell(gpu.heap);
        gpu
    }

    /// Says where the heap is.
    fn tell(&self, heap: Range) {
        let variable = BACKEND.global(self.ctx, self.module, heap::VARIABLE).unwrap();
        let value = Layout::new(heap.base, heap.bytes).variable();
        assert_eq!(variable.bytes, value.len() as u64);
        self.put(variable.base, &value);
    }

    /// Zeroed device memory.
    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(BLOCK_GRANULARITY);
        let range = Range { base: NEXT.fetch_add(bytes, Ordering::Relaxed), bytes };
        BACKEND.reserve(range).unwrap();
        self.memory.push(BACKEND.map_block(0, range).unwrap());
        range.base
    }

    /// Device memory with these values.
    pub fn with<T: Copy>(&mut self, values: &[T]) -> u64 {
        let address = self.alloc(size_of_val(values) as u64);
        self.put(address, values);
        address
    }

    fn copy(&self, to: u64, from: u64, bytes: u64) {
        BACKEND.copy(self.ctx, StreamArg::Legacy, to, from, bytes).unwrap();
        BACKEND.stream_synchronize(self.ctx, StreamArg::Legacy).unwrap();
    }

    pub fn put<T: Copy>(&self, address: u64, values: &[T]) {
        self.copy(address, values.as_ptr() as u64, size_of_val(values) as u64);
    }

    pub fn get<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut out = vec![T::default(); count];
        self.copy(out.as_mut_ptr() as u64, address, size_of_val(&out[..]) as u64);
        out
    }

    /// Launches a kernel and waits for it.
    pub fn run(&self, name: &str, grid: u32, block: u32, params: &[u8]) -> backend::Result<()> {
        let function = BACKEND.function(self.ctx, self.module, name)?;
        let launch = Launch {
            function,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared: 0,
            stream: StreamArg::Legacy,
            attributes: &[],
            params,
        };
        BACKEND.launch(self.ctx, &launch)?;
        BACKEND.stream_synchronize(self.ctx, StreamArg::Legacy)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        BACKEND.context_destroy(self.ctx).unwrap();
        for block in self.memory.drain(..) {
            BACKEND.unmap_block(block).unwrap();
        }
    }
}

/// Parameters, one after the other.
pub fn params(wide: &[u64], narrow: &[u32]) -> Vec<u8> {
    let wide = wide.iter().flat_map(|value| value.to_le_bytes());
    wide.chain(narrow.iter().flat_map(|value| value.to_le_bytes())).collect()
}
