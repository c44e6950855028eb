#![allow(clippy::unwrap_used)]

use super::life::open_pid;
use super::*;
use crate::gpus::Seen;
use crate::server_process::fake;
use host::InnerPid;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

fn sessions(shared: PathBuf) -> Arc<Sessions> {
    let target = Destination {
        device: "soft".into(),
        managed: Managed::default(),
        preempt_after: None,
        memory: None,
        gpus: Gpus::default(),
    };
    Sessions::new(shared, target, Arc::new(WayBack::new("job".into(), None)), None)
}

/// A process whose session is watched, and whose server says nothing.
fn silent(sessions: &Arc<Sessions>, number: u32, shadows: bool) -> (Child, Arc<Session>) {
    let (server, _) =
        fake::server(
            number,
            |mut script| {
                while let Ok(Some(_)) = script.from.receive::<server::control::Question>() {}
            },
        );
    let record = SessionRecord {
        number,
        inner_pid: InnerPid(number as i32),
        seen: Seen::Jobs,
        shadows,
        unprivileged: false,
        passed: None,
    };
    let program = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = open_pid(program.id() as i32).unwrap();
    let userfault = OnceLock::new();
    if shadows {
        userfault.set(process.try_clone().unwrap()).unwrap();
    }
    let session = Session {
        record,
        dir: sessions.dir(number),
        server_fd: server.pidfd().unwrap(),
        server: Mutex::new(server),
        userfault,
        passed: Mutex::default(),
        asleep: AtomicBool::new(false),
        unprivileged: AtomicBool::new(false),
    };
    (program, sessions.watch(process, session).unwrap())
}

#[test]
fn who_has_managed_memory_that_nobody_serves_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = sessions(folder.path().to_owned());
    let (mut with, first) = silent(&sessions, 1, true);
    let (mut without, second) = silent(&sessions, 2, false);
    for session in [first, second] {
        let failure = session.ungate().unwrap_err();
        assert!(failure.message.contains("has not answered"), "{failure}");
        assert!(!session.server().is_running());
    }
    assert_eq!(with.wait().unwrap().signal(), Some(9));
    assert!(without.try_wait().unwrap().is_none());
    without.kill().unwrap();
    without.wait().unwrap();
}

/// As on a kernel whose userfaultfd lacks something.
#[test]
fn a_userfaultfd_that_is_not_good_enough_is_refused_and_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = sessions(folder.path().to_owned());
    let (mut program, session) = silent(&sessions, 1, false);
    let refused = sessions.give_userfault(&session, tempfile::tempfile().unwrap().into()).unwrap_err();
    assert!(refused.message.contains("Linux 5.19"), "{refused}");
    assert!(!session.has_shadows());
    session.server().kill();
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn what_a_sleeper_shares_stays_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = sessions(folder.path().to_owned());
    let (mut program, session) = silent(&sessions, 1, false);
    std::fs::create_dir(sessions.dir(1)).unwrap();
    {
        let mut server = session.server();
        program.kill().unwrap();
        program.wait().unwrap();
        // Whoever watches it has noticed, and waits for the server.
        while sessions.has(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        sessions.put_to_sleep(&session, &mut server);
    }
    // It is over when nobody else has the session any more.
    while Arc::strong_count(&session) > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(sessions.dir(1).exists());
    sessions.remove_files(1);
}
