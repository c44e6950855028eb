//! Kernels that nvcc compiled (`kernels/kernels.cu`), checked against what the host computes.
#![allow(clippy::unwrap_used)]

use crate::common::Param::{Bytes, U32, U64};
use crate::common::{BACKEND, Gpu};
use backend::{Backend, Launch, StreamArg};
use wire::{CuError, LaunchValue};

const PTX: &str = include_str!("kernels/kernels.ptx");

fn line(n: u32) -> [u32; 3] {
    [n, 1, 1]
}

#[test]
fn divergent_loops_end_where_they_should() {
    let gpu = Gpu::new(PTX);
    let n = 1000;
    let out = gpu.alloc(4 * n);
    gpu.run("collatz", line(4), line(256), 0, &[U64(out), U32(n as u32)]).unwrap();
    let steps = |start: u64| {
        let (mut value, mut count) = (start, 0u32);
        while value != 1 {
            value = if value % 2 == 1 { 3 * value + 1 } else { value / 2 };
            count += 1;
        }
        count
    };
    let expected: Vec<u32> = (1..=n).map(steps).collect();
    assert_eq!(gpu.download::<u32>(out, n as usize), expected);
}

#[test]
fn a_spin_lock_is_fair_to_every_lane() {
    let gpu = Gpu::new(PTX);
    let counter = gpu.upload(&[0u32]);
    gpu.run("spin_lock", line(8), line(64), 0, &[U64(counter), U32(3)]).unwrap();
    assert_eq!(gpu.download::<u32>(counter, 1), [8 * 64 * 3]);
}

#[test]
fn blocks_may_wait_for_later_ones() {
    let gpu = Gpu::new(PTX);
    let flags = gpu.alloc(4 * 40);
    gpu.run("wait_for_next", line(40), line(32), 0, &[U64(flags), U32(40)]).unwrap();
    assert_eq!(gpu.download::<u32>(flags, 40), (0..40).map(|i| 40 - i).collect::<Vec<u32>>());
}

#[test]
fn shared_memory_sums_a_block() {
    let gpu = Gpu::new(PTX);
    let input: Vec<f32> = (0..1000).map(|i| (i % 17) as f32).collect();
    let (a, out) = (gpu.upload(&input), gpu.alloc(64));
    gpu.run("block_sum", line(4), line(256), 256 * 4, &[U64(a), U64(out), U32(1000)]).unwrap();
    let expected: Vec<f32> = input.chunks(256).map(|part| part.iter().sum()).collect();
    assert_eq!(gpu.download::<f32>(out, 4), expected);
}

#[test]
fn lanes_exchange_values() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(32 * 16 * 4);
    gpu.run("warp_ops", line(1), line(32), 0, &[U64(out)]).unwrap();
    let got = gpu.download::<u32>(out, 32 * 16);
    let thirds = (0..32).filter(|i| i % 3 == 0).fold(0u32, |mask, i| mask | 1 << i);
    for t in 0..32u32 {
        let in16 = |lane: u32| if lane / 16 == t / 16 { lane * 10 } else { t * 10 };
        let group = t / 5 * 5;
        let matching = (group..(group + 5).min(32)).fold(0u32, |mask, i| mask | 1 << i);
        let partner = (t + 2) % 32;
        let quad: u32 = (t / 4 * 4..t / 4 * 4 + 4).sum();
        let expected = [
            in16(t + 3),
            if t % 8 == 0 { t * 10 } else { (t - 1) * 10 },
            (t ^ 5) * 10,
            (t / 8 * 8 + 7) * 10,
            thirds,
            1,
            matching,
            !0,
            1,
            (0..32).sum(),
            11,
            if t % 2 == 1 { partner } else { partner + 100 },
            !0,
            32,
            quad,
            5,
        ];
        assert_eq!(got[t as usize * 16..][..16], expected, "lane {t}");
    }
}

#[test]
fn lanes_that_ended_are_not_waited_for() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 20);
    gpu.run("early_exit", line(1), line(32), 0, &[U64(out)]).unwrap();
    let got = gpu.download::<u32>(out, 19);
    assert_eq!(got, (0..19).map(|t| t + 1 + 0xfffff).collect::<Vec<u32>>());
}

