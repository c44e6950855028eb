//! Random kernels that end, whose threads tell each other nothing but what the order of barriers makes sure of, and that have markers anywhere.
//!
//! All values are in pools of registers, which each statement reads and writes; `%u` and `%q` are the same for all threads that have to come to a marker
//! together. A kernel's memory: a slot for each thread, then [`SUMS`] to which threads add.

use std::fmt::Write;

use cpt::Group;

use crate::device::Shape;
use crate::random::Random;

/// Bytes of a thread's slot.
pub const SLOT: u64 = 128;
/// Bytes that threads add to.
pub const SUMS: u64 = 64;
/// How many branches there may be whose sides give a register another value each.
const CHOSEN: usize = 4;

pub struct Generated {
    pub text: String,
    pub shape: Shape,
    /// Whether every marker is where all threads of a group come, and the pass has to see that.
    pub is_plain: bool,
}

/// A kernel of one of the groups, all of it as `random` says.
pub fn kernel(random: &mut Random, group: Group) -> Generated {
    let block = match group {
        Group::Warp => 32 * (1 + random.below(3)),
        _ => 1 + random.below(80),
    } as u32;
    let dynamic = group >= Group::Block && random.once_in(2);
    let shared = if dynamic { 4 * block + random.below(9) as u32 } else { 0 };
    let is_grid = group == Group::Grid;
    let shape = Shape { grid: 1 + random.below(3) as u32, block, shared, cooperative: is_grid };
    let mut writer = Writer {
        // A grid stops at its barriers, which all threads come to.
        wild: !is_grid && random.once_in(3),
        leaves: !is_grid && random.once_in(3),
        random,
        group,
        dynamic,
        code: String::new(),
        labels: 0,
        counters: 0,
        chosen: 0,
        loops: Vec::new(),
        left: 0,
        marks: 0,
    };
    writer.left = 20 + writer.random.below(60);
    writer.body();
    let is_plain = !writer.wild;
    let text = writer.module(block);
    Generated { text, shape, is_plain }
}

/// A loop that may be left, and whether all threads leave it together.
struct Loop {
    again: String,
    end: String,
    together: bool,
}

struct Writer<'a> {
    random: &'a mut Random,
    group: Group,
    dynamic: bool,
    /// Whether markers are where only some threads come.
    wild: bool,
    /// Whether threads leave before the end.
    leaves: bool,
    code: String,
    labels: usize,
    counters: usize,
    /// How many registers [`Writer::sides`] has given values.
    chosen: usize,
    loops: Vec<Loop>,
    /// How many statements there may still be.
    left: u64,
    marks: usize,
}

/// Whether all threads of the group are at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    All,
    Some,
}

macro_rules! put {
    ($to:expr, $($arg:tt)*) => {{ let _ = writeln!($to.code, $($arg)*); }};
}

