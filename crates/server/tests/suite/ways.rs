//! Every way in which device memory can arise, and what becomes of it at a checkpoint: captured, or not to be had at all. Whoever
//! supports a function of the list that makes memory adds its row here: the last test insists.
#![allow(clippy::unwrap_used)]

use crate::common::neighbour::{BYTES, Neighbour};
use crate::common::{App, CTX, Images, LONG, SESSION, Thread, VARIABLES};
use cuda_list::{List, Replay};
use std::collections::BTreeSet;
use wire::*;

/// What became of memory that a program has made.
enum Fate {
    /// It is there after a restart at the same address, with what was in it: [`WORDS`], written here by the program.
    Captured(u64),
    /// The same of an array, which has a handle for an address.
    Kept(ArrayId),
    /// The same of memory that only kernels reach: so the program reads it, there or after a restart.
    Reached(fn(&mut Thread) -> Vec<u32>),
    /// The call is told that there is no such thing here.
    Unavailable,
}

struct Way {
    /// What it is, for people.
    what: &'static str,
    /// The functions of the list by which it arises.
    functions: &'static [&'static str],
    /// Makes some.
    make: fn(&mut App, &mut Thread) -> Fate,
}

/// What a neighbour has to share.
const ALLOCATION: ShareId = ShareId([1; 16]);
const PIECE: ShareId = ShareId([2; 16]);

const WORDS: [u32; 3] = [0x5eed, 0xbed, 0xf00d];

const fn way(
    what: &'static str,
    functions: &'static [&'static str],
    make: fn(&mut App, &mut Thread) -> Fate,
) -> Way {
    Way { what, functions, make }
}

/// One row for each way.
const WAYS: &[Way] = &[
    way("allocation", &["cuMemAlloc", "cuMemAllocPitch"], allocation),
    way("default pool", &["cuMemAllocAsync"], default_pool),
    way("pool", &["cuMemAllocFromPoolAsync"], pool),
    way("pinned memory", &["cuMemHostAlloc", "cuMemAllocHost"], pinned),
    way("module global", &["cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx"], global),
    way("managed variable", &["cuModuleLoadData"], managed_variable),
    way("managed variable of a library", &["cuLibraryGetManaged"], managed_variable_of_a_library),
    way("device heap", &["cuModuleLoadData"], heap),
    way("array", &["cuArrayCreate", "cuArray3DCreate", "cuArrayGetPlane"], array),
    way("mipmap", &["cuMipmappedArrayCreate", "cuMipmappedArrayGetLevel"], level),
    way("graph node", &["cuGraphAddMemAllocNode"], graph_node),
    way("virtual memory", &["cuMemCreate", "cuMemRetainAllocationHandle"], mapped),
    way("managed memory", &["cuMemAllocManaged"], pinned),
    way(
        "external memory",
        &[
            "cuImportExternalMemory",
            "cuExternalMemoryGetMappedBuffer",
            "cuExternalMemoryGetMappedMipmappedArray",
        ],
        unavailable,
    ),
    way("another process's allocation", &["cuIpcOpenMemHandle"], opened),
    way("another process's piece of memory", &["cuMemImportFromShareableHandle"], imported),
    way("another process's pool", &["cuMemPoolImportPointer"], unavailable),
    way("multicast", &["cuMulticastCreate"], unavailable),
];

fn allocation(_: &mut App, thread: &mut Thread) -> Fate {
    let address = thread.alloc(100);
    thread.put(address, &WORDS);
    Fate::Captured(address)
}

fn default_pool(_: &mut App, thread: &mut Thread) -> Fate {
    from_pool(thread, Pool::Default(Device(0)))
}

fn pool(_: &mut App, thread: &mut Thread) -> Fate {
    let pool = PoolId(7);
    thread.call(PoolCreate { pool, device: Device(0), max_bytes: 0 }).unwrap();
    from_pool(thread, Pool::Created(pool))
}

fn from_pool(thread: &mut Thread, pool: Pool) -> Fate {
    let address = thread.call(MemAllocAsync { ctx: CTX, stream: Stream::Legacy, pool, bytes: 100 }).unwrap();
    thread.put(address, &WORDS);
    Fate::Captured(address)
}

