//! Which registers are live at a marker, found in another way than [`ptx::Liveness`] does: statement by statement, one register after the other, backwards from
//! each of its uses. What a site keeps has to be that, and hardly more bytes. The same of arrays in local and shared memory: whether one is read behind a marker.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cpt::{Kernel, Site};
use ptx::ast::{
    AddressBase, Body, Callee, Instruction, Module, Name, Operand, ScalarType, Space, Statement, Symbol,
};

/// Opcodes that begin with these have no result.
const NO_RESULT: [&str; 17] = [
    "st",
    "cp",
    "red",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "bar",
    "barrier",
    "membar",
    "fence",
    "call",
    "prefetch",
    "nanosleep",
    "brkpt",
    "pmevent",
];

/// The registers in an operand.
fn registers(operand: &Operand, found: &mut Vec<usize>) {
    let address = |base: &AddressBase, found: &mut Vec<usize>| {
        if let AddressBase::Reg(register) = base {
            found.push(register.index());
        }
    };
    match operand {
        Operand::Reg(register) | Operand::Not(register) | Operand::Part(register, _) => {
            found.push(register.index());
        }
        Operand::Address(one) => address(&one.base, found),
        Operand::Indexed { base, sampler, coordinates } => {
            address(&base.base, found);
            sampler.iter().for_each(|sampler| address(&sampler.base, found));
            coordinates.iter().for_each(|one| registers(one, found));
        }
        Operand::Vector(all) => all.iter().for_each(|one| registers(one, found)),
        Operand::Pair(pair) => [&pair.0, &pair.1].into_iter().for_each(|one| registers(one, found)),
        _ => {}
    }
}

/// What an instruction reads, and what it is sure to write.
fn effect(instruction: &Instruction) -> (Vec<usize>, Vec<usize>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let opcode = instruction.opcode.as_str();
    let mnemonic = instruction.opcode.mnemonic();
    let reduces = mnemonic.starts_with("bar") && opcode.contains(".red.");
    let has_result = reduces || !NO_RESULT.contains(&mnemonic);
    for (number, operand) in instruction.operands.iter().enumerate() {
        if let Operand::Call(call) = operand {
            call.arguments.iter().for_each(|argument| registers(argument, &mut reads));
            call.returns.iter().for_each(|result| registers(result, &mut writes));
            if let Callee::Indirect(register, _) = &call.callee {
                reads.push(register.index());
            }
        } else if number == 0 && has_result {
            registers(operand, &mut writes);
            if matches!(operand, Operand::Part(..)) {
                registers(operand, &mut reads);
            }
        } else {
            registers(operand, &mut reads);
        }
    }
    if let Some(guard) = instruction.guard {
        reads.push(guard.reg.index());
        writes.clear();
    }
    (reads, writes)
}

/// What an instruction writes, if it is executed.
fn written(instruction: &Instruction) -> Vec<usize> {
    effect(&Instruction { guard: None, ..instruction.clone() }).1
}

/// For each statement those that may be executed before it.
fn before(body: &Body) -> Vec<Vec<usize>> {
    let mut labels = HashMap::new();
    for (at, statement) in body.statements.iter().enumerate() {
        if let Statement::Label(label) = statement {
            labels.insert(*label, at);
        }
    }
    let mut before = vec![Vec::new(); body.statements.len() + 1];
    for (at, statement) in body.statements.iter().enumerate() {
        let mut goes_on = true;
        if let Statement::Instruction(instruction) = statement {
            let is_last = matches!(instruction.opcode.mnemonic(), "bra" | "brx" | "ret" | "exit" | "trap");
            goes_on = !is_last || instruction.guard.is_some();
            for operand in &instruction.operands {
                match operand {
                    Operand::Label(label) => before[labels[label]].push(at),
                    Operand::BranchTable(table) => {
                        let targets = &body.branch_tables[table.index()].targets;
                        targets.iter().for_each(|label| before[labels[label]].push(at));
                    }
                    _ => {}
                }
            }
        }
        if goes_on {
            before[at + 1].push(at);
        }
    }
    before
}

