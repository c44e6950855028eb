//! Optimal, on ten thousand small problems of every kind.

use crate::support::{Random, allowed, choices, cost, cost_of_each_count, implicit_enumeration, points};
use plan::path::{Certificate, NoPath, Points, cheapest, exactly};
use plan::{Error, offset};

const INSTANCES: u64 = 10_000;

fn each(check: impl Fn(&Points, u64, &mut Random)) {
    let mut feasible = 0;
    for seed in 0..INSTANCES {
        let mut random = Random(seed);
        let points = points(&mut random);
        let interval = random.below(14);
        let gap = points.longest_gap();
        feasible += u64::from(gap.to - gap.from <= interval);
        check(&points, interval, &mut random);
    }
    // Neither kind is rare.
    assert!((INSTANCES / 4..INSTANCES).contains(&feasible), "{feasible}");
}

#[test]
fn any_count() {
    each(|points, interval, _| {
        let best = choices(points)
            .filter(|path| allowed(points, interval, path))
            .map(|path| (cost(points, &path), path.len()))
            .min();
        let found = cheapest(points, interval);
        match (&found, best) {
            (Ok(path), Some((least, fewest))) => {
                assert!(allowed(points, interval, path), "{points:?} {interval} {path:?}");
                assert_eq!((cost(points, path), path.len()), (least, fewest), "{points:?} {interval}");
                let certificate = Certificate::of(points, interval, None).unwrap();
                assert_eq!(certificate.price, 0);
                assert!(certificate.proves(points, interval, path), "{points:?} {interval}");
            }
            (Err(gap), None) => assert!(gap.to - gap.from > interval),
            other => panic!("{other:?}: {points:?} {interval}"),
        }
        assert_eq!(implicit_enumeration(points, interval, None), best.map(|(least, _)| least));
    });
}

#[test]
fn every_count() {
    each(|points, interval, random| {
        let costs = cost_of_each_count(points, interval);
        let possible: Vec<u32> =
            (0..).zip(&costs).filter(|(_, cost)| cost.is_some()).map(|(m, _)| m).collect();
        // The counts have no gap, and the costs are convex: what the search rests on.
        assert!(possible.windows(2).all(|two| two[1] == two[0] + 1), "{points:?} {interval}");
        let values: Vec<i128> = costs.iter().flatten().map(|cost| *cost as i128).collect();
        assert!(values.windows(3).all(|three| 2 * three[1] <= three[0] + three[2]), "{points:?} {interval}");
        for count in 0..=points.at.len() as u32 + 1 {
            match (exactly(points, interval, count), costs.get(count as usize).copied().flatten()) {
                (Ok(path), Some(least)) => {
                    assert!(allowed(points, interval, &path), "{points:?} {interval} {path:?}");
                    assert_eq!(
                        (path.len(), cost(points, &path)),
                        (count as usize, least),
                        "{points:?} {interval}"
                    );
                    let certificate = Certificate::of(points, interval, Some(count)).unwrap();
                    assert!(certificate.proves(points, interval, &path), "{points:?} {interval} {count}");
                }
                (Err(NoPath::Bounds(bounds)), None) => {
                    let range = possible.first().copied()..=possible.last().copied();
                    assert_eq!(Some(bounds.least)..=Some(bounds.most), range, "{points:?} {interval}");
                }
                (Err(NoPath::Gap(gap)), None) => {
                    assert!(gap.to - gap.from > interval && possible.is_empty(), "{points:?} {interval}");
                }
                other => panic!("{other:?}: {points:?} {interval} {count}"),
            }
        }
        let count = random.below(points.at.len() as u64 + 1) as u32;
        assert_eq!(implicit_enumeration(points, interval, Some(count)), costs[count as usize]);
    });
}

/// Number `k` of `count` within the offset of `k / (count + 1)` of the program.
fn near(points: &Points, path: &[u32], offset: u64) -> bool {
    let parts = path.len() as u64 + 1;
    (1..)
        .zip(path)
        .all(|(k, point)| (points.at[*point as usize] * parts).abs_diff(k * points.end) <= offset * parts)
}

#[test]
fn within_an_offset() {
    each(|points, interval, random| {
        let reach = random.below(4);
        let count = random.below(5) as u32;
        let best = choices(points)
            .filter(|path| path.len() == count as usize && near(points, path, reach))
            .filter(|path| allowed(points, interval, path))
            .map(|path| cost(points, &path))
            .min();
        let fits = count == 0 || 2 * reach * (u64::from(count) + 1) <= points.end;
        match (offset::cheapest(points, interval, reach, count), best) {
            (Ok(path), Some(least)) => {
                assert!(
                    allowed(points, interval, &path) && near(points, &path, reach),
                    "{points:?} {path:?}"
                );
                assert_eq!(
                    (path.len(), cost(points, &path)),
                    (count as usize, least),
                    "{points:?} {interval}"
                );
                // Bounding the gap does this and more.
                assert!(cost(points, &exactly(points, interval, count).unwrap()) <= least);
                assert!(cost(points, &cheapest(points, interval).unwrap()) <= least);
            }
            (Err(Error::Offset { .. }), _) => assert!(!fits),
            (Err(Error::NothingNear { .. }), None) => assert!(fits),
            other => panic!("{other:?}: {points:?} {interval} {reach} {count}"),
        }
    });
}

#[test]
fn an_offset_s_own_count_keeps_the_interval_wherever_it_moves() {
    each(|points, interval, random| {
        let reach = random.below(4);
        let Ok(count) = offset::count(points, interval, reach) else { return assert!(2 * reach >= interval) };
        if count as usize > points.at.len() {
            return;
        }
        for path in choices(points).filter(|path| path.len() == count as usize && near(points, path, reach)) {
            assert!(allowed(points, interval, &path) || !path.is_sorted_by_key(|p| points.at[*p as usize]));
        }
        if count > 0 {
            // One fewer would not.
            assert!(u128::from(points.end) > u128::from(interval - 2 * reach) * u128::from(count));
        }
    });
}

#[test]
fn many_points_with_prices_of_every_size() {
    let mut random = Random(7);
    let at: Vec<u64> = (0..200).map(|index| 10 * index).collect();
    let cost = at.iter().map(|_| u128::from(random.next() >> random.below(60))).collect();
    let points = Points { at, cost, end: 2000 };
    let costs = cost_of_each_count(&points, 80);
    for count in (0..202).step_by(7) {
        match (exactly(&points, 80, count), costs.get(count as usize).copied().flatten()) {
            (Ok(path), Some(least)) => {
                assert_eq!(crate::support::cost(&points, &path), least, "{count}");
                assert!(Certificate::of(&points, 80, Some(count)).unwrap().proves(&points, 80, &path));
            }
            (Err(NoPath::Bounds(_)), None) => {}
            other => panic!("{count}: {other:?}"),
        }
    }
}
