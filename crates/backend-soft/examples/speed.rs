//! Measures the interpreter: a tiled matrix product, and what an empty launch costs.

#[path = "../tests/suite/common/mod.rs"]
mod common;

use std::time::Instant;

use backend::{Backend, Launch, StreamArg};
use common::Param::{U32, U64};
use common::{BACKEND, Gpu};

fn main() {
    let gpu = Gpu::new(include_str!("../tests/suite/kernels/kernels.ptx"));
    let n = 512usize;
    let values: Vec<f32> = (0..n * n).map(|i| (i % 13) as f32).collect();
    let (a, b, c) = (gpu.upload(&values), gpu.upload(&values), gpu.alloc(4 * (n * n) as u64));
    let blocks = (n / 16) as u32;
    for _ in 0..3 {
        let start = Instant::now();
        let params = [U64(a), U64(b), U64(c), U32(n as u32)];
        let ran = gpu.run("matmul", [blocks, blocks, 1], [16, 16, 1], 0, &params);
        let seconds = start.elapsed().as_secs_f64();
        println!("matmul {n}: {ran:?}, {:.2} GFLOP/s", 2.0 * (n * n * n) as f64 / seconds / 1e9);
    }
    let function = gpu.function("print");
    let launch = Launch {
        function,
        grid: [1; 3],
        block: [32, 1, 1],
        shared: 0,
        stream: StreamArg::Legacy,
        attributes: &[],
        params: &[0; 4],
    };
    let count = 10_000;
    let start = Instant::now();
    for _ in 0..count {
        let _ = BACKEND.launch(gpu.ctx, &launch);
    }
    let submitted = start.elapsed();
    let _ = BACKEND.context_synchronize(gpu.ctx);
    println!("launch: {:?} to submit, {:?} in all", submitted / count, start.elapsed() / count);
    let start = Instant::now();
    for _ in 0..count {
        let _ = BACKEND.launch(gpu.ctx, &launch);
        let _ = BACKEND.context_synchronize(gpu.ctx);
    }
    println!("launch and synchronise: {:?}", start.elapsed() / count);
}
