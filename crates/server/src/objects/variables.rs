//! What an image says of itself: the variables a checkpoint has to save, and what it cannot.

use super::ManagedLayout;
use super::rewritten::{Registers, Rewritten};
use fatbin::{Arch, Code, Fatbinary, Image, ManagedVariable, ModuleFacts, Ptx};
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
        let registers: Registers = facts
            .kernels
            .iter()
            .filter_map(|kernel| Some((kernel.name.clone(), kernel.registers?)))
            .collect();
        let mut variables: BTreeSet<String> = own_variables(facts).collect();
        let rewritten = match (&code, &image) {
            (Code::Ptx(text), _) => Rewritten::of(text, allocates),
            (Code::Cubin(_), Image::Fatbinary(all)) => ptx.and_then(|ptx| {
                let ptx = beside(all, ptx, all.cubin_for(capability)?.arch)?;
                let source = Rewritten::source(&ptx, allocates)?;
                let rewritten = Rewritten::of(&source, allocates)?.limited_to(&registers);
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

/// The PTX that was compiled of the same source text as the machine code for `arch`, which it stands beside, or the `newest` is: that for the same architecture. Which marked
/// kernels cannot be stopped where there is none is told.
fn beside<'a>(all: &Fatbinary<'a>, newest: Ptx<'a>, arch: Arch) -> Option<Ptx<'a>> {
    if newest.arch == arch {
        return Some(newest);
    }
    let same = all.ptx(arch.sm).ok().flatten().filter(|ptx| ptx.arch == arch);
    if same.is_none() {
        Rewritten::tell_other(&newest, arch);
    }
    same
}

fn own_variables(facts: ModuleFacts) -> impl Iterator<Item = String> {
    facts.variables.into_iter().filter(|variable| !variable.managed).map(|variable| variable.name)
}

fn managed(code: &Code<'_>) -> Result<ManagedLayout, String> {
    ManagedLayout::of(ManagedVariable::all_of(code).map_err(|error| error.to_string())?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CUBIN: &[u8] = include_bytes!("../../../fatbin/tests/data/managed90.cubin");

    fn marked(name: &str) -> Vec<u8> {
        let text = format!(
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {name}()\n{{\n.pragma \"cpt\";\nret;\n}}\n"
        );
        text.into_bytes()
    }

    /// A fatbinary of such entries: of kind 1 (PTX) or 2 (machine code), for an architecture.
    fn fatbinary(entries: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, sm, code) in entries {
            let mut header = kind.to_le_bytes().to_vec();
            header.extend(0x101u16.to_le_bytes());
            header.extend(64u32.to_le_bytes());
            header.extend((code.len() as u64).to_le_bytes());
            header.extend([0; 12]);
            header.extend(sm.to_le_bytes());
            header.resize(64, 0);
            body.extend(header);
            body.extend(*code);
        }
        let mut bytes = 0xBA55_ED50u32.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// What `#if __CUDA_ARCH__` leaves out of one may be in the other.
    #[test]
    fn marked_kernels_are_those_of_the_architecture_that_runs() {
        let (old, same, new) = (marked("old"), marked("same"), marked("new"));
        let facts = |entries: &[(u16, u32, &[u8])], device| CodeFacts::of(&fatbinary(entries), device);
        let of = |entries: &[(u16, u32, &[u8])], device| facts(entries, device).rewritten;
        assert!(of(&[(1, 80, &old), (2, 90, CUBIN)], 90).is_none(), "PTX for another one alone");
        let rewritten = of(&[(1, 80, &old), (1, 90, &same), (2, 90, CUBIN)], 90).unwrap();
        assert!(rewritten.kernel("same").is_some());
        // Machine code that fits an older one is what runs on a newer one, too.
        let rewritten = of(&[(1, 90, &same), (2, 90, CUBIN), (1, 91, &new)], 92).unwrap();
        assert!(rewritten.kernel("same").is_some());
        let rewritten = of(&[(1, 80, &old), (2, 90, CUBIN)], 80).unwrap();
        assert!(rewritten.kernel("old").is_some(), "no machine code fits");
    }
}
