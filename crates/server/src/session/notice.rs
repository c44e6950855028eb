//! What the application's side wants the user to know.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Result, truncate};
use wire::{NOTICE_MAX, Notice};

impl Execute for Notice {
    fn execute(self, _: &Session, _: &mut Caller) -> Result<()> {
        tracing::warn!("{}", printable(&self.text));
        Ok(())
    }
}

/// The text as one line of bounded length: it comes from the application's process, and goes to a terminal.
fn printable(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = clean.collect();
    truncate(&mut line, NOTICE_MAX);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_one_line_of_bounded_length() {
        assert_eq!(printable("cuLaunch is not supported"), "cuLaunch is not supported");
        assert_eq!(printable("two\nlines \u{1b}[31m"), "two lines  [31m");
        let long = printable(&"\u{fffd}".repeat(NOTICE_MAX));
        assert!(long.len() <= NOTICE_MAX && long.chars().all(|c| c == '\u{fffd}'));
    }
}
