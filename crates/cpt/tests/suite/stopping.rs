//! A kernel that was stopped wherever computes what one computes that was not.

use std::time::{Duration, Instant};

use cpt::{Group, Poll, Rewritten};

use crate::KERNELS;
use crate::device::{Gpu, Shape, Stops, When};
use crate::random::Random;

/// Kinds of polls, and how many blocks have to go on from half-way before a kernel has passed with them.
const POLLS: [(Poll, usize); 4] =
    [(Poll::Adaptive, 40), (Poll::Every, 4), (Poll::Counted(5), 4), (Poll::Barrier, 4)];

fn compare(name: &str, shape: Shape, input: &[u8], params: &dyn Fn(u64) -> Vec<u8>) {
    for (poll, half_way) in POLLS {
        compare_polls(name, shape, input, params, poll, half_way);
    }
    // What images are known by goes on where the twin that is loaded has stopped, and the other way round.
    let module = ptx::parse(KERNELS).unwrap();
    let (known, loaded) = (cpt::identity(&module).unwrap().unwrap(), cpt::rewrite(&module).unwrap().unwrap());
    assert_ne!(known, loaded.text);
    let gpu = Gpu::of(&[&known, &loaded.text]);
    compare_on(&gpu, &loaded, (name, shape, input, params), (Poll::default(), 20));
}

/// Runs a kernel as it was written, then rewritten without a stop, then with stops, on the same `input`; what lies in memory then has to be the same.
fn compare_polls(
    name: &str,
    shape: Shape,
    input: &[u8],
    params: &dyn Fn(u64) -> Vec<u8>,
    poll: Poll,
    half_way: usize,
) {
    let rewritten = cpt::rewrite_with(&ptx::parse(KERNELS).unwrap(), poll).unwrap().unwrap();
    let gpu = Gpu::new(&rewritten.text);
    compare_on(&gpu, &rewritten, (name, shape, input, params), (poll, half_way));
}

/// The same, on this device, which has what was rewritten.
fn compare_on(
    gpu: &Gpu,
    rewritten: &Rewritten,
    (name, shape, input, params): (&str, Shape, &[u8], &dyn Fn(u64) -> Vec<u8>),
    (poll, half_way): (Poll, usize),
) {
    let Some(kernel) = rewritten.kernels.get(name) else { panic!("{:?}", rewritten.refusals) };
    let plain = Gpu::new(KERNELS);
    let memory = plain.alloc(input.len() as u64);
    plain.put(memory, input);
    let begun = Instant::now();
    plain.launch(name, shape, &params(memory));
    plain.wait();
    let whole = begun.elapsed();
    let expected = plain.get::<u8>(memory, input.len());
    assert!(expected != input, "the kernel does nothing");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut run = |capacity: u32, is_stopped: bool| {
        let memory = gpu.alloc(input.len() as u64);
        gpu.put(memory, input);
        let mut when = |_: &Stops| match is_stopped {
            true => When::After(whole.mul_f64(random.below(1000) as f64 / 5000.0)),
            false => When::Never,
        };
        let stops = gpu.run_with_stops(kernel, shape, &|_| params(memory), capacity, &mut when).unwrap();
        let found = gpu.get::<u8>(memory, input.len());
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{name} differs after {stops:?}");
        stops
    };
    let begun = Instant::now();
    assert_eq!(run(shape.grid, false).half_way, 0);
    println!("{name}: {whole:?} as it was written, {:?} with {poll:?}", begun.elapsed());
    // How soon a kernel begins, and how fast it is, is not this test's to say.
    let mut until = |capacity: u32, count: fn(&Stops) -> usize, wanted: usize| {
        let (mut counted, mut runs) = (0, 0);
        while counted < wanted {
            counted += count(&run(capacity, true));
            runs += 1;
            assert!(runs < 300, "{counted} of {wanted} with room for {capacity}");
        }
    };
    until(shape.grid, |stops| stops.half_way, half_way);
    // Those for which there is no room go on to their end; a grid has to have room.
    if kernel.group < Group::Grid {
        until(1, |stops| stops.no_room, 1);
    }
}

