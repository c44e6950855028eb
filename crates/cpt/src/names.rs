//! What functions are called in the program's source.

use cpp_demangle::{DemangleOptions, Symbol};
use std::borrow::Cow;

/// The name of a function in C++, template arguments included and parameters not, where its name in PTX is a mangled one.
#[must_use]
pub fn in_source(name: &str) -> Cow<'_, str> {
    let options = DemangleOptions::new().no_params().no_return_type();
    let demangled = Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok());
    demangled.map_or(Cow::Borrowed(name), Cow::Owned)
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
    }
}
