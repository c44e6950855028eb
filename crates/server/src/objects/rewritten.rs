//! What is loaded in place of an image whose kernels are marked, so that they can be stopped half-way, or allocate, so that their heap can be saved.

use cpt::{Kernel, Poll, Reason, Refusal};
use fatbin::{Arch, Architectures, Ptx};
use ptx::ast::Module;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

/// What every mark has in its text.
const MARK: &str = "\"cpt";

/// Whose heap kernels allocate from: `driver`, if code is to be loaded as it is.
const HEAP: &str = "DORMOUSE_HEAP";

/// How marked kernels ask for the flag, to measure it: `every`, `count:N`, `adaptive`, `barrier`.
const POLL: &str = "DORMOUSE_POLL";

fn poll() -> Poll {
    let Ok(named) = std::env::var(POLL) else { return Poll::default() };
    named.parse().unwrap_or_else(|error| {
        tracing::warn!("{POLL}={named}: {error}");
        Poll::default()
    })
}

/// Registers of a kernel's threads, by its name.
pub type Registers = BTreeMap<String, u32>;

/// Threads get registers by so many, on all devices.
const REGISTERS_AT_A_TIME: u32 = 8;
/// With as many a multiprocessor has all the threads that it can have (65,536 for 2,048).
const REGISTERS_FOR_ALL: u32 = 32;
/// The most that a thread can have.
const REGISTERS_MOST: u32 = 255;

/// Code that is loaded in place of an image's.
pub struct Rewritten {
    /// PTX.
    text: String,
    /// The same with [limits](Self::limited_to), if it has any.
    limited: Option<String>,
    /// BLAKE3 of what it is [known by](cpt::identity): what is half-way in it can go on in no other.
    pub hash: [u8; 32],
    /// Kernels that may allocate, from a heap of ours, if any does.
    allocating: Option<BTreeSet<String>>,
    kernels: BTreeMap<String, Arc<Kernel>>,
}

