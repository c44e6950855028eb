//! The built-in list keeps its own rules.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use cuda_list::{Class, List, Param, Replay, Role, Version, parse_chapter};

fn list() -> List {
    cuda_list::list().unwrap_or_else(|e| panic!("{e}"))
}

fn symbols(list: &List, header: &str) -> Vec<String> {
    list.functions()
        .filter(|(chapter, _)| chapter.header == header)
        .flat_map(|(_, f)| &f.versions)
        .flat_map(|v| {
            std::iter::once(v.symbol.clone()).chain(v.per_thread.as_ref().map(|p| p.symbol.clone()))
        })
        .collect()
}

#[test]
fn cuda_h_of_13_0_declares_634_functions() {
    let list = list();
    let symbols = symbols(&list, "cuda.h");
    assert_eq!(symbols.len(), 634);
    assert_eq!(symbols.iter().collect::<BTreeSet<_>>().len(), 634, "a symbol stands twice");
    assert_eq!(symbols.iter().filter(|s| s.ends_with("_ptsz") || s.ends_with("_ptds")).count(), 97);
}

#[test]
fn annotations_name_parameters_that_exist() {
    for (_, function) in list().functions() {
        let newest = function.versions.last().unwrap();
        let names: BTreeSet<&str> = newest.params.iter().map(|p| p.name.as_str()).collect();
        for version in &function.versions {
            check_counts(version);
        }
        if let Replay::Creates(_, what) = &function.replay {
            let parameter = what.trim_start_matches('*').split('[').next().unwrap();
            assert!(names.contains(parameter), "{}: creates {what}", function.name);
        }
        if let Replay::Destroys(_, what) | Replay::Changes(_, what) = &function.replay {
            let parameter = what.trim_start_matches("of ").split('[').next().unwrap();
            assert!(parameter.is_empty() || names.contains(parameter), "{}: {what}", function.name);
        }
    }
}

fn check_counts(version: &Version) {
    const WORDS: [&str; 5] = ["cstr", "image", "params", "extra", "-"];
    let names: BTreeSet<&str> = version.params.iter().map(|p| p.name.as_str()).collect();
    for Param { name, role, .. } in &version.params {
        let (Role::In(count) | Role::Out(count) | Role::InOut(count)) = role else { continue };
        let cuda_list::Count::Rule(rule) = count else { continue };
        for word in rule.split_whitespace().map(|w| w.trim_start_matches('*')) {
            let known = names.contains(word) || WORDS.contains(&word) || word.parse::<u32>().is_ok();
            assert!(known, "{}: {name}[{rule}]", version.symbol);
        }
    }
}

#[test]
fn per_thread_variants_know_their_stream() {
    for (_, function) in list().functions() {
        for version in function.versions.iter().filter(|v| v.per_thread.is_some()) {
            let streams =
                version.params.iter().filter(|p| p.c_type.base == "CUstream" && p.c_type.depth == 0);
            let marked = version.params.iter().filter(|p| p.role == Role::Stream);
            assert_eq!(streams.count(), marked.count(), "{}: a stream is not marked", version.symbol);
            assert_eq!(
                version.takes_default_stream(),
                !version.params.iter().any(|p| p.role == Role::Stream)
            );
        }
    }
}

#[test]
fn a_function_of_the_client_makes_nothing_that_a_restart_recreates() {
    for (_, function) in list().functions().filter(|(_, f)| f.class == Class::Client) {
        let known = matches!(&function.replay, Replay::Nothing | Replay::Changes(..) | Replay::Creates(..));
        assert!(known, "{}", function.name);
    }
}

#[test]
fn mistakes_are_named_with_their_line() {
    for (text, message) in [
        ("chapter A\nfn cuA\n2000 cuB(int a)", "t.abi:3: the symbol is not a version of this function"),
        ("chapter A\nfn cuA\n2000 cuA(int *a)", "t.abi:3: pointers, and only they"),
        ("chapter A\nfn cuA\n2000 cuA", "t.abi:3: the first version needs parameters"),
        ("chapter A\nfn cuA\n2000 cuA(int a)\n2000 cuA_v2", "t.abi:4: versions stand in the order"),
        ("chapter A\nfn cuA\n2000 cuA(int a)\n7000 cuA_v2_ptsz", "t.abi:4: a per-thread variant follows"),
        ("chapter A\nfn cuA\nclass fast", "t.abi:3: unknown class"),
        ("chapter A\nfn cuA\nunsupported", "t.abi:3: a reason is missing"),
        ("chapter A\nfn cuA\nlimits", "t.abi:3: a limit is missing"),
        ("chapter A\nfn cuA\n2000 cuA(int a,", "a parameter list is not closed"),
        ("chapter A\nfn cuA", "the function above has no version"),
        ("class client", "t.abi:1: stands before the first fn"),
        ("rubbish", "t.abi:1: unknown word"),
        ("enum X", "the chapter has no title"),
    ] {
        let error = parse_chapter(&mut List::default(), "t", text).unwrap_err().to_string();
        assert!(error.contains(message), "{text:?} gave {error}");
    }
}
