//! Compares the list with NVIDIA's headers. The headers come in as preprocessed text (`cc -E -P`, with
//! `__CUDA_API_VERSION_INTERNAL` defined, which makes every version visible); running the preprocessor is the
//! caller's.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ctype::CType,
    model::{List, Version},
    parse::base_name,
};

/// Parameters of one function: types, with the names where the text gives them.
type Signature = Vec<(CType, String)>;

/// What the headers declare.
#[derive(Debug, Default)]
pub struct Headers {
    /// Exported symbol → parameters, from `cuda.h` and its siblings.
    functions: BTreeMap<String, Signature>,
    /// Base name, release, `""` or `"_ptsz"` or `"_ptds"` → parameters, from the `PFN_` types of `cudaTypedefs.h`.
    pointers: BTreeMap<(String, u32, String), Signature>,
    /// `typedef OLD NEW;`: NEW → OLD.
    aliases: BTreeMap<String, String>,
    /// Names of enumerations.
    enums: BTreeSet<String>,
}

impl Headers {
    /// Reads preprocessed text: call it for each header.
    pub fn read(&mut self, preprocessed: &str) {
        let mut depth = 0usize;
        let mut statement = String::new();
        for c in preprocessed.chars() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth = depth.saturating_sub(1);
                    statement.push(' ');
                }
                ';' if depth == 0 => {
                    self.statement(&statement);
                    statement.clear();
                }
                _ if depth == 0 => statement.push(c),
                _ => {}
            }
        }
    }

    /// One declaration, the insides of braces left out.
    fn statement(&mut self, text: &str) {
        let text = without_attributes(text);
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["typedef", "enum", .., name] => {
                self.enums.insert((*name).to_owned());
            }
            ["typedef", ..] if text.contains("*PFN_") => self.pointer(&text),
            ["typedef", old, new] => {
                self.aliases.insert((*new).to_owned(), (*old).to_owned());
            }
            ["CUresult", ..] => self.function(&text),
            _ => {}
        }
    }

    fn function(&mut self, text: &str) {
        let Some((head, params)) = text.split_once('(') else { return };
        if let (Some(name), Some(signature)) = (head.split_whitespace().last(), signature(params)) {
            self.functions.insert(name.to_owned(), signature);
        }
    }

    /// `typedef CUresult (*PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize)`.
    fn pointer(&mut self, text: &str) {
        let Some((_, rest)) = text.split_once("PFN_") else { return };
        let Some((name, rest)) = rest.split_once(')') else { return };
        let suffix = ["_ptsz", "_ptds"].into_iter().find(|s| name.ends_with(s)).unwrap_or("");
        let Some((base, since)) = name.trim_end_matches(suffix).rsplit_once("_v") else { return };
        let (Ok(since), Some((_, params))) = (since.parse(), rest.split_once('(')) else { return };
        if let Some(signature) = signature(params) {
            self.pointers.insert((base.to_owned(), since, suffix.to_owned()), signature);
        }
    }

    /// Types under the names that `typedef OLD NEW` starts from; constness of the parameter itself does not matter.
    fn types(&self, signature: &[(CType, String)]) -> Vec<CType> {
        signature.iter().map(|(c_type, _)| self.resolve(c_type)).collect()
    }

    fn resolve(&self, c_type: &CType) -> CType {
        let mut resolved = c_type.clone();
        while let Some(old) = self.aliases.get(&resolved.base) {
            resolved.base.clone_from(old);
        }
        resolved
    }

    /// Every difference between the list and these headers, in words. Empty: they agree.
    pub fn differences(&self, list: &List) -> Vec<String> {
        let mut found = Vec::new();
        let mut symbols = BTreeSet::new();
        let mut pointers = BTreeSet::new();
        for (_, function) in list.functions() {
            for version in &function.versions {
                let signature: Signature =
                    version.params.iter().map(|p| (p.c_type.clone(), p.name.clone())).collect();
                for (symbol, since) in names(version) {
                    self.compare(&mut found, symbol, since, &signature);
                    let suffix = symbol.strip_prefix(version.symbol.as_str()).unwrap_or_default();
                    pointers.insert((function.name.clone(), since, suffix.to_owned()));
                    if !symbols.insert(symbol.to_owned()) {
                        found.push(format!("{symbol} stands in the list twice"));
                    }
                }
            }
        }
        for symbol in self.functions.keys().filter(|s| !symbols.contains(*s)) {
            found.push(format!("{symbol} is missing from the list"));
        }
        for (base, since, suffix) in self.pointers.keys().filter(|p| !pointers.contains(*p)) {
            found.push(format!("PFN_{base}_v{since}{suffix} is missing from the list"));
        }
        self.compare_enums(list, &mut found);
        found
    }

    fn compare(&self, found: &mut Vec<String>, symbol: &str, since: u32, listed: &Signature) {
        match self.functions.get(symbol) {
            None => found.push(format!("{symbol} is in no header")),
            // Names count too, but for those of per-thread variants, which the header does not keep the same.
            Some(declared)
                if self.types(declared) != self.types(listed)
                    || (declared != listed && !is_per_thread(symbol)) =>
            {
                found.push(format!("{symbol}: the header has {}, the list {}", show(declared), show(listed)));
            }
            Some(_) => {}
        }
        let base = base_name(symbol);
        let suffix = ["_ptsz", "_ptds"].into_iter().find(|s| symbol.ends_with(s)).unwrap_or("");
        match self.pointers.get(&(base.to_owned(), since, suffix.to_owned())) {
            None => found.push(format!("{symbol}: there is no PFN_{base}_v{since}{suffix}")),
            Some(pointer) if self.types(pointer) != self.types(listed) => {
                let pointer = show(pointer);
                found.push(format!(
                    "{symbol}: PFN_{base}_v{since}{suffix} has {pointer}, the list {}",
                    show(listed)
                ));
            }
            Some(_) => {}
        }
    }

    /// An enumeration not listed as one would reach the exports as a Rust enum.
    fn compare_enums(&self, list: &List, found: &mut Vec<String>) {
        let is_enum = |name: &str| {
            let c_type = CType { base: name.to_owned(), is_const: false, depth: 0 };
            self.enums.contains(&self.resolve(&c_type).base)
        };
        let used: BTreeSet<&str> = list
            .functions()
            .flat_map(|(_, f)| &f.versions)
            .flat_map(|v| &v.params)
            .map(|p| p.c_type.base.as_str())
            .collect();
        for name in used.iter().filter(|name| is_enum(name) && !list.enums.contains(**name)) {
            found.push(format!("enum {name} is missing from the list"));
        }
        for name in list.enums.iter().filter(|name| !is_enum(name)) {
            found.push(format!("enum {name} is no enumeration in the headers"));
        }
    }
}

