//! What a user is told of marked kernels that do not stop half-way: why, and what to do.

use super::*;

/// What was told once, and has all of these in it.
fn told_once(kernel: &str, why: &[&str]) {
    let told = warned(&format!("the marked {kernel} is launched as it is"));
    assert!(matches!(&told[..], [once] if why.iter().all(|part| once.contains(part))), "{told:?}");
}

#[test]
fn what_cannot_be_stopped_is_told_when_it_is_loaded() {
    listen();
    let (mut app, mut thread) = App::with_context();
    app.load(&mut thread, 2, &module(&kernel("refused", &format!("bar.sync 1;\n{MIX}"))));
    let told = warned("kernel refused cannot be stopped half-way");
    let says = |once: &str| {
        ["a barrier of some threads", "(line 18 of its PTX)", "a checkpoint waits for its end"]
            .iter()
            .all(|part| once.contains(part))
    };
    assert!(matches!(&told[..], [once] if says(once)), "{told:?}");
}

#[test]
fn a_grid_of_too_many_threads_is_launched_as_it_is() {
    listen();
    let mut program = Program::new();
    let module =
        program.app.load(&mut program.thread, 20, &module(&kernel("endless", &format!("trap;\n{MIX}"))));
    let endless = program.thread.function(module, 21, "endless");
    let how = ((1 << 20, 1024), vec![]);
    launch_as(how, &mut program.thread, endless, Stream::Legacy, program.memory, 1);
    assert!(program.thread.synchronize().is_err(), "it traps");
    told_once("endless", &["1073741824 threads", "launch smaller grids"]);
}

#[test]
fn a_kernel_for_whose_state_the_device_has_no_memory_is_launched_as_it_is() {
    listen();
    let mut program = Program::on(App::with_memory(64 << 20));
    // A block that stops takes 16 MB.
    let large = format!(".local .b8 large[500000];\n{MIX}");
    let module = program.app.load(&mut program.thread, 20, &module(&kernel("heavy", &large)));
    let heavy = program.thread.function(module, 21, "heavy");
    launch(&mut program.thread, heavy, Stream::Legacy, program.memory, 3);
    assert!(program.numbers() == mixed(&first(), 3));
    told_once("heavy", &["bytes of device memory for what is saved of it are not there", "leave some free"]);
}

#[test]
fn a_kernel_behind_which_another_thread_waits_is_launched_as_it_is() {
    listen();
    let mut program = Program::new();
    let (thread, app) = (&mut program.thread, &mut program.app);
    let (ours, address) = app.pinned(thread, PinnedId(900), 4096);
    let basic = app.load(thread, 20, BASIC);
    let wait_for = thread.function(basic, 21, "wait_for");
    let module = app.load(thread, 22, &module(&kernel("behind", MIX)));
    let behind = thread.function(module, 23, "behind");
    let [stream] = thread.streams([7]);
    thread.synchronize().unwrap();
    thread.launch(wait_for, Stream::Created(stream), 1, &[address, address + 4], &[]);
    let mut other = app.thread();
    let waiting = std::thread::spawn(move || {
        other.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(stream) }).unwrap();
    });
    // Nobody can see that it waits.
    std::thread::sleep(Duration::from_secs(1));
    launch(thread, behind, Stream::Created(stream), program.memory, 3);
    // What the same thread calls next is answered once that is launched.
    thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(stream) }).unwrap();
    ours.word(0).store(1, Ordering::Release);
    waiting.join().unwrap();
    thread.synchronize().unwrap();
    assert!(program.numbers() == mixed(&first(), 3));
    told_once("behind", &["another thread of the program", "launch it in a stream of its own"]);
}
