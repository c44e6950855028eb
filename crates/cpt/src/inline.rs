//! Functions that have markers, put into the kernels that call them.

mod copy;

use std::collections::{BTreeMap, BTreeSet};

use ptx::ast::{Body, Callee, Function, Module, Name, Operand};

use self::copy::Copies;
use crate::marker::is_marked;
use crate::refusal::Refused;

/// The functions and kernels of a module that have markers, or call functions that do.
pub(crate) fn marked(module: &Module) -> BTreeSet<Name> {
    let mut callers: BTreeMap<&Name, Vec<&Name>> = BTreeMap::new();
    for function in module.definitions() {
        for callee in function.body.iter().flat_map(called_by_name) {
            callers.entry(callee).or_default().push(&function.name);
        }
    }
    let mut ahead: Vec<&Name> =
        module.functions().filter(|function| is_marked(function)).map(|function| &function.name).collect();
    let mut found = BTreeSet::new();
    while let Some(name) = ahead.pop() {
        if found.insert(name.clone()) {
            ahead.extend(callers.get(name).into_iter().flatten());
        }
    }
    found
}

/// The functions that a kernel comes to by name.
pub(crate) fn reached(module: &Module) -> BTreeSet<Name> {
    let bodies: BTreeMap<&Name, &Body> =
        module.definitions().filter_map(|function| Some((&function.name, function.body.as_ref()?))).collect();
    let mut ahead: Vec<&Body> = module.kernels().filter_map(|kernel| kernel.body.as_ref()).collect();
    let mut found = BTreeSet::new();
    while let Some(body) = ahead.pop() {
        for name in called_by_name(body) {
            if found.insert(name.clone()) {
                ahead.extend(bodies.get(name));
            }
        }
    }
    found
}

fn called_by_name(body: &Body) -> impl Iterator<Item = &Name> {
    body.instructions().flat_map(|instruction| &instruction.operands).filter_map(|operand| match operand {
        Operand::Call(call) => match &call.callee {
            Callee::Function(name) => Some(name),
            Callee::Indirect(..) => None,
        },
        _ => None,
    })
}

/// A kernel in which no marker is in a function that is called.
pub(crate) fn inlined(
    module: &Module,
    kernel: &Function,
    marked: &BTreeSet<Name>,
    tag: &str,
) -> Result<Function, Refused> {
    let Some(body) = &kernel.body else { return Ok(kernel.clone()) };
    if !called_by_name(body).any(|name| marked.contains(name)) {
        return Ok(kernel.clone());
    }
    let mut made = kernel.clone();
    made.body = Some(Copies::new(module, marked, tag).of_kernel(kernel, body)?);
    Ok(made)
}