#[test]
fn bins_count_every_byte() {
    let gpu = Gpu::new(PTX);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (input, bins) = (gpu.upload(&data), gpu.alloc(256));
    gpu.run("histogram", line(6), line(128), 0, &[U64(input), U64(bins), U32(100_000)]).unwrap();
    let mut expected = vec![0u32; 64];
    data.iter().for_each(|byte| expected[usize::from(byte / 4)] += 1);
    assert_eq!(gpu.download::<u32>(bins, 64), expected);
}

#[test]
fn atomics_lose_nothing() {
    let gpu = Gpu::new(PTX);
    let n = 1024u32;
    let u = gpu.upload(&[0u32, 0, 7777, 0, 0, !0, 0, 0]);
    let s = gpu.upload(&[0i32, 0]);
    let (f, d, l, h) = (gpu.upload(&[0f32]), gpu.upload(&[0f64]), gpu.upload(&[0u64]), gpu.upload(&[0u32]));
    gpu.run("atomics", line(8), line(128), 0, &[U64(u), U64(s), U64(f), U64(d), U64(l), U64(h)]).unwrap();
    let (mut inc, mut dec) = (0u32, 0u32);
    for _ in 0..n {
        inc = if inc >= 99 { 0 } else { inc + 1 };
        dec = if dec == 0 || dec > 50 { 50 } else { dec - 1 };
    }
    let xor = (0..n).fold(0, |all, t| all ^ t);
    assert_eq!(gpu.download::<u32>(u, 8), [n * (n - 1) / 2, n - 1, 0, inc, dec, 0, !0, xor]);
    assert_eq!(gpu.download::<i32>(s, 2), [-500, 523]);
    assert_eq!(gpu.download::<f32>(f, 1), [512.0]);
    assert_eq!(gpu.download::<f64>(d, 1), [256.0]);
    assert_eq!(gpu.download::<u64>(l, 1), [1023 << 33]);
    assert_eq!(gpu.download::<u32>(h, 1), [0x6000_0000], "512 in the high half");
}

#[test]
fn functions_recurse() {
    fn ackermann(m: u32, n: u32) -> u32 {
        match (m, n) {
            (0, n) => n + 1,
            (m, 0) => ackermann(m - 1, 1),
            (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
        }
    }
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 64);
    gpu.run("recursion", line(1), line(64), 0, &[U64(out)]).unwrap();
    assert_eq!(gpu.download::<u32>(out, 64), (0..64).map(|t| ackermann(t % 3, t % 5)).collect::<Vec<_>>());
}

#[test]
fn function_pointers_pass_structures() {
    let gpu = Gpu::new(PTX);
    let (a, b) = (gpu.alloc(8 * 40), gpu.alloc(4 * 40));
    let mut first = 2.5f64.to_le_bytes().to_vec();
    first.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    gpu.run("indirect", line(1), line(40), 0, &[U64(a), U64(b), Bytes(first)]).unwrap();
    let of = |t: u32| {
        let (a, b) = (2.5 + f64::from(t), 9 + t);
        let (a, b) = [(a * 2.0, b * 2), (a / 2.0, b / 2), (a + 1.0, b + 1)][t as usize % 3];
        (a / 2.0, b / 2)
    };
    assert_eq!(gpu.download::<f64>(a, 40), (0..40).map(|t| of(t).0).collect::<Vec<_>>());
    assert_eq!(gpu.download::<u32>(b, 40), (0..40).map(|t| of(t).1).collect::<Vec<_>>());
}

#[test]
fn generic_addresses_reach_local_and_shared_memory() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 64);
    gpu.run("locals", line(1), line(64), 0, &[U64(out)]).unwrap();
    let expected: Vec<i32> = (0..64)
        .map(|t| {
            let either = if t % 2 == 1 { t } else { 3 };
            t * (t % 20) + either * (t % 16) + 3 * (63 - t % 64)
        })
        .collect();
    assert_eq!(gpu.download::<i32>(out, 64), expected);
}

#[test]
fn switches_take_every_way() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 96);
    gpu.run("switches", line(1), line(96), 0, &[U64(out)]).unwrap();
    let of = |t: i32| [t * 3, t - 100, t ^ 0x55, t << 4, -t, t * t, t / 3, t % 4, 0][t as usize % 9];
    assert_eq!(gpu.download::<i32>(out, 96), (0..96).map(of).collect::<Vec<_>>());
}

