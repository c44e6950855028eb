//! `malloc` and `free` in kernels, from a heap of ours: a pass over PTX.
//!
//! A device library keeps the heap of its kernels to itself, so nobody could save it. [`rewrite()`] has a module call an allocator that it then contains
//! (`allocator.cu`), whose heap is a piece of device memory at an address of our choice, bookkeeping included: what is saved of it is its bytes.
//! [`Layout`] says how large it is and what the module has to be told. (`docs/in-kernel.md`)

#![forbid(unsafe_code)]

mod allocating;
mod layout;

pub use layout::Layout;

use ptx::ast::{Callee, Function, Item, Module, Name, Operand, Statement};
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The variable of a rewritten module that says where the heap is: [`Layout::variable`]. As long as it is zeros, there is no room.
pub const VARIABLE: &str = "__dormouse_heap";

/// What code calls, and what of ours it calls then.
const FUNCTIONS: [(&str, &str); 3] = [
    ("malloc", "__dormouse_malloc"),
    ("__cuda_syscall_aligned_malloc", "__dormouse_aligned_malloc"),
    ("free", "__dormouse_free"),
];

/// What nvcc has made of `allocator.cu`. It needs no more of a device than any that a driver of today knows.
static ALLOCATOR: LazyLock<Module> =
    LazyLock::new(|| ptx::parse(include_str!("allocator.ptx")).expect("the allocator is PTX"));

/// Has a module allocate from a heap of ours, and names the kernels that may; none, and nothing is changed, where it calls neither `malloc` nor `free`, or has functions of its own of these
/// names.
pub fn rewrite(module: &mut Module) -> Option<BTreeSet<Name>> {
    let theirs =
        |(name, _): &&(&str, &str)| module.function(name).is_some_and(|function| function.body.is_none());
    let called: Vec<_> = FUNCTIONS.iter().filter(theirs).collect();
    if called.is_empty() || module.address_size != 64 {
        return None;
    }
    let kernels = allocating::kernels(module, |name| called.iter().any(|(theirs, _)| *theirs == name));
    let ours = |name: &str| called.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
    for item in &mut module.items {
        let Item::Function(function) = item else { continue };
        if let Some(name) = ours(&function.name) {
            *function = declaration(name);
        }
        redirect(function, ours);
    }
    module.items.extend(ALLOCATOR.items.iter().cloned());
    Some(kernels)
}

/// Our function of that name, without its code.
fn declaration(name: &str) -> Function {
    let function = ALLOCATOR.function(name).cloned();
    let function = function.expect("the allocator has it");
    Function { body: None, ..function }
}

/// Has a function's calls go to ours.
fn redirect<'a>(function: &mut Function, ours: impl Fn(&str) -> Option<&'a str>) {
    for statement in function.body.iter_mut().flat_map(|body| &mut body.statements) {
        let Statement::Instruction(instruction) = statement else { continue };
        for operand in &mut instruction.operands {
            if let Operand::Call(call) = operand
                && let Callee::Function(name) = &mut call.callee
                && let Some(ours) = ours(name)
            {
                *name = ours.into();
            }
        }
    }
}
