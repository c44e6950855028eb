//! The pass: what it looks at, and what becomes of a kernel.

mod code;
mod copy;
mod polls;

use std::collections::{BTreeMap, BTreeSet};

use ptx::ast::{
    Body, Callee, Function, FunctionKind, Immediate, Instruction, Item, Linkage, Module, Name, Operand,
    Param, ParamSpace, RegId, ScalarType, Space, Statement, Symbol, Variable, Version,
};
use ptx::{Cfg, Liveness, ParseError};

use self::code::{Area, Code};
use crate::frame::ALIGNMENT;
use crate::grid::{Grid, reads_workspace};
use crate::group::{may_wait_for_others, of_body};
use crate::inline::{inlined, marked, reached};
use crate::lasting::Lasting;
use crate::marker::{is_marked, markers, place};
use crate::pointer::Pointers;
use crate::poll::barriers;
use crate::refusal::{Place, Refused};
use crate::uniform::Divergence;
use crate::{Frame, Group, Poll, Reason, Refusal};

/// A module in which marked kernels have twins that can be stopped.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// Its text: all that there was, and behind each kernel its twin.
    pub text: String,
    /// The kernels that have one.
    pub kernels: BTreeMap<Name, Kernel>,
    /// Marked ones that have none.
    pub refusals: Vec<Refusal>,
}

/// A kernel that can be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The name of the twin that is launched in its place.
    pub twin: Name,
    /// Which of its threads stop together.
    pub group: Group,
    /// Where in the parameter buffer the address of its context lies.
    pub context: u64,
    /// What is kept of a block that has stopped.
    pub frame: Frame,
    /// Whether it may keep addresses of shared or local memory that are not known to be such. A block goes on only where such memory lies as it did
    /// when it stopped; elsewhere the kernel ends with an error (`trap`).
    pub is_bound: bool,
}

/// Gives the marked kernels of a module twins that stop at their markers; `None` if there are none.
///
/// # Errors
/// When what was made of it cannot be read again, which is a fault of this pass.
pub fn rewrite(module: &Module) -> Result<Option<Rewritten>, ParseError> {
    rewrite_with(module, Poll::default())
}

/// The same, with polls of one kind.
///
/// # Errors
/// As [`rewrite()`].
pub fn rewrite_with(module: &Module, poll: Poll) -> Result<Option<Rewritten>, ParseError> {
    rewrite_as(module, poll, Form::Loaded)
}

/// A text by which is known what threads that are half-way can go on in: in what is made of a module here they can if they stopped in what was made of one of which this was the
/// same. None where no kernel can be stopped.
///
/// # Errors
/// As [`rewrite()`].
pub fn identity(module: &Module) -> Result<Option<String>, ParseError> {
    Ok(rewrite_as(module, Poll::default(), Form::Known)?.map(|made| made.text))
}

/// What a twin is written for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// To be loaded.
    Loaded,
    /// To be [known by](identity): it has the frames that the other has, and else stays as it was when images first had it.
    Known,
}

fn rewrite_as(module: &Module, poll: Poll, form: Form) -> Result<Option<Rewritten>, ParseError> {
    if !module.functions().any(is_marked) {
        return Ok(None);
    }
    let tag = unused_tag(module);
    let (mut kernels, mut refusals, mut codes) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut made = module.clone();
    made.items.clear();
    let (marked, reached) = (marked(module), reached(module));
    for item in &module.items {
        made.items.push(item.clone());
        let Item::Function(function) = item else { continue };
        let is_kernel = function.kind == FunctionKind::Entry;
        if !marked.contains(&function.name)
            || !is_kernel && (!is_marked(function) || reached.contains(&function.name))
        {
            continue;
        }
        let rewritten = inlined(module, function, &marked, &tag)
            .and_then(|function| rewrite_kernel(module, function, (&tag, poll, form), &mut codes));
        match rewritten {
            Ok((twin, kernel)) => {
                kernels.insert(function.name.clone(), kernel);
                made.items.push(Item::Function(twin));
            }
            Err((place, reason)) => refusals.push(Refusal { kernel: function.name.clone(), place, reason }),
        }
    }
    let mut text = String::new();
    let mut rest = &*made.to_string();
    // In the order in which they were made, which is that of the text.
    for (number, code) in codes.iter().enumerate() {
        let placeholder = format!(".pragma \"{}\";", code::placeholder(&tag, number));
        if let Some((before, after)) = rest.split_once(&placeholder) {
            text.extend([before, code]);
            rest = after;
        }
    }
    text.push_str(rest);
    ptx::parse(&text)?;
    Ok(Some(Rewritten { text, kernels, refusals }))
}

