//! Another session of the job, and the broker between them, played by a test: whoever asks it is given memory in files of its own.

use server::sharing::{Gift, Refusal, Sharing, ToBroker, ToServer, receive, send};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use wire::{Claim, CuError, ShareId};

/// Bytes of each piece.
pub const BYTES: u64 = 4 << 20;

/// What the neighbour does.
#[derive(Default)]
struct State {
    files: BTreeMap<ShareId, File>,
    /// Events, of the software device.
    events: BTreeMap<ShareId, OwnedFd>,
    /// What the session holds, in the order in which it said so.
    held: Vec<ShareId>,
    /// Whether it owns everything.
    owns: bool,
    /// How many rehearsals have ended, and how often the session has had no room.
    rehearsals: u64,
    without_room: u64,
}

/// The neighbour.
pub struct Neighbour {
    socket: Arc<OwnedFd>,
    state: Arc<Mutex<State>>,
    given: mpsc::Receiver<(Result<Gift, Refusal>, Option<OwnedFd>)>,
    thread: JoinHandle<()>,
}

impl Neighbour {
    /// A neighbour who has these, each filled with words; and the session's way to it. `owns`: whether what both have is the session's
    /// to write into an image.
    pub fn new(pieces: &[(ShareId, &[u32])], owns: bool) -> (Self, Arc<Sharing>) {
        let file = |words: &[u32]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(BYTES).unwrap();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            file.write_all_at(&bytes, 0).unwrap();
            file
        };
        let files = pieces.iter().map(|(share, words)| (*share, file(words))).collect();
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let state = Arc::new(Mutex::new(State { files, owns, ..State::default() }));
        let (sender, given) = mpsc::channel();
        let socket = Arc::new(ours);
        let thread = std::thread::spawn({
            let (socket, state) = (Arc::clone(&socket), Arc::clone(&state));
            move || {
                while let Ok(Some((message, file))) = receive::<ToBroker>(&*socket) {
                    answer(&socket, &state, message, file, &sender);
                }
            }
        });
        (Self { socket, state, given, thread }, Sharing::over(theirs).unwrap())
    }

    /// Asks the session for something.
    pub fn ask(&self, share: ShareId, claim: Option<Claim>) -> (Result<Gift, Refusal>, Option<OwnedFd>) {
        send(&*self.socket, &ToServer::Give { request: 1, share, claim }, None).unwrap();
        self.given.recv_timeout(std::time::Duration::from_secs(20)).unwrap()
    }

    /// Gives an event from now on, which a session has given.
    pub fn pass_event(&self, share: ShareId, file: OwnedFd) {
        self.state.lock().unwrap().events.insert(share, file);
    }

    /// What the session holds.
    pub fn held(&self) -> Vec<ShareId> {
        self.state.lock().unwrap().held.clone()
    }

    /// A rehearsal has ended.
    pub fn has_rehearsed(&self) {
        self.state.lock().unwrap().rehearsals += 1;
    }

    /// How often the session has had no room.
    pub fn without_room(&self) -> u64 {
        self.state.lock().unwrap().without_room
    }

    /// Words of a piece.
    pub fn words(&self, share: ShareId, count: usize) -> Vec<u32> {
        words(&self.state.lock().unwrap().files[&share], 0, count)
    }

    /// It is gone, as when its supervisor is.
    pub fn end(self) {
        rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both).unwrap();
        self.thread.join().unwrap();
    }
}

/// Words of a file.
pub fn words(file: &File, at: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn answer(
    socket: &OwnedFd,
    state: &Mutex<State>,
    message: ToBroker,
    file: Option<OwnedFd>,
    given: &mpsc::Sender<(Result<Gift, Refusal>, Option<OwnedFd>)>,
) {
    let mut state = state.lock().unwrap();
    match message {
        ToBroker::Hold(share) => state.held.push(share),
        ToBroker::Release(share) => state.held.retain(|held| *held != share),
        ToBroker::Ready => {}
        ToBroker::Open { request, share, .. } => {
            let (file, event) = (state.files.get(&share), state.events.get(&share));
            let gift = match (file, event) {
                (Some(_), _) => {
                    Ok(Gift::Memory { device: 0, bytes: BYTES, handle_types: 1, compressible: false })
                }
                (None, Some(_)) => Ok(Gift::Event { bytes: Vec::new() }),
                (None, None) => Err(Refusal::new(CuError::INVALID_HANDLE, "there is no such thing")),
            };
            let file = file.map(AsFd::as_fd).or(event.map(AsFd::as_fd));
            send(socket, &ToServer::Opened { request, gift }, file).unwrap();
        }
        ToBroker::Given { gift, .. } => {
            // Whoever asked may have gone.
            let _ = given.send((gift, file));
        }
        ToBroker::Owned { request, shares } => {
            let owned = vec![state.owns; shares.len()];
            send(socket, &ToServer::Owned { request, owned }, None).unwrap();
        }
        ToBroker::NoRoom { request } => {
            state.without_room += 1;
            send(socket, &ToServer::Room { request, ended: state.rehearsals }, None).unwrap();
        }
    }
}