impl Rewritten {
    /// The text that something is to be made of; none where nothing is marked and kernels do not allocate, or it cannot be linked. Which marked kernels that concerns is told.
    #[must_use]
    pub fn source<'a>(ptx: &Ptx<'a>, allocates: bool) -> Option<Cow<'a, [u8]>> {
        let marked: Vec<&str> = ptx.units.iter().filter_map(|unit| marked(unit)).collect();
        if marked.is_empty() && !allocates {
            return None;
        }
        ptx.text().inspect_err(|error| tell(&marked, error)).ok()
    }

    /// Says of which marked kernels a device runs machine code for `arch`, where their PTX is for another architecture.
    pub fn tell_other(ptx: &Ptx<'_>, arch: Arch) {
        let marked: Vec<&str> = ptx.units.iter().filter_map(|unit| marked(unit)).collect();
        let code = Architectures { sass: vec![arch], ptx: vec![ptx.arch] };
        tell(
            &marked,
            format_args!(
                "it has {code}, which may have been compiled of other source text: have nvcc keep PTX for the same architecture (for sm_90: -gencode arch=compute_90,code=compute_90)"
            ),
        );
    }

    /// What is made of PTX, whose kernels allocate or not; none where they do not, and none is marked or none of the marked ones can be stopped, which is told.
    #[must_use]
    pub fn of(ptx: &[u8], allocates: bool) -> Option<Self> {
        let allocates = allocates && std::env::var_os(HEAP).is_none_or(|whose| whose != "driver");
        let text = std::str::from_utf8(ptx).ok()?;
        let is_marked = marked(ptx).is_some();
        if !is_marked && !allocates {
            return None;
        }
        let module = ptx::parse(text).inspect_err(|error| {
            tracing::warn!("device code with kernels that are marked or allocate is loaded as it is, since it is not understood: {error}");
        });
        let mut module = module.ok()?;
        let allocating = if allocates { heap::rewrite(&mut module) } else { None };
        let made = if is_marked { stoppable(&module) } else { None };
        let (text, known_by, kernels) = match made {
            Some((made, known_by)) => (made.text, Some(known_by), made.kernels),
            None if allocating.is_some() => (module.to_string(), None, BTreeMap::new()),
            None => return None,
        };
        Some(Self {
            hash: *blake3::hash(known_by.as_ref().unwrap_or(&text).as_bytes()).as_bytes(),
            text,
            limited: None,
            allocating: allocating.map(|kernels| kernels.iter().map(ToString::to_string).collect()),
            kernels: kernels.into_iter().map(|(name, kernel)| (name.to_string(), Arc::new(kernel))).collect(),
        })
    }

    /// The same, with no more registers for twins than their kernels have in machine code, as far as those keep blocks off the device: what a twin has beyond its kernel's own
    /// code is at rest mostly, and has memory for what it lacks. `ptxas` would rather give it as many as it could use.
    #[must_use]
    pub fn limited_to(mut self, registers: &Registers) -> Self {
        let mut text = self.text.clone();
        // Where local memory lies must stay as it is for those that are bound to that.
        for (name, kernel) in self.kernels.iter().filter(|(_, kernel)| !kernel.is_bound) {
            let Some(registers) = registers.get(name) else { continue };
            let most = (*registers).clamp(REGISTERS_FOR_ALL, REGISTERS_MOST);
            let most = most.next_multiple_of(REGISTERS_AT_A_TIME).min(REGISTERS_MOST);
            let body = text.find(&format!(".entry {}(", kernel.twin)).and_then(|entry| {
                let head = text[entry..].find("\n{")?;
                // Whoever has said how many blocks there are to be has said this.
                let says =
                    [".maxnreg", ".minnctapersm"].iter().any(|word| text[entry..entry + head].contains(word));
                (!says).then_some(entry + head)
            });
            if let Some(body) = body {
                text.insert_str(body, &format!("\n.maxnreg {most}"));
            }
        }
        self.limited = Some(text).filter(|limited| *limited != self.text);
        self
    }

    /// What is to be loaded, the best first.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.limited.as_deref().into_iter().chain([&*self.text])
    }

    /// Whether it has a variable that says where a heap of ours is.
    #[must_use]
    pub fn has_heap(&self) -> bool {
        self.allocating.is_some()
    }

    /// Whether the kernel of that name may allocate from a heap of ours.
    #[must_use]
    pub fn allocates(&self, kernel: &str) -> bool {
        self.allocating.as_ref().is_some_and(|kernels| kernels.contains(kernel))
    }

    /// Whether it has kernels that can be stopped.
    #[must_use]
    pub fn can_stop(&self) -> bool {
        !self.kernels.is_empty()
    }

    /// What is known of the kernel of that name, if it can be stopped.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.get(name)
    }

    /// Whether a kernel is one that the program does not know of.
    #[must_use]
    pub fn is_twin(&self, name: &str) -> bool {
        self.kernels.values().any(|kernel| &*kernel.twin == name)
    }
}

/// The text of PTX with marks.
fn marked(ptx: &[u8]) -> Option<&str> {
    std::str::from_utf8(ptx).ok().filter(|text| text.contains(MARK))
}

/// Says why the marked functions of these texts cannot be stopped.
fn tell(marked: &[&str], why: impl Display) {
    for text in marked {
        let launching = launching(text);
        for refusal in &launching {
            tracing::warn!("{refusal}; a checkpoint waits for its end");
        }
        let is_told = |name: &String| launching.iter().any(|refusal| *refusal.kernel == **name);
        for name in functions_marked(text).into_iter().filter(|name| !is_told(name)) {
            tracing::warn!(
                "the marked {} cannot be stopped half-way: {why}; a checkpoint waits for its end",
                cpt::in_source(&name)
            );
        }
    }
}

/// Those that launch kernels. What they call for that is of a library without PTX, so their code cannot be linked; but that is not why.
fn launching(text: &str) -> Vec<Refusal> {
    let made = ptx::parse(text).ok().and_then(|module| cpt::rewrite(&module).ok()?);
    let refusals = made.into_iter().flat_map(|made| made.refusals);
    refusals.filter(|refusal| matches!(refusal.reason, Reason::Launches(_))).collect()
}

/// Names of the functions that have marks, kernels or not; none where that is no PTX.
fn functions_marked(text: &str) -> Vec<String> {
    let module = ptx::parse(text).ok();
    let functions = module.iter().flat_map(Module::definitions).filter(|function| cpt::is_marked(function));
    functions.map(|function| function.name.to_string()).collect()
}

