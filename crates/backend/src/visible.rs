//! Which of a machine's devices there are for a program (CUDA C++ Programming Guide, "CUDA Environment Variables").

/// The devices of a list as `CUDA_VISIBLE_DEVICES` has it, up to the first entry that `find` knows none for, or that was there before, as CUDA has it.
pub fn visible(list: &str, find: impl Fn(&str) -> Option<usize>) -> Vec<usize> {
    let mut found = Vec::new();
    for entry in list.split(',') {
        match find(entry.trim()) {
            Some(device) if !found.contains(&device) => found.push(device),
            _ => break,
        }
    }
    found
}
