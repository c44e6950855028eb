//! Copies of functions' bodies in a kernel's.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ptx::TooComplex;
use ptx::ast::{
    Address, AddressBase, Body, BranchTable, BranchTableId, Call, CallTable, CallTableId, CallTargets,
    Callee, Formal, Function, Guard, Immediate, Instruction, LabelId, Linkage, LocalId, Module, Name, Opcode,
    Operand, Param, ParamId, ParamSpace, Prototype, PrototypeId, RegId, Register, ReturnId, ScalarType,
    Space, Statement, Symbol, Variable,
};

use crate::Reason;
use crate::additions::{made, push_label, renamed};
use crate::marker::place;
use crate::refusal::{Place as At, Refused};

/// Most statements of a kernel with all that is put into it: functions that call others twice grow fast.
const MOST: usize = 1 << 20;
/// Most functions that call one another.
const DEEPEST: usize = 64;

/// A kernel's body as it grows.
pub(super) struct Copies<'a> {
    module: &'a Module,
    marked: &'a BTreeSet<Name>,
    tag: &'a str,
    made: Body,
    /// How many bodies have been copied.
    count: usize,
    /// The functions whose copies are being made, each called by the one before.
    path: Vec<Name>,
    /// Shared memory that functions declare: all copies of a function have the same.
    shared: HashMap<(Name, LocalId), LocalId>,
}

/// What a parameter has become.
#[derive(Clone, Copy)]
enum Place {
    Register(RegId),
    /// A variable in local memory.
    Memory(LocalId),
}

/// A body that is copied, and where its parts are in the copy.
struct Scope<'b> {
    function: &'b Function,
    body: &'b Body,
    registers: Vec<RegId>,
    locals: Vec<LocalId>,
    labels: Vec<LabelId>,
    /// How many tables and prototypes there were before its own.
    tables: (u32, u32, u32),
    /// Its parameters and results, and `.param` variables in which it hands some over.
    places: HashMap<Symbol, Place>,
    /// Where a `ret` leads; none in the kernel itself.
    end: Option<LabelId>,
}

impl<'a> Copies<'a> {
    pub(super) fn new(module: &'a Module, marked: &'a BTreeSet<Name>, tag: &'a str) -> Self {
        Self {
            module,
            marked,
            tag,
            made: Body::default(),
            count: 0,
            path: Vec::new(),
            shared: HashMap::new(),
        }
    }

    pub(super) fn of_kernel(mut self, kernel: &Function, body: &Body) -> Result<Body, Refused> {
        let scope = self.scope(kernel, body, HashMap::new(), None)?;
        self.statements(&scope)?;
        Ok(self.made)
    }