/// The registers that are live in front of each of the statements.
pub fn live_at(body: &Body, wanted: &[usize]) -> Vec<BTreeSet<usize>> {
    let before = before(body);
    let effects: Vec<_> = body
        .statements
        .iter()
        .map(|statement| match statement {
            Statement::Instruction(instruction) => effect(instruction),
            _ => Default::default(),
        })
        .collect();
    let mut uses: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, (reads, _)) in effects.iter().enumerate() {
        reads.iter().for_each(|register| uses.entry(*register).or_default().push(at));
    }
    let mut live = vec![BTreeSet::new(); wanted.len()];
    let mut numbers: HashMap<usize, Vec<usize>> = HashMap::new();
    wanted.iter().enumerate().for_each(|(number, at)| numbers.entry(*at).or_default().push(number));
    for (register, mut ahead) in uses {
        let mut seen = vec![false; body.statements.len()];
        while let Some(at) = ahead.pop() {
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            if let Some(numbers) = numbers.get(&at) {
                numbers.iter().for_each(|number| {
                    live[*number].insert(register);
                });
            }
            ahead.extend(before[at].iter().filter(|earlier| !effects[**earlier].1.contains(&register)));
        }
    }
    live
}

/// What is computed before the first branch, and never again: however a thread has come to a place, it has that.
fn computed_first(body: &Body) -> BTreeSet<usize> {
    let straight = |statement: &&Statement| match statement {
        Statement::Instruction(instruction) => instruction.opcode.mnemonic() != "bra",
        Statement::Label(_) => false,
        _ => true,
    };
    let mut times = BTreeMap::new();
    for instruction in body.instructions() {
        written(instruction).into_iter().for_each(|register| *times.entry(register).or_insert(0) += 1);
    }
    let first = body.statements.iter().take_while(straight).flat_map(|statement| match statement {
        Statement::Instruction(instruction) => effect(instruction).1,
        _ => Vec::new(),
    });
    first.filter(|register| times[register] == 1).collect()
}

/// Where a twin goes on behind each of its markers.
fn places(twin: &Body, sites: usize) -> Vec<usize> {
    let is = |statement: &Statement, name: &str| matches!(statement, Statement::Label(label) if &**twin.label(*label) == name);
    let place = |site| {
        let name = format!("$cpt_go{site}");
        twin.statements.iter().position(|statement| is(statement, &name)).unwrap()
    };
    (0..sites).map(place).collect()
}

fn names(site: &Site) -> BTreeSet<&str> {
    let predicates = site.predicates.iter().map(|name| &**name);
    site.cells.iter().map(|cell| &*cell.register).chain(predicates).collect()
}

/// Each site keeps what is live behind it in the twin and not there from the beginning, and its bytes are no more than 1.2 times what that takes. Answers how often more.
pub fn check(module: &Module, kernel: &Kernel) -> f64 {
    let name = &*kernel.twin;
    let twin = module.function(name).unwrap().body.as_ref().unwrap();
    let places = places(twin, kernel.frame.sites.len());
    let first = computed_first(twin);
    let mut worst = 1.0f64;
    for (site, live) in kernel.frame.sites.iter().zip(live_at(twin, &places)) {
        let register = |number: &usize| &twin.registers[*number];
        // What polls have for themselves.
        let own = |number: &usize| {
            register(number).name.len() == "%cpt_k".len() && register(number).name.starts_with("%cpt_")
        };
        let live: BTreeSet<usize> =
            live.into_iter().filter(|number| !own(number) && !first.contains(number)).collect();
        let expected: BTreeSet<&str> = live.iter().map(|number| &*register(number).name).collect();
        assert_eq!(names(site), expected, "{name}");
        let (predicates, values): (Vec<ScalarType>, Vec<ScalarType>) =
            live.iter().map(|number| register(number).ty).partition(|ty| *ty == ScalarType::Pred);
        let bytes = values.iter().map(|ty| ty.size()).sum::<u64>() + predicates.len().div_ceil(8) as u64;
        let minimum = kernel.frame.local + bytes;
        let kept = kernel.frame.local + site.bytes();
        if minimum > 0 {
            worst = worst.max(kept as f64 / minimum as f64);
        }
        assert!(
            kept as f64 <= minimum as f64 * 1.2,
            "{name} keeps {kept} bytes, of which {minimum} are live"
        );
    }
    worst
}

/// Whatever way leads to a marker's continuation, all that is read behind it has been written: nothing is live at the twin's beginning that is not at the
/// kernel's.
pub fn nothing_else_is_read(module: &Module, name: &str, kernel: &Kernel) {
    let live = |name: &str| {
        let body = module.function(name).unwrap().body.as_ref().unwrap();
        let live = live_at(body, &[0]).remove(0);
        live.into_iter().map(|number| body.registers[number].name.to_string()).collect::<BTreeSet<_>>()
    };
    assert_eq!(live(&kernel.twin), live(name), "{name}");
}

/// The registers of a twin that are its own: what they read of arrays is saved, or restored.
fn is_own(body: &Body, register: usize) -> bool {
    let name = &body.registers[register].name;
    name.len() == "%cpt_k".len() && name.starts_with("%cpt_")
}

