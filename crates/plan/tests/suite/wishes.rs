//! Plans of whole profiles, and what is refused.

use crate::support::wishes;
use plan::cost::Rates;
use plan::model::{Model, NamesHash, Wishes, plan};
use plan::planfile::{Part, Plan};
use plan::profile::{Boundary, CpuInterval, Profile, Recorder};
use plan::units::{Bandwidth, Nanos};
use plan::{Error, synthetic};

const S: u64 = 1_000_000_000;

/// Kernels by name, how long each lasts (s) and what is live before it.
fn profile(kernels: &[(&str, u64, u64)]) -> Profile {
    let mut recorder = Recorder::default();
    let mut now = 0;
    for (name, lasts, live) in kernels {
        let kernel = recorder.kernel(name).unwrap();
        let boundary = Boundary { kernel, allocated: *live, live: *live, ..Boundary::default() };
        recorder.boundary(Nanos(now * S), boundary).unwrap();
        now += lasts;
    }
    recorder.finish(Nanos(now * S)).unwrap()
}

#[test]
fn a_multigrid_is_checkpointed_between_its_cycles() {
    let profile = synthetic::multigrid(100, 6).unwrap();
    let plan = plan(&profile, &wishes(120.0, 240.0)).unwrap();
    let [part] = plan.parts.as_slice() else { panic!("{plan:?}") };
    assert!(part.checkpoints.len() > 5 && part.longest_gap_ns <= part.interval_ns.unwrap());
    for each in &part.checkpoints {
        assert!(["norm", "update"].contains(&each.kernel.as_deref().unwrap()), "{each:?}");
        assert!(each.latest_ns >= each.at_ns);
    }
    // The names before the first, in order, are what its hash says.
    let first = &part.checkpoints[0];
    let (mut hash, mut number) = (NamesHash::default(), 0);
    profile.device().each(|_, step| {
        if number < first.boundary {
            hash = hash.then(NamesHash::of_name(&profile.kernels()[step.kernel as usize]));
        }
        number += 1;
    });
    assert_eq!(first.names_hash, Some(format!("{:016x}", hash.0)));
}

#[test]
fn a_plan_is_read_as_it_was_written() {
    let profile = synthetic::multigrid(20, 5).unwrap();
    for model in [Model::Sync, Model::Async] {
        let made = plan(&profile, &Wishes { model, ..wishes(60.0, 120.0) }).unwrap();
        let text = made.to_json().unwrap();
        assert_eq!(Plan::from_json(text.as_bytes()).unwrap(), made);
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        assert!(matches!(Plan::from_json(newer.as_bytes()), Err(Error::Version { found: 2, .. })));
        let other = text.replace("dormouse-plan", "shopping-list");
        assert!(matches!(Plan::from_json(other.as_bytes()), Err(Error::Damaged(_))));
        assert!(matches!(Plan::from_json(&text.as_bytes()[..text.len() / 2]), Err(Error::Damaged(_))));
        let mut disordered = made.clone();
        disordered.parts[0].checkpoints.reverse();
        let text = disordered.to_json().unwrap();
        assert!(matches!(Plan::from_json(text.as_bytes()), Err(Error::Damaged(_))), "{text}");
    }
}

#[test]
fn the_processor_s_half_is_free_where_it_is_idle() {
    let mut recorder = Recorder::default();
    let kernel = recorder.kernel("k").unwrap();
    for second in 0..100 {
        let at = Nanos(second * S);
        recorder
            .boundary(at, Boundary { kernel, allocated: 1 << 30, live: 1 << 30, ..Boundary::default() })
            .unwrap();
        // 2 GB take a second; every tenth interval has as long.
        let idle = Nanos(if second % 10 == 3 { S } else { S / 2 });
        recorder.interval(at, CpuInterval { bytes: 2_000_000_000, idle, ..CpuInterval::default() }).unwrap();
    }
    let profile = recorder.finish(Nanos(100 * S)).unwrap();
    let made = plan(&profile, &Wishes { model: Model::Async, ..wishes(40.0, 60.0) }).unwrap();
    let cpu = made.parts.iter().find(|part| part.part == Part::Cpu).unwrap();
    assert!(cpu.checkpoints.iter().all(|each| each.boundary % 10 == 3), "{cpu:?}");
    assert_eq!((cpu.cost_s, cpu.checkpoints.len()), (0.0, 3));
}

