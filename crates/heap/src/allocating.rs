//! Which kernels may allocate: those from which calls lead to the allocator.

use ptx::ast::{Callee, Function, FunctionKind, Item, Module, Name, Operand};
use std::collections::BTreeSet;

/// The kernels of a module that may come to one of the functions that are `asked` for. Whoever calls a function by its address may.
pub(crate) fn kernels(module: &Module, asked: impl Fn(&str) -> bool) -> BTreeSet<Name> {
    let functions = || {
        module.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    };
    let mut reaching: BTreeSet<Name> = BTreeSet::new();
    loop {
        let reaches = |function: &&Function| {
            callees(function).any(|callee| match callee {
                Callee::Function(name) => asked(name) || reaching.contains(name),
                Callee::Indirect(..) => true,
            })
        };
        let found: BTreeSet<Name> =
            functions().filter(reaches).map(|function| function.name.clone()).collect();
        if found == reaching {
            break;
        }
        reaching = found;
    }
    let kernels = functions().filter(|function| function.kind == FunctionKind::Entry);
    kernels.filter(|kernel| reaching.contains(&kernel.name)).map(|kernel| kernel.name.clone()).collect()
}

fn callees(function: &Function) -> impl Iterator<Item = &Callee> {
    let operands = function.body.iter().flat_map(|body| body.instructions()).flat_map(|each| &each.operands);
    operands.filter_map(|operand| match operand {
        Operand::Call(call) => Some(&call.callee),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn calls_are_followed_and_addresses_may_lead_anywhere() {
        let call = |name: &str| format!("{{\ncall {name};\nret;\n}}\n");
        let code = [
            ".version 7.0\n.target sm_75\n.address_size 64\n.extern .func malloc;\n".to_owned(),
            format!(".func near {}", call("malloc")),
            format!(".func far {}", call("near")),
            format!(".func aside {}", "{\nret;\n}\n"),
            format!(".visible .entry allocates() {}", call("far")),
            format!(".visible .entry computes() {}", call("aside")),
            ".visible .entry asks() {\n.reg .b64 %rd<2>;\nfirst: .callprototype _ ();\ncall %rd1, first;\nret;\n}\n".to_owned(),
        ];
        let module = ptx::parse(&code.concat()).unwrap();
        let found = kernels(&module, |name| name == "malloc");
        assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), ["allocates", "asks"]);
    }
}