#[test]
fn symbols_lie_where_the_host_is_told() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 8);
    let weights = BACKEND.global(gpu.ctx, gpu.module, "weights").unwrap();
    assert_eq!(weights.bytes, 16);
    assert_eq!(gpu.download::<f32>(weights.base, 4), [0.5, 1.5, -2.0, 0.25]);
    gpu.run("symbols", line(1), line(8), 0, &[U64(out)]).unwrap();
    let expected: Vec<f32> = (0..8).map(|t| [0.5, 1.5, -2.0, 0.25][t % 4] * t as f32 + 3.0).collect();
    assert_eq!(gpu.download::<f32>(out, 8), expected);
}

#[test]
fn short_floats_round_once() {
    let gpu = Gpu::new(PTX);
    let input = [0.1f32, -2.3, 1000.7, 65504.0, 1e-7, 3.0e-5, 65520.0, f32::INFINITY];
    let (a, out) = (gpu.upload(&input), gpu.alloc(128));
    gpu.run("halves", line(1), line(8), 0, &[U64(a), U64(out), U32(8)]).unwrap();
    let half = |x: f64| {
        if x.is_infinite() {
            return x;
        }
        // The nearest multiple of the unit in the last place, ties to even.
        let exponent = if x == 0.0 { -14 } else { (x.abs().log2().floor() as i32).max(-14) };
        let unit = 2f64.powi(exponent - 10);
        let rounded = (x / unit).round_ties_even() * unit;
        if rounded.abs() > 65504.0 { f64::INFINITY.copysign(x) } else { rounded }
    };
    let bfloat = |x: f32| {
        let bits = x.to_bits();
        if x.is_finite() { f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000) } else { x }
    };
    let got = gpu.download::<f32>(out, 32);
    for (x, got) in input.iter().zip(got.chunks(4)) {
        let h = half(f64::from(*x));
        let expected = [h as f32, bfloat(*x), half(h * h + 1.0) as f32, half(h * 3.0) as f32];
        assert_eq!(got, expected, "{x}");
    }
}

#[test]
fn the_mathematics_library_is_close_to_the_host_s() {
    let gpu = Gpu::new(PTX);
    let input = [0.0f64, 0.5, -1.25, 3.7, -7.5, 12.345, 0.001, -20.0];
    let (a, out) = (gpu.upload(&input), gpu.alloc(8 * 12 * 8));
    gpu.run("mathematics", line(1), line(8), 0, &[U64(a), U64(out), U32(8)]).unwrap();
    let got = gpu.download::<f64>(out, 12 * 8);
    for (&x, got) in input.iter().zip(got.chunks(12)) {
        let f = f64::from(x as f32);
        let double = [x.sin(), x.exp(), (x.abs() + 1.0).ln(), x.abs().powf(1.7), x.abs().sqrt()];
        let single = [f.sin(), f.exp(), (f.abs() + 1.0).ln(), f.abs().powf(1.7f32.into()), f.tanh()];
        for (got, want) in got[..5].iter().zip(double) {
            assert!((got - want).abs() <= 4e-15 * want.abs().max(1.0), "{x}: {got} for {want}");
        }
        for (got, want) in got[5..10].iter().zip(single) {
            assert!((got - want).abs() <= 4e-7 * want.abs().max(1.0), "{x}: {got} for {want}");
        }
        assert_eq!(got[10], x.floor() + x.ceil() + x.round_ties_even() + x.trunc() + x.round(), "{x}");
    }
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
fn cooperative() -> (u32, LaunchValue) {
    let mut value = [0; 64];
    value[0] = 1;
    (2, LaunchValue(value))
}

#[test]
fn cooperative_grids_meet() {
    let gpu = Gpu::new(PTX);
    let (threads, blocks) = (64u32, 24u32);
    let (values, sums) = (gpu.alloc(4 * 64 * 24), gpu.alloc(16));
    let params = [U64(values), U64(sums)];
    gpu.run_with("grid_sync", line(blocks), line(threads), 0, &params, &[cooperative()]).unwrap();
    let size = threads * blocks;
    let sum = |round: u32| (0..blocks).map(|b| (b * threads + size / 2) % size + round).sum::<u32>();
    assert_eq!(gpu.download::<u32>(sums, 4), (0..4).map(sum).collect::<Vec<_>>());
    let many = gpu.run_with("grid_sync", line(100_000), line(1024), 0, &params, &[cooperative()]);
    assert_eq!(many, Err(CuError::COOPERATIVE_LAUNCH_TOO_LARGE));
}

#[test]
fn named_barriers_pair_warps() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(8 * 32 * 4);
    gpu.run("named_barriers", line(1), line(64), 0, &[U64(out)]).unwrap();
    let expected: Vec<u32> = (0..8).flat_map(|round| (0..32).map(move |lane| (31 - lane) * round)).collect();
    assert_eq!(gpu.download::<u32>(out, 256), expected);
}