/// What names that are ours begin with: nothing in the module has it in its name.
fn unused_tag(module: &Module) -> String {
    let text = module.to_string();
    let candidates =
        (0..).map(|number| if number == 0 { "cpt_".to_owned() } else { format!("cpt{number}_") });
    candidates.into_iter().find(|tag| !text.contains(tag.as_str())).unwrap_or_default()
}

fn rewrite_kernel(
    module: &Module,
    mut function: Function,
    (tag, poll, form): (&str, Poll, Form),
    codes: &mut Vec<String>,
) -> Result<(Function, Kernel), Refused> {
    let no_body = || (Place::Line(0), Reason::Unsized);
    let written = function.body.as_ref().ok_or_else(no_body)?;
    let found = Grid::of(written).map_err(|(at, reason)| (place(module, written, at), reason))?;
    let grid = found.map(|(moved, grid)| {
        function.body = Some(moved);
        grid
    });
    let body = function.body.as_ref().ok_or_else(no_body)?;
    let marks = markers(body);
    let place_of = |mark: usize| place(module, body, mark);
    let first = place_of(marks.first().copied().unwrap_or(0));
    let refuse = |reason: Reason| (first.clone(), reason);
    if function.kind != FunctionKind::Entry {
        return Err(refuse(Reason::InFunction));
    }
    if module.address_size != 64 {
        return Err(refuse(Reason::AddressSize(module.address_size)));
    }
    if module.version < OLDEST {
        return Err(refuse(Reason::Version(module.version)));
    }
    let called = called(module, body)?;
    called.iter().chain([&body]).try_for_each(|body| refuse_states(module, body))?;
    called.iter().try_for_each(|body| refuse_in_function(module, body))?;
    if called.iter().any(|body| body.locals.iter().any(|local| local.space == Space::Shared)) {
        return Err(refuse(Reason::State("shared memory that a function declares")));
    }
    if body.locals.iter().any(|local| matches!(local.space, Space::Global | Space::Const)) {
        return Err(refuse(Reason::State("a variable of the device that the kernel itself declares")));
    }
    if let Some(mark) = carried_over(body, &marks) {
        return Err((place_of(mark), Reason::Carry));
    }
    let unsized_ = || refuse(Reason::Unsized);
    let (_, end) = function.param_layout().ok_or_else(unsized_)?;
    if end > PARAMETERS - 8 {
        return Err(refuse(Reason::Parameters));
    }
    let context = end.next_multiple_of(8);
    let cfg = Cfg::new(body).map_err(|error| refuse(error.into()))?;
    let (dynamic, sized): (Vec<&Variable>, Vec<&Variable>) = shared_variables(module, body, &called)
        .into_iter()
        .partition(|variable| variable.linkage == Linkage::Extern);
    let shared = areas(sized.into_iter()).ok_or_else(unsized_)?;
    // Any of them stands for what a launch asks for.
    let dynamic = dynamic.first().map(|variable| variable.name.to_string());
    let needed = called.iter().chain([&body]).map(|body| of_body(body)).max();
    // What is in shared memory is whole only when all have stopped.
    let has_shared = dynamic.is_some() || !shared.is_empty();
    let needed = if has_shared { Group::Block } else { needed.unwrap_or(Group::Thread) };
    let needed = if grid.is_some() { Group::Grid } else { needed };
    let divergence_of = |group: Group| {
        let within = group.min(Group::Block);
        Divergence::of((body, &called), &cfg, &marks, within).map_err(|error| refuse(error.into()))
    };
    let together = |found: &Divergence, mark: &usize| found.is_uniform(cfg.block_at(*mark));
    let (group, divergence) = match needed {
        // Where all of a warp come to each mark, they can as well stop together: ptxas sees then that they never part.
        Group::Thread if !called.iter().chain([&body]).any(|body| may_wait_for_others(body)) => {
            let of_warp = divergence_of(Group::Warp)?;
            match marks.iter().all(|mark| together(&of_warp, mark)) {
                true => (Group::Warp, Some(of_warp)),
                false => (Group::Thread, None),
            }
        }
        Group::Thread => (Group::Thread, None),
        group => {
            let found = divergence_of(group)?;
            if let Some(mark) = marks.iter().find(|mark| !together(&found, mark)) {
                return Err((place_of(*mark), Reason::Divergent { group }));
            }
            (group, Some(found))
        }
    };
    let liveness = Liveness::new(body, &cfg).map_err(|error| refuse(error.into()))?;
    let mut live: Vec<Vec<RegId>> = vec![Vec::new(); marks.len()];
    for block in marks.iter().map(|mark| cfg.block_at(*mark)).collect::<BTreeSet<_>>() {
        liveness.for_each_backward(body, &cfg, block, |statement, registers| {
            if let Ok(site) = marks.binary_search(&statement) {
                live[site] = registers.registers().collect();
            }
        });
    }
    let lasting = Lasting::of(body, &live);
    live.iter_mut().for_each(|live| live.retain(|register| !lasting.has(*register)));
    if let Some(grid) = &grid
        && live.iter().flatten().any(|register| grid.has(*register))
    {
        return Err(refuse(Reason::State("a barrier of the whole grid whose word is kept over a round")));
    }
    let pointers = Pointers::of(module, body);
    let is_bound = pointers.are_bound() || called.iter().any(|body| Pointers::of(module, body).are_bound());
    let local = areas(body.locals.iter().filter(|local| local.space == Space::Local)).ok_or_else(unsized_)?;
    let shared_bytes = end_of(&shared).next_multiple_of(ALIGNMENT);
    let frame = Frame::of(
        body,
        &live,
        |register| divergence.as_ref().is_some_and(|found| found.is_alike(register)),
        |register| pointers.pointer(register),
        end_of(&local),
        (shared_bytes, dynamic.is_some()),
    );
    let barriers = match (poll, group) {
        (Poll::Barrier, Group::Block) => barriers(body, &cfg, &marks),
        _ => None,
    };
    let poll = if poll == Poll::Barrier && barriers.is_none() { Poll::Adaptive } else { poll };
    let twin = format!("{tag}{}", function.name).into();
    let kernel = Kernel { twin, group, context, frame, is_bound };
    let code = Code {
        tag,
        kernel: &kernel,
        body,
        parameter: format!("{tag}context"),
        live: &live,
        lasting: &lasting.statements,
        local: &local,
        shared: &shared,
        dynamic: dynamic.as_deref(),
        poll,
        form,
        barriers: &barriers.unwrap_or_default(),
        arrivals: grid.as_ref().map_or(&[], |grid| &grid.arrivals),
        copies: called.iter().chain([&body]).any(|body| copies(body)),
        reduces: module.version >= REDUCES.0 && module.target.sm() >= Some(REDUCES.1),
    };
    let twin = code.twin_of(&function, &cfg, &marks, codes);
    Ok((twin, kernel))
}

