//! A job ends, prints and takes signals as the program would without us.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{Bench, Supervisor, children_of, code, is_alive, terminal, wait_until};

#[test]
fn exit_codes_and_signals_pass_through() {
    let bench = Bench::new();
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 42", 42),
        ("kill -ABRT $$", 134),
        ("kill -TERM $$", 143),
        ("kill -INT $$", 130),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
    ] {
        let (status, _) = bench.run(&["sh", "-c", script]).finish();
        assert_eq!(code(status), expected, "{script}: {status}");
    }
}

#[test]
fn a_program_that_cannot_run_gets_the_shells_code() {
    let bench = Bench::new();
    let not_executable = bench.path("text");
    fs::write(&not_executable, "x").unwrap();
    for (program, expected, word) in [
        ("no-such-program", 127, "cannot run no-such-program: No such file"),
        (not_executable.to_str().unwrap(), 126, "Permission denied"),
    ] {
        let mut command = bench.command(&[program]);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(expected));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn the_application_is_pid_2_among_its_own() {
    let bench = Bench::new();
    let (_, output) =
        bench.run(&["sh", "-c", "echo $$; cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l"]).finish();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], ["2", "init"]);
    assert!(lines[2].trim().parse::<u32>().unwrap() < 8, "it sees the machine's processes: {output}");
}

#[test]
fn environment_folder_mask_and_ignored_signals_are_inherited() {
    let bench = Bench::new();
    let seen = "pwd; umask; echo $MARK; grep SigIgn /proc/self/status | tail -c 8; grep SigBlk /proc/self/status; ulimit -n; nice";
    let with = |inner: Command| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap '' HUP; umask 027; cd /usr/share; ulimit -n 99; exec nice -n 3 \"$@\"",
            "sh",
        ]);
        command.arg(inner.get_program()).args(inner.get_args());
        command
            .env("MARK", "a mark")
            .env("DORMOUSE_INIT", env!("CARGO_BIN_EXE_dormouse-init"))
            .stdout(Stdio::piped());
        command
    };
    let mut native = Command::new("sh");
    native.args(["-c", seen]);
    let native = String::from_utf8(with(native).output().unwrap().stdout).unwrap();
    assert!(native.starts_with("/usr/share\n0027\na mark\n"), "{native}");
    let (_, output) = Supervisor::start(with(bench.command(&["sh", "-c", seen])), bench.control()).finish();
    assert_eq!(output, native);
}

#[test]
fn signals_reach_the_application() {
    let bench = Bench::new();
    let script = "for s in TERM INT HUP QUIT USR1 USR2; do trap \"echo got $s\" $s; done; echo ready; while :; do sleep 0.01; done";
    let mut job = bench.run(&["sh", "-c", script]);
    job.wait_for(|line| line == "ready");
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
    ] {
        job.signal(signal);
        job.wait_for(|line| line == format!("got {name}"));
    }
}

#[test]
fn a_signal_with_no_handler_ends_it_as_such() {
    let bench = Bench::new();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut job = bench.run(&["sh", "-c", "echo ready; exec sleep 60"]);
        job.wait_for(|line| line == "ready");
        job.signal(signal);
        assert_eq!(code(job.finish().0), 128 + signal);
    }
}

#[test]
fn an_orphaned_grandchild_finishes_and_the_code_is_the_applications() {
    let bench = Bench::new();
    let (status, output) = bench.run(&["sh", "-c", "(sleep 0.2; echo from the orphan) & exit 5"]).finish();
    assert_eq!((status.code(), output.as_str()), (Some(5), "from the orphan\n"));
}