/// The client asks for a node's memory as for any allocation; what the graph then does is in the graph.
fn graph_node(_: &mut App, thread: &mut Thread) -> Fate {
    let address = thread.alloc(100);
    let side = |address| Pitched { address, pitch: 12, rows: 1 };
    let source = thread.alloc(100);
    thread.put(source, &WORDS);
    let (dst, src) = (side(address), side(source));
    let copy = GraphCopy {
        ctx: CTX,
        dst: CopySide::Memory(dst),
        src: CopySide::Memory(src),
        width: 12,
        height: 1,
        depth: 1,
    };
    let nodes = vec![GraphNode { work: GraphWork::Copy(copy), after: vec![] }];
    let mut bytes = Vec::new();
    GraphPlan { nodes }.encode(&mut Encoder::new(&mut bytes));
    let (exec, plan) = (GraphExecId(9), GraphData::Inline(Bytes(bytes)));
    thread.call(GraphInstantiate { ctx: CTX, exec, template: None, flags: 0, plan }).unwrap();
    thread.send(GraphLaunch { ctx: CTX, stream: Stream::Legacy, exec, wide: false });
    Fate::Captured(address)
}

/// Memory that the application maps itself.
fn mapped(_: &mut App, thread: &mut Thread) -> Fate {
    let bytes = 2 << 20;
    let (physical, device) = (PhysicalId(5), Device(0));
    let address = thread.call(AddressReserve { bytes, alignment: 0, wanted: 0 }).unwrap();
    thread.call(PhysicalCreate { physical, device, bytes, handle_types: 0, compressible: false }).unwrap();
    thread.call(MemMap { address, bytes, physical }).unwrap();
    thread.call(MemSetAccess { address, bytes, device, access: 3 }).unwrap();
    thread.put(address, &WORDS);
    Fate::Captured(address)
}

/// To the server managed memory is nothing else. Its contents come back with the session's files, which are the supervisor's; here they stay.
fn pinned(app: &mut App, thread: &mut Thread) -> Fate {
    let (_, address) = app.pinned(thread, PinnedId(900), 4096);
    thread.put(address, &WORDS);
    Fate::Captured(address)
}

fn global(app: &mut App, thread: &mut Thread) -> Fate {
    let variables = format!("{VARIABLES}\n.visible .global .align 8 .b8 room[64];\n");
    let module = app.load(thread, 2, &variables);
    let (address, bytes) = thread.call(ModuleGetGlobal { module, name: "room".into() }).unwrap();
    assert_eq!(bytes, 64);
    thread.put(address, &WORDS);
    Fate::Captured(address)
}

/// An array of one row of [`WORDS`].
const ROW: ArrayDesc = ArrayDesc { width: 3, height: 0, depth: 0, format: 3, channels: 1, flags: 0 };

/// Copies between an array's row and memory.
fn copy_row(thread: &mut Thread, dst: CopySide, src: CopySide) {
    let copy = CopyBox { ctx: CTX, stream: Stream::Legacy, dst, src, width: 12, height: 1, depth: 1 };
    thread.send(copy);
}

fn side(address: u64) -> CopySide {
    CopySide::Memory(Pitched { address, pitch: 12, rows: 1 })
}

fn fill_row(thread: &mut Thread, array: ArrayId) -> Fate {
    let address = thread.alloc(12);
    thread.put(address, &WORDS);
    copy_row(thread, CopySide::Array(array, [0; 3]), side(address));
    Fate::Kept(array)
}

/// A plane is of an array of several, and none such is made.
fn array(_: &mut App, thread: &mut Thread) -> Fate {
    thread.call(ArrayCreate { ctx: CTX, array: ArrayId(3), desc: ROW }).unwrap();
    fill_row(thread, ArrayId(3))
}

fn level(_: &mut App, thread: &mut Thread) -> Fate {
    let (mipmap, desc) = (MipmapId(3), ArrayDesc { width: 6, ..ROW });
    thread.call(MipmapCreate { ctx: CTX, mipmap, desc, levels: 2 }).unwrap();
    thread.call(MipmapLevel { mipmap, level: 1, array: ArrayId(4) }).unwrap();
    fill_row(thread, ArrayId(4))
}

/// `grow` allocates with `malloc` and keeps there what it is given; `look` reads it.
const HEAP: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .extern .func (.param .b64 r) malloc (.param .b64 n);\n\
    .global .align 8 .u64 kept;\n\
    .visible .entry grow(.param .u64 from)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n\
    { .param .b64 p; st.param.b64 [p], 12; .param .b64 q; call.uni (q), malloc, (p); ld.param.b64 %rd1, [q]; }\n\
    st.global.u64 [kept], %rd1;\nld.param.u64 %rd2, [from];\n\
    ld.global.u32 %r1, [%rd2];\nst.global.u32 [%rd1], %r1;\n\
    ld.global.u32 %r1, [%rd2+4];\nst.global.u32 [%rd1+4], %r1;\n\
    ld.global.u32 %r1, [%rd2+8];\nst.global.u32 [%rd1+8], %r1;\nret;\n}\n\
    .visible .entry look(.param .u64 to)\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n\
    ld.global.u64 %rd1, [kept];\nld.param.u64 %rd2, [to];\n\
    ld.global.u32 %r1, [%rd1];\nst.global.u32 [%rd2], %r1;\n\
    ld.global.u32 %r1, [%rd1+4];\nst.global.u32 [%rd2+4], %r1;\n\
    ld.global.u32 %r1, [%rd1+8];\nst.global.u32 [%rd2+8], %r1;\nret;\n}\n";