#[test]
fn a_kernel_that_is_too_long_is_named_with_what_it_needs() {
    let profile = profile(&[("short", 10, 1), ("long \"one\"", 100, 1), ("short", 10, 1)]);
    let error = plan(&profile, &wishes(240.0, 400.0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"no plan keeps an interval of 75 s: kernel 1 ("long \"one\"") runs from 10 s to 110 s, and nothing can be checkpointed in between; it needs an interval of 100 s or more, or a shorter kernel"#
    );
    let longer = Wishes { interval: Some(Nanos(100 * S)), ..wishes(240.0, 400.0) };
    assert_eq!(plan(&profile, &longer).unwrap().parts[0].longest_gap_ns, Nanos(100 * S));
    let none = plan(&Profile::default(), &wishes(240.0, 400.0)).unwrap();
    assert!(none.parts[0].checkpoints.is_empty());
    let apart = plan(&profile, &Wishes { model: Model::Async, ..wishes(240.0, 200.0) }).unwrap_err();
    assert!(apart.to_string().contains("the program runs without a CPU interval"), "{apart}");
}

#[test]
fn wishes_that_cannot_be_are_refused() {
    let profile = profile(&[("k", 10, 1); 20]);
    let ask = |change: &dyn Fn(&mut Wishes)| {
        let mut wishes = wishes(240.0, 400.0);
        change(&mut wishes);
        plan(&profile, &wishes).unwrap_err()
    };
    let count = ask(&|wishes| wishes.count = Some(1));
    assert!(matches!(count, Error::Count { asked: 1, least: 2, most: 20, .. }), "{count}");
    assert!(matches!(ask(&|wishes| wishes.count = Some(21)), Error::Count { .. }));
    for interval in [0, 150 * S, u64::MAX] {
        let error = ask(&|wishes| wishes.interval = Some(Nanos(interval)));
        assert!(matches!(error, Error::Interval { .. }), "{error}");
    }
    assert!(matches!(ask(&|wishes| wishes.offset = Some(Nanos(40 * S))), Error::Offset { .. }));
    let both = ask(&|wishes| {
        wishes.count = Some(3);
        wishes.objective = plan::model::Wanted::IncrementalCost;
    });
    assert!(matches!(both, Error::Together(_)));
    assert!(matches!(
        ask(&|wishes| wishes.objective = plan::model::Wanted::IncrementalCost),
        Error::Together(_)
    ));
}

#[test]
fn sizes_that_overflow_are_refused() {
    let huge = profile(&[("k", 10, u64::MAX); 20]);
    let bandwidth = |bytes| Bandwidth::per_second(bytes).unwrap();
    let rates = Rates::of_bandwidths(bandwidth(u64::MAX), bandwidth(u64::MAX - 1)).unwrap();
    assert_eq!(
        plan(&huge, &Wishes { rates, ..wishes(240.0, 400.0) }),
        Err(Error::Overflow { what: "costs" })
    );
    // The paper's bandwidths have room for them.
    assert_eq!(plan(&huge, &wishes(240.0, 400.0)).unwrap().parts[0].checkpoints.len(), 2);
}

#[test]
fn time_does_not_go_backwards() {
    let mut recorder = Recorder::default();
    let boundary = Boundary { kernel: recorder.kernel("k").unwrap(), ..Boundary::default() };
    recorder.boundary(Nanos(5), boundary).unwrap();
    let error = recorder.boundary(Nanos(3), boundary).unwrap_err();
    assert_eq!(
        error.to_string(),
        "time goes backwards: boundary 1 is at 3 ns, 2 ns before what came before it"
    );
    recorder.interval(Nanos(9), CpuInterval::default()).unwrap();
    assert!(matches!(recorder.interval(Nanos(8), CpuInterval::default()), Err(Error::TimeGoesBack { .. })));
    let more = Boundary { live: 2, allocated: 1, ..boundary };
    assert!(matches!(recorder.boundary(Nanos(5), more), Err(Error::MoreLiveThanAllocated { number: 1, .. })));
    assert!(matches!(recorder.finish(Nanos(6)), Err(Error::Damaged(_))));
}
