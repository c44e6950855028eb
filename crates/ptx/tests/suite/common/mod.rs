//! What several tests share.

use ptx::ast::{Item, Module, Statement};

/// Every PTX file of the test data: name and text.
pub const FILES: &[(&str, &str)] = &[
    ("syntax", include_str!("../../data/syntax.ptx")),
    ("initialisers", include_str!("../../data/initialisers.ptx")),
    ("sm90", include_str!("../../data/sm90.ptx")),
    ("kernels", include_str!("../../data/kernels.ptx")),
    ("kernels-lineinfo", include_str!("../../data/kernels-lineinfo.ptx")),
    ("kernels-debug", include_str!("../../data/kernels-debug.ptx")),
];

/// The module without what printing cannot keep: the lines of the text that instructions came from.
pub fn without_lines(mut module: Module) -> Module {
    for item in &mut module.items {
        let Item::Function(function) = item else { continue };
        for statement in function.body.iter_mut().flat_map(|body| &mut body.statements) {
            if let Statement::Instruction(instruction) = statement {
                instruction.line = 0;
            }
        }
    }
    module
}
