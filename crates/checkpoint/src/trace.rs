//! `--trace FILE`: what a job's calls, its servers and its checkpoints took, in the JSON that Perfetto and Chrome's tracing page open
//! (the Trace Event Format, an array of events). The application and the servers leave records in their session's file
//! ([`transport::TraceReader`]); a thread here collects them.

use crate::error::Failure;
use cuda_abi::FunctionId;
use host::InnerPid;
use serde_json::json;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transport::{RingIndex, Side, TraceKind, TraceReader, TraceRecord, trace_clock};

/// How often records are collected: a lane holds 65,280, and a thread makes at most a few hundred thousand a second.
const COLLECTING: Duration = Duration::from_millis(5);
/// The supervisor, where the format wants a process; sessions have two numbers each.
const SUPERVISOR: u32 = 0;

/// A trace being written.
pub struct Trace {
    state: Mutex<State>,
    collector: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

struct State {
    path: PathBuf,
    /// `None` once it could not be written to.
    file: Option<BufWriter<File>>,
    began_ns: u64,
    sessions: BTreeMap<u32, TraceReader>,
    /// Threads that have got their name.
    named: HashSet<(u32, usize)>,
    /// Step of the checkpoint in hand, and when it began.
    step: Option<(String, u64)>,
    lost: u64,
}

impl Trace {
    /// Begins a trace; the file is made, or emptied.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn begin(path: &Path) -> Result<Arc<Self>, Failure> {
        let file = File::create(path).map_err(|error| {
            Failure::of(format_args!("cannot write the trace, {}", path.display()), &error)
        })?;
        let state = State {
            path: path.to_owned(),
            file: Some(BufWriter::with_capacity(1 << 20, file)),
            began_ns: trace_clock(),
            sessions: BTreeMap::new(),
            named: HashSet::new(),
            step: None,
            lost: 0,
        };
        let trace = Arc::new(Self { state: Mutex::new(state), collector: Mutex::default() });
        trace.state().write(|file| file.write_all(b"[\n"));
        trace.state().name("process_name", SUPERVISOR, 0, "dormouse");
        let (ending, ended) = channel();
        let this = Arc::clone(&trace);
        let collecting = std::thread::spawn(move || {
            while ended.recv_timeout(COLLECTING) == Err(RecvTimeoutError::Timeout) {
                this.state().collect();
            }
        });
        *trace.collector.lock().unwrap_or_else(PoisonError::into_inner) = Some((ending, collecting));
        Ok(trace)
    }

    /// Traces a session too, number `number` of the process `pid`, whose files are in `dir`.
    pub fn follow(&self, number: u32, pid: InnerPid, dir: &Path) {
        match TraceReader::begin(dir) {
            Ok(reader) => {
                let mut state = self.state();
                for (side, what) in
                    [(Side::Client, "calls of process"), (Side::Server, "GPU server of process")]
                {
                    state.name("process_name", process(number, side), 0, &format!("{what} {pid}"));
                }
                state.sessions.insert(number, reader);
            }
            Err(error) => tracing::warn!("session {number} is not traced: {error}"),
        }
    }

    /// The session is over.
    pub fn leave(&self, number: u32) {
        let mut state = self.state();
        state.collect();
        state.sessions.remove(&number);
    }

    /// Something of the supervisor's that began at `began` and ends now.
    pub fn span(&self, name: &str, began: Instant) {
        let duration_ns = began.elapsed().as_nanos() as u64;
        let start_ns = trace_clock().saturating_sub(duration_ns);
        self.state().event(name, "dormouse", (SUPERVISOR, 0), (start_ns, duration_ns));
    }

    /// The checkpoint in hand comes to its step `name`; to its end, where that is `None`.
    pub fn step(&self, name: Option<&str>) {
        let (now, mut state) = (trace_clock(), self.state());
        if let Some((name, began)) = state.step.take() {
            // A clock that is set back makes a step short.
            state.event(&name, "checkpoint", (SUPERVISOR, 1), (began, now.saturating_sub(began)));
        }
        state.step = name.map(|name| (name.to_owned(), now));
    }

