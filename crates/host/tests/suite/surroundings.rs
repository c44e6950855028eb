//! What a job sees of the machine, what it must not see, and what is said when something is missing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Bench, Supervisor, children_of, code, counter, is_alive, wait_until};
use host::Criu;
use host::criu::{CriuError, Resource, Verdict};

fn criu() -> Criu {
    Criu::find().expect("the tests need CRIU: run `cargo xtask setup`")
}

#[test]
fn the_probe_finds_that_everything_can_be_carried() {
    let capabilities = criu().probe(Some(Path::new(env!("CARGO_BIN_EXE_dormouse-init"))));
    for resource in Resource::ALL {
        assert_eq!(capabilities.verdict(resource), Verdict::Works, "{}", resource.name());
    }
    capabilities.require_all().unwrap();
}

/// A program that claims to be CRIU.
fn impostor(bench: &Bench, script: &str) -> std::path::PathBuf {
    let (text, path) = (bench.path("criu.sh"), bench.path("criu"));
    fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
    // Written by another process: one that this one forks meanwhile would hold it open for writing, too busy to be executed.
    assert!(Command::new("install").args(["-m", "755"]).arg(&text).arg(&path).status().unwrap().success());
    path
}

#[test]
fn a_criu_that_is_missing_or_broken_is_explained() {
    let bench = Bench::new();
    let error = Criu::at(&bench.path("nothing")).unwrap_err();
    assert!(matches!(error, CriuError::NotFound { .. }));
    let text = error.to_string();
    assert!(text.contains("no CRIU found") && text.contains("DORMOUSE_CRIU"), "{text}");

    let error = Criu::at(&impostor(&bench, "echo 'vDSO layout is unknown' >&2; exit 1")).unwrap_err();
    assert!(matches!(error, CriuError::DoesNotStart { .. }));
    assert!(error.to_string().contains("vDSO layout is unknown"), "{error}");
}

#[test]
fn a_criu_that_cannot_dump_is_named_and_the_job_runs_on() {
    let bench = Bench::new();
    let old = impostor(&bench, "[ \"$1\" = --version ] && echo 'Version: 3.17.1' || exit 1");
    let init = Path::new(env!("CARGO_BIN_EXE_dormouse-init"));
    let found = Criu::at(&old).unwrap().probe(Some(init));
    let text = found.require_all().unwrap_err().to_string();
    assert!(
        text.contains("CRIU 3.17.1 at") && text.contains("cannot dump processes on this kernel"),
        "{text}"
    );

    let program = bench.compile("counter", &counter(2, 100));
    let mut command = bench.command(&bench.to_the_end(&program));
    command.env("DORMOUSE_CRIU", &old);
    let mut job = Supervisor::start(command, bench.control());
    job.wait_for_number(5);
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    assert!(reply.contains("CRIU 3.17.1") && reply.contains("cannot dump the job"), "{reply}");
    bench.let_end();
    assert_eq!(job.finish().0.code(), Some(7));
}

#[test]
fn a_criu_that_cannot_restore_leaves_the_jobs_files_alone() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 1000));
    let file = bench.path("output");
    let mut command = bench.command(&bench.to_the_end(&program));
    command.stdout(fs::File::options().append(true).create(true).open(&file).unwrap());
    let job = Supervisor::start(command, bench.control());
    let lines = || fs::read_to_string(&file).unwrap().lines().count();
    wait_until("thirty lines", || lines() > 30);
    let image = bench.image();
    job.dump(&image);
    let at_cut = lines();
    wait_until("more lines", || lines() > at_cut + 20);
    job.kill_everything();
    let before = fs::read(&file).unwrap();

    let broken = impostor(&bench, "[ \"$1\" = --version ] && echo 'Version: 3.17.1' || exit 1");
    let mut command = bench.restart_command(&image);
    command.env("DORMOUSE_CRIU", &broken).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(125));
    assert!(fs::read(&file).unwrap() == before);
}

