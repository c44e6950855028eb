//! Writes the store that `tests/golden.rs` reads, with whatever format this code writes:
//! `cargo run -p store --example golden -- crates/store/tests/golden/v2`, once, when there is a version 2.
#![allow(clippy::unwrap_used)]

#[path = "../tests/suite/support/sample.rs"]
mod sample;

fn main() {
    let dir = std::env::args_os().nth(1).map(std::path::PathBuf::from);
    let dir = dir.unwrap_or_else(|| panic!("say which folder to create"));
    let store = store::Store::open_or_create(&dir).unwrap();
    for number in [1, 2] {
        let image = sample::checkpoint(&store, "golden", number).unwrap();
        println!("{} is sample {number}", image.id);
    }
}