impl Writer<'_> {
    fn register(&mut self, kind: &str) -> String {
        let count = match kind {
            "%r" => 7,
            "%p" | "%d" => 4,
            "%u" => 3,
            "%q" => 2,
            _ => 3,
        };
        format!("{kind}{}", self.random.below(count))
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("$L{}", self.labels)
    }

    /// A guard, or none.
    fn guard(&mut self) -> String {
        match self.random.below(4) {
            0 => format!("@{} ", self.register("%p")),
            1 => format!("@!{} ", self.register("%p")),
            _ => String::new(),
        }
    }

    fn body(&mut self) {
        self.beginning();
        self.statements(Who::All, 0, 12);
        while self.marks == 0 {
            self.mark(Who::All);
            self.statements(Who::All, 0, 3);
        }
        self.end();
    }

    /// Every register has a value, every variable too, and the kernel asks itself to stop.
    fn beginning(&mut self) {
        put!(self, "ld.param.u64 %out, [out];\nld.param.u64 %stop, [stop];\nld.param.u32 %n, [n];");
        put!(self, "mov.u32 %me, %tid.x;\nmov.u32 %group, %ctaid.x;\nmov.u32 %size, %ntid.x;");
        put!(self, "mad.lo.u32 %place, %group, %size, %me;\nmov.u32 %one, 1;");
        put!(self, "mov.u32 %x0, %nctaid.x;\nmul.lo.u32 %x0, %x0, %size;");
        put!(self, "mad.wide.u32 %sums, %x0, {SLOT}, %out;\nmad.wide.u32 %out, %place, {SLOT}, %out;");
        if !self.random.once_in(4) {
            put!(self, "st.volatile.global.u32 [%stop], %one;");
        }
        for number in 0..7 {
            put!(self, "ld.global.u32 %r{number}, [%out+{}];", 4 * number);
        }
        for number in 0..4 {
            put!(self, "ld.global.u64 %d{number}, [%out+{}];", 32 + 8 * number);
            put!(self, "setp.lt.u32 %p{number}, %r{number}, {};", 0x3000_0000u32 * (1 + number));
        }
        for number in 0..3 {
            put!(self, "ld.global.u16 %h{number}, [%out+{}];", 64 + 2 * number);
            put!(self, "cvt.rn.f32.u32 %f{number}, %r{number};\ncvt.rn.f64.s64 %g{number}, %d{number};");
            put!(self, "add.u32 %u{number}, %n, {number};");
        }
        put!(self, "setp.lt.u32 %q0, %n, 1000;\nsetp.ne.u32 %q1, %u1, 3;");
        put!(self, "setp.gt.u32 %never, %n, 2000;");
        for number in 0..CHOSEN {
            put!(self, "mov.u32 %w{number}, {number};");
        }
        for number in 0..6 {
            put!(self, "st.local.u32 [own+{}], %r{number};", 4 * number);
        }
        put!(self, "st.local.u64 [wide], %d0;\nst.local.u64 [wide+8], %d1;");
        for number in 0..5 {
            put!(self, "st.local.u8 [narrow+{number}], %r{number};");
        }
        if self.group >= Group::Block {
            put!(self, "mov.u32 %sa, words;\nmad.lo.u32 %sa, %me, 4, %sa;\nst.shared.u32 [%sa], %r1;");
            put!(self, "mov.u32 %sb, bytes;\nadd.u32 %sb, %me, %sb;\nst.shared.u8 [%sb], %r2;");
            put!(self, "mov.u32 %se, others;\nmad.lo.u32 %sc, %me, 4, %se;\nst.shared.u32 [%sc], %r3;");
            if self.dynamic {
                put!(self, "mov.u32 %sd, asked;\nmad.lo.u32 %sd, %me, 4, %sd;\nst.shared.u32 [%sd], %r4;");
            }
        }
    }

    /// Some of what there is at the end is written down.
    fn end(&mut self) {
        put!(self, "$END:");
        for number in 0..7 {
            if !self.random.once_in(3) {
                put!(self, "st.global.u32 [%out+{}], %r{number};", 4 * number);
            }
        }
        for number in 0..3 {
            put!(self, "st.global.u16 [%out+{}], %h{number};", 64 + 2 * number);
            if !self.random.once_in(3) {
                put!(self, "st.global.u64 [%out+{}], %d{number};", 32 + 8 * number);
                put!(self, "st.global.f32 [%out+{}], %f{number};", 72 + 4 * number);
                put!(self, "st.global.f64 [%out+{}], %g{number};", 88 + 8 * number);
            }
        }
        for number in 0..4 {
            put!(self, "selp.u32 %x0, {}, 0, %p{number};\nxor.b32 %r0, %r0, %x0;", 16 << number);
        }
        for number in 0..self.chosen {
            put!(self, "mad.lo.u32 %r0, %r0, 31, %w{number};");
        }
        put!(self, "ld.local.u32 %x0, [own+8];\nxor.b32 %r0, %r0, %x0;\nst.global.u32 [%out+112], %r0;");
        put!(
            self,
            "xor.b32 %u1, %u1, %u0;\nst.global.u32 [%out+116], %u1;\nst.global.u32 [%out+120], %u2;\nret;"
        );
    }

    fn statements(&mut self, who: Who, depth: usize, most: u64) {
        for _ in 0..1 + self.random.below(most) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            self.statement(who, depth);
        }
    }

    fn statement(&mut self, who: Who, depth: usize) {
        match self.random.below(33) {
            0..6 => self.arithmetic(),
            6 | 7 => self.predicates(),
            8 | 9 => self.conversion(),
            10 | 11 => self.memory(),
            12 | 13 => self.local(),
            14..18 => self.mark(who),
            18 | 19 if depth < 3 => self.branch(who, depth),
            20..22 if depth < 3 => self.repeat(who, depth),
            22 if depth < 3 => self.switch(who, depth),
            23 | 24 if who == Who::All => self.exchange(),
            25 if who == Who::All => self.for_all(),
            30 | 31 if who == Who::All && depth < 3 && self.chosen < CHOSEN => self.sides(depth),
            32 if who == Who::All && depth < 3 && self.group == Group::Warp => self.rounds_of_lanes(depth),
            26 if self.group < Group::Grid && self.random.once_in(2) => self.marked_call(who),
            26 => self.call(),
            27 => self.jump(who),
            28 => {
                let (guard, to) = (self.guard(), 8 * self.random.below(8));
                let register = self.register("%d");
                put!(self, "{guard}red.global.add.u64 [%sums+{to}], {register};");
            }
            29 => {
                let guard = self.guard();
                put!(self, "{guard}st.volatile.global.u32 [%stop], %one;");
            }
            _ => self.arithmetic(),
        }
    }

    fn mark(&mut self, who: Who) {
        if who == Who::All || self.group == Group::Thread || self.wild {
            self.marks += 1;
            if self.group == Group::Grid {
                self.meet();
            }
            put!(self, ".pragma \"cpt\";");
        }
    }

    /// A barrier of the whole grid, as cooperative groups make it.
    fn meet(&mut self) {
        let (wait, met) = (self.label(), self.label());
        put!(
            self,
            "mov.u32 %e0, %envreg2;\ncvt.u64.u32 %ea, %e0;\nmov.u32 %e0, %envreg1;\ncvt.u64.u32 %eb, %e0;"
        );
        put!(self, "bfi.b64 %ec, %eb, %ea, 32, 32;\nadd.s64 %ec, %ec, 4;\nbarrier.sync 0;");
        put!(self, "setp.ne.u32 %side, %me, 0;\n@%side bra {met};\nmov.u32 %e1, %nctaid.x;");
        put!(
            self,
            "sub.s32 %e1, -2147483647, %e1;\nsetp.eq.u32 %side, %group, 0;\nselp.b32 %e1, %e1, 1, %side;"
        );
        put!(self, "atom.add.release.gpu.u32 %e2, [%ec], %e1;\n{wait}:\nld.acquire.gpu.u32 %e3, [%ec];");
        put!(
            self,
            "xor.b32 %e3, %e3, %e2;\nsetp.gt.s32 %side, %e3, -1;\n@%side bra {wait};\n{met}:\nbarrier.sync 0;"
        );
    }

    fn arithmetic(&mut self) {
        let guard = self.guard();
        let mut of = |kind: &str| self.register(kind);
        let (r, r1, r2, r3) = (of("%r"), of("%r"), of("%r"), of("%r"));
        let (d, d1, d2) = (of("%d"), of("%d"), of("%d"));
        let (h, h1, h2) = (of("%h"), of("%h"), of("%h"));
        let (f, f1, f2) = (of("%f"), of("%f"), of("%f"));
        let (g, g1, g2) = (of("%g"), of("%g"), of("%g"));
        let u = of("%u");
        let constant = self.random.below(1 << 12);
        let line = match self.random.below(40) {
            0 => format!("add.u32 {r}, {r1}, {r2}"),
            1 => format!("sub.s32 {r}, {r1}, {r2}"),
            2 => format!("mul.lo.u32 {r}, {r1}, {constant}"),
            3 => format!("mul.hi.u32 {r}, {r1}, {r2}"),
            4 => format!("mad.lo.u32 {r}, {r1}, {r2}, {r3}"),
            5 => format!("mul.wide.u32 {d}, {r1}, {r2}"),
            6 => format!("mad.wide.s32 {d}, {r1}, {r2}, {d1}"),
            7 => format!("shl.b32 {r}, {r1}, {}", constant % 32),
            8 => format!("shr.s32 {r}, {r1}, {}", constant % 32),
            9 => format!("shf.l.wrap.b32 {r}, {r1}, {r2}, {r3}"),
            10 => format!("prmt.b32 {r}, {r1}, {r2}, 0x{:x}", constant & 0x7777),
            11 => format!("lop3.b32 {r}, {r1}, {r2}, {r3}, {}", constant & 0xff),
            12 => format!("popc.b32 {r}, {r1}"),
            13 => format!("clz.b32 {r}, {r1}"),
            14 => format!("brev.b32 {r}, {r1}"),
            15 => format!("bfi.b32 {r}, {r1}, {r2}, 5, 9"),
            16 => format!("bfe.u32 {r}, {r1}, 3, 11"),
            17 => format!("min.s32 {r}, {r1}, {r2}"),
            18 => format!("xor.b32 {r}, {r1}, {u}"),
            19 => format!("add.u64 {d}, {d1}, {d2}"),
            20 => format!("mul.lo.u64 {d}, {d1}, {d2}"),
            21 => format!("mul.hi.s64 {d}, {d1}, {d2}"),
            22 => format!("xor.b64 {d}, {d1}, {d2}"),
            23 => format!("shr.u64 {d}, {d1}, {}", constant % 64),
            24 => format!("not.b64 {d}, {d1}"),
            25 => format!("add.u16 {h}, {h1}, {h2}"),
            26 => format!("mul.lo.u16 {h}, {h1}, {h2}"),
            27 => format!("mad.wide.u16 {r}, {h1}, {h2}, {r1}"),
            28 => format!("xor.b16 {h}, {h1}, {h2}"),
            29 => format!("add.rn.f32 {f}, {f1}, {f2}"),
            30 => format!("fma.rn.f32 {f}, {f1}, {f2}, {f1}"),
            31 => format!("min.f32 {f}, {f1}, {f2}"),
            32 => format!("add.rn.f64 {g}, {g1}, {g2}"),
            33 => format!("fma.rn.f64 {g}, {g1}, {g2}, {g}"),
            34 => format!("mov.b64 {d}, {{{r1}, {r2}}}"),
            35 if r1 != r2 => format!("mov.b64 {{{r1}, {r2}}}, {d}"),
            36 => format!("add.cc.u32 {r}, {r1}, {r2};\naddc.u32 {r3}, {r1}, {constant}"),
            37 => format!("sub.cc.u32 {r}, {r1}, {r2};\nsubc.u32 {r3}, {r3}, {constant}"),
            38 => format!("mov.b32 {r}, {{{h1}, {h2}}}"),
            _ => format!("mov.u32 {r}, {constant}"),
        };
        // A guard is for one instruction.
        let guard = if line.contains('\n') { "" } else { &guard };
        put!(self, "{guard}{line};");
    }

    fn predicates(&mut self) {
        let guard = self.guard();
        let mut of = |kind: &str| self.register(kind);
        let (p, p1, p2) = (of("%p"), of("%p"), of("%p"));
        let (r, r1, r2, d1, d2, f1, f2, h1) =
            (of("%r"), of("%r"), of("%r"), of("%d"), of("%d"), of("%f"), of("%f"), of("%h"));
        let line = match self.random.below(11) {
            0 => format!("setp.lt.u32 {p}, {r1}, {r2}"),
            1 => format!("setp.ge.s64 {p}, {d1}, {d2}"),
            2 => format!("setp.gt.f32 {p}, {f1}, {f2}"),
            3 => format!("setp.ne.and.u16 {p}, {h1}, 7, {p1}"),
            4 if p != p1 => format!("setp.lt.xor.u32 {p}|{p1}, {r1}, {r2}, !{p2}"),
            5 => format!("and.pred {p}, {p1}, {p2}"),
            6 => format!("xor.pred {p}, {p1}, {p2}"),
            7 => format!("not.pred {p}, {p1}"),
            8 => format!("selp.u32 {r}, {r1}, {r2}, {p1}"),
            9 => format!("selp.b64 {d1}, {d2}, {d1}, {p1}"),
            _ => format!("set.lt.u32.u32 {r}, {r1}, {r2}"),
        };
        put!(self, "{guard}{line};");
    }

    fn conversion(&mut self) {
        let guard = self.guard();
        let mut of = |kind: &str| self.register(kind);
        let (r, d, h, f, g, u) = (of("%r"), of("%d"), of("%h"), of("%f"), of("%g"), of("%u"));
        let line = match self.random.below(11) {
            0 => format!("cvt.u64.u32 {d}, {r}"),
            1 => format!("cvt.u32.u64 {r}, {d}"),
            2 => format!("cvt.s64.s32 {d}, {r}"),
            3 => format!("cvt.u16.u32 {h}, {r}"),
            4 => format!("cvt.s32.s16 {r}, {h}"),
            5 => format!("cvt.rn.f32.u32 {f}, {r}"),
            6 => format!("cvt.rzi.u32.f32 {r}, {f}"),
            7 => format!("cvt.f64.f32 {g}, {f}"),
            8 => format!("cvt.rn.f64.s64 {g}, {d}"),
            9 => format!("mov.b32 {r}, {f}"),
            _ => format!("mov.u32 {r}, {u}"),
        };
        put!(self, "{guard}{line};");
    }

    /// A thread's own slot.
    fn memory(&mut self) {
        let guard = self.guard();
        let (r, d, h) = (self.register("%r"), self.register("%d"), self.register("%h"));
        let (at, wide) = (4 * self.random.below(24), 8 * self.random.below(12));
        let line = match self.random.below(8) {
            0 => format!("ld.global.u32 {r}, [%out+{at}]"),
            1 => format!("st.global.u32 [%out+{at}], {r}"),
            2 => format!("ld.global.u64 {d}, [%out+{wide}]"),
            3 => format!("st.global.u64 [%out+{wide}], {d}"),
            4 => format!("st.global.u8 [%out+{at}], {h}"),
            5 => format!("ld.global.v2.u32 {{%r1, %r3}}, [%out+{wide}]"),
            6 => format!("st.global.v4.u32 [%out+{}], {{%r2, {r}, %r0, %r6}}", wide / 16 * 16),
            _ => format!("ld.global.s16 {r}, [%out+{at}]"),
        };
        put!(self, "{guard}{line};");
    }

    /// Arrays of the thread's own, at places that it computes.
    fn local(&mut self) {
        let guard = self.guard();
        let (r, d, r1) = (self.register("%r"), self.register("%d"), self.register("%r"));
        let step = self.random.below(4);
        // The address lives over markers: one of local memory, or one of all memory.
        let lasting = [("%la", ".local", ""), ("%ga", "", "cvta.local.u64 %ga, %ga;\n")];
        if let Some((address, space, converted)) = lasting.get(step as usize) {
            put!(self, "mov.u64 {address}, own;\n{converted}and.b32 %x0, {r1}, 5;");
            put!(self, "mad.wide.u32 {address}, %x0, 4, {address};\n{guard}st{space}.u32 [{address}], {r};");
            self.mark(Who::Some);
            put!(self, "ld{space}.u32 {r1}, [{address}];");
            return;
        }
        let (at, byte) = (8 * self.random.below(2), self.random.below(5));
        let line = match self.random.below(5) {
            0 => format!("ld.local.u64 {d}, [wide+{at}]"),
            1 => format!("st.local.u64 [wide+{at}], {d}"),
            2 => format!("ld.local.u8 {r}, [narrow+{byte}]"),
            3 => format!("st.local.u8 [narrow+{byte}], {r}"),
            _ => format!("ld.local.u32 {r}, [own+{}]", 4 * byte),
        };
        put!(self, "{guard}{line};");
    }

    /// A predicate on which threads part, or do not.
    fn decider(&mut self, who: Who) -> String {
        let negated = if self.random.once_in(2) { "!" } else { "" };
        format!("{negated}{}", self.register(if who == Who::All { "%q" } else { "%p" }))
    }

    /// Threads that are together stay so, or not.
    fn part(&mut self, who: Who) -> Who {
        if who == Who::All && self.random.below(3) > 0 { Who::All } else { Who::Some }
    }

    fn branch(&mut self, who: Who, depth: usize) {
        let inside = self.part(who);
        let (past, end) = (self.label(), self.label());
        let decider = self.decider(inside);
        put!(self, "@{decider} bra {past};");
        self.statements(inside, depth + 1, 6);
        if self.random.once_in(2) {
            put!(self, "bra {end};\n{past}:");
            self.statements(inside, depth + 1, 6);
            put!(self, "{end}:");
        } else {
            put!(self, "{past}:");
        }
    }

    /// Both sides of a branch that threads take differently come to a barrier, at another place each: to one of the warp, or to one of the block which none
    /// takes; or all threads take the branch alike, which the pass cannot know, and its barriers, which it cannot know either. A register gets another value
    /// on each side, which depends on nothing else that differs.
    fn sides(&mut self, depth: usize) {
        let chosen = format!("%w{}", self.chosen);
        self.chosen += 1;
        let (other, end) = (self.label(), self.label());
        let is_alike = self.group == Group::Block && self.random.once_in(3);
        if is_alike {
            put!(self, "ld.volatile.global.u32 %x0, [%stop+4];\nsub.u32 %x0, %x0, %x0;");
            put!(self, "add.u32 %x0, %x0, %n;\nsetp.lt.u32 %side, %x0, 900;\n@%side bra {other};");
        } else {
            let decider = self.decider(Who::Some);
            put!(self, "@{decider} bra {other};");
        }
        for next in [format!("bra {end};\n{other}:"), format!("{end}:")] {
            let (past, constant) = (self.label(), self.random.below(1 << 12));
            let source = self.register("%u");
            put!(self, "mad.lo.u32 {chosen}, {source}, 3, {constant};");
            match self.group {
                Group::Warp => put!(self, "bar.warp.sync -1;"),
                Group::Block if is_alike => match self.random.below(3) {
                    0 => put!(self, "bar.sync 0;"),
                    1 => put!(self, "@%never bra {past};\nbar.sync 0;\n{past}:"),
                    _ => put!(self, "@!%never bra {past};\nbar.sync 0;\n{past}:"),
                },
                Group::Block => put!(self, "@!%never bra {past};\nbar.sync 0;\n{past}:"),
                Group::Thread | Group::Grid => {}
            }
            self.statements(Who::Some, depth + 1, 3);
            put!(self, "{next}");
        }
        self.maybe_mark();
    }

    /// Each lane has another number of rounds with a barrier of the warp; then those that have had fewer come to the rest of them.
    fn rounds_of_lanes(&mut self, depth: usize) {
        let counters = [(); 2].map(|()| {
            self.counters += 1;
            self.counters - 1
        });
        let source = self.register("%r");
        put!(self, "and.b32 %c{}, {source}, 3;\nsub.u32 %c{}, 3, %c{0};", counters[0], counters[1]);
        for (counter, is_full) in counters.into_iter().zip([true, false]) {
            let (begin, end) = (self.label(), self.label());
            put!(self, "{begin}:\nsetp.eq.u32 %o{counter}, %c{counter}, 0;\n@%o{counter} bra {end};");
            put!(self, "bar.warp.sync -1;");
            if is_full {
                self.statements(Who::Some, depth + 1, 3);
            }
            put!(self, "sub.u32 %c{counter}, %c{counter}, 1;\nbra {begin};\n{end}:");
        }
    }

    fn repeat(&mut self, who: Who, depth: usize) {
        let inside = self.part(who);
        let (begin, again, end) = (self.label(), self.label(), self.label());
        let counter = format!("%c{}", self.counters);
        self.counters += 1;
        let source = self.register(if inside == Who::All { "%u" } else { "%r" });
        let is_late = self.random.once_in(2);
        // All threads of the group have the same, but the pass cannot know: a barrier, or what an operation of the warp gives all of them, tells it.
        let is_hidden = inside == Who::All && self.group != Group::Thread && self.random.once_in(3);
        let is_voted = is_hidden && self.group == Group::Warp && self.random.once_in(2);
        if is_hidden && self.group == Group::Warp {
            put!(self, "shr.u32 %x0, %me, 5;\nadd.u32 %x0, %x0, {source};\nand.b32 %x0, %x0, 3;");
            // The first lane may have left.
            let way = if self.leaves { "redux.sync.max.u32" } else { "shfl.sync.idx.b32" };
            let of_first = if self.leaves { "" } else { "0, 31, " };
            match is_voted {
                true => put!(self, "mov.u32 {counter}, %x0;"),
                false => put!(self, "{way} {counter}, %x0, {of_first}-1;"),
            }
        } else if is_hidden {
            put!(
                self,
                "ld.volatile.global.u32 {counter}, [%stop+4];\nsub.u32 {counter}, {counter}, {counter};"
            );
            put!(self, "add.u32 {counter}, {counter}, {source};\nand.b32 {counter}, {counter}, 3;");
        } else {
            put!(self, "and.b32 {counter}, {source}, 3;");
        }
        if is_late {
            put!(self, "add.u32 {counter}, {counter}, 1;");
        }
        // The pass takes a register whose value differs anywhere for one whose value differs everywhere.
        let over = counter.replace('c', "o");
        let decide = |kind: &str| match is_voted {
            true => format!("setp.{kind}.u32 %side, {counter}, 0;\nvote.sync.all.pred {over}, %side, -1;"),
            false => format!("setp.{kind}.u32 {over}, {counter}, 0;"),
        };
        put!(self, "{begin}:");
        if !is_late {
            put!(self, "{}\n@{over} bra {end};", decide("eq"));
        }
        if is_hidden {
            put!(self, "{}", if self.group == Group::Warp { "bar.warp.sync -1;" } else { "bar.sync 0;" });
        }
        // Whoever leaves in the middle leaves what is hidden behind.
        self.loops.push(Loop { again: again.clone(), end: end.clone(), together: inside == Who::All });
        self.statements(inside, depth + 1, 7);
        self.loops.pop();
        put!(self, "{again}:\nsub.u32 {counter}, {counter}, 1;");
        if is_late {
            put!(self, "{}\n@{over} bra {begin};", decide("ne"));
        } else {
            put!(self, "bra {begin};");
        }
        put!(self, "{end}:");
    }

    fn switch(&mut self, who: Who, depth: usize) {
        let inside = self.part(who);
        let source = self.register(if inside == Who::All { "%u" } else { "%r" });
        let (table, end) = (self.label(), self.label());
        let cases: Vec<String> = (0..2 + self.random.below(3)).map(|_| self.label()).collect();
        let chosen = if inside == Who::All { "%y0" } else { "%x0" };
        put!(self, "{table}: .branchtargets {};", cases.join(", "));
        put!(self, "rem.u32 {chosen}, {source}, {};\nbrx.idx {chosen}, {table};", cases.len());
        for case in cases {
            put!(self, "{case}:");
            self.statements(inside, depth + 1, 4);
            if !self.random.once_in(3) {
                put!(self, "bra {end};");
            }
        }
        put!(self, "{end}:");
    }

    /// Out of a loop, to its next round, or out of the kernel.
    fn jump(&mut self, who: Who) {
        if self.leaves && self.random.once_in(2) {
            let guard = if self.group == Group::Warp {
                put!(self, "shr.u32 %x0, %me, 5;\nadd.u32 %x0, %x0, %n;\nand.b32 %x0, %x0, 3;");
                put!(self, "setp.eq.u32 %left, %x0, 0;");
                "%left".to_owned()
            } else {
                self.decider(Who::Some)
            };
            let way = *self.random.of(&["bra $END", "ret", "exit"]);
            put!(self, "@{guard} {way};");
            return;
        }
        let Some(inside) = self.loops.last() else { return };
        let (again, end, together) = (inside.again.clone(), inside.end.clone(), inside.together);
        // From where only some are, nobody may leave a loop that all leave together.
        if together && who == Who::Some {
            return;
        }
        let guard = self.decider(if together { Who::All } else { Who::Some });
        let to = if self.random.once_in(2) { again } else { end };
        put!(self, "@{guard} bra {to};");
    }

    /// Values go from thread to thread.
    fn exchange(&mut self) {
        let (r, r1, p) = (self.register("%r"), self.register("%r"), self.register("%p"));
        match self.group {
            Group::Thread => self.arithmetic(),
            Group::Warp => {
                let d = self.register("%u");
                let line = match self.random.below(6) {
                    0 => format!("shfl.sync.bfly.b32 {r}, {r1}, {}, 31, -1", 1 << self.random.below(5)),
                    1 => format!("shfl.sync.up.b32 {r}|{p}, {r1}, 3, 0, 0xffffffff"),
                    2 => format!("shfl.sync.idx.b32 {r}, {r1}, {r}, 31, %all"),
                    3 => format!("vote.sync.ballot.b32 {r}, {p}, -1"),
                    4 => format!("redux.sync.add.u32 {r}, {d}, -1"),
                    _ => format!("vote.sync.any.pred {p}, !{p}, -1"),
                };
                put!(self, "{line};");
            }
            Group::Block | Group::Grid => match self.random.below(8) {
                0 => put!(self, "bar.red.popc.u32 {r}, 0, {p};"),
                1 => put!(self, "barrier.sync 0;\nst.shared.u32 [%sa], {r};\nld.shared.u32 {r1}, [%sa];"),
                2 => {
                    put!(self, "ld.shared.u8 {r}, [%sb];\nadd.u32 {r}, {r}, {r1};\nst.shared.u8 [%sb], {r};")
                }
                3 if self.dynamic => {
                    put!(
                        self,
                        "ld.shared.u32 {r}, [%sd];\nxor.b32 {r}, {r}, {r1};\nst.shared.u32 [%sd], {r};"
                    );
                }
                4 => put!(
                    self,
                    "{{\n.param .b32 given;\nst.param.b32 [given], {r};\n.param .b32 got;\ncall.uni (got), meets, (given);\nld.param.b32 {r1}, [got];\n}}"
                ),
                5 => {
                    put!(
                        self,
                        "mov.u64 %lb, words;\ncvta.shared.u64 %gs, %lb;\nmad.wide.u32 %gs, %me, 4, %gs;"
                    );
                    put!(self, "st.u32 [%gs], {r};");
                    self.maybe_mark();
                    put!(self, "ld.u32 {r1}, [%gs];");
                }
                6 => {
                    // A copy may be under way where threads stop: it is waited for then.
                    let at = 4 * self.random.below(24);
                    put!(self, "cp.async.ca.shared.global [%sa], [%out+{at}], 4;");
                    self.maybe_mark();
                    put!(self, "cp.async.wait_all;");
                    self.maybe_mark();
                    put!(self, "ld.shared.u32 {r1}, [%sa];");
                }
                _ => {
                    // What a thread reads, another one has written between the same barriers.
                    put!(self, "bar.sync 0;\nst.shared.u32 [%sc], {r};");
                    self.maybe_mark();
                    put!(self, "bar.sync 0;");
                    self.maybe_mark();
                    put!(self, "add.u32 %x0, %me, {};\nrem.u32 %x0, %x0, %size;", 1 + self.random.below(5));
                    put!(self, "mad.lo.u32 %sf, %x0, 4, %se;\nld.shared.u32 {r1}, [%sf];");
                }
            },
        }
    }

    fn maybe_mark(&mut self) {
        if self.random.once_in(2) {
            self.mark(Who::All);
        }
    }

    /// What all threads know.
    fn for_all(&mut self) {
        let (u, u1, u2, q, q1) = (
            self.register("%u"),
            self.register("%u"),
            self.register("%u"),
            self.register("%q"),
            self.register("%q"),
        );
        let p = self.register("%p");
        let constant = self.random.below(64);
        let line = match self.random.below(8) {
            0 => format!("add.u32 {u}, {u1}, {u2}"),
            1 => format!("mad.lo.u32 {u}, {u1}, {constant}, {u2}"),
            2 => format!("@{q} xor.b32 {u}, {u1}, {constant}"),
            3 => format!("setp.lt.u32 {q}, {u1}, {u2}"),
            4 => format!("not.pred {q}, {q1}"),
            5 if self.group == Group::Block => format!("bar.red.popc.u32 {u}, 0, {p}"),
            6 if self.group == Group::Block => format!("bar.red.or.pred {q}, 0, !{p}"),
            _ => format!("selp.u32 {u}, {u1}, {u2}, {q}"),
        };
        put!(self, "{line};");
    }

    fn call(&mut self) {
        let (r, r1, d) = (self.register("%r"), self.register("%r"), self.register("%d"));
        put!(
            self,
            "{{\n.param .b32 first;\nst.param.b32 [first], {r};\n.param .b64 second;\nst.param.b64 [second], {d};
.param .b32 got;\ncall (got), mixes, (first, second);\nld.param.b32 {r1}, [got];\n}}"
        );
    }

    /// A function that has markers, if they may be here; some threads only may call it.
    fn marked_call(&mut self, who: Who) {
        if who == Who::Some && self.group != Group::Thread && !self.wild {
            return self.call();
        }
        let (r, r1, h) = (self.register("%r"), self.register("%r"), self.register("%h"));
        let guard = if who == Who::All { "" } else { &self.guard() };
        let result = if guard.is_empty() { format!("ld.param.b32 {r1}, [got];\n") } else { String::new() };
        self.marks += 1;
        // What it gets has to be the same for all, as it is how often its marker is come to.
        let rounds = if self.group == Group::Thread { self.register("%r") } else { self.register("%u") };
        put!(
            self,
            "{{\n.param .b32 first;\nst.param.b32 [first], {r};\n.param .align 8 .b8 second[16];\nst.param.b32 [second+4], {rounds};
st.param.b16 [second+8], {h};\n.param .b32 third;\nst.param.b32 [third], {rounds};\n.param .b32 got;
{guard}call (got), stops, (first, second, third);\n{result}}}"
        );
    }

    fn module(&self, block: u32) -> String {
        let (mut counters, mut overs) = (String::new(), String::new());
        for counter in 0..self.counters {
            let _ = write!(counters, ", %c{counter}");
            let _ = write!(overs, ", %o{counter}");
        }
        let shared = if self.group >= Group::Block {
            format!(
                ".shared .align 4 .b8 words[{}];\n.shared .b8 bytes[{block}];\n.shared .align 8 .b8 others[{}];\n",
                4 * block + 2,
                4 * block
            )
        } else {
            String::new()
        };
        let asked = if self.dynamic { ".extern .shared .align 4 .b8 asked[];\n" } else { "" };
        let meets = if self.group >= Group::Block { MEETS } else { "" };
        format!(
            ".version 7.0
.target sm_80
.address_size 64
{asked}{MIXES}{STOPS}{meets}.visible .entry k(.param .u64 out, .param .u64 stop, .param .u32 n)
{{
.reg .b32 %r<7>, %u<3>, %w<{CHOSEN}>, %x<1>, %y<1>, %me, %group, %size, %place, %one, %n, %sa, %sb, %sc, %sd, %se, %sf, %e<4>, %all{counters};
.reg .b64 %d<4>, %out, %stop, %sums, %la, %lb, %ga, %gs, %ea, %eb, %ec;
.reg .b16 %h<3>;
.reg .f32 %f<3>;
.reg .f64 %g<3>;
.reg .pred %p<4>, %q<2>, %left, %side, %never{overs};
.local .align 4 .b8 own[26];
.local .align 8 .b8 wide[16];
.local .b8 narrow[5];
{shared}mov.u32 %all, -1;
{}}}
",
            self.code
        )
    }
}

