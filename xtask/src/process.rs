//! Running other programs, with errors that say which.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Context, bail};

/// Says what is being done, and how long the task has taken so far; a task prints one such line for each step.
pub fn step(what: impl std::fmt::Display) {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = BEGUN.elapsed().as_secs();
    eprintln!("=> [{}:{:02}] {what}", seconds / 60, seconds % 60);
}

/// A command as one line, for messages.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end; its output goes where ours does.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// Runs a command to its end and shows what it printed only when it fails.
pub fn quiet(command: &mut Command) -> anyhow::Result<Output> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{}`", line(command)))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("`{}` failed ({})\n{out}{err}", line(command), output.status);
    }
    Ok(output)
}

/// Whether a command can be started and succeeds.
pub fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Cargo, in the workspace at `root`.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // `cargo run` says by these that it is this package which runs. Build scripts look at them (ring's does), and what depends on those
    // would be built anew each time cargo is called in another way than the last.
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"CARGO_PKG_")
            || name.as_encoded_bytes().starts_with(b"CARGO_MANIFEST_")
        {
            command.env_remove(name);
        }
    }
    command
}
