//! Sentences about a session: programs decide how many there are and how long their names.

use crate::failure::truncate;

/// The most that are passed on.
const MOST: usize = 64;
/// The longest of them, bytes.
const LONGEST: usize = 2 << 10;

/// Of many sentences the first, and how many more there are.
#[must_use]
pub fn few(sentences: Vec<String>) -> Vec<String> {
    let more = sentences.len().saturating_sub(MOST);
    let mut few: Vec<String> = sentences.into_iter().take(MOST).map(short).collect();
    if more > 0 {
        few.push(format!("and {more} more"));
    }
    few
}

/// A sentence, cut off where it is too long.
#[must_use]
pub fn short(mut sentence: String) -> String {
    if sentence.len() > LONGEST {
        truncate(&mut sentence, LONGEST);
        sentence.push('…');
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_and_long_they_fit_on_a_line() {
        let many: Vec<String> = (0..1000).map(|each| format!("{each} {}", "\u{1}".repeat(5000))).collect();
        let few = few(many);
        assert_eq!(few.len(), MOST + 1);
        assert!(few[0].starts_with("0 ") && few[0].ends_with('…'));
        assert_eq!(few[MOST], format!("and {} more", 1000 - MOST));
        crate::control::say(std::io::sink(), &few).unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn a_few_are_left_as_they_are() {
        let sentences = vec!["one".to_owned(), "two".to_owned()];
        assert_eq!(few(sentences.clone()), sentences);
    }
}
