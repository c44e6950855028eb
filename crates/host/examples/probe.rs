//! Finds out what a CRIU can do on this machine: `probe [PLACE]`.

use std::path::Path;
use std::process::ExitCode;

use host::Criu;
use host::criu::Resource;

fn main() -> ExitCode {
    let found = match std::env::args_os().nth(1) {
        Some(place) => Criu::at(Path::new(&place)),
        None => Criu::find(),
    };
    let criu = match found {
        Ok(criu) => criu,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{criu}");
    let capabilities = criu.probe(None);
    for resource in Resource::ALL {
        println!("{:14} {}", resource.name(), format_args!("{:?}", capabilities.verdict(resource)));
    }
    match capabilities.require_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
