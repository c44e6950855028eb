//! Files that a job has written are at a restart what they were at the cut, however they were written and whatever they are called.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::support::Bench;

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
