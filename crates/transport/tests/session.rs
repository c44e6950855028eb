//! Both sides over real files, in one process.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transport::hello::{HelloListener, Pending, Wish, ask, ask_devices};
use transport::{
    Callback, ClientSession, MAX_RINGS, Next, RingIndex, RingState, ServerSession, State, TransportError,
};

const ECHO: u16 = 1;
const NOTE: u16 = 2;

/// What arrived as `NOTE`: in which ring, and its body.
type Notes = Mutex<Vec<(usize, Vec<u8>)>>;

/// A server that answers `ECHO` with its body and writes down `NOTE`s, a thread for each ring, until the state is dead.
struct FakeServer {
    session: Arc<ServerSession>,
    notes: Arc<Notes>,
    bell: Option<std::thread::JoinHandle<()>>,
}

impl FakeServer {
    fn start(session: Arc<ServerSession>) -> Self {
        session.control().set_state(State::Running);
        let notes = Arc::new(Mutex::new(Vec::new()));
        let bell = {
            let (session, notes) = (Arc::clone(&session), Arc::clone(&notes));
            std::thread::spawn(move || {
                let mut threads: Vec<Option<std::thread::JoinHandle<()>>> =
                    (0..MAX_RINGS).map(|_| None).collect();
                let mut seen = u32::MAX;
                while session.control().state() == State::Running {
                    for (index, state) in session.control().rings() {
                        let slot = &mut threads[index.get()];
                        if state != RingState::Free && slot.as_ref().is_none_or(|thread| thread.is_finished())
                        {
                            let (session, notes) = (Arc::clone(&session), Arc::clone(&notes));
                            *slot = Some(std::thread::spawn(move || serve(&session, index, &notes)));
                        }
                    }
                    seen = session.wait_doorbell(seen, Duration::from_millis(20));
                }
                threads.into_iter().flatten().for_each(|thread| thread.join().unwrap());
            })
        };
        Self { session, notes, bell: Some(bell) }
    }

    fn stop(&mut self) {
        self.session.control().set_state(State::Dead);
        if let Some(bell) = self.bell.take() {
            bell.join().unwrap();
        }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(session: &Arc<ServerSession>, index: RingIndex, notes: &Notes) {
    let mut reader = session.reader(index);
    while session.control().state() == State::Running {
        match reader.next(Duration::from_millis(20)).unwrap() {
            Next::Message(message) => {
                for dependency in message.dependencies {
                    while !session.is_done(*dependency).unwrap()
                        && session.control().state() == State::Running
                    {
                        std::thread::yield_now();
                    }
                }
                let body = message.body.to_vec();
                if message.opcode == ECHO {
                    reader.reply(&body).unwrap();
                } else {
                    notes.lock().unwrap().push((index.get(), body));
                    reader.advance();
                }
            }
            Next::Idle => {}
            Next::Closed => return reader.release(),
        }
    }
}

fn session(dir: &Path) -> (FakeServer, Arc<ClientSession>) {
    let server = FakeServer::start(ServerSession::create(dir).unwrap());
    (server, ClientSession::open(dir).unwrap())
}

#[test]
fn calls_are_answered_and_ordered_between_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = session(dir.path());
    let turn = Arc::new(AtomicU64::new(0));
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 200;
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (client, turn) = (Arc::clone(&client), Arc::clone(&turn));
            scope.spawn(move || {
                let mut ring = client.take_ring().unwrap();
                let mut reply = Vec::new();
                for round in 0..ROUNDS {
                    let question = [me as u8; 300];
                    ring.call(ECHO, &[&question[..7], &question[7..]], &mut reply).unwrap();
                    assert_eq!(reply, question);
                    // Every call of one thread begins after one of another has returned.
                    let mine = round * THREADS + me;
                    while turn.load(Ordering::Acquire) != mine {
                        std::thread::yield_now();
                    }
                    ring.submit(NOTE, &[&mine.to_le_bytes()]).unwrap();
                    turn.store(mine + 1, Ordering::Release);
                }
            });
        }
    });
    client.take_ring().unwrap().call(ECHO, &[b"all done"], &mut Vec::new()).unwrap();
    let notes: Vec<u64> = server
        .notes
        .lock()
        .unwrap()
        .iter()
        .map(|(_, body)| u64::from_le_bytes(body[..].try_into().unwrap()))
        .collect();
    assert_eq!(notes, (0..THREADS * ROUNDS).collect::<Vec<_>>());
}

