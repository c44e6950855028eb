//! Forms of instructions that compilers seldom write (`kernels/forms.ptx`), and what is refused.
#![allow(clippy::unwrap_used)]

use crate::common::Param::U64;
use crate::common::{BACKEND, Gpu};
use backend::Backend;
use wire::CuError;

const PTX: &str = include_str!("kernels/forms.ptx");

#[test]
fn elements_of_every_size_move() {
    let gpu = Gpu::new(PTX);
    let bytes: Vec<u8> = (0..32 * 16u32).map(|i| (i.wrapping_mul(89) ^ i >> 3) as u8).collect();
    let (input, out) = (gpu.upload(&bytes), gpu.alloc(64 * 32));
    gpu.run("sizes", [1; 3], [32, 1, 1], 0, &[U64(input), U64(out)]).unwrap();
    let got = gpu.download::<u8>(out, 64 * 32);
    for (given, got) in bytes.chunks(16).zip(got.chunks(64)) {
        let mut expected = [0u8; 64];
        expected[..4].copy_from_slice(&i32::from(given[0] as i8).to_le_bytes());
        expected[4..8].copy_from_slice(&u32::from(given[0]).to_le_bytes());
        let short = i16::from_le_bytes([given[2], given[3]]);
        expected[8..16].copy_from_slice(&i64::from(short).to_le_bytes());
        expected[16..18].copy_from_slice(&given[2..4]);
        expected[20..24].copy_from_slice(&[given[7], given[6], given[5], given[4]]);
        expected[24..28].copy_from_slice(&[given[10], given[11], given[8], given[9]]);
        expected[32..40].copy_from_slice(&given[8..16]);
        expected[40..48].copy_from_slice(&given[..8]);
        expected[48..52].copy_from_slice(&given[8..12]);
        expected[52..56].copy_from_slice(&given[..4]);
        // %h5, %h4, %h3, %h2, where %h4 = %h2 and %h5 = %h3.
        let (low, high) = (&given[8..10], &given[10..12]);
        expected[56..64].copy_from_slice(&[high, low, high, low].concat());
        assert_eq!(got, expected);
    }
}

#[test]
fn spaces_are_told_apart() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(32 * 32);
    gpu.run("spaces", [1; 3], [32, 1, 1], 0, &[U64(out)]).unwrap();
    for (t, got) in gpu.download::<u32>(out, 32 * 8).chunks(8).enumerate() {
        let t = t as u32;
        assert_eq!(got[..7], [3, t * t, t, 40, 20, t * t, 20], "thread {t}");
    }
}

#[test]
fn reciprocals_are_as_fine_as_documented() {
    let gpu = Gpu::new(PTX);
    let least = f64::from_bits(1);
    let mut values =
        vec![0.25, 2.0, 3.0, 0.1, 1e300, 1e-300, f64::MAX, f64::MIN_POSITIVE, least, 5.0 * least];
    values.extend((1..=22).map(|i| f64::from(i).sqrt() * 1.37));
    let special = [0.0, -0.0, f64::INFINITY, -1.0];
    values.extend(special);
    let count = values.len();
    let (input, out) = (gpu.upload(&values), gpu.alloc(24 * count as u64));
    gpu.run("reciprocals", [1; 3], [count as u32, 1, 1], 0, &[U64(input), U64(out)]).unwrap();
    let got = gpu.download::<f64>(out, 3 * count);
    let (ordinary, got_special) = got.split_at(3 * (count - special.len()));
    for (value, got) in values.iter().zip(ordinary.chunks(3)) {
        // CUDA documents one unit in the last place: an error of 2⁻⁵² of the root at most, twice that of its square.
        let (fine, product) = (got[0], value * got[0]);
        let rest = value.mul_add(fine, -product).mul_add(fine, product.mul_add(fine, -1.0));
        assert!(rest.abs() <= f64::EPSILON * 2.0, "{value:e}: {fine:e}, {rest:e}");
        let subnormal = *value < f64::MIN_POSITIVE;
        for (coarse, exact) in [(got[1], 1.0 / value.sqrt()), (got[2], 1.0 / value)] {
            assert_eq!(coarse.to_bits() as u32, 0, "only the high word: {coarse:e}");
            let flushed = subnormal && coarse == f64::INFINITY || exact < f64::MIN_POSITIVE && coarse == 0.0;
            assert!(flushed || (coarse / exact - 1.0).abs() < 2e-6, "{value:e}: {coarse:e}");
        }
    }
    assert_eq!(
        got_special[..9],
        [
            f64::INFINITY,
            f64::INFINITY,
            f64::INFINITY,
            -f64::INFINITY,
            -f64::INFINITY,
            -f64::INFINITY,
            0.0,
            0.0,
            0.0
        ]
    );
    assert!(got_special[9].is_nan() && got_special[10].is_nan());
}

#[test]
fn values_pass_in_registers() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(4 * 10);
    gpu.run("calls", [1; 3], [10, 1, 1], 0, &[U64(out)]).unwrap();
    let of = |t: u32| if t < 5 { (t * 100 + 3) * 100 + t * 4 } else { 7 };
    assert_eq!(gpu.download::<u32>(out, 10), (0..10).map(of).collect::<Vec<_>>());
}

#[test]
fn barriers_and_votes_reduce() {
    let gpu = Gpu::new(PTX);
    let out = gpu.alloc(16 * 64);
    gpu.run("control", [1; 3], [64, 1, 1], 0, &[U64(out)]).unwrap();
    for (t, got) in gpu.download::<u32>(out, 4 * 64).chunks(4).enumerate() {
        let warp = t / 32;
        // Not all are below 40, some are not; in the first warp all are, in the second some.
        let flags = 2 + if warp == 0 { 4 + 8 } else { 0 };
        let elected = if t == 63 {
            0
        } else if t % 32 == 0 {
            50
        } else {
            60
        };
        assert_eq!(got, [100 + 100 * (t as u32 % 3), elected, 40, flags], "thread {t}");
    }
}

#[test]
fn sixteen_bits_change_atomically() {
    let gpu = Gpu::new(PTX);
    let place = gpu.upload(&[0u32, 0, 0, 0]);
    gpu.run("words", [1; 3], [256, 1, 1], 0, &[U64(place)]).unwrap();
    let got = gpu.download::<u32>(place, 4);
    assert_eq!(got, [256, 256, place as u32, (place >> 32) as u32]);
}

fn refusal(body: &str) -> (CuError, String) {
    let text =
        format!(".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry kernel()\n{{\n{body}\n}}\n");
    let ctx = BACKEND.context_create(0, 0, false).unwrap();
    let error = BACKEND.module_load(ctx, text.as_bytes(), &[], &[]).unwrap_err();
    (error.code, error.detail)
}

#[test]
fn what_is_not_supported_is_named() {
    let (code, detail) = refusal(
        ".reg .b32 %r<3>;\nmov.u32 %r1, 1;\nsetmaxnreg.inc.sync.aligned.u32 240;\nwgmma.fence.sync.aligned;\nret;",
    );
    assert_eq!(code, CuError::INVALID_PTX);
    assert!(detail.contains("kernel, line 9") && detail.contains("wgmma.fence.sync.aligned"), "{detail}");
    // A known opcode with a modifier that means something else.
    let (_, detail) = refusal(".reg .b32 %r<4>;\nadd.sat.u32 %r1, %r2, %r3;\nret;");
    assert!(detail.contains("add.sat.u32"), "{detail}");
    let (_, detail) = refusal(".reg .b64 %q<4>;\nld.global.u64 %q1, [nowhere];\nret;");
    assert!(detail.contains("nowhere"), "{detail}");
}
