//! The driver's error log (`cuLogs…`): the last messages of the shim's, for programs that ask for them and for those that are called
//! back. What people are told with `DORMOUSE_LOG` is the same.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::log::Level;

/// How many messages are kept, and the longest of them with what is written before it: 25,600 bytes in all, as the driver says.
const MESSAGES: usize = 100;
const LINE_MAX: usize = 256;

/// What comes first where messages are missing.
const MISSING: &str = "[CUDA][W] older messages are left out\n";

/// Who is told of messages: what the application gave.
pub type Told = fn(&Listener, Level, &str);

/// A callback of the application's, by number.
#[derive(Clone, Copy)]
pub struct Listener {
    /// Its number.
    pub id: usize,
    /// Its function and data, as addresses.
    pub function: usize,
    /// See there.
    pub data: usize,
    /// Calls it.
    pub tell: Told,
}

struct Journal {
    lines: VecDeque<String>,
    /// The number of the next message.
    next: u32,
    listeners: Vec<Listener>,
    next_listener: usize,
}

static JOURNAL: Mutex<Journal> =
    Mutex::new(Journal { lines: VecDeque::new(), next: 0, listeners: Vec::new(), next_listener: 1 });

fn journal() -> MutexGuard<'static, Journal> {
    JOURNAL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    fn note(&mut self, level: Level, text: &str) {
        let letter = if level == Level::Error { 'E' } else { 'W' };
        let mut line = format!("[CUDA][{letter}] {}", text.replace('\n', " "));
        let end = (0..=line.len().min(LINE_MAX - 2)).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or(0));
        line.push('\n');
        if self.lines.len() == MESSAGES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
        self.next = self.next.wrapping_add(1);
    }

    /// The messages from number `from` on (all without one) that fit into `room` bytes, the newest in any case; `None` if they do
    /// not.
    fn since(&self, from: Option<u32>, room: usize) -> Option<String> {
        let wanted = from.map_or(self.lines.len(), |from| self.next.wrapping_sub(from) as usize);
        let mut missing = wanted > self.lines.len();
        let kept = self.lines.range(self.lines.len().saturating_sub(wanted)..);
        let total: usize = kept.clone().map(String::len).sum();
        missing |= total > room;
        let mut left = if missing { room.saturating_sub(MISSING.len()) } else { room };
        let fitting = kept.clone().rev().take_while(|line| {
            let fits = line.len() <= left;
            left = left.saturating_sub(line.len());
            fits
        });
        let fitting = fitting.count();
        if fitting == 0 && kept.len() > 0 {
            return None;
        }
        let head = if missing { MISSING } else { "" };
        Some(kept.skip(wanted.min(self.lines.len()) - fitting).fold(head.to_owned(), |all, line| all + line))
    }
}

/// Notes a message, and tells who wants to be told.
pub fn note(level: Level, text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let listeners = {
        let mut journal = journal();
        journal.note(level, &text);
        journal.listeners.clone()
    };
    listeners.iter().for_each(|listener| (listener.tell)(listener, level, &text));
}

/// The number of the next message.
pub fn next() -> u32 {
    journal().next
}

/// See [`Journal::since`]; with the number of the next message.
pub fn since(from: Option<u32>, room: usize) -> Option<(String, u32)> {
    let journal = journal();
    journal.since(from, room).map(|text| (text, journal.next))
}

/// Adds a listener, and gives its number.
pub fn listen(function: usize, data: usize, tell: Told) -> usize {
    let mut journal = journal();
    let id = journal.next_listener;
    journal.next_listener += 1;
    journal.listeners.push(Listener { id, function, data, tell });
    id
}

/// Removes a listener; false if there is none of that number.
pub fn forget(id: usize) -> bool {
    let mut journal = journal();
    let before = journal.listeners.len();
    journal.listeners.retain(|listener| listener.id != id);
    journal.listeners.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u32) -> Journal {
        let mut journal =
            Journal { lines: VecDeque::new(), next: 0, listeners: Vec::new(), next_listener: 1 };
        (0..count).for_each(|number| journal.note(Level::Warn, &format!("message {number}")));
        journal
    }

    #[test]
    fn messages_are_given_from_a_number_on() {
        let journal = filled(3);
        assert_eq!(journal.since(Some(2), 1000).as_deref(), Some("[CUDA][W] message 2\n"));
        assert_eq!(journal.since(Some(3), 1000).as_deref(), Some(""));
        assert_eq!(journal.since(None, 1000).map(|all| all.lines().count()), Some(3));
        assert_eq!(filled(0).since(None, 0).as_deref(), Some(""));
    }

    #[test]
    fn what_does_not_fit_or_is_gone_is_told() {
        let journal = filled(3);
        let line = "[CUDA][W] message 2\n".len();
        let some = journal.since(None, MISSING.len() + line);
        assert_eq!(some, Some(format!("{MISSING}[CUDA][W] message 2\n")));
        assert_eq!(journal.since(None, line), None);
        let journal = filled(MESSAGES as u32 + 5);
        let all = journal.since(Some(2), 25_600 + MISSING.len()).unwrap_or_default();
        assert!(all.starts_with(MISSING));
        assert!(all.lines().nth(1).is_some_and(|line| line.ends_with("message 5")), "{all}");
        assert_eq!(all.lines().count(), MESSAGES + 1);
    }

    #[test]
    fn long_messages_are_cut_off_between_letters() {
        let mut journal = filled(0);
        journal.note(Level::Error, &"\u{e9}\n".repeat(LINE_MAX));
        let line = journal.since(None, 1000).unwrap_or_default();
        assert!(
            (LINE_MAX - 3..=LINE_MAX).contains(&line.len()) && line.starts_with("[CUDA][E] \u{e9} \u{e9}")
        );
    }
}
