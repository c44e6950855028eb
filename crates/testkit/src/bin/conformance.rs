//! Runs the backends' conformance suite on this machine's driver, or with `soft` on the software device.

use std::process::ExitCode;

use backend::{Backend, conformance};

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
    let (passed, failed) = conformance::run(backend.as_ref());
    // The driver prints to standard output, which the backend captures: results go to standard error.
    eprintln!("{}", backend.describe());
    passed.iter().for_each(|name| eprintln!("ok      {name}"));
    failed.iter().for_each(|(name, why)| eprintln!("FAILED  {name}: {why}"));
    eprintln!("{} passed, {} failed", passed.len(), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
