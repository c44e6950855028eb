//! What a client is told once and then answers by itself.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use crate::messages::NAMES_MAX;

record! {
    /// One GPU.
    DeviceFacts {
        /// `cuDeviceGetName`.
        name: String,
        /// `cuDeviceGetUuid`.
        uuid: [u8; 16],
        /// `cuDeviceTotalMem`, bytes.
        total_memory: u64,
        /// `cuDeviceGetPCIBusId`, as `0000:00:00.0`.
        pci_bus_id: String,
        /// `CUdevice_attribute` and its value; attributes of what Dormouse does not carry answer 0.
        attributes: Vec<(i32, i32)>,
        /// `cuCtxGetStreamPriorityRange`: least, greatest.
        stream_priorities: (i32, i32),
    }
}

impl DeviceFacts {
    /// The value of a `CUdevice_attribute`, if it is known.
    #[must_use]
    pub fn attribute(&self, attribute: i32) -> Option<i32> {
        value_of(&self.attributes, attribute)
    }
}

fn value_of(attributes: &[(i32, i32)], wanted: i32) -> Option<i32> {
    attributes.iter().find(|(known, _)| *known == wanted).map(|(_, value)| *value)
}

record! {
    /// What holds for a session as long as it lives.
    SessionFacts {
        /// `cuDriverGetVersion`: the smaller of the server's and the newest our list covers.
        driver_version: i32,
        /// Every GPU, in order.
        devices: Vec<DeviceFacts>,
    }
}

record! {
    /// One parameter of a kernel, as `cuKernelGetParamInfo` tells it.
    Param {
        /// Bytes from the start of the parameter buffer.
        offset: u32,
        /// Bytes.
        size: u32,
    }
}

record! {
    /// What the client must know to launch a function and to answer for it.
    FunctionFacts {
        /// Its name as linked.
        name: String,
        /// Its parameters, in order.
        params: Vec<Param>,
        /// `CUfunction_attribute` and its value when it was looked up.
        attributes: Vec<(i32, i32)>,
    }
}

impl FunctionFacts {
    /// The value that a `CUfunction_attribute` had, if it is known.
    #[must_use]
    pub fn attribute(&self, attribute: i32) -> Option<i32> {
        value_of(&self.attributes, attribute)
    }
}

record! {
    /// Where pinned memory lies.
    #[derive(Copy, Eq)]
    PinnedPlace {
        /// Its first address.
        address: u64,
        /// Base and bytes of the slab that it is a piece of; without one it is a file of its own.
        slab: Option<(u64, u64)>,
    }
}

record! {
    /// A variable in managed memory.
    ManagedVariable {
        /// Its name as linked.
        name: String,
        /// Bytes from the beginning of the memory that its code's variables have together.
        offset: u64,
        /// Bytes.
        bytes: u64,
    }
}

record! {
    /// The variables in managed memory of a module or a library, as they lie in one piece of it.
    ManagedVariables {
        /// Bytes for all of them; 0 where there are none.
        bytes: u64,
        /// Each of them.
        variables: Vec<ManagedVariable>,
    }
}

record! {
    /// Some of a list of names, which may be longer than an answer can be.
    Names {
        /// How many names the whole list has.
        total: u32,
        /// Those asked for, in order, or the first of them: all that fit.
        names: Vec<String>,
    }
}

impl Names {
    /// Of the names in `list`, at most `most` from number `first` on, and as many as fit into [`NAMES_MAX`]; one at least
    /// where there is one.
    #[must_use]
    pub fn page(list: &[String], first: u32, most: u32) -> Self {
        let mut room = NAMES_MAX;
        let fits = |name: &&String| {
            let first = room == NAMES_MAX;
            match room.checked_sub(name.len() + size_of::<u32>()) {
                Some(left) => room = left,
                None if first => room = 0,
                None => return false,
            }
            true
        };
        let asked = list.iter().skip(first as usize).take(most as usize);
        Self {
            total: u32::try_from(list.len()).unwrap_or(u32::MAX),
            names: asked.take_while(fits).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_any_length_is_told_in_pages() {
        let list: Vec<String> = (0..100_000).map(|number| format!("_Z{number:030}v")).collect();
        let mut told = Vec::new();
        let mut pages = 0;
        while told.len() < list.len() {
            let page = Names::page(&list, told.len() as u32, u32::MAX);
            let mut bytes = Vec::new();
            page.encode(&mut Encoder::new(&mut bytes));
            assert!(bytes.len() <= NAMES_MAX + 8 && !page.names.is_empty());
            assert_eq!(page.total, 100_000);
            told.extend(page.names);
            pages += 1;
        }
        assert_eq!(told, list);
        assert_eq!(pages, list.len().div_ceil(NAMES_MAX / (33 + 4)));
    }

    #[test]
    fn a_page_has_what_was_asked_for() {
        let long = "x".repeat(2 * NAMES_MAX);
        let list = ["a".to_owned(), long.clone(), "b".to_owned()];
        assert_eq!(Names::page(&list, 0, 0), Names { total: 3, names: vec![] });
        assert_eq!(Names::page(&list, 0, 9).names, ["a"]);
        // A name longer than a page is a page of its own.
        assert_eq!(Names::page(&list, 1, 9).names, [long]);
        assert_eq!(Names::page(&list, 2, 9).names, ["b"]);
        assert_eq!(Names::page(&list, 3, 9).names, Vec::<String>::new());
    }
}