fn bytes<T: Copy>(values: &[T], to_bytes: impl Fn(T) -> Vec<u8>) -> Vec<u8> {
    values.iter().flat_map(|value| to_bytes(*value)).collect()
}

#[test]
fn each_thread_for_itself() {
    let shape = Shape { grid: 192, block: 96, shared: 0, cooperative: false };
    let count = 18300u32;
    let params = |memory: u64| [&memory.to_le_bytes()[..], &count.to_le_bytes()].concat();
    compare("collatz", shape, &vec![0; 8 * 18432], &params);
}

#[test]
fn blocks_with_barriers_shared_and_local_memory() {
    let shape = Shape { grid: 10, block: 128, shared: 0, cooperative: false };
    let threads = 1280usize;
    let data: Vec<f32> = (0..threads).map(|at| (at % 17) as f32 + 0.37 * (at % 5) as f32).collect();
    let mut input = bytes(&data, |value| value.to_le_bytes().to_vec());
    input.resize(threads * 12, 0);
    let params = |memory: u64| {
        let sums = memory + 4 * threads as u64;
        [&memory.to_le_bytes()[..], &sums.to_le_bytes(), &2003u32.to_le_bytes()].concat()
    };
    compare("stencil", shape, &input, &params);
}

#[test]
fn blocks_that_threads_have_left() {
    // The last warp is not full.
    let shape = Shape { grid: 9, block: 151, shared: 151 * 4, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &1500u32.to_le_bytes()].concat();
    compare("leaving", shape, &vec![0; 9 * 151 * 4], &params);
}

#[test]
fn warps_for_themselves() {
    let shape = Shape { grid: 8, block: 160, shared: 0, cooperative: false };
    let (threads, warps) = (8 * 160usize, 40u32);
    let rounds: Vec<u32> = (0..warps).map(|warp| 3000 + warp * 37 % 411).collect();
    let mut input = vec![0; threads * 4];
    input.extend(bytes(&rounds, |value| value.to_le_bytes().to_vec()));
    let params = |memory: u64| [memory.to_le_bytes(), (memory + 4 * threads as u64).to_le_bytes()].concat();
    compare("lanes", shape, &input, &params);
}

/// What threads have chosen, each on a side of its own, stays theirs.
#[test]
fn sides_that_threads_take() {
    let shape = Shape { grid: 4, block: 64, shared: 0, cooperative: false };
    let seen: Vec<u32> = (0..256).map(|at| at * 7 / 3).collect();
    let input = [vec![0; 1024], bytes(&seen, |value| value.to_le_bytes().to_vec())].concat();
    let params = |memory: u64| {
        let numbers = [3000u32.to_le_bytes(), 0u32.to_le_bytes()].concat();
        [&memory.to_le_bytes()[..], &(memory + 1024).to_le_bytes(), &numbers].concat()
    };
    compare("sides", shape, &input, &params);
    compare("sides_of_lanes", shape, &input, &|memory| params(memory)[..20].to_vec());
}

#[test]
fn lanes_that_vote() {
    let shape = Shape { grid: 6, block: 96, shared: 0, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &40u32.to_le_bytes()].concat();
    compare("voting", shape, &vec![0; 8 * 576], &params);
}

#[test]
fn slices_of_shared_memory_without_a_barrier() {
    let shape = Shape { grid: 10, block: 100, shared: 400, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &4000u32.to_le_bytes()].concat();
    compare("slices", shape, &vec![0; 4000], &params);
}

#[test]
fn barriers_in_a_function() {
    let shape = Shape { grid: 10, block: 100, shared: 0, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &2000u32.to_le_bytes()].concat();
    compare("inside", shape, &vec![0; 4000], &params);
}

