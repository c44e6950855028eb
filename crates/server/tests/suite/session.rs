//! Every chapter of a session, through its rings.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, HELLO, LONG, VARIABLES, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::*;

#[test]
fn facts_hide_what_is_not_carried() {
    let app = App::start();
    let facts = app.thread().call(GetFacts {}).unwrap();
    assert!(facts.driver_version <= 13000);
    let attribute = |wanted: i32| facts.devices[0].attribute(wanted);
    assert_eq!(attribute(100).unwrap_or(0), 0, "memory that the host shares without asking");
    assert_eq!(attribute(83), Some(1), "managed memory");
    assert_eq!(attribute(10), Some(32), "warp size");
}

#[test]
fn memory_is_copied_and_reused() {
    let (_app, mut thread) = App::with_context();
    let (free, total) = thread.call(MemInfo { ctx: CTX }).unwrap();
    let small = thread.alloc(4000);
    let large = thread.alloc(3 << 20);
    let words: Vec<u32> = (0..1000).collect();
    thread.put(small, &words);
    thread.send(Copy { ctx: CTX, stream: Stream::Legacy, dst: large, src: small, bytes: 4000 });
    assert_eq!(thread.get(large, 1000), words);
    thread.send(Fill {
        ctx: CTX,
        stream: Stream::Legacy,
        dst: large,
        pitch: 0,
        element: 4,
        value: 9,
        width: 10,
        height: 1,
    });
    assert_eq!(thread.get(large, 11), [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 10]);
    let copy = Copy3D {
        ctx: CTX,
        stream: Stream::Legacy,
        dst: Pitched { address: large, pitch: 8, rows: 2 },
        src: Pitched { address: small + 40, pitch: 40, rows: 2 },
        width: 8,
        height: 2,
        depth: 1,
    };
    thread.send(copy);
    assert_eq!(thread.get(large, 4), [10, 11, 20, 21]);
    thread.send(MemFree { address: small });
    thread.send(MemFree { address: large });
    thread.synchronize().unwrap();
    assert_eq!(thread.alloc(4000), small);
    assert_eq!(thread.alloc(3 << 20), large);
    thread.send(MemFree { address: large });
    let (free_again, total_again) = thread.call(MemInfo { ctx: CTX }).unwrap();
    assert_eq!(total, total_again);
    assert!(free - free_again <= 2 << 20, "{free} {free_again}");
}

fn slot_memory(thread: &crate::common::Thread, slot: u32) -> *mut u8 {
    thread.ring.slot(slot as usize).unwrap().address().as_ptr()
}

#[test]
fn staging_slots_carry_bulk_data() {
    let (_app, mut thread) = App::with_context();
    let memory = thread.alloc(1 << 20);
    let data: Vec<u8> = (0..1 << 20).map(|i: u32| (i * 7 / 3) as u8).collect();
    for (part, slot) in [0, 5, 10, transport::SLOTS as u32 - 1].into_iter().enumerate() {
        thread.call(SlotWait { slot }).unwrap();
        let to = slot_memory(&thread, slot);
        // SAFETY: both have as many bytes, and the slot is this thread's and unused.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, 1 << 18) };
        let dst = memory + (part as u64) * (1 << 18);
        thread.send(CopyFromSlot { ctx: CTX, stream: Stream::Legacy, dst, slot, bytes: 1 << 18 });
    }
    thread.send(CopyToSlot {
        ctx: CTX,
        stream: Stream::PerThread,
        src: memory + (1 << 18),
        slot: 0,
        bytes: 1 << 18,
    });
    thread.call(CopyToSlotWait { slot: 0 }).unwrap();
    let mut back = vec![0; 1 << 18];
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(slot_memory(&thread, 0), back.as_mut_ptr(), 1 << 18) };
    assert_eq!(back, data[..1 << 18]);
    // Rows packed in a slot: 3 rows of 2 bytes out of rows of 5.
    let rows = Pitched { address: memory, pitch: 5, rows: 3 };
    let (slot, width, height, depth) = (1, 2, 3, 1);
    thread.send(CopyRowsToSlot { ctx: CTX, stream: Stream::Legacy, src: rows, slot, width, height, depth });
    thread.call(CopyToSlotWait { slot }).unwrap();
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(slot_memory(&thread, 1), back.as_mut_ptr(), 6) };
    assert_eq!(back[..6], [data[0], data[1], data[5], data[6], data[10], data[11]]);
    thread.send(CopyRowsFromSlot {
        ctx: CTX,
        stream: Stream::Legacy,
        dst: Pitched { address: memory + 1000, ..rows },
        slot,
        width,
        height,
        depth,
    });
    thread.call(SlotWait { slot }).unwrap();
    assert_eq!(thread.call(SlotWait { slot: transport::SLOTS as u32 }), Err(CuError::INVALID_VALUE));
    let Bytes(out) =
        thread.call(CopyToInline { ctx: CTX, stream: Stream::Legacy, src: memory + 1000, bytes: 7 }).unwrap();
    assert_eq!([out[0], out[1], out[5], out[6]], [data[0], data[1], data[5], data[6]]);
}

