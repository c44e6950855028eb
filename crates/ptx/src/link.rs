//! Several modules made one, as a linker does: what one declares and another defines becomes the same thing.

mod names;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ast::{Function, FunctionKind, Item, Linkage, Module, Name, Statement, Variable};

/// Why modules cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There are none.
    #[error("there is nothing to link")]
    Nothing,
    /// Two definitions of one name.
    #[error("{0} is defined twice")]
    Twice(Name),
    /// A kernel of one module's own, by whose name another has something, too.
    #[error(
        "the kernel {0} is internal to one module and defined by another too; give one of them another name"
    )]
    Internal(Name),
    /// Nobody defines what somebody uses.
    #[error("{0} is declared and nowhere defined")]
    Undefined(Name),
}

/// A definition, and which module it is of.
struct Definition {
    unit: usize,
    linkage: Linkage,
}

/// Functions that the device itself has.
const BUILT_IN: [&str; 7] = [
    "vprintf",
    "malloc",
    "free",
    "__cuda_syscall_aligned_malloc",
    "__assertfail",
    "cudaLaunchDeviceV2",
    "cudaGetParameterBufferV2",
];

/// Makes one module of several. Of debugging information only lines are left.
///
/// # Errors
/// [`LinkError`].
pub fn link(mut units: Vec<Module>) -> Result<Module, LinkError> {
    tell_apart(&mut units);
    let mut files = 0u32;
    for unit in &mut units {
        files = files.saturating_add(renumber_files(unit, files));
    }
    let mut definitions: BTreeMap<Name, Definition> = BTreeMap::new();
    for (unit, module) in units.iter().enumerate() {
        for (name, linkage) in module.items.iter().filter_map(defined) {
            define(&mut definitions, name, Definition { unit, linkage })?;
        }
    }
    let version = units.iter().map(|unit| unit.version).max().ok_or(LinkError::Nothing)?;
    let newest = units.iter().max_by_key(|unit| unit.target.sm()).ok_or(LinkError::Nothing)?;
    let (target, address_size) = (newest.target.clone(), newest.address_size);
    // What functions are called comes before what variables may hold the addresses of, and that before the code.
    let (mut declarations, mut variables, mut rest) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (unit, module) in units.into_iter().enumerate() {
        for item in module.items {
            match item {
                Item::Section(_) => {}
                Item::Variable(variable) if is_dynamic_shared(&variable) => {
                    if !variables.contains(&Item::Variable(variable.clone())) {
                        variables.push(Item::Variable(variable));
                    }
                }
                Item::Variable(variable) => match definitions.get(&variable.name) {
                    Some(known) if variable.linkage != Linkage::Extern => {
                        if known.unit == unit {
                            variables.push(Item::Variable(variable));
                        }
                    }
                    Some(_) => {}
                    None => return Err(LinkError::Undefined(variable.name)),
                },
                Item::Function(function) if function.body.is_none() => {
                    declare(&mut declarations, &definitions, function)?;
                }
                Item::Function(function) => {
                    if definitions.get(&function.name).is_some_and(|known| known.unit == unit) {
                        rest.push(Item::Function(function));
                    }
                }
                other => rest.push(other),
            }
        }
    }
    let declarations = declarations.into_values().map(Item::Function);
    let items = declarations.chain(variables).chain(rest).collect();
    Ok(Module { version, target, address_size, items })
}

/// Gives what is a module's own another name where another module defines something of the same (strings are `$str` in each that nvcc makes). Kernels keep theirs, which programs know.
fn tell_apart(units: &mut [Module]) {
    let mut known: BTreeMap<Name, usize> = BTreeMap::new();
    for (name, _) in units.iter().flat_map(|unit| unit.items.iter().filter_map(defined)) {
        *known.entry(name.clone()).or_default() += 1;
    }
    for (number, unit) in units.iter_mut().enumerate() {
        let own = unit.items.iter().filter(|item| !is_kernel(item)).filter_map(defined);
        let common = own.filter(|(name, linkage)| *linkage == Linkage::Internal && known[*name] > 1);
        let common: BTreeSet<Name> = common.map(|(name, _)| name.clone()).collect();
        if !common.is_empty() {
            names::visit(unit, &mut |name| {
                if common.contains(name) {
                    *name = format!("{name}$unit{number}").into();
                }
            });
        }
    }
}

fn is_kernel(item: &Item) -> bool {
    matches!(item, Item::Function(function) if function.kind == FunctionKind::Entry)
}

/// Has a module's files come behind so many others; how many numbers it takes. The names of functions that were inlined are in sections, which are left out.
fn renumber_files(unit: &mut Module, before: u32) -> u32 {
    let mut most = 0;
    for item in &mut unit.items {
        match item {
            Item::File(file) => {
                most = most.max(file.index);
                file.index = file.index.saturating_add(before);
            }
            Item::Function(function) => {
                for statement in function.body.iter_mut().flat_map(|body| &mut body.statements) {
                    if let Statement::Loc(loc) = statement {
                        loc.file = loc.file.saturating_add(before);
                        loc.inlined_at = None;
                    }
                }
            }
            _ => {}
        }
    }
    most
}

/// The name and linkage of what an item defines.
fn defined(item: &Item) -> Option<(&Name, Linkage)> {
    match item {
        Item::Variable(variable) if variable.linkage != Linkage::Extern => {
            Some((&variable.name, variable.linkage))
        }
        Item::Function(function) if function.body.is_some() => Some((&function.name, function.linkage)),
        _ => None,
    }
}

/// `extern .shared x[]`: the memory that a launch gives, which nobody defines.
fn is_dynamic_shared(variable: &Variable) -> bool {
    variable.linkage == Linkage::Extern && variable.space == crate::ast::Space::Shared
}

fn define(
    definitions: &mut BTreeMap<Name, Definition>,
    name: &Name,
    new: Definition,
) -> Result<(), LinkError> {
    let Some(known) = definitions.get_mut(name) else {
        definitions.insert(name.clone(), new);
        return Ok(());
    };
    let may_yield = |linkage| matches!(linkage, Linkage::Weak | Linkage::Common);
    match (known.linkage, new.linkage) {
        (Linkage::Internal, _) | (_, Linkage::Internal) => Err(LinkError::Internal(name.clone())),
        (_, linkage) if may_yield(linkage) => Ok(()),
        (linkage, _) if may_yield(linkage) => {
            *known = new;
            Ok(())
        }
        _ => Err(LinkError::Twice(name.clone())),
    }
}

/// A declaration of what is defined here is one of that definition.
fn declare(
    declarations: &mut BTreeMap<Name, Function>,
    definitions: &BTreeMap<Name, Definition>,
    mut function: Function,
) -> Result<(), LinkError> {
    match definitions.get(&function.name) {
        Some(known) => function.linkage = known.linkage,
        None if BUILT_IN.contains(&&*function.name) => {}
        None => return Err(LinkError::Undefined(function.name)),
    }
    declarations.entry(function.name.clone()).or_insert(function);
    Ok(())
}
