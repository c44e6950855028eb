//! What an image says of itself: the variables a checkpoint has to save, and what it cannot.

use fatbin::{Image as Code, ModuleFacts};

/// What is known of a module's code.
#[derive(Clone, Default, Debug)]
pub struct CodeFacts {
    /// Symbols of the variables in global and constant memory.
    pub variables: Vec<String>,
    /// Whether they are those of the very code that is loaded, so that each must be found.
    pub exact: bool,
    /// Of them, those that the host is to use too (`__managed__`).
    pub managed: Vec<String>,
    /// What a checkpoint cannot save.
    pub refusals: Vec<String>,
    /// Whether its kernels may print, assertions included.
    pub prints: bool,
    /// Whether its kernels may allocate from the device's heap.
    pub allocates: bool,
}

impl CodeFacts {
    /// What `bytes` says of the code that a device of compute capability `capability` runs.
    #[must_use]
    pub fn of(bytes: &[u8], capability: u32) -> Self {
        let unknown = |reason: String| Self {
            refusals: vec![format!("its variables are not known ({reason})")],
            prints: true,
            ..Self::default()
        };
        let (facts, exact) = match Code::parse(bytes) {
            Err(error) => return unknown(error.to_string()),
            Ok(Code::Cubin(_, bytes)) => (ModuleFacts::of_cubin(bytes), true),
            Ok(Code::Ptx(text)) => (ModuleFacts::of_ptx_text(text), false),
            Ok(Code::Fatbinary(fatbinary)) => {
                match (fatbinary.cubin_for(capability), fatbinary.ptx_for(capability)) {
                    (Some(entry), ptx) => (ModuleFacts::of_entry(entry), ptx.is_none()),
                    (None, Some(entry)) => (ModuleFacts::of_entry(entry), false),
                    (None, None) => return unknown("no code in it fits the device".into()),
                }
            }
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
        let managed = facts.variables.iter().filter(|variable| variable.managed);
        let managed: Vec<String> = managed.map(|variable| variable.name.clone()).collect();
        refusals.extend(managed.iter().map(|name| format!("its variable {name} is managed memory")));
        let allocates = facts.uses_heap();
        let variables = facts.variables.into_iter().map(|variable| variable.name).collect();
        Self { variables, exact, managed, refusals, prints, allocates }
    }
}
