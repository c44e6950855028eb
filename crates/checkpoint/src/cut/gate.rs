//! Closing the gates of a job's sessions, all at once.

use crate::admin::CheckpointOptions;
use crate::error::{Failure, Kind};
use crate::server_process::ServerProcess;
use crate::sessions::Session;
use crate::supervisor::Supervisor;
use image::DeviceFacts;
use server::control::{Answer, Ask, DeviceSet, few};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// Servers, for the holder alone.
pub type Servers<'a> = Vec<MutexGuard<'a, ServerProcess>>;

/// For threads of their own, side by side.
pub fn processes<'a>(servers: &'a mut Servers<'_>) -> Vec<&'a mut ServerProcess> {
    servers.iter_mut().map(|server| &mut **server).collect()
}

/// A job whose gate is closed; opened again when this is dropped.
pub struct Gated<'a> {
    pub servers: Servers<'a>,
    /// Whether objects were made or destroyed since the last capture.
    pub table_changed: bool,
    /// Device memory to capture.
    pub bytes: u64,
}

impl<'a> Gated<'a> {
    /// Opens the gates while there is more to write of what the servers have captured.
    pub fn open(mut self) -> Opened<'a> {
        let mut servers = std::mem::take(&mut self.servers);
        ungate(&mut servers, true);
        Opened { servers }
    }
}

impl Drop for Gated<'_> {
    fn drop(&mut self) {
        ungate(&mut self.servers, false);
    }
}

/// The servers of a job that goes on. They are asked nothing else until this is dropped, and have nothing more to write then.
pub struct Opened<'a> {
    pub servers: Servers<'a>,
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        ungate(&mut self.servers, false);
    }
}

/// Everyone is told before anyone is waited for. One that is gone has been told of, and has no part of an image to give.
pub fn ungate(servers: &mut Servers<'_>, keep: bool) {
    let running = servers.iter_mut().filter_map(|server| server.is_running().then_some(&mut **server));
    let asked: Vec<_> = running.map(|server| (server.say(&Ask::Ungate { keep }), server)).collect();
    for (asked, server) in asked {
        if let Err(failure) = asked.and_then(|()| server.done()) {
            tracing::error!("session {} does not go on: {failure}", server.session());
        }
    }
}

/// A job that is not idle yet, and what holds it, a sentence each.
pub struct Busy(pub Vec<String>);

/// The servers of the sessions whose processes have not ended; those do not end before these are dropped.
pub fn servers<'a>(job: &Supervisor, sessions: &'a [Arc<Session>]) -> Servers<'a> {
    let servers = sessions.iter().map(|session| session.server());
    servers.filter(|server| job.sessions.has(server.session())).collect()
}

/// For each of these, which of its devices no other uses.
///
/// # Errors
/// When one does not answer.
pub fn own_devices(servers: &mut Servers<'_>) -> Result<Vec<DeviceSet>, Failure> {
    let used = |server: &mut ServerProcess| match server.ask(&Ask::Devices, &mut |_, _| {})? {
        Answer::Devices { devices } => Ok(devices),
        other => Err(server.unexpected(&other)),
    };
    let used = processes(servers).into_iter().map(used).collect::<Result<Vec<_>, _>>()?;
    Ok(of_one(&used))
}

/// Which of its devices only one has, for each of those that have these.
fn of_one(used: &[Vec<DeviceFacts>]) -> Vec<DeviceSet> {
    let users = |uuid| used.iter().filter(|devices| devices.iter().any(|device| device.uuid == uuid)).count();
    let own = |devices: &Vec<DeviceFacts>| {
        let own = devices.iter().filter(|device| users(device.uuid) == 1);
        own.map(|device| device.ordinal.0 as usize).collect()
    };
    used.iter().map(own).collect()
}

/// Has every server read the store's indexes, which may take long, before a gate closes; each is told its own.
///
/// # Errors
/// When one cannot, or does not answer.
pub fn prepare(servers: &mut Servers<'_>, ask: impl Fn(usize) -> Ask) -> Result<(), Failure> {
    let asked: Vec<_> =
        servers.iter_mut().enumerate().map(|(number, server)| server.say(&ask(number))).collect();
    let answers = servers.iter_mut().zip(asked).map(|(server, asked)| asked.and_then(|()| server.done()));
    // All are heard out.
    let prepared: Result<(), _> = answers.collect::<Vec<_>>().into_iter().collect();
    if prepared.is_err() {
        // What the others have made room for is given back.
        ungate(servers, false);
    }
    prepared
}

/// Closes the gate of every session and waits until all are idle.
///
/// # Errors
/// [`Kind::Refused`], or when a server does not answer; all gates are open again, or will be as soon as their servers have done
/// what holds them up.
pub fn close<'a>(
    servers: Servers<'a>,
    options: &CheckpointOptions,
) -> Result<Result<Gated<'a>, Busy>, Failure> {
    let ask = Ask::Gate { deadline_ms: options.gate_deadline_ms };
    let patience = Duration::from_millis(options.gate_deadline_ms);
    let mut gated = Gated { servers: Vec::new(), table_changed: false, bytes: 0 };
    let (mut holders, mut refusals, mut failed) = (Vec::new(), Vec::new(), None);
    // Everyone is asked before anyone is waited for: a session may need another to get idle. Whoever was asked is heard
    // out and let go, also when another fails.
    let mut asked = Vec::new();
    for mut server in servers {
        match server.say(&ask) {
            Ok(()) => asked.push(server),
            Err(failure) => failed = Some(failure),
        }
    }
    for mut server in asked {
        match server.answer_within(patience, &mut |_, _| {}) {
            Ok(Answer::Idle { refusals: each, table_changed, bytes }) => {
                refusals.extend(each);
                gated.table_changed |= table_changed;
                gated.bytes += bytes;
                gated.servers.push(server);
            }
            Ok(Answer::Busy { holders: each }) => holders.extend(each),
            Ok(other) => failed = Some(server.unexpected(&other)),
            Err(failure) => {
                // One that is late closes its gate yet, finds this next, and opens it again.
                if let Err(gone) = server.say(&Ask::Ungate { keep: false }) {
                    tracing::debug!("{gone}");
                }
                failed = Some(failure);
            }
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None if !refusals.is_empty() => Err(refused(refusals)),
        None if !holders.is_empty() => Ok(Err(Busy(few(holders)))),
        None => Ok(Ok(gated)),
    }
}

