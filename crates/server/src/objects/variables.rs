//! What an image says of itself: the variables a checkpoint has to save, and what it cannot.

use super::{ManagedLayout, Rewritten};
use fatbin::{Code, Image, ManagedVariable, ModuleFacts};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is known of a module's code.
#[derive(Clone, Debug)]
pub struct CodeFacts {
    /// Symbols of the variables in global and constant memory that is the device's own.
    pub variables: Vec<String>,
    /// Whether they are those of the very code that is loaded, so that each must be found.
    pub exact: bool,
    /// Those that the host is to use too (`__managed__`), or why they cannot be had.
    pub managed: Result<ManagedLayout, String>,
    /// What a checkpoint cannot save.
    pub refusals: Vec<String>,
    /// Whether its kernels may print, assertions included.
    pub prints: bool,
    /// Whether its kernels may allocate from the device's heap.
    pub allocates: bool,
    /// What is loaded in its place, where kernels are marked or allocate.
    pub rewritten: Option<Arc<Rewritten>>,
}

impl CodeFacts {
    /// What `bytes` says of the code that a device of compute capability `capability` runs.
    #[must_use]
    pub fn of(bytes: &[u8], capability: u32) -> Self {
        let unknown = |reason: String| Self {
            refusals: vec![format!("its variables are not known ({reason})")],
            prints: true,
            variables: Vec::new(),
            exact: false,
            managed: Ok(ManagedLayout::default()),
            allocates: false,
            rewritten: None,
        };
        let image = match Image::parse(bytes) {
            Err(error) => return unknown(error.to_string()),
            Ok(image) => image,
        };
        let code = match image.code_for(capability) {
            Err(error) => return unknown(error.to_string()),
            Ok(None) => return unknown("no code in it fits the device".into()),
            Ok(Some(code)) => code,
        };
        // The driver may take a fatbinary's PTX all the same.
        let ptx = match (&code, &image) {
            (Code::Cubin(_), Image::Fatbinary(all)) => all.ptx(capability).ok().flatten(),
            _ => None,
        };
        let (facts, exact) = match &code {
            Code::Cubin(bytes) => (ModuleFacts::of_cubin(bytes), ptx.is_none()),
            Code::Ptx(text) => (ModuleFacts::of_ptx_text(text), false),
        };
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => return unknown(error.to_string()),
        };
        let prints = facts.uses_printf() || facts.imports.iter().any(|name| name == "__assertfail");
        let mut refusals = Vec::new();
        if facts.launches_kernels() {
            refusals.push("its kernels launch kernels: the device runtime's state cannot be saved".into());
        }
        let managed = match facts.variables.iter().any(|variable| variable.managed) {
            true => managed(&code),
            false => Ok(ManagedLayout::default()),
        };
        let allocates = facts.uses_heap();
        let mut variables: BTreeSet<String> = own_variables(facts).collect();
        let rewritten = match (&code, &image) {
            (Code::Ptx(text), _) => Rewritten::of(text, allocates),
            (Code::Cubin(_), Image::Fatbinary(all)) => ptx.and_then(|ptx| {
                // Machine code of another architecture than the PTX may have been compiled of other source text.
                let is_same = all.cubin_for(capability).is_some_and(|entry| entry.arch == ptx.arch);
                let allocates = allocates && is_same;
                let source = Rewritten::source(&ptx, allocates)?;
                let rewritten = Rewritten::of(&source, allocates)?;
                // What machine code and PTX call the objects' internal variables differs where they are linked.
                variables.extend(ModuleFacts::of_ptx_text(&source).into_iter().flat_map(own_variables));
                Some(rewritten)
            }),
            (Code::Cubin(_), _) => None,
        };
        let rewritten = rewritten.map(Arc::new);
        let variables = variables.into_iter().collect();
        Self { variables, exact, managed, refusals, prints, allocates, rewritten }
    }
}

fn own_variables(facts: ModuleFacts) -> impl Iterator<Item = String> {
    facts.variables.into_iter().filter(|variable| !variable.managed).map(|variable| variable.name)
}

fn managed(code: &Code<'_>) -> Result<ManagedLayout, String> {
    ManagedLayout::of(ManagedVariable::all_of(code).map_err(|error| error.to_string())?)
}
