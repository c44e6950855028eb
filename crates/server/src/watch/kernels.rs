//! What kernels read and write, by their PTX.

use crate::objects::{Image, ImageHash};
use fatbin::Code;
use ptx::Reach;
use std::collections::HashMap;
use std::sync::Arc;

/// Longer texts are not read: that would take seconds.
const LONGEST: usize = 16 << 20;

/// What the kernels of an image can reach, by name; nothing of one that may reach anything.
type Known = HashMap<String, Arc<Reach>>;

/// What is known of the code of a session.
#[derive(Default)]
pub(super) struct Kernels(HashMap<(ImageHash, u32), Known>);

impl Kernels {
    /// What a kernel of `image` can reach on a device of that compute capability; `None` if that may be anything.
    pub(super) fn reach(&mut self, image: &Image, capability: u32, kernel: &str) -> Option<Arc<Reach>> {
        let known = self.0.entry((image.hash, capability));
        known.or_insert_with(|| read(image, capability).unwrap_or_default()).get(kernel).cloned()
    }
}

fn read(image: &Image, capability: u32) -> Option<Known> {
    let code = match fatbin::Image::parse(&image.bytes).ok()? {
        fatbin::Image::Fatbinary(all) => {
            let ptx = all.ptx(capability).ok()??;
            let length: usize = ptx.units.iter().map(|unit| unit.len()).sum();
            Code::Ptx(if length > LONGEST { return None } else { ptx.text().ok()? })
        }
        other => other.code_for(capability).ok()??,
    };
    let Code::Ptx(text) = code else { return None };
    if text.len() > LONGEST {
        return None;
    }
    let module = ptx::parse(std::str::from_utf8(&text).ok()?).ok()?;
    let reached =
        module.kernels().filter_map(|kernel| Some((kernel.name.to_string(), Arc::new(Reach::of(kernel)?))));
    Some(reached.collect())
}
