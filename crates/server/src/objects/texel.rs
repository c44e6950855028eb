//! Texture and surface objects. Kernels know them by values that the device library chooses, and that programs keep where they
//! like: a restart has to get the same ones.

use super::{
    Array, ArrayRecord, Context, LevelRecord, Making, Mipmap, MipmapRecord, Origin, Placement, Placer, Table,
};
use crate::failure::{Failure, Result};
use backend::Backend;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
use wire::{ArrayDesc, ArrayId, ContextId, CuError, MipmapId, Resource, TextureDesc};

/// How many objects a restart makes to get at the value that one had.
const TRIES: usize = 1 << 18;

/// Texture or surface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum TexelKind {
    /// `CUtexObject`.
    Texture,
    /// `CUsurfObject`.
    Surface,
}

/// What the application knows an object by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TexelKey {
    /// Its context: each has values of its own.
    pub ctx: ContextId,
    /// Which sort of object.
    pub kind: TexelKind,
    /// Its value.
    pub value: u64,
}

impl std::fmt::Display for TexelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            TexelKind::Texture => "texture",
            TexelKind::Surface => "surface",
        };
        write!(f, "{kind} object {:#x} of context {:#x}", self.value, self.ctx.handle())
    }
}

/// What an object reads or writes, and how.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum TexelDesc {
    /// A texture.
    Texture(TextureDesc),
    /// A surface of an array.
    Surface(ArrayId),
}

/// What it takes to make an object again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TexelRecord {
    /// Its context.
    pub ctx: ContextId,
    /// What it is.
    pub desc: TexelDesc,
    /// What kernels know it by.
    pub value: u64,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

impl TexelRecord {
    /// What the application knows it by.
    #[must_use]
    pub fn key(&self) -> TexelKey {
        let kind = match self.desc {
            TexelDesc::Texture(_) => TexelKind::Texture,
            TexelDesc::Surface(_) => TexelKind::Surface,
        };
        TexelKey { ctx: self.ctx, kind, value: self.value }
    }

    /// The memory that it reads by address, if it does.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        match &self.desc {
            TexelDesc::Texture(texture) => texture.resource.memory(),
            TexelDesc::Surface(_) => None,
        }
    }
}

impl TexelDesc {
    /// What the description names.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an array that there is not.
    pub fn behind(&self, table: &Table) -> Result<Behind> {
        match self {
            Self::Texture(texture) => {
                texture.resource.try_map(|array| table.array(array), |mipmap| table.mipmap(mipmap))
            }
            Self::Surface(array) => Ok(Resource::Array(table.array(*array)?)),
        }
    }
}

/// The array that an object is made over, if it is one.
pub type Behind = Resource<Arc<Array>, Arc<Mipmap>>;

/// What kind of array an object was made over, which a restart has to know when the array itself is gone.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Ground {
    /// An array.
    Array(ArrayDesc),
    /// A mipmapped array, and its levels.
    Mipmap(ArrayDesc, u32),
    /// A level of one.
    Level(ArrayDesc, u32, u32),
}

impl Ground {
    fn of_array(array: &Array) -> Self {
        match &array.origin {
            Origin::Own(record) => Self::Array(record.desc),
            Origin::Level(of, level) => Self::Level(of.record.desc, of.record.levels, level.level),
        }
    }

    /// An array of the kind, with nothing in it, which nobody names.
    ///
    /// # Errors
    /// The backend's.
    pub fn stand_in(self, placer: &Placer, ctx: &Arc<Context>) -> Result<Behind> {
        let (ctx_id, placement) = (ctx.id(), Placement::default());
        let mipmap = |desc, levels, placement| {
            let record = MipmapRecord { id: MipmapId(0), ctx: ctx_id, desc, levels, placement };
            Mipmap::make(placer, ctx, record, Making::Again)
        };
        Ok(match self {
            Self::Array(desc) => {
                let record = ArrayRecord { id: ArrayId(0), ctx: ctx_id, desc, placement };
                Resource::Array(Array::make(placer, ctx, record, Making::Again)?)
            }
            Self::Mipmap(desc, levels) => Resource::Mipmap(mipmap(desc, levels, placement)?),
            Self::Level(desc, levels, level) => {
                let record = LevelRecord { id: ArrayId(0), mipmap: MipmapId(0), level };
                Resource::Array(mipmap(desc, levels, placement)?.level(record)?)
            }
        })
    }
}

/// The array under an object, which the object does not keep: an array ends when the application says so, as it does natively.
enum Over {
    Array(Weak<Array>, Ground),
    Mipmap(Weak<Mipmap>, Ground),
    Memory,
}

impl Over {
    fn new(behind: &Behind) -> Self {
        match behind {
            Resource::Array(array) => Self::Array(Arc::downgrade(array), Ground::of_array(array)),
            Resource::Mipmap(mipmap) => {
                let MipmapRecord { desc, levels, .. } = mipmap.record;
                Self::Mipmap(Arc::downgrade(mipmap), Ground::Mipmap(desc, levels))
            }
            Resource::Linear { .. } | Resource::Pitch2D { .. } => Self::Memory,
        }
    }
}

