//! What is taken while the job stands still: device memory by its servers, the host half by CRIU; and the writing of what of device
//! memory is not in the store then.

use super::gate::{Gated, Servers, processes};
use crate::admin::Event;
use crate::error::{Chain, Failure, Kind, no_thread};
use crate::folder::write_failure;
use crate::server_process::ServerProcess;
use crate::sessions::panicked;
use crate::supervisor::Supervisor;
use image::DeviceFacts;
use plan::follow::Passed;
use server::control::{self, Answer, Ask, Kept};
use std::fs::File;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};
use store::Receipt;

/// The longest receipt that is read: of some 16 TiB of device memory.
const RECEIPT_MAX: u64 = 2 << 30;

/// What the servers captured.
#[derive(Default)]
pub struct Device {
    pub devices: Vec<DeviceFacts>,
    /// Where device memory is.
    pub kept: Kept,
    /// How far each session is in its plan.
    pub passed: Vec<(u32, Option<Passed>)>,
    /// Launches of marked kernels that are half-way.
    pub half_way: u64,
}

/// A stopped job and its captured device memory, and how long each took.
pub struct Captured<'a> {
    pub frozen: host::Frozen<'a>,
    pub host_time: Duration,
    pub device: Device,
    pub device_time: Duration,
}

/// Device memory by the servers and the host half by CRIU, side by side. The gate keeps the device as it is, unless managed memory `has_shadows`, which the
/// processor can write until CRIU has stopped it: then what it has written is taken behind that.
///
/// # Errors
/// The first that fails; the job's tasks run again.
pub fn capture<'a>(
    job: &'a Supervisor,
    ready: host::ReadyDump<'a>,
    (gated, has_shadows): (&mut Gated<'_>, bool),
    events: &Sender<Event>,
) -> Result<Captured<'a>, Failure> {
    let began = Instant::now();
    let (servers, total) = (&mut gated.servers, gated.bytes);
    let (begun, (dumped, host_time)) = std::thread::scope(|scope| {
        let servers = processes(servers);
        let beside = Builder::new().spawn_scoped(scope, move || match has_shadows {
            true => begin(servers).map(Begun::Copies),
            false => devices(servers, total, events).map(Begun::All),
        });
        let beside = beside.map_err(|error| no_thread(&error))?;
        let dumped = (ready.dump(), began.elapsed());
        Ok((beside.join().unwrap_or_else(|_| Err(panicked())), dumped))
    })?;
    let frozen = dumped.map_err(|error| dump_failure(job, &error))?;
    let (device, device_time) = match begun? {
        Begun::All(taken) => taken,
        Begun::Copies(copying) => {
            let (device, finishing) = devices(processes(servers), total, events)?;
            (device, copying + finishing)
        }
    };
    Ok(Captured { frozen, host_time, device, device_time })
}

/// What is taken while the processes are being stopped.
enum Begun {
    /// All that there is.
    All((Device, Duration)),
    /// Copies, of which something may have changed since. They took so long.
    Copies(Duration),
}

/// Has servers whose gates are closed begin to take device memory, side by side; answers how long that was.
///
/// # Errors
/// The first server's that fails.
fn begin(servers: Vec<&mut ServerProcess>) -> Result<Duration, Failure> {
    let began = Instant::now();
    let beginning = |server: &mut ServerProcess| match server.ask(&Ask::BeginCapture, &mut |_, _| {})? {
        Answer::Done => Ok(()),
        other => Err(server.unexpected(&other)),
    };
    side_by_side(servers, beginning)?;
    Ok(began.elapsed())
}

/// Has something done with each server, at the same time.
///
/// # Errors
/// The first server's that fails.
fn side_by_side<T: Send>(
    servers: Vec<&mut ServerProcess>,
    each: impl Fn(&mut ServerProcess) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let each = &each;
    let done: Vec<_> = std::thread::scope(|scope| {
        let begin = |server| Builder::new().spawn_scoped(scope, move || each(server));
        let doing: Vec<_> = servers.into_iter().map(begin).collect();
        let end = |doing: io::Result<ScopedJoinHandle<'_, _>>| match doing {
            Ok(doing) => doing.join().unwrap_or_else(|_| Err(panicked())),
            Err(error) => Err(no_thread(&error)),
        };
        doing.into_iter().map(end).collect()
    });
    done.into_iter().collect()
}

/// Has servers whose gates are closed take device memory, `total` bytes of it, side by side; answers what they have taken, and how long that was.
///
/// # Errors
/// The first server's that fails.
pub fn devices(
    servers: Vec<&mut ServerProcess>,
    total: u64,
    events: &Sender<Event>,
) -> Result<(Device, Duration), Failure> {
    if servers.is_empty() {
        return Ok((Device::default(), Duration::ZERO));
    }
    let (done, began) = (AtomicU64::new(0), Instant::now());
    let taken = side_by_side(servers, |server| {
        let events = events.clone();
        let mut told = adding(&done, move |done| {
            let _ = events.send(Event::Progress { done, total });
        });
        match server.ask(&Ask::Capture, &mut told)? {
            Answer::Captured { kept, devices, passed, half_way } => {
                Ok((kept, devices, (server.session(), passed.map(|passed| *passed)), half_way))
            }
            other => Err(server.unexpected(&other)),
        }
    })?;
    let mut device = Device::default();
    for (kept, devices, passed, half_way) in taken {
        device.half_way += half_way;
        device.passed.push(passed);
        device.add(kept, devices);
    }
    Ok((device, began.elapsed()))
}