#[test]
fn a_killed_supervisor_leaves_nothing() {
    let bench = Bench::new();
    let mut job = bench.run(&["sh", "-c", "sleep 61 & sleep 62 & echo ready; trap '' TERM HUP; wait"]);
    job.wait_for(|line| line == "ready");
    let pids = job.job_pids();
    assert!(pids.len() >= 4, "{pids:?}");
    job.signal(libc::SIGKILL);
    job.wait();
    wait_until("the job's end", || !pids.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn what_the_loader_is_told_is_for_the_program() {
    let bench = Bench::new();
    let loaded = bench.path("loaded");
    fs::create_dir(&loaded).unwrap();
    let mut command = bench.command(&["true"]);
    command.env("LD_DEBUG", "files").env("LD_DEBUG_OUTPUT", loaded.join("by"));
    assert!(command.status().unwrap().success());
    let read = |entry: io::Result<fs::DirEntry>| fs::read_to_string(entry.unwrap().path()).unwrap();
    let said: Vec<String> = fs::read_dir(&loaded).unwrap().map(read).collect();
    assert!(said.iter().any(|said| said.contains("needed by true")), "{said:?}");
    assert!(!said.iter().any(|said| said.contains("/init")), "{said:?}");
}

#[test]
fn standard_error_shares_a_pipe_in_order() {
    let bench = Bench::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do echo out $i; echo err $i >&2; done; readlink /proc/self/fd/1 /proc/self/fd/2";
    let inner = bench.command(&["sh", "-c", script]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.env("DORMOUSE_INIT", env!("CARGO_BIN_EXE_dormouse-init")).stdout(Stdio::piped());
    let (_, output) = Supervisor::start(command, bench.control()).finish();
    let expected: String = (1..=8).map(|i| format!("out {i}\nerr {i}\n")).collect();
    let (lines, links) = output.split_at(expected.len());
    assert_eq!(lines, expected);
    let links: Vec<&str> = links.lines().collect();
    assert!(links[0].starts_with("pipe:"), "{links:?}");
    assert_eq!(links[0], links[1]);
}

#[test]
fn a_pipe_that_nobody_reads_is_a_broken_pipe() {
    let bench = Bench::new();
    let mut command = bench.command(&["sh", "-c", "yes; echo $? >&2"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 2];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr).trim(), "141", "SIGPIPE");
}

#[test]
fn megabytes_pass_a_pipe_unharmed() {
    let bench = Bench::new();
    let mut command = bench.command(&["sh", "-c", "seq 1 300000"]);
    let output = command.output().unwrap();
    let expected: String = (1..=300_000).map(|i| format!("{i}\n")).collect();
    assert!(output.stdout == expected.as_bytes());
}

#[test]
fn standard_input_is_read_from_pipe_and_file() {
    let bench = Bench::new();
    let mut command = bench.command(&["sh", "-c", "read a; read b; echo $b $a"]);
    command.stdin(Stdio::piped());
    let mut job = Supervisor::start(command, bench.control());
    job.stdin().write_all(b"one\ntwo\n").unwrap();
    assert_eq!(job.finish().1, "two one\n");

    let file = bench.path("input");
    fs::write(&file, "three\nfour\n").unwrap();
    let mut command = bench.command(&["sh", "-c", "read a; read b; echo $b $a; readlink /proc/self/fd/0"]);
    command.stdin(File::open(&file).unwrap());
    let (_, output) = Supervisor::start(command, bench.control()).finish();
    assert_eq!(output, format!("four three\n{}\n", file.display()));
}

#[test]
fn what_it_does_not_read_stays_in_the_pipe() {
    let bench = Bench::new();
    let inner = bench.command(&["true"]);
    let mut command = Command::new("sh");
    command
        .args(["-c", "printf 'one\\ntwo\\n' | { sleep 0.1; \"$@\"; cat; }", "sh"])
        .arg(inner.get_program())
        .args(inner.get_args());
    let output = command.env("DORMOUSE_INIT", env!("CARGO_BIN_EXE_dormouse-init")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\n");
}

#[test]
fn a_file_stays_the_same_file() {
    let bench = Bench::new();
    let file = bench.path("output");
    let mut out = File::create(&file).unwrap();
    out.write_all(b"before\n").unwrap();
    let mut command = bench.command(&["sh", "-c", "echo during; readlink /proc/self/fd/1"]);
    command.stdout(out.try_clone().unwrap());
    assert!(command.status().unwrap().success());
    // Whoever shares the descriptor goes on behind the job's output.
    out.write_all(b"after\n").unwrap();
    let expected = format!("before\nduring\n{}\nafter\n", file.display());
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);

    let appended = OpenOptions::new().append(true).open(&file).unwrap();
    let mut command = bench.command(&["sh", "-c", "echo more"]);
    assert!(command.stdout(appended).status().unwrap().success());
    assert_eq!(fs::read_to_string(&file).unwrap(), expected + "more\n");
}

#[test]
fn a_file_without_a_name_is_written_too() {
    let bench = Bench::new();
    let mut file = tempfile::tempfile().unwrap();
    let mut command = bench.command(&["echo", "nameless"]);
    assert!(command.stdout(file.try_clone().unwrap()).status().unwrap().success());
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "nameless\n");
}

/// Starts the job on a terminal that is its session's controlling one.
fn on_terminal(mut command: Command, slave: &File) -> std::process::Child {
    for (set, fd) in [
        (Command::stdin as fn(&mut Command, Stdio) -> &mut Command, 0),
        (Command::stdout, 1),
        (Command::stderr, 2),
    ] {
        let _ = fd;
        set(&mut command, Stdio::from(slave.try_clone().unwrap()));
    }
    // SAFETY: two system calls.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// Reads from a terminal until `wanted` has come by.
fn read_until(master: &mut File, wanted: &str) -> String {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains(wanted) {
        let n = master.read(&mut bytes).unwrap();
        text.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    text
}

#[test]
fn a_terminal_stays_a_terminal() {
    let bench = Bench::new();
    let (mut master, slave) = terminal();
    let size = rustix::termios::Winsize { ws_row: 33, ws_col: 101, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    // Both traps are set before the first key is sent that they are for.
    let script = "tty; stty size; read line; echo \"got $line\"; trap 'echo resized; stty size' WINCH; \
                  trap 'echo interrupted; exit 9' INT; echo waiting; while :; do sleep 0.01; done";
    let mut child = on_terminal(bench.command(&["sh", "-c", script]), &slave);
    let text = read_until(&mut master, "33 101");
    assert!(text.contains("/dev/pts/0"), "{text}");
    master.write_all(b"a line\r").unwrap();
    let text = read_until(&mut master, "waiting");
    assert!(text.contains("got a line"), "{text}");
    let size = rustix::termios::Winsize { ws_row: 44, ws_col: 55, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    read_until(&mut master, "44 55");
    // ^C
    master.write_all(b"\x03").unwrap();
    read_until(&mut master, "interrupted");
    assert_eq!(child.wait().unwrap().code(), Some(9));
    // The user's terminal has its modes back.
    let modes = rustix::termios::tcgetattr(&slave).unwrap();
    assert!(
        modes.local_modes.contains(rustix::termios::LocalModes::ICANON | rustix::termios::LocalModes::ECHO)
    );
}

#[test]
fn what_a_program_writes_last_arrives_on_a_terminal() {
    let bench = Bench::new();
    let (mut master, slave) = terminal();
    let expected: String = (1..=1900).map(|i| format!("{i}\r\n")).collect();
    for _ in 0..10 {
        let mut child =
            on_terminal(bench.command(&["sh", "-c", "echo ready; sleep 0.1; exec seq 1 1900"]), &slave);
        read_until(&mut master, "ready\r\n");
        // The job's init gets to none of it before the program has ended; a pty holds about 12 KiB.
        let init = children_of(child.id() as i32)[0];
        let application = children_of(init)[0];
        // SAFETY: signals a process that our child has not waited for.
        let signal = |signal| assert_eq!(unsafe { libc::kill(init, signal) }, 0);
        signal(libc::SIGSTOP);
        wait_until("the program's end", || !is_alive(application));
        signal(libc::SIGCONT);
        let reading = {
            let mut master = master.try_clone().unwrap();
            std::thread::spawn(move || read_until(&mut master, "that was it"))
        };
        assert_eq!(child.wait().unwrap().code(), Some(0));
        (&slave).write_all(b"that was it\n").unwrap();
        let text = reading.join().unwrap();
        assert!(text.starts_with(&expected), "{} of {} bytes arrived", text.len(), expected.len());
    }
}

#[test]
fn a_stop_from_the_keyboard_gives_the_shell_back() {
    let bench = Bench::new();
    let (mut master, slave) = terminal();
    let mut child = on_terminal(
        bench.command(&["sh", "-c", "echo ready; read line; echo \"got $line\"; exit 8"]),
        &slave,
    );
    read_until(&mut master, "ready");
    // ^Z
    master.write_all(b"\x1a").unwrap();
    let pid = child.id() as i32;
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
    assert_eq!((libc::WIFSTOPPED(status), libc::WSTOPSIG(status)), (true, libc::SIGSTOP));
    let modes = rustix::termios::tcgetattr(&slave).unwrap();
    assert!(modes.local_modes.contains(rustix::termios::LocalModes::ICANON));
    // fg
    // SAFETY: continues a child of ours.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    master.write_all(b"a line\r").unwrap();
    read_until(&mut master, "got a line");
    assert_eq!(child.wait().unwrap().code(), Some(8));
}
