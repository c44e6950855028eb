//! Every arithmetic spelling that is tested against recorded results, the values it is tried on, and the PTX that tries it.

/// What values an operand takes, and the register it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 16 bits.
    H,
    /// 32 bits.
    R,
    /// 64 bits.
    Q,
    /// A small number, for shifts and fields, in 32 bits.
    N,
    /// Single precision.
    F,
    /// Double precision.
    D,
    /// Half precision, in 16 bits.
    X,
    /// bfloat16, in 16 bits.
    Y,
    /// Two half-precision values.
    Xx,
    /// Not zero, 32 bits.
    Rn,
    /// Not zero, 64 bits.
    Qn,
    /// Not zero, 16 bits.
    Hn,
}

use Kind::*;

/// An instruction (or a few), with `$d`, `$a`, `$b`, `$c`, and `$p` for a predicate.
#[derive(Clone, Debug)]
pub struct Case {
    pub text: String,
    pub d: Kind,
    pub sources: Vec<Kind>,
}

/// Threads of each kernel: one for each combination of values.
pub const THREADS: usize = 1024;

impl Kind {
    fn register(self) -> &'static str {
        match self {
            H | X | Y | Hn => "h",
            R | N | F | Xx | Rn => "r",
            Q | D | Qn => "q",
        }
    }

    fn bits(self) -> u32 {
        match self.register() {
            "h" => 16,
            "r" => 32,
            _ => 64,
        }
    }

    /// The value of thread `index` in source `source`.
    pub fn value(self, index: usize, source: usize) -> u64 {
        let random = {
            let mut x = (index as u64 * 3 + source as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ x >> 31
        };
        // Every pair of special values comes up, then random ones; the third source goes through them at another pace.
        let pick = [index, index / 16, index / 7][source] % 16;
        let special = index < 400;
        let whole = match self {
            H | R | Q => {
                let edges = [
                    0,
                    1,
                    2,
                    0x7f,
                    0x80,
                    0xff,
                    0x7fff,
                    0x8000,
                    0xffff,
                    0x7fff_ffff,
                    0x8000_0000,
                    0xffff_ffff,
                    1 << 63,
                    !0,
                    i64::MAX as u64,
                    0x1234_5678_9abc_def0,
                ];
                if special { edges[pick] } else { random >> (random % 41) }
            }
            Rn | Qn | Hn => match (if special {
                [
                    1,
                    2,
                    3,
                    7,
                    10,
                    !0,
                    !1,
                    0x7fff,
                    0x8000,
                    0x7fff_ffff,
                    0x8000_0000,
                    1 << 63,
                    255,
                    256,
                    65535,
                    12345,
                ][pick]
            } else {
                random >> (random % 41)
            }) & (!0 >> (64 - self.bits()))
            {
                0 => 1,
                value => value,
            },
            N => {
                if special {
                    [0, 1, 4, 7, 8, 15, 16, 24, 31, 32, 33, 40, 63, 64, 65, 255][pick]
                } else {
                    random % 72
                }
            }
            F => {
                let edges: [u32; 16] = [
                    0,
                    0x8000_0000,
                    0x3f80_0000,
                    0xbf80_0000,
                    0x7f80_0000,
                    0xff80_0000,
                    0x7fc0_0000,
                    1,
                    0x8000_0001,
                    0x007f_ffff,
                    0x0080_0000,
                    0x7f7f_ffff,
                    0x3f00_0000,
                    0x4f00_0000,
                    0xcf80_0001,
                    0x3fc0_0000,
                ];
                u64::from(if special {
                    edges[pick]
                } else if index.is_multiple_of(3) {
                    random as u32
                } else {
                    // Of a size that sums and products do not overflow.
                    (random as u32 & 0x807f_ffff) | (((random >> 40) as u32 % 60 + 97) << 23)
                })
            }
            D => {
                let edges = [
                    0,
                    1 << 63,
                    0x3ff0_0000_0000_0000,
                    0xbff0_0000_0000_0000,
                    0x7ff0_0000_0000_0000,
                    0xfff0_0000_0000_0000,
                    0x4000_0000_0000_0001,
                    1,
                    0x8000_0000_0000_0001,
                    0x000f_ffff_ffff_ffff,
                    0x0010_0000_0000_0000,
                    0x7fef_ffff_ffff_ffff,
                    0x3fe0_0000_0000_0000,
                    0x41e0_0000_0000_0000,
                    0xc1f0_0000_0010_0000,
                    0x47ef_ffff_f000_0000,
                ];
                if special {
                    edges[pick]
                } else {
                    (random & 0x800f_ffff_ffff_ffff) | (((random >> 13 & 0x3f) + 0x3e0) << 52)
                }
            }
            X | Y | Xx => {
                let halves: [u64; 16] = if self == Y {
                    [
                        0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x0001, 0x007f, 0x0080, 0x7f7f, 0x3f00,
                        0x4040, 0xc2c8, 0x3f81, 0x4f00, 0x3eaa,
                    ]
                } else {
                    [
                        0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x3800,
                        0x4200, 0xd640, 0x3c01, 0x6400, 0x3555,
                    ]
                };
                // No random bits that are not a number: their results' bits are nobody's promise.
                let finite = |bits: u64| {
                    if self == Y { bits & 0xbfff } else { bits & 0xbbff | bits >> 3 & 0x400 & !(bits >> 4) }
                };
                if special {
                    halves[pick] | halves[(pick + 5) % 16] << 16
                } else {
                    finite(random & 0xffff) | finite(random >> 16 & 0xffff) << 16
                }
            }
        };
        whole & (!0 >> (64 - self.bits()))
    }
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |text: String, d: Kind, sources: &[Kind]| {
        cases.push(Case { text, d, sources: sources.to_vec() });
    };
    let int = [("16", H), ("32", R), ("64", Q)];
    for (bits, k) in int {
        for sign in ["s", "u"] {
            let t = format!("{sign}{bits}");
            for op in ["add", "sub", "mul.lo", "mul.hi", "min", "max"] {
                add(format!("{op}.{t} $d, $a, $b;"), k, &[k, k]);
            }
            for op in ["mad.lo", "mad.hi", "sad"] {
                add(format!("{op}.{t} $d, $a, $b, $c;"), k, &[k, k, k]);
            }
            let nz = match k {
                H => Hn,
                R => Rn,
                _ => Qn,
            };
            for op in ["div", "rem"] {
                add(format!("{op}.{t} $d, $a, $b;"), k, &[k, nz]);
            }
            add(format!("shr.{t} $d, $a, $b;"), k, &[k, N]);
            for cmp in ["eq", "ne", "lt", "le", "gt", "ge"] {
                add(format!("setp.{cmp}.{t} $p, $a, $b; selp.b32 $d, 1, 0, $p;"), R, &[k, k]);
            }
        }
        add(format!("shl.b{bits} $d, $a, $b;"), k, &[k, N]);
        for op in ["and", "or", "xor"] {
            add(format!("{op}.b{bits} $d, $a, $b;"), k, &[k, k]);
        }
        for op in ["not.b", "cnot.b", "neg.s", "abs.s"] {
            add(format!("{op}{bits} $d, $a;"), k, &[k]);
        }
    }
    for op in ["lo", "hi", "ls", "hs"] {
        add(format!("setp.{op}.u32 $p, $a, $b; selp.b32 $d, 1, 0, $p;"), R, &[R, R]);
    }
    for op in ["and", "or", "xor"] {
        let text = format!("setp.gt.s32 $p, $c, 9; setp.lt.{op}.u32 $p, $a, $b, $p; selp.b32 $d, 1, 0, $p;");
        add(text, R, &[R, R, R]);
        add(
            format!("set.ge.{op}.u32.s32 $d, $a, $b, $p;").replace("set.ge", "setp.ne.b32 $p, $c, 0; set.ge"),
            R,
            &[R, R, R],
        );
    }
    for (t, k, w) in [("s16", H, R), ("u16", H, R), ("s32", R, Q), ("u32", R, Q)] {
        add(format!("mul.wide.{t} $d, $a, $b;"), w, &[k, k]);
        add(format!("mad.wide.{t} $d, $a, $b, $c;"), w, &[k, k, w]);
    }
    for text in [
        "add.sat.s32 $d, $a, $b;",
        "sub.sat.s32 $d, $a, $b;",
        "mul24.lo.s32 $d, $a, $b;",
        "mul24.hi.s32 $d, $a, $b;",
        "mul24.lo.u32 $d, $a, $b;",
        "mul24.hi.u32 $d, $a, $b;",
        "add.s16x2 $d, $a, $b;",
        "min.s16x2 $d, $a, $b;",
        "max.u16x2 $d, $a, $b;",
        "min.relu.s32 $d, $a, $b;",
        "max.relu.s16x2 $d, $a, $b;",
    ] {
        add(text.into(), R, &[R, R]);
    }
    for text in [
        "mad24.lo.s32 $d, $a, $b, $c;",
        "mad24.hi.u32 $d, $a, $b, $c;",
        "mad.hi.sat.s32 $d, $a, $b, $c;",
        "dp4a.s32.s32 $d, $a, $b, $c;",
        "dp4a.u32.s32 $d, $a, $b, $c;",
        "dp4a.s32.u32 $d, $a, $b, $c;",
        "dp4a.u32.u32 $d, $a, $b, $c;",
        "dp2a.lo.s32.s32 $d, $a, $b, $c;",
        "dp2a.hi.u32.s32 $d, $a, $b, $c;",
        "add.cc.u32 $d, $a, $b; addc.u32 $d, $c, 0;",
        "sub.cc.u32 $d, $a, $b; subc.u32 $d, $c, 5;",
        "mad.lo.cc.u32 $d, $a, $b, $c; addc.cc.u32 $d, $d, $a; addc.u32 $d, $d, 0;",
        "mad.hi.cc.u32 $d, $a, $b, $c; madc.lo.cc.u32 $d, $d, $b, $c; madc.hi.u32 $d, $d, $a, $b;",
        "lop3.b32 $d, $a, $b, $c, 0xe8;",
        "lop3.b32 $d, $a, $b, $c, 0x1b;",
        "lop3.b32 $d, $a, $b, $c, 0x96;",
        "prmt.b32 $d, $a, $b, $c;",
        "prmt.b32.f4e $d, $a, $b, $c;",
        "prmt.b32.b4e $d, $a, $b, $c;",
        "prmt.b32.rc8 $d, $a, $b, $c;",
        "prmt.b32.ecl $d, $a, $b, $c;",
        "prmt.b32.ecr $d, $a, $b, $c;",
        "prmt.b32.rc16 $d, $a, $b, $c;",
        "slct.u32.s32 $d, $a, $b, $c;",
        "vabsdiff4.u32.u32.u32 $d, $a, $b, $c;",
        "vabsdiff4.u32.u32.u32.add $d, $a, $b, $c;",
        "vabsdiff2.u32.u32.u32.add $d, $a, $b, $c;",
    ] {
        add(text.into(), R, &[R, R, R]);
    }
    add("add.cc.u64 $d, $a, $b; addc.u64 $d, $c, 0;".into(), Q, &[Q, Q, Q]);
    add("sub.cc.u64 $d, $a, $b; subc.cc.u64 $d, $c, $a; subc.u64 $d, $d, 0;".into(), Q, &[Q, Q, Q]);
    for mode in ["l.wrap", "l.clamp", "r.wrap", "r.clamp"] {
        add(format!("shf.{mode}.b32 $d, $a, $b, $c;"), R, &[R, R, N]);
    }
    for (bits, k) in [("32", R), ("64", Q)] {
        for op in ["popc", "clz"] {
            add(format!("{op}.b{bits} $d, $a;"), R, &[k]);
        }
        add(format!("brev.b{bits} $d, $a;"), k, &[k]);
        add(format!("bfi.b{bits} $d, $a, $b, $c, 7;"), k, &[k, k, N]);
        for sign in ["s", "u"] {
            add(format!("bfind.{sign}{bits} $d, $a;"), R, &[k]);
            add(format!("bfind.shiftamt.{sign}{bits} $d, $a;"), R, &[k]);
            add(format!("bfe.{sign}{bits} $d, $a, $b, $c;"), k, &[k, N, N]);
        }
    }
    for text in ["bmsk.clamp.b32 $d, $a, $b;", "bmsk.wrap.b32 $d, $a, $b;"] {
        add(text.into(), R, &[N, N]);
    }
    for text in ["szext.clamp.s32 $d, $a, $b;", "szext.wrap.u32 $d, $a, $b;"] {
        add(text.into(), R, &[R, N]);
    }
    floats(&mut add);
    conversions(&mut add);
    cases
}