impl Device {
    fn add(&mut self, kept: Kept, devices: Vec<DeviceFacts>) {
        self.kept += kept;
        for each in devices {
            if !self.devices.contains(&each) {
                self.devices.push(each);
            }
        }
    }
}

/// Object tables in files.
#[derive(Default)]
pub struct Tables {
    /// Each with the number of its session.
    pub files: Vec<(u32, PathBuf)>,
    /// Bytes that are free on the sessions' devices beside copies: on the one that has least.
    pub free: u64,
}

/// Has the servers leave the object tables that they have captured in this folder.
///
/// # Errors
/// The first server's that fails.
pub fn leave(servers: &mut Servers<'_>, states: &Path) -> Result<Tables, Failure> {
    let ask = &Ask::Leave { states: states.into() };
    let left = side_by_side(processes(servers), |server| match server.ask(ask, &mut |_, _| {})? {
        Answer::Left { free } => Ok((server.session(), free)),
        other => Err(server.unexpected(&other)),
    })?;
    let free = left.iter().map(|(_, free)| *free).min().unwrap_or(u64::MAX);
    let file = |(session, _): &(u32, u64)| (*session, control::state_file(states, *session));
    Ok(Tables { files: left.iter().map(file).collect(), free })
}

/// Has the servers write what they have captured, side by side; `done` is how many bytes they have.
///
/// # Errors
/// The first server's that fails.
pub fn write(servers: &mut Servers<'_>, states: &Path, done: &AtomicU64) -> Result<Vec<Receipt>, Failure> {
    let ask = &Ask::Write { states: states.into() };
    side_by_side(processes(servers), |server| match server.ask(ask, &mut adding(done, |_| {}))? {
        Answer::Written { receipt_bytes } => {
            read_receipt(&control::receipt_file(states, server.session()), receipt_bytes)
        }
        other => Err(server.unexpected(&other)),
    })
}

/// Adds the progress of one of several to what all have done, and tells that.
fn adding(done: &AtomicU64, tell: impl Fn(u64)) -> impl FnMut(u64, u64) {
    let mut before = 0;
    move |now, _| {
        let step = now.saturating_sub(before);
        before = now;
        tell(done.fetch_add(step, Ordering::Relaxed) + step);
    }
}

/// A receipt of `bytes` bytes.
fn read_receipt(path: &Path, bytes: u64) -> Result<Receipt, Failure> {
    let unreadable = |what: String| {
        Failure::new(Kind::Failed, format!("a GPU server's receipt, {}: {what}", path.display()))
    };
    if bytes > RECEIPT_MAX {
        return Err(unreadable(format!("{bytes} bytes are too many; the most are {RECEIPT_MAX}")));
    }
    let mut receipt = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes + 1).read_to_end(&mut receipt));
    match read {
        Ok(read) if read as u64 == bytes => Receipt::from_bytes(&receipt).map_err(write_failure),
        Ok(read) => Err(unreadable(format!("it has {read} bytes or more, not {bytes}"))),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

fn dump_failure(job: &Supervisor, error: &host::DumpError) -> Failure {
    if job.job.application_ending().is_some() {
        return Failure::new(Kind::Ended, "the job ended during the checkpoint; nothing was published");
    }
    let kind = match error {
        host::DumpError::Unrestorable(_) => Kind::Refused,
        host::DumpError::Ended => Kind::Ended,
        host::DumpError::UnderWay => Kind::NotIdle,
        // That ends by itself.
        host::DumpError::Unstoppable { .. } if !job.job.unstoppable().is_empty() => Kind::NotIdle,
        _ => Kind::Failed,
    };
    Failure::new(kind, Chain(error).to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_of_many_chunks_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = control::receipt_file(dir.path(), 4);
        let chunk = |number: u32| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&number.to_le_bytes());
            image::Extent::Chunk { id: image::ChunkId(id), len: 4096 }
        };
        let kind = image::ObjectKind::HostRecord;
        let objects = vec![image::Object { kind, extents: (0..50_000).map(chunk).collect() }];
        let receipt = Receipt {
            image: image::ImageId([7; 16]),
            packs: vec![],
            objects,
            stored: image::StoredBytes::default(),
        };
        let bytes = receipt.to_bytes().unwrap();
        assert!(bytes.len() > control::LINE_MAX);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_receipt(&path, bytes.len() as u64).unwrap().objects, receipt.objects);
    }

    #[test]
    fn a_receipt_is_read_only_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = control::receipt_file(dir.path(), 4);
        let receipt = Receipt {
            image: image::ImageId([7; 16]),
            packs: vec![],
            objects: vec![],
            stored: image::StoredBytes::default(),
        };
        let bytes = receipt.to_bytes().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let len = bytes.len() as u64;
        assert_eq!(read_receipt(&path, len).unwrap().image, receipt.image);
        for wrong in [0, len - 1, len + 1, u64::MAX] {
            let failure = read_receipt(&path, wrong).unwrap_err();
            assert!(failure.message.contains("receipt-4"), "{failure}");
        }
        std::fs::write(&path, vec![0xff; bytes.len()]).unwrap();
        assert!(read_receipt(&path, len).is_err());
    }
}
