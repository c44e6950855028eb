//! The names in a module that a linker has to do with.

use crate::ast::{
    Address, AddressBase, Body, Callee, Item, Module, Name, Operand, Statement, Symbol, Variable,
};

/// Calls `visit` with each, wherever it is declared, defined or used.
pub(super) fn visit(module: &mut Module, visit: &mut impl FnMut(&mut Name)) {
    for item in &mut module.items {
        match item {
            Item::Variable(variable) => of_variable(variable, visit),
            Item::Function(function) => {
                visit(&mut function.name);
                function.body.iter_mut().for_each(|body| of_body(body, visit));
            }
            Item::Alias(alias) => {
                visit(&mut alias.name);
                visit(&mut alias.target);
            }
            Item::File(_) | Item::Section(_) | Item::Pragma(_) => {}
        }
    }
}

fn of_variable(variable: &mut Variable, visit: &mut impl FnMut(&mut Name)) {
    visit(&mut variable.name);
    of_contents(variable, visit);
}

fn of_contents(variable: &mut Variable, visit: &mut impl FnMut(&mut Name)) {
    let relocations = variable.init.iter_mut().flat_map(|init| &mut init.relocations);
    relocations.for_each(|relocation| visit(&mut relocation.symbol));
}

fn of_body(body: &mut Body, visit: &mut impl FnMut(&mut Name)) {
    // What a body declares is its own.
    body.locals.iter_mut().for_each(|local| of_contents(local, visit));
    body.call_tables.iter_mut().flat_map(|table| &mut table.functions).for_each(&mut *visit);
    for statement in &mut body.statements {
        if let Statement::Instruction(instruction) = statement {
            instruction.operands.iter_mut().for_each(|operand| of_operand(operand, visit));
        }
    }
}

fn of_operand(operand: &mut Operand, visit: &mut impl FnMut(&mut Name)) {
    match operand {
        Operand::Symbol(Symbol::Module(name), _) => visit(name),
        Operand::Address(address) => of_address(address, visit),
        Operand::Indexed { base, sampler, coordinates } => {
            of_address(base, visit);
            sampler.iter_mut().for_each(|sampler| of_address(sampler, visit));
            coordinates.iter_mut().for_each(|operand| of_operand(operand, visit));
        }
        Operand::Vector(operands) => operands.iter_mut().for_each(|operand| of_operand(operand, visit)),
        Operand::Pair(pair) => {
            of_operand(&mut pair.0, visit);
            of_operand(&mut pair.1, visit);
        }
        Operand::Call(call) => {
            if let Callee::Function(name) = &mut call.callee {
                visit(name);
            }
            call.returns.iter_mut().chain(&mut call.arguments).for_each(|operand| of_operand(operand, visit));
        }
        Operand::Reg(_)
        | Operand::Not(_)
        | Operand::Part(..)
        | Operand::Special(_)
        | Operand::Imm(_)
        | Operand::Symbol(..)
        | Operand::Sink
        | Operand::Label(_)
        | Operand::BranchTable(_) => {}
    }
}

fn of_address(address: &mut Address, visit: &mut impl FnMut(&mut Name)) {
    if let AddressBase::Symbol(Symbol::Module(name)) = &mut address.base {
        visit(name);
    }
}
