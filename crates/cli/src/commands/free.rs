//! `--visible-devices free`: which GPUs take the places of a job's, where nobody says which.

use checkpoint::gpus::{Asked, List, NoList, entries};
use checkpoint::machine::Watcher;
use checkpoint::{Failure, Kind};
use wire::{Gpu, Machine, Quantity};

/// Which of [`Quantity::Memory`] is what nobody uses.
const FREE: u16 = 2;

/// The GPUs that were asked for, at the place where `device` says that a job's are, in the places of those it `had`: without a list, all there.
///
/// # Errors
/// If the machine does not tell of its GPUs, or has none left of a sort.
pub fn these(asked: Option<&Asked>, device: &str, had: Option<&str>) -> Result<Option<List>, Failure> {
    match asked {
        None => Ok(None),
        Some(Asked::These(list)) => Ok(Some(list.clone())),
        Some(Asked::Free) => choose(&Watcher::new(device.to_owned()).look()?, had).map(Some),
    }
}

/// For each place the GPU of the same sort that has most memory left, and of those that have as much the one that was there. Numbers are those of
/// this machine: what an image was made with elsewhere is of no sort, unless it is called by a UUID that is here, too.
fn choose(machine: &Machine, had: Option<&str>) -> Result<List, Failure> {
    let gpus = &machine.gpus;
    let called: Vec<_> = gpus.iter().map(|gpu| gpu.uuid.clone()).enumerate().collect();
    let places = match had {
        Some(list) => entries(list).map(|entry| whole(entry, &called)).collect::<Result<_, _>>()?,
        None => (0..gpus.len()).map(Some).collect::<Vec<_>>(),
    };
    let mut left: Vec<(usize, &Gpu)> = gpus.iter().enumerate().collect();
    let mut chosen = Vec::new();
    for place in places {
        let sort = place.and_then(|place| Some(&gpus.get(place)?.name));
        let fits = |gpu: &Gpu| sort.is_none_or(|sort| *sort == gpu.name);
        let room = |number, gpu: &Gpu| (gpu.number(Quantity::Memory, FREE), place == Some(number));
        // Of several that are alike the first.
        let fitting = left.iter().enumerate().rev().filter(|(_, (_, gpu))| fits(gpu));
        let Some((best, _)) = fitting.max_by_key(|(_, (number, gpu))| room(*number, gpu)) else {
            let sort = sort.map_or("any", String::as_str);
            let message = format!("there is no GPU left for the job's GPU {} ({sort})", chosen.len());
            return Err(Failure::new(Kind::Unavailable, message));
        };
        chosen.push(left.remove(best).1.uuid.clone());
    }
    let list = chosen.join(",").parse();
    list.map_err(|error: NoList| Failure::new(Kind::Unavailable, error.to_string()))
}

/// The GPU that an entry of a list names; a part of one cannot be chosen.
fn whole(entry: &str, gpus: &[(usize, String)]) -> Result<Option<usize>, Failure> {
    if entry.starts_with("MIG-") {
        let message = format!("{entry} is a part of a GPU: name those that are to take its place");
        return Err(Failure::new(Kind::Usage, message));
    }
    Ok(backend::named(entry, gpus))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// GPUs of a machine, each with its sort and what is free of it.
    fn machine(gpus: &[(&str, u64)]) -> Machine {
        let gpu = |(index, &(name, free)): (usize, &(&str, u64))| {
            let options = backend_soft::Options { devices: 1, visible: None, memory: free };
            let mut gpu = backend_soft::machine(&options).gpus.remove(0);
            (gpu.uuid, gpu.name) = (format!("GPU-{index}a"), name.to_owned());
            gpu
        };
        Machine { gpus: gpus.iter().enumerate().map(gpu).collect(), ..Machine::default() }
    }

    #[test]
    fn the_freest_of_a_sort_takes_the_place() {
        let alike = machine(&[("A", 5), ("A", 9), ("A", 7)]);
        let mixed = machine(&[("A", 5), ("B", 9), ("A", 7), ("B", 10)]);
        let idle = machine(&[("A", 8), ("A", 8), ("A", 8)]);
        for (machine, had, takes) in [
            (&alike, Some("0"), "GPU-1a"),
            (&alike, Some("GPU-0"), "GPU-1a"),
            (&alike, Some("0,1"), "GPU-1a,GPU-2a"),
            (&alike, None, "GPU-1a,GPU-2a,GPU-0a"),
            (&mixed, Some("0"), "GPU-2a"),
            (&mixed, Some("1"), "GPU-3a"),
            (&mixed, Some("1,0"), "GPU-3a,GPU-2a"),
            // Of a machine that is not here.
            (&mixed, Some("GPU-ff"), "GPU-3a"),
            // Nobody moves for nothing.
            (&idle, Some("2"), "GPU-2a"),
            (&idle, Some("1,0"), "GPU-1a,GPU-0a"),
            (&idle, None, "GPU-0a,GPU-1a,GPU-2a"),
            (&idle, Some("7"), "GPU-0a"),
        ] {
            assert_eq!(choose(machine, had).unwrap().to_string(), takes, "{had:?}");
        }
        let none = choose(&mixed, Some("1,1,3")).unwrap_err();
        assert!(none.message.contains("no GPU left for the job's GPU 2 (B)"), "{none:?}");
        let part = choose(&idle, Some("MIG-1")).unwrap_err();
        assert!(part.message.contains("MIG-1 is a part of a GPU"), "{part:?}");
    }
}