fn floats(add: &mut impl FnMut(String, Kind, &[Kind])) {
    for mode in ["rn", "rz", "rm", "rp"] {
        for ftz in ["", ".ftz"] {
            for op in ["add", "sub", "mul", "div"] {
                add(format!("{op}.{mode}{ftz}.f32 $d, $a, $b;"), F, &[F, F]);
            }
            add(format!("fma.{mode}{ftz}.f32 $d, $a, $b, $c;"), F, &[F, F, F]);
            for op in ["rcp", "sqrt"] {
                add(format!("{op}.{mode}{ftz}.f32 $d, $a;"), F, &[F]);
            }
        }
        for op in ["add", "sub", "mul", "div"] {
            add(format!("{op}.{mode}.f64 $d, $a, $b;"), D, &[D, D]);
        }
        add(format!("fma.{mode}.f64 $d, $a, $b, $c;"), D, &[D, D, D]);
        for op in ["rcp", "sqrt"] {
            add(format!("{op}.{mode}.f64 $d, $a;"), D, &[D]);
        }
    }
    for text in [
        "add.rn.sat.f32 $d, $a, $b;",
        "mul.rn.ftz.sat.f32 $d, $a, $b;",
        "min.f32 $d, $a, $b;",
        "max.f32 $d, $a, $b;",
        "min.ftz.f32 $d, $a, $b;",
        "max.NaN.f32 $d, $a, $b;",
        "copysign.f32 $d, $a, $b;",
    ] {
        add(text.into(), F, &[F, F]);
    }
    for text in ["min.f64 $d, $a, $b;", "max.f64 $d, $a, $b;", "copysign.f64 $d, $a, $b;"] {
        add(text.into(), D, &[D, D]);
    }
    for text in ["neg.f32 $d, $a;", "abs.f32 $d, $a;", "abs.ftz.f32 $d, $a;"] {
        add(text.into(), F, &[F]);
    }
    for text in ["neg.f64 $d, $a;", "abs.f64 $d, $a;"] {
        add(text.into(), D, &[D]);
    }
    for cmp in ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"] {
        for (t, k) in [("f32", F), ("ftz.f32", F), ("f64", D), ("f16", X), ("bf16", Y)] {
            add(format!("setp.{cmp}.{t} $p, $a, $b; selp.b32 $d, 1, 0, $p;"), R, &[k, k]);
        }
        add(format!("set.{cmp}.f32.f32 $d, $a, $b;"), F, &[F, F]);
    }
    for (kind, t) in [("f32", F), ("f64", D)] {
        for what in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
            add(format!("testp.{what}.{kind} $p, $a; selp.b32 $d, 1, 0, $p;"), R, &[t]);
        }
    }
    for (t, k) in [("f16", X), ("bf16", Y), ("f16x2", Xx)] {
        for op in ["add.rn", "sub.rn", "mul.rn"] {
            add(format!("{op}.{t} $d, $a, $b;"), k, &[k, k]);
        }
        add(format!("fma.rn.{t} $d, $a, $b, $c;"), k, &[k, k, k]);
        for op in ["min", "max"] {
            add(format!("{op}.{t} $d, $a, $b;"), k, &[k, k]);
        }
        for op in ["neg", "abs"] {
            add(format!("{op}.{t} $d, $a;"), k, &[k]);
        }
    }
    add("fma.rn.relu.f16 $d, $a, $b, $c;".into(), X, &[X, X, X]);
    add("add.rn.sat.f16 $d, $a, $b;".into(), X, &[X, X]);
    add("set.gt.f16x2.f16x2 $d, $a, $b;".into(), Xx, &[Xx, Xx]);
}