/// The first version that has all that is put into a kernel (`activemask`).
const OLDEST: Version = Version { major: 6, minor: 2 };
/// The first version, and the first target, with `redux.sync`.
const REDUCES: (Version, u32) = (Version { major: 7, minor: 0 }, 80);
/// Bytes of parameters that every version has room for.
const PARAMETERS: u64 = 4096;
/// Functions that the device itself has, and that bring no threads together.
pub(crate) const BUILT_IN: [&str; 2] = ["vprintf", "__assertfail"];

/// Whether it is a function of the device's own runtime (`cuda_device_runtime_api.h`), by which kernels launch kernels.
fn is_of_runtime(name: &str) -> bool {
    name.starts_with("__cudaCDP2")
        || name.starts_with("cudaLaunchDevice")
        || name.starts_with("cudaGetParameterBuffer")
}

/// The functions that a kernel may come to, all of which have to be here.
fn called<'a>(module: &'a Module, kernel: &'a Body) -> Result<Vec<&'a Body>, Refused> {
    let (mut found, mut names, mut next) = (Vec::new(), BTreeSet::new(), vec![kernel]);
    while let Some(body) = next.pop() {
        let operands = body
            .numbered_instructions()
            .flat_map(|(at, one)| one.operands.iter().map(move |operand| (at, operand)));
        for (at, operand) in operands {
            let Operand::Call(call) = operand else { continue };
            let refuse = |reason| (place(module, body, at), reason);
            let Callee::Function(name) = &call.callee else {
                return Err(refuse(Reason::Unknown("a function by its address".into())));
            };
            if BUILT_IN.contains(&&**name) || !names.insert(name.clone()) {
                continue;
            }
            if is_of_runtime(name) {
                return Err(refuse(Reason::Launches(Box::from(&**name))));
            }
            let body = module.function(name).and_then(|function| function.body.as_ref());
            let body = body.ok_or_else(|| refuse(Reason::Unknown(Box::from(&**name))))?;
            found.push(body);
            next.push(body);
        }
    }
    Ok(found)
}

