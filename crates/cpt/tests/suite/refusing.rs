//! What cannot be stopped, by kernel, place and reason.

use std::fmt::Write;

use crate::rewritten;
use cpt::Group;

fn refusal(kernel: &str) -> String {
    let rewritten = rewritten();
    assert!(!rewritten.kernels.contains_key(kernel));
    rewritten.refusals.iter().find(|refusal| &*refusal.kernel == kernel).unwrap().to_string()
}

#[test]
fn a_marker_that_only_some_threads_come_to() {
    let said = refusal("some");
    assert!(said.contains("not all threads of a block come to the marker together"), "{said}");
    assert!(said.contains("kernels.cu:151"), "{said}");
}

#[test]
fn a_marker_on_the_other_way_than_the_barrier() {
    assert!(refusal("other_way").contains("not all threads of a block"));
}

#[test]
fn a_marker_in_a_branch_with_a_barrier_that_nobody_need_come_to() {
    assert!(refusal("one_side").contains("not all threads of a block"));
}

#[test]
fn a_marker_behind_a_barrier_of_a_warp_that_lanes_come_to_at_two_places() {
    assert!(refusal("one_side_of_lanes").contains("not all threads of a warp"));
}

#[test]
fn a_marker_in_rounds_that_each_lane_has_of_its_own() {
    assert!(refusal("own_rounds").contains("not all threads of a warp"));
}

#[test]
fn a_marker_as_often_as_a_function_says() {
    assert!(refusal("as_told").contains("not all threads of a block"));
}

#[test]
fn a_barrier_of_some_threads() {
    assert!(refusal("half").contains("a barrier of some threads of the block"));
}

#[test]
fn a_barrier_at_which_some_have_arrived() {
    let said = refusal("arrived");
    assert!(said.contains("bar.arrive") && said.contains("kernels.cu:157"), "{said}");
}

#[test]
fn a_marker_in_a_loop_without_a_barrier_of_the_grid() {
    assert!(refusal("beside_grid").contains("and the loop of the marker has none"));
}

#[test]
fn a_barrier_of_the_grid_that_is_not_as_it_should_be() {
    assert!(refusal("other_barrier").contains("not one of cooperative groups'"));
    assert!(refusal("kept_word").contains("whose word is kept"));
}

#[test]
fn a_function_that_calls_itself() {
    assert!(refusal("recursive").contains("the function again calls itself"));
}

#[test]
fn who_stops_together_is_as_the_kernel_needs_it() {
    let kernels = rewritten().kernels;
    let groups: Vec<(&str, Group)> = kernels.iter().map(|(name, kernel)| (&**name, kernel.group)).collect();
    let expected = [
        ("calls", Group::Thread),
        ("collatz", Group::Thread),
        ("grid", Group::Grid),
        ("inside", Group::Block),
        ("kept", Group::Block),
        ("lanes", Group::Warp),
        ("leaving", Group::Block),
        ("nested", Group::Thread),
        ("shared_by", Group::Block),
        ("sides", Group::Block),
        ("sides_of_lanes", Group::Warp),
        ("slices", Group::Block),
        ("stencil", Group::Block),
        ("tiles", Group::Block),
        ("voting", Group::Warp),
        ("walks", Group::Block),
    ];
    assert_eq!(groups, expected);
}

/// A kernel with two arrays, some code in front of its loop, and what is read in that.
fn bound(code: &str, read: &str) -> bool {
    let text = format!(
        ".version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 to)
{{
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.reg .pred %p, %q;
.shared .align 4 .b8 row[64];
.shared .align 4 .b8 other[64];
ld.param.u64 %rd0, [to];
mov.u32 %r0, 0;
mov.u64 %rd1, row;
mov.u32 %r1, row;
{code}
loop:
.pragma \"cpt\";
{read}
add.u32 %r0, %r0, 1;
setp.lt.u32 %p, %r0, 9;
@%p bra loop;
ret;
}}
"
    );
    let rewritten = cpt::rewrite(&ptx::parse(&text).unwrap()).unwrap().unwrap();
    assert_eq!(rewritten.refusals, []);
    rewritten.kernels["k"].is_bound
}

#[test]
fn what_depends_on_where_memory_lies_is_bound_to_that() {
    for (code, read) in [
        ("add.u32 %r2, %r1, 15; and.b32 %r3, %r2, -16;", "st.shared.u32 [%r3], %r0;"),
        ("mov.b64 {%r2, %r3}, %rd1;", "mov.b64 %rd2, {%r2, %r3}; st.shared.u32 [%rd2], %r0;"),
        ("cvt.rn.f32.u32 %r2, %r1;", "st.global.u32 [%rd0], %r2;"),
        ("and.b32 %r2, %r1, 15; setp.eq.u32 %q, %r2, 0;", "@%q st.global.u32 [%rd0], %r0;"),
        ("mov.u32 %r2, other; setp.lt.u32 %q, %r1, %r2;", "@%q st.global.u32 [%rd0], %r0;"),
        ("mov.u32 %r2, other; min.u32 %r3, %r1, %r2;", "st.shared.u32 [%r3], %r0;"),
        ("", "st.global.u64 [%rd0], %rd1;"),
    ] {
        assert!(bound(code, read), "{code} {read}");
    }
    for (code, read) in [
        ("", "st.shared.u32 [row], %r0;"),
        ("cvta.shared.u64 %rd2, %rd1; add.u64 %rd2, %rd2, 4;", "st.u32 [%rd2], %r0;"),
        ("add.u32 %r2, %r1, 32; setp.lt.u32 %q, %r1, %r2;", "@%q st.shared.u32 [%r2], %r0;"),
        ("setp.ne.u64 %q, %rd1, 0; sub.u32 %r2, %r1, %r1;", "@%q st.global.u32 [%rd0], %r2;"),
    ] {
        assert!(!bound(code, read), "{code} {read}");
    }
}