#[test]
fn a_ring_serves_one_thread_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = session(dir.path());
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut highest = 0;
    for round in 0..1000u32 {
        // Where the server gets no turn, no ring comes back for a while.
        let mut ring = loop {
            match client.take_ring() {
                Err(TransportError::NoRing) if Instant::now() < deadline => std::thread::yield_now(),
                taken => break taken.unwrap(),
            }
        };
        ring.submit(NOTE, &[&round.to_le_bytes(), &[0; 5000]]).unwrap();
        highest = highest.max(ring.index().get());
    }
    while server.notes.lock().unwrap().len() < 1000 {
        assert!(Instant::now() < deadline, "what a thread left behind is still executed");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(highest < MAX_RINGS);
    while client.control().rings().any(|(_, state)| state != RingState::Free) {
        assert!(Instant::now() < deadline, "every ring comes back");
        std::thread::sleep(Duration::from_millis(1));
    }
    let all: Vec<_> = (0..MAX_RINGS - 1).map(|_| client.take_ring().unwrap()).collect();
    assert!(matches!(client.take_ring(), Err(TransportError::NoRing)));
    let mut last = client.take_last_ring().unwrap();
    last.call(ECHO, &[b"shared"], &mut Vec::new()).unwrap();
    drop(all);
}

#[test]
fn a_dead_server_is_noticed_within_a_second() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody serves this session.
    let server = ServerSession::create(dir.path()).unwrap();
    server.control().set_state(State::Running);
    let client = ClientSession::open(dir.path()).unwrap();
    let mut ring = client.take_ring().unwrap();
    let path = dir.path().to_owned();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        transport::mark_dead(&path).unwrap();
        Instant::now()
    });
    let answer = ring.call(ECHO, &[b"?"], &mut Vec::new());
    let noticed = killer.join().unwrap().elapsed();
    assert!(matches!(answer, Err(TransportError::Dead)));
    assert!(noticed < Duration::from_secs(1), "{noticed:?}");
    assert!(matches!(ring.submit(NOTE, &[]), Err(TransportError::Dead)));
}

#[test]
fn a_full_ring_without_a_server_is_noticed_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = ServerSession::create(dir.path()).unwrap();
    server.control().set_state(State::Running);
    let client = ClientSession::open(dir.path()).unwrap();
    let mut ring = client.take_ring().unwrap();
    let path = dir.path().to_owned();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        transport::mark_dead(&path).unwrap();
    });
    let filled = (0..100).map(|_| ring.submit(NOTE, &[&[1; 60_000]])).find(Result::is_err);
    assert!(matches!(filled, Some(Err(TransportError::Dead))));
}

#[test]
fn a_new_server_goes_on_where_the_old_one_was() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, client) = session(dir.path());
    let mut ring = client.take_ring().unwrap();
    let mut reply = Vec::new();
    ring.call(ECHO, &[b"before"], &mut reply).unwrap();
    server.stop();
    server.session.control().set_state(State::Starting);
    // Calls made while there is no server wait for the next one.
    let waiter = std::thread::spawn(move || {
        let mut reply = Vec::new();
        ring.submit(NOTE, &[b"between"]).unwrap();
        ring.call(ECHO, &[b"across"], &mut reply).unwrap();
        reply
    });
    std::thread::sleep(Duration::from_millis(150));
    let again = FakeServer::start(ServerSession::attach(dir.path()).unwrap());
    assert_eq!(waiter.join().unwrap(), b"across");
    assert_eq!(again.notes.lock().unwrap()[0].1, b"between");
    assert_eq!(client.control().generation(), 1);
}

