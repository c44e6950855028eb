//! The code that is put into a kernel.

use std::collections::BTreeSet;
use std::fmt::Write;

use ptx::Cfg;
use ptx::ast::{Body, Function, Instruction, Name, RegId, Space, Statement};

use super::copy::{Part, Piece, copy};
use super::{Form, Kernel, context_parameter};
use crate::context::{ASKING, CAPACITY, DONE, FRAMES_FROM, FRAMES_INTO, FROM, INTO, NO_ROOM, TAKEN};
use crate::frame::{HEAD, LAY};
use crate::{Group, Pointer, Poll};

/// A variable's place among those that are saved.
pub(super) struct Area {
    pub(super) name: Name,
    /// From which byte on.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// How many bytes are copied at a time.
    pub(super) unit: u64,
}

impl Area {
    /// In words, as far as it has some, then in bytes: from where, to where, how many at a time.
    fn pieces(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let words = if self.unit == 4 { self.bytes / 4 * 4 } else { 0 };
        [(0, words, 4), (words, self.bytes, 1)].into_iter().filter(|(from, to, _)| from < to)
    }
}

/// What is put into one kernel.
pub(super) struct Code<'a> {
    pub(super) tag: &'a str,
    pub(super) kernel: &'a Kernel,
    pub(super) body: &'a Body,
    /// The parameter with the context's address.
    pub(super) parameter: String,
    /// What is live at each marker, and not computed again.
    pub(super) live: &'a [Vec<RegId>],
    /// Statements that are executed before anything else, and nowhere else.
    pub(super) lasting: &'a [usize],
    pub(super) local: &'a [Area],
    pub(super) shared: &'a [Area],
    /// What stands for the shared memory that a launch asks for.
    pub(super) dynamic: Option<&'a str>,
    pub(super) poll: Poll,
    pub(super) form: Form,
    /// Barriers that read the flag for the markers.
    pub(super) barriers: &'a [usize],
    /// What stands before a block arrives at a barrier of the whole grid.
    pub(super) arrivals: &'a [usize],
    /// Whether threads may have copies under way that they have begun.
    pub(super) copies: bool,
    /// Whether there is `redux.sync`.
    pub(super) reduces: bool,
}

/// What stands for a piece of code until the module is printed.
pub(super) fn placeholder(tag: &str, number: usize) -> String {
    format!("{tag}{number}")
}

/// Which way something is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Save,
    Load,
}