/// A kernel with a marker that calls nothing, or a function that names shared memory of the module.
fn beside_shared_memory(calls: &str) -> cpt::Kernel {
    let text = format!(
        ".version 7.0
.target sm_80
.address_size 64
.shared .align 4 .b8 words[64];
.func names() {{ .reg .b32 %r; mov.u32 %r, words; st.shared.u32 [%r], %r; ret; }}
.visible .entry other() {{ call names; ret; }}
.visible .entry k() {{ {calls} .pragma \"cpt\"; ret; }}
"
    );
    cpt::rewrite(&ptx::parse(&text).unwrap()).unwrap().unwrap().kernels.remove("k").unwrap()
}

#[test]
fn shared_memory_is_that_of_what_a_kernel_calls() {
    let (alone, calling) = (beside_shared_memory(""), beside_shared_memory("call names;"));
    assert_eq!((alone.group, alone.frame.shared), (Group::Warp, 0));
    assert_eq!((calling.group, calling.frame.shared), (Group::Block, 64));
}

#[test]
fn what_has_no_marker_is_left_alone() {
    let module = ptx::parse(&SUM.replace("MARK", "")).unwrap();
    assert!(cpt::rewrite(&module).unwrap().is_none());
}

#[test]
fn a_carry_over_a_marker() {
    let carried = ptx::parse(&SUM.replace("MARK", ".pragma \"cpt 1\";")).unwrap();
    let refused = cpt::rewrite(&carried).unwrap().unwrap().refusals;
    assert!(refused[0].to_string().contains("carry"), "{refused:?}");
}

const SUM: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry sum(.param .u64 to)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    ld.global.v2.u32 {%r1, %r2}, [%rd1];
    add.cc.u32 %r3, %r1, %r1;
    MARK
    addc.u32 %r4, %r2, %r2;
    st.global.v2.u32 [%rd1], {%r3, %r4};
    ret;
}
";

/// Why a kernel is refused that calls the first of these functions with marks, of which each calls the next one so many times.
fn refusal_of_calls(functions: usize, times: usize) -> String {
    let mut text =
        ".version 7.0\n.target sm_80\n.address_size 64\n.func f0() { .pragma \"cpt\"; ret; }\n".to_owned();
    for number in 1..functions {
        let call = format!("call f{};\n", number - 1);
        let _ = writeln!(text, ".func f{number}() {{\n{}ret; }}", call.repeat(times));
    }
    let _ = writeln!(text, ".visible .entry k() {{\ncall f{}; ret; }}", functions - 1);
    let rewritten = cpt::rewrite(&ptx::parse(&text).unwrap()).unwrap().unwrap();
    let of_kernel = |refusal: &&cpt::Refusal| &*refusal.kernel == "k";
    rewritten.refusals.iter().find(of_kernel).map(ToString::to_string).unwrap_or_default()
}

#[test]
fn more_functions_than_are_put_into_a_kernel() {
    assert_eq!(refusal_of_calls(60, 1), "");
    let said = refusal_of_calls(70, 1);
    assert!(said.starts_with("kernel k cannot be stopped half-way: "), "{said}");
    assert!(said.contains("more than 64 functions with markers that call one another (line "), "{said}");
    // 3^30 calls.
    let said = refusal_of_calls(31, 3);
    assert!(said.contains("more than 1048576 statements, with functions put into it (line "), "{said}");
}

/// Analyses and code take no more than a kernel's size wants.
#[test]
fn a_kernel_of_50_000_statements() {
    let mut code = String::new();
    for round in 0..4600 {
        let _ = write!(
            code,
            "$L{round}: setp.lt.u32 %p1, %r1, {round}; @%p1 bra $M{round}; add.u32 %r2, %r2, %r1; xor.b32 %r1, %r1, %r3;
$M{round}: bar.sync 0; mad.lo.u32 %r3, %r2, 5, %r1; @%p2 bra $L{round}; .pragma \"cpt\"; add.u32 %r4, %r4, %r3;\n"
        );
    }
    let text = format!(
        ".version 7.0 .target sm_80 .address_size 64 .visible .entry k(.param .u32 n) {{
.reg .b32 %r<5>; .reg .pred %p<3>; mov.u32 %r1, %tid.x; ld.param.u32 %r2, [n]; mov.u32 %r3, 0; mov.u32 %r4, 0; setp.eq.u32 %p2, %r2, 9;
{code} ret; }}"
    );
    let module = ptx::parse(&text).unwrap();
    let begun = std::time::Instant::now();
    let rewritten = cpt::rewrite_with(&module, cpt::Poll::Barrier).unwrap().unwrap();
    assert_eq!(rewritten.kernels["k"].frame.sites.len(), 4600);
    // Some 5 s where nothing is optimised.
    assert!(begun.elapsed().as_secs() < 60);
}
