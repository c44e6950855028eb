//! Arrays, and the texture and surface objects that kernels read and write them by.
//!
//! An array is device memory in which slices lie packed, and rows nearly so. An object is resolved when it is made: which bytes, as
//! what, read how.

mod array;
mod object;
mod sample;
mod table;

pub use array::{Array, LIMITS, Mipmap, TEXTURE_LINEAR, check};
pub use object::{Plane, Surface, Texture};
pub use sample::{Source, Spot, Texel, face};
pub use table::{Objects, View};