impl Code<'_> {
    /// The kernel's twin, with placeholders for what is pushed to `codes`.
    pub(super) fn twin_of(
        &self,
        function: &Function,
        cfg: &Cfg,
        marks: &[usize],
        codes: &mut Vec<String>,
    ) -> Function {
        let mut put = |code: String| {
            let code = code.replace("%@", &format!("%{}", self.tag)).replace("$@", &format!("${}", self.tag));
            codes.push(code.replace("[@context]", &format!("[{}]", self.parameter)));
            Statement::Pragma(vec![placeholder(self.tag, codes.len() - 1).into()])
        };
        let first: BTreeSet<usize> = self.lasting.iter().copied().collect();
        let mut statements: Vec<Statement> =
            self.lasting.iter().map(|at| self.body.statements[*at].clone()).collect();
        statements.push(put(self.beginning()));
        let rewritten =
            |at, part, put: &mut dyn FnMut(String) -> Statement| match self.instead(at, marks, part) {
                Some(code) => put(code),
                None => self.body.statements[at].clone(),
            };
        let others = (0..self.body.statements.len()).filter(|at| !first.contains(at));
        statements.extend(others.map(|at| rewritten(at, Part::Kernel, &mut put)));
        statements.push(put(self.end()));
        let mut twin = function.clone();
        twin.name = self.kernel.twin.clone();
        twin.params.push(context_parameter(&self.parameter));
        if let Some(body) = &mut twin.body {
            for part in [Part::Again, Part::Rest] {
                for piece in copy(body, cfg, marks, (part, self.form, self.tag)) {
                    match piece {
                        Piece::Rewritten(at) if first.contains(&at) => {}
                        Piece::Rewritten(at) => statements.push(rewritten(at, part, &mut put)),
                        Piece::Own(statement) => statements.push(statement),
                    }
                }
                statements.push(put("bra $@done;\n".to_owned()));
            }
            body.statements = statements;
        }
        twin
    }

    /// What stands in a part in place of a statement, if it is not itself.
    fn instead(&self, at: usize, marks: &[usize], part: Part) -> Option<String> {
        match &self.body.statements[at] {
            Statement::Instruction(leave) if matches!(leave.opcode.mnemonic(), "ret" | "exit") => {
                Some(self.leaving(leave))
            }
            Statement::Instruction(barrier) => {
                let asks = part != Part::Rest && self.barriers.binary_search(&at).is_ok();
                asks.then(|| self.barrier(barrier))
            }
            _ if self.arrivals.binary_search(&at).is_ok() => Some(self.arrival()),
            _ => marks.binary_search(&at).ok().map(|site| self.mark(site, part)),
        }
    }

    /// The thread and its block find out whether they have begun before.
    fn beginning(&self) -> String {
        let alike = self.alike();
        let mut code = format!(
            "{DECLARATIONS}{}{LOCATE}ld.global.u64 %@y, [%@c+{FROM}];
setp.eq.u64 %@p, %@y, 0;
{alike}@%@p bra $@fresh;
{}ld.global.u32 %@e, [%@a];
and.b32 %@w, %@t, 31;
shr.u32 %@e, %@e, %@w;
and.b32 %@e, %@e, 1;
mul.wide.u32 %@a, %@b, 4;
add.u64 %@x, %@y, %@a;
ld.global.u32 %@s, [%@x];
setp.lt.u32 %@p, %@s, {NO_ROOM};
setp.ne.and.u32 %@p, %@s, 0, %@p;
{alike}@%@p bra $@again;
setp.ne.u32 %@p, %@e, 0;
@%@p bra $@gone;
$@fresh:
",
            self.ready_to_poll(),
            done_word()
        );
        if self.kernel.group < Group::Grid {
            code += &self.poll("$@gone");
            code += "$@begun:\n";
        }
        code
    }

    /// Tells `ptxas` that `%@p` is the same in all threads of a warp that have not left, where they are a group. It keeps track of threads that have parted, at a price, where it does not know that they have not.
    pub(super) fn alike(&self) -> &'static str {
        match self.kernel.group {
            Group::Thread => "",
            Group::Warp | Group::Block | Group::Grid => "vote.sync.any.pred %@p, %@p, 0xffffffff;\n",
        }
    }

    fn leaving(&self, leave: &Instruction) -> String {
        let guard = leave.guard.map_or_else(String::new, |guard| {
            let name = &self.body.register(guard.reg).name;
            format!("@{}{name} ", if guard.negated { "!" } else { "" })
        });
        format!("{guard}bra $@done;\n")
    }

    /// What is behind the kernel's own code.
    fn end(&self) -> String {
        let mut code = format!(
            "bra $@done;
$@done:
{LOCATE}{}
activemask.b32 %@v;
mov.u32 %@w, %lanemask_lt;
and.b32 %@w, %@w, %@v;
setp.eq.u32 %@p, %@w, 0;
@%@p red.global.or.b32 [%@a], %@v;
$@gone:
ret;
$@again:
sub.u32 %@s, %@s, 1;
",
            done_word()
        );
        code += &self.frame(FRAMES_FROM);
        if self.kernel.is_bound {
            code += &self.where_memory_lies();
            let _ = write!(code, "ld.global.u64 %@z, [%@f+{LAY}];\nsetp.ne.u64 %@p, %@y, %@z;\n@%@p trap;\n");
        }
        if self.kernel.group >= Group::Block {
            code += "mov.u32 %@i, %@t;\nmov.u32 %@r, %@n;\n";
            code += &self.copy_shared(Way::Load, "again");
            code += "bar.sync 0;\n";
        }
        code += "setp.ne.u32 %@p, %@e, 0;\n@%@p bra $@gone;\n";
        let _ = writeln!(code, "{}ld.global.u32 %@i, [%@a+{HEAD}];", self.place(self.kernel.frame.site, 4));
        let alike = self.alike();
        let _ = write!(code, "setp.eq.u32 %@p, %@i, 0;\n{alike}@%@p bra $@fresh;\n");
        for site in 0..self.live.len() {
            let _ = write!(code, "setp.eq.u32 %@p, %@i, {};\n{alike}@%@p bra $@load{site};\n", site + 1);
        }
        code += "trap;\n";
        for site in 0..self.live.len() {
            code += &self.poll_apart(site);
            code += &self.save(site);
            code += &self.load(site);
        }
        code
    }

    fn save(&self, site: usize) -> String {
        let mut code = format!("$@save{site}:\n{LOCATE}{}", self.ask(site));
        if self.copies {
            // Each thread for itself, before all meet: shared memory is saved behind that. Whoever goes on has none left to wait for.
            code += "cp.async.wait_all;\n";
        }
        code += &self.frame(FRAMES_INTO);
        if self.kernel.is_bound {
            code += &self.where_memory_lies();
            let _ = writeln!(code, "st.global.u64 [%@f+{LAY}], %@y;");
        }
        code += &self.cells(site, Way::Save);
        code += &self.copy_local(Way::Save, site);
        if self.kernel.group >= Group::Block && (self.dynamic.is_some() || !self.shared.is_empty()) {
            // Among those that are still there: others have left, and save nothing.
            code += "setp.eq.u32 %@p, %@n, %@n;
bar.red.popc.u32 %@r, 0, %@p;
atom.global.add.u32 %@i, [%@f], 1;
";
            code += &self.copy_shared(Way::Save, &format!("save{site}"));
        }
        let place = self.place(self.kernel.frame.site, 4);
        let _ = write!(code, "{place}mov.u32 %@v, {};\nst.global.u32 [%@a+{HEAD}], %@v;\nret;\n", site + 1);
        code
    }

    fn load(&self, site: usize) -> String {
        let (cells, local) = (self.cells(site, Way::Load), self.copy_local(Way::Load, site));
        format!("$@load{site}:\n{cells}{local}bra $@{}{site};\n", Part::Again.label())
    }

    /// Room for the block in `%@s`: whoever asks first gets it for all; where there is none they go on.
    fn ask(&self, site: usize) -> String {
        // In one block there is no branch between asking and telling, so no thread of a warp waits for one that waits for it.
        format!(
            "ld.global.u64 %@a, [%@c+{INTO}];
mul.wide.u32 %@x, %@b, 4;
add.u64 %@a, %@a, %@x;
atom.global.cas.b32 %@s, [%@a], 0, {ASKING};
setp.eq.u32 %@p, %@s, 0;
ld.global.u32 %@v, [%@c+{CAPACITY}];
@%@p atom.global.add.u32 %@s, [%@c+{TAKEN}], 1;
setp.lt.u32 %@q, %@s, %@v;
add.u32 %@s, %@s, 1;
selp.b32 %@s, %@s, {NO_ROOM}, %@q;
@%@p atom.global.exch.b32 %@v, [%@a], %@s;
$@ask{site}:
ld.volatile.global.u32 %@s, [%@a];
setp.eq.u32 %@p, %@s, {ASKING};
@%@p bra $@ask{site};
setp.eq.u32 %@p, %@s, {NO_ROOM};
@%@p bra $@{}{site};
sub.u32 %@s, %@s, 1;
",
            Part::Rest.label()
        )
    }

    /// The address of frame `%@s` in `%@f`.
    fn frame(&self, frames: u64) -> String {
        let frame = &self.kernel.frame;
        let dynamic = if frame.dynamic {
            "mov.u32 %@v, %dynamic_smem_size;
add.u32 %@v, %@v, 15;
and.b32 %@v, %@v, -16;
cvt.u64.u32 %@a, %@v;
add.u64 %@x, %@x, %@a;
"
        } else {
            ""
        };
        format!(
            "{}mov.u64 %@x, %@a;
{}add.u64 %@x, %@x, %@a;
add.u64 %@x, %@x, {};
{dynamic}cvt.u64.u32 %@a, %@s;
mul.lo.u64 %@x, %@x, %@a;
ld.global.u64 %@f, [%@c+{frames}];
add.u64 %@f, %@f, %@x;
",
            rounded(frame.registers),
            rounded(frame.local),
            HEAD + frame.shared,
        )
    }

    /// In `%@a`, but for the head, where the thread's cell of so many bytes lies before which there are `offset` bytes of each thread.
    fn place(&self, offset: u64, bytes: u64) -> String {
        format!(
            "mul.wide.u32 %@a, %@n, {offset};
mul.wide.u32 %@x, %@t, {bytes};
add.u64 %@a, %@a, %@x;
add.u64 %@a, %@a, %@f;
"
        )
    }

    fn cells(&self, number: usize, way: Way) -> String {
        let (mut code, mut end) = (String::new(), None);
        let site = &self.kernel.frame.sites[number];
        for cell in &site.cells {
            let bytes = cell.ty.size();
            let steps = self.form == Form::Loaded;
            // From each to the next: places that are all known at once take registers, of which the whole kernel has as many.
            if steps && end == Some((cell.offset, bytes)) {
                code += "add.u64 %@a, %@a, %@x;\n";
            } else {
                code += &self.place(cell.offset, bytes);
                if steps {
                    let _ = writeln!(code, "mul.wide.u32 %@x, %@n, {bytes};");
                }
            }
            end = Some((cell.offset + bytes, bytes));
            let (bits, register) = (bytes * 8, &cell.register);
            let stored = format!("[%@a+{HEAD}]");
            let _ = match (way, &cell.pointer) {
                (Way::Save, None) => writeln!(code, "st.global.b{bits} {stored}, {register};"),
                (Way::Load, None) => writeln!(code, "ld.global.b{bits} {register}, {stored};"),
                (Way::Save, Some(pointer)) => {
                    let (base, begin) = beginning_of(pointer, bits);
                    write!(
                        code,
                        "{base}sub.u{bits} {begin}, {register}, {begin};\nst.global.b{bits} {stored}, {begin};\n"
                    )
                }
                (Way::Load, Some(pointer)) => {
                    let (base, begin) = beginning_of(pointer, bits);
                    write!(
                        code,
                        "ld.global.b{bits} {register}, {stored};\n{base}add.u{bits} {register}, {register}, {begin};\n"
                    )
                }
            };
            if way == Way::Load && cell.alike && self.reduces {
                code += &tell_alike(register, bits);
            }
        }
        for (byte, predicates) in site.predicates.chunks(8).enumerate() {
            code += &self.place(site.flags + byte as u64, 1);
            let _ = match way {
                Way::Save => writeln!(code, "mov.u32 %@v, 0;"),
                Way::Load => writeln!(code, "ld.global.u8 %@v, [%@a+{HEAD}];"),
            };
            for (bit, predicate) in predicates.iter().enumerate() {
                let mask = 1u32 << bit;
                let _ = match way {
                    Way::Save => {
                        writeln!(code, "selp.b32 %@w, {mask}, 0, {predicate};\nor.b32 %@v, %@v, %@w;")
                    }
                    Way::Load => {
                        writeln!(code, "and.b32 %@w, %@v, {mask};\nsetp.ne.u32 {predicate}, %@w, 0;")
                    }
                };
            }
            if way == Way::Save {
                let _ = writeln!(code, "st.global.u8 [%@a+{HEAD}], %@v;");
            }
        }
        code
    }

    /// In `%@y`, a number that is another one where shared or local memory, or a variable there, lies elsewhere.
    fn where_memory_lies(&self) -> String {
        let add = format!("mad.lo.u64 %@y, %@y, {SPREAD}, %@x;\n");
        let mut code = format!("mov.u64 %@x, 0;\ncvta.shared.u64 %@y, %@x;\ncvta.local.u64 %@x, %@x;\n{add}");
        let names = self.shared.iter().chain(self.local).map(|area| area.name.as_str()).chain(self.dynamic);
        for name in names {
            let _ = write!(code, "mov.u64 %@x, {name};\n{add}");
        }
        code
    }

    /// Every byte that a thread has in local memory takes one of each thread: words lie side by side, and what is not words byte by byte.
    fn copy_local(&self, way: Way, site: usize) -> String {
        let mut code = String::new();
        let direction = if way == Way::Save { "s" } else { "l" };
        for (number, area) in self.local.iter().enumerate() {
            for (from, to, unit) in area.pieces() {
                let label = format!("$@{direction}{site}_{number}_{unit}");
                let _ = write!(
                    code,
                    "{}mov.u32 %@i, {from};
{label}:
add.u32 %@v, %@i, {};
mul.wide.u32 %@a, %@n, %@v;
mul.wide.u32 %@x, %@t, {unit};
add.u64 %@a, %@a, %@x;
add.u64 %@a, %@a, %@y;
cvt.u64.u32 %@z, %@i;
mov.u64 %@x, {};
add.u64 %@x, %@x, %@z;
{}add.u32 %@i, %@i, {unit};
setp.lt.u32 %@p, %@i, {to};
@%@p bra {label};
",
                    self.behind_registers(),
                    area.at,
                    area.name,
                    moved(way, "local", unit, "%@x", "%@a"),
                );
            }
        }
        code
    }

    /// In `%@y`, where local memory begins in the frame.
    fn behind_registers(&self) -> String {
        format!("{}add.u64 %@y, %@f, %@a;\nadd.u64 %@y, %@y, {HEAD};\n", rounded(self.kernel.frame.registers))
    }

    /// Shared memory, by all threads that have a number in `%@i`, of which there are `%@r`.
    fn copy_shared(&self, way: Way, label: &str) -> String {
        if self.shared.is_empty() && self.dynamic.is_none() {
            return String::new();
        }
        let frame = &self.kernel.frame;
        let mut code = self.behind_registers();
        code += &rounded(frame.local);
        code += "add.u64 %@y, %@y, %@a;\n";
        let mut copy = |number: usize, name: &str, at: u64, (from, to, unit): (u64, &str, u64)| {
            let label = format!("$@{label}_{number}_{unit}");
            let _ = write!(
                code,
                "mul.lo.u32 %@w, %@i, {unit};
add.u32 %@w, %@w, {from};
mul.lo.u32 %@g, %@r, {unit};
{label}:
mov.u32 %@v, {to};
setp.ge.u32 %@p, %@w, %@v;
@%@p bra {label}_;
cvt.u64.u32 %@z, %@w;
mov.u64 %@x, {name};
add.u64 %@x, %@x, %@z;
add.u64 %@a, %@y, %@z;
add.u64 %@a, %@a, {at};
{}add.u32 %@w, %@w, %@g;
bra {label};
{label}_:
",
                moved(way, "shared", unit, "%@x", "%@a"),
            );
        };
        for (number, area) in self.shared.iter().enumerate() {
            for (from, to, unit) in area.pieces() {
                copy(number, &area.name, area.at, (from, &to.to_string(), unit));
            }
        }
        if let Some(name) = self.dynamic {
            copy(self.shared.len(), name, frame.shared, (0, "%dynamic_smem_size", 1));
        }
        code
    }
}

