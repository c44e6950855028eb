//! What stands at marks.

use ptx::ast::Instruction;

use super::Form;
use super::code::Code;
use super::copy::Part;
use crate::context::{DECIDED, STOP};
use crate::poll::{KNOWN, LATE, MOST, TICKS};
use crate::{Group, Poll};

/// One mark more.
const COUNT: &str = "sub.u32 %@k, %@k, 1;\n";

impl Code<'_> {
    /// What polls need, wherever a thread goes on.
    pub(super) fn ready_to_poll(&self) -> &'static str {
        match self.poll {
            _ if self.kernel.group == Group::Grid => {
                ".reg .u32 %@l, %@j;\nmov.u32 %@l, 0;\nmov.u32 %@j, 0;\n"
            }
            Poll::Every => "",
            Poll::Counted(_) => ".reg .u32 %@k;\nmov.u32 %@k, 1;\n",
            Poll::Adaptive => {
                ".reg .u32 %@k, %@m, %@o;\nmov.u32 %@k, 1;\nmov.u32 %@m, 1;\nmov.u32 %@o, %clock;\n"
            }
            Poll::Barrier => ".reg .u32 %@l;\n.reg .pred %@h;\nmov.u32 %@l, 0;\nsetp.ne.u32 %@h, %@l, 0;\n",
        }
    }

    /// A mark: threads of the group save what they have, or go on, all alike.
    pub(super) fn mark(&self, site: usize, part: Part) -> String {
        let (stop, go) = (format!("$@save{site}"), format!("$@{}{site}", part.label()));
        match self.poll {
            _ if part == Part::Rest => format!("{go}:\n"),
            _ if self.kernel.group == Group::Grid => self.behind_grid(&stop, &go),
            Poll::Every => format!("{}{go}:\n", self.poll(&stop)),
            _ if part == Part::Kernel && self.polls_apart() => {
                format!("{COUNT}setp.eq.u32 %@p, %@k, 0;\n@%@p bra $@poll{site};\n{go}:\n")
            }
            Poll::Counted(_) | Poll::Adaptive => {
                let poll = self.counted_poll(&stop);
                format!("{COUNT}setp.ne.u32 %@p, %@k, 0;\n@%@p bra {go};\n{poll}{go}:\n")
            }
            Poll::Barrier => format!("@%@h bra {stop};\n{go}:\n"),
        }
    }

    /// Whether threads count, and poll apart from the kernel's own code: they go on in the copy for threads that go on half-way: `ptxas` puts a poll that comes back into a loop
    /// there, and a branch around it, which costs a loop of 2 µs 0.8 % on an H200. Threads that poll each for itself would part for as long as that copy lasts.
    fn polls_apart(&self) -> bool {
        self.form == Form::Loaded
            && matches!(self.poll, Poll::Counted(_) | Poll::Adaptive)
            && matches!(self.kernel.group, Group::Warp | Group::Block)
    }

    /// Polls of the kernel's own code that are apart from it.
    pub(super) fn poll_apart(&self, site: usize) -> String {
        if !self.polls_apart() {
            return String::new();
        }
        let poll = self.counted_poll(&format!("$@save{site}"));
        format!("$@poll{site}:\n{poll}bra $@{}{site};\n", Part::Again.label())
    }

    /// What those poll that count, and until when they count then.
    fn counted_poll(&self, stop: &str) -> String {
        let count = match self.poll {
            Poll::Counted(marks) => format!("mov.u32 %@k, {marks};\n"),
            _ => self.adapt(),
        };
        count + &self.poll(stop)
    }

    /// After how many marks the next poll is due: twice as many as the last time, if that was too soon for all; the next one, if it was too late for any.
    fn adapt(&self) -> String {
        let (all, any) = (self.agree("and", "all"), self.agree("or", "any"));
        let (soon, late) = if self.form == Form::Loaded { (TICKS, LATE) } else { KNOWN };
        format!(
            "mov.u32 %@w, %clock;
sub.u32 %@o, %@w, %@o;
setp.lt.u32 %@p, %@o, {soon};
{all}@%@q shl.b32 %@m, %@m, 1;
min.u32 %@m, %@m, {MOST};
setp.gt.u32 %@p, %@o, {late};
{any}@%@q mov.u32 %@m, 1;
mov.u32 %@o, %@w;
mov.u32 %@k, %@m;
"
        )
    }

    /// Threads of the group go on, or to `stop`, all alike.
    pub(super) fn poll(&self, stop: &str) -> String {
        format!(
            "ld.param.u64 %@c, [@context];
ld.volatile.global.u32 %@v, [%@c+{STOP}];
setp.ne.u32 %@p, %@v, 0;
{}@%@q bra {stop};
",
            self.agree("or", "any")
        )
    }

    /// In `%@q`, whether `%@p` holds for all threads of the group, or for any.
    fn agree(&self, of_block: &str, of_warp: &str) -> String {
        match self.kernel.group {
            Group::Block | Group::Grid => format!("bar.red.{of_block}.pred %@q, 0, %@p;\n"),
            Group::Warp => format!("vote.sync.{of_warp}.pred %@q, %@p, 0xffffffff;\n"),
            Group::Thread => "mov.pred %@q, %@p;\n".to_owned(),
        }
    }

    /// Before its block arrives at a barrier of the grid, a thread that has seen the flag decides for all: none gets past it before it is written.
    pub(super) fn arrival(&self) -> String {
        format!(
            "setp.ne.u32 %@p, %@l, 0;
{}@%@p st.volatile.global.u32 [%@x+{DECIDED}], %@l;
@%@p membar.gl;
",
            self.turn()
        )
    }

    /// Behind a barrier of the grid all its threads find the same, since it is not written again before all have come to the next one: there it is the other word's turn.
    fn behind_grid(&self, stop: &str, go: &str) -> String {
        format!(
            "{}ld.volatile.global.u32 %@v, [%@x+{DECIDED}];
ld.volatile.global.u32 %@l, [%@c+{STOP}];
xor.b32 %@j, %@j, 4;
setp.ne.u32 %@p, %@v, 0;
{}@%@p bra {stop};
{go}:
",
            self.turn(),
            self.alike()
        )
    }

    /// In `%@c` the context, in `%@x` where that of the word lies whose turn it is.
    fn turn(&self) -> &'static str {
        "ld.param.u64 %@c, [@context];
cvt.u64.u32 %@x, %@j;
add.u64 %@x, %@x, %@c;
"
    }

    /// A barrier that tells the marks what the flag was at the barrier before: nobody waits for it to be read.
    pub(super) fn barrier(&self, barrier: &Instruction) -> String {
        let is_aligned = barrier.opcode.as_str() != "barrier.sync";
        format!(
            "setp.ne.u32 %@p, %@l, 0;
{}.red.or.pred %@h, 0, %@p;
ld.param.u64 %@c, [@context];
ld.volatile.global.u32 %@l, [%@c+{STOP}];
",
            if is_aligned { "bar" } else { "barrier" }
        )
    }
}
