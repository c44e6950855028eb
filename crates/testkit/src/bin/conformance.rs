//! Runs the backends' conformance suite on this machine's driver, or with `soft` on the software device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use backend::Backend;
use backend::conformance::BEHAVIOURS;

fn main() -> ExitCode {
    let backend: Box<dyn Backend> = match std::env::args().nth(1).as_deref() {
        Some("soft") => Box::new(backend_soft::SoftBackend::new(backend_soft::Options::default())),
        _ => match backend_driver::Driver::open() {
            Ok(driver) => Box::new(driver),
            Err(error) => {
                eprintln!("no GPU to check: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    // The driver prints to standard output, which the backend captures: results go to standard error.
    eprintln!("{}", backend.describe());
    let mut failed = 0;
    for (name, behaviour) in BEHAVIOURS {
        let shown = catch_unwind(AssertUnwindSafe(|| behaviour(backend.as_ref()))).is_ok();
        eprintln!("{:8}{name}", if shown { "ok" } else { "FAILED" });
        failed += usize::from(!shown);
    }
    eprintln!("{} passed, {failed} failed", BEHAVIOURS.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