#[test]
fn a_mount_that_is_gone_is_missed_only_by_who_used_it() {
    // Seen by this thread and what it starts alone: jobs of other tests must not have it among their mounts.
    // SAFETY: only this thread's view of the file system changes, and no file is open by a path in it.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    assert!(Command::new("mount").args(["--make-rprivate", "/"]).status().unwrap().success());
    for used in [false, true] {
        let bench = Bench::new();
        let program = bench.compile("counter", &counter(2, 100));
        let folder = bench.path("mounted");
        fs::create_dir(&folder).unwrap();
        let mount = |args: &[&str]| {
            assert!(Command::new("mount").args(args).arg(&folder).status().unwrap().success())
        };
        mount(&["-t", "tmpfs", "none"]);
        let mut command = bench.command(&bench.to_the_end(&program));
        if used {
            command.current_dir(&folder);
        }
        let mut job = Supervisor::start(command, bench.control());
        job.wait_for_number(30);
        let image = bench.image();
        job.dump(&image);
        let before = job.kill_everything();
        assert!(Command::new("umount").arg(&folder).status().unwrap().success());
        fs::remove_dir(&folder).unwrap();
        bench.let_end();
        let output = bench.restart_command(&image).stderr(Stdio::piped()).output().unwrap();
        if used {
            let text = String::from_utf8_lossy(&output.stderr);
            let wanted = format!("{} does not exist here", folder.display());
            assert!(output.status.code() == Some(125) && text.contains(&wanted), "{text}");
        } else {
            assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(before.starts_with("0\n") && output.stdout.ends_with(b"100\n"));
        }
    }
}

#[test]
fn what_a_job_does_while_criu_is_ready_is_in_the_image() {
    const READY: Duration = Duration::from_secs(3);
    // As above.
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    assert!(Command::new("mount").args(["--make-rprivate", "/"]).status().unwrap().success());
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 100));
    let (folder, told, done) = (bench.path("mounted"), bench.path("told"), bench.path("done"));
    fs::create_dir(&folder).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&folder).status().unwrap().success());
    let [folder_, told_, done_] = [&folder, &told, &done].map(|path| path.display().to_string());
    let script =
        format!("until [ -e {told_} ]; do sleep 0.01; done; umount {folder_} && touch {done_}; exec \"$@\"");
    let words = ["sh", "-c", &script, "sh"].into_iter().map(str::to_owned);
    let words: Vec<String> = words.chain(bench.to_the_end(&program)).collect();
    let mut command = bench.command(&words);
    command.env("SUPERVISE_READY", READY.as_millis().to_string());
    let job = Supervisor::start(command, bench.control());
    let image = bench.image();
    let asked = Instant::now();
    std::thread::scope(|scope| {
        let telling = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            fs::write(&told, "").unwrap();
            wait_until("the mount is gone", || done.exists());
            assert!(asked.elapsed() < READY, "CRIU was still ready");
        });
        job.dump(&image);
        telling.join().unwrap();
    });
    let before = job.kill_everything();
    let record = fs::read_to_string(image.join("record.json")).unwrap();
    assert!(!record.contains(&folder_), "{record}");
    bench.let_end();
    let (status, after) = bench.restart(&image).finish();
    assert_eq!(status.code(), Some(7));
    assert!(before.starts_with("0\n") && after.ends_with("100\n"));
}

#[test]
fn a_missing_capability_is_named() {
    let bench = Bench::new();
    let inner = bench.command(&["true"]);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin,-mknod", "--inh-caps", "-sys_admin,-mknod"]);
    command.arg(inner.get_program()).args(inner.get_args());
    let output = command.env("DORMOUSE_INIT", env!("CARGO_BIN_EXE_dormouse-init")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125));
    // The first thing that needs one says so.
    assert!(text.contains("CAP_SYS_ADMIN"), "{text}");
}

