//! Which version of a function a program gets for the release it was built for: the rules of `cuGetProcAddress`, as
//! driver 580 applies them.

use crate::FunctionId;

/// Base name, legacy versions, per-thread versions; versions oldest first.
type Base = (&'static str, &'static [(u32, FunctionId)], &'static [(u32, FunctionId)]);

include!(concat!(env!("OUT_DIR"), "/proc_address.rs"));

/// Why there is no function to hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No function has this base name.
    Symbol,
    /// All its versions are newer than the release asked for.
    Version,
}

/// The newest version of `name` that release `version` already had. With `per_thread`, a function that has variants
/// with the per-thread default stream is searched among those only.
///
/// # Errors
/// Why there is none.
pub fn lookup(name: &[u8], version: u32, per_thread: bool) -> Result<FunctionId, Missing> {
    let at = BASES.binary_search_by(|(base, ..)| base.as_bytes().cmp(name)).map_err(|_| Missing::Symbol)?;
    let (_, legacy, threaded) = BASES[at];
    let versions = if per_thread && !threaded.is_empty() { threaded } else { legacy };
    let newest = versions.iter().rev().find(|(since, _)| *since <= version);
    newest.map(|(_, id)| *id).ok_or(Missing::Version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use FunctionId as Id;

    /// Answers recorded from driver 580.159.04.
    #[test]
    fn answers_are_those_of_a_real_driver() {
        for (name, version, per_thread, answer) in [
            ("", 0, false, Err(Missing::Symbol)),
            ("cuMemAlloc", 1000, false, Err(Missing::Version)),
            ("cuMemAlloc", 2000, false, Ok(Id::cuMemAlloc)),
            ("cuMemAlloc", 3020, false, Ok(Id::cuMemAlloc_v2)),
            ("cuMemAlloc_v2", 12000, false, Err(Missing::Symbol)),
            ("cuLaunchKernel_ptsz", 12000, false, Err(Missing::Symbol)),
            ("cuMemcpy", 4000, true, Err(Missing::Version)),
            ("cuMemcpy", 7000, true, Ok(Id::cuMemcpy_ptds)),
            ("cuMemcpy", 7000, false, Ok(Id::cuMemcpy)),
            ("cuMemcpyHtoD", 6050, true, Err(Missing::Version)),
            ("cuCtxSynchronize", 0, false, Err(Missing::Version)),
            ("cuCtxSynchronize", 13000, false, Ok(Id::cuCtxSynchronize_v2)),
            ("cuCtxSynchronize", 12090, false, Ok(Id::cuCtxSynchronize)),
            ("cuGraphInstantiate", 13000, false, Ok(Id::cuGraphInstantiate_v2)),
            ("cuStreamBatchMemOp", 11060, false, Ok(Id::cuStreamBatchMemOp)),
            ("cuStreamBatchMemOp", 11070, true, Ok(Id::cuStreamBatchMemOp_v2_ptsz)),
            ("cuGetProcAddress", 11030, false, Ok(Id::cuGetProcAddress)),
            ("cuGetProcAddress", 12000, true, Ok(Id::cuGetProcAddress_v2)),
            ("cuProfilerStart", 13000, false, Ok(Id::cuProfilerStart)),
        ] {
            assert_eq!(lookup(name.as_bytes(), version, per_thread), answer, "{name} {version} {per_thread}");
        }
    }

    #[test]
    fn every_function_is_found_at_its_own_release() {
        for id in FunctionId::all() {
            let f = id.function();
            assert_eq!(lookup(f.name.as_bytes(), f.since, f.per_thread), Ok(id), "{}", f.symbol);
        }
    }
}
