//! What functions are called in the program's source.

use cpp_demangle::{DemangleOptions, Symbol};
use std::borrow::Cow;
use std::fmt;

/// The longest name that is told, bytes: a short mangled one may stand for one without end.
const LONGEST: usize = 300;

/// The name of a function in C++, template arguments included and parameters not, where its name in PTX is a mangled one, and the other is not too long.
#[must_use]
pub fn in_source(name: &str) -> Cow<'_, str> {
    let options = DemangleOptions::new().no_params().no_return_type();
    let mut short = Short(String::new());
    let demangled =
        Symbol::new(name).is_ok_and(|symbol| symbol.structured_demangle(&mut short, &options).is_ok());
    if demangled { Cow::Owned(short.0) } else { Cow::Borrowed(name) }
}

struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (mangled, source) in [
            ("_Z6solverPfi", "solver"),
            ("_Z7advanceIfLi4EEvPT_i", "advance<float, 4>"),
            ("_ZN12_GLOBAL__N_14stepEPKj", "(anonymous namespace)::step"),
            ("plain", "plain"),
            ("_Z", "_Z"),
            ("_Z9nonsense", "_Z9nonsense"),
        ] {
            assert_eq!(in_source(mangled), source);
        }
        // Each of so many pairs has the one before in it.
        let pairs = (0..30).fold("St4pairIiiE".to_owned(), |inner, _| format!("St4pairI{inner}iE"));
        let long = format!("_Z1fI{pairs}EvT_");
        assert_eq!(in_source(&long), long);
    }
}