/// A library with one function, and a program that finds it by name.
fn library(bench: &Bench, answer: u32) -> std::path::PathBuf {
    let (source, library) = (bench.path("lib.c"), bench.path(&format!("{answer}/libdormouse-test.so.1")));
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    fs::write(&source, format!("int answer(void) {{ return {answer}; }}\n")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,-soname,libdormouse-test.so.1", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().unwrap().success());
    library
}

const FINDER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int c, char **v) {
    if (getpid() != 2) return puts("not pid 2"), 1;
    void *library = dlopen(v[1], RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    int (*answer)(void) = (int (*)(void))dlsym(library, "answer");
    for (int i = 0; i < 2; i++) {
        while (i && access(v[c - 1], F_OK)) usleep(1000);
        printf("%d\n", answer()), fflush(stdout);
    }
    return 0;
}
"#;

/// Runs the finder, kills everything after its first answer, and restarts it: both answers.
fn ask_twice(bench: &Bench, mut command: Command) -> String {
    let mut job = Supervisor::start(
        {
            command.stderr(Stdio::inherit());
            command
        },
        bench.control(),
    );
    job.wait_for(|line| !line.is_empty());
    let image = bench.image();
    job.dump(&image);
    let before = job.kill_everything();
    bench.let_end();
    before + &bench.restart(&image).finish().1
}

#[test]
fn a_library_is_mounted_over_the_machines_own() {
    let bench = Bench::new();
    let (theirs, ours) = (library(&bench, 1), library(&bench, 2));
    let finder = bench.compile("finder", FINDER);
    let end = bench.path("end");
    let mut command = bench.command(&[finder.as_os_str(), theirs.as_os_str(), end.as_os_str()]);
    command.env("SUPERVISE_LIBRARY", &ours).env("SUPERVISE_OVER", &theirs);
    assert_eq!(ask_twice(&bench, command), "2\n2\n");
}

#[test]
fn a_library_is_found_by_name_where_the_machine_has_none() {
    let bench = Bench::new();
    let ours = library(&bench, 3);
    let finder = bench.compile("finder", FINDER);
    let end = bench.path("end");
    let mut command = bench.command(&[finder.as_os_str(), "libdormouse-test.so.1".as_ref(), end.as_os_str()]);
    command.env("SUPERVISE_LIBRARY", &ours);
    assert_eq!(ask_twice(&bench, command), "3\n3\n");
}

#[test]
fn what_is_hidden_is_not_seen() {
    let bench = Bench::new();
    let secret = bench.path("secret");
    fs::write(&secret, "secret").unwrap();
    for (path, seen) in
        [(secret.to_str().unwrap(), ""), ("/dev/zero", "cat: /dev/zero: No such file or directory")]
    {
        let mut command = bench.command(&["sh", "-c", &format!("cat {path} 2>&1")]);
        command.env("SUPERVISE_HIDE", path);
        assert_eq!(Supervisor::start(command, bench.control()).finish().1.trim(), seen);
    }
}

/// Tries to load a library by each of two names, before and after a restart.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int c, char **v) {
    for (int i = 0; i < 2; i++) {
        while (i && access(v[3], F_OK)) usleep(1000);
        int loads = dlopen(v[1], RTLD_NOW) != NULL, other = dlopen(v[2], RTLD_NOW) != NULL;
        printf("%d %d\n", loads, other), fflush(stdout);
    }
    return 0;
}
"#;

#[test]
fn a_hidden_library_cannot_be_loaded_by_any_name() {
    let bench = Bench::new();
    let file = library(&bench, 1);
    let link = file.with_file_name("libdormouse-test.so");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let loader = bench.compile("loader", LOADER);
    let end = bench.path("end");
    for (hidden, seen) in [(None, "1 1\n1 1\n"), (Some(&link), "0 0\n0 0\n")] {
        let _ = fs::remove_file(&end);
        let args = [loader.as_os_str(), file.as_os_str(), link.as_os_str(), end.as_os_str()];
        let mut command = bench.command(&args);
        command.envs(hidden.map(|path| ("SUPERVISE_HIDE", path)));
        assert_eq!(ask_twice(&bench, command), seen);
    }
}

