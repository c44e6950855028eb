//! What an object of an image is called by who asks for it: `dormouse inspect` lists these names, `dormouse cat` takes them.

use image::{Manifest, MemoryKind, Object, ObjectKind};

use crate::error::ObjectError;

/// An object's name: no two objects of an image have the same. Bytes that are not ASCII stand as `\xNN`.
#[must_use]
pub fn object_name(kind: &ObjectKind) -> String {
    match kind {
        ObjectKind::DeviceMemory { session, device, memory, base } => {
            let memory = match memory {
                MemoryKind::Allocation => "memory",
                MemoryKind::Global => "global",
                MemoryKind::Driver => "driver",
                MemoryKind::Array => "array",
                MemoryKind::Physical => "mappable",
            };
            format!("device:s{session}/{device}/{memory}/{base:#x}")
        }
        ObjectKind::SessionState { session } => format!("state:s{session}"),
        ObjectKind::SharedFile { path } => format!("shared:{path}"),
        ObjectKind::CriuFile { name } => format!("criu:{name}"),
        ObjectKind::JobFileContent { path } => format!("file:{path}"),
        ObjectKind::HostRecord => "record".to_owned(),
        _ => format!("other:{kind:?}"),
    }
}

/// The object of an image that `reference` means: its name; or, where only one fits, an address of device memory, or the name of a file
/// without the part before the colon.
///
/// # Errors
/// [`ObjectError`], which names what is near.
pub fn find_object<'a>(manifest: &'a Manifest, reference: &str) -> Result<&'a Object, ObjectError> {
    let named = manifest.objects.iter().find(|object| object_name(&object.kind) == reference);
    if let Some(object) = named {
        return Ok(object);
    }
    let address = reference.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let fits = |object: &&Object| match (&object.kind, address) {
        (ObjectKind::DeviceMemory { base, .. }, Some(address)) => *base == address,
        (ObjectKind::DeviceMemory { .. } | ObjectKind::SessionState { .. } | ObjectKind::HostRecord, _) => {
            false
        }
        (file, _) => object_name(file).split_once(':').is_some_and(|(_, name)| name == reference),
    };
    let candidates: Vec<&Object> = manifest.objects.iter().filter(fits).collect();
    match candidates[..] {
        [one] => Ok(one),
        [] => Err(ObjectError::NotFound {
            image: manifest.id,
            reference: reference.to_owned(),
            inside: address.and_then(|address| around(manifest, address)),
        }),
        _ => Err(ObjectError::Ambiguous {
            reference: reference.to_owned(),
            candidates: candidates.iter().map(|object| object_name(&object.kind)).collect(),
        }),
    }
}

/// The device memory that an address lies in, and how far.
fn around(manifest: &Manifest, address: u64) -> Option<(String, u64)> {
    manifest.objects.iter().find_map(|object| match &object.kind {
        ObjectKind::DeviceMemory { base, .. } => {
            let offset = address.checked_sub(*base).filter(|offset| *offset < object.len())?;
            Some((object_name(&object.kind), offset))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{DeviceOrdinal, Extent, RawPath, SessionId};

    fn manifest() -> Manifest {
        let device = |session, memory, base| ObjectKind::DeviceMemory {
            session: SessionId(session),
            device: DeviceOrdinal(0),
            memory,
            base,
        };
        let path = |path: &str| RawPath::from(path);
        let kinds = [
            device(1, MemoryKind::Allocation, 0x2000),
            device(1, MemoryKind::Array, 0x7000),
            device(2, MemoryKind::Allocation, 0x7000),
            ObjectKind::SessionState { session: SessionId(1) },
            ObjectKind::SharedFile { path: path("s1/session") },
            ObjectKind::CriuFile { name: path("core-2.img") },
            ObjectKind::JobFileContent { path: path("core-2.img") },
            ObjectKind::JobFileContent { path: path("/srv/log") },
            ObjectKind::JobFileContent { path: RawPath(b"/srv/\xe9:\\".to_vec()) },
            ObjectKind::HostRecord,
        ];
        let objects = kinds.map(|kind| Object { kind, extents: vec![Extent::Zero { len: 0x1000 }] });
        Manifest { objects: objects.into(), ..Manifest::new("job") }
    }

    #[test]
    fn every_object_is_found_by_its_name() {
        let manifest = manifest();
        for object in &manifest.objects {
            let name = object_name(&object.kind);
            assert!(name.is_ascii(), "{name}");
            assert_eq!(find_object(&manifest, &name).unwrap().kind, object.kind, "{name}");
        }
    }

    #[test]
    fn addresses_and_names_of_files_are_enough_where_one_fits() {
        let manifest = manifest();
        let found = |reference: &str| find_object(&manifest, reference).map(|found| object_name(&found.kind));
        assert_eq!(found("0x2000").unwrap(), "device:s1/0/memory/0x2000");
        assert_eq!(found("s1/session").unwrap(), "shared:s1/session");
        assert_eq!(found("/srv/log").unwrap(), "file:/srv/log");
        assert_eq!(found(r"/srv/\xe9:\\").unwrap(), r"file:/srv/\xe9:\\");
        let message = |reference: &str| found(reference).unwrap_err().to_string();
        let both = message("core-2.img");
        assert!(both.contains("criu:core-2.img, file:core-2.img"), "{both}");
        let both = message("0x7000");
        assert!(both.contains("device:s1/0/array/0x7000, device:s2/0/memory/0x7000"), "{both}");
        let inside = message("0x2abc");
        assert!(inside.contains("in device:s1/0/memory/0x2000, 0xabc bytes behind"), "{inside}");
        for nothing in ["", "s1", "0x", "0x3000", "srv/log", "criu:", "RECORD"] {
            assert!(message(nothing).contains("dormouse inspect"), "{nothing}");
        }
    }
}
