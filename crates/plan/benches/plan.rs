//! How long plans take: `cargo bench -p plan`.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use plan::cost::Rates;
use plan::path::{Points, cheapest, exactly};
use plan::units::{Bandwidth, Mtbf, Nanos};
use plan::{expected, format, model, synthetic};
use std::hint::black_box;

/// Times and costs without any order to them: a second between boundaries on average.
fn points(len: u64) -> Points {
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut now = 0;
    let at = (0..len).map(|_| {
        now += random() % 2_000_000_000;
        now
    });
    let at: Vec<u64> = at.collect();
    let cost = at.iter().map(|_| u128::from(random() % (64 << 30)) * 27).collect();
    Points { at, cost, end: now }
}

fn paths(criterion: &mut Criterion) {
    for (name, len) in [("1e6", 1_000_000), ("1e7", 10_000_000)] {
        let points = points(len);
        // A checkpoint each thousand boundaries at least.
        let interval = 1_000_000_000_000;
        let fewest = points.fewest(interval);
        let mut group = criterion.benchmark_group(format!("path-{name}"));
        group.sample_size(10).throughput(Throughput::Elements(len));
        group.bench_function("any-count", |b| b.iter(|| cheapest(black_box(&points), interval)));
        group.bench_function("exactly", |b| b.iter(|| exactly(black_box(&points), interval, fewest * 3 / 2)));
        group.finish();
    }
}

fn whole_plans(criterion: &mut Criterion) {
    let mtbf = |seconds| Mtbf::of_seconds(seconds).unwrap();
    let bandwidth = |bytes| Bandwidth::per_second(bytes).unwrap();
    for (name, cycles) in [("1e6", 14_500), ("1e7", 145_000)] {
        let profile = synthetic::multigrid(cycles, 6).unwrap();
        let mut group = criterion.benchmark_group(format!("plan-{name}"));
        group.sample_size(10).throughput(Throughput::Elements(profile.device().len()));
        for (way, model, count) in [
            ("sync", model::Model::Sync, None),
            ("async", model::Model::Async, None),
            ("sync-exactly", model::Model::Sync, Some(cycles / 10)),
            ("async-exactly", model::Model::Async, Some(cycles / 10)),
        ] {
            let wishes = model::Wishes {
                model,
                mtbf: model::Mtbfs { gpu: mtbf(240.0), cpu: mtbf(400.0) },
                interval: None,
                count,
                cpu_count: None,
                offset: None,
                rates: Rates::of_bandwidths(bandwidth(2_000_000_000), bandwidth(25_000_000_000)).unwrap(),
                objective: model::Wanted::Cost,
            };
            group.bench_function(way, |b| b.iter(|| model::plan(black_box(&profile), &wishes).unwrap()));
        }
        group.finish();
    }
}

fn others(criterion: &mut Criterion) {
    let points = points(1_000_000);
    let costs: Vec<f64> = points.cost.iter().map(|cost| *cost as f64 / 5e10).collect();
    let law = |shape| {
        expected::Failures::weibull(shape, Nanos(60_000_000_000))
            .unwrap()
            .law(Mtbf::of_seconds(86_400.0).unwrap())
    };
    let mut group = criterion.benchmark_group("others-1e6");
    group.sample_size(10);
    group.bench_function("run-time-exponential", |b| {
        b.iter(|| expected::cheapest(&points.at, &costs, points.end, &law(1.0)))
    });
    group.bench_function("run-time-weibull-0.7", |b| {
        b.iter(|| expected::cheapest(&points.at, &costs, points.end, &law(0.7)))
    });
    let profile = synthetic::multigrid(14_500, 6).unwrap();
    let file = format::encode(&profile);
    group.bench_function("decode", |b| {
        b.iter_batched(|| file.clone(), |file| format::decode(&file), BatchSize::LargeInput)
    });
    group.finish();
}

criterion_group!(benches, paths, whole_plans, others);
criterion_main!(benches);
