//! A job whose store is encrypted: checkpointed there, and continued from there by who has the key.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use dormouse_tests::{Failure, PACED, Stage};
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::After;

/// A job of a few seconds.
const ARGS: [&str; 1] = ["900"];
/// Whose key is kept with the store's tests.
pub const RECIPIENT: &str = "age12pkx975ck0a0lp59dsl4spy76m922raqy0uw54w9fg7v2hwax4uszmatph";

/// A key file that nobody else may read, as git does not keep it.
pub fn key(stage: &Stage) -> PathBuf {
    let file = stage.place().cwd().join("key.txt");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/store/tests/golden/test-key.txt");
    fs::copy(kept, &file).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file
}

/// The files under a folder, with their content.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => found.extend(files(&entry)),
            false => found.push((entry.clone(), fs::read(entry).unwrap())),
        }
    }
    found
}

#[test]
fn a_job_goes_on_from_an_encrypted_store_by_who_has_the_key() {
    let stage = Stage::new("encrypted").unwrap();
    let (place, key) = (stage.place(), key(&stage));
    let whole = stage.undisturbed(&ARGS).unwrap().stdout;
    let flags = ["--encrypt", RECIPIENT, "--key", key.to_str().unwrap()];
    let job = stage.held_by(stage.command_with(&flags, PACED, &ARGS)).unwrap();
    // The second reads what the first has written.
    for after in [After::LeaveRunning, After::Stop] {
        stage.checkpoint(after).unwrap();
    }
    let ended = stage.finish(job).unwrap();
    // Which is to be typed as it is.
    assert!(ended.stderr.contains(&format!(" --key {} ", key.display())), "{}", ended.stderr);

    let stored = files(&place.store());
    assert!(stored.len() > 4);
    for (path, bytes) in stored {
        let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(path.ends_with("config") || !has(PACED), "{}", path.display());
        assert!(!has("AGE-SECRET-KEY"), "{}", path.display());
    }
    let store = place.store();
    let locked = place.dormouse("ls").arg("--store").arg(&store).output().unwrap();
    Failure::of(&locked).unwrap().expect(10, &["is encrypted for", RECIPIENT, "--key"]);
    let into = stage.place().cwd().join("plain");
    let copy = || {
        let mut command = place.dormouse("copy");
        command.arg("--key").arg(&key).args([&store, &into]);
        command
    };
    Failure::of(&copy().output().unwrap()).unwrap().expect(6, &["--plain", "--encrypt"]);
    assert!(!into.exists());
    assert!(copy().arg("--plain").output().unwrap().status.success());
    // Who asks for encryption gets no job that could only be checkpointed without.
    let mut run = place.dormouse("run");
    run.args(["--device", "soft", "--store"])
        .arg(&into)
        .args(flags)
        .arg("--")
        .arg(stage.guest(PACED))
        .arg("1");
    let refused = run.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("was not started, since it is to be checkpointed there encrypted"), "{said}");

    let restarted = Job::start({
        let mut command = place.restart_command(stage.name());
        command.env("DORMOUSE_KEY", &key);
        command
    });
    let restarted = restarted.unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    let (all, after) = (String::from_utf8_lossy(&whole), String::from_utf8_lossy(&restarted.stdout));
    assert!(!after.is_empty() && all.ends_with(&*after), "{all}\nand after the restart\n{after}");
}
