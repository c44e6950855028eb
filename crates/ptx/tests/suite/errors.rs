//! What is refused, where, and in which words.
#![allow(clippy::unwrap_used, missing_docs)]

use ptx::parse;

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn error(body: &str) -> String {
    parse(&format!("{HEAD}{body}")).unwrap_err().to_string()
}

fn in_body(statements: &str) -> String {
    let body =
        format!(".visible .entry k(.param .u64 p) {{ .reg .b32 %r<4>; .reg .pred %p<2>;\n{statements}\n}}");
    error(&body)
}

#[test]
fn heads() {
    let refuse = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(
        refuse(""),
        "PTX line 1, column 1: expected `.version`, with which PTX begins, found the end of the text"
    );
    assert_eq!(
        refuse("\n  int main"),
        "PTX line 2, column 3: expected `.version`, with which PTX begins, found `int`"
    );
    assert_eq!(
        refuse(".version 99.1 .target sm_10"),
        "PTX line 1, column 10: PTX ISA 99.1 is newer than this version knows (up to 9.3)"
    );
    assert_eq!(
        refuse(".version 8.0\n.target sm_80\n.address_size 48"),
        "PTX line 3, column 15: expected 32 or 64, found `48`"
    );
    assert_eq!(refuse("\u{1}"), "PTX line 1, column 1: unexpected character '\\u{1}'");
    assert_eq!(refuse(".version 8.0 /* never closed"), "PTX line 1, column 14: comment without end");
}

#[test]
fn modules() {
    assert_eq!(
        error(".global .u32 x"),
        "PTX line 4, column 15: expected `,`, `=` or `;` after a variable, found the end of the text"
    );
    assert_eq!(error(".global .align 3 .u32 x;"), "PTX line 4, column 16: number `3` is out of range");
    assert_eq!(
        error(".global .u32 x[2] = {1, 2, 3};"),
        "PTX line 4, column 28: initialiser does not fit into the variable"
    );
    assert_eq!(error(".global .u64 x = y;"), "PTX line 4, column 18: `y` is not declared");
    assert_eq!(
        error(".global .pred x = 1;"),
        "PTX line 4, column 19: initialiser does not fit into the variable"
    );
    assert_eq!(
        error(".visible .file 1 \"a\""),
        "PTX line 4, column 10: expected a function or a variable after its linkage, found `.file`"
    );
    assert_eq!(error(".section .debug_str { .b8 1"), "PTX line 4, column 22: section without end");
    assert!(
        error(".global .u32 x[2][4000000000000] = {{}, {1}};").contains("bytes left out of initialisers")
    );
    assert!(error(".global .u32 x[9999999999][9999999999] = {{1}};").contains("initialiser does not fit"));
}

#[test]
fn bodies() {
    assert_eq!(in_body("add.s32 %r1, %r9, 1;"), "PTX line 5, column 14: `%r9` is not declared");
    assert_eq!(in_body("bra NOWHERE;"), "PTX line 5, column 5: label `NOWHERE` is not defined in this scope");
    assert_eq!(
        in_body("{ INNER: }\nbra INNER;"),
        "PTX line 6, column 5: label `INNER` is not defined in this scope"
    );
    assert_eq!(in_body("A: A: ret;"), "PTX line 5, column 4: `A` is declared twice in one scope");
    assert_eq!(in_body(".reg .b32 x, x;"), "PTX line 5, column 14: `x` is declared twice in one scope");
    assert_eq!(
        in_body("mov.u32 %r1, %tid.q;"),
        "PTX line 5, column 18: expected a component of the special register, found `.q`"
    );
    assert_eq!(
        in_body("add.s32 %r1, %r2"),
        "PTX line 6, column 1: expected `,` or `;` after an operand, found `}`"
    );
    assert_eq!(in_body("@5 ret;"), "PTX line 5, column 2: expected a predicate register, found `5`");
    assert_eq!(in_body("call nothing;"), "PTX line 5, column 6: `nothing` is not declared");
    assert_eq!(
        in_body("call %r1, (%r2);"),
        "PTX line 5, column 16: expected the prototype or targets of an indirect call, found `;`"
    );
    assert_eq!(in_body("mov.u32 %r1, 1/0;"), "PTX line 5, column 15: constant expression divides by zero");
    assert_eq!(
        in_body("mov.u32 %r1, 18446744073709551616;"),
        "PTX line 5, column 14: number `18446744073709551616` is out of range"
    );
    assert!(
        in_body("{".repeat(100_000).as_str()).ends_with("nested scopes: more than the 64 that are accepted")
    );
    assert!(in_body(&format!("mov.u32 %r1, {}", "x".repeat(1000))).len() < 200, "messages are short");
}
