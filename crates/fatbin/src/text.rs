//! PTX for a device: of one source, or of all that a program's device code was linked of.

use std::borrow::Cow;

use crate::{
    arch::Arch,
    compression::{DecompressError, MAX_DECOMPRESSED},
    fatbinary::Entry,
};

/// PTX for a device.
#[derive(Clone, Debug)]
pub struct Ptx<'a> {
    /// The newest architecture that it is for.
    pub arch: Arch,
    /// Its texts, which have to be linked if there are several.
    pub units: Vec<Cow<'a, [u8]>>,
    /// How many units have none.
    lacking: usize,
}

/// Units whose PTX is not a module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PtxError {
    /// Some units are machine code alone, or what is optimised when it is linked.
    #[error(
        "its device code was linked (nvcc -rdc=true) of {all} objects, of which {lacking} have no PTX for the device: compile these with \
         -gencode arch=compute_90,code=compute_90, too"
    )]
    Lacking {
        /// Of all units.
        all: usize,
        /// How many.
        lacking: usize,
    },
    /// Text that is no PTX.
    #[error(transparent)]
    Parse(#[from] ptx::ParseError),
    /// Units that do not fit together.
    #[error("its device code was linked (nvcc -rdc=true), and cannot be linked as PTX: {0}")]
    Link(#[from] ptx::LinkError),
}

impl<'a> Ptx<'a> {
    /// Of each unit's entry; `None` where no unit has one.
    pub(crate) fn of<'e>(
        entries: impl Iterator<Item = Option<&'e Entry<'a>>>,
    ) -> Result<Option<Self>, DecompressError>
    where
        'a: 'e,
    {
        let mut all: Option<Self> = None;
        let (mut lacking, mut length) = (0, 0);
        for entry in entries {
            let Some(entry) = entry else {
                lacking += 1;
                continue;
            };
            let text = entry.code()?;
            // Of all units together no more is read than of one.
            length += text.len() as u64;
            if length > MAX_DECOMPRESSED {
                return Err(DecompressError::TooLong { claimed: length });
            }
            match &mut all {
                None => all = Some(Self { arch: entry.arch, units: vec![text], lacking: 0 }),
                Some(all) => {
                    all.arch = all.arch.max(entry.arch);
                    all.units.push(text);
                }
            }
        }
        Ok(all.map(|all| Self { lacking, ..all }))
    }

    /// The text of one module.
    ///
    /// # Errors
    /// [`PtxError`], where there are several units.
    pub fn text(&self) -> Result<Cow<'a, [u8]>, PtxError> {
        if self.lacking > 0 {
            let all = self.units.len() + self.lacking;
            return Err(PtxError::Lacking { all, lacking: self.lacking });
        }
        if let [text] = &self.units[..] {
            return Ok(text.clone());
        }
        let units = self.units.iter().map(|text| ptx::parse(&String::from_utf8_lossy(text)));
        let linked = ptx::link(units.collect::<Result<_, _>>()?)?;
        Ok(Cow::Owned(linked.to_string().into_bytes()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Code, EntryKind, Fatbinary, Image};

    const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
    const CALLER: &str = ".extern .func called();\n.visible .entry run()\n{\ncall called;\nret;\n}\n";
    const CALLED: &str = ".visible .func called()\n{\nret;\n}\n";

    /// A fatbinary with one entry: of kind 1 (PTX) or 2 (machine code).
    fn fatbinary(kind: u16, sm: u32, code: &str) -> Vec<u8> {
        let mut entry = kind.to_le_bytes().to_vec();
        entry.extend(0x101u16.to_le_bytes());
        entry.extend(64u32.to_le_bytes());
        entry.extend((code.len() as u64).to_le_bytes());
        entry.extend([0; 12]);
        entry.extend(sm.to_le_bytes());
        entry.resize(64, 0);
        entry.extend(code.bytes());
        let mut bytes = 0xBA55_ED50u32.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((entry.len() as u64).to_le_bytes());
        bytes.extend(entry);
        bytes
    }

    /// What is sent of code that nvcc has linked for sm_90 of these units.
    fn linked(units: &[&[u8]]) -> Vec<u8> {
        let alone = units.iter().flat_map(|unit| Fatbinary::parse(unit).unwrap().ptx_alone());
        fatbinary(2, 90, "SASS").into_iter().chain(alone).collect()
    }

    fn ptx(bytes: &[u8], device: u32) -> Option<Ptx<'_>> {
        let Image::Fatbinary(image) = Image::parse(bytes).unwrap() else { panic!("a fatbinary") };
        image.ptx(device).unwrap()
    }

    #[test]
    fn what_was_linked_is_linked_anew() {
        let units = [CALLER, CALLED].map(|unit| fatbinary(1, 70, &format!("{HEADER}{unit}")));
        let bytes = linked(&[&units[0], &units[1]]);
        let found = ptx(&bytes, 90).unwrap();
        assert_eq!((found.units.len(), found.arch.sm), (2, 70));
        let text = String::from_utf8(found.text().unwrap().into_owned()).unwrap();
        assert!(text.contains(".entry run") && !text.contains(".extern"), "{text}");
        // Machine code is what runs where it fits, else that.
        let image = Image::parse(&bytes).unwrap();
        assert!(matches!(image.code_for(90).unwrap(), Some(Code::Cubin(_))));
        assert!(matches!(image.code_for(80).unwrap(), Some(Code::Ptx(code)) if *code == *text.as_bytes()));
        assert!(image.code_for(60).unwrap().is_none());
        // The driver, and whoever does not ask, sees the first alone.
        assert_eq!(Fatbinary::parse(&bytes).unwrap().architectures().to_string(), "SASS for sm_90, no PTX");
    }

    #[test]
    fn units_without_ptx_are_told() {
        let (with, without) = (fatbinary(1, 70, &format!("{HEADER}{CALLER}")), fatbinary(2, 90, "SASS"));
        let bytes = linked(&[&with, &without]);
        let error = ptx(&bytes, 90).unwrap().text().unwrap_err().to_string();
        assert!(error.contains("of 2 objects, of which 1 have no PTX"), "{error}");
        assert!(error.contains("-gencode arch=compute_90,code=compute_90"), "{error}");
        assert!(ptx(&linked(&[&without, &without]), 90).is_none());
        let alone = linked(&[&with]);
        assert!(ptx(&alone, 90).unwrap().text().is_ok(), "one is not linked with anything");
    }

    #[test]
    fn ptx_alone_is_the_same_ptx() {
        let file = include_bytes!("../tests/data/size.fatbin");
        let whole = Fatbinary::parse(file).unwrap();
        let bytes = whole.ptx_alone();
        let alone = Fatbinary::parse(&bytes).unwrap();
        assert!(alone.entries().iter().all(|entry| entry.kind == EntryKind::Ptx));
        let [whole, alone] = [&whole, &alone].map(|it| it.ptx_for(90).unwrap());
        assert_eq!((whole.arch, whole.code().unwrap()), (alone.arch, alone.code().unwrap()));
    }
}