#[test]
fn functions_that_have_markers() {
    let shape = Shape { grid: 10, block: 90, shared: 0, cooperative: false };
    let params = |memory: u64| {
        [&memory.to_le_bytes()[..], &(memory + 4000).to_le_bytes(), &300u32.to_le_bytes()].concat()
    };
    compare("nested", shape, &vec![0; 4000 + 8 * 900], &params);
}

#[test]
fn a_function_that_has_a_marker_between_barriers() {
    let shape = Shape { grid: 10, block: 100, shared: 0, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &2000u32.to_le_bytes()].concat();
    compare("shared_by", shape, &vec![0; 4000], &params);
}

#[test]
fn blocks_that_wait_for_one_another() {
    let shape = Shape { grid: 6, block: 64, shared: 0, cooperative: true };
    let input = bytes(&(0..384u32).collect::<Vec<_>>(), |value| value.to_le_bytes().to_vec());
    let params = |memory: u64| [&memory.to_le_bytes()[..], &300u32.to_le_bytes()].concat();
    // A grid polls in its own way.
    compare_polls("grid", shape, &[input.clone(), input].concat(), &params, Poll::Adaptive, 24);
}

#[test]
fn blocks_with_copies_under_way() {
    let shape = Shape { grid: 8, block: 64, shared: 0, cooperative: false };
    let words: Vec<u32> = (0..8 * (3 * 256 + 64)).map(|at: u32| at.wrapping_mul(2_654_435_761)).collect();
    let params = |memory: u64| [&memory.to_le_bytes()[..], &1500u32.to_le_bytes()].concat();
    compare("tiles", shape, &bytes(&words, |value| value.to_le_bytes().to_vec()), &params);
}

/// The text of a module in which memory of blocks and threads lies elsewhere.
pub fn moved(text: &str) -> String {
    let (mut moved, mut number) = (String::new(), 0);
    for line in text.split_inclusive('\n') {
        if ["\t.shared .align", "\t.local .align"].iter().any(|begin| line.starts_with(begin)) {
            let space = line.trim_start().split(' ').next().unwrap();
            moved += &format!("{space} .align 16 .b8 before{number}[48];\n");
            number += 1;
        }
        moved += line;
    }
    assert!(number > 2);
    moved
}

#[test]
fn pointers_into_memory_that_lies_elsewhere_by_then() {
    let rewritten = cpt::rewrite(&ptx::parse(KERNELS).unwrap()).unwrap().unwrap();
    assert!(!rewritten.kernels["walks"].is_bound);
    let gpu = Gpu::of(&[&rewritten.text, &moved(&rewritten.text)]);
    let shape = Shape { grid: 10, block: 50, shared: 0, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &4000u32.to_le_bytes()].concat();
    compare_on(&gpu, &rewritten, ("walks", shape, &[0; 2000], &params), (Poll::Adaptive, 40));
}

#[test]
fn pointers_in_memory() {
    let shape = Shape { grid: 10, block: 50, shared: 0, cooperative: false };
    let params = |memory: u64| [&memory.to_le_bytes()[..], &4000u32.to_le_bytes()].concat();
    compare("kept", shape, &[0; 2000], &params);
    // Where shared memory lies elsewhere they would be wrong.
    let rewritten = cpt::rewrite(&ptx::parse(KERNELS).unwrap()).unwrap().unwrap();
    let kernel = &rewritten.kernels["kept"];
    assert!(kernel.is_bound);
    let params = |memory: u64| [&memory.to_le_bytes()[..], &1_000_000u32.to_le_bytes()].concat();
    let gpu = Gpu::of(&[&rewritten.text, &moved(&rewritten.text)]);
    let memory = gpu.alloc(2000);
    let mut when = |_: &Stops| When::After(Duration::from_millis(5));
    let stops = gpu.run_with_stops(kernel, shape, &|_| params(memory), 10, &mut when);
    let said = stops.err().map(|code| code.to_string()).unwrap_or_default();
    assert!(said.contains("LAUNCH_FAILED"), "{said}");
}

