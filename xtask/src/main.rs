//! Set-up, demonstration, tests, bundle and CI: `cargo xtask TASK`.

mod abi;
mod guests;
mod kit;
mod process;
mod setup;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up, demonstration, tests, bundle and CI")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install or unpack what this machine lacks (packages as root; the rest into .prefix)
    Setup,
    /// Build dormouse, its libcuda.so.1 and the guests, and lay them out for use
    Kit,
    /// Write docs/api-coverage.md from the list of driver functions
    Coverage,
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let workspace = Workspace::locate()?;
    match task {
        Task::Setup => setup::run(&workspace),
        Task::Kit => setup::run(&workspace)
            .and_then(|()| kit::build(&workspace))
            .map(|kit| println!("{}", kit.display())),
        Task::Coverage => abi::write_coverage(&workspace.root.join("docs/api-coverage.md")),
    }
}