#[test]
fn barriers_in_memory_have_phases() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 96);
    gpu.run("split_barrier", line(1), line(96), 0, &[U64(out)]).unwrap();
    assert_eq!(gpu.download::<u32>(out, 96), (0..96).map(|t| 15 + (t + 1) % 96 * 15).collect::<Vec<u32>>());
}

#[test]
fn matrices_multiply_exactly() {
    let gpu = Gpu::new(PTX);
    let n = 64usize;
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 7.0;
    let a: Vec<f32> = (0..n * n).map(value).collect();
    let b: Vec<f32> = (0..n * n).map(|i| value(i + 13)).collect();
    let (pa, pb, pc) = (gpu.upload(&a), gpu.upload(&b), gpu.alloc(4 * (n * n) as u64));
    let blocks = (n / 16) as u32;
    gpu.run("matmul", [blocks, blocks, 1], [16, 16, 1], 0, &[U64(pa), U64(pb), U64(pc), U32(n as u32)])
        .unwrap();
    let expected: Vec<f32> = (0..n * n)
        .map(|at| (0..n).fold(0f32, |sum, k| a[at / n * n + k].mul_add(b[k * n + at % n], sum)))
        .collect();
    assert_eq!(gpu.download::<f32>(pc, n * n), expected);
}

#[test]
fn what_kernels_print_comes_out() {
    let gpu = Gpu::new(PTX);
    BACKEND.take_output();
    gpu.run("print", line(1), line(32), 0, &[U32(3)]).unwrap();
    let text = String::from_utf8(BACKEND.take_output()).unwrap();
    let of = |t: u32| {
        let letter = char::from(b'a' + t as u8);
        format!("thread {t} of 32: {:5.2} text {letter} 10000000000\n", f64::from(t) * 0.5)
    };
    assert_eq!(text, (0..3).map(of).collect::<String>());
}

#[test]
fn execution_errors_have_their_code() {
    let broken = |name: &str, block: u32, params: &[crate::common::Param]| {
        let gpu = Gpu::new(PTX);
        let error = gpu.run(name, line(1), line(block), 0, params).unwrap_err();
        assert_eq!(BACKEND.context_synchronize(gpu.ctx), Err(error), "sticky");
        error
    };
    let memory = Gpu::new(PTX).alloc(64);
    assert_eq!(broken("misaligned", 1, &[U64(memory)]), CuError::MISALIGNED_ADDRESS);
    assert_eq!(broken("misaligned", 1, &[U64(0x10_0001 - 2)]), CuError::ILLEGAL_ADDRESS);
    assert_eq!(broken("fails_assert", 8, &[U32(5)]), CuError::ASSERT);
    assert_eq!(broken("traps", 1, &[]), CuError::LAUNCH_FAILED);
    assert_eq!(broken("deadlock", 64, &[]), CuError::LAUNCH_FAILED);
}

#[test]
fn wrong_launches_are_told_at_once() {
    let gpu = Gpu::new(PTX);
    let function = gpu.function("matmul");
    let launch = |grid, block, shared, params: &[u8]| {
        let stream = StreamArg::Legacy;
        BACKEND.launch(gpu.ctx, &Launch { function, grid, block, shared, stream, attributes: &[], params })
    };
    assert_eq!(launch([1, 65536, 1], line(1), 0, &[0; 32]), Err(CuError::INVALID_VALUE));
    assert_eq!(launch(line(1), [1, 1, 65], 0, &[0; 32]), Err(CuError::INVALID_VALUE));
    assert_eq!(launch(line(1), line(1), 64 << 10, &[0; 32]), Err(CuError::INVALID_VALUE));
    assert_eq!(launch(line(1), line(1), 0, &[0; 8]), Err(CuError::INVALID_VALUE));
    BACKEND.context_synchronize(gpu.ctx).unwrap();
}
