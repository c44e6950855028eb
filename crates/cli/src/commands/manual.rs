//! Completions and man pages, from the same flags as everything else.

use crate::flags::Cli;
use checkpoint::Failure;
use clap::CommandFactory;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    // Its own way to write panics where nobody reads.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dormouse", &mut script);
    match io::stdout().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Writes `dormouse.1` and a page for each subcommand.
pub fn man(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder)).map_err(
        |error| Failure::of(format_args!("cannot write man pages into {}", folder.display()), &error),
    )
}
