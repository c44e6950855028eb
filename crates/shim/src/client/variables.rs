//! Variables in managed memory (`__managed__`): those of a module or a library lie in one piece of it, which goes with them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use cuda_abi::{CuError, CuResult};
use wire::{LibraryBind, LibraryManaged, ManagedVariables};

use super::memory::Kind;
use super::objects::{Library, Module};
use super::thread::Call;

/// Where the variables in managed memory of some code lie.
#[derive(Default)]
pub struct Variables {
    /// Address and bytes, by name.
    places: HashMap<String, (u64, u64)>,
    /// Address and number of the memory that they lie in, if there are any.
    memory: Option<(u64, u32)>,
}

impl Variables {
    /// Address and bytes of a variable.
    pub fn find(&self, name: &str) -> Option<(u64, u64)> {
        self.places.get(name).copied()
    }

    /// Where the memory begins.
    pub fn base(&self) -> u64 {
        self.memory.map_or(0, |(base, _)| base)
    }
}

impl Call<'_> {
    /// Allocates the memory that variables need.
    ///
    /// # Errors
    /// As [`Call::allocate_managed`].
    pub(super) fn house(&mut self, needed: &ManagedVariables) -> CuResult<Variables> {
        let base = self.allocate_managed(needed.bytes, true)?;
        let number = self.session.memory.find(base).map_or(0, |allocation| allocation.number);
        let places = needed.variables.iter().map(|it| (it.name.clone(), (base + it.offset, it.bytes)));
        Ok(Variables { places: places.collect(), memory: Some((base, number)) })
    }

    /// Frees it, when the code is gone.
    pub(super) fn evict(&mut self, variables: &Variables) {
        if self.has(variables) && variables.memory.is_some() {
            // What the server does not free now goes with the context.
            let _ = self.free_managed(variables.base());
        }
    }

    /// Whether the memory is still there: it goes with the context that it was made in.
    fn has(&self, variables: &Variables) -> bool {
        variables.memory.is_none_or(|(base, number)| {
            let found = self.session.memory.find(base);
            found.is_some_and(|it| {
                it.number == number && matches!(it.kind, Kind::Managed { of_code: true, .. })
            })
        })
    }

    /// A library's variables, which are given their memory the first time they are asked for: before its code is used.
    ///
    /// # Errors
    /// What the server says; `INVALID_CONTEXT` where none is current in which to allocate.
    pub fn library_variables(&mut self, library: &Library) -> CuResult<Arc<Variables>> {
        // Held, so that one thread allocates.
        let mut known = library.variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| self.has(known)) {
            return Ok(Arc::clone(known));
        }
        let (ctx, library) = (self.any_context()?, library.id);
        let needed = self.ask(&LibraryManaged { ctx, library })?;
        let variables = match needed.variables.is_empty() {
            true => Variables::default(),
            false => {
                let ctx = self.context()?.id;
                let variables = self.house(&needed)?;
                if let Err(error) = self.ask(&LibraryBind { ctx, library, managed: variables.base() }) {
                    self.evict(&variables);
                    return Err(error);
                }
                variables
            }
        };
        Ok(Arc::clone(known.insert(Arc::new(variables))))
    }

    /// Address and bytes of a module's variable in managed memory.
    ///
    /// # Errors
    /// As [`Call::library_variables`], for a library's module.
    pub fn module_variable(&mut self, module: &Module, name: &str) -> CuResult<Option<(u64, u64)>> {
        let Some(library) = module.library else { return Ok(module.variables.find(name)) };
        let library = self.session.libraries.get(library.0).ok_or(CuError::INVALID_HANDLE)?;
        Ok(self.library_variables(&library)?.find(name))
    }
}