    /// Writes what there is; the file is complete.
    pub fn end(&self) {
        let collector = self.collector.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((ending, collecting)) = collector {
            drop(ending);
            // One that panicked has said so.
            let _ = collecting.join();
        }
        let mut state = self.state();
        state.collect();
        if state.lost > 0 {
            tracing::warn!("{} lacks {} events that came too fast", state.path.display(), state.lost);
        }
        state.name("thread_name", SUPERVISOR, 1, "checkpoints");
        // The last event, which no comma follows.
        let end = json!({"name": "thread_name", "ph": "M", "pid": SUPERVISOR, "tid": 0, "args": {"name": "sessions"}});
        state.write(|file| write!(file, "{end}\n]\n").and_then(|()| file.flush()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if let Some(file) = &mut self.file
            && let Err(error) = write(file)
        {
            tracing::warn!("the trace ends here: cannot write {}: {error}", self.path.display());
            self.file = None;
        }
    }

    fn name(&mut self, what: &str, pid: u32, tid: usize, name: &str) {
        let event = json!({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}});
        self.write(|file| writeln!(file, "{event},"));
    }

    fn event(&mut self, name: &str, category: &str, (pid, tid): (u32, usize), (start, duration): (u64, u64)) {
        // What began before the trace did is of no use in it.
        let Some(start) = start.checked_sub(self.began_ns) else { return };
        self.write(|file| {
            writeln!(
                file,
                r#"{{"name":"{name}","cat":"{category}","ph":"X","ts":{}.{:03},"dur":{}.{:03},"pid":{pid},"tid":{tid}}},"#,
                start / 1000,
                start % 1000,
                duration / 1000,
                duration % 1000
            )
        });
    }

    fn collect(&mut self) {
        let sessions = std::mem::take(&mut self.sessions);
        for (number, reader) in &sessions {
            let lost = reader.take(|ring, side, record| self.record(*number, ring, side, record));
            self.lost = self.lost.saturating_add(lost);
        }
        self.sessions = sessions;
    }

    fn record(&mut self, session: u32, ring: RingIndex, side: Side, record: TraceRecord) {
        let thread = (process(session, side), ring.get());
        if self.named.insert(thread) {
            self.name("thread_name", thread.0, thread.1, &format!("ring {}", ring.get()));
        }
        let times = (record.start_ns, record.duration_ns);
        match record.kind {
            TraceKind::Call => {
                let function = FunctionId::from_index(record.code.into());
                self.event(function.map_or("an unknown call", FunctionId::symbol), "call", thread, times);
            }
            TraceKind::AwaitReply => self.event(&message("answer to ", record.code), "wait", thread, times),
            TraceKind::AwaitRoom => self.event(&message("room for ", record.code), "wait", thread, times),
            TraceKind::AwaitTurn => self.event(&message("turn of ", record.code), "wait", thread, times),
            TraceKind::Work => self.event(&message("", record.code), "work", thread, times),
        }
    }
}

/// The number that stands for a session's application or server, where the format wants a process.
fn process(session: u32, side: Side) -> u32 {
    session.wrapping_mul(2).wrapping_add(u32::from(side == Side::Server))
}

fn message(what: &'static str, opcode: u16) -> Cow<'static, str> {
    let name = wire::Request::name_of(opcode).unwrap_or("an unknown message");
    if what.is_empty() { name.into() } else { format!("{what}{name}").into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::Value;
    use transport::{ClientSession, ServerSession};

    fn events(path: &Path) -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn what_a_session_did_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let server = ServerSession::create(dir.path()).unwrap();
        let client = ClientSession::open(dir.path()).unwrap();
        let ring = client.take_ring().unwrap();
        let trace = Trace::begin(&path).unwrap();
        trace.follow(3, InnerPid(2), dir.path());
        ring.trace(TraceKind::Call, FunctionId::cuInit as u16, trace_clock());
        server.reader(ring.index()).trace(TraceKind::Work, 1, trace_clock());
        ring.trace(TraceKind::AwaitReply, 1, trace_clock());
        trace.step(Some("capturing"));
        trace.step(None);
        trace.span("session 3 starts", Instant::now());
        trace.leave(3);
        trace.end();
        let all = events(&path);
        for (name, pid) in [
            ("cuInit", 6),
            ("answer to GetFacts", 6),
            ("GetFacts", 7),
            ("capturing", 0),
            ("session 3 starts", 0),
        ] {
            let found: Vec<_> = all.iter().filter(|event| event["name"] == name).collect();
            assert_eq!(found.len(), 1, "{name}: {all:?}");
            assert_eq!((&found[0]["pid"], &found[0]["ph"]), (&pid.into(), &"X".into()), "{name}");
            assert!(found[0]["ts"].as_f64().unwrap() >= 0.0 && found[0]["dur"].as_f64().unwrap() >= 0.0);
        }
        assert!(!client.control().is_traced());
    }

    #[test]
    fn an_empty_trace_is_one_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        Trace::begin(&path).unwrap().end();
        assert!(events(&path).iter().all(|event| event["ph"] == "M"));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let failure = Trace::begin(Path::new("/nowhere/at/all.json")).err().unwrap();
        assert!(failure.message.contains("/nowhere/at/all.json"), "{failure}");
    }

    #[test]
    fn a_full_disk_ends_the_trace_alone() {
        let trace = Trace::begin(Path::new("/dev/full")).unwrap();
        (0..20_000).for_each(|_| trace.span("something", Instant::now()));
        assert!(trace.state().file.is_none());
        trace.end();
    }
}
