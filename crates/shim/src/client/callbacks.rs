//! Host callbacks: the server says which is due, a thread of ours runs it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::graph::GraphId;
use cuda_abi::{CuError, CuResult, sys};
use transport::{CallbackReceiver, ClientSession};

use super::copy_rows::LocalRows;
use super::forking;
use super::session::session;
use super::thread::forbid_calls;
use crate::log::{self, Level};

/// What to run when a stream or a graph gets there. The arguments are the application's, and only it knows what they mean.
#[derive(Clone, Copy)]
pub enum Callback {
    /// `cuLaunchHostFunc`, and a host node.
    Function(unsafe extern "C" fn(*mut c_void), *mut c_void),
    /// `cuStreamAddCallback`: is told the stream and its error.
    Stream(sys::CUstream, unsafe extern "C" fn(sys::CUstream, sys::CUresult, *mut c_void), *mut c_void),
    /// Copies rows of a graph's copy between memory of the application's and staging memory.
    Rows(LocalRows),
    /// Lets a graph go that nobody else knows, with the user objects it holds: every launch that may use them is complete.
    Bury(GraphId),
}

// SAFETY: CUDA runs callbacks on a thread of its own, and the application knows that.
unsafe impl Send for Callback {}

/// How often a callback will run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Runs {
    /// Once.
    Once,
    /// Whenever its graph is launched.
    Often {
        /// How often still, for launches so far.
        due: u64,
        /// Whether there will be no more launches.
        retired: bool,
    },
}

/// Those that are waiting for their turn, and how many have not yet run to their end.
#[derive(Default)]
struct Waiting {
    callbacks: Mutex<HashMap<u32, (Callback, Runs)>>,
    pending: AtomicUsize,
    /// Graphs that have not been let go yet.
    burying: AtomicUsize,
}

/// How long [`Callbacks::await_burials`] waits: far longer than a graph whose launches are complete takes.
const BURIALS: Duration = Duration::from_millis(200);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (Callback, Runs)>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The callback that is due now.
    fn take(&self, id: u32) -> Option<Callback> {
        let mut callbacks = self.lock();
        let (callback, runs) = callbacks.get_mut(&id)?;
        let (callback, last) = match runs {
            Runs::Once => (*callback, true),
            Runs::Often { due, retired } => {
                *due = due.saturating_sub(1);
                (*callback, *retired && *due == 0)
            }
        };
        if last {
            callbacks.remove(&id);
        }
        Some(callback)
    }
}

/// Callbacks that are waiting in streams.
pub struct Callbacks {
    waiting: Arc<Waiting>,
    transport: Arc<ClientSession>,
    running: Mutex<bool>,
}

impl Callbacks {
    pub(super) fn new(transport: Arc<ClientSession>) -> Self {
        Self { waiting: Arc::default(), transport, running: Mutex::new(false) }
    }

    /// Keeps a callback until it is due, and makes the thread that will run it.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there can be no thread.
    pub fn add(&self, id: u32, callback: Callback) -> CuResult {
        self.start()?;
        self.waiting.pending.fetch_add(1, Ordering::AcqRel);
        self.waiting.burying.fetch_add(is_burial(&callback), Ordering::AcqRel);
        self.waiting.lock().insert(id, (callback, Runs::Once));
        Ok(())
    }

    /// Keeps a callback of a graph, to be run once for each [`Callbacks::launch`].
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there can be no thread.
    pub fn keep(&self, id: u32, callback: Callback) -> CuResult {
        self.start()?;
        self.waiting.lock().insert(id, (callback, Runs::Often { due: 0, retired: false }));
        Ok(())
    }

