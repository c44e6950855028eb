//! A job that was dumped, killed and brought back goes on as if nothing had happened.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Bench, Supervisor, code, counted, counter, is_alive, terminal, wait_until};

#[test]
fn it_continues_exactly_where_it_was() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 300));
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(40);
    let image = bench.image();
    let delivered = job.dump(&image);
    job.wait_for_number(120);
    let before = job.kill_everything();
    bench.let_end();
    let (status, after) = bench.restart(&image).finish();
    assert_eq!(status.code(), Some(7));
    assert_eq!(before[..delivered].to_owned() + &after, counted(300));
}

#[test]
fn a_checkpoint_does_not_disturb_the_job() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 200));
    let mut job = bench.run_to_the_end(&program);
    for number in [20, 60, 100, 140] {
        job.wait_for_number(number);
        job.dump(&bench.image());
    }
    bench.let_end();
    let (status, output) = job.finish();
    assert_eq!((status.code(), output), (Some(7), counted(200)));
}

#[test]
fn a_stopped_job_goes_on_in_another_life_of_another_life() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 200));
    let mut job = bench.run_to_the_end(&program);
    let mut all = String::new();
    job.wait_for_number(20);
    for _ in 0..3 {
        // However fast it counts, it does not end before it may.
        job.ask("tasks");
        let image = bench.image();
        job.stop(&image);
        let (status, output) = job.finish();
        assert_eq!(code(status), 137);
        all.push_str(&output);
        job = bench.restart(&image);
    }
    bench.let_end();
    let (status, output) = job.finish();
    assert_eq!((status.code(), all + &output), (Some(7), counted(200)));
}

/// A process has ended, and its parent does not look before it may end itself; another one lives.
const CHILDLESS: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int status, ended = fork();
    if (!ended) _exit(3);
    int other = fork();
    if (!other) for (;;) pause();
    siginfo_t info;
    if (waitid(P_PID, ended, &info, WEXITED | WNOWAIT)) exit(99);
    puts("1"), fflush(stdout);
    while (access(argv[1], F_OK)) usleep(1000);
    if (waitpid(ended, &status, 0) != ended || WEXITSTATUS(status) != 3) exit(98);
    kill(other, SIGKILL), waitpid(other, 0, 0);
    exit(7);
}
"#;

/// What had ended when the image was taken may be gone before all others that are to be held stand.
#[test]
fn what_had_ended_is_not_held() {
    let bench = Bench::new();
    let program = bench.compile("childless", CHILDLESS);
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(1);
    let image = bench.image();
    job.stop(&image);
    bench.let_end();
    let mut command = bench.restart_command(&image);
    command.env("SUPERVISE_USERFAULT", "2");
    let (status, _) = Supervisor::start(command, bench.control()).finish();
    assert_eq!(status.code(), Some(7));
}

