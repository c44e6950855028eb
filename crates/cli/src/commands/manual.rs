//! Completions and man pages, from the same flags as everything else.

use crate::flags::Cli;
use checkpoint::Failure;
use clap::{Command, CommandFactory};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Prints a completion script.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    match io::stdout().write_all(&script(shell)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// A script without the commands that Dormouse calls itself, which would be offered.
fn script(shell: clap_complete::Shell) -> Vec<u8> {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut cli = Command::new("dormouse").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    // Its own way to write to standard output panics where nobody reads.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli, "dormouse", &mut script);
    script
}

/// Writes `dormouse.1` and a page for each subcommand.
pub fn man(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder)).map_err(
        |error| Failure::of(format_args!("cannot write man pages into {}", folder.display()), &error),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn what_is_offered_is_what_people_type() {
        for shell in clap_complete::Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            assert!(script.contains("checkpoint") && script.contains("keep-last"), "{shell}");
            assert!(!script.contains("far-end"), "{shell}");
        }
    }
}
