//! Where a module's variables lie, and what they hold at first.

use std::collections::HashMap;

use ptx::ast::{self, FunctionKind, Linkage, Relocation, Space, Variable};

use super::ModuleError;
use crate::lower::{Env, SymbolHome, is_dynamic_shared, lay_out, shared_locals};
use crate::memory::{RESERVED_SHARED, SHARED_WINDOW};

/// Alignment of a module's memory, and unit of its size.
pub const GRANULARITY: u64 = 4096;

/// A module's variables.
pub struct Layout<'a> {
    /// In global and constant memory, with their offsets.
    placed: Vec<(&'a Variable, u64)>,
    bytes: u64,
    /// In managed memory, or where they are named, with their addresses: others see to what they hold.
    elsewhere: Vec<(&'a Variable, u64)>,
    /// In shared memory and used by more than one function, with their offsets.
    shared: Vec<(&'a Variable, u64)>,
    shared_end: u64,
}

fn too_large(what: &str) -> ModuleError {
    ModuleError::Refused(format!("the module's {what} variables are larger than any memory"))
}

impl<'a> Layout<'a> {
    /// Lays out all variables of a module, those declared inside functions included, those in managed memory where `named` says, and all others that it
    /// names if it is `as_named`.
    ///
    /// # Errors
    /// When they cannot fit, or are of a kind that the device has not; when one in managed memory is nowhere.
    pub fn new(tree: &'a ast::Module, named: &[(&str, u64)], as_named: bool) -> Result<Self, ModuleError> {
        let inner = || tree.definitions().filter_map(|f| f.body.as_ref()).flat_map(|body| &body.locals);
        let in_memory = |v: &&Variable| {
            matches!(v.space, Space::Global | Space::Const)
                && v.linkage != Linkage::Extern
                && v.size() != Some(0)
        };
        let variables: Vec<_> = tree.variables().chain(inner()).filter(in_memory).collect();
        if let Some(opaque) = variables.iter().find(|v| v.ty.is_opaque()) {
            return Err(ModuleError::Refused(format!(
                "{}: textures and surfaces are not supported",
                opaque.name
            )));
        }
        let is_named = |v: &Variable| named.iter().any(|(name, _)| v.name.as_str() == *name);
        let (elsewhere, variables): (Vec<_>, Vec<_>) =
            variables.into_iter().partition(|v| v.is_managed() || as_named && is_named(v));
        let address = |variable: &'a Variable| {
            let found = named.iter().find(|(name, _)| variable.name.as_str() == *name);
            let missing = || format!("the variable {} in managed memory has no address", variable.name);
            found.map(|(_, address)| (variable, *address)).ok_or_else(|| ModuleError::Refused(missing()))
        };
        let elsewhere = elsewhere.into_iter().map(address).collect::<Result<_, _>>()?;
        let (offsets, bytes) = lay_out(variables.iter().copied(), 0).ok_or_else(|| too_large("global"))?;
        let of_functions = tree.definitions().filter(|f| f.kind == FunctionKind::Func);
        let of_functions = of_functions.filter_map(|f| f.body.as_ref()).flat_map(shared_locals);
        let of_module = tree.variables().filter(|v| v.space == Space::Shared && !is_dynamic_shared(v));
        let shared: Vec<_> = of_module.chain(of_functions).collect();
        let (shared_offsets, shared_end) =
            lay_out(shared.iter().copied(), RESERVED_SHARED).ok_or_else(|| too_large("shared"))?;
        Ok(Self {
            placed: variables.into_iter().zip(offsets).collect(),
            bytes,
            elsewhere,
            shared: shared.into_iter().zip(shared_offsets).collect(),
            shared_end,
        })
    }

    /// Bytes of global and constant memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address and size of what lies where it is named, in the device's own memory.
    pub fn as_named(&self) -> impl Iterator<Item = (u64, u64)> {
        let own = self.elsewhere.iter().filter(|(v, _)| !v.is_managed());
        own.map(|(v, address)| (*address, v.size().unwrap_or(0)))
    }

    /// Address and size of each variable that has a name outside.
    pub fn variables(&self, base: u64) -> HashMap<String, (u64, u64)> {
        let placed = self.placed.iter().map(|(v, offset)| (*v, base + offset));
        let all = placed.chain(self.elsewhere.iter().copied());
        all.map(|(v, address)| (v.name.to_string(), (address, v.size().unwrap_or(0)))).collect()
    }

    /// Bytes of constant memory, for `CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES`.
    pub fn constant_bytes(&self) -> u64 {
        self.placed.iter().filter(|(v, _)| v.space == Space::Const).filter_map(|(v, _)| v.size()).sum()
    }

    /// Shared memory of a kernel: offset of the first variable of its own body, and the end of the last.
    pub fn kernel_shared(&self, tree: &ast::Module, kernel: &ast::Function) -> Option<(u64, u64)> {
        let start = self.shared_start(tree, kernel);
        let (_, end) = lay_out(kernel.body.iter().flat_map(shared_locals), start)?;
        Some((start, end))
    }

    /// Shared variables that several functions use lie at the start, in kernels that call anything or name one of them.
    fn shared_start(&self, tree: &ast::Module, kernel: &ast::Function) -> u64 {
        let Some(body) = kernel.body.as_ref().filter(|_| !self.shared.is_empty()) else {
            return RESERVED_SHARED;
        };
        let outer: Vec<&str> = self.shared.iter().map(|(v, _)| v.name.as_str()).collect();
        let calls = tree.definitions().any(|f| f.kind == FunctionKind::Func) && uses(body, |_| false, true);
        if calls || uses(body, |name| outer.contains(&name), false) {
            self.shared_end
        } else {
            RESERVED_SHARED
        }
    }

    /// What functions are lowered with.
    pub fn env(&self, tree: &'a ast::Module, base: u64) -> Env<'a> {
        let mut variables: HashMap<&str, SymbolHome> = HashMap::new();
        for (variable, offset) in &self.placed {
            variables.insert(variable.name.as_str(), SymbolHome::Absolute(base + offset));
        }
        for (variable, address) in &self.elsewhere {
            variables.insert(variable.name.as_str(), SymbolHome::Absolute(*address));
        }
        for (variable, offset) in &self.shared {
            variables.insert(variable.name.as_str(), SymbolHome::Shared(*offset));
        }
        for variable in tree.variables().filter(|v| is_dynamic_shared(v)) {
            variables.insert(variable.name.as_str(), SymbolHome::DynamicShared);
        }
        let mut shared_base = HashMap::new();
        let mut functions = HashMap::new();
        for (index, function) in tree.definitions().enumerate() {
            functions.insert(function.name.as_str(), index);
            let own = function.body.as_ref().and_then(|body| shared_locals(body).next());
            let start = match (function.kind, own) {
                (FunctionKind::Entry, _) => self.kernel_shared(tree, function).map(|(start, _)| start),
                (_, Some(first)) => {
                    self.shared.iter().find(|(v, _)| std::ptr::eq(*v, first)).map(|(_, at)| *at)
                }
                (_, None) => None,
            };
            shared_base.insert(function.name.as_str(), start.unwrap_or(0));
        }
        for item in &tree.items {
            if let ast::Item::Alias(alias) = item
                && let Some(index) = functions.get(alias.target.as_str()).copied()
            {
                functions.insert(alias.name.as_str(), index);
            }
        }
        let mut signatures: HashMap<&str, &ast::Function> = HashMap::new();
        for function in tree.functions() {
            let known = signatures.get(function.name.as_str());
            if known.is_none_or(|known| known.body.is_none()) {
                signatures.insert(function.name.as_str(), function);
            }
        }
        Env { variables, functions, signatures, shared_base }
    }

    /// Writes the initial values to the memory just mapped at `base`.
    ///
    /// # Errors
    /// When one refers to a symbol that is not in the module.
    pub fn initialise(&self, base: u64, env: &Env<'_>) -> Result<(), ModuleError> {
        for (variable, offset) in &self.placed {
            let Some(init) = &variable.init else { continue };
            let size = variable.size().unwrap_or(0);
            let mut data = init.data.clone();
            data.truncate(usize::try_from(size).unwrap_or(usize::MAX));
            for relocation in &init.relocations {
                relocate(&mut data, variable, relocation, env)?;
            }
            // SAFETY: `base` begins `self.bytes` bytes of memory mapped for this module alone, which no kernel knows yet; the
            // variable lies within it.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), (base + offset) as *mut u8, data.len()) };
        }
        Ok(())
    }
}

fn relocate(
    data: &mut Vec<u8>,
    variable: &Variable,
    relocation: &Relocation,
    env: &Env<'_>,
) -> Result<(), ModuleError> {
    let undefined = || {
        let (name, symbol) = (&variable.name, &relocation.symbol);
        ModuleError::Refused(format!(
            "{name} is initialised with {symbol}, which is not defined in the module"
        ))
    };
    let home = match env.functions.get(relocation.symbol.as_str()) {
        Some(index) => SymbolHome::Absolute(crate::exec::Image::address(*index)),
        None => *env.variables.get(relocation.symbol.as_str()).ok_or_else(undefined)?,
    };
    let address = match home {
        SymbolHome::Absolute(address) => address,
        SymbolHome::Shared(offset) if relocation.generic => SHARED_WINDOW + offset,
        SymbolHome::Shared(offset) => offset,
        _ => return Err(undefined()),
    };
    let sum = address.wrapping_add(relocation.addend as u64);
    // A masked element is a part of the sum; which bytes it takes is told by the element's type.
    let value = relocation.mask.map_or(sum, |mask| (sum & mask) >> mask.trailing_zeros().min(63));
    let (start, bytes) = (relocation.offset as usize, variable.ty.size() as usize);
    if data.len() < start + bytes {
        data.resize(start + bytes, 0);
    }
    data[start..start + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    Ok(())
}

/// A function whose address is taken: in memory it may be that of another device, which has it elsewhere.
pub fn addressed_function(tree: &ast::Module) -> Option<&str> {
    let is_addressed = |name: &str| {
        let mut bodies = tree.definitions().filter_map(|function| function.body.as_ref());
        let relocations = tree.variables().filter_map(|variable| variable.init.as_ref());
        bodies.any(|body| uses(body, |used| used == name, false))
            || relocations.flat_map(|init| &init.relocations).any(|at| at.symbol.as_str() == name)
    };
    tree.definitions().map(|function| function.name.as_str()).find(|name| is_addressed(name))
}

/// Whether a body calls something (with `calls`), or names a module variable of which `wanted` holds.
fn uses(body: &ast::Body, wanted: impl Fn(&str) -> bool, calls: bool) -> bool {
    use ast::{AddressBase, Operand, Statement, Symbol};
    let named = |symbol: &Symbol| matches!(symbol, Symbol::Module(name) if wanted(name));
    let found = |operand: &Operand| match operand {
        Operand::Call(_) => calls,
        Operand::Symbol(symbol, _) => named(symbol),
        Operand::Address(address) => matches!(&address.base, AddressBase::Symbol(symbol) if named(symbol)),
        _ => false,
    };
    body.statements.iter().any(|statement| match statement {
        Statement::Instruction(instruction) => instruction.operands.iter().any(found),
        _ => false,
    })
}
