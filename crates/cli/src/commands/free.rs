//! `--visible-devices free`: which GPUs take the places of a job's, where nobody says which.

use crate::flags::Target;
use checkpoint::gpus::{Asked, List, NoList, entries};
use checkpoint::machine::Watcher;
use checkpoint::{Failure, Kind};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use wire::{Gpu, Machine, Quantity};

/// Which of [`Quantity::Memory`] is what nobody uses.
const FREE: u16 = 2;
/// GPUs whose free memory differs by less have as much: each process that watches them takes some.
const ALIKE: u64 = 256 << 20;

/// The GPUs that were asked for, at the place where `device` says that a job's are, in the places of those it `had`: without a list, all there.
///
/// # Errors
/// If the GPUs are another machine's, or it is not known which can take whose place.
pub fn these(asked: Option<&Asked>, device: &str, had: Option<&str>) -> Result<Option<List>, Failure> {
    match asked {
        None => Ok(None),
        Some(Asked::These(list)) => Ok(Some(list.clone())),
        Some(Asked::Free) => {
            if let Ok(Target::Remote(address)) = device.parse() {
                let what =
                    format!("how much others use of the devices of {address} is not known here: say which");
                return Err(Failure::new(Kind::Usage, what));
            }
            choose(&Watcher::new(device.to_owned()).look()?, had).map(Some)
        }
    }
}

/// For the places of each sort as many GPUs of that sort, those with most memory left; no place gets another one than it had for as much.
fn choose(machine: &Machine, had: Option<&str>) -> Result<List, Failure> {
    let gpus = &machine.gpus;
    let called: Vec<(&Gpu, String)> = gpus.iter().map(|gpu| (gpu, gpu.uuid.clone())).collect();
    let places: Vec<Option<&Gpu>> = match had {
        Some(list) => entries(list).map(|entry| backend::named(entry, &called)).collect(),
        None => gpus.iter().map(Some).collect(),
    };
    let mut chosen = vec![None; places.len()];
    for (sort, wanting) in sorts(gpus, &places, had)? {
        let room = |gpu: &Gpu| gpu.number(Quantity::Memory, FREE).map(|free| free / ALIKE);
        let mut best: Vec<&Gpu> = gpus.iter().filter(|gpu| gpu.name == sort).collect();
        if best.len() < wanting.len() {
            let what =
                format!("the job has {} GPUs of the sort {sort}, and here are {}", wanting.len(), best.len());
            return Err(Failure::new(Kind::Unavailable, what));
        }
        best.sort_by_key(|gpu| Reverse((room(gpu), places.contains(&Some(*gpu)))));
        best.truncate(wanting.len());
        let (stay, go): (Vec<usize>, Vec<usize>) =
            wanting.iter().partition(|place| places[**place].is_some_and(|own| best.contains(&own)));
        for place in stay {
            best.retain(|gpu| Some(*gpu) != places[place]);
            chosen[place] = places[place];
        }
        for (place, gpu) in go.into_iter().zip(best) {
            chosen[place] = Some(gpu);
        }
    }
    let uuids: Vec<&str> = chosen.into_iter().flatten().map(|gpu| gpu.uuid.as_str()).collect();
    let list = uuids.join(",").parse();
    list.map_err(|error: NoList| Failure::new(Kind::Unavailable, error.to_string()))
}

/// Which places want which sort. Where all GPUs are alike, all that one; else each the sort of the one that was there, which has to be called by its
/// UUID: what a number means depends on the order that CUDA has them in.
fn sorts<'a>(
    gpus: &'a [Gpu],
    places: &[Option<&'a Gpu>],
    had: Option<&str>,
) -> Result<BTreeMap<&'a str, Vec<usize>>, Failure> {
    let Some(first) = gpus.first() else {
        return Err(Failure::new(Kind::Unavailable, "there is no GPU here"));
    };
    if gpus.iter().all(|gpu| gpu.name == first.name) {
        return Ok(BTreeMap::from([(first.name.as_str(), (0..places.len()).collect())]));
    }
    let by_uuid = had.is_some_and(|list| entries(list).all(|entry| entry.starts_with("GPU-")));
    let mut sorts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, gpu) in places.iter().enumerate() {
        let Some(gpu) = gpu.filter(|_| by_uuid) else {
            let what = "this machine has GPUs of several sorts, and which the job had is known only of those that were called by UUID: say which";
            return Err(Failure::new(Kind::Usage, what));
        };
        sorts.entry(gpu.name.as_str()).or_default().push(place);
    }
    Ok(sorts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// GPUs of a machine, each with its sort and what is free of it.
    fn machine(gpus: &[(&str, u64)]) -> Machine {
        let gpu = |(index, &(name, free)): (usize, &(&str, u64))| {
            let options =
                backend_soft::Options { devices: 1, memory: free, ..backend_soft::Options::default() };
            let mut gpu = backend_soft::machine(&options).gpus.remove(0);
            (gpu.uuid, gpu.name) = (format!("GPU-{index}a"), name.to_owned());
            gpu
        };
        Machine { gpus: gpus.iter().enumerate().map(gpu).collect(), ..Machine::default() }
    }

    #[test]
    fn the_freest_of_a_sort_takes_the_place() {
        const GIB: u64 = 1 << 30;
        let alike = machine(&[("A", 5 * GIB), ("A", 9 * GIB), ("A", 9 * GIB)]);
        let mixed = machine(&[("A", 5 * GIB), ("B", 9 * GIB), ("A", 7 * GIB), ("B", 10 * GIB)]);
        let idle = machine(&[("A", 8 * GIB), ("A", 8 * GIB + 1000), ("A", 8 * GIB)]);
        for (machine, had, takes) in [
            (&alike, Some("0"), "GPU-1a"),
            (&alike, Some("GPU-0"), "GPU-1a"),
            (&alike, Some("2"), "GPU-2a"),
            // The one that has to move takes what is left.
            (&alike, Some("0,1"), "GPU-2a,GPU-1a"),
            (&alike, None, "GPU-0a,GPU-1a,GPU-2a"),
            (&mixed, Some("GPU-0"), "GPU-2a"),
            (&mixed, Some("GPU-1,GPU-0"), "GPU-3a,GPU-2a"),
            (&mixed, Some("GPU-0,GPU-2"), "GPU-0a,GPU-2a"),
            // Nobody moves for nothing.
            (&idle, Some("2"), "GPU-2a"),
            (&idle, Some("1,0"), "GPU-1a,GPU-0a"),
            (&idle, None, "GPU-0a,GPU-1a,GPU-2a"),
            // Of a machine that is not here.
            (&idle, Some("7"), "GPU-0a"),
            (&alike, Some("GPU-ff"), "GPU-1a"),
        ] {
            assert_eq!(choose(machine, had).unwrap().to_string(), takes, "{had:?}");
        }
        let refused = |machine: &Machine, had, words: &str| {
            let failure = choose(machine, had).unwrap_err();
            assert!(failure.message.contains(words), "{failure:?}");
        };
        refused(&mixed, Some("0"), "GPUs of several sorts");
        refused(&mixed, None, "GPUs of several sorts");
        refused(&mixed, Some("GPU-ff"), "GPUs of several sorts");
        refused(&alike, Some("0,1,2,3"), "4 GPUs of the sort A, and here are 3");
        refused(&machine(&[]), Some("0"), "no GPU here");
        let elsewhere = these(Some(&Asked::Free), "remote:gpu1", None).unwrap_err();
        assert!(
            elsewhere.message.contains("gpu1") && elsewhere.message.contains("say which"),
            "{elsewhere:?}"
        );
    }
}