/// Stays within itself: two threads, a child and its orphan, a TCP pair, a UNIX pair, a pipe, a deleted file, shared memory.
const HOLDER: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(c) do { if (!(c)) { perror(#c); exit(99); } } while (0)
static volatile int ticks;
static void *tick(void *unused) { for (;;) { ticks++; usleep(1000); } return unused; }
static void pass(int from, int to, int value) {
    int got = -1;
    CHECK(write(from, &value, sizeof value) == sizeof value);
    CHECK(read(to, &got, sizeof got) == sizeof got);
    CHECK(got == value);
}
int main(int argc, char **argv) {
    const char *path = argv[argc - 1];
    int listener = socket(AF_INET, SOCK_STREAM, 0), tcp[2], un[2], pip[2], up[2];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    CHECK(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 1) && !getsockname(listener, (void *)&at, &length));
    tcp[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(tcp[0], (void *)&at, sizeof at));
    tcp[1] = accept(listener, 0, 0);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, un) && !pipe(pip) && !pipe(up));
    char name[] = "/tmp/dormouse-holder-XXXXXX";
    int deleted = mkstemp(name), shm = shm_open("/dormouse-holder", O_RDWR | O_CREAT, 0600);
    CHECK(deleted >= 0 && !unlink(name) && shm >= 0 && !ftruncate(deleted, 3 << 20) && !ftruncate(shm, 4096));
    volatile int *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shm, 0);
    int child = fork();
    if (!child) {
        close(up[1]);
        if (!fork()) { for (;;) { shared[0]++; usleep(1000); } }
        for (int v; read(up[0], &v, sizeof v) == sizeof v;) { v += 1000; CHECK(write(un[1], &v, sizeof v) == sizeof v); }
        _exit(5);
    }
    CHECK(waitpid(-1, 0, WNOHANG) == 0);
    pthread_t thread;
    pthread_create(&thread, 0, tick, 0);
    for (int i = 0; i <= 150; i++) {
        while (i == 150 && access(path, F_OK)) usleep(1000);
        int t = ticks, s = shared[0], v;
        pass(tcp[0], tcp[1], i), pass(tcp[1], tcp[0], i), pass(pip[1], pip[0], i);
        CHECK(write(up[1], &i, sizeof i) == sizeof i && read(un[0], &v, sizeof v) == sizeof v && v == i + 1000);
        CHECK(pwrite(deleted, &i, sizeof i, 2 << 20) == sizeof i && pread(deleted, &v, sizeof v, 2 << 20) == sizeof v && v == i);
        while (ticks == t || shared[0] == s) usleep(500);
        printf("%d\n", i), fflush(stdout);
    }
    close(up[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
    shm_unlink("/dormouse-holder");
    exit(7);
}
"#;

#[test]
fn sockets_threads_children_and_shared_memory_survive() {
    let bench = Bench::new();
    let program = bench.compile("holder", HOLDER);
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(30);
    let image = bench.image();
    let delivered = job.dump(&image);
    job.wait_for_number(60);
    let before = job.kill_everything();
    bench.let_end();
    let mut job = bench.restart(&image);
    job.wait_for_number(150);
    // The orphan runs on, and so does the job; the application itself is over.
    wait_until("the application's end", || job.ask("tasks").split(' ').all(|t| !t.starts_with("2:")));
    for pid in job.job_pids() {
        // SAFETY: a process of the job, or nobody any more.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
    let (status, after) = job.finish();
    assert_eq!((status.code(), before[..delivered].to_owned() + &after), (Some(7), counted(150)));
}

/// Two ends of a TCP connection that nobody reads from until the end: as much as fits is queued, sent and not.
const STUFFED: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#define CHECK(c) do { if (!(c)) { perror(#c); exit(99); } } while (0)
static int ends[2], sent[2];
static void stuff(int end) {
    while (send(ends[end], &sent[end], sizeof(int), MSG_DONTWAIT) == sizeof(int)) sent[end]++;
}
int main(int argc, char **argv) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    CHECK(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 1) && !getsockname(listener, (void *)&at, &length));
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(ends[0], (void *)&at, sizeof at));
    ends[1] = accept(listener, 0, 0);
    stuff(0), stuff(1);
    for (int i = 0; i <= 60 || access(argv[argc - 1], F_OK); i++) printf("%d\n", i), fflush(stdout), usleep(2000);
    for (int end = 0; end < 2; end++)
        for (int i = 0, v; i < sent[end]; i++) CHECK(recv(ends[!end], &v, sizeof v, MSG_WAITALL) == sizeof v && v == i);
    exit(7);
}
"#;

#[test]
fn a_connection_that_is_full_both_ways_survives() {
    let bench = Bench::new();
    let program = bench.compile("stuffed", STUFFED);
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(10);
    let image = bench.image();
    job.dump(&image);
    job.kill_everything();
    bench.let_end();
    let (status, _) = bench.restart(&image).finish();
    assert_eq!(status.code(), Some(7));
}

#[test]
fn signals_and_their_codes_are_the_same_afterwards() {
    let bench = Bench::new();
    let mut job = bench.run(&[
        "sh",
        "-c",
        "trap 'echo caught; kill -ABRT $$' USR1; echo ready; while :; do sleep 0.01; done",
    ]);
    job.wait_for(|line| line == "ready");
    let image = bench.image();
    job.stop(&image);
    job.finish();
    for (signal, expected) in [(libc::SIGTERM, 143), (libc::SIGINT, 130), (libc::SIGUSR1, 134)] {
        let job = bench.restart(&image);
        job.ask("tasks");
        job.signal(signal);
        let (status, output) = job.finish();
        assert_eq!(code(status), expected, "{output}");
    }
}

