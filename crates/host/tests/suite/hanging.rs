//! A CRIU that hangs: it is killed, whoever asked hears of it, and the job goes on.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Bench, Supervisor, counted, counter, wait_until};
use host::Criu;

/// How a shell starts the CRIU that is really there.
fn real() -> String {
    let criu = Criu::find().expect("the tests need CRIU: run `cargo xtask setup`");
    let libraries = criu.program().ancestors().map(|prefix| prefix.join("usr/lib/x86_64-linux-gnu"));
    let own = libraries.map(|l| (l.join("ld-linux-x86-64.so.2"), l)).find(|(loader, _)| loader.is_file());
    match own.filter(|(_, libraries)| !libraries.starts_with("/usr")) {
        Some((loader, libraries)) => {
            format!(
                "{} --library-path {} {}",
                loader.display(),
                libraries.display(),
                criu.program().display()
            )
        }
        None => criu.program().display().to_string(),
    }
}

/// A CRIU that does `instead` for as long as there is a file `ill`, and what it should otherwise.
fn sickly(bench: &Bench, instead: &str) -> PathBuf {
    let (text, path) = (bench.path("criu.sh"), bench.path("criu"));
    let (ill, real) = (bench.path("ill"), real());
    let script = format!(
        "#!/bin/sh\nreal='{real}'\n[ \"$1\" = --version ] && exec $real \"$@\"\n\
         [ -e {} ] && {instead}\nexec $real \"$@\"\n",
        ill.display()
    );
    fs::write(&text, script).unwrap();
    fs::write(ill, "").unwrap();
    assert!(Command::new("install").args(["-m", "755"]).arg(&text).arg(&path).status().unwrap().success());
    path
}

/// One that gives up after two seconds, which a CRIU that only waits for a busy disk does not need.
fn patient(mut command: Command, criu: &Path) -> Command {
    command.env("DORMOUSE_CRIU", criu).env("SUPERVISE_SILENCE", "2000");
    command
}

#[test]
fn a_checkpoint_fails_by_name_and_the_job_goes_on() {
    let bench = Bench::new();
    let criu = sickly(&bench, "exec sleep 1000");
    let program = bench.compile("counter", &counter(2, 500));
    let command = patient(bench.command(&bench.to_the_end(&program)), &criu);
    let mut job = Supervisor::start(command, bench.control());
    job.wait_for_number(5);
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    assert!(reply.contains("it got nowhere for ") && reply.contains("killed; the job runs on"), "{reply}");
    assert_eq!(job.zombies(), Vec::<i32>::new());

    fs::remove_file(bench.path("ill")).unwrap();
    let image = bench.image();
    job.stop(&image);
    let before = job.finish().1;
    fs::write(bench.path("ill"), "").unwrap();
    let restart = || patient(bench.restart_command(&image), &criu);
    let output = restart().stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(125) && text.contains("it got nowhere for "), "{text}");
    fs::remove_file(bench.path("ill")).unwrap();
    bench.let_end();
    let (status, after) = Supervisor::start(restart(), bench.control()).finish();
    assert_eq!((status.code(), before + &after), (Some(7), counted(500)));
}

/// Sends each number to itself over TCP before it prints it.
const OVER_TCP: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#define CHECK(c) do { if (!(c)) { perror(#c); exit(99); } } while (0)
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), ends[2];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    CHECK(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 1) && !getsockname(listener, (void *)&at, &length));
    CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && !connect(ends[0], (void *)&at, sizeof at));
    CHECK((ends[1] = accept(listener, 0, 0)) >= 0);
    for (int i = 0, v; i <= 20000; i++, usleep(1000)) {
        CHECK(write(ends[i % 2], &i, sizeof i) == sizeof i && read(ends[!(i % 2)], &v, sizeof v) == sizeof v && v == i);
        printf("%d\n", i), fflush(stdout);
    }
}
"#;

