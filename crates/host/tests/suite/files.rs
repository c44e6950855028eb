//! Files that a job has written are at a restart what they were at the cut, however they were written and whatever they are called.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Bench, Supervisor};

/// Runs `script` (it says `cut` where it is dumped, and `done` after it has changed things), kills everything and restarts it.
/// `check` looks at the files while the restarted job, which waits for nothing but its end, has not gone on.
fn cut_and_come_back(bench: &Bench, script: &str, check: impl Fn()) {
    let mut job = bench.run(&["sh", "-c", &format!("cd '{}'; {script}", bench.folder.path().display())]);
    job.wait_for(|line| line == "cut");
    let image = bench.image();
    let reply = job.ask(&format!("dump {}", image.display()));
    assert!(reply.starts_with("ok "), "{reply}");
    assert!(!reply.contains("not found"), "{reply}");
    fs::write(bench.path("go"), "").unwrap();
    job.wait_for(|line| line == "done");
    job.kill_everything();
    fs::remove_file(bench.path("go")).unwrap();
    let job = bench.restart(&image);
    job.ask("tasks");
    check();
    fs::write(bench.path("go"), "").unwrap();
    let (status, output) = job.finish();
    assert!(status.success() && output.ends_with("done\n"), "{output}");
}

const WAIT: &str = "echo cut; while [ ! -e go ]; do sleep 0.01; done;";

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_file_written_under_another_name_comes_back() {
    let bench = Bench::new();
    let script = format!(
        "echo one > state.tmp; sleep 0.1; mv state.tmp state;
         mkdir tmp-checkpoint; echo 100 > tmp-checkpoint/weights; sleep 0.1; mv tmp-checkpoint checkpoint;
         mkdir out; echo x > in; sleep 0.1; mv in out/x;
         {WAIT}
         echo two > state.tmp; mv state.tmp state; echo 200 > checkpoint/weights; rm out/x; echo done"
    );
    let [state, weights, moved] = ["state", "checkpoint/weights", "out/x"].map(|name| bench.path(name));
    cut_and_come_back(&bench, &script, || {
        assert_eq!([text(&state), text(&weights), text(&moved)], ["one\n", "100\n", "x\n"]);
    });
}

#[test]
fn names_that_are_not_text_are_no_trouble() {
    let bench = Bench::new();
    let folder = bench.folder.path().join(OsStr::from_bytes(b"d\xff"));
    fs::create_dir(&folder).unwrap();
    fs::copy("/bin/sleep", folder.join(OsStr::from_bytes(b"nap\xfe"))).unwrap();
    let script = format!(
        r#"cd "$(printf 'd\377')"; exec 3<>"$(printf 'open\377')"; echo open >&3; echo closed > "$(printf 'closed\377')";
         ( cd ..; "./$(printf 'd\377/nap\376')" 3 & ) ; sleep 0.2
         cd ..; {WAIT} cd "$(printf 'd\377')";
         echo changed > "$(printf 'closed\377')"; echo and more >&3; echo done; exit 0"#
    );
    cut_and_come_back(&bench, &script, || {
        for (name, contents) in [(&b"open\xff"[..], "open\n"), (b"closed\xff", "closed\n")] {
            assert_eq!(text(&folder.join(OsStr::from_bytes(name))), contents);
        }
    });
}

#[test]
fn a_job_starts_in_a_folder_whose_name_is_not_text() {
    let bench = Bench::new();
    let folder = bench.folder.path().join(OsStr::from_bytes(b"d\xff"));
    fs::create_dir(&folder).unwrap();
    let mut command = bench.command(&["sh", "-c", "echo hello > here"]);
    command.current_dir(&folder);
    assert!(command.status().unwrap().success());
    assert_eq!(text(&folder.join("here")), "hello\n");
}

/// An ext4 on a disk of its own, which is a file: a copy of that is what a power failure leaves. Seen by this thread and what it starts.
struct Disk {
    /// A file system in memory, with all else in it.
    backing: PathBuf,
}

fn done(program: &str, args: &[&dyn AsRef<OsStr>]) {
    let output = Command::new(program).args(args.iter().map(|arg| arg.as_ref())).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Disk {
    /// One that has room for so many bytes, although it says more.
    fn new(bench: &Bench, bytes: u64) -> Self {
        // SAFETY: only this thread's view of the file system changes, and no file is open by a path in it.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
        done("mount", &[&"--make-rprivate", &"/"]);
        let backing = bench.path("backing");
        fs::create_dir(&backing).unwrap();
        done("mount", &[&"-t", &"tmpfs", &"-o", &format!("size={bytes}"), &"none", &backing]);
        let disk = Self { backing };
        fs::File::create(disk.path("disk")).unwrap().set_len(64 << 20).unwrap();
        done("mkfs.ext4", &[&"-q", &"-E", &"lazy_itable_init=1", &disk.path("disk")]);
        disk.mount("disk", "mounted");
        disk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.backing.join(name)
    }

    fn mount(&self, disk: &str, folder: &str) {
        fs::create_dir(self.path(folder)).unwrap();
        done("mount", &[&"-o", &"loop", &self.path(disk), &self.path(folder)]);
    }

    /// Mounts what a power failure at this moment would leave.
    fn survived(&self) -> PathBuf {
        done("cp", &[&"--sparse=always", &self.path("disk"), &self.path("copy")]);
        self.mount("copy", "survived");
        self.path("survived")
    }

    /// A job that has appended so many bytes to a file in a new folder, and waits.
    fn appending(&self, bench: &Bench, bytes: u64) -> Supervisor {
        let script = format!(
            "mkdir -p runs/5; exec 3>>runs/5/loss.log; head -c {bytes} /dev/urandom >&3; echo cut; sleep 60"
        );
        let mut command = bench.command(&["sh", "-c", &script]);
        command.current_dir(self.path("mounted"));
        let mut job = Supervisor::start(command, bench.control());
        job.wait_for(|line| line == "cut");
        job
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // With all that is mounted in it.
        done("umount", &[&"--lazy", &self.backing]);
    }
}

#[test]
fn what_was_appended_survives_a_power_failure() {
    let bench = Bench::new();
    let disk = Disk::new(&bench, 64 << 20);
    let job = disk.appending(&bench, 300_000);
    job.dump(&bench.image());
    let [log, survived] = [disk.path("mounted"), disk.survived()].map(|root| root.join("runs/5/loss.log"));
    assert!(fs::read(&survived).unwrap() == fs::read(log).unwrap());
    assert_eq!(fs::metadata(survived).unwrap().len(), 300_000);
    job.kill_everything();
}

#[test]
fn a_file_that_cannot_be_made_durable_fails_the_dump() {
    let bench = Bench::new();
    let disk = Disk::new(&bench, 16 << 20);
    let job = disk.appending(&bench, 30_000_000);
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    assert!(
        reply.contains("loss.log: the image needs what is in it, which cannot be made durable"),
        "{reply}"
    );
    // The job runs on, and Linux tells nobody again.
    let reply = job.ask(&format!("dump {}", bench.image().display()));
    assert!(
        reply.contains("loss.log: the image needs what is in it, which an earlier checkpoint"),
        "{reply}"
    );
    assert!(job.ask("tasks").contains("sh"));
    job.kill_everything();
}