/// The device's word is as good as the server's answer, which may come later; a number it has told before is not.
#[test]
fn a_fence_answers_before_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = ServerSession::create(dir.path()).unwrap();
    server.control().set_state(State::Running);
    let client = ClientSession::open(dir.path()).unwrap();
    let mut ring = client.take_ring().unwrap();
    let index = ring.index();
    let device = std::fs::File::options().write(true).open(dir.path().join("session")).unwrap();
    let (base, bytes) = server.fences_range();
    let offset = 24576 + 128 * index.get() as u64;
    assert_eq!((server.fence(index).address() - base, bytes), (128 * index.get() as u64, 128 * 256));
    let mut reader = server.reader(index);
    for round in 1..100u64 {
        let waiter = std::thread::spawn(move || {
            let mut reply = Vec::new();
            let replied = ring.call_or_fence(ECHO, &[b"wait"], &mut reply).unwrap();
            (ring, replied, reply)
        });
        while !matches!(reader.next(Duration::from_secs(1)).unwrap(), Next::Message(_)) {}
        assert_eq!(reader.round_trip(), 2 * round - 1);
        let fenced = round % 3 != 0;
        if fenced {
            std::os::unix::fs::FileExt::write_all_at(&device, &reader.round_trip().to_le_bytes(), offset)
                .unwrap();
            assert!(server.fence(index).is_at(reader.round_trip()));
        } else {
            reader.reply(b"done").unwrap();
        }
        let (mut back, replied, reply) = waiter.join().unwrap();
        assert_eq!((replied, &reply[..]), if fenced { (false, &b""[..]) } else { (true, &b"done"[..]) });
        // The next call gets its own answer, whenever the one before comes.
        let asker = std::thread::spawn(move || {
            let mut reply = Vec::new();
            back.call(ECHO, &[b"next"], &mut reply).unwrap();
            (back, reply)
        });
        if fenced {
            reader.reply(b"late").unwrap();
        }
        while !matches!(reader.next(Duration::from_secs(1)).unwrap(), Next::Message(_)) {}
        reader.reply(b"answer").unwrap();
        let (back, reply) = asker.join().unwrap();
        assert_eq!(reply, b"answer");
        ring = back;
    }
}

#[test]
fn callbacks_run_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = ServerSession::create(dir.path()).unwrap();
    let client = ClientSession::open(dir.path()).unwrap();
    let receiver = client.callbacks();
    let runner = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while seen.len() < 5000 {
            if let Some(callback) = receiver.next(Duration::from_secs(5)).unwrap() {
                seen.push(callback.id);
                receiver.acknowledge();
            }
        }
        seen
    });
    let mut sender = server.callbacks();
    for id in 0..5000 {
        while sender.publish(Callback { id, status: 0 }).unwrap().is_none() {
            let seen = sender.acknowledged();
            let _ = sender.wait_acknowledged(seen, Duration::from_secs(1));
        }
    }
    assert_eq!(runner.join().unwrap(), (0..5000).collect::<Vec<_>>());
    let deadline = Instant::now() + Duration::from_secs(5);
    while sender.acknowledged() < sender.published() {
        assert!(Instant::now() < deadline);
        let _ = sender.wait_acknowledged(sender.acknowledged(), Duration::from_millis(10));
    }
}

#[test]
fn errors_of_earlier_work_are_answered_once_or_for_ever() {
    use wire::CuError;
    let dir = tempfile::tempdir().unwrap();
    let server = ServerSession::create(dir.path()).unwrap();
    let client = ClientSession::open(dir.path()).unwrap();
    server.control().set_error(CuError::OUT_OF_MEMORY);
    server.control().set_error(CuError::INVALID_VALUE);
    assert_eq!(client.control().take_error(), Some(CuError::OUT_OF_MEMORY), "the first one stands");
    assert_eq!(client.control().take_error(), None);
    server.control().set_error(CuError::INVALID_VALUE);
    server.control().set_error(CuError::LAUNCH_FAILED);
    server.control().set_error(CuError::ILLEGAL_ADDRESS);
    assert_eq!(client.control().take_error(), Some(CuError::LAUNCH_FAILED));
    assert_eq!(client.control().take_error(), Some(CuError::LAUNCH_FAILED));
}

#[test]
fn what_is_no_session_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(ClientSession::open(dir.path()), Err(TransportError::Io { .. })));
    std::fs::write(dir.path().join("session"), b"short").unwrap();
    let short = ClientSession::open(dir.path()).err().unwrap();
    assert!(matches!(short, TransportError::NotASession { what: "size", .. }), "{short}");
    let file = std::fs::File::create(dir.path().join("session")).unwrap();
    file.set_len(4 << 30).unwrap();
    let blank = ClientSession::open(dir.path()).err().unwrap();
    assert!(matches!(blank, TransportError::NotASession { what: "magic", .. }), "{blank}");
    assert!(
        matches!(ServerSession::create(dir.path()), Err(TransportError::Io { .. })),
        "a session is made once"
    );
    // What a server of other messages left, as in an image of another version.
    let dir = tempfile::tempdir().unwrap();
    drop(ServerSession::create(dir.path()).unwrap());
    let file = std::fs::File::options().write(true).open(dir.path().join("session")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &(wire::PROTOCOL_VERSION - 1).to_le_bytes()[..2], 8)
        .unwrap();
    let older = ServerSession::attach(dir.path()).err().unwrap();
    assert!(matches!(older, TransportError::OtherVersion { .. }), "{older}");
    let its = format!(".{} of Dormouse's protocol", wire::PROTOCOL_VERSION - 1);
    assert!(older.to_string().contains(&its), "{older}");
}

