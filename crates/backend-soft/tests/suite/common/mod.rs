//! A context, memory and a module, for tests that launch kernels.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use backend::{
    BLOCK_GRANULARITY, Backend, Launch, Range, RawContext, RawFunction, RawModule, Result, StreamArg,
};
use backend_soft::{Options, SoftBackend};
use wire::LaunchValue;

/// One device for all tests of a process: module memory has one place in the address space.
pub static BACKEND: LazyLock<SoftBackend> = LazyLock::new(|| SoftBackend::new(Options::default()));
static NEXT: AtomicU64 = AtomicU64::new(0x2800_0000_0000);

/// A context with a module in it.
pub struct Gpu {
    pub ctx: RawContext,
    pub module: RawModule,
}

impl Gpu {
    pub fn new(ptx: &str) -> Self {
        let ctx = BACKEND.context_create(0, 0, false).unwrap();
        let loaded = BACKEND
            .module_load(ctx, ptx.as_bytes(), &[], &[])
            .unwrap_or_else(|error| panic!("{}", error.detail));
        Self { ctx, module: loaded.code }
    }

    /// Zeroed device memory.
    pub fn alloc(&self, bytes: u64) -> u64 {
        let bytes = bytes.next_multiple_of(BLOCK_GRANULARITY);
        let range = Range { base: NEXT.fetch_add(bytes + BLOCK_GRANULARITY, Ordering::Relaxed), bytes };
        BACKEND.reserve(range).unwrap();
        BACKEND.map_block(0, range).unwrap();
        range.base
    }

    /// Device memory that holds these values.
    pub fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let address = self.alloc(size_of_val(values) as u64);
        let (from, bytes) = (values.as_ptr() as u64, size_of_val(values) as u64);
        BACKEND.copy(self.ctx, StreamArg::Legacy, address, from, bytes).unwrap();
        BACKEND.context_synchronize(self.ctx).unwrap();
        address
    }

    pub fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        BACKEND.context_synchronize(self.ctx).unwrap();
        let mut out = vec![T::default(); count];
        let bytes = size_of_val(&out[..]) as u64;
        BACKEND.copy(self.ctx, StreamArg::Legacy, out.as_mut_ptr() as u64, address, bytes).unwrap();
        out
    }

    pub fn function(&self, name: &str) -> RawFunction {
        BACKEND.function(self.ctx, self.module, name).unwrap()
    }

    /// Launches and waits.
    pub fn run(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: &[Param],
    ) -> Result<()> {
        self.run_with(name, grid, block, shared, params, &[])
    }

    /// The same with attributes.
    pub fn run_with(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: &[Param],
        attributes: &[(u32, LaunchValue)],
    ) -> Result<()> {
        let params = encode(params);
        let function = self.function(name);
        let stream = StreamArg::Legacy;
        BACKEND.launch(
            self.ctx,
            &Launch { function, grid, block, shared, stream, attributes, params: &params },
        )?;
        BACKEND.context_synchronize(self.ctx)
    }
}

/// A kernel's argument.
#[derive(Clone, Debug)]
pub enum Param {
    U32(u32),
    U64(u64),
    /// A structure aligned to 8 bytes.
    Bytes(Vec<u8>),
}

fn encode(params: &[Param]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for param in params {
        let (align, bytes) = match param {
            Param::U32(value) => (4, value.to_le_bytes().to_vec()),
            Param::U64(value) => (8, value.to_le_bytes().to_vec()),
            Param::Bytes(bytes) => (8, bytes.clone()),
        };
        out.resize(out.len().next_multiple_of(align), 0);
        out.extend(bytes);
    }
    out
}