/// A loop with dense marks, and then one in which a round takes longer than two polls may be apart; in the second it is counted, from when the flag is set, how many rounds there are yet.
const PACED: &str = r#".version 7.0
.target sm_70
.address_size 64
.visible .entry paced(.param .u64 counted, .param .u64 stop, .param .u32 dense, .param .u32 sparse, .param .u32 work)
{
    .reg .pred %p;
    .reg .b32 %round, %limit, %i, %work, %flag, %count, %value;
    .reg .b64 %counted, %stop;
    ld.param.u64 %counted, [counted];
    ld.param.u64 %stop, [stop];
    ld.param.u32 %limit, [dense];
    mov.u32 %count, 0;
    mov.u32 %value, 1;
    mov.u32 %round, 0;
dense_round:
    mad.lo.u32 %value, %value, 1664525, %round;
    .pragma "cpt";
    add.u32 %round, %round, 1;
    setp.lt.u32 %p, %round, %limit;
    @%p bra dense_round;
    ld.param.u32 %limit, [sparse];
    ld.param.u32 %work, [work];
    mov.u32 %round, 0;
sparse_round:
    mov.u32 %i, 0;
work_on:
    mad.lo.u32 %value, %value, 1664525, %i;
    add.u32 %i, %i, 1;
    setp.lt.u32 %p, %i, %work;
    @%p bra work_on;
    ld.volatile.global.u32 %flag, [%stop];
    setp.ne.u32 %p, %flag, 0;
    @%p add.u32 %count, %count, 1;
    st.volatile.global.u32 [%counted], %count;
    setp.eq.u32 %p, %count, 1;
    @%p st.volatile.global.u32 [%counted + 4], %round;
    .pragma "cpt";
    add.u32 %round, %round, 1;
    setp.lt.u32 %p, %round, %limit;
    @%p bra sparse_round;
    st.global.u32 [%counted + 8], %value;
    ret;
}
"#;

/// Between two polls there are no more marks than 128, also where they are dense first and then are not; and once a poll has come late, each mark polls.
#[test]
fn polls_are_not_far_apart() {
    const MARKS: u32 = 128;
    let rewritten = cpt::rewrite_with(&ptx::parse(PACED).unwrap(), Poll::Adaptive).unwrap().unwrap();
    let Some(kernel) = rewritten.kernels.get("paced") else { panic!("{:?}", rewritten.refusals) };
    let gpu = Gpu::new(&rewritten.text);
    let shape = Shape { grid: 1, block: 32, shared: 0, cooperative: false };
    let memory = gpu.alloc(12);
    let run = |after: Option<Duration>| {
        gpu.put(memory, &[0_u32; 3]);
        let params = |context: u64| {
            let addresses = [memory, context + cpt::context::STOP].map(u64::to_le_bytes).concat();
            let counts = [100_000_u32, 300, 20_000].map(u32::to_le_bytes).concat();
            [addresses, counts].concat()
        };
        let mut counted = None;
        let begun = Instant::now();
        let mut when = |stops: &Stops| match after {
            Some(after) if stops.launches == 0 => When::After(after),
            _ => {
                if stops.launches == 1 {
                    counted = Some(gpu.get::<u32>(memory, 2));
                }
                When::Never
            }
        };
        let stops = gpu.run_with_stops(kernel, shape, &params, 1, &mut when).unwrap();
        (begun.elapsed(), stops.half_way.checked_sub(1).and(counted))
    };
    let (whole, _) = run(None);
    // In which round it was seen first, and how often.
    let seen: Vec<_> = (5..36)
        .filter_map(|part| run(Some(whole.mul_f64(f64::from(part) / 40.0))).1)
        .map(|counted| (counted[1], counted[0]))
        .collect();
    println!("{whole:?}: {seen:?}");
    assert!(seen.iter().all(|(_, rounds)| *rounds <= MARKS), "{seen:?}");
    let (_, late): (Vec<_>, Vec<_>) = seen.iter().copied().partition(|(first, _)| *first <= MARKS);
    assert!(late.iter().all(|(_, rounds)| *rounds <= 2) && late.len() > 3, "{seen:?}");
}