    /// Makes room for a body: its registers, variables, labels and tables.
    fn scope<'b>(
        &mut self,
        function: &'b Function,
        body: &'b Body,
        places: HashMap<Symbol, Place>,
        end: Option<LabelId>,
    ) -> Result<Scope<'b>, Refused> {
        let number = self.count;
        self.count += 1;
        let tag = format!("{}{number}_", self.tag);
        let is_kernel = end.is_none();
        let named = |name: &Name| match is_kernel {
            true => name.clone(),
            false => renamed(name, &tag),
        };
        let made = &mut self.made;
        let registers = body.registers.iter().map(|register| {
            let formal = register.formal.filter(|_| is_kernel);
            push_register(made, Register { name: named(&register.name), ty: register.ty, formal })
        });
        let registers = registers.collect();
        let shared = &mut self.shared;
        let locals = (0..).map(LocalId).zip(&body.locals).map(|(id, local)| {
            let mut copy = || {
                made.locals.push(Variable { name: named(&local.name), ..local.clone() });
                LocalId(made.locals.len() as u32 - 1)
            };
            match local.space {
                Space::Shared => *shared.entry((function.name.clone(), id)).or_insert_with(copy),
                _ => copy(),
            }
        });
        let locals = locals.collect();
        let labels = body.labels.iter().map(|label| push_label(made, named(label))).collect();
        let tables =
            (made.branch_tables.len() as u32, made.call_tables.len() as u32, made.prototypes.len() as u32);
        let mut scope = Scope { function, body, registers, locals, labels, tables, places, end };
        for table in &body.branch_tables {
            let targets = table.targets.iter().map(|label| scope.labels[label.index()]).collect();
            made.branch_tables.push(BranchTable { name: named(&table.name), targets });
        }
        for table in &body.call_tables {
            made.call_tables.push(CallTable { name: named(&table.name), functions: table.functions.clone() });
        }
        for prototype in &body.prototypes {
            made.prototypes.push(Prototype { name: named(&prototype.name), ..prototype.clone() });
        }
        self.hand_over(&mut scope)?;
        Ok(scope)
    }

    /// Finds places for the `.param` variables that functions are called with whose bodies are put in place of the call.
    fn hand_over(&mut self, scope: &mut Scope<'_>) -> Result<(), Refused> {
        let (mut given, mut elsewhere) = (BTreeMap::new(), HashSet::new());
        let own = awkward(scope.function, scope.body);
        for (at, instruction) in scope.body.numbered_instructions() {
            for call in instruction.operands.iter().filter_map(as_call) {
                let callee = self.callee(call);
                let theirs = callee.and_then(|callee| Some(awkward(callee, callee.body.as_ref()?)));
                for (operand, formal) in handed(call, callee) {
                    let Operand::Symbol(symbol @ Symbol::Local(local), _) = operand else { continue };
                    let Some((theirs, formal)) = theirs.as_ref().zip(formal) else {
                        elsewhere.insert(symbol.clone());
                        continue;
                    };
                    let (is_simple, _) = given.entry(*local).or_insert((true, at));
                    *is_simple &= !own.contains(symbol) && !theirs.contains(&formal);
                }
            }
        }
        for (local, (is_simple, at)) in given {
            if elsewhere.contains(&Symbol::Local(local)) {
                let place = place(self.module, scope.body, at);
                return Err((place, Reason::Handed(scope.function.name.clone())));
            }
            let copy = &mut self.made.locals[scope.locals[local.index()].index()];
            let place = if is_simple {
                let (name, ty) = (copy.name.clone(), bits(copy.ty));
                let name = format!("%{}", renamed(&name, &format!("{}in_", self.tag))).into();
                Place::Register(push_register(&mut self.made, Register { name, ty, formal: None }))
            } else {
                copy.space = Space::Local;
                Place::Memory(scope.locals[local.index()])
            };
            scope.places.insert(Symbol::Local(local), place);
        }
        Ok(())
    }

    /// The function that is called, if its body is put in place of the call.
    fn callee(&self, call: &Call) -> Option<&'a Function> {
        match &call.callee {
            Callee::Function(name) if self.marked.contains(name) => self.module.function(name),
            _ => None,
        }
    }

    fn statements(&mut self, scope: &Scope<'_>) -> Result<(), Refused> {
        let mut line = None;
        let module = self.module;
        for (at, statement) in scope.body.statements.iter().enumerate() {
            let here = || place(module, scope.body, at);
            match statement {
                Statement::Label(label) => self.put(Statement::Label(scope.labels[label.index()])),
                Statement::Loc(_) => {
                    line = Some(statement);
                    self.put(statement.clone());
                }
                Statement::Pragma(_) => self.put(statement.clone()),
                Statement::Instruction(instruction) => {
                    if self.made.statements.len() > MOST {
                        let what = "statements, with functions put into it";
                        return Err((here(), TooComplex { what, limit: MOST }.into()));
                    }
                    let call = instruction.operands.first().and_then(as_call);
                    match call.and_then(|call| Some((call, self.callee(call)?))) {
                        Some((call, callee)) => {
                            self.call((scope, &here), instruction, call, callee)?;
                            line.into_iter().for_each(|line| self.put(line.clone()));
                        }
                        None => {
                            let copy = scope.instruction(instruction);
                            let copy = copy.map_err(|reason| (here(), reason))?;
                            self.put(Statement::Instruction(copy));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, statement: Statement) {
        self.made.statements.push(statement);
    }

    /// A function's body in place of a call.
    fn call(
        &mut self,
        (scope, here): (&Scope<'_>, &dyn Fn() -> At),
        instruction: &Instruction,
        call: &Call,
        callee: &Function,
    ) -> Result<(), Refused> {
        let refused = |reason| (here(), reason);
        if self.path.contains(&callee.name) {
            return Err(refused(Reason::Recursive(callee.name.clone())));
        }
        if self.path.len() == DEEPEST {
            let what = "functions with markers that call one another";
            return Err(refused(TooComplex { what, limit: DEEPEST }.into()));
        }
        let Some(body) = &callee.body else {
            return Err(refused(Reason::Unknown(Box::from(&*callee.name))));
        };
        if body.locals.iter().any(|local| matches!(local.space, Space::Global | Space::Const)) {
            return Err(refused(Reason::State("a variable of the device that a function declares")));
        }
        let name = format!("${}{}", self.tag, self.count);
        let end = push_label(&mut self.made, name.clone().into());
        let past =
            instruction.guard.map(|guard| (guard, push_label(&mut self.made, format!("{name}_").into())));
        if let Some((Guard { reg, negated }, past)) = past {
            let guard = Guard { reg: scope.registers[reg.index()], negated: !negated };
            self.put(Statement::Instruction(made("bra", Some(guard), vec![Operand::Label(past)])));
        }
        let mut places = HashMap::new();
        for (operand, formal) in handed(call, Some(callee)) {
            let Some(formal) = formal else { return Err(refused(Reason::Handed(callee.name.clone()))) };
            let place = match operand {
                Operand::Symbol(symbol, 0) => match scope.places.get(symbol) {
                    Some(place) => Some(*place),
                    None => return Err(refused(Reason::Handed(callee.name.clone()))),
                },
                _ => self.place_of(callee, body, &formal),
            };
            place.into_iter().for_each(|place| {
                places.insert(formal.clone(), place);
            });
        }
        self.path.push(callee.name.clone());
        let inner = self.scope(callee, body, places, Some(end))?;
        self.pass(scope, &inner, call, true).map_err(refused)?;
        self.statements(&inner)?;
        self.put(Statement::Label(end));
        self.pass(scope, &inner, call, false).map_err(refused)?;
        past.into_iter().for_each(|(_, past)| self.put(Statement::Label(past)));
        self.path.pop();
        Ok(())
    }

    /// A place of its own for a parameter in memory that a register or a constant is given for.
    fn place_of(&mut self, callee: &Function, body: &Body, formal: &Symbol) -> Option<Place> {
        let param = param(callee, formal)?;
        if param.space == ParamSpace::Reg {
            return None;
        }
        let name = format!("{}of{}_{}", self.tag, self.count, param.name);
        if !awkward(callee, body).contains(formal) {
            let (name, ty) = (format!("%{name}").into(), bits(param.ty));
            return Some(Place::Register(push_register(&mut self.made, Register { name, ty, formal: None })));
        }
        self.made.locals.push(Variable {
            name: name.into(),
            linkage: Linkage::Internal,
            space: Space::Local,
            attributes: Vec::new(),
            align: param.align,
            ty: param.ty,
            vector: 1,
            dims: param.dims.clone(),
            init: None,
        });
        Some(Place::Memory(LocalId(self.made.locals.len() as u32 - 1)))
    }

    /// Registers and constants that are given for parameters, or registers that take results: what is in `.param` variables is there already.
    fn pass(&mut self, outer: &Scope<'_>, inner: &Scope<'_>, call: &Call, is_in: bool) -> Result<(), Reason> {
        for (operand, formal) in handed(call, Some(inner.function)) {
            let Some(formal) = formal.filter(|formal| is_in == matches!(formal, Symbol::Param(_))) else {
                continue;
            };
            if matches!(operand, Operand::Sink | Operand::Symbol(..)) {
                continue;
            }
            let Some(param) = param(inner.function, &formal) else { continue };
            let operand = outer.operand(operand)?;
            let place = match inner.places.get(&formal) {
                Some(place) => *place,
                None => {
                    let is = |register: &Register| {
                        register.formal
                            == match formal {
                                Symbol::Param(id) => Some(Formal::Param(id)),
                                Symbol::Return(id) => Some(Formal::Return(id)),
                                _ => None,
                            }
                    };
                    // One that nothing names is no register of the body.
                    let Some(at) = inner.body.registers.iter().position(is) else { continue };
                    Place::Register(inner.registers[at])
                }
            };
            let ty = bits(param.ty);
            let constant = of_operand(&operand, ty);
            self.put(Statement::Instruction(match (place, is_in) {
                (Place::Register(register), true) => {
                    made(&format!("mov{constant}"), None, vec![Operand::Reg(register), operand])
                }
                (Place::Register(register), false) => {
                    made(&format!("mov{ty}"), None, vec![operand, Operand::Reg(register)])
                }
                (Place::Memory(local), true) => {
                    made(&format!("st.local{constant}"), None, vec![in_memory(local, 0), operand])
                }
                (Place::Memory(local), false) => {
                    made(&format!("ld.local{ty}"), None, vec![operand, in_memory(local, 0)])
                }
            }));
        }
        Ok(())
    }
}

impl Scope<'_> {
    fn instruction(&self, instruction: &Instruction) -> Result<Instruction, Reason> {
        let guard = instruction.guard.map(|guard| Guard { reg: self.registers[guard.reg.index()], ..guard });
        if let Some(end) = self.end.filter(|_| instruction.opcode.mnemonic() == "ret") {
            let branch = if instruction.opcode.has("uni") { "bra.uni" } else { "bra" };
            return Ok(made(branch, guard, vec![Operand::Label(end)]));
        }
        let place = instruction.operands.iter().find_map(|operand| match operand {
            Operand::Address(Address { base: AddressBase::Symbol(symbol), offset, .. }) => {
                Some((*self.places.get(symbol)?, *offset))
            }
            _ => None,
        });
        let mut copy = Instruction { guard, ..instruction.clone() };
        let Some((place, offset)) = place else {
            for (copy, operand) in copy.operands.iter_mut().zip(&instruction.operands) {
                *copy = self.operand(operand)?;
            }
            return Ok(copy);
        };
        let is_load = instruction.opcode.mnemonic() == "ld";
        let value = &instruction.operands[usize::from(!is_load)];
        let value = self.operand(value)?;
        match place {
            Place::Register(register) => {
                let own = instruction.opcode.types().last().unwrap_or(ScalarType::B32);
                copy.opcode = Opcode::new(format!("mov{}", of_operand(&value, bits(own))));
                copy.operands = if is_load {
                    vec![value, Operand::Reg(register)]
                } else {
                    vec![Operand::Reg(register), value]
                };
            }
            Place::Memory(local) => {
                copy.opcode = Opcode::new(
                    instruction.opcode.as_str().replace(".param::func", ".local").replace(".param", ".local"),
                );
                let memory = in_memory(local, offset);
                copy.operands = if is_load { vec![value, memory] } else { vec![memory, value] };
            }
        }
        Ok(copy)
    }

    fn operand(&self, operand: &Operand) -> Result<Operand, Reason> {
        let all = |operands: &[Operand]| {
            operands.iter().map(|one| self.operand(one)).collect::<Result<Vec<_>, Reason>>()
        };
        let register = |register: &RegId| self.registers[register.index()];
        Ok(match operand {
            Operand::Reg(one) => Operand::Reg(register(one)),
            Operand::Not(one) => Operand::Not(register(one)),
            Operand::Part(one, part) => Operand::Part(register(one), part.clone()),
            Operand::Special(_) | Operand::Imm(_) | Operand::Sink => operand.clone(),
            Operand::Symbol(symbol, offset) => Operand::Symbol(self.symbol(symbol)?, *offset),
            Operand::Address(address) => Operand::Address(self.address(address)?),
            Operand::Indexed { base, sampler, coordinates } => Operand::Indexed {
                base: self.address(base)?,
                sampler: sampler.as_ref().map(|sampler| self.address(sampler)).transpose()?,
                coordinates: all(coordinates)?,
            },
            Operand::Vector(operands) => Operand::Vector(all(operands)?),
            Operand::Pair(pair) => Operand::Pair(Box::new((self.operand(&pair.0)?, self.operand(&pair.1)?))),
            Operand::Label(label) => Operand::Label(self.labels[label.index()]),
            Operand::BranchTable(table) => Operand::BranchTable(BranchTableId(table.0 + self.tables.0)),
            Operand::Call(call) => Operand::Call(Box::new(Call {
                returns: all(&call.returns)?,
                callee: match &call.callee {
                    Callee::Function(name) => Callee::Function(name.clone()),
                    Callee::Indirect(one, CallTargets::Table(table)) => {
                        let table = CallTableId(table.0 + self.tables.1);
                        Callee::Indirect(register(one), CallTargets::Table(table))
                    }
                    Callee::Indirect(one, CallTargets::Prototype(prototype)) => {
                        let prototype = PrototypeId(prototype.0 + self.tables.2);
                        Callee::Indirect(register(one), CallTargets::Prototype(prototype))
                    }
                },
                arguments: all(&call.arguments)?,
            })),
        })
    }

    fn address(&self, address: &Address) -> Result<Address, Reason> {
        let base = match &address.base {
            AddressBase::Reg(register) => AddressBase::Reg(self.registers[register.index()]),
            AddressBase::Symbol(symbol) => AddressBase::Symbol(self.symbol(symbol)?),
            AddressBase::Absolute => AddressBase::Absolute,
        };
        Ok(Address { base, ..address.clone() })
    }

    fn symbol(&self, symbol: &Symbol) -> Result<Symbol, Reason> {
        if self.places.contains_key(symbol) {
            // Its address is taken.
            return Err(Reason::Handed(self.function.name.clone()));
        }
        match symbol {
            Symbol::Local(local) => Ok(Symbol::Local(self.locals[local.index()])),
            Symbol::Param(_) | Symbol::Return(_) if self.end.is_some() => {
                Err(Reason::Handed(self.function.name.clone()))
            }
            other => Ok(other.clone()),
        }
    }
}

/// Parameters and `.param` variables that are not read and written in one piece only, by a register of their size.
fn awkward(function: &Function, body: &Body) -> HashSet<Symbol> {
    let size_of = |symbol: &Symbol| match symbol {
        Symbol::Local(local) if body.local(*local).space == Space::Param => body.local(*local).size(),
        Symbol::Local(_) | Symbol::Module(_) => None,
        formal => param(function, formal)?.size(),
    };
    let mut found = HashSet::new();
    for instruction in body.instructions() {
        for operand in &instruction.operands {
            let Operand::Address(Address { base: AddressBase::Symbol(symbol), offset, .. }) = operand else {
                continue;
            };
            let Some(size) = size_of(symbol) else { continue };
            let is_load = instruction.opcode.mnemonic() == "ld";
            let is_whole = match instruction.operands.get(usize::from(!is_load)) {
                Some(Operand::Reg(register)) => body.register(*register).ty.size() == size,
                Some(Operand::Imm(_)) => true,
                _ => false,
            };
            let ty = instruction.opcode.types().last();
            if !is_whole
                || *offset != 0
                || !matches!(size, 2 | 4 | 8)
                || ty.is_none_or(|ty| ty.size() != size)
            {
                found.insert(symbol.clone());
            }
        }
    }
    let is_array = |(_, param): &(u32, &Param)| !param.dims.is_empty();
    let params = (0..).zip(&function.params).filter(is_array);
    found.extend(params.map(|(number, _)| Symbol::Param(ParamId(number))));
    let returns = (0..).zip(&function.returns).filter(is_array);
    found.extend(returns.map(|(number, _)| Symbol::Return(ReturnId(number))));
    found
}

fn as_call(operand: &Operand) -> Option<&Call> {
    match operand {
        Operand::Call(call) => Some(call),
        _ => None,
    }
}

/// What is handed over in a call, and for which parameter or result of the callee, if that is known.
fn handed<'b>(
    call: &'b Call,
    callee: Option<&Function>,
) -> impl Iterator<Item = (&'b Operand, Option<Symbol>)> {
    let (params, returns) = callee.map_or((0, 0), |callee| (callee.params.len(), callee.returns.len()));
    let arguments = call.arguments.iter().enumerate().map(move |(number, operand)| {
        (operand, (number < params).then_some(Symbol::Param(ParamId(number as u32))))
    });
    arguments.chain(call.returns.iter().enumerate().map(move |(number, operand)| {
        (operand, (number < returns).then_some(Symbol::Return(ReturnId(number as u32))))
    }))
}

fn param<'b>(function: &'b Function, formal: &Symbol) -> Option<&'b Param> {
    match formal {
        Symbol::Param(id) => function.params.get(id.index()),
        Symbol::Return(id) => function.returns.get(id.index()),
        _ => None,
    }
}

/// A type of the same size that says nothing of what it is.
fn bits(ty: ScalarType) -> ScalarType {
    match ty {
        ScalarType::Pred => ScalarType::Pred,
        ty => match ty.size() {
            1 => ScalarType::B8,
            2 => ScalarType::B16,
            8 => ScalarType::B64,
            16 => ScalarType::B128,
            _ => ScalarType::B32,
        },
    }
}

/// The type that an operand is moved as: the same, or a real one of its size.
fn of_operand(operand: &Operand, ty: ScalarType) -> ScalarType {
    match operand {
        Operand::Imm(Immediate::F32(_) | Immediate::F64(_)) if ty.size() == 4 => ScalarType::F32,
        Operand::Imm(Immediate::F32(_) | Immediate::F64(_)) if ty.size() == 8 => ScalarType::F64,
        _ => ty,
    }
}

fn in_memory(local: LocalId, offset: i64) -> Operand {
    let base = AddressBase::Symbol(Symbol::Local(local));
    Operand::Address(Address { base, offset, unified: false })
}

fn push_register(body: &mut Body, register: Register) -> RegId {
    body.registers.push(register);
    RegId(body.registers.len() as u32 - 1)
}
