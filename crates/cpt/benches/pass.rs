//! How long the pass takes for each byte of PTX: `cargo bench -p cpt`.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

/// Kernels of every kind that the tests stop, made by nvcc.
const KERNELS: &str = include_str!("../tests/suite/kernels.ptx");

fn pass(criterion: &mut Criterion) {
    let module = ptx::parse(KERNELS).unwrap();
    let mut group = criterion.benchmark_group("kernels");
    group.sample_size(20).throughput(Throughput::Bytes(KERNELS.len() as u64));
    group.bench_function("parse", |b| b.iter(|| ptx::parse(black_box(KERNELS)).unwrap()));
    group.bench_function("rewrite", |b| b.iter(|| cpt::rewrite(black_box(&module)).unwrap()));
    group.finish();
}

criterion_group!(benches, pass);
criterion_main!(benches);