/// Whether an operand has the variable's name in it.
fn names_variable(body: &Body, operand: &Operand, variable: &Name) -> bool {
    let is = |symbol: &Symbol| match symbol {
        Symbol::Local(local) => body.local(*local).name == *variable,
        Symbol::Module(name) => name == variable,
        _ => false,
    };
    match operand {
        Operand::Symbol(symbol, _) => is(symbol),
        Operand::Address(address) => matches!(&address.base, AddressBase::Symbol(symbol) if is(symbol)),
        _ => false,
    }
}

/// The statements of a twin that may read a variable in local or shared memory; all that read any memory, or call a function, if its address goes where it is not followed.
fn readers(body: &Body, variable: &Name) -> Vec<usize> {
    let mut addresses: BTreeSet<usize> = BTreeSet::new();
    let holds = |addresses: &BTreeSet<usize>, operand: &Operand| {
        let mut found = Vec::new();
        registers(operand, &mut found);
        found.iter().any(|register| addresses.contains(register)) || names_variable(body, operand, variable)
    };
    let is_memory = |operand: &Operand| matches!(operand, Operand::Address(_));
    loop {
        let before = addresses.len();
        for instruction in body.instructions().filter(|one| !one.operands.iter().any(is_memory)) {
            if instruction.operands.iter().skip(1).any(|operand| holds(&addresses, operand)) {
                addresses
                    .extend(written(instruction).into_iter().filter(|register| !is_own(body, *register)));
            }
        }
        if addresses.len() == before {
            break;
        }
    }
    // What is saved of a pointer is a distance.
    let is_kept =
        |operand: &Operand| matches!(operand, Operand::Reg(register) if is_own(body, register.index()));
    let is_given = |instruction: &Instruction| {
        let is_access = instruction.operands.iter().any(is_memory);
        let has_result = !instruction.operands.first().is_some_and(is_memory);
        let mut given = instruction.operands.iter().skip(usize::from(is_access && has_result));
        given.any(|operand| match operand {
            Operand::Call(call) => call.arguments.iter().any(|one| holds(&addresses, one)),
            value => is_access && !is_memory(value) && !is_kept(value) && holds(&addresses, value),
        })
    };
    let is_lost = body.instructions().any(is_given);
    let reads = |instruction: &Instruction| {
        let own = written(instruction);
        let is_own = !own.is_empty() && own.iter().all(|register| is_own(body, *register));
        let is_read = instruction
            .operands
            .iter()
            .any(|operand| is_memory(operand) && (is_lost || holds(&addresses, operand)));
        let is_call = instruction.operands.iter().any(|operand| matches!(operand, Operand::Call(_)));
        !is_own && (is_read && instruction.opcode.mnemonic() != "st" || is_call)
    };
    let statements = body.statements.iter().enumerate();
    statements
        .filter(|(_, statement)| matches!(statement, Statement::Instruction(one) if reads(one)))
        .map(|(at, _)| at)
        .collect()
}

/// Bytes that a block of so many threads is kept in, and the least that it takes: where each thread is, and of each of the variables that are read behind the place
/// that takes most, the whole.
pub fn bytes(module: &Module, kernel: &Kernel, threads: u64) -> (u64, u64) {
    let twin = module.function(&kernel.twin).unwrap().body.as_ref().unwrap();
    let places = places(twin, kernel.frame.sites.len());
    let arrays = twin.locals.iter().chain(module.variables().filter(|variable| {
        let names = |operand: &Operand| names_variable(twin, operand, &variable.name);
        twin.instructions().flat_map(|instruction| &instruction.operands).any(names)
    }));
    let mut least = vec![0; places.len()];
    for (site, least) in kernel.frame.sites.iter().zip(&mut least) {
        *least = threads * (site.bytes() + 4);
    }
    for variable in arrays.filter(|one| matches!(one.space, Space::Local | Space::Shared)) {
        let times = if variable.space == Space::Local { threads } else { 1 };
        let before = before(twin);
        let (mut ahead, mut seen) = (readers(twin, &variable.name), vec![false; twin.statements.len()]);
        while let Some(at) = ahead.pop() {
            if !std::mem::replace(&mut seen[at], true) {
                ahead.extend(&before[at]);
            }
        }
        for (place, least) in places.iter().zip(&mut least) {
            *least += if seen[*place] { times * variable.size().unwrap() } else { 0 };
        }
    }
    (kernel.frame.bytes(threads, 0), least.into_iter().max().unwrap())
}
