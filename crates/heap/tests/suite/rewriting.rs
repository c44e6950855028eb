//! What becomes of a module.

use crate::KERNELS;

#[test]
fn calls_go_to_ours_and_what_is_made_is_ptx() {
    let mut module = ptx::parse(KERNELS).unwrap();
    assert!(heap::rewrite(&mut module).is_some_and(|kernels| !kernels.is_empty()));
    let text = module.to_string();
    assert!(!text.contains(" malloc") && !text.contains(" free"));
    assert_eq!(ptx::parse(&text).unwrap().to_string(), text);
    assert!(module.variable(heap::VARIABLE).is_some());
    assert!(heap::rewrite(&mut module).is_none(), "it calls neither any more");
}

#[test]
fn who_does_not_allocate_or_has_functions_of_these_names_is_left_alone() {
    let head = ".version 7.0\n.target sm_75\n.address_size 64\n";
    let body = "{\n.reg .b64 %rd<2>;\nmov.b64 %rd1, 0;\nst.param.b64 [r], %rd1;\nret;\n}\n";
    for code in [String::new(), format!(".visible .func (.param .b64 r) malloc(.param .b64 bytes)\n{body}")] {
        let mut module = ptx::parse(&format!("{head}{code}")).unwrap();
        let before = module.clone();
        assert!(heap::rewrite(&mut module).is_none());
        assert_eq!(module, before);
    }
}