/// A copy between memory of a thread or block, and a frame.
fn moved(way: Way, space: &str, unit: u64, own: &str, frame: &str) -> String {
    let bits = unit * 8;
    match way {
        Way::Save => format!("ld.{space}.u{bits} %@v, [{own}];\nst.global.u{bits} [{frame}], %@v;\n"),
        Way::Load => format!("ld.global.u{bits} %@v, [{frame}];\nst.{space}.u{bits} [{own}], %@v;\n"),
    }
}

/// Odd, and with bits all over: sums of few small numbers times its powers differ.
const SPREAD: i64 = -7_046_029_254_386_353_131;

/// In a register, which is named, the address where what a pointer points into begins.
fn beginning_of(pointer: &Pointer, bits: u64) -> (String, &'static str) {
    let begin = if bits == 32 { "%@v" } else { "%@y" };
    let mut code = format!("mov.u{bits} {begin}, {};\n", pointer.variable);
    if pointer.is_generic {
        let space = if pointer.space == Space::Shared { "shared" } else { "local" };
        let _ = writeln!(code, "cvta.{space}.u{bits} {begin}, {begin};");
    }
    (code, begin)
}

/// The same of a register, which stays what it is.
fn tell_alike(register: &Name, bits: u64) -> String {
    let word = |word: &str| format!("redux.sync.or.b32 {word}, {word}, 0xffffffff;\n");
    match bits {
        32 => format!("mov.b32 %@v, {register};\n{}mov.b32 {register}, %@v;\n", word("%@v")),
        64 => format!(
            "mov.b64 {{%@v, %@w}}, {register};\n{}{}mov.b64 {register}, {{%@v, %@w}};\n",
            word("%@v"),
            word("%@w")
        ),
        _ => String::new(),
    }
}