/// Watches a child with WUNTRACED, as an interactive shell does; the child has stopped itself.
const WATCHER: &str = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile int children;
static void on_child(int unused) { (void)unused; children++; }
int main(int argc, char **argv) {
    const char *path = argv[argc - 1];
    int status, seen = 0, running = fork();
    if (!running) for (;;) pause();
    int stopped = fork();
    if (!stopped) { raise(SIGSTOP); _exit(3); }
    if (waitpid(stopped, &status, WUNTRACED) != stopped || !WIFSTOPPED(status)) return 90;
    signal(SIGCHLD, on_child);
    for (int i = 0; i <= 100; i++) {
        while (i == 100 && access(path, F_OK)) usleep(1000);
        struct timespec nap = { 0, 2000000 };
        nanosleep(&nap, 0);
        int reported = waitpid(-1, &status, WUNTRACED | WCONTINUED | WNOHANG);
        if (reported && (reported != stopped || !WIFSTOPPED(status))) return 92;
        seen |= reported || children;
        printf("%d\n", i), fflush(stdout);
    }
    kill(running, SIGKILL), waitpid(running, 0, 0);
    kill(stopped, SIGCONT);
    return waitpid(stopped, &status, 0) == stopped && WIFEXITED(status) ? 4 + 20 * seen + WEXITSTATUS(status) : 94;
}
"#;

#[test]
fn being_stopped_is_invisible_and_who_was_stopped_stays_stopped() {
    let bench = Bench::new();
    let program = bench.compile("watcher", WATCHER);
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(10);
    let image = bench.image();
    let delivered = job.dump(&image);
    bench.let_end();
    let (status, before) = job.finish();
    assert_eq!((status.code(), before.as_str()), (Some(7), counted(100).as_str()));
    // CRIU stops it anew, which its parent is told once more.
    let (status, after) = bench.restart(&image).finish();
    assert_eq!((status.code(), before[..delivered].to_owned() + &after), (Some(27), counted(100)));
}

#[test]
fn the_monotonic_clock_goes_on_from_the_checkpoint() {
    const CLOCK: &str = "#include <stdio.h>\n#include <time.h>\n#include <unistd.h>\n\
        int main(void) { struct timespec t; for (;;) { clock_gettime(CLOCK_MONOTONIC, &t);\n\
        printf(\"%ld\\n\", t.tv_sec * 1000 + t.tv_nsec / 1000000), fflush(stdout), usleep(2000); } }\n";
    let bench = Bench::new();
    let program = bench.compile("clock", CLOCK);
    let mut job = bench.run(&[program]);
    job.wait_for(|line| !line.is_empty());
    let image = bench.image();
    job.stop(&image);
    let before = job.finish().1;
    std::thread::sleep(Duration::from_millis(1500));
    let after = bench.restart(&image).wait_for(|line| !line.is_empty());
    let milliseconds = |line: &str| line.trim().parse::<i64>().unwrap();
    let gap = milliseconds(&after) - milliseconds(before.lines().last().unwrap());
    assert!((0..1400).contains(&gap), "{gap} ms");
}

#[test]
fn another_folder_another_kind_of_output() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 100));
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(20);
    let image = bench.image();
    job.stop(&image);
    let before = job.finish().1;
    bench.let_end();
    let file = bench.path("rest");
    let mut command = bench.restart_command(&image);
    command.current_dir("/").stdout(File::create(&file).unwrap()).env_clear();
    command.env("DORMOUSE_INIT", "/nowhere").env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"));
    command.envs(std::env::var_os("DORMOUSE_CRIU").map(|criu| ("DORMOUSE_CRIU", criu)));
    assert_eq!(command.status().unwrap().code(), Some(7));
    assert_eq!(before + &fs::read_to_string(file).unwrap(), counted(100));
}

#[test]
fn a_file_that_the_job_opened_is_cut_back_to_the_checkpoint() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 150));
    for how in [">", ">>"] {
        let file = bench.path("output");
        let script =
            format!("exec {} {} {how}{}", program.display(), bench.path("end").display(), file.display());
        let job = bench.run(&["sh", "-c", &script]);
        let lines = || fs::read_to_string(&file).unwrap_or_default().lines().count();
        wait_until("thirty lines", || lines() > 30);
        let image = bench.image();
        job.dump(&image);
        let at_cut = lines();
        wait_until("more lines", || lines() >= (at_cut + 20).min(150));
        job.kill_everything();
        bench.let_end();
        let (status, _) = bench.restart(&image).finish();
        assert_eq!(status.code(), Some(7));
        assert_eq!(fs::read_to_string(&file).unwrap(), counted(150));
        fs::remove_file(&file).unwrap();
        fs::remove_file(bench.path("end")).unwrap();
    }
}

