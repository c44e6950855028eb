//! Set-up, demonstration, tests, bundle and CI: `cargo xtask TASK`.

mod abi;
mod bundle;
mod criu;
mod demo;
mod deny;
mod guests;
mod kit;
mod process;
mod setup;
mod test;
mod wheel;
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
    /// Run a CUDA program, checkpoint it half-way, kill everything, wake it up, and compare its output
    Demo,
    /// Check formatting, lints, documentation, licences and the list of driver functions, and run all tests
    Test,
    /// What CI runs: the demonstration, then every check and test
    Ci,
    /// Run for long: every guest through every disturbance, 20 rounds each, four guests side by side; a process killed at 200 moments of checkpoints; random marked kernels for ten minutes
    Soak,
    /// Check licences and sources of everything that is linked
    Deny,
    /// Build dormouse, its libcuda.so.1 and the guests, and lay them out for use
    Kit,
    /// Make one folder with everything, for machines that have nothing but a GPU
    Bundle,
    /// Make the wheel of the Python package `dormouse`, for every Python from 3.9 on and C libraries from 2.28 on
    Wheel,
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
        Task::Demo => demo::run(&workspace),
        Task::Test => test::run_all(&workspace),
        Task::Ci => demo::run(&workspace).and_then(|()| test::run_all(&workspace)),
        Task::Soak => test::soak(&workspace),
        Task::Deny => deny::check(&workspace),
        Task::Kit => setup::run(&workspace)
            .and_then(|()| kit::build(&workspace, guests::Wanted::All))
            .map(|kit| println!("{}", kit.display())),
        Task::Bundle => bundle::make(&workspace).map(|bundle| println!("{}", bundle.display())),
        Task::Wheel => wheel::make(&workspace).map(|wheel| println!("{}", wheel.display())),
        Task::Coverage => abi::write_coverage(&workspace.root.join("docs/api-coverage.md")),
    }
}