/// In `%@a`, so many bytes of each thread, up to where the next part begins.
fn rounded(bytes: u64) -> String {
    format!("mul.wide.u32 %@a, %@n, {bytes};\nadd.u64 %@a, %@a, 15;\nand.b64 %@a, %@a, -16;\n")
}

const DECLARATIONS: &str = ".reg .u64 %@c, %@a, %@f, %@x, %@y, %@z;
.reg .u32 %@t, %@n, %@b, %@s, %@v, %@w, %@i, %@e, %@r, %@g;
.reg .pred %@p, %@q;
";

/// The thread's number in its block in `%@t`, how many it has in `%@n`, the block's number in `%@b`, the context in `%@c`.
const LOCATE: &str = "mov.u32 %@t, %tid.z;
mov.u32 %@v, %ntid.y;
mov.u32 %@w, %tid.y;
mad.lo.u32 %@t, %@t, %@v, %@w;
mov.u32 %@n, %ntid.x;
mov.u32 %@w, %tid.x;
mad.lo.u32 %@t, %@t, %@n, %@w;
mul.lo.u32 %@n, %@n, %@v;
mov.u32 %@v, %ntid.z;
mul.lo.u32 %@n, %@n, %@v;
mov.u32 %@b, %ctaid.z;
mov.u32 %@v, %nctaid.y;
mov.u32 %@w, %ctaid.y;
mad.lo.u32 %@b, %@b, %@v, %@w;
mov.u32 %@v, %nctaid.x;
mov.u32 %@w, %ctaid.x;
mad.lo.u32 %@b, %@b, %@v, %@w;
ld.param.u64 %@c, [@context];
";

/// Where the bit of the thread lies that says that it is done, in `%@a`.
fn done_word() -> String {
    format!(
        "add.u32 %@v, %@n, 31;
shr.u32 %@v, %@v, 5;
mul.wide.u32 %@a, %@b, %@v;
shr.u32 %@w, %@t, 5;
cvt.u64.u32 %@x, %@w;
add.u64 %@a, %@a, %@x;
shl.b64 %@a, %@a, 2;
ld.global.u64 %@x, [%@c+{DONE}];
add.u64 %@a, %@a, %@x;
"
    )
}