    /// Notes that a graph with these callbacks is being launched.
    pub fn launch(&self, ids: &[u32]) {
        let mut callbacks = self.waiting.lock();
        for id in ids {
            if let Some((_, Runs::Often { due, .. })) = callbacks.get_mut(id) {
                *due += 1;
                self.waiting.pending.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Takes that back: the launch was not sent.
    pub fn not_launched(&self, ids: &[u32]) {
        for id in ids {
            if self.waiting.take(*id).is_some() {
                self.waiting.pending.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Forgets a callback of a graph once it has run for all launches so far.
    pub fn retire(&self, id: u32) {
        let mut callbacks = self.waiting.lock();
        if let Some((_, Runs::Often { due, retired })) = callbacks.get_mut(&id) {
            *retired = true;
            if *due == 0 {
                callbacks.remove(&id);
            }
        }
    }

    /// Makes the thread, at the first callback.
    fn start(&self) -> CuResult {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if !*running {
            let receiver = self.transport.callbacks();
            let waiting = Arc::clone(&self.waiting);
            without_signals(|| {
                std::thread::Builder::new()
                    .name("dormouse-host".to_owned())
                    .spawn(move || serve(&receiver, &waiting))
            })
            .map_err(|_| CuError::OUT_OF_MEMORY)?;
            *running = true;
        }
        Ok(())
    }

    /// Forgets a callback that was never sent.
    pub fn forget(&self, id: u32) {
        if let Some((callback, _)) = self.waiting.lock().remove(&id) {
            self.waiting.pending.fetch_sub(1, Ordering::AcqRel);
            self.waiting.burying.fetch_sub(is_burial(&callback), Ordering::AcqRel);
        }
    }

    /// Waits until graphs are let go whose launches are complete, so that what they held can be given back; a little only, since others may
    /// be running for ever.
    pub fn await_burials(&self) {
        let until = Instant::now() + BURIALS;
        while self.waiting.burying.load(Ordering::Acquire) != 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether one that is waiting has that id.
    pub fn contains(&self, id: u32) -> bool {
        self.waiting.lock().contains_key(&id)
    }

    /// Whether some have not yet run to their end.
    pub fn any_pending(&self) -> bool {
        self.waiting.pending.load(Ordering::Acquire) != 0
    }
}

/// 1 for a callback that lets a graph go.
fn is_burial(callback: &Callback) -> usize {
    usize::from(matches!(callback, Callback::Bury(_)))
}

fn serve(receiver: &CallbackReceiver, waiting: &Waiting) {
    forbid_calls();
    receiver.run_here();
    loop {
        match receiver.next(Duration::from_secs(3600)) {
            Ok(None) => {}
            Ok(Some(due)) => {
                match waiting.take(due.id) {
                    Some(callback) => {
                        forking::settled();
                        run(callback, due.status);
                        waiting.pending.fetch_sub(1, Ordering::AcqRel);
                        waiting.burying.fetch_sub(is_burial(&callback), Ordering::AcqRel);
                    }
                    None => log::message(
                        Level::Error,
                        format_args!("the server asks for callback {}, which is not there", due.id),
                    ),
                }
                receiver.acknowledge();
            }
            Err(error) => {
                log::message(Level::Error, format_args!("host callbacks end: {error}"));
                return;
            }
        }
    }
}

fn run(callback: Callback, status: u32) {
    // SAFETY: the application gave the function to be called with this argument: once, or whenever its graph gets there. What rows
    // lie in stays until their graph is gone.
    unsafe {
        match callback {
            Callback::Bury(graph) => {
                if let Ok(session) = session() {
                    session.graphs.bury(graph);
                }
            }
            // A host function is not run in a stream that has failed.
            Callback::Function(function, data) if status == 0 => function(data),
            Callback::Function(..) => {}
            Callback::Rows(rows) if status == 0 => rows.copy(),
            Callback::Rows(_) => {}
            Callback::Stream(stream, function, data) => {
                // SAFETY: `CUresult` has the size of an `int`; only the application's C code looks at it.
                let function: unsafe extern "C" fn(sys::CUstream, u32, *mut c_void) =
                    std::mem::transmute(function);
                function(stream, status, data);
            }
        }
    }
}

/// Runs `make` with all signals blocked, so that a thread it makes takes none that the application sends to itself. Those that
/// a thread brings upon itself reach the application's handlers.
pub(super) fn without_signals<R>(make: impl FnOnce() -> R) -> R {
    // SAFETY: signal sets on this stack, initialised before they are read.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(&raw mut all, own);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let made = make();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        made
    }
}
