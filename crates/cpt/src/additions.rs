//! What passes add to a body.

use ptx::ast::{Body, Guard, Instruction, LabelId, Name, Opcode, Operand};

/// An instruction that no line of the text has.
pub(crate) fn made(opcode: &str, guard: Option<Guard>, operands: Vec<Operand>) -> Instruction {
    Instruction { guard, opcode: Opcode::new(opcode), operands, line: 0 }
}

/// A name in a copy, of the same kind as it is in what is copied.
pub(crate) fn renamed(name: &Name, tag: &str) -> Name {
    let rest = name.trim_start_matches(['%', '$']);
    format!("{}{tag}{rest}", &name[..name.len() - rest.len()]).into()
}

pub(crate) fn push_label(body: &mut Body, name: Name) -> LabelId {
    body.labels.push(name);
    LabelId(body.labels.len() as u32 - 1)
}