/// Memory that kernels allocate with `malloc`. A device library that keeps its heap to itself has the session refused
/// (`refusals.rs`).
fn heap(app: &mut App, thread: &mut Thread) -> Fate {
    let module = app.load(thread, 2, HEAP);
    let (grow, from) = (thread.function(module, 3, "grow"), thread.alloc(12));
    thread.function(module, 4, "look");
    thread.put(from, &WORDS);
    thread.launch(grow, Stream::Legacy, 1, &[from], &[]);
    Fate::Reached(|thread| {
        let to = thread.alloc(12);
        thread.launch(Callee::Function(FunctionId(4)), Stream::Legacy, 1, &[to], &[]);
        thread.get(to, 3)
    })
}

/// Variables in managed memory, which the program gives its own: two words, a third that a kernel sets, and where the others are.
const EVERYWHERE: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .global .attribute(.managed) .align 4 .b32 words[3] = {0x5eed, 0xbed};\n\
    .global .attribute(.managed) .align 8 .u64 place = generic(words);\n\
    .visible .entry look(.param .u64 to)\n{\n.reg .b32 %r<5>;\n.reg .b64 %rd<3>;\n\
    ld.param.u64 %rd1, [to];\nld.global.u64 %rd2, [place];\n\
    ld.global.u32 %r1, [words];\nld.u32 %r2, [%rd2+4];\nld.u32 %r3, [%rd2+8];\n\
    st.global.u32 [%rd1], %r1;\nst.global.u32 [%rd1+4], %r2;\nst.global.u32 [%rd1+8], %r3;\n\
    mov.u32 %r4, 0xf00d;\nst.global.u32 [words+8], %r4;\nret;\n}\n";

/// Launches the kernel, and has what it saw before it set the third word.
fn look(thread: &mut Thread, kernel: Callee) -> Vec<u32> {
    let to = thread.alloc(12);
    thread.launch(kernel, Stream::Legacy, 1, &[to], &[]);
    thread.get(to, 3)
}

fn managed_variable(app: &mut App, thread: &mut Thread) -> Fate {
    let (module, upload) = (ModuleId(2), app.upload(EVERYWHERE));
    let load = |managed| ModuleLoad { ctx: CTX, module, upload, options: vec![], managed };
    let (_, needed) = thread.call(load(0)).unwrap();
    let told: Vec<_> = needed.variables.iter().map(|it| (it.name.as_str(), it.offset, it.bytes)).collect();
    assert_eq!(told, [("words", 0, 12), ("place", 256, 8)]);
    let (bytes, device) = (needed.bytes, thread.alloc(4096));
    let address = thread.pin(9, bytes).unwrap().address;
    let (registered, own) = (0x6f23_4567_8000, PinnedId(10));
    thread.call(HostRegister { ctx: CTX, pinned: own, address: registered, bytes: 8192, flags: 3 }).unwrap();
    for wrong in [address + 4096, address + 8, registered, device, 4096, u64::MAX - 4095] {
        assert_eq!(thread.call(load(wrong)).unwrap_err(), CuError::INVALID_VALUE, "{wrong:#x}");
    }
    thread.call(PinnedFree { pinned: own }).unwrap();
    assert_eq!(thread.call(load(registered)).unwrap_err(), CuError::INVALID_VALUE, "it is gone");
    thread.call(load(address)).unwrap();
    let global = |name: &str| ModuleGetGlobal { module, name: name.into() };
    assert_eq!(thread.call(global("words")).unwrap(), (address, 12));
    assert_eq!(thread.call(global("place")).unwrap(), (address + 256, 8));
    let kernel = thread.function(module, 3, "look");
    assert_eq!(look(thread, kernel), [0x5eed, 0xbed, 0], "what they hold at first");
    Fate::Reached(|thread| look(thread, Callee::Function(FunctionId(3))))
}

