//! Completions and man pages, from the same flags as everything else.

use crate::flags::Cli;
use checkpoint::Failure;
use clap::CommandFactory;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    clap_complete::generate(shell, &mut Cli::command(), "dormouse", &mut io::stdout());
    ExitCode::SUCCESS
}

/// Writes `dormouse.1` and a page for each subcommand.
pub fn man(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder)).map_err(
        |error| Failure::of(format_args!("cannot write man pages into {}", folder.display()), &error),
    )
}
