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
    let own = ".entry run()\n{\nret;\n}\n";
    assert_eq!(link(units(&[own, own])).unwrap_err(), LinkError::Internal("run".into()));
}

/// As with what nvcc makes of two sources that print: each calls its strings `$str`.
#[test]
fn what_is_internal_to_each_is_told_apart() {
    let own = |entry: &str, letter: u8| {
        format!(
            ".global .align 1 .b8 $str[2] = {{{letter}, 0}};\n.global .u64 place = $str;\n\
             .func helper()\n{{\nret;\n}}\n\
             .visible .entry {entry}(.param .u64 out)\n{{\n.reg .b64 %rd<4>;\n.reg .b32 %r<2>;\n\
             call helper;\nmov.u64 %rd1, $str;\nld.global.u8 %r1, [$str+1];\nret;\n}}\n"
        )
    };
    let module = link(units(&[&own("first", 1), &own("second", 2)])).unwrap();
    let text = module.to_string();
    for (unit, entry) in [(0, "first"), (1, "second")] {
        let body = text.split(".visible .entry ").find(|body| body.starts_with(entry)).unwrap();
        for used in
            [format!("helper$unit{unit}"), format!("$str$unit{unit};"), format!("[$str$unit{unit}+1]")]
        {
            assert!(body.contains(&used), "{text}");
        }
        let place = module.variable(&format!("place$unit{unit}")).unwrap();
        assert_eq!(*place.init.as_ref().unwrap().relocations[0].symbol, *format!("$str$unit{unit}"));
    }
    // What nobody else has keeps its name.
    assert!(link(units(&[&own("first", 1)])).unwrap().variable("$str").is_some());
}

#[test]
fn lines_are_of_the_files_they_were_of() {
    let unit = |entry: &str, file: &str, line: u32| {
        format!(".file 1 \"{file}\"\n.visible .entry {entry}()\n{{\n.loc 1 {line} 2\nret;\n}}\n")
    };
    let text = link(units(&[&unit("first", "a.cu", 7), &unit("second", "b.cu", 9)])).unwrap().to_string();
    for expected in [".file 1 \"a.cu\"", ".file 2 \"b.cu\"", ".loc 1 7 2", ".loc 2 9 2"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
