//! The `dormouse` command: flags to calls, results to text or JSON, failures to exit codes. Everything else is done elsewhere.

mod commands;
mod exit;
mod flags;
#[cfg(test)]
mod json_page;
mod notify;
mod output;

use clap::Parser;
use flags::{Cli, Command};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

fn main() -> ExitCode {
    if let Some(args) = commands::nvcc::called() {
        return commands::nvcc::run(&args);
    }
    let cli = Cli::parse();
    log_to_stderr();
    match cli.command {
        Command::Run(flags) => commands::run::run(flags),
        Command::Restart(flags) => commands::restart::run(flags),
        Command::Ps(flags) => output::finish(flags.json.json, commands::ps::run(&flags)),
        Command::Checkpoint(flags) => output::finish(flags.json.json, commands::checkpoint::run(&flags)),
        Command::Suspend(flags) => output::finish(flags.json.json, commands::suspend::suspend(&flags)),
        Command::Resume(flags) => output::finish(flags.json.json, commands::suspend::resume(&flags)),
        Command::Migrate(flags) => output::finish(flags.json.json, commands::migrate::run(&flags)),
        Command::Ls(flags) => output::finish(flags.json.json, commands::images::ls(&flags)),
        Command::Inspect(flags) => output::finish(flags.json.json, commands::images::inspect(&flags)),
        Command::Diff(flags) => output::finish(flags.json.json, commands::diff::run(&flags)),
        Command::Cat(flags) => output::finish(false, commands::cat::run(&flags)),
        Command::Verify(flags) => output::finish(flags.json.json, commands::images::verify(&flags)),
        Command::Copy(flags) => output::finish(flags.json.json, commands::copy::run(&flags)),
        Command::Rm(flags) => output::finish(flags.json.json, commands::rm::run(&flags)),
        Command::Prune(flags) => output::finish(flags.json.json, commands::prune::run(&flags)),
        Command::Doctor(flags) => output::finish(flags.json.json, commands::doctor::run(&flags)),
        Command::Devices(flags) if flags.greeting => commands::devices::greet(&flags.device),
        Command::Devices(flags) => output::finish(flags.json.json, commands::devices::run(&flags)),
        Command::Plan(flags) => output::finish(flags.json.json, commands::plan::run(&flags)),
        Command::Profile(flags::Profile { command: flags::ProfileCommand::Show(flags) }) => {
            output::finish(flags.json.json, commands::profile::show(&flags))
        }
        Command::Serve(flags) => output::finish(false, commands::serve::run(&flags)),
        Command::Receive(flags) => output::finish(false, commands::receive::run(&flags)),
        Command::Keys(flags) => commands::keys::run(flags.command),
        Command::Nvcc(flags) => commands::nvcc::run(&flags.args),
        Command::Completions { shell } => commands::manual::completions(shell),
        Command::Man { folder } => output::finish(false, commands::manual::man(&folder)),
        Command::Server(flags) => commands::server::run(&flags),
        Command::FarEnd(flags) => commands::far_end::run(&flags),
        Command::Arrival(flags) => commands::receive::arrival(&flags),
        Command::NvccStep(flags) => commands::nvcc::step(flags),
    }
}

/// Warnings and errors by default; `DORMOUSE_LOG=debug` and the like for more.
fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    // What a store's server is not trusted for is told by whoever asked it.
    let quiet = || EnvFilter::new("warn,rustls_platform_verifier=off");
    let filter = EnvFilter::try_from_env("DORMOUSE_LOG").unwrap_or_else(|_| quiet());
    tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .event_format(Line)
        .init();
}

/// `dormouse: warning: …`, as failures are told.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(writer, "dormouse: {level}: ")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