#[test]
fn files_changed_in_place_are_brought_back() {
    let bench = Bench::new();
    let (log, table) = (bench.path("log"), bench.path("table"));
    // A log that is opened anew for each line, and a table of counts that is changed in place.
    let source = format!(
        "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n\
         int main(int c, char **v) {{ int t = open(\"{}\", O_RDWR | O_CREAT, 0640), n = 0;\n\
         for (int i = 0; i <= 100; i++) {{ while (i == 100 && access(v[c - 1], F_OK)) usleep(1000); FILE *log = fopen(\"{}\", \"a\"); fprintf(log, \"%d\\n\", i); fclose(log);\n\
         n = 0; pread(t, &n, 4, 4 * (i % 10)); n += i; pwrite(t, &n, 4, 4 * (i % 10));\n\
         printf(\"%d\\n\", i), fflush(stdout), usleep(3000); }} return 7; }}\n",
        table.display(),
        log.display()
    );
    let program = bench.compile("bookkeeper", &source);
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(30);
    let image = bench.image();
    job.dump(&image);
    job.wait_for_number(70);
    job.kill_everything();
    bench.let_end();
    let inode = fs::metadata(&table).unwrap().ino();
    assert_eq!(bench.restart(&image).finish().0.code(), Some(7));
    assert_eq!(fs::metadata(&table).unwrap().ino(), inode);
    let expected: Vec<u8> =
        (0..10i32).flat_map(|k| (0..=100).filter(|i| i % 10 == k).sum::<i32>().to_le_bytes()).collect();
    assert!(fs::read(&table).unwrap() == expected);
    assert_eq!(fs::read_to_string(&log).unwrap(), counted(100));
}

/// CRIU holds every task of it.
#[test]
fn a_restored_job_that_is_not_to_run_is_gone() {
    let bench = Bench::new();
    let mut job = bench.run_to_the_end(&bench.compile("counter", &counter(2, 100)));
    job.wait_for_number(3);
    let image = bench.image();
    job.stop(&image);
    let before = job.finish().1;
    for _ in 0..5 {
        let mut command = bench.restart_command(&image);
        let output = command.env("SUPERVISE_ABANDON", "1").stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(125) && text.contains("it is not to run"), "{text}");
        assert!(output.stdout.is_empty());
    }
    bench.let_end();
    let (status, after) = bench.restart(&image).finish();
    assert_eq!((status.code(), before + &after), (Some(7), counted(100)));
}

#[test]
fn a_missing_or_changed_program_is_named() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 1000));
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(3);
    let image = bench.image();
    job.stop(&image);
    job.finish();
    let complaint = || {
        let output = bench.restart_command(&image).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        String::from_utf8(output.stderr).unwrap()
    };
    let original = fs::read(&program).unwrap();
    bench.compile("counter", &counter(3, 1000));
    let text = complaint();
    assert!(text.contains(&format!("{} has changed", program.display())), "{text}");
    fs::remove_file(&program).unwrap();
    let text = complaint();
    assert!(text.contains(&format!("{} is missing", program.display())), "{text}");
    fs::write(&program, original).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut job = bench.restart(&image);
    job.wait_for_number(20);
}

/// Reads slowly, as through a pager or over a thin line, to the end.
fn read_slowly(mut from: impl Read) -> String {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        match from.read(&mut bytes).unwrap() {
            0 => return String::from_utf8(all).unwrap(),
            n => all.extend_from_slice(&bytes[..n]),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_slow_reader_gets_every_line_once() {
    let bench = Bench::new();
    // As fast as it can: every buffer on the way is full.
    let source = counter(0, 60_000).replace("usleep(0 * 1000);", "");
    let program = bench.compile("counter", &source);
    let mut command = bench.command(&bench.to_the_end(&program));
    // The reader reads on while the image is being made.
    command.env("SUPERVISE_CAPTURE", "500");
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(|| read_slowly(stdout));
    std::thread::sleep(Duration::from_secs(1));
    let job = Supervisor::start_with(child, bench.control());
    let image = bench.image();
    job.stop(&image);
    let before = reader.join().unwrap();
    assert_eq!(code(job.finish().0), 137);
    bench.let_end();
    let after = bench.restart_command(&image).output().unwrap();
    assert_eq!(after.status.code(), Some(7));
    assert!(before + std::str::from_utf8(&after.stdout).unwrap() == counted(60_000));
}

#[test]
fn what_is_typed_while_an_image_is_made_is_for_who_comes_next() {
    let bench = Bench::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let with_input = |mut command: Command| {
        command.env("SUPERVISE_CAPTURE", "500").stdin(OwnedFd::from(theirs.try_clone().unwrap()));
        Supervisor::start(command, bench.control())
    };
    let mut job = with_input(bench.command(&["sh", "-c", "while read line; do echo got $line; done"]));
    (&ours).write_all(b"one\n").unwrap();
    job.wait_for(|line| line == "got one");
    let image = bench.image();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the image", || image.join("record.json").exists());
            (&ours).write_all(b"two\n").unwrap();
        });
        job.stop(&image);
    });
    let before = job.finish().1;
    let job = with_input(bench.restart_command(&image));
    (&ours).write_all(b"three\n").unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(before + &job.finish().1, "got one\ngot two\ngot three\n");
}