/// The failure of a checkpoint of a job that holds what no image can, a sentence each.
pub fn refused(what: Vec<String>) -> Failure {
    let message = format!(
        "the job holds what cannot be restored; nothing was written, it runs on: {}",
        few(what).join("; ")
    );
    Failure::new(Kind::Refused, message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::server_process::fake;
    use server::control::{Cause, Reads};
    use std::sync::Mutex;

    fn idle(refusals: &[&str]) -> Answer {
        let refusals = refusals.iter().map(|&each| each.to_owned()).collect();
        Answer::Idle { refusals, table_changed: false, bytes: 0 }
    }

    fn close_one(server: &Mutex<ServerProcess>) -> Result<Result<Gated<'_>, Busy>, Failure> {
        let options = CheckpointOptions { gate_deadline_ms: 1, ..Default::default() };
        close(vec![server.lock().unwrap()], &options)
    }

    #[test]
    fn a_server_that_is_idle_too_late_is_ungated() {
        let (server, script) = fake::server(3, |mut script| {
            let gate = script.question();
            // Silent, until the supervisor has given up and asks for the next thing.
            let ungate = script.question();
            script.reply(gate.number, idle(&[]));
            script.reply(ungate.number, Answer::Done);
            let again = script.question();
            script.reply(again.number, idle(&[]));
            let last = script.question();
            script.reply(last.number, Answer::Done);
            [gate.ask, ungate.ask, again.ask, last.ask]
        });
        let server = Mutex::new(server);
        let Err(failure) = close_one(&server) else { panic!("it did not answer") };
        assert!(failure.message.contains("session 3 has not answered"), "{failure}");
        // It lives on, and the next checkpoint finds it in step.
        assert!(matches!(close_one(&server), Ok(Ok(gated)) if gated.servers.len() == 1));
        let gate = Ask::Gate { deadline_ms: 1 };
        assert_eq!(
            script.join().unwrap(),
            [gate.clone(), Ask::Ungate { keep: false }, gate, Ask::Ungate { keep: false }]
        );
    }

    #[test]
    fn a_server_that_cannot_prepare_fails_the_checkpoint_with_every_gate_open() {
        let play = |answer: Answer| {
            move |mut script: fake::Script| {
                let prepare = script.question();
                script.reply(prepare.number, answer);
                let ungate = script.question();
                script.reply(ungate.number, Answer::Done);
                [prepare.ask, ungate.ask]
            }
        };
        let full = Answer::Failed { message: "no such store".into(), cause: Cause::Store };
        let (first, one) = fake::server(1, play(full));
        let (second, other) = fake::server(2, play(Answer::Done));
        let both = [Mutex::new(first), Mutex::new(second)];
        let store = store::Location::Folder("/store".into()).into();
        let compress = image::Compress::None;
        let ask = Ask::Prepare {
            store,
            draft: String::new(),
            compress,
            memory: 64 << 20,
            threads: 1,
            pack_len: 256 << 20,
            reread: false,
            reads: Reads::Changed,
            copies: None,
        };
        let mut servers: Servers<'_> = both.iter().map(|server| server.lock().unwrap()).collect();
        assert_eq!(prepare(&mut servers, |_| ask.clone()).unwrap_err().kind, Kind::Store);
        // Both give back what they have made ready.
        let asked = [ask, Ask::Ungate { keep: false }];
        assert_eq!([one.join().unwrap(), other.join().unwrap()], [asked.clone(), asked]);
    }

    #[test]
    fn a_device_is_ones_own_where_no_other_has_it() {
        let device = |ordinal: u32, uuid: u8| DeviceFacts {
            ordinal: image::DeviceOrdinal(ordinal),
            backend: "soft".into(),
            name: String::new(),
            uuid: [uuid; 16],
            compute_capability: 90,
            total_memory: 1 << 30,
            driver_version: 13000,
        };
        let used = [vec![device(0, 1), device(1, 2)], vec![device(0, 2), device(3, 3)], vec![]];
        let own = of_one(&used);
        let expected: Vec<DeviceSet> =
            vec![[0].into_iter().collect(), [3].into_iter().collect(), DeviceSet::NONE];
        assert_eq!(own, expected);
        assert_eq!(of_one(&used[..1]), [[0, 1].into_iter().collect()]);
    }

    #[test]
    fn refusals_are_cut_and_leave_the_gate_open() {
        let (server, script) = fake::server(3, |mut script| {
            let number = script.question().number;
            script.reply(number, idle(&vec!["a reason"; 100]));
            let ungate = script.question();
            script.reply(ungate.number, Answer::Done);
            ungate.ask
        });
        let server = Mutex::new(server);
        let Err(failure) = close_one(&server) else { panic!("it refuses") };
        assert_eq!(failure.kind, Kind::Refused);
        assert!(failure.message.ends_with("and 36 more"), "{failure}");
        assert_eq!(script.join().unwrap(), Ask::Ungate { keep: false });
    }
}
