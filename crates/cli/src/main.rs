//! The `dormouse` command: flags to calls, results to text or JSON, failures to exit codes. Everything else is done elsewhere.

mod commands;
mod exit;
mod flags;
#[cfg(test)]
mod json_page;
mod output;

use clap::Parser;
use flags::{Cli, Command};
use std::io::IsTerminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    match cli.command {
        Command::Run(flags) => commands::run::run(flags),
        Command::Restart(flags) => commands::restart::run(flags),
        Command::Ps(flags) => output::finish(flags.json.json, commands::ps::run(&flags)),
        Command::Checkpoint(flags) => output::finish(flags.json.json, commands::checkpoint::run(&flags)),
        Command::Ls(flags) => output::finish(flags.json.json, commands::images::ls(&flags)),
        Command::Inspect(flags) => output::finish(flags.json.json, commands::images::inspect(&flags)),
        Command::Verify(flags) => output::finish(flags.json.json, commands::images::verify(&flags)),
        Command::Rm(flags) => output::finish(flags.json.json, commands::rm::run(&flags)),
        Command::Prune(flags) => output::finish(flags.json.json, commands::prune::run(&flags)),
        Command::Doctor(flags) => output::finish(flags.json.json, commands::doctor::run(&flags)),
        Command::Devices(flags) if flags.greeting => commands::devices::greet(flags.device),
        Command::Devices(flags) => output::finish(flags.json.json, commands::devices::run(&flags)),
        Command::Completions { shell } => commands::manual::completions(shell),
        Command::Man { folder } => output::finish(false, commands::manual::man(&folder)),
        Command::Server(flags) => commands::server::run(&flags),
    }
}

/// Warnings and errors by default; `DORMOUSE_LOG=debug` and the like for more.
fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("DORMOUSE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
}