/// A thread that leaves in the middle of a function is not seen to be done, nor is a barrier of the grid there.
fn refuse_in_function(module: &Module, body: &Body) -> Result<(), Refused> {
    for (at, instruction) in body.numbered_instructions() {
        let state = match instruction.opcode.mnemonic() {
            "exit" => "a thread that ends in a function (exit)",
            _ if reads_workspace(instruction) => "a barrier of the whole grid (%envreg) in a function",
            _ => continue,
        };
        return Err((place(module, body, at), Reason::State(state)));
    }
    Ok(())
}

/// Whether a barrier is any but number 0 for all threads of the block, which the pass uses itself.
fn is_of_some(instruction: &Instruction) -> bool {
    let reduces = usize::from(instruction.opcode.has("red"));
    let number = instruction.operands.get(reduces);
    let alone = instruction.operands.len() == if reduces == 1 { 3 } else { 1 };
    !(alone && matches!(number, Some(Operand::Imm(Immediate::Int(0)))))
}

/// What cannot be saved, by what has it.
fn refuse_states(module: &Module, body: &Body) -> Result<(), Refused> {
    for (at, instruction) in body.numbered_instructions() {
        let opcode = &instruction.opcode;
        let state = match opcode.mnemonic() {
            // Others are waited for where a block stops.
            "cp" if opcode.has("bulk") => "an asynchronous copy in bulk (cp.async.bulk)",
            "cp" if opcode.has("mbarrier") => "a barrier in shared memory (mbarrier)",
            "wgmma" => "a product of a warp group (wgmma)",
            "tcgen05" => "tensor memory (tcgen05)",
            "mbarrier" => "a barrier in shared memory (mbarrier)",
            "setmaxnreg" => "a changed number of registers (setmaxnreg)",
            "alloca" | "stacksave" | "stackrestore" => "memory of alloca",
            "barrier" if opcode.has("cluster") => "a cluster of blocks",
            "bar" | "barrier" if opcode.has("arrive") => "a barrier at which some have arrived (bar.arrive)",
            "clusterlaunchcontrol" | "mapa" | "getctarank" => "a cluster of blocks",
            "griddepcontrol" => "a launch that begins before its predecessor ends (griddepcontrol)",
            "bar" | "barrier" if !opcode.has("warp") && is_of_some(instruction) => {
                "a barrier of some threads of the block, or of another number than 0,"
            }
            _ => continue,
        };
        return Err((place(module, body, at), Reason::State(state)));
    }
    Ok(())
}