/// The module with twins of its marked kernels, if any can be stopped, and what those are known by.
fn stoppable(module: &Module) -> Option<(cpt::Rewritten, String)> {
    let made = cpt::rewrite_with(module, poll());
    let made = made.and_then(|made| Ok(made.zip(cpt::identity(module)?))).inspect_err(|error| {
        tracing::error!(
            "the twins of marked kernels are no PTX, and a checkpoint waits for their end: {error}"
        );
    });
    let (made, known_by) = made.ok()??;
    for refusal in &made.refusals {
        tracing::warn!("{refusal}; a checkpoint waits for its end");
    }
    (!made.kernels.is_empty()).then_some((made, known_by))
}

impl std::fmt::Debug for Rewritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let heap = self.has_heap().then_some("(malloc)");
        f.debug_set().entries(self.kernels.keys().map(String::as_str).chain(heap)).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// They are warned of by name where they cannot be stopped.
    #[test]
    fn marked_functions_are_named() {
        let text = ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func other();\n\
            .visible .func called()\n{\n.pragma \"cpt\";\nret;\n}\n\
            .visible .entry run()\n{\ncall other;\n.pragma \"cpt\";\nret;\n}\n\
            .visible .entry short()\n{\nret;\n}\n";
        assert_eq!(functions_marked(text), ["called", "run"]);
        assert!(marked(text.as_bytes()).is_some() && marked(b".version 7.0").is_none());
        assert!(functions_marked("\"cpt").is_empty());
    }

    #[test]
    fn twins_have_no_more_registers_than_let_as_many_threads_run() {
        let kernel = |name: &str, more: &str| {
            format!(".visible .entry {name}()\n{more}{{\n.pragma \"cpt\";\nret;\n}}\n")
        };
        let says = kernel("says", ".maxntid 128, 1, 1\n.minnctapersm 2\n");
        let text = [
            ".version 7.0\n.target sm_70\n.address_size 64\n",
            &kernel("few", ""),
            &kernel("some", ""),
            &kernel("all", ""),
            &kernel("damaged", ""),
            &kernel("unknown", ""),
            &says,
        ]
        .concat();
        let whole = Rewritten::of(text.as_bytes(), false).unwrap();
        let hash = whole.hash;
        let registers =
            [("few", 12), ("some", 41), ("all", 255), ("damaged", u32::MAX), ("says", 41), ("other", 12)];
        let limited =
            whole.limited_to(&registers.map(|(name, registers)| (name.to_owned(), registers)).into());
        assert_eq!(limited.hash, hash, "what is half-way in one can go on in the other");
        let texts: Vec<_> = limited.texts().collect();
        let module = ptx::parse(texts[0]).unwrap();
        let most =
            |name: &str| module.kernels().find(|kernel| *kernel.name == *name).unwrap().performance.max_nreg;
        let twin = |name: &str| most(&limited.kernel(name).unwrap().twin);
        let found = ["few", "some", "all", "damaged", "unknown", "says"].map(twin);
        assert_eq!(found, [Some(32), Some(48), Some(255), Some(255), None, None]);
        assert_eq!(most("few"), None, "only twins");
        let without =
            texts[0].lines().filter(|line| !line.starts_with(".maxnreg")).map(|line| line.to_owned() + "\n");
        assert_eq!(without.collect::<String>(), texts[1], "what is loaded where that is not");
        let none = Rewritten::of(text.as_bytes(), false).unwrap().limited_to(&Registers::new());
        assert_eq!(none.texts().count(), 1);
    }

    #[test]
    fn kernels_that_launch_kernels_are_told_as_that() {
        let text = ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func __cudaCDP2LaunchDeviceV2();\n.extern .func other();\n\
            .visible .entry parent()\n{\ncall __cudaCDP2LaunchDeviceV2;\n.pragma \"cpt\";\nret;\n}\n\
            .visible .entry run()\n{\ncall other;\n.pragma \"cpt\";\nret;\n}\n";
        let told: Vec<_> = launching(text).iter().map(ToString::to_string).collect();
        let says = |one: &str| one.contains("kernel parent") && one.contains("dynamic parallelism");
        assert!(matches!(&told[..], [one] if says(one)), "{told:?}");
    }
}