#[test]
fn kernels_run_from_modules_and_libraries() {
    let (mut app, mut thread) = App::with_context();
    let memory = thread.alloc(4096);
    thread.put(memory, &[1, 2, 3]);
    let module = app.load(&mut thread, 2, BASIC);
    let function = thread.function(module, 3, "add_one");
    thread.launch(function, Stream::Legacy, 32, &[memory], &[3]);
    let (library, upload) = (LibraryId(4), app.upload(BASIC));
    thread.call(LibraryLoad { library, upload, options: vec![] }).unwrap();
    let kernel = KernelId(5);
    let facts = thread.call(LibraryGetKernel { ctx: CTX, library, kernel, name: "add_one".into() }).unwrap();
    assert_eq!(facts.params, [Param { offset: 0, size: 8 }, Param { offset: 8, size: 4 }]);
    thread.launch(Callee::Kernel(kernel), Stream::PerThread, 32, &[memory], &[2]);
    assert_eq!(thread.get(memory, 3), [3, 4, 4]);
    let mut names = thread.call(LibraryListKernels { library, first: 0, most: 9 }).unwrap().names;
    names.sort();
    assert_eq!(names, ["add_one", "copy", "store", "sum", "wait_for", "wild"]);
    // The library's module in this context, under a module handle, and a function of it.
    thread.call(LibraryGetModule { ctx: CTX, library, module: ModuleId(6) }).unwrap();
    let same = thread.function(ModuleId(6), 7, "add_one");
    thread.launch(same, Stream::Legacy, 32, &[memory], &[1]);
    assert_eq!(thread.get(memory, 1), [4]);
    assert_eq!(thread.call(ModuleUnload { module: ModuleId(6) }), Err(CuError::INVALID_HANDLE));
    let set = FunctionSetAttribute { ctx: CTX, callee: Callee::Kernel(kernel), attribute: 8, value: 2048 };
    thread.call(set).unwrap();
    let get = |callee| FunctionGetAttribute { ctx: CTX, callee, attribute: 8 };
    assert_eq!(thread.call(get(same)), Ok(2048));
    assert_ne!(thread.call(get(function)), Ok(2048));
    thread.call(LibraryUnload { library }).unwrap();
    assert_eq!(thread.call(get(Callee::Kernel(kernel))), Err(CuError::INVALID_HANDLE));
    assert_eq!(thread.call(get(same)), Err(CuError::INVALID_HANDLE));
    assert!(thread.call(get(function)).is_ok());
}

#[test]
fn an_answer_of_any_length_leaves_the_session_alive() {
    let (mut app, mut thread) = App::with_context();
    let header = ".version 8.0\n.target sm_80\n.address_size 64\n";
    // The names take more than the reply area: they come in pages.
    let kernel = |number| format!(".visible .entry kernel_{number:0100}() {{ ret; }}\n");
    let many = [header.to_owned(), (0..4000).map(kernel).collect()].concat();
    let module = app.load(&mut thread, 2, &many);
    let mut names = Vec::new();
    let mut pages = 0;
    while names.len() < 4000 {
        let first = names.len() as u32;
        let page = thread.call(ModuleListFunctions { module, first, most: u32::MAX }).unwrap();
        assert_eq!(page.total, 4000);
        names.extend(page.names);
        pages += 1;
    }
    assert!(pages > 1);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4000);
    // A single name that is too long is refused, and nothing else is.
    let name = "k".repeat(200 << 10);
    let long = app.load(&mut thread, 3, &format!("{header}.visible .entry {name}() {{ ret; }}"));
    let listed = thread.explain(ModuleListFunctions { module: long, first: 0, most: 1 });
    let (code, detail) = listed.unwrap_err();
    assert_eq!(code, CuError::NOT_SUPPORTED);
    assert!(detail.contains("ModuleListFunctions"), "{detail}");
    // A reason that quotes it is cut off.
    let get = ModuleGetFunction { module, function: FunctionId(4), name: "\u{e9}".repeat(60 << 10) };
    assert_eq!(thread.call(get), Err(CuError::NOT_FOUND));
    let wrong = format!("{header}.visible .entry k() {{ {name}.u32 %r1; ret; }}");
    let load =
        ModuleLoad { ctx: CTX, module: ModuleId(5), upload: app.upload(&wrong), options: vec![], managed: 0 };
    let (_, detail) = thread.explain(load).unwrap_err();
    assert!(!detail.is_empty() && detail.len() <= DETAIL_MAX, "{} bytes", detail.len());
    thread.synchronize().unwrap();
}