/// Opens a node, reads and writes it before and after a restart.
const HOLDER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int c, char **v) {
    int node = open(v[1], O_RDWR);
    if (node < 0) return perror(v[1]), 1;
    for (int i = 0; i < 2; i++) {
        while (i && access(v[2], F_OK)) usleep(1000);
        struct stat open_node, named;
        if (fstat(node, &open_node) || stat(v[1], &named)) return perror("stat"), 1;
        int same = open_node.st_rdev == named.st_rdev && S_ISCHR(named.st_mode);
        char byte;
        printf("%d %zd %zd\n", same, read(node, &byte, 1), write(node, "x", 1)), fflush(stdout);
    }
    return 0;
}
"#;

#[test]
fn a_blank_node_is_open_across_a_restart() {
    let holder = |bench: &Bench| bench.compile("holder", HOLDER);
    // One that the machine lacks and, in its place, one that it has and CRIU could not carry.
    for node in ["/dev/dormouse-test0", "/dev/kmsg"] {
        let bench = Bench::new();
        let end = bench.path("end");
        let mut command = bench.command(&[holder(&bench).as_os_str(), node.as_ref(), end.as_os_str()]);
        command.env("SUPERVISE_BLANK", node);
        assert_eq!(ask_twice(&bench, command), "1 0 1\n1 0 1\n", "{node}");
    }
}

#[test]
fn a_blank_node_lies_right_below_dev() {
    let bench = Bench::new();
    for node in ["/etc/passwd-", "/dev/../etc/node", "/dev/shm/node", "/dev"] {
        let mut command = bench.command(&["true"]);
        let output = command.env("SUPERVISE_BLANK", node).stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{node}: {text}");
        assert!(text.contains("its own /dev") && text.contains("Invalid argument"), "{node}: {text}");
    }
}

#[test]
fn a_supervisor_killed_during_a_checkpoint_leaves_nothing() {
    let bench = Bench::new();
    let mut job = bench.run(&["sh", "-c", "trap '' TERM HUP; sleep 64 & echo ready; wait"]);
    job.wait_for(|line| line == "ready");
    job.hold(&bench.image());
    let pids = job.job_pids();
    assert_eq!(pids.len(), 3, "{pids:?}");
    job.signal(libc::SIGKILL);
    job.wait();
    wait_until("the job's end", || !pids.iter().any(|&pid| is_alive(pid)));
}

/// A dump may be in time for what a job's init has not seen.
#[test]
fn a_job_of_which_nothing_is_left_but_init_is_not_dumped() {
    let bench = Bench::new();
    let mut job = bench.run(&["sh", "-c", "echo ready; exec sleep 66"]);
    job.wait_for(|line| line == "ready");
    let init = children_of(job.child.id() as i32)[0];
    let application = children_of(init)[0];
    // SAFETY: signals to processes of the job, which init does not collect before it goes on.
    let signal = |pid, signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    signal(init, libc::SIGSTOP);
    signal(application, libc::SIGKILL);
    wait_until("the program's end", || !is_alive(application));
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    assert_eq!(reply, "error: the job has ended");
    signal(init, libc::SIGCONT);
    assert_eq!(code(job.wait()), 128 + libc::SIGKILL);
}

#[test]
fn two_checkpoints_at_once_are_refused() {
    let bench = Bench::new();
    let mut job = bench.run(&["sh", "-c", "echo ready; exec sleep 65"]);
    job.wait_for(|line| line == "ready");
    job.hold(&bench.image());
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    assert!(reply.contains("another checkpoint of this job is being taken"), "{reply}");
}

#[test]
fn a_job_on_a_full_disk_runs_on() {
    let bench = Bench::new();
    let program = bench.compile("counter", &counter(2, 100));
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(5);
    // A folder that cannot hold the images.
    let small = bench.path("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "none"]).arg(&small).status().unwrap();
    assert!(mounted.success());
    let reply = job.ask(&format!("dump {}", small.display()));
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert!(reply.starts_with("error: "), "{reply}");
    bench.let_end();
    assert_eq!(job.finish().0.code(), Some(7));
}