/// A function without a marker.
const MIXES: &str = "
.func (.param .b32 got) mixes(.param .b32 first, .param .b64 second)
{
.reg .b32 %r<4>;
.reg .b64 %d<2>;
ld.param.b32 %r0, [first];
ld.param.b64 %d0, [second];
cvt.u32.u64 %r1, %d0;
mad.lo.u32 %r2, %r0, 77, %r1;
st.param.b32 [got], %r2;
ret;
}
";

/// Two with markers, one of which calls the other.
const STOPS: &str = "
.func (.reg .b32 %got) stops_at_once(.reg .b32 %given)
{
add.u32 %got, %given, 5;
.pragma \"cpt\";
ret;
}

.func (.param .b32 got) stops(.param .b32 first, .param .align 8 .b8 second[16], .param .b32 third)
{
.reg .b32 %r<8>;
.reg .b16 %h<2>;
.reg .pred %p<3>;
.local .align 4 .b8 own[8];
ld.param.b32 %r0, [first];
ld.param.b32 %r1, [second+4];
ld.param.u16 %h0, [second+8];
ld.param.b32 %r2, [third];
st.local.b32 [own+4], %r0;
and.b32 %r2, %r2, 1;
cvt.u32.u16 %r3, %h0;
setp.eq.u32 %p1, %r2, 0;
mov.u32 %r5, %r1;
@%p1 call (%r5), stops_at_once, (3);
xor.b32 %r1, %r1, %r5;
$again:
mad.lo.u32 %r3, %r3, 9, %r1;
.pragma \"cpt\";
setp.eq.u32 %p0, %r2, 0;
@%p0 bra $end;
sub.u32 %r2, %r2, 1;
bra $again;
$end:
ld.local.b32 %r4, [own+4];
add.u32 %r4, %r4, %r3;
st.param.b32 [got], %r4;
ret;
}
";

/// One with a barrier.
const MEETS: &str = "
.func (.param .b32 got) meets(.param .b32 given)
{
.reg .b32 %r<4>;
ld.param.b32 %r0, [given];
bar.sync 0;
mad.lo.u32 %r1, %r0, 5, 1;
st.param.b32 [got], %r1;
ret;
}
";
