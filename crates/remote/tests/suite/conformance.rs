//! The suite that every backend must pass, over the network. Only what needs descriptors of another process is not there.

use super::common::{Far, over_tcp, over_unix};
use backend::conformance::BEHAVIOURS;
use libtest_mimic::Trial;
use remote::RemoteBackend;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("conformance::over_socket_pairs", || shows_every_behaviour(over_unix())),
        Trial::test("conformance::over_tcp", || shows_every_behaviour(over_tcp())),
    ]
}

fn shows_every_behaviour((far, backend): (Far, RemoteBackend)) -> Result<(), libtest_mimic::Failed> {
    let mut failed = Vec::new();
    for (name, behaviour) in BEHAVIOURS {
        if name.starts_with("sharing::") {
            continue;
        }
        if catch_unwind(AssertUnwindSafe(|| behaviour(&backend))).is_err() {
            failed.push(*name);
        }
    }
    drop(backend);
    let mut far = far;
    let ended = far.0.wait().unwrap();
    if !failed.is_empty() || !ended.success() {
        return Err(format!("not shown: {failed:?}; the far end: {ended}").into());
    }
    Ok(())
}
