//! Which of a machine's devices there are for a program (CUDA C++ Programming Guide, "CUDA Environment Variables").

/// Those of `devices` that a list as `CUDA_VISIBLE_DEVICES` has it names, up to the first entry that names none, or one that was there before, as CUDA
/// has it. Each has its UUID, as NVML writes it.
pub fn visible<T: Copy + PartialEq>(list: &str, devices: &[(T, String)]) -> Vec<T> {
    let mut found = Vec::new();
    for entry in list.split(',') {
        match named(entry.trim(), devices) {
            Some(device) if !found.contains(&device) => found.push(device),
            _ => break,
        }
    }
    found
}

/// The one that an entry of such a list names: by its place among them, or by as much of its UUID as tells it from others.
pub fn named<T: Copy>(entry: &str, devices: &[(T, String)]) -> Option<T> {
    let is_called = |uuid: &str| {
        let begins = uuid.get(..entry.len()).is_some_and(|start| start.eq_ignore_ascii_case(entry));
        entry.len() > "GPU-".len() && begins
    };
    let found = match entry.parse::<usize>() {
        Ok(place) => devices.get(place),
        Err(_) => devices.iter().find(|(_, uuid)| is_called(uuid)),
    };
    found.map(|(device, _)| *device)
}