/// The symbols of a version, with the release of each.
fn names(version: &Version) -> impl Iterator<Item = (&str, u32)> {
    let per_thread = version.per_thread.as_ref().map(|p| (p.symbol.as_str(), p.since));
    std::iter::once((version.symbol.as_str(), version.since)).chain(per_thread)
}

fn is_per_thread(symbol: &str) -> bool {
    symbol.ends_with("_ptsz") || symbol.ends_with("_ptds")
}

fn signature(params: &str) -> Option<Signature> {
    let params = params.trim().strip_suffix(')')?.trim();
    if params.is_empty() || params == "void" {
        return Some(Vec::new());
    }
    params.split(',').map(CType::parse_declaration).collect()
}

fn show(signature: &Signature) -> String {
    let params: Vec<String> = signature.iter().map(|(c_type, name)| format!("{c_type} {name}")).collect();
    format!("({})", params.join(", "))
}

/// `__attribute__((…))` carries no type.
fn without_attributes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("__attribute__") {
        out.push_str(before);
        let mut depth = 0usize;
        let end = after.find(|c| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ')' && depth == 0
        });
        rest = end.and_then(|end| after.get(end + 1..)).unwrap_or_default();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::parse_chapter;

    const HEADER: &str = "
        typedef unsigned long long CUdeviceptr_v2;
        typedef CUdeviceptr_v2 CUdeviceptr;
        typedef enum CUlimit_enum { A = 0, B = 1 } CUlimit;
        CUresult cuMemFree_v2(CUdeviceptr dptr);
        __attribute__((deprecated)) CUresult cuCtxSetLimit(CUlimit limit, size_t value);
        typedef CUresult ( *PFN_cuMemFree_v3020)(CUdeviceptr_v2 dptr);
        typedef CUresult ( *PFN_cuCtxSetLimit_v3010)(CUlimit limit, size_t value);
    ";

    fn differences(list_text: &str) -> Vec<String> {
        let mut headers = Headers::default();
        headers.read(HEADER);
        let mut list = List::default();
        parse_chapter(&mut list, "test", &format!("chapter Test\nenum CUlimit\n{list_text}")).unwrap();
        headers.differences(&list)
    }

    const RIGHT: &str = "
        fn cuMemFree
        3020 cuMemFree_v2(CUdeviceptr dptr)
        fn cuCtxSetLimit
        3010 cuCtxSetLimit(CUlimit limit, size_t value)";

    #[test]
    fn a_right_list_has_no_differences() {
        assert_eq!(differences(RIGHT), [] as [String; 0]);
    }

    #[test]
    fn every_kind_of_mistake_is_found() {
        let missing = "fn cuMemFree\n3020 cuMemFree_v2(CUdeviceptr dptr)";
        assert!(differences(missing).iter().any(|d| d == "cuCtxSetLimit is missing from the list"));
        for (right, wrong, message) in [
            ("size_t value", "int value", "the header has"),
            ("3010", "3000", "there is no PFN_cuCtxSetLimit_v3000"),
            ("CUlimit limit, size_t value", "CUlimit limit", "the header has"),
            ("cuMemFree_v2", "cuMemFree_v3", "is in no header"),
        ] {
            let found = differences(&RIGHT.replace(right, wrong));
            assert!(found.iter().any(|d| d.contains(message)), "{wrong}: {found:?}");
        }
    }
}
