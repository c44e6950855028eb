//! What is known of each exported function.

use crate::Class;

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// What the list says of one exported symbol.
#[derive(Debug)]
pub struct Function {
    /// Itself.
    pub id: FunctionId,
    /// The exported symbol, such as `cuMemcpyHtoDAsync_v2_ptsz`.
    pub symbol: &'static str,
    /// The name that `cuGetProcAddress` knows, such as `cuMemcpyHtoDAsync`.
    pub name: &'static str,
    /// The chapter of the list it stands in.
    pub chapter: &'static str,
    /// The first CUDA release that has it.
    pub since: u32,
    /// Where it is answered.
    pub class: Class,
    /// Whether it is the variant with the per-thread default stream.
    pub per_thread: bool,
    /// Why it answers `CUDA_ERROR_NOT_SUPPORTED`, where it does: for the user.
    pub unsupported: Option<&'static str>,
    /// What of it is not supported, where the rest is: for the user.
    pub limits: Option<&'static str>,
}

impl FunctionId {
    /// How many symbols there are; ids count from zero.
    pub const COUNT: usize = FUNCTIONS.len();

    /// What is known of it.
    pub fn function(self) -> &'static Function {
        &FUNCTIONS[self as usize]
    }

    /// The exported symbol.
    pub fn symbol(self) -> &'static str {
        self.function().symbol
    }

    /// The function with this number; `None` for a number that no function has.
    pub fn from_index(index: usize) -> Option<FunctionId> {
        FUNCTIONS.get(index).map(|f| f.id)
    }

    /// Every function, in the order of the list.
    pub fn all() -> impl Iterator<Item = FunctionId> {
        FUNCTIONS.iter().map(|f| f.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_positions() {
        for (position, id) in FunctionId::all().enumerate() {
            assert_eq!(id as usize, position);
            assert_eq!(FunctionId::from_index(position), Some(id));
            assert_eq!(format!("{id:?}"), id.symbol());
        }
        assert_eq!(FunctionId::from_index(FunctionId::COUNT), None);
    }

    #[test]
    fn every_function_of_cuda_h_and_the_profiler_is_there() {
        assert_eq!(FunctionId::COUNT, 634 + 3);
    }
}
