//! Whatever the text, the parser answers; whatever it accepts, printing keeps.
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common::{FILES, without_lines};
use proptest::prelude::*;
use ptx::{Cfg, Liveness, parse};

/// Parses; where that works, everything else has to.
fn exercise(text: &str) -> Result<(), TestCaseError> {
    let Ok(module) = parse(text) else { return Ok(()) };
    let module = without_lines(module);
    let printed = module.to_string();
    let again = parse(&printed).map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))?;
    let again = without_lines(again);
    if let Some((left, right)) = again.items.iter().zip(&module.items).find(|(left, right)| left != right) {
        return Err(TestCaseError::fail(format!("printed as\n{right}\nread as\n{left}")));
    }
    prop_assert_eq!(again.items.len(), module.items.len());
    for function in module.definitions() {
        let body = function.body.as_ref().unwrap();
        let cfg = Cfg::new(body).unwrap();
        let covered: usize = cfg.blocks.iter().map(|block| block.statements.len()).sum();
        prop_assert_eq!(covered, body.statements.len());
        Liveness::new(body, &cfg).unwrap();
        let _ = function.param_layout();
    }
    for variable in module.variables() {
        let _ = (variable.size(), variable.alignment());
    }
    Ok(())
}

/// Words, numbers, strings and single characters of the test data.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
        let length = match word(first) {
            true => rest.find(|c| !word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = &rest[length..];
    }
    tokens
}

/// A file of the test data in which some tokens are dropped, doubled, or replaced by others of any file.
fn mutated() -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), 0..4u8, any::<prop::sample::Index>(), 0..FILES.len());
    (0..FILES.len(), prop::collection::vec(edit, 1..6)).prop_map(|(file, edits)| {
        let mut text = tokens(FILES[file].1);
        for (at, kind, other, other_file) in edits {
            let at = at.index(text.len());
            let donor = tokens(FILES[other_file].1);
            match kind {
                0 if text.len() > 1 => drop(text.remove(at)),
                1 => text.insert(at, text[at]),
                2 => text[at] = donor[other.index(donor.len())],
                _ => text.truncate(at.max(1)),
            }
        }
        text.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_is_answered(text in any::<String>()) {
        exercise(&text)?;
        exercise(&format!(".version 8.0 .target sm_80 .address_size 64 .func f() {{ .reg .b32 %r<9>; {text} }}"))?;
    }

    #[test]
    fn arbitrary_tokens_are_answered(text in "([.]global|[.]b32|x|[{]|[}]|[(]|[)]|\\[|\\]|[,;=:@!|+-]|[0-9]| ){0,64}") {
        exercise(&format!(".version 8.0 .target sm_80 .address_size 64 {text}"))?;
    }

    #[test]
    fn mutated_files_are_answered_or_kept(text in mutated()) {
        exercise(&text)?;
    }
}