/// Where CRIU waits for ever when it wants to write one of its images: with every thread seized, with its parasite at work in
/// init or in the application, with connections in repair.
#[test]
fn a_criu_that_hangs_amid_its_work_takes_no_task_with_it() {
    let bench = Bench::new();
    let criu = sickly(&bench, "exec sleep 1000");
    fs::remove_file(bench.path("ill")).unwrap();
    let command = patient(bench.command(&[bench.compile("over-tcp", OVER_TCP)]), &criu);
    let mut job = Supervisor::start(command, bench.control());
    job.wait_for_number(5);
    for name in ["core-1", "pages-1", "pagemap-2", "core-2", "files", "pstree", "inventory"] {
        let image = bench.image();
        fs::create_dir(image.join("criu")).unwrap();
        let path = image.join("criu").join(format!("{name}.img"));
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        let reply = job.ask(&format!("dump {}", image.display()));
        assert!(reply.contains("it got nowhere for "), "{name}: {reply}");
        let so_far = job.output.lines().count() as u32;
        job.wait_for_number(so_far + 20);
        assert_eq!(job.zombies(), Vec::<i32>::new());
    }
    let image = bench.image();
    let delivered = job.dump(&image);
    let before = job.kill_everything();
    let mut job = Supervisor::start(patient(bench.restart_command(&image), &criu), bench.control());
    job.wait_for_number(before.lines().count() as u32 + 50);
    let all = before[..delivered].to_owned() + &job.kill_everything();
    assert!(counted(20_000).starts_with(&all[..all.rfind('\n').unwrap()]));
}

#[test]
fn a_criu_that_was_stopped_is_told_to_go_on() {
    let bench = Bench::new();
    let criu = sickly(&bench, "( (sleep 0.02; kill -STOP $$) & )");
    let program = bench.compile("counter", &counter(2, 100));
    let mut command = patient(bench.command(&bench.to_the_end(&program)), &criu);
    command.env("SUPERVISE_SILENCE", "4000");
    let mut job = Supervisor::start(command, bench.control());
    job.wait_for_number(5);
    job.dump(&bench.image());
    bench.let_end();
    let (status, output) = job.finish();
    assert_eq!((status.code(), output), (Some(7), counted(100)));
}

/// CRIU stops helpers of its own, to see what the kernel can do, and waits until they stand still: nobody else has them go on when its supervisor is killed, and CRIU
/// lives to end them.
#[test]
fn who_looks_at_the_kernel_is_not_disturbed_when_its_supervisor_is_killed() {
    let bench = Bench::new();
    let [helper, after] = ["helper", "after"].map(|name| bench.path(name));
    let looks =
        format!("{{ sh -c 'echo $$ > {0}; kill -STOP $$'; echo > {1}; }}", helper.display(), after.display());
    let criu = sickly(&bench, &looks);
    let program = bench.compile("counter", &counter(2, 500));
    let mut job = bench.run_to_the_end(&program);
    job.wait_for_number(5);
    let image = bench.image();
    job.stop(&image);
    job.finish();

    let pid = || fs::read_to_string(&helper).ok()?.trim().parse::<i32>().ok();
    let state =
        |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.split(' ').nth(2).map(str::to_owned);
    let is_stopped = || pid().and_then(state).as_deref() == Some("T");
    let killed_amid = |mut supervisor: Supervisor| {
        wait_until("a helper has stopped", is_stopped);
        supervisor.signal(libc::SIGKILL);
        supervisor.wait();
        let stands_still = is_stopped();
        // SAFETY: a signal to a process that is there, or has just been.
        unsafe { libc::kill(pid().unwrap(), libc::SIGKILL) };
        assert!(stands_still);
        wait_until("who has started the helper goes on", || after.exists());
        fs::remove_file(&helper).unwrap();
        fs::remove_file(&after).unwrap();
    };
    killed_amid(Supervisor::start(patient(bench.restart_command(&image), &criu), bench.control()));
    let command = patient(bench.command(&bench.to_the_end(&program)), &criu);
    let mut job = Supervisor::start(command, bench.control());
    job.wait_for_number(5);
    let _asked = job.send(&format!("dump {}", bench.image().display()));
    killed_amid(job);
}
