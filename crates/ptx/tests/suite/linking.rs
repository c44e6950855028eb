//! Several modules become one.
#![allow(clippy::unwrap_used)]

use ptx::{LinkError, link, parse};

const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
const CALLER: &str = ".extern .func (.param .b32 r) twice (.param .b32 x);\n.extern .global .u32 bias;\n\
    .visible .entry run(.param .u64 out)\n{\n.reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n\
    { .param .b32 p; .param .b32 q; ld.global.u32 %r1, [bias]; st.param.b32 [p], %r1;\n\
    call.uni (q), twice, (p); ld.param.b32 %r2, [q]; }\n\
    ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], %r2; ret;\n}\n";
const CALLEE: &str = ".visible .global .u32 bias = 21;\n\
    .visible .func (.param .b32 r) twice (.param .b32 x)\n{\n.reg .b32 %r<3>;\n\
    ld.param.b32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret;\n}\n";

fn units(texts: &[&str]) -> Vec<ptx::ast::Module> {
    texts.iter().map(|text| parse(&format!("{HEADER}{text}")).unwrap()).collect()
}

#[test]
fn what_one_declares_another_defines() {
    for order in [[CALLER, CALLEE], [CALLEE, CALLER]] {
        let linked = link(units(&order)).unwrap();
        let text = linked.to_string();
        assert!(!text.contains(".extern"), "{text}");
        assert_eq!(parse(&text).unwrap().to_string(), text, "lines are all that may differ");
    }
}

#[test]
fn the_newest_version_and_target_are_taken() {
    let mut both = units(&[CALLER]);
    both.push(parse(&format!(".version 8.1\n.target sm_90a\n.address_size 64\n{CALLEE}")).unwrap());
    let linked = link(both).unwrap();
    assert_eq!((linked.version.major, linked.version.minor, linked.target.sm()), (8, 1, Some(90)));
}

#[test]
fn weak_definitions_yield() {
    let weak = CALLEE.replace(".visible", ".weak").replace("= 21", "= 1");
    for order in [[CALLER, &weak, CALLEE], [CALLER, CALLEE, &weak]] {
        let text = link(units(&order)).unwrap().to_string();
        assert!(!text.contains(".weak"), "{text}");
    }
    link(units(&[CALLER, &weak, &weak])).unwrap();
}

#[test]
fn what_does_not_fit_is_named() {
    let internal = CALLEE.replace(".visible .func", ".func");
    for (texts, expected) in [
        (&[CALLER][..], LinkError::Undefined("twice".into())),
        (&[CALLER, CALLEE, CALLEE], LinkError::Twice("bias".into())),
        (&[&internal, CALLEE], LinkError::Twice("bias".into())),
        (&[], LinkError::Nothing),
    ] {
        assert_eq!(link(units(texts)).unwrap_err(), expected);
    }
    let own = ".func helper()\n{\nret;\n}\n";
    assert_eq!(link(units(&[own, own])).unwrap_err(), LinkError::Internal("helper".into()));
}
