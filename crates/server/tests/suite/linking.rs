//! Linking device code at run time.
#![allow(clippy::unwrap_used)]

use crate::common::{App, CTX, Thread};
use wire::*;

const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
const CALLER: &str = ".extern .func (.param .b32 r) twice (.param .b32 x);\n\
    .visible .entry run(.param .u64 out)\n{\n.reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n\
    ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1];\n\
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r1;\n\
    call.uni (q), twice, (p); ld.param.b32 %r2, [q]; }\n\
    st.global.u32 [%rd1], %r2; ret;\n}\n";
const CALLEE: &str = ".visible .global .u32 bias = 5;\n\
    .visible .func (.param .b32 r) twice (.param .b32 x)\n{\n.reg .b32 %r<4>;\n\
    ld.param.b32 %r1, [x]; ld.global.u32 %r3, [bias]; add.u32 %r2, %r1, %r1; add.u32 %r2, %r2, %r3;\n\
    st.param.b32 [r], %r2; ret;\n}\n";

/// `CU_JIT_INPUT_PTX`.
const PTX: u32 = 1;

fn link(app: &mut App, thread: &mut Thread, units: &[&str]) -> Result<(u64, String), (CuError, String)> {
    link_with(app, thread, units, vec![])
}

fn link_with(
    app: &mut App,
    thread: &mut Thread,
    units: &[&str],
    options: Vec<(u32, u64)>,
) -> Result<(u64, String), (CuError, String)> {
    let inputs = units.iter().zip(["first", "second", "third"]);
    let inputs = inputs.map(|(unit, name)| (PTX, (app.upload(&format!("{HEADER}{unit}")), name.to_owned())));
    let inputs = inputs.collect();
    thread.explain(Link { ctx: CTX, inputs, options, output: UploadId(700) })
}

#[test]
fn two_units_become_a_module() {
    let (mut app, mut thread) = App::with_context();
    let (bytes, _) = link(&mut app, &mut thread, &[CALLER, CALLEE]).unwrap();
    let linked = app.dir.path().join("upload-700");
    assert_eq!(linked.metadata().unwrap().len(), bytes);
    // The result is an image like any other, and lies where a load takes it from.
    let module = ModuleId(2);
    thread.call(ModuleLoad { ctx: CTX, module, upload: UploadId(700), options: vec![], managed: 0 }).unwrap();
    let run = thread.function(module, 3, "run");
    let memory = thread.alloc(4);
    thread.put(memory, &[20]);
    thread.launch(run, Stream::Legacy, 1, &[memory], &[]);
    assert_eq!(thread.get(memory, 1), [45]);
}

/// All inputs are in memory at once: what is too much is refused before it is read.
#[test]
fn inputs_are_bounded_together() {
    let (mut app, mut thread) = App::with_context();
    let first = app.upload(&format!("{HEADER}{CALLEE}"));
    let second = app.upload("");
    let file = std::fs::File::options().write(true).open(app.dir.path().join(format!("upload-{}", second.0)));
    file.unwrap().set_len(4 << 30).unwrap();
    let inputs = [(first, "first"), (second, "second")].map(|(id, name)| (PTX, (id, name.to_owned())));
    let message = Link { ctx: CTX, inputs: inputs.to_vec(), options: vec![], output: UploadId(700) };
    let (code, detail) = thread.explain(message).unwrap_err();
    assert_eq!(code, CuError::INVALID_IMAGE);
    assert!(detail.contains(&format!("upload-{}", second.0)), "{detail}");
}

#[test]
fn what_cannot_be_linked_is_named() {
    let (mut app, mut thread) = App::with_context();
    for (units, word) in [
        (&[CALLER][..], "twice"),
        (&[CALLER, CALLEE, CALLEE], "bias"),
        (&[CALLER, "rubbish"], "second"),
        (&[], "nothing"),
    ] {
        let (code, detail) = link(&mut app, &mut thread, units).unwrap_err();
        assert_eq!(code, CuError::INVALID_PTX, "{detail}");
        assert!(detail.contains(word), "{detail}");
    }
    assert!(!app.dir.path().join("upload-700").exists());
}

#[test]
fn addresses_in_options_are_not_for_the_device_library() {
    let (mut app, mut thread) = App::with_context();
    // `CU_JIT_WALL_TIME`, log buffers, `CU_JIT_GLOBAL_SYMBOL_*`, `CU_JIT_REFERENCED_*`, and one that there is not.
    for option in [2, 3, 4, 5, 6, 17, 18, 19, 25, 27, 1000] {
        let options = vec![(option, 0xdead_b000)];
        let linked = link_with(&mut app, &mut thread, &[CALLER, CALLEE], options.clone());
        assert_eq!(linked.unwrap_err().0, CuError::NOT_SUPPORTED, "option {option}");
        let upload = app.upload(crate::common::BASIC);
        let load = ModuleLoad { ctx: CTX, module: ModuleId(2), upload, options: options.clone(), managed: 0 };
        assert_eq!(thread.call(load), Err(CuError::NOT_SUPPORTED), "option {option}");
        let load = LibraryLoad { library: LibraryId(3), upload, options };
        assert_eq!(thread.call(load), Err(CuError::NOT_SUPPORTED), "option {option}");
    }
    // Numbers are passed on: an optimization level, position-independent code.
    let numbers = vec![(7, 4), (30, 0)];
    link_with(&mut app, &mut thread, &[CALLER, CALLEE], numbers).unwrap();
}

#[test]
fn who_asks_for_it_is_told_what_was_done() {
    let (mut app, mut thread) = App::with_context();
    // `CU_JIT_LOG_VERBOSE`.
    let told = |verbose| vec![(12, verbose)];
    for (verbose, is_told) in [(0, false), (1, true)] {
        let (_, info) = link_with(&mut app, &mut thread, &[CALLER, CALLEE], told(verbose)).unwrap();
        assert_eq!(info.contains("second"), is_told, "{info:?}");
        let (module, upload) = (ModuleId(2), UploadId(700));
        let (info, _) =
            thread.call(ModuleLoad { ctx: CTX, module, upload, options: told(verbose), managed: 0 }).unwrap();
        assert_eq!(info.contains("run: "), is_told, "{info:?}");
        thread.call(ModuleUnload { module }).unwrap();
    }
}
