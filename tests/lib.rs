//! Tests of the whole: each runs programs through the `dormouse` command of a kit made by `cargo xtask kit`.
