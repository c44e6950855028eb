//! What a program that goes on finds otherwise than it was told before, and may have kept. What keeps it from going on is tried elsewhere: CRIU by what it
//! asks of the kernel, code and addresses by making them.

use image::{DeviceFacts, HostFacts};
use std::collections::BTreeSet;

/// What differs, a sentence each, between the machine and the devices of an image and those that are here.
#[must_use]
pub fn differences(before: (&HostFacts, &[DeviceFacts]), here: (&HostFacts, &[DeviceFacts])) -> Vec<String> {
    let kernel = older_kernel(&before.0.kernel, &here.0.kernel);
    kernel.into_iter().chain(drivers(before.1, here.1)).chain(models(before.1, here.1)).collect()
}

/// Linux keeps what it has once given to programs: a newer one lacks nothing that they have found.
fn older_kernel(before: &str, here: &str) -> Option<String> {
    (release(here)? < release(before)?).then(|| {
        format!(
            "the kernel here is older, Linux {here}, than the one that the program has run on, Linux {before}: it may lack what the program has found there, and uses"
        )
    })
}

/// The numbers by which Linux says what it has: `6.8` of `6.8.0-45-generic`.
fn release(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn drivers(before: &[DeviceFacts], here: &[DeviceFacts]) -> Option<String> {
    // 0 is of a device that did not say.
    let versions = |devices: &[DeviceFacts]| -> BTreeSet<u32> {
        devices.iter().map(|device| device.driver_version).filter(|version| *version > 0).collect()
    };
    let (had, has) = (versions(before), versions(here));
    if had.is_empty() || has.is_empty() || had == has {
        return None;
    }
    let named = |versions: BTreeSet<u32>| {
        let each = versions.into_iter().map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
        each.collect::<Vec<_>>().join(" and ")
    };
    Some(format!(
        "the program has been told of a driver for CUDA {}, and may have kept that; here it is one for CUDA {}, which compiles its PTX anew, where last digits of results may be others",
        named(had),
        named(has)
    ))
}

fn models(before: &[DeviceFacts], here: &[DeviceFacts]) -> Vec<String> {
    let names = |devices: &[DeviceFacts]| -> BTreeSet<String> {
        devices.iter().map(|device| device.name.clone()).collect()
    };
    let (had, has) = (names(before), names(here));
    if has.is_empty() {
        return Vec::new();
    }
    let are_here = has.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let warning = |name: &String| {
        format!(
            "the program has been told of a device {name:?}, and may have kept its attributes (processors, memory, compute capability); here there is {are_here}"
        )
    };
    had.difference(&has).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::DeviceOrdinal;

    fn on(kernel: &str) -> HostFacts {
        HostFacts { kernel: kernel.to_owned(), ..HostFacts::default() }
    }

    fn device(name: &str, driver_version: u32) -> DeviceFacts {
        DeviceFacts {
            ordinal: DeviceOrdinal(0),
            backend: "driver".to_owned(),
            name: name.to_owned(),
            uuid: [0; 16],
            compute_capability: 90,
            total_memory: 1 << 30,
            driver_version,
        }
    }

    #[test]
    fn an_older_kernel_is_told_with_both_versions() {
        let told = |before, here| differences((&on(before), &[]), (&on(here), &[]));
        let [warning] = &told("6.10.3-1-amd64", "6.8.0-45-generic")[..] else { panic!("one is told") };
        assert!(
            warning.contains("Linux 6.10.3-1-amd64") && warning.contains("Linux 6.8.0-45-generic"),
            "{warning}"
        );
        assert_eq!(told("6.0.0", "5.15.0-100").len(), 1);
        for (before, here) in [("6.8.0-45", "6.8.0-31"), ("6.8.0", "6.10.0"), ("5.15.0", "6.1.0"), ("", "?")]
        {
            assert_eq!(told(before, here), [""; 0], "{before} to {here}");
        }
    }

    #[test]
    fn another_driver_is_told_with_both_versions() {
        let told = |before, here| {
            differences((&on(""), &[device("GPU", before)]), (&on(""), &[device("GPU", here)]))
        };
        for (before, here) in [(12080, 13000), (13000, 12080)] {
            let [warning] = &told(before, here)[..] else { panic!("one is told") };
            assert!(warning.contains("CUDA 12.8") && warning.contains("CUDA 13.0"), "{warning}");
        }
        assert_eq!([told(13000, 13000), told(0, 13000), told(13000, 0)].concat(), [""; 0]);
    }

    #[test]
    fn models_that_are_not_here_are_told() {
        let here = [device("NVIDIA H200", 13000), device("NVIDIA L4", 13000)];
        let had = [device("NVIDIA H200", 13000), device("NVIDIA H100", 13000), device("NVIDIA H100", 13000)];
        let [warning] = &differences((&on(""), &had), (&on(""), &here))[..] else { panic!("one is told") };
        assert!(
            warning.contains("\"NVIDIA H100\"") && warning.contains("here there is NVIDIA H200, NVIDIA L4"),
            "{warning}"
        );
        assert_eq!(differences((&on(""), &here[..1]), (&on(""), &here)), [""; 0]);
    }
}