fn managed_variable_of_a_library(app: &mut App, thread: &mut Thread) -> Fate {
    let (ctx, library, upload) = (CTX, LibraryId(2), app.upload(EVERYWHERE));
    thread.call(LibraryLoad { library, upload, options: vec![] }).unwrap();
    let name = || "look".to_owned();
    let kernel = |id| LibraryGetKernel { ctx, library, kernel: KernelId(id), name: name() };
    assert_eq!(thread.call(kernel(3)).unwrap_err(), CuError::NOT_SUPPORTED, "nobody has given it memory");
    let needed = thread.call(LibraryManaged { device: Device(0), library }).unwrap();
    let bytes = needed.bytes;
    let pinned = PinnedAlloc { ctx: ContextId::NONE, pinned: PinnedId(9), bytes, flags: 0 };
    let managed = thread.call(pinned).unwrap().address;
    assert!(thread.call(LibraryBind { device: Device(0), library, managed: managed + 4096 }).is_err());
    thread.call(LibraryBind { device: Device(0), library, managed }).unwrap();
    thread.call(kernel(3)).unwrap();
    assert!(thread.call(LibraryBind { device: Device(0), library, managed }).is_err(), "it is in use");
    let words = LibraryGetGlobal { ctx, library, name: "words".into() };
    assert_eq!(thread.call(words).unwrap(), (managed, 12));
    assert_eq!(look(thread, Callee::Kernel(KernelId(3))), [0x5eed, 0xbed, 0], "what they hold at first");
    Fate::Reached(|thread| look(thread, Callee::Kernel(KernelId(3))))
}

/// An allocation of the neighbour's, who has ended by the time of the checkpoint.
fn opened(_: &mut App, thread: &mut Thread) -> Fate {
    let claim = Claim { share: ALLOCATION, offset: 0, bytes: 100, number: 1 };
    Fate::Captured(thread.call(IpcOpenMem { ctx: CTX, claim }).unwrap())
}

fn imported(_: &mut App, thread: &mut Thread) -> Fate {
    let (bytes, device) = (BYTES, Device(0));
    let address = thread.call(AddressReserve { bytes, alignment: 0, wanted: 0 }).unwrap();
    let physical = thread.call(PhysicalImport { physical: PhysicalId(5), share: PIECE }).unwrap();
    thread.call(MemMap { address, bytes, physical }).unwrap();
    thread.call(MemSetAccess { address, bytes, device, access: 3 }).unwrap();
    Fate::Captured(address)
}

fn unavailable(_: &mut App, _: &mut Thread) -> Fate {
    Fate::Unavailable
}

/// Whether every version of a function answers `CUDA_ERROR_NOT_SUPPORTED`.
fn is_unsupported(list: &List, name: &str) -> bool {
    let found = list.functions().find(|(_, function)| function.name == name);
    let (_, function) = found.unwrap_or_else(|| panic!("{name} is not in the list"));
    function.versions.iter().all(|version| version.unsupported.is_some())
}

#[test]
fn whatever_device_memory_there_is_comes_back() {
    let list = cuda_list::list().unwrap();
    for Way { what, functions, make } in WAYS {
        let (neighbour, sharing) = Neighbour::new(&[(ALLOCATION, &WORDS), (PIECE, &WORDS)], true);
        let (mut app, mut thread) = App::with_others(sharing);
        let fate = make(&mut app, &mut thread);
        thread.synchronize().unwrap();
        app.session.close_gate(LONG).unwrap();
        let refusals = app.session.refusals();
        match fate {
            Fate::Captured(_) | Fate::Kept(_) | Fate::Reached(_) => {
                assert!(refusals.is_empty(), "{what}: {refusals:?}");
                let images = Images::new();
                let (id, _) = images.capture(&app.session);
                let (dir, held) = app.kill();
                drop(thread);
                app = App::restore(dir, held, SESSION, &images.store.open_image(&id).unwrap());
                let mut thread = app.thread();
                let words = match fate {
                    Fate::Kept(array) => {
                        let address = thread.alloc(12);
                        copy_row(&mut thread, side(address), CopySide::Array(array, [0; 3]));
                        thread.get(address, 3)
                    }
                    Fate::Captured(address) => thread.get(address, 3),
                    Fate::Reached(read) => read(&mut thread),
                    Fate::Unavailable => unreachable!(),
                };
                assert_eq!(words, WORDS, "{what}");
            }
            Fate::Unavailable => {
                for name in *functions {
                    assert!(is_unsupported(&list, name), "{what}: {name} is supported, and not shown here");
                }
            }
        }
        let _ = app.kill();
        neighbour.end();
    }
}

#[test]
fn no_function_that_makes_memory_is_missing() {
    const MEMORY: [&str; 9] = [
        "allocation",
        "array",
        "external-memory",
        "host-allocation",
        "ipc-memory",
        "managed",
        "mipmapped-array",
        "multicast",
        "physical-memory",
    ];
    let shown: BTreeSet<&str> = WAYS.iter().flat_map(|way| way.functions).copied().collect();
    for (_, function) in cuda_list::list().unwrap().functions() {
        if let Replay::Creates(kind, _) = &function.replay
            && MEMORY.contains(&kind.as_str())
        {
            assert!(shown.contains(function.name.as_str()), "{} makes memory ({kind})", function.name);
        }
    }
}
