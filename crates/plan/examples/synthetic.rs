//! Writes the profile of a program that there is not: `cargo run --example synthetic -- multigrid FILE`.

use plan::{format, synthetic};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [which, file] = args.as_slice() else {
        eprintln!("usage: synthetic multigrid|spectral FILE");
        return ExitCode::from(2);
    };
    let made = match which.as_str() {
        "multigrid" => synthetic::multigrid(150, 6),
        "spectral" => synthetic::spectral(5000),
        other => {
            eprintln!("no such program: {other}");
            return ExitCode::from(2);
        }
    };
    let written = made.map_err(|error| error.to_string()).and_then(|profile| {
        std::fs::write(file, format::encode(&profile)).map_err(|error| format!("{file}: {error}"))
    });
    if let Err(error) = written {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
