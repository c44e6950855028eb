//! Variables in managed memory (`__managed__`): those of a module or a library lie in one piece of it, which goes with them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use cuda_abi::{CuError, CuResult};
use wire::{Device, LibraryBind, LibraryManaged, ManagedVariables};

use super::memory::Holder;
use super::objects::{Library, Module};
use super::thread::Call;

/// Where the variables in managed memory of some code lie.
#[derive(Default)]
pub struct Variables {
    /// Address and bytes, by name.
    places: HashMap<String, (u64, u64)>,
    /// Where the memory begins that they lie in; 0 where there are none.
    base: u64,
}

impl Variables {
    fn at(base: u64, told: &ManagedVariables) -> Self {
        let places =
            told.variables.iter().map(|it| (it.name.clone(), (base.wrapping_add(it.offset), it.bytes)));
        Self { places: places.collect(), base }
    }

    /// Address and bytes of a variable.
    pub fn find(&self, name: &str) -> Option<(u64, u64)> {
        self.places.get(name).copied()
    }

    /// Where the memory begins that they lie in; 0 where there are none.
    pub fn base(&self) -> u64 {
        self.base
    }
}

impl Call<'_> {
    /// Allocates the memory that a module's variables need.
    ///
    /// # Errors
    /// As [`Call::allocate_managed`].
    pub(super) fn house(&mut self, needed: &ManagedVariables) -> CuResult<Variables> {
        Ok(Variables::at(self.allocate_managed(needed.bytes, Holder::Module)?, needed))
    }

    /// Frees it, when the code is gone.
    pub(super) fn evict(&mut self, variables: &Variables) {
        if variables.base != 0 {
            // What the server does not free goes with the session.
            let _ = self.free_managed(variables.base);
        }
    }

    /// A library's variables, which are given their memory the first time they are asked for: before its code is used.
    ///
    /// # Errors
    /// What the server says.
    pub fn library_variables(&mut self, library: &Library) -> CuResult<Arc<Variables>> {
        // Held, so that one thread allocates.
        let mut known = library.variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref() {
            return Ok(Arc::clone(known));
        }
        let device = self.context().map_or(Device(0), |context| context.device);
        let library = library.id;
        let needed = self.ask(&LibraryManaged { device, library })?;
        let mut variables = Variables::default();
        if !needed.variables.is_empty() {
            variables = Variables::at(self.allocate_for_library(needed.bytes)?, &needed);
            if let Err(error) = self.ask(&LibraryBind { device, library, managed: variables.base }) {
                self.evict(&variables);
                return Err(error);
            }
        }
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