/// A live object; ended when the last user lets go.
pub struct Texel {
    /// Its constructor.
    pub record: TexelRecord,
    over: Over,
    object: Object,
}

/// What the device library made; destroyed with the value.
struct Object {
    kind: TexelKind,
    value: u64,
    ctx: Arc<Context>,
    backend: Arc<dyn Backend>,
}

impl Object {
    fn make(
        backend: &Arc<dyn Backend>,
        ctx: &Arc<Context>,
        desc: &TexelDesc,
        behind: &Behind,
    ) -> backend::Result<Self> {
        let (kind, value) = match (desc, behind) {
            (TexelDesc::Texture(texture), behind) => {
                let resource =
                    behind.clone().try_map(|array| Ok(array.raw), |mipmap| Ok::<_, CuError>(mipmap.raw))?;
                let texture = TextureDesc { resource, sampling: texture.sampling, view: texture.view };
                (TexelKind::Texture, backend.texture_create(ctx.raw, &texture)?)
            }
            (TexelDesc::Surface(_), Resource::Array(array)) => {
                (TexelKind::Surface, backend.surface_create(ctx.raw, array.raw)?)
            }
            (TexelDesc::Surface(_), _) => return Err(CuError::INVALID_VALUE),
        };
        Ok(Self { kind, value, ctx: Arc::clone(ctx), backend: Arc::clone(backend) })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let ended = match self.kind {
            TexelKind::Texture => self.backend.texture_destroy(self.ctx.raw, self.value),
            TexelKind::Surface => self.backend.surface_destroy(self.ctx.raw, self.value),
        };
        if let Err(error) = ended {
            tracing::warn!(value = self.value, %error, "texture or surface object not destroyed");
        }
    }
}

/// Objects that a restart has made on its way to the values it needs, to be let go of when it has them all.
#[derive(Default)]
pub struct Placeholders(Vec<Object>);

impl Placeholders {
    /// Makes objects until one has the value `wanted`.
    ///
    /// The driver gives a value that has become free only after all others that are: what is let go of at once brings the next. Where a value
    /// comes back at once, its object is held. Held, the values of a program that has made many objects would use up the driver's table, and
    /// those it has had would come after thousands of new ones.
    fn find(&mut self, wanted: u64, make: impl Fn() -> backend::Result<Object>) -> Result<Object> {
        // The value may be in use here: free again, it is one of the next. A device library may give the objects of all contexts their values
        // from one table; where it does not, one too many is made again when it is needed.
        self.0.retain(|held| held.value != wanted);
        let mut found = None;
        for _ in 0..TRIES {
            let object = make()?;
            if object.value == wanted {
                return Ok(object);
            }
            if found.replace(object.value) == Some(object.value) {
                self.0.push(object);
            }
        }
        let found = found.map_or_else(|| "nothing".to_owned(), |value| format!("{value:#x}"));
        let detail = format!(
            "the device library calls it {found} and not {wanted:#x} as before; restart with the same driver and device"
        );
        Err(Failure::new(CuError::OPERATING_SYSTEM, detail))
    }
}

impl Texel {
    /// Makes a new object, and notes its value in the record.
    ///
    /// # Errors
    /// The backend's.
    pub fn make(
        placer: &Placer,
        ctx: &Arc<Context>,
        mut record: TexelRecord,
        behind: Behind,
    ) -> Result<Arc<Self>> {
        let desc = record.desc;
        let object = placer.place_unseen(&mut record.placement, Making::New, || {
            Object::make(&placer.backend, ctx, &desc, &behind)
        })?;
        record.value = object.value;
        Ok(Arc::new(Self { record, over: Over::new(&behind), object }))
    }

    /// Makes an object again, with the value it had.
    ///
    /// # Errors
    /// The backend's; `OPERATING_SYSTEM` when the value cannot be had.
    pub fn make_again(
        placer: &Placer,
        ctx: &Arc<Context>,
        mut record: TexelRecord,
        behind: Behind,
        placeholders: &mut Placeholders,
    ) -> Result<Arc<Self>> {
        let (desc, wanted) = (record.desc, record.value);
        let found = placer.place_unseen(&mut record.placement, Making::Again, || {
            Ok(placeholders.find(wanted, || Object::make(&placer.backend, ctx, &desc, &behind)))
        })?;
        Ok(Arc::new(Self { record, over: Over::new(&behind), object: found? }))
    }

    /// What kind of array it was made over, if `table` has that no more.
    #[must_use]
    pub fn lost(&self, table: &Table) -> Option<Ground> {
        let now = self.record.desc.behind(table);
        match (&self.over, now) {
            (Over::Array(was, _), Ok(Resource::Array(now))) if was.as_ptr() == Arc::as_ptr(&now) => None,
            (Over::Mipmap(was, _), Ok(Resource::Mipmap(now))) if was.as_ptr() == Arc::as_ptr(&now) => None,
            (Over::Array(_, ground) | Over::Mipmap(_, ground), _) => Some(*ground),
            (Over::Memory, _) => None,
        }
    }

    /// Its context.
    #[must_use]
    pub fn ctx(&self) -> &Arc<Context> {
        &self.object.ctx
    }
}