/// The next caller, who wants a session.
fn asks_for_session(listener: &HelloListener, patience: Duration) -> Pending {
    match listener.accept().unwrap().hear(patience).unwrap() {
        Wish::Session(pending, _) => pending,
        _ => panic!("it asks for something else"),
    }
}

#[test]
fn the_gpus_are_asked_for_and_told_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hello.sock");
    let listener = HelloListener::bind(&path).unwrap();
    let mut gpu = wire::Gpu::default();
    gpu.name = "a GPU".into();
    gpu.set_number(wire::Quantity::PowerUsage, 0, 700_000);
    let machine =
        wire::Machine { driver: "580.65.06".into(), gpus: vec![gpu; 8], ..wire::Machine::default() };
    let told = machine.clone();
    let (end, silence) = std::sync::mpsc::channel::<()>();
    let supervisor = std::thread::spawn(move || {
        let caller = || match listener.accept().unwrap().hear(Duration::from_secs(5)).unwrap() {
            Wish::Devices(pending) => pending,
            _ => panic!("it asks for something else"),
        };
        caller().tell(told).unwrap();
        caller().refuse("nobody knows").unwrap();
        caller().welcome(1).unwrap();
        let unanswered = caller();
        silence.recv().unwrap_err();
        drop(unanswered);
    });
    let patience = Duration::from_secs(60);
    assert_eq!(ask_devices(&path, patience).unwrap(), machine);
    let refused = ask_devices(&path, patience).err().unwrap();
    assert!(refused.to_string().contains("nobody knows"), "{refused}");
    let odd = ask_devices(&path, patience).err().unwrap();
    assert!(matches!(odd, TransportError::Greeting(_)), "{odd}");
    let late = ask_devices(&path, Duration::from_millis(20)).err().unwrap();
    assert!(matches!(late, TransportError::Timeout { .. }), "{late}");
    drop(end);
    supervisor.join().unwrap();
}

#[test]
fn a_session_is_asked_for_and_given_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hello.sock");
    let patience = Duration::from_secs(5);
    assert!(matches!(ask(&path, None), Err(TransportError::Io { .. })));
    let listener = HelloListener::bind(&path).unwrap();
    let supervisor = std::thread::spawn(move || {
        let first = asks_for_session(&listener, patience);
        assert_eq!(first.pid(), std::process::id() as i32);
        first.welcome(42).unwrap();
        asks_for_session(&listener, patience).refuse("there is no GPU left").unwrap();
        // Accepted and never answered.
        drop(listener.accept().unwrap().hear(patience).unwrap());
        let silent = listener.accept().unwrap().hear(Duration::from_millis(100)).err().unwrap();
        assert!(matches!(silent, TransportError::Timeout { .. }), "{silent}");
    });
    assert_eq!(ask(&path, None).unwrap(), 42);
    let refused = ask(&path, None).err().unwrap();
    assert!(refused.to_string().contains("there is no GPU left"), "{refused}");
    assert!(ask(&path, None).is_err(), "the supervisor went away");
    let kind = rustix::net::SocketType::SEQPACKET;
    let says_nothing = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::connect(&says_nothing, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    supervisor.join().unwrap();
}

/// A dead server is the answer of calls too that need none; the next one makes that undone, and nothing else.
#[test]
fn a_dead_server_is_an_error_until_there_is_another() {
    use wire::CuError;
    let dir = tempfile::tempdir().unwrap();
    let first = ServerSession::create(dir.path()).unwrap();
    first.control().set_state(State::Running);
    let client = ClientSession::open(dir.path()).unwrap();
    transport::mark_dead(dir.path()).unwrap();
    for _ in 0..2 {
        assert_eq!(client.control().take_error(), Some(CuError::DEVICE_UNAVAILABLE), "it stays");
    }
    let second = ServerSession::attach(dir.path()).unwrap();
    assert_eq!((client.control().state(), client.control().error()), (State::Starting, None));
    second.control().set_error(CuError::ILLEGAL_ADDRESS);
    transport::mark_dead(dir.path()).unwrap();
    ServerSession::attach(dir.path()).unwrap();
    assert_eq!(client.control().take_error(), Some(CuError::ILLEGAL_ADDRESS), "the program's own");
}