fn conversions(add: &mut impl FnMut(String, Kind, &[Kind])) {
    // Eight-bit types live in 16-bit registers.
    let ints = [("s8", H), ("u8", H), ("s16", H), ("u16", H), ("s32", R), ("u32", R), ("s64", Q), ("u64", Q)];
    for (d, dk) in ints {
        for (s, sk) in ints {
            if d != s {
                add(format!("cvt.{d}.{s} $d, $a;"), dk, &[sk]);
                // `.sat` may only stand where there is something to clamp.
                let size = |t: &str| t[1..].parse::<u32>().unwrap_or(0) - u32::from(t.starts_with('s'));
                if size(d) < size(s) || d.starts_with('u') && s.starts_with('s') {
                    add(format!("cvt.sat.{d}.{s} $d, $a;"), dk, &[sk]);
                }
            }
        }
        for (f, fk) in [("f32", F), ("f64", D), ("f16", X)] {
            for mode in ["rni", "rzi", "rmi", "rpi"] {
                add(format!("cvt.{mode}.{d}.{f} $d, $a;"), dk, &[fk]);
            }
            for mode in ["rn", "rz", "rm", "rp"] {
                add(format!("cvt.{mode}.{f}.{d} $d, $a;"), fk, &[dk]);
            }
        }
        add(format!("cvt.rzi.ftz.{d}.f32 $d, $a;"), dk, &[F]);
    }
    for mode in ["rni", "rzi", "rmi", "rpi"] {
        add(format!("cvt.{mode}.f32.f32 $d, $a;"), F, &[F]);
        add(format!("cvt.{mode}.ftz.f32.f32 $d, $a;"), F, &[F]);
        add(format!("cvt.{mode}.f64.f64 $d, $a;"), D, &[D]);
        add(format!("cvt.{mode}.f16.f16 $d, $a;"), X, &[X]);
    }
    for mode in ["rn", "rz", "rm", "rp"] {
        add(format!("cvt.{mode}.f32.f64 $d, $a;"), F, &[D]);
        add(format!("cvt.{mode}.ftz.f32.f64 $d, $a;"), F, &[D]);
    }
    for text in ["cvt.sat.f32.f32 $d, $a;", "cvt.ftz.f32.f32 $d, $a;"] {
        add(text.into(), F, &[F]);
    }
    add("cvt.f64.f32 $d, $a;".into(), D, &[F]);
    add("cvt.ftz.f64.f32 $d, $a;".into(), D, &[F]);
    add("cvt.f32.f16 $d, $a;".into(), F, &[X]);
    add("cvt.f64.f16 $d, $a;".into(), D, &[X]);
    add("cvt.f32.bf16 $d, $a;".into(), F, &[Y]);
    for mode in ["rn", "rz"] {
        add(format!("cvt.{mode}.f16.f32 $d, $a;"), X, &[F]);
        add(format!("cvt.{mode}.bf16.f32 $d, $a;"), Y, &[F]);
        add(format!("cvt.{mode}.f16x2.f32 $d, $a, $b;"), Xx, &[F, F]);
        add(format!("cvt.{mode}.bf16x2.f32 $d, $a, $b;"), Xx, &[F, F]);
        add(format!("cvt.{mode}.tf32.f32 $d, $a;"), R, &[F]);
    }
    add("cvt.rn.f16.f64 $d, $a;".into(), X, &[D]);
    add("cvt.rna.tf32.f32 $d, $a;".into(), R, &[F]);
    add("cvt.rn.relu.f16.f32 $d, $a;".into(), X, &[F]);
    add("cvt.rn.satfinite.e4m3x2.f32 $d, $a, $b;".into(), H, &[F, F]);
    add("cvt.rn.satfinite.e5m2x2.f32 $d, $a, $b;".into(), H, &[F, F]);
}

