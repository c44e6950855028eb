//! Marked kernels that the device has too little memory for, to save them.

use super::*;

/// While it goes on, what was saved of it takes what would be for the next time. So the next cut waits for blocks that have begun, and finds others that have not; behind that
/// there is room again, and blocks stop in their middle.
#[test]
fn a_kernel_that_went_on_without_room_has_it_again() {
    const BLOCKS: (u32, u32) = (400, 32);
    const ROUNDS: u32 = 4000;
    listen();
    // What is saved of all of them is 26 MB: a device with 40 has room for that once.
    let mut program = Program::on(App::with_memory(40 << 20));
    let body = format!(".local .b8 large[2000];\n{MIX}");
    let module = program.app.load(&mut program.thread, 40, &module(&kernel("large", &body)));
    let large = program.thread.function(module, 41, "large");
    let count = BLOCKS.0 * BLOCKS.1;
    let memory = program.thread.alloc(u64::from(count) * 4);
    let numbers: Vec<u32> = (0..count).collect();
    program.thread.put(memory, &numbers);
    launch_as((BLOCKS, vec![]), &mut program.thread, large, Stream::Legacy, memory, ROUNDS);
    let mut capacities = Vec::new();
    while !program.is_done() {
        program.app.session.close_gate(LONG).unwrap();
        let stopped = program.app.session.cut().unwrap().state.half_way;
        capacities.extend(stopped.iter().map(|kernel| kernel.capacity));
        program.app.session.open_gate();
    }
    let all = BLOCKS.0;
    assert!(capacities.starts_with(&[all, 0, all]), "{capacities:?}");
    assert!(program.thread.get(memory, count) == mixed(&numbers, ROUNDS));
}
