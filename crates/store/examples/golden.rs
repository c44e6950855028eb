//! Writes the store that `tests/golden.rs` reads, with whatever format this code writes:
//! `cargo run -p store --example golden -- crates/store/tests/golden/v2`, once, when there is a version 2. With `encrypted` behind it, the store is so.
#![allow(clippy::unwrap_used)]

#[path = "../tests/suite/support/keys.rs"]
mod keys;
#[path = "../tests/suite/support/sample.rs"]
mod sample;

fn main() {
    let dir = std::env::args_os().nth(1).map(std::path::PathBuf::from);
    let dir = dir.unwrap_or_else(|| panic!("say which folder to create"));
    let encrypted = std::env::args().nth(2).is_some_and(|how| how == "encrypted");
    std::fs::create_dir_all(&dir).unwrap();
    let media = std::sync::Arc::new(store::media::Dir::new(&dir));
    let store =
        if encrypted { keys::create(media) } else { store::Store::open_or_create_media(media).unwrap() };
    for number in [1, 2] {
        let image = sample::checkpoint(&store, "golden", number).unwrap();
        println!("{} is sample {number}", image.id);
    }
}