#[test]
fn variables_are_copied_to_and_from() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, VARIABLES);
    let (counter, bytes) = thread.call(ModuleGetGlobal { module, name: "counter".into() }).unwrap();
    assert_eq!(bytes, 4);
    assert_eq!(thread.get(counter, 1), [7]);
    thread.put(counter, &[10]);
    let memory = thread.alloc(4);
    let step = thread.function(module, 3, "step");
    thread.launch(step, Stream::Legacy, 1, &[memory], &[]);
    assert_eq!(thread.get(memory, 1), [30]);
    let gone = ModuleGetGlobal { module, name: "nothing".into() };
    assert_eq!(thread.call(gone), Err(CuError::NOT_FOUND));
}

/// A piece of a slab, and an allocation with a file of its own.
const PINNED_BYTES: [u64; 2] = [10_000, (1 << 20) + 1];

#[test]
fn pinned_memory_is_shared() {
    for bytes in PINNED_BYTES {
        let (mut app, mut thread) = App::with_context();
        let pinned = PinnedId(9);
        let (ours, address) = app.pinned(&mut thread, pinned, bytes);
        ours.word(0).store(41, Ordering::Release);
        let module = app.load(&mut thread, 2, BASIC);
        let add = thread.function(module, 3, "add_one");
        thread.launch(add, Stream::Legacy, 1, &[address], &[1]);
        thread.synchronize().unwrap();
        assert_eq!(ours.word(0).load(Ordering::Acquire), 42);
        let device = thread.alloc(4);
        let copy = |src, bytes| CopyWait { ctx: CTX, stream: Stream::Legacy, dst: device, src, bytes };
        thread.call(copy(address, 4)).unwrap();
        assert_eq!(thread.get(device, 1), [42]);
        for (src, of) in
            [(address + bytes - 3, 4), (address + bytes, 1), (address - 1, 2), (address, bytes + 1)]
        {
            assert_eq!(thread.call(copy(src, of)), Err(CuError::INVALID_VALUE), "{of} bytes at {src:#x}");
        }
        assert_eq!(thread.pin(9, 1), Err(CuError::INVALID_HANDLE));
        thread.call(PinnedFree { pinned }).unwrap();
        assert!(!app.dir.path().join("pinned-9").exists());
        assert_eq!(thread.call(copy(address, 4)), Err(CuError::INVALID_VALUE), "it is nobody's");
        assert_eq!(thread.call(PinnedFree { pinned }), Err(CuError::INVALID_VALUE));
        let (again, same) = app.pinned(&mut thread, PinnedId(10), bytes);
        assert_eq!((same, again.word(0).load(Ordering::Acquire)), (address, 0));
    }
}

