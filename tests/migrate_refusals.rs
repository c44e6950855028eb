//! What the other machine lacks is said by name before the job is stopped, and nothing of the attempt stays.
#![allow(clippy::unwrap_used)]

use crate::encryption::{RECIPIENT, key};
use crate::migrate::{ARGS, apart, hide, migrate, report, wait_for_end};
use dormouse_tests::{Failure, PACED, Stage};
use rustix::mount::mount_bind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testkit::outcome::Exit;
use testkit::served::Served;

/// Where the other machine keeps what comes.
fn there(stage: &Stage) -> PathBuf {
    let there = stage.place().folder.join("there");
    std::fs::create_dir_all(&there).unwrap();
    there
}

fn moved_to(stage: &Stage, server: &Served, flags: &[&str]) -> Output {
    let mut command = migrate(stage, &server.address, &[]);
    server.known_to(&mut command);
    command.args(flags).output().unwrap()
}

/// What is otherwise there, done where nobody else sees it.
type Lack<'a> = Box<dyn Fn() + Send + Sync + 'a>;
/// What it is called, how it is brought about, how the server is started, the exit code, and a word of the message.
type Case<'a> = (&'a str, Lack<'a>, fn(&mut Command), i32, &'a str);

#[test]
fn what_the_other_machine_lacks_is_named_before_a_job_is_stopped() {
    let stage = Stage::new("lacking").unwrap();
    let (there, guest) = (there(&stage), stage.guest(PACED));
    let whole = stage.undisturbed(&ARGS).unwrap();
    let cwd = stage.place().cwd();
    let old = cwd.join("cpuinfo");
    std::fs::write(&old, "vendor_id\t: x\nmodel name\t: old\nflags\t\t: fpu sse sse2\n").unwrap();
    // The program's working folder, and a file that it has open.
    let script = format!(
        "mkdir -p out/work log; cd out/work; exec {} {} 3>>../../log/file",
        guest.display(),
        ARGS.join(" ")
    );
    let job = stage.held_by(stage.shell(&script)).unwrap();
    let (programs, log, around) = (guest.parent().unwrap(), cwd.join("log"), cwd.join("out"));
    let [program, file, work] =
        [&guest, &log.join("file"), &cwd.join("out/work")].map(|path| path.display().to_string());
    let nothing = |_: &mut Command| {};
    let no_criu = |command: &mut Command| {
        command.env("DORMOUSE_CRIU", "/bin/false");
    };
    let old_processor = || mount_bind(&old, "/proc/cpuinfo").unwrap();
    let cases: [Case<'_>; 6] = [
        ("room", Box::new(|| hide(&there, Some(1024))), nothing, 10, "No space left on device"),
        ("program", Box::new(|| hide(programs, None)), nothing, 8, &program),
        ("file", Box::new(|| hide(&log, None)), nothing, 8, &file),
        ("folder", Box::new(|| hide(&around, None)), nothing, 8, &work),
        ("CRIU", Box::new(|| ()), no_criu, 9, "/bin/false"),
        ("processor", Box::new(old_processor), nothing, 8, "processor lacks"),
    ];
    for (what, lack, also, code, word) in &cases {
        let server = apart(|| {
            lack();
            stage.receiving_with(&there, &["--jobs"], "127.0.0.1", also)
        });
        let output = moved_to(&stage, &server.unwrap(), &[]);
        println!("{what}: {}", String::from_utf8_lossy(&output.stdout));
        Failure::of(&output).unwrap().expect(*code, &[word, "127.0.0.1"]);
        assert_eq!(stage.images().unwrap().len(), 0, "{what}: something was taken and is left");
    }
    // Where it runs itself it has its name, and may not be there twice.
    let server = stage.receiving(&there, &["--jobs"], "127.0.0.1").unwrap();
    for (flags, words) in
        [(&[][..], "give this one another --name"), (&["--name", "other"], "is still running")]
    {
        Failure::of(&moved_to(&stage, &server, flags)).unwrap().expect(4, &[words]);
    }
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, finished.stdout), (Exit::Code(0), whole.stdout), "{}", finished.stderr);
}

#[test]
fn a_job_with_an_encrypted_store_moves_to_who_has_the_key() {
    let stage = Stage::new("moves-encrypted").unwrap();
    let (there, key) = (there(&stage), key(&stage));
    let whole = stage.undisturbed(&ARGS).unwrap().stdout;
    let key = key.to_str().unwrap();
    let job =
        stage.held_by(stage.command_with(&["--encrypt", RECIPIENT, "--key", key], PACED, &ARGS)).unwrap();
    let images = |store: &Path, keys: &[&str]| {
        let output = stage.place().dormouse("ls").args(["--json", "--store"]).arg(store).args(keys).output();
        let listing: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        listing["images"].as_array().map(Vec::len)
    };
    let (near, server_store) = (stage.place().store(), there.join("store"));
    {
        let server = apart(|| stage.receiving(&there, &["--jobs"], "127.0.0.1")).unwrap();
        for (flags, store) in [(&[][..], &near), (&["--key", key], &server_store)] {
            let words = [&*store.to_string_lossy(), "is encrypted for", "--key"];
            Failure::of(&moved_to(&stage, &server, flags)).unwrap().expect(10, &words);
            assert_eq!(images(&near, &["--key", key]), Some(0), "{words:?}: something is left");
        }
    }
    let keyed = |command: &mut Command| {
        command.args(["--key", key]);
    };
    let server = apart(|| stage.receiving_with(&there, &["--jobs"], "127.0.0.1", keyed)).unwrap();
    let moved = report(&moved_to(&stage, &server, &["--key", key]));
    let left = stage.finish(job).unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    assert_eq!([left.stdout, wait_for_end(&moved)].concat(), whole);
    for store in [near, server_store] {
        assert_eq!(
            [images(&store, &[]), images(&store, &["--key", key])],
            [None, Some(1)],
            "{}",
            store.display()
        );
    }
}
