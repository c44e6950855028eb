//! Text is refused or understood; what is understood prints to text that means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx::{Cfg, Liveness};

fuzz_target!(|text: &str| {
    let Ok(module) = ptx::parse(text) else { return };
    let printed = module.to_string();
    let again = ptx::parse(&printed).expect("what was printed parses");
    assert_eq!(again.to_string(), printed);
    for body in module.definitions().filter_map(|function| function.body.as_ref()) {
        if let Ok(cfg) = Cfg::new(body) {
            let _ = Liveness::new(body, &cfg);
        }
    }
});