#[test]
fn freed_pinned_memory_waits_for_its_work_and_nobody_for_it() {
    for bytes in PINNED_BYTES {
        let (mut app, mut thread) = App::with_context();
        let (ours, flags) = app.pinned(&mut thread, PinnedId(8), 4096);
        let (theirs, address) = app.pinned(&mut thread, PinnedId(9), bytes);
        let module = app.load(&mut thread, 2, BASIC);
        let wait_for = thread.function(module, 3, "wait_for");
        let add = thread.function(module, 4, "add_one");
        let [stream] = thread.streams([4]).map(Stream::Created);
        let device = thread.alloc(4);
        theirs.word(0).store(6, Ordering::Release);
        thread.launch(wait_for, stream, 1, &[flags, flags + 4], &[]);
        thread.launch(add, stream, 1, &[address], &[1]);
        thread.send(Copy { ctx: CTX, stream, dst: device, src: address, bytes: 4 });
        thread.call(PinnedFree { pinned: PinnedId(9) }).unwrap();
        assert_eq!(thread.call(PinnedFree { pinned: PinnedId(9) }), Err(CuError::INVALID_VALUE));
        thread.put(address, &[1]);
        assert_eq!(thread.call(StreamQuery { ctx: CTX, stream }), Ok(false));
        assert_eq!(
            app.client.control().take_error(),
            Some(CuError::INVALID_VALUE),
            "it is nobody's any more"
        );
        let another = thread.pin(10, bytes).unwrap().address;
        assert!(another.abs_diff(address) >= bytes, "{another:#x}");
        ours.word(0).store(1, Ordering::Release);
        thread.call(StreamSynchronize { ctx: CTX, stream }).unwrap();
        assert_eq!(thread.get(device, 1), [7], "the kernel had it");
        app.session.close_gate(LONG).unwrap();
        assert!(!app.dir.path().join("pinned-9").exists());
        app.session.open_gate();
        let (again, same) = app.pinned(&mut thread, PinnedId(11), bytes);
        assert_eq!((same, again.word(0).load(Ordering::Acquire)), (address, 0));
    }
}

#[test]
fn pinned_memory_that_work_has_left_goes_unasked() {
    let (mut app, mut thread) = App::with_context();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(8), 4096);
    let _ = app.pinned(&mut thread, PinnedId(9), PINNED_BYTES[1]);
    let (piece, _) = app.pinned(&mut thread, PinnedId(10), PINNED_BYTES[0]);
    piece.word(5).store(7, Ordering::Release);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    thread.launch(wait_for, Stream::Legacy, 1, &[flags, flags + 4], &[]);
    thread.call(PinnedFree { pinned: PinnedId(9) }).unwrap();
    thread.call(PinnedFree { pinned: PinnedId(10) }).unwrap();
    let file = app.dir.path().join("pinned-9");
    assert!(file.exists());
    assert_eq!(piece.word(5).load(Ordering::Acquire), 7);
    ours.word(0).store(1, Ordering::Release);
    crate::common::wait_until(|| !file.exists());
    crate::common::wait_until(|| piece.word(5).load(Ordering::Acquire) == 0);
    drop(thread);
    let _ = app.kill();
}

#[test]
fn streams_and_events_keep_order_and_time() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let memory = thread.alloc(4);
    thread.put(memory, &[0]);
    let [one, two] = thread.streams([4, 5]);
    let [start, end] = thread.events([6, 7]);
    let record = |stream, event| EventRecord { ctx: CTX, stream: Stream::Created(stream), event, flags: 0 };
    thread.send(record(one, start));
    for _ in 0..50 {
        thread.launch(add, Stream::Created(one), 1, &[memory], &[1]);
    }
    thread.send(record(one, end));
    thread.send(StreamWaitEvent { ctx: CTX, stream: Stream::Created(two), event: end, flags: 0 });
    thread.launch(add, Stream::Created(two), 1, &[memory], &[1]);
    thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(two) }).unwrap();
    assert_eq!(thread.get(memory, 1), [51]);
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(one) }), Ok(true));
    assert_eq!(thread.call(EventQuery { event: end }), Ok(true));
    assert!(thread.call(EventElapsed { start, end }).unwrap() >= 0.0);
    for stream in [one, two] {
        thread.send(StreamDestroy { stream });
    }
    assert_eq!(
        thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(one) }),
        Err(CuError::INVALID_HANDLE)
    );
}

#[test]
fn a_copy_from_the_application_is_there_for_every_stream() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(9), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let add = thread.function(module, 4, "add_one");
    let memory = thread.alloc(4);
    let free = StreamId(5);
    // Natively the copy waits for the kernel before it returns; here it returns, and the free stream waits for it.
    thread.launch(wait_for, Stream::Legacy, 1, &[address, address + 4], &[]);
    thread.put(memory, &[70]);
    thread.send(StreamCreate { ctx: CTX, stream: free, flags: 1, priority: 0 });
    thread.launch(add, Stream::Created(free), 1, &[memory], &[1]);
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(free) }), Ok(false));
    ours.word(0).store(1, Ordering::Release);
    thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(free) }).unwrap();
    assert_eq!(thread.get(memory, 1), [71]);
    thread.put(memory, &[5]);
    thread.launch(add, Stream::Created(free), 1, &[memory], &[1]);
    thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(free) }).unwrap();
    assert_eq!(thread.get(memory, 1), [6]);
}

