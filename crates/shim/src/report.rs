//! What a program asked for and does not get: each thing said once, by name and with its reason.

use std::{
    ffi::c_uint,
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use cuda_abi::{CuError, FunctionId};

use crate::log::{self, Level};

/// Something asked for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// A function of the list.
    Function(FunctionId),
    /// An entry of a private table whose meaning is not known.
    PrivateSlot {
        /// Name of the table.
        table: &'static str,
        /// Position in it.
        slot: usize,
    },
    /// A private table that is not made here.
    PrivateTable([u8; 16]),
    /// What a process outside of every job has given out.
    ForeignHandle(FunctionId),
    /// A function with a flag.
    Flag(FunctionId, &'static str),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Function(id) => {
                let function = id.function();
                match (function.unsupported, function.limits) {
                    (Some(reason), _) => write!(f, "{} is not supported: {reason}", id.symbol()),
                    (None, Some(limits)) => write!(f, "{} is not supported here: {limits}", id.symbol()),
                    (None, None) => write!(f, "{} is not supported in this case", id.symbol()),
                }
            }
            Unsupported::PrivateSlot { table, slot } => {
                write!(f, "entry {slot} of the driver's private table {table} is not known")
            }
            Unsupported::PrivateTable(id) => {
                write!(f, "the driver's private table ")?;
                id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                write!(f, " is not known")
            }
            Unsupported::Flag(id, flag) => write!(f, "{} with {flag} is not supported", id.symbol()),
            Unsupported::ForeignHandle(id) => {
                write!(
                    f,
                    "{} is given what is no handle of a process of this job: memory and events are shared inside of a job only",
                    id.symbol()
                )
            }
        }
    }
}

/// More different reports than this are counted on nobody reading.
const MOST_REPORTS: usize = 4096;

/// Functions already reported, by id: the quick way out for a program that calls one in a loop.
static FUNCTIONS: [AtomicBool; FunctionId::COUNT] = [const { AtomicBool::new(false) }; FunctionId::COUNT];

struct Reports {
    made: Vec<Unsupported>,
    /// Who tells the user of the job, once a session is there.
    listener: Option<fn(Unsupported)>,
}

static REPORTS: Mutex<Reports> = Mutex::new(Reports { made: Vec::new(), listener: None });

/// Reports the call of a function that is not supported, the first time, and answers it.
pub fn unsupported(id: FunctionId) -> c_uint {
    if !FUNCTIONS[id as usize].swap(true, Ordering::Relaxed) {
        report(Unsupported::Function(id));
    }
    CuError::NOT_SUPPORTED.code()
}

/// Reports something asked for in vain, the first time.
pub fn report(what: Unsupported) {
    let mut reports = REPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    if reports.made.len() >= MOST_REPORTS || reports.made.contains(&what) {
        return;
    }
    reports.made.push(what);
    let listener = reports.listener;
    drop(reports);
    log::message(Level::Warn, format_args!("{what}"));
    if let Some(listener) = listener {
        listener(what);
    }
}

/// Sends reports to `listener` from now on, and those made so far.
pub fn listen(listener: fn(Unsupported)) {
    let mut reports = REPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    reports.listener = Some(listener);
    let made = reports.made.clone();
    drop(reports);
    made.into_iter().for_each(listener);
}

/// The reports made so far.
#[cfg(test)]
pub fn made() -> Vec<Unsupported> {
    REPORTS.lock().unwrap_or_else(PoisonError::into_inner).made.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    static HEARD: Mutex<Vec<Unsupported>> = Mutex::new(Vec::new());

    #[test]
    fn each_thing_is_reported_once_also_to_a_late_listener() {
        let (early, late) = (FunctionId::cuTexRefCreate, FunctionId::cuTexRefDestroy);
        let table = Unsupported::PrivateTable([0xab; 16]);
        assert_eq!(unsupported(early), 801);
        listen(|what| HEARD.lock().map(|mut heard| heard.push(what)).unwrap_or_default());
        assert_eq!(unsupported(late), 801);
        assert_eq!(unsupported(early), 801);
        report(table);
        report(table);
        let heard = HEARD.lock().map(|heard| heard.clone()).unwrap_or_default();
        for what in [Unsupported::Function(early), Unsupported::Function(late), table] {
            assert_eq!(heard.iter().filter(|h| **h == what).count(), 1, "{what}");
        }
    }

    #[test]
    fn reports_name_what_was_asked_for() {
        let text = Unsupported::Function(FunctionId::cuTexRefCreate).to_string();
        assert_eq!(text, "cuTexRefCreate is not supported: texture references ended with CUDA 12");
        let text = Unsupported::Function(FunctionId::cuMemHostGetDevicePointer_v2).to_string();
        assert_eq!(
            text,
            "cuMemHostGetDevicePointer_v2 is not supported here: not of registered memory that cannot be moved: shared \
             mappings, and pages that another registration has"
        );
        let text = Unsupported::PrivateTable([0xab; 16]).to_string();
        assert_eq!(text, "the driver's private table abababababababababababababababab is not known");
    }
}
