//! C types of parameters, and the Rust types that the exports give them.

use std::{collections::BTreeSet, fmt};

/// A parameter's type: every one in the headers is a named type behind no, one or two pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CType {
    /// The named type, in words separated by one space.
    pub base: String,
    /// Whether the named type is const.
    pub is_const: bool,
    /// How many pointers.
    pub depth: usize,
}

impl CType {
    /// Reads a declaration such as `const char **name` into type and name; `None` where it is neither.
    pub fn parse_declaration(text: &str) -> Option<(CType, String)> {
        let spaced = text.replace('*', " * ");
        let mut words: Vec<&str> = spaced.split_whitespace().collect();
        let name = words.pop().filter(|w| is_identifier(w))?.to_owned();
        let depth = words.iter().filter(|w| **w == "*").count();
        let is_const = words.first() == Some(&"const");
        let base: Vec<&str> = words.into_iter().filter(|w| *w != "*" && *w != "const").collect();
        let base = match base.as_slice() {
            [] => return None,
            ["unsigned"] => "unsigned int".to_owned(),
            words if words.iter().all(|w| is_identifier(w)) => words.join(" "),
            _ => return None,
        };
        Some((CType { base, is_const, depth }, name))
    }

    /// The Rust type, with driver types taken from `sys`. Enumerations become integers: an application may pass any.
    pub fn rust(&self, enums: &BTreeSet<String>) -> String {
        let base = match self.base.as_str() {
            "void" => "c_void",
            "char" => "c_char",
            "unsigned char" => "c_uchar",
            "unsigned short" => "c_ushort",
            "int" => "c_int",
            "unsigned int" => "c_uint",
            "unsigned long long" => "c_ulonglong",
            "float" => "f32",
            "size_t" => "usize",
            "cuuint32_t" => "u32",
            "cuuint64_t" => "u64",
            name if enums.contains(name) => "c_uint",
            name => return self.pointers(&format!("sys::{name}")),
        };
        self.pointers(base)
    }

    fn pointers(&self, base: &str) -> String {
        (0..self.depth).fold(base.to_owned(), |inner, level| {
            let kind = if level == 0 && self.is_const { "const" } else { "mut" };
            format!("*{kind} {inner}")
        })
    }
}

impl fmt::Display for CType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let constness = if self.is_const { "const " } else { "" };
        write!(f, "{constness}{}", self.base)?;
        if self.depth > 0 { write!(f, " {}", "*".repeat(self.depth)) } else { Ok(()) }
    }
}

fn is_identifier(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn declarations_become_rust_types() {
        let enums = BTreeSet::from(["CUlimit".to_owned()]);
        for (c, rust) in [
            ("const char **name", "*mut *const c_char"),
            ("const void* image", "*const c_void"),
            ("void **pp", "*mut *mut c_void"),
            ("unsigned numChannels", "c_uint"),
            ("CUlimit limit", "c_uint"),
            ("CUcontext *pctx", "*mut sys::CUcontext"),
            ("unsigned long long *flags", "*mut c_ulonglong"),
        ] {
            let (c_type, _) = CType::parse_declaration(c).unwrap();
            assert_eq!(c_type.rust(&enums), rust, "{c}");
        }
    }

    #[test]
    fn what_is_no_declaration_is_refused() {
        for text in ["", "int", "*", "int (*f)(void)", "int a[3]"] {
            assert_eq!(CType::parse_declaration(text), None, "{text:?}");
        }
    }
}