#[test]
fn callbacks_run_in_turn() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let store = thread.function(module, 3, "store");
    let memory = thread.alloc(4);
    thread.launch(store, Stream::Legacy, 1, &[memory], &[1]);
    thread.send(HostFunction { ctx: CTX, stream: Stream::Legacy, callback: CallbackId(77) });
    thread.launch(store, Stream::Legacy, 1, &[memory], &[2]);
    let callbacks = app.client.callbacks();
    let callback = callbacks.next(Duration::from_secs(10)).unwrap().unwrap();
    assert_eq!((callback.id, callback.status), (77, 0));
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }), Ok(false));
    callbacks.acknowledge();
    thread.synchronize().unwrap();
    assert_eq!(thread.get(memory, 1), [2]);
}

#[test]
fn what_kernels_print_comes_with_the_answer() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, HELLO);
    let hello = thread.function(module, 3, "hello");
    for n in 0..3 {
        thread.launch(hello, Stream::Legacy, 1, &[], &[n]);
    }
    thread.synchronize().unwrap();
    let expected = "hello 0 of conformance\nhello 1 of conformance\nhello 2 of conformance\n";
    assert_eq!(String::from_utf8(std::mem::take(&mut thread.output)).unwrap(), expected);
    // More than one reply carries.
    for _ in 0..8 {
        thread.launch(hello, Stream::Legacy, 1024, &[], &[0]);
    }
    thread.synchronize().unwrap();
    // Whole lines.
    assert!((OUTPUT_MAX - 64..=OUTPUT_MAX).contains(&thread.output.len()), "{}", thread.output.len());
    assert_eq!(thread.output.last(), Some(&b'\n'));
    while thread.more {
        thread.call(TakeOutput {}).unwrap();
        assert_eq!(thread.output.last(), Some(&b'\n'));
    }
    assert_eq!(thread.output.iter().filter(|byte| **byte == b'\n').count(), 8 * 1024);
}

#[test]
fn failures_of_pipelined_calls_are_told_later() {
    let (mut app, mut thread) = App::with_context();
    thread.put(0x1234, &[1]);
    thread.synchronize().unwrap();
    let control = || app.client.control();
    assert_eq!(control().take_error(), Some(CuError::INVALID_VALUE));
    assert_eq!(control().take_error(), None);
    let module = app.upload(BASIC);
    thread
        .call(ModuleLoad { ctx: CTX, module: ModuleId(2), upload: module, options: vec![], managed: 0 })
        .unwrap();
    let wild = thread.function(ModuleId(2), 3, "wild");
    thread.launch(wild, Stream::Legacy, 1, &[], &[]);
    assert_eq!(thread.synchronize(), Err(CuError::ILLEGAL_ADDRESS));
    let control = || app.client.control();
    for _ in 0..2 {
        assert_eq!(control().take_error(), Some(CuError::ILLEGAL_ADDRESS));
        assert_eq!(thread.synchronize(), Err(CuError::ILLEGAL_ADDRESS));
    }
}

/// Launches that come faster than they are submitted are taken together: each is executed once and in its turn, but for those that fail.
#[test]
fn launches_that_are_taken_together_fail_one_by_one() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let (add, wait_for) = (thread.function(module, 3, "add_one"), thread.function(module, 4, "wait_for"));
    let memory = thread.alloc(8);
    thread.put(memory, &[0, 0]);
    let (ours, address) = app.pinned(&mut thread, PinnedId(5), 4096);
    // It waits for nobody, and has a word of its own.
    let [other] = thread.streams([6]).map(Stream::Created);
    // All that the stream has no room for is in the ring before any of it is taken.
    thread.launch(wait_for, Stream::Legacy, 1, &[address, address + 4], &[]);
    for step in 0..300 {
        // Parameters that are too few, a function and a stream that there are not.
        match step % 10 {
            3 => thread.launch(add, Stream::Legacy, 1, &[memory], &[]),
            5 => thread.launch(Callee::Function(FunctionId(999)), Stream::Legacy, 1, &[memory], &[1]),
            7 => thread.launch(add, Stream::Created(StreamId(999)), 1, &[memory], &[1]),
            9 => thread.launch(add, other, 1, &[memory + 4], &[1]),
            _ => thread.launch(add, Stream::Legacy, 1, &[memory], &[1]),
        }
    }
    ours.word(0).store(1, Ordering::Release);
    thread.synchronize().unwrap();
    assert_eq!(thread.get(memory, 2), [6 * 30, 30]);
    let error = app.client.control().take_error();
    assert!(matches!(error, Some(CuError::INVALID_VALUE | CuError::INVALID_HANDLE)), "{error:?}");
}

