//! What the pass makes of small kernels, as it was when somebody last looked: `tests/golden`. `DORMOUSE_BLESS=1 cargo test -p cpt golden` writes what it makes
//! now, to be looked at.

use std::fs;
use std::path::{Path, PathBuf};

/// Kernels in a folder, by name.
fn kernels(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut kernels: Vec<_> = all.filter(|path| path.extension().is_some_and(|kind| kind == "ptx")).collect();
    kernels.sort();
    assert!(!kernels.is_empty());
    kernels
}

/// Compares what is made of each kernel with the file beside it, which has a name that ends so.
fn compare(folder: &str, ending: &str, made: impl Fn(&ptx::ast::Module) -> String) {
    let mut differ = Vec::new();
    for path in kernels(folder) {
        let module = ptx::parse(&fs::read_to_string(&path).unwrap());
        let found = made(&module.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        let kept = path.with_extension(ending);
        if std::env::var_os("DORMOUSE_BLESS").is_some() {
            fs::write(&kept, &found).unwrap();
        } else if fs::read_to_string(&kept).unwrap_or_default() != found {
            differ.push(format!("{}:\n{found}", path.display()));
        }
    }
    assert!(differ.is_empty(), "not as blessed (DORMOUSE_BLESS=1 writes it anew): {}", differ.join("\n"));
}

#[test]
fn what_is_made_of_a_kernel() {
    compare("made", "txt", |module| {
        let rewritten = cpt::rewrite(module).unwrap().unwrap();
        assert_eq!(rewritten.refusals, []);
        rewritten.text
    });
}

#[test]
fn what_is_said_of_one_that_is_refused() {
    compare("refused", "txt", |module| {
        let rewritten = cpt::rewrite(module).unwrap().unwrap();
        assert!(rewritten.kernels.is_empty(), "{:?}", rewritten.kernels);
        rewritten.refusals.iter().map(|refusal| format!("{refusal}\n")).collect()
    });
}

#[test]
fn what_each_kind_of_poll_is() {
    for kind in ["every", "count:8", "adaptive", "barrier"] {
        compare("polls", &format!("{}.txt", kind.replace(':', "")), |module| {
            let rewritten = cpt::rewrite_with(module, kind.parse().unwrap()).unwrap().unwrap();
            // The rest is as of all kernels.
            let from = rewritten.text.find("$cpt_begun").unwrap();
            let to = rewritten.text.find("$cpt_done:").unwrap();
            rewritten.text[from..to].to_owned()
        });
    }
}

#[test]
fn kinds_of_polls_have_names() {
    assert_eq!("count:200".parse(), Ok(cpt::Poll::Counted(200)));
    for wrong in ["", "count", "count:0", "count:65537", "count:-1", "Every"] {
        assert_eq!(wrong.parse::<cpt::Poll>(), Err(cpt::UnknownPoll), "{wrong}");
    }
}
