//! Table 1 of the paper, from the run times of its table 2 (`docs/planning.md` has the arithmetic).

use crate::support::wishes;
use plan::model::{Model, Wishes, plan};
use plan::synthetic;
use plan::units::Nanos;

const MS: u64 = 1_000_000;

/// A program: its run times with synchronous and asynchronous checkpoints (table 2, ms), and its counts: synchronous, CPU, GPU (table 1).
struct Program {
    name: &'static str,
    with: [u64; 2],
    counts: [usize; 3],
}

const PROGRAMS: [Program; 6] = [
    Program { name: "Swim", with: [1_261_289, 1_148_858], counts: [14, 5, 9] },
    Program { name: "Mgrid", with: [4_756_304, 4_398_415], counts: [56, 21, 35] },
    Program { name: "FFT2D", with: [881_425, 865_986], counts: [11, 4, 7] },
    Program { name: "BackProp", with: [5_235_780, 5_042_400], counts: [66, 24, 41] },
    Program { name: "BFS", with: [2_197_076, 2_125_882], counts: [28, 10, 17] },
    Program { name: "Gaussian", with: [3_930_368, 3_912_090], counts: [52, 19, 32] },
];

/// T_CG, T_C, T_G in ms.
const INTERVALS: [u64; 3] = [75_000, 200_000, 120_000];

impl Program {
    /// The run times without checkpoints that lead to all three counts, and are no longer than those with: from, to (ms, the latter excluded).
    fn without(&self) -> (u64, u64) {
        let bounds = self.counts.iter().zip(INTERVALS);
        let from = bounds.clone().map(|(count, interval)| *count as u64 * interval).max().unwrap();
        let to = bounds.map(|(count, interval)| (*count as u64 + 1) * interval).min().unwrap();
        (from, to.min(self.with[0]).min(self.with[1]))
    }
}

/// The counts of the planner, for kernels of half a second and a CPU that can always be checkpointed.
fn counts(run_ms: u64) -> [usize; 3] {
    let kernels = (run_ms / 500) as u32;
    let profile = synthetic::uniform(kernels, Nanos(500 * MS), 1 << 30).unwrap();
    let of = |model| {
        let wishes = Wishes { model, ..wishes(240.0, 400.0) };
        plan(&profile, &wishes).unwrap().parts.iter().map(|part| part.checkpoints.len()).collect::<Vec<_>>()
    };
    let (together, apart) = (of(Model::Sync), of(Model::Async));
    [together[0], apart[1], apart[0]]
}

#[test]
fn the_intervals_are_the_paper_s() {
    use plan::planfile::Part;
    let of = |part: Part| part.interval(wishes(240.0, 400.0).mtbf, None).unwrap().0 / MS;
    assert_eq!([Part::Job, Part::Cpu, Part::Device].map(of), INTERVALS);
}

#[test]
fn table_1() {
    for program in &PROGRAMS {
        let (from, to) = program.without();
        assert!(from < to, "{}: no run time has these counts", program.name);
        for run in [from + 1000, from.midpoint(to), to - 1000] {
            assert_eq!(counts(run), program.counts, "{}: {run} ms", program.name);
        }
    }
}

#[test]
fn what_table_2_says_itself() {
    // Its run times have checkpoints in them. Taken as they are they lead to the published counts where checkpoints were short, and to more elsewhere.
    let by_itself: Vec<[usize; 3]> = PROGRAMS
        .iter()
        .map(|program| {
            let (together, apart) = (counts(program.with[0]), counts(program.with[1]));
            [together[0], apart[1], apart[2]]
        })
        .collect();
    let expected = [[16, 5, 9], [63, 21, 36], [11, 4, 7], [69, 25, 42], [29, 10, 17], [52, 19, 32]];
    assert_eq!(by_itself, expected);
    // None of these programs could do with its published count if it computed all that time: the gaps would be too long.
    let too_long = |program: &Program| program.with[0] > (program.counts[0] as u64 + 1) * INTERVALS[0];
    let names: Vec<&str> =
        PROGRAMS.iter().filter(|program| too_long(program)).map(|program| program.name).collect();
    assert_eq!(names, ["Swim", "Mgrid", "BackProp", "BFS"]);
}