#[test]
fn what_was_typed_but_not_read_is_not_lost() {
    let bench = Bench::new();
    let mut command =
        bench.command(&["sh", "-c", "read a; echo got $a; sleep 0.3; while read b; do echo got $b; done"]);
    let mut job = Supervisor::start(
        {
            command.stdin(Stdio::piped());
            command
        },
        bench.control(),
    );
    let mut stdin = job.stdin();
    stdin.write_all(b"one\ntwo\n").unwrap();
    job.wait_for(|line| line == "got one");
    let image = bench.image();
    job.stop(&image);
    let before = job.finish().1;
    let mut command = bench.restart_command(&image);
    let mut job = Supervisor::start(
        {
            command.stdin(Stdio::piped());
            command
        },
        bench.control(),
    );
    job.stdin().write_all(b"three\n").unwrap();
    assert_eq!(before + &job.finish().1, "got one\ngot two\ngot three\n");
}

#[test]
fn a_terminal_is_one_again_on_another_terminal() {
    let bench = Bench::new();
    let script = "trap 'echo resized; stty size' WINCH; trap 'echo interrupted; exit 9' INT; echo ready; \
                  while :; do sleep 0.01; done";
    let on = |slave: &File, mut command: Command| {
        use std::os::unix::process::CommandExt;
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: two system calls.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        Supervisor::start(command, bench.control())
    };
    let read_until = |master: &mut File, wanted: &str| {
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.contains(wanted) {
            let n = master.read(&mut bytes).unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
    };
    let (mut master, slave) = terminal();
    let mut job = on(&slave, bench.command(&["sh", "-c", script]));
    read_until(&mut master, "ready");
    let image = bench.image();
    job.stop(&image);
    job.wait();

    let (mut master, slave) = terminal();
    let size = rustix::termios::Winsize { ws_row: 12, ws_col: 34, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    let mut job = on(&slave, bench.restart_command(&image));
    read_until(&mut master, "12 34");
    master.write_all(b"\x03").unwrap();
    read_until(&mut master, "interrupted");
    assert_eq!(job.wait().code(), Some(9));
}

#[test]
fn a_killed_supervisor_of_a_restarted_job_leaves_nothing() {
    let bench = Bench::new();
    let mut job = bench.run(&["sh", "-c", "sleep 63 & trap '' TERM; echo ready; wait"]);
    job.wait_for(|line| line == "ready");
    let image = bench.image();
    job.stop(&image);
    job.finish();
    let mut job = bench.restart(&image);
    job.ask("tasks");
    let pids = job.job_pids();
    assert_eq!(pids.len(), 3, "{pids:?}");
    job.signal(libc::SIGKILL);
    job.wait();
    wait_until("the job's end", || !pids.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn what_cannot_be_dumped_is_explained_and_the_job_runs_on() {
    let bench = Bench::new();
    // A connection to a process outside the job.
    let path = bench.path("outside");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let script = format!(
        "import socket, time\ns = socket.socket(socket.AF_UNIX); s.connect('{}')\n\
         for i in range(100000):\n print(i, flush=True); time.sleep(0.005)",
        path.display()
    );
    let mut job = bench.run(&["python3", "-c", &script]);
    let outside = listener.accept().unwrap();
    job.wait_for_number(3);
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    let whom = format!("is connected by a UNIX socket to process {} ", std::process::id());
    assert!(reply.contains("process 2 of the job (python3)") && reply.contains(&whom), "{reply}");
    assert_eq!(job.zombies(), Vec::<i32>::new());
    let so_far = job.output.lines().count() as u32;
    job.wait_for_number(so_far + 20);
    drop(outside);
}
