//! Names of a body.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use crate::ast::{
    BranchTableId, CallTableId, Formal, LabelId, Name, PrototypeId, RegId, Register, ScalarType, Symbol,
};

/// What a name of a body stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Resolved {
    Reg(RegId),
    /// A vector register: the first of so many registers.
    Vector(RegId, u32),
    Symbol(Symbol),
}

/// What a label stands before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Labelled {
    Code(LabelId),
    Branches(BranchTableId),
    Calls(CallTableId),
    Prototype(PrototypeId),
}

/// A register's declaration.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegDeclaration {
    pub ty: ScalarType,
    pub vector: u32,
    pub formal: Option<Formal>,
}

#[derive(Debug)]
enum Declared {
    /// A register that nothing has used yet.
    Unused(RegDeclaration),
    Resolved(Resolved),
}

/// `.reg .b32 %r<count>`
#[derive(Debug)]
struct Range {
    declaration: RegDeclaration,
    count: u32,
}

#[derive(Debug)]
struct Scope {
    id: usize,
    names: HashMap<Name, Declared>,
    /// By prefix.
    ranges: HashMap<Name, Range>,
}

/// The scopes of a body. Registers come into being when they are first used, so a declaration costs nothing.
#[derive(Debug)]
pub(super) struct Scopes {
    open: Vec<Scope>,
    /// Of every scope there has been, by id.
    parents: Vec<Option<usize>>,
    labels: HashMap<(usize, Name), Labelled>,
    /// Names given in this body.
    taken: HashSet<Name>,
    /// The last suffix tried for a name.
    suffixes: HashMap<Name, u32>,
    pub registers: Vec<Register>,
}

/// A name that its scope has already.
pub(super) struct Duplicate;

impl Scopes {
    pub fn new() -> Self {
        Self {
            open: Vec::new(),
            parents: Vec::new(),
            labels: HashMap::new(),
            taken: HashSet::new(),
            suffixes: HashMap::new(),
            registers: Vec::new(),
        }
    }

    pub fn depth(&self) -> usize {
        self.open.len()
    }

    pub fn open(&mut self) {
        let id = self.parents.len();
        self.parents.push(self.open.last().map(|scope| scope.id));
        self.open.push(Scope { id, names: HashMap::new(), ranges: HashMap::new() });
    }

    pub fn close(&mut self) {
        self.open.pop();
    }

    /// The innermost scope's id, to resolve a label in later.
    pub fn current(&self) -> usize {
        self.open.last().map_or(0, |scope| scope.id)
    }

    /// `name`, or with a suffix where the body or `symbols` has it already.
    pub fn unique(&mut self, name: &Name, symbols: &HashSet<Name>) -> Name {
        let mut candidate = name.clone();
        while symbols.contains(&candidate) || self.taken.contains(&candidate) {
            let suffix = self.suffixes.entry(name.clone()).or_default();
            *suffix += 1;
            candidate = Name::from(format!("{name}${suffix}"));
        }
        self.taken.insert(candidate.clone());
        candidate
    }

    /// Makes sure that nothing else of the body gets this name.
    pub fn reserve(&mut self, name: &Name) {
        self.taken.insert(name.clone());
    }

    fn declare(&mut self, name: Name, declared: Declared) -> Result<(), Duplicate> {
        let Some(scope) = self.open.last_mut() else { return Ok(()) };
        match scope.names.entry(name) {
            Entry::Occupied(_) => Err(Duplicate),
            Entry::Vacant(entry) => {
                entry.insert(declared);
                Ok(())
            }
        }
    }

    pub fn declare_register(&mut self, name: Name, declaration: RegDeclaration) -> Result<(), Duplicate> {
        self.declare(name, Declared::Unused(declaration))
    }

    pub fn declare_symbol(&mut self, name: Name, symbol: Symbol) -> Result<(), Duplicate> {
        self.declare(name, Declared::Resolved(Resolved::Symbol(symbol)))
    }

    pub fn declare_range(
        &mut self,
        prefix: Name,
        count: u32,
        declaration: RegDeclaration,
    ) -> Result<(), Duplicate> {
        let Some(scope) = self.open.last_mut() else { return Ok(()) };
        match scope.ranges.insert(prefix, Range { declaration, count }) {
            Some(_) => Err(Duplicate),
            None => Ok(()),
        }
    }

    pub fn declare_label(&mut self, name: Name, labelled: Labelled) -> Result<(), Duplicate> {
        match self.labels.insert((self.current(), name), labelled) {
            Some(_) => Err(Duplicate),
            None => Ok(()),
        }
    }

    /// The label that `name` means in scope `scope`.
    pub fn label(&self, scope: usize, name: &Name) -> Option<Labelled> {
        let mut scope = Some(scope);
        while let Some(id) = scope {
            if let Some(labelled) = self.labels.get(&(id, name.clone())) {
                return Some(*labelled);
            }
            scope = self.parents.get(id).copied().flatten();
        }
        None
    }

    /// What `name` means in the innermost scope; a register used for the first time comes into being.
    pub fn resolve(&mut self, name: &Name, symbols: &HashSet<Name>) -> Option<Resolved> {
        for level in (0..self.open.len()).rev() {
            let scope = &self.open[level];
            let declaration = match scope.names.get(name) {
                Some(Declared::Resolved(resolved)) => return Some(resolved.clone()),
                Some(Declared::Unused(declaration)) => Some(*declaration),
                None => scope.range_of(name),
            };
            if let Some(declaration) = declaration {
                let resolved = self.materialise(name, declaration, symbols);
                self.open[level].names.insert(name.clone(), Declared::Resolved(resolved.clone()));
                return Some(resolved);
            }
        }
        symbols.contains(name).then(|| Resolved::Symbol(Symbol::Module(name.clone())))
    }

    fn materialise(&mut self, name: &Name, declaration: RegDeclaration, symbols: &HashSet<Name>) -> Resolved {
        let RegDeclaration { ty, vector, formal } = declaration;
        let first = RegId(self.registers.len() as u32);
        if vector == 1 {
            // A formal parameter has reserved its name.
            let name = if formal.is_some() { name.clone() } else { self.unique(name, symbols) };
            self.registers.push(Register { name, ty, formal });
            return Resolved::Reg(first);
        }
        for component in ["x", "y", "z", "w"].iter().take(vector as usize) {
            let name = self.unique(&Name::from(format!("{name}${component}")), symbols);
            self.registers.push(Register { name, ty, formal });
        }
        Resolved::Vector(first, vector)
    }
}

impl Scope {
    /// The range that has a register of this name: every way to split it into prefix and number is tried.
    fn range_of(&self, name: &str) -> Option<RegDeclaration> {
        if self.ranges.is_empty() {
            return None;
        }
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count().min(10);
        (1..=digits).find_map(|length| {
            let (prefix, number) = name.split_at(name.len() - length);
            let canonical = length == 1 || !number.starts_with('0');
            let range = self.ranges.get(prefix).filter(|_| canonical)?;
            number.parse::<u32>().ok().filter(|number| *number < range.count).map(|_| range.declaration)
        })
    }
}
