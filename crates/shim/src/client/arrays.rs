//! Arrays, mipmapped arrays, texture and surface objects, as the client knows them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cuda_abi::{CuError, CuResult, sys};
use wire::{ArrayDesc, ArrayId, ArrayShape, ContextId, MipmapId};

use super::context::Owner;
use super::registry::Object;
use super::thread::Call;

/// An array, or a level of a mipmapped one.
pub struct Array {
    /// Its id.
    pub id: ArrayId,
    /// Its context.
    pub owner: Owner,
    /// What it is.
    pub desc: ArrayDesc,
    /// How its bytes lie.
    pub shape: ArrayShape,
    /// The mipmapped array that it is a level of, and goes with.
    pub mipmap: Option<Arc<Mipmap>>,
    /// Whether it is destroyed.
    pub gone: AtomicBool,
}

impl Object for Array {
    fn is_alive(&self) -> bool {
        let of_level = self.mipmap.as_ref().is_none_or(|mipmap| mipmap.is_alive());
        of_level && self.owner.is_alive() && !self.gone.load(Ordering::Acquire)
    }
}

/// A mipmapped array.
pub struct Mipmap {
    /// Its id.
    pub id: MipmapId,
    /// Its context.
    pub owner: Owner,
    /// What its first level is.
    pub desc: ArrayDesc,
    /// Levels.
    pub levels: u32,
    /// Levels that were asked for.
    pub handed_out: Mutex<HashMap<u32, ArrayId>>,
    /// Whether it is destroyed.
    pub gone: AtomicBool,
}

impl Object for Mipmap {
    fn is_alive(&self) -> bool {
        self.owner.is_alive() && !self.gone.load(Ordering::Acquire)
    }
}

/// What a texture or surface object was made from, as the application wrote it.
#[derive(Clone, Copy)]
pub struct TexelDescs {
    /// What it reads or writes.
    pub resource: Plain<sys::CUDA_RESOURCE_DESC>,
    /// How a texture reads.
    pub texture: Option<Plain<sys::CUDA_TEXTURE_DESC>>,
    /// Which part of it, and as what.
    pub view: Option<Plain<sys::CUDA_RESOURCE_VIEW_DESC>>,
}

/// The bytes of a description: an application may have written numbers that today's enums do not have.
#[derive(Clone, Copy)]
pub struct Plain<T: Copy>(std::mem::MaybeUninit<T>);

// SAFETY: bytes of a description, which has no ties to a thread; its pointers are never followed.
unsafe impl<T: Copy> Send for Plain<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Plain<T> {}

impl<T: Copy> Plain<T> {
    /// Copies a description.
    ///
    /// # Safety
    /// `from` must be the caller's to read.
    pub unsafe fn read(from: *const T) -> Self {
        // SAFETY: as the caller says; any bytes are a `MaybeUninit`.
        Self(unsafe { from.cast::<std::mem::MaybeUninit<T>>().read() })
    }

    /// Copies it out.
    ///
    /// # Safety
    /// `to` must be the caller's to write.
    pub unsafe fn write(&self, to: *mut T) {
        // SAFETY: as the caller says.
        unsafe { to.cast::<std::mem::MaybeUninit<T>>().write(self.0) };
    }
}

/// Texture or surface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TexelKind {
    /// `CUtexObject`.
    Texture,
    /// `CUsurfObject`.
    Surface,
}

type TexelKey = (ContextId, TexelKind, u64);

/// Texture and surface objects: the device library gives them their values, in each context its own.
#[derive(Default)]
pub struct Texels(RwLock<HashMap<TexelKey, (Owner, TexelDescs)>>);

impl Texels {
    /// Adds an object of the context that lives now.
    pub fn insert(&self, owner: Owner, kind: TexelKind, value: u64, descs: TexelDescs) {
        let key = (owner.context.id, kind, value);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(key, (owner, descs));
    }

    /// What an object was made from.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is none.
    pub fn get(&self, ctx: ContextId, kind: TexelKind, value: u64) -> CuResult<TexelDescs> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&(ctx, kind, value)).filter(|(owner, _)| owner.is_alive());
        found.map(|(_, descs)| *descs).ok_or(CuError::INVALID_VALUE)
    }

    /// Takes an object away: only one caller gets it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is none.
    pub fn remove(&self, ctx: ContextId, kind: TexelKind, value: u64) -> CuResult {
        let removed = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&(ctx, kind, value));
        removed.filter(|(owner, _)| owner.is_alive()).map(drop).ok_or(CuError::INVALID_VALUE)
    }

    /// Forgets the objects of contexts that are gone.
    pub fn sweep(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|_, (owner, _)| owner.is_alive());
    }
}

impl Call<'_> {
    /// An array.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for one that is not there.
    pub fn array(&self, handle: sys::CUarray) -> CuResult<Arc<Array>> {
        let id = ArrayId::from_handle(handle.addr() as u64).ok_or(CuError::INVALID_HANDLE)?;
        self.session.arrays.get(id.0).ok_or(CuError::INVALID_HANDLE)
    }

    /// A mipmapped array.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for one that is not there.
    pub fn mipmap(&self, handle: sys::CUmipmappedArray) -> CuResult<Arc<Mipmap>> {
        let id = MipmapId::from_handle(handle.addr() as u64).ok_or(CuError::INVALID_HANDLE)?;
        self.session.mipmaps.get(id.0).ok_or(CuError::INVALID_HANDLE)
    }
}
