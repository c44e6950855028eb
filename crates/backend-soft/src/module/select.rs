//! Which PTX of an image the device runs.

use fatbin::{Architectures, Image};

use super::{COMPUTE_CAPABILITY, ModuleError};

/// The PTX to run.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Its text.
    pub text: String,
    /// Architecture that it is for, major times ten plus minor.
    pub sm: u32,
}

impl Selected {
    /// Chooses as the driver does: the newest PTX that the device's architecture includes.
    ///
    /// # Errors
    /// When the image is damaged or has no such PTX.
    pub fn of(image: &[u8]) -> Result<Self, ModuleError> {
        let parsed = Image::parse(image)?;
        let archs: Architectures = parsed.architectures();
        let (bytes, sm) = match &parsed {
            Image::Ptx(text) => (text.to_vec(), archs.ptx.first().map_or(COMPUTE_CAPABILITY, |arch| arch.sm)),
            Image::Cubin(..) => return Err(ModuleError::NoPtx(archs)),
            Image::Fatbinary(fatbinary) => {
                let entry = fatbinary.ptx_for(COMPUTE_CAPABILITY).ok_or(ModuleError::NoPtx(archs))?;
                (entry.code()?.into_owned(), entry.arch.sm)
            }
        };
        // Only comments may hold other bytes, and in a fatbinary a NUL may end the text.
        let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
        Ok(Self { text, sm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_text_is_taken_as_it_is() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\0garbage";
        let selected = Selected::of(text).expect("PTX");
        assert_eq!(selected.sm, 75);
        assert!(selected.text.ends_with("64\n"));
        assert!(Selected::of(b"").is_err());
    }
}
