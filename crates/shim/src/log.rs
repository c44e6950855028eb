//! Messages on stderr, for people who set `DORMOUSE_LOG` to `error`, `warn`, `info`, `debug` or `trace` (every call).
//! Without it the shim is silent: what it writes would mix with the application's own output.

use std::{
    fmt,
    io::Write,
    sync::atomic::{AtomicU8, Ordering},
};

use cuda_abi::{CuResult, FunctionId};

use crate::journal;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    Off = 1,
    /// What makes a program fail.
    Error,
    /// What a program may not have expected.
    Warn,
    /// Milestones.
    Info,
    /// Steps.
    Debug,
    /// Every call.
    Trace,
}

/// The level in use; 0 until the environment has been read.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// Whether messages of this level are written.
#[inline]
pub fn enabled(level: Level) -> bool {
    let set = LEVEL.load(Ordering::Relaxed);
    level as u8 <= if set == 0 { read_environment() } else { set }
}

#[cold]
fn read_environment() -> u8 {
    let level = match std::env::var("DORMOUSE_LOG").as_deref() {
        Err(_) | Ok("" | "off") => Level::Off,
        Ok("error") => Level::Error,
        Ok("info") => Level::Info,
        Ok("debug") => Level::Debug,
        Ok("trace") => Level::Trace,
        Ok(_) => Level::Warn,
    };
    LEVEL.store(level as u8, Ordering::Relaxed);
    level as u8
}

/// Writes a message, in one piece, if its level is enabled; the driver's error log has what a program should know in any case.
pub fn message(level: Level, text: fmt::Arguments<'_>) {
    if matches!(level, Level::Error | Level::Warn) {
        journal::note(level, text);
    }
    if enabled(level) {
        let line = format!("dormouse: {text}\n");
        // A program that closed its stderr goes without.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// Writes what a call answered.
#[cold]
pub fn trace_call(id: FunctionId, result: CuResult) {
    match result {
        Ok(()) => message(Level::Trace, format_args!("{}", id.symbol())),
        Err(error) => message(Level::Trace, format_args!("{}: {error}", id.symbol())),
    }
}