#[test]
fn wrong_handles_are_refused() {
    let (mut app, mut thread) = App::with_context();
    let (second, stream) = (ContextId(50), StreamId(51));
    let create = |ctx, primary| ContextCreate { ctx, device: Device(0), flags: 0, primary };
    assert_eq!(thread.call(create(CTX, false)), Err(CuError::INVALID_HANDLE));
    assert_eq!(thread.call(create(second, true)), Err(CuError::PRIMARY_CONTEXT_ACTIVE));
    thread.call(create(second, false)).unwrap();
    thread.send(StreamCreate { ctx: CTX, stream, flags: 0, priority: 0 });
    let query = |ctx, stream| StreamQuery { ctx, stream: Stream::Created(stream) };
    assert_eq!(thread.call(query(CTX, stream)), Ok(true));
    assert_eq!(thread.call(query(second, stream)), Err(CuError::INVALID_HANDLE));
    assert_eq!(thread.call(query(CTX, StreamId(999))), Err(CuError::INVALID_HANDLE));
    assert_eq!(thread.call(MemAlloc { ctx: ContextId(999), bytes: 1 }), Err(CuError::INVALID_CONTEXT));
    assert_eq!(thread.call(MemAlloc { ctx: CTX, bytes: 0 }), Err(CuError::INVALID_VALUE));
    assert_eq!(thread.call(MemAlloc { ctx: CTX, bytes: u64::MAX }), Err(CuError::OUT_OF_MEMORY));
    let upload = UploadId(12345);
    let (code, detail) = thread
        .explain(ModuleLoad { ctx: CTX, module: ModuleId(2), upload, options: vec![], managed: 0 })
        .unwrap_err();
    assert_eq!(code, CuError::INVALID_IMAGE);
    assert!(detail.contains("upload-12345"), "{detail}");
    // An address in the server is no option.
    let upload = app.upload(BASIC);
    let options = vec![(3, 0x1000)];
    assert_eq!(
        thread.call(ModuleLoad { ctx: CTX, module: ModuleId(2), upload, options, managed: 0 }),
        Err(CuError::NOT_SUPPORTED)
    );
    let upload = app.upload("no code");
    assert!(
        thread
            .call(ModuleLoad { ctx: CTX, module: ModuleId(2), upload, options: vec![], managed: 0 })
            .is_err()
    );
    thread.call(ContextDestroy { ctx: second }).unwrap();
    assert_eq!(thread.call(ContextSynchronize { ctx: second }), Err(CuError::INVALID_CONTEXT));
}

#[test]
fn a_context_takes_its_objects_along() {
    let (mut app, mut thread) = App::with_context();
    let address = thread.alloc(100);
    let module = app.load(&mut thread, 2, BASIC);
    thread.function(module, 3, "add_one");
    thread.send(StreamCreate { ctx: CTX, stream: StreamId(4), flags: 0, priority: 0 });
    thread.send(EventCreate { ctx: CTX, event: EventId(5), flags: 0 });
    let pinned = PinnedId(6);
    thread.pin(6, 1).unwrap();
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
    assert_eq!(thread.call(EventQuery { event: EventId(5) }), Err(CuError::INVALID_HANDLE));
    assert_eq!(thread.call(ModuleListFunctions { module, first: 0, most: 1 }), Err(CuError::INVALID_HANDLE));
    assert_eq!(thread.call(PinnedFree { pinned }), Err(CuError::INVALID_VALUE));
    // All of it can be had again, at the same address.
    thread.call(ContextCreate { ctx: CTX, device: Device(0), flags: 0, primary: true }).unwrap();
    assert_eq!(thread.alloc(100), address);
    app.load(&mut thread, 2, BASIC);
}

