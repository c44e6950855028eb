//! Which texture and surface objects there are, by the values that kernels know them by.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use wire::CuError;

use super::{Surface, Texture};

/// An object and its context.
type Of<T> = (u64, T);

/// What kernels see: a launch keeps the objects of the moment when it was submitted.
#[derive(Clone, Default)]
pub struct View {
    textures: BTreeMap<u64, Of<Arc<Texture>>>,
    surfaces: BTreeMap<u64, Of<Surface>>,
}

impl View {
    /// The texture of that value.
    pub fn texture(&self, value: u64) -> Option<&Texture> {
        self.textures.get(&value).map(|(_, texture)| &**texture)
    }

    /// The surface of that value.
    pub fn surface(&self, value: u64) -> Option<&Surface> {
        self.surfaces.get(&value).map(|(_, surface)| surface)
    }
}

/// All objects.
#[derive(Default)]
pub struct Objects(RwLock<Arc<View>>);

/// The least value that is free: as devices do, which keep objects in tables of their own.
fn free<T>(objects: &BTreeMap<u64, T>) -> u64 {
    (1..)
        .zip(objects.keys())
        .find(|(value, taken)| value != *taken)
        .map_or_else(|| objects.len() as u64 + 1, |(value, _)| value)
}

impl Objects {
    /// What there is now.
    pub fn view(&self) -> Arc<View> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change<R>(&self, change: impl FnOnce(&mut View) -> R) -> R {
        change(Arc::make_mut(&mut self.0.write().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Adds a texture of context `ctx`.
    pub fn add_texture(&self, ctx: u64, texture: Texture) -> u64 {
        self.change(|view| {
            let value = free(&view.textures);
            view.textures.insert(value, (ctx, Arc::new(texture)));
            value
        })
    }

    /// Adds a surface of context `ctx`.
    pub fn add_surface(&self, ctx: u64, surface: Surface) -> u64 {
        self.change(|view| {
            let value = free(&view.surfaces);
            view.surfaces.insert(value, (ctx, surface));
            value
        })
    }

    /// Takes a texture away; kernels that were launched before still see it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when there is none.
    pub fn remove_texture(&self, value: u64) -> Result<(), CuError> {
        self.change(|view| view.textures.remove(&value).map(drop)).ok_or(CuError::INVALID_HANDLE)
    }

    /// Takes a surface away; kernels that were launched before still see it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when there is none.
    pub fn remove_surface(&self, value: u64) -> Result<(), CuError> {
        self.change(|view| view.surfaces.remove(&value).map(drop)).ok_or(CuError::INVALID_HANDLE)
    }

    /// Takes everything of a context away.
    pub fn remove_context(&self, ctx: u64) {
        self.change(|view| {
            view.textures.retain(|_, (of, _)| *of != ctx);
            view.surfaces.retain(|_, (of, _)| *of != ctx);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::free;
    use std::collections::BTreeMap;

    #[test]
    fn the_least_free_value_is_next() {
        let with =
            |values: &[u64]| free(&values.iter().map(|value| (*value, ())).collect::<BTreeMap<_, _>>());
        assert_eq!([with(&[]), with(&[1, 2]), with(&[2]), with(&[1, 3])], [1, 3, 1, 2]);
    }
}
