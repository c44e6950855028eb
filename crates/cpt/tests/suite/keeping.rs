//! What a block that has stopped is kept in is what it needs, as [`reference`](crate::reference) finds it.

use crate::{reference, rewritten};

#[test]
fn what_is_kept_is_what_is_live() {
    let rewritten = rewritten();
    let module = ptx::parse(&rewritten.text).unwrap();
    for (name, kernel) in &rewritten.kernels {
        let worst = reference::check(&module, kernel);
        println!("{name}: {worst:.3} times the minimum, {} bytes a thread", kernel.frame.registers);
    }
}

#[test]
fn nothing_is_read_that_was_not_restored() {
    let rewritten = rewritten();
    let module = ptx::parse(&rewritten.text).unwrap();
    for (name, kernel) in &rewritten.kernels {
        reference::nothing_else_is_read(&module, name, kernel);
    }
}

#[test]
fn a_block_is_kept_in_hardly_more_bytes_than_it_needs() {
    let rewritten = rewritten();
    let module = ptx::parse(&rewritten.text).unwrap();
    for (name, kernel) in &rewritten.kernels {
        let (kept, least) = reference::bytes(&module, kernel, 128);
        println!("{name}: {kept} bytes, {least} at least, {:.3} times", kept as f64 / least as f64);
        assert!(kept as f64 <= least as f64 * 1.2, "{name} keeps {kept} bytes, of which {least} are needed");
    }
}

/// Arrays are saved whole, also ones that nothing reads any more.
#[test]
fn an_array_that_is_read_before_the_marker_alone_is_not_needed() {
    let text = |behind: &str| {
        format!(
            ".version 7.0 .target sm_80 .address_size 64 .visible .entry k(.param .u64 to) {{
.reg .b32 %r<3>; .reg .b64 %rd<3>; .reg .pred %p; .shared .align 4 .b8 words[1000];
ld.param.u64 %rd0, [to]; mov.u32 %r0, words; mov.u32 %r1, %tid.x; add.u32 %r0, %r0, %r1;
st.shared.u8 [%r0], %r1; ld.shared.u8 %r2, [%r0];
loop: .pragma \"cpt\"; {behind} add.u32 %r2, %r2, %r2; setp.lt.u32 %p, %r2, 9000; bar.red.or.pred %p, 0, %p; @%p bra loop;
st.global.u32 [%rd0], %r2; ret; }}"
        )
    };
    for (behind, needed) in [("", 0), ("ld.shared.u8 %r2, [%r0];", 1000), ("st.shared.u8 [%r0], %r2;", 0)] {
        let rewritten = cpt::rewrite(&ptx::parse(&text(behind)).unwrap()).unwrap().unwrap();
        assert_eq!(rewritten.refusals, []);
        let (kept, least) =
            reference::bytes(&ptx::parse(&rewritten.text).unwrap(), &rewritten.kernels["k"], 32);
        assert_eq!(kept - least, 16 + 1008 - needed, "{behind}");
    }
}