#[test]
fn a_call_that_waits_delays_nobody_else() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(9), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let store = thread.function(module, 4, "store");
    let [held, free] = thread.streams([5, 6]);
    thread.launch(wait_for, Stream::Created(held), 1, &[address, address + 4], &[]);
    let waiting = std::thread::spawn(move || {
        let waited = thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(held) });
        (thread, waited)
    });
    let mut other = app.thread();
    other.launch(store, Stream::Created(free), 1, &[address + 8], &[1]);
    other.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(free) }).unwrap();
    assert_eq!(ours.word(2).load(Ordering::Acquire), 1);
    assert!(!waiting.is_finished());
    ours.word(0).store(1, Ordering::Release);
    let (_thread, waited) = waiting.join().unwrap();
    waited.unwrap();
    assert_eq!(ours.word(1).load(Ordering::Acquire), 1);
}

#[test]
fn a_stream_that_is_stuck_does_not_keep_back_what_frees_it() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(9), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let (store, add) = (thread.function(module, 4, "store"), thread.function(module, 5, "add_one"));
    let [stuck, free] = thread.streams([6, 7]);
    thread.launch(wait_for, Stream::Created(stuck), 1, &[address, address + 4], &[]);
    for _ in 0..200 {
        thread.launch(add, Stream::Created(stuck), 1, &[address + 8], &[1]);
    }
    thread.launch(store, Stream::Created(free), 1, &[address], &[1]);
    thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(stuck) }).unwrap();
    assert_eq!((ours.word(1).load(Ordering::Acquire), ours.word(2).load(Ordering::Acquire)), (1, 200));
}

#[test]
fn threads_see_what_others_have_called_before() {
    let (mut app, mut first) = App::with_context();
    let module = app.load(&mut first, 2, BASIC);
    let add = first.function(module, 3, "add_one");
    let memory = first.alloc(4);
    first.put(memory, &[0]);
    let mut threads = [first, app.thread(), app.thread()];
    // Each call returns before the next begins, so their order is CUDA's, whoever makes them.
    for round in 0..300 {
        threads[round % 3].launch(add, Stream::Legacy, 1, &[memory], &[1]);
        if round % 50 == 49 {
            let value = threads[(round + 1) % 3].get(memory, 1);
            assert_eq!(value, [round as u32 + 1]);
        }
    }
}

#[test]
fn a_threads_own_stream_goes_with_it() {
    let (app, mut thread) = App::with_context();
    let memory = thread.alloc(16);
    let mut short = app.thread();
    let data = Bytes(vec![5; 16]);
    short.send(CopyFromInline { ctx: CTX, stream: Stream::PerThread, dst: memory, data });
    drop(short);
    wait_until(|| thread.get(memory, 1) == [0x0505_0505]);
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::PerThread }), Ok(true));
}

/// Streams that have work are destroyed, and so are others all the time: who waits for all work meanwhile waits for theirs.
#[test]
fn work_of_a_destroyed_stream_is_never_overlooked() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(9), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let create = |stream| StreamCreate { ctx: CTX, stream, flags: 1, priority: 0 };
    let [busy] = thread.streams([5]);
    let [event] = thread.events([6]);
    thread.launch(wait_for, Stream::Created(busy), 1, &[address, address + 4], &[]);
    thread.send(EventRecord { ctx: CTX, stream: Stream::Created(busy), event, flags: 0 });
    thread.send(StreamDestroy { stream: busy });
    // To look at as many takes so long that others come in between.
    for stream in (10..110).map(StreamId) {
        thread.send(create(stream));
        thread.send(StreamWaitEvent { ctx: CTX, stream: Stream::Created(stream), event, flags: 0 });
        thread.send(StreamDestroy { stream });
    }
    // It has begun.
    assert_eq!(thread.call(EventQuery { event }), Ok(false));
    let over = Arc::new(AtomicBool::new(false));
    let mut other = app.thread();
    let others = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let numbers = (200..).take_while(|_| !over.load(Ordering::Acquire));
            let made = numbers.map(|number| {
                other.send(create(StreamId(number)));
                other.send(StreamDestroy { stream: StreamId(number) });
                other.call(EventQuery { event }).unwrap()
            });
            made.count()
        }
    });
    let waiting: Vec<_> = (0..16)
        .map(|number| {
            let mut own = app.thread();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5 * number));
                own.call(ContextSynchronize { ctx: CTX })
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let early = waiting.iter().filter(|each| each.is_finished()).count();
    over.store(true, Ordering::Release);
    assert!(others.join().unwrap() > 0);
    ours.word(0).store(1, Ordering::Release);
    assert!(waiting.into_iter().all(|each| each.join().unwrap().is_ok()));
    assert_eq!(early, 0, "so many did not wait");
}
