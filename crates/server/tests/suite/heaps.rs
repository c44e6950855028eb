//! Heaps of kernels: one for each context, of the size that was asked for, with all that was allocated from it after a restart.
#![allow(clippy::unwrap_used)]

use crate::common::{App, CTX, Images, Thread, restored};
use wire::*;

/// `CU_LIMIT_MALLOC_HEAP_SIZE`
const LIMIT: u32 = 2;
const MIB: u64 = 1 << 20;

/// `take` allocates so many bytes and says where, `give` frees what lies there.
const CODE: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .extern .func (.param .b64 r) malloc (.param .b64 n);\n\
    .extern .func free (.param .b64 p);\n\
    .visible .entry take(.param .u64 at, .param .u64 bytes)\n{\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [bytes];\n\
    { .param .b64 p; st.param.b64 [p], %rd1; .param .b64 q; call.uni (q), malloc, (p); ld.param.b64 %rd2, [q]; }\n\
    ld.param.u64 %rd3, [at];\nst.global.u64 [%rd3], %rd2;\nret;\n}\n\
    .visible .entry neither()\n{\nret;\n}\n\
    .visible .entry give(.param .u64 at)\n{\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [at];\nld.global.u64 %rd2, [%rd1];\n\
    { .param .b64 p; st.param.b64 [p], %rd2; call.uni free, (p); }\nret;\n}\n";

/// A module with both kernels.
#[derive(Clone, Copy)]
struct Code {
    module: ModuleId,
    take: Callee,
    give: Callee,
}

impl Code {
    fn load(app: &mut App, thread: &mut Thread, module: u32) -> Self {
        let loaded = app.load(thread, module, CODE);
        let [take, give] =
            [(1, "take"), (2, "give")].map(|(n, name)| thread.function(loaded, module + n, name));
        Self { module: loaded, take, give }
    }

    /// Where an allocation is; 0 where there is no room.
    fn allocate(self, thread: &mut Thread, bytes: u64) -> u64 {
        let at = thread.alloc(8);
        thread.launch(self.take, Stream::Legacy, 1, &[at, bytes], &[]);
        let words = thread.get(at, 2);
        u64::from(words[1]) << 32 | u64::from(words[0])
    }

    fn free(self, thread: &mut Thread, address: u64) {
        let at = thread.alloc(8);
        thread.put(at, &[address as u32, (address >> 32) as u32]);
        thread.launch(self.give, Stream::Legacy, 1, &[at], &[]);
        thread.synchronize().unwrap();
    }
}

fn set(thread: &mut Thread, value: u64) -> Result<(), CuError> {
    thread.call(ContextSetLimit { ctx: CTX, limit: LIMIT, value })
}

#[test]
fn a_heap_has_the_size_that_was_asked_for_before_it_was_used() {
    let (mut app, mut thread) = App::with_context();
    let code = Code::load(&mut app, &mut thread, 10);
    let neither = thread.function(code.module, 13, "neither");
    thread.launch(neither, Stream::Legacy, 1, &[], &[]);
    thread.synchronize().unwrap();
    set(&mut thread, 3 * MIB).unwrap();
    assert_eq!(code.allocate(&mut thread, 3 * MIB + 1), 0);
    assert_ne!(code.allocate(&mut thread, 3 * MIB), 0);
    assert_eq!(set(&mut thread, 4 * MIB), Err(CuError::INVALID_VALUE));
    assert_eq!(thread.call(ContextGetLimit { ctx: CTX, limit: LIMIT }), Ok(3 * MIB));
}

#[test]
fn all_modules_of_a_context_have_one_heap_also_after_restarts() {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let first = Code::load(&mut app, &mut thread, 10);
    let most = first.allocate(&mut thread, 5 * MIB);
    let small = first.allocate(&mut thread, 24);
    for (number, module) in [20, 30].into_iter().enumerate() {
        let (id, _) = images.capture(&app.session);
        (app, thread) = restored(app, thread, &images, &id);
        assert_eq!(set(&mut thread, 9 * MIB), Err(CuError::INVALID_VALUE));
        let other = Code::load(&mut app, &mut thread, module);
        assert_eq!(other.allocate(&mut thread, 5 * MIB), 0, "restart {number}");
        assert_ne!(other.allocate(&mut thread, 24), small);
    }
    let last = Code::load(&mut app, &mut thread, 40);
    last.free(&mut thread, most);
    assert_eq!(first.allocate(&mut thread, 5 * MIB), most);
}

#[test]
fn the_program_is_not_told_of_what_is_added_to_its_code() {
    let (mut app, mut thread) = App::with_context();
    let code = Code::load(&mut app, &mut thread, 10);
    code.allocate(&mut thread, 1);
    let names = thread.call(ModuleListFunctions { module: code.module, first: 0, most: 10 }).unwrap();
    assert_eq!(names.names, ["take", "neither", "give"]);
    let global = |name: &str| ModuleGetGlobal { module: code.module, name: name.into() };
    assert_eq!(thread.call(global("__dormouse_heap")), Err(CuError::NOT_FOUND));
    let function = FunctionId(99);
    let named = ModuleGetFunction { module: code.module, function, name: "__dormouse_malloc".into() };
    assert_eq!(thread.call(named).map(drop), Err(CuError::NOT_FOUND));
}

#[test]
fn a_heap_goes_with_its_context() {
    let (mut app, mut thread) = App::with_context();
    let code = Code::load(&mut app, &mut thread, 10);
    let before = code.allocate(&mut thread, 100);
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
    let device = Device(0);
    thread.call(ContextCreate { ctx: CTX, device, flags: 0, primary: false }).unwrap();
    set(&mut thread, MIB).unwrap();
    let code = Code::load(&mut app, &mut thread, 20);
    assert_ne!((before, code.allocate(&mut thread, MIB)), (0, 0));
    let images = Images::new();
    images.capture(&app.session);
}
