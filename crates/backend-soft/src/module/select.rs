//! Which PTX of an image the device runs.

use fatbin::{Architectures, Image};

use super::ModuleError;

/// The PTX to run.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Its text.
    pub text: String,
    /// Architecture that it is for, major times ten plus minor.
    pub sm: u32,
    /// Compute capability of the device that is to run it, likewise.
    pub capability: u32,
}

impl Selected {
    /// Chooses as the driver does for a device of this compute capability: the newest PTX that its architecture includes. What nvcc has linked is linked anew, as PTX.
    ///
    /// # Errors
    /// When the image is damaged or has no such PTX.
    pub fn of(image: &[u8], capability: u32) -> Result<Self, ModuleError> {
        let parsed = Image::parse(image)?;
        let archs: Architectures = parsed.architectures();
        let (bytes, sm) = match &parsed {
            Image::Ptx(text) => (text.to_vec(), archs.ptx.first().map_or(capability, |arch| arch.sm)),
            Image::Cubin(..) => return Err(ModuleError::NoPtx(archs, capability)),
            Image::Fatbinary(fatbinary) => {
                let ptx = fatbinary.ptx(capability)?.ok_or(ModuleError::NoPtx(archs, capability))?;
                let sm = ptx.arch.sm;
                (ptx.text()?.into_owned(), sm)
            }
        };
        // Only comments may hold other bytes, and in a fatbinary a NUL may end the text.
        let text = String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned();
        Ok(Self { text, sm, capability })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_text_is_taken_as_it_is() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\0garbage";
        let selected = Selected::of(text, 90).expect("PTX");
        assert_eq!(selected.sm, 75);
        assert!(selected.text.ends_with("64\n"));
        assert!(Selected::of(b"", 90).is_err());
    }

    #[test]
    fn machine_code_alone_is_refused_with_what_to_do() {
        // A fatbinary with one entry: a cubin for sm_80 of 8 bytes.
        let mut entry = Vec::new();
        entry.extend(2u16.to_le_bytes());
        entry.extend(0x101u16.to_le_bytes());
        entry.extend(64u32.to_le_bytes());
        entry.extend(8u64.to_le_bytes());
        entry.extend([0; 8]);
        entry.extend([7, 0, 1, 0]);
        entry.extend(80u32.to_le_bytes());
        entry.extend([0; 8]);
        entry.extend(1u64.to_le_bytes());
        entry.resize(64 + 8, 0);
        let mut image = 0xBA55_ED50u32.to_le_bytes().to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend((entry.len() as u64).to_le_bytes());
        image.extend(entry);
        let error = Selected::of(&image, 90).expect_err("no PTX").to_string();
        assert!(error.contains("sm_80") && error.contains("no PTX"), "{error}");
        assert!(error.contains("-gencode arch=compute_90,code=compute_90"), "{error}");
    }
}