/// A module with a kernel `k0`, `k1`, … for each case: `(inputs, outputs)`, eight bytes a value, one thread a value.
pub fn module(cases: &[Case]) -> String {
    let mut out = String::from(".version 8.3\n.target sm_90\n.address_size 64\n");
    for (index, case) in cases.iter().enumerate() {
        let mut body = case.text.clone();
        let mut loads = String::new();
        for (source, kind) in case.sources.iter().enumerate() {
            let register = format!("%{}{source}", kind.register());
            let width = kind.bits();
            let offset = source * THREADS * 8;
            loads += &format!("ld.global.b{width} {register}, [%q8+{offset}];\n");
            body = body.replace(["$a", "$b", "$c"][source], &register);
        }
        let d = format!("%{}9", case.d.register());
        body = body.replace("$d", &d).replace("$p", "%p1");
        let width = case.d.bits();
        out += &format!(
            ".visible .entry k{index}(.param .u64 in, .param .u64 out)\n{{\n\
             .reg .b16 %h<10>;\n.reg .b32 %r<10>;\n.reg .b64 %q<10>;\n.reg .pred %p<3>;\n\
             mov.u32 %r8, %tid.x;\nmul.wide.u32 %q7, %r8, 8;\nld.param.u64 %q8, [in];\nadd.u64 %q8, %q8, %q7;\n\
             {loads}{body}\n\
             ld.param.u64 %q8, [out];\nadd.u64 %q8, %q8, %q7;\nst.global.b{width} [%q8], {d};\nret;\n}}\n"
        );
    }
    out
}

/// The inputs of a case: for each source, a value for each thread.
pub fn inputs(case: &Case) -> Vec<u64> {
    let of = |(source, kind): (usize, &Kind)| (0..THREADS).map(|i| kind.value(i, source)).collect::<Vec<_>>();
    case.sources.iter().enumerate().flat_map(of).collect()
}