/// Whether threads have copies into shared memory made while they go on (`cp.async`).
fn copies(body: &Body) -> bool {
    body.instructions().any(|instruction| instruction.opcode.mnemonic() == "cp")
}

/// A marker between a sum whose carry is kept and one that adds it.
fn carried_over(body: &Body, marks: &[usize]) -> Option<usize> {
    let mut passed = None;
    for (number, statement) in body.statements.iter().enumerate() {
        if marks.binary_search(&number).is_ok() {
            passed = passed.or(Some(number));
        }
        match statement {
            Statement::Label(_) => passed = None,
            Statement::Instruction(instruction) => {
                if matches!(instruction.opcode.mnemonic(), "addc" | "subc" | "madc") && passed.is_some() {
                    return passed;
                }
                if instruction.opcode.has("cc") {
                    passed = None;
                }
            }
            _ => {}
        }
    }
    None
}

/// The most bytes of variables: no device has so much shared memory, or local memory of a thread.
const VARIABLES_MOST: u64 = 1 << 30;

/// Places for variables, one after the other; none where they are too large.
fn areas<'a>(variables: impl Iterator<Item = &'a Variable>) -> Option<Vec<Area>> {
    let mut areas: Vec<Area> = Vec::new();
    for variable in variables {
        let at = end_of(&areas);
        let bytes = variable.size().filter(|bytes| *bytes <= VARIABLES_MOST - at)?;
        let unit = if variable.alignment() >= 4 { 4 } else { 1 };
        areas.push(Area { name: variable.name.clone(), at, bytes, unit });
    }
    Some(areas)
}

/// Where the next one would be.
fn end_of(areas: &[Area]) -> u64 {
    areas.last().map_or(0, |area| area.at + area.bytes.next_multiple_of(4))
}

/// Variables in shared memory: the body's, and what of the module's it, or a function that it may come to, names.
fn shared_variables<'a>(module: &'a Module, body: &'a Body, called: &[&'a Body]) -> Vec<&'a Variable> {
    let bodies = called.iter().copied().chain([body]);
    let mut named = BTreeSet::new();
    for operand in bodies.flat_map(Body::instructions).flat_map(|instruction| &instruction.operands) {
        add_names(operand, &mut named);
    }
    let of_module = module.variables().filter(|variable| named.contains(&variable.name));
    body.locals.iter().chain(of_module).filter(|variable| variable.space == Space::Shared).collect()
}

/// Adds what an operand names of the module.
fn add_names<'a>(operand: &'a Operand, named: &mut BTreeSet<&'a Name>) {
    let address = |address: &'a ptx::ast::Address| match &address.base {
        ptx::ast::AddressBase::Symbol(Symbol::Module(name)) => Some(name),
        _ => None,
    };
    match operand {
        Operand::Symbol(Symbol::Module(name), _) => {
            named.insert(name);
        }
        Operand::Address(one) => named.extend(address(one)),
        Operand::Indexed { base, sampler, .. } => {
            named.extend(address(base));
            named.extend(sampler.iter().filter_map(address));
        }
        Operand::Vector(all) => all.iter().for_each(|one| add_names(one, named)),
        Operand::Pair(pair) => {
            add_names(&pair.0, named);
            add_names(&pair.1, named);
        }
        Operand::Call(call) => call.arguments.iter().for_each(|one| add_names(one, named)),
        _ => {}
    }
}

/// The parameter that a context's address is passed in.
fn context_parameter(name: &str) -> Param {
    Param {
        name: name.into(),
        space: ParamSpace::Param,
        align: None,
        ty: ScalarType::U64,
        dims: Vec::new(),
        pointee: None,
    }
}
