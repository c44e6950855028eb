//! Bad input, missing privileges, full disks: each is refused with a message that says what, to what, and what to do.
#![allow(clippy::unwrap_used)]

use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dormouse_tests::{Failure, Mount, PACED, Stage, number};
use testkit::job::{Job, LIMIT};
use testkit::outcome::Exit;
use testkit::place::{After, Device, Place};
use testkit::seed::Seed;

/// A guest that was checkpointed and stopped: what is left is its image.
fn asleep(name: &str) -> (Stage, String) {
    let stage = Stage::new(name).unwrap();
    let job = stage.held(PACED, &["400"]).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    stage.finish(job).unwrap();
    (stage, image)
}

/// Restarts an image that must be refused, first with `--check`.
fn refused_restart(stage: &Stage, image: &str, code: i32, words: &[&str]) {
    let check = stage.place().restart_command(image).arg("--check").output().unwrap();
    Failure::of(&check).unwrap().expect(code, words);
    let restart = stage.place().restart_command(image).output().unwrap();
    Failure::of(&restart).unwrap().expect(125, words);
}

fn run_on_after_failed_checkpoint(stage: &Stage, job: Job) {
    assert!(stage.images().unwrap().is_empty());
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(String::from_utf8_lossy(&finished.stdout).contains("done sum"));
}

#[test]
fn no_criu() {
    let stage = Stage::new("no-criu").unwrap();
    let mut command = stage.held_command(PACED, &["400"]);
    command.env("DORMOUSE_CRIU", "/nowhere/criu");
    let job = dormouse_tests::first_line(Job::start(command).unwrap()).unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(9, &["CRIU", "/nowhere/criu"]);
    run_on_after_failed_checkpoint(&stage, job);
}

/// A CRIU that starts and does nothing else.
fn old_criu(stage: &Stage) -> PathBuf {
    let old = stage.place().cwd().join("criu");
    std::fs::write(
        &old,
        "#!/bin/sh\ncase \"$*\" in *--version*) echo Version: 3.17.1; exit;; esac\nexit 1\n",
    )
    .unwrap();
    std::fs::set_permissions(&old, PermissionsExt::from_mode(0o755)).unwrap();
    old
}

#[test]
fn a_criu_that_does_not_work_on_this_kernel() {
    let stage = Stage::new("old-criu").unwrap();
    let old = old_criu(&stage);
    let mut command = stage.held_command(PACED, &["400"]);
    command.env("DORMOUSE_CRIU", &old);
    let job = dormouse_tests::first_line(Job::start(command).unwrap()).unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(9, &["CRIU", old.to_str().unwrap()]);
    run_on_after_failed_checkpoint(&stage, job);
}

#[test]
fn no_ptx_on_the_software_device() {
    let stage = Stage::new("sass").unwrap();
    let place = Place { device: Device::Soft, ..stage.place() };
    let finished = place.run(&stage.guest("sass_only"), &[]).unwrap().finish().unwrap();
    assert_ne!(finished.exit, Exit::Code(0));
    for word in ["sm_90", "-gencode arch=compute_90,code=compute_90"] {
        assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
}

#[test]
fn an_unsupported_call_is_reported_once_by_name() {
    let stage = Stage::new("unsupported").unwrap();
    let finished = stage.started("unsupported", &["10", "1"]).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!(finished.stderr.matches("cuImportExternalSemaphore").count(), 1, "{}", finished.stderr);
}

/// The image's manifest.
fn manifest(stage: &Stage, image: &str) -> PathBuf {
    stage.place().store().join(format!("images/{image}.img"))
}

/// The largest pack of the store.
fn pack(stage: &Stage) -> PathBuf {
    let packs =
        std::fs::read_dir(stage.place().store().join("packs")).unwrap().map(|entry| entry.unwrap().path());
    packs.max_by_key(|pack| pack.metadata().unwrap().len()).unwrap()
}

fn change(path: &PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn refused_verify(stage: &Stage, image: &str) {
    let mut verify = stage.place().dormouse("verify");
    let output = verify.arg("--store").arg(stage.place().store()).arg(image).output().unwrap();
    Failure::of(&output).unwrap().expect(7, &[]);
}

#[test]
fn a_truncated_image() {
    let (stage, image) = asleep("truncated");
    change(&manifest(&stage, &image), |bytes| bytes.truncate(bytes.len() / 2));
    refused_restart(&stage, &image, 7, &[&image]);
}

#[test]
fn a_truncated_pack() {
    let (stage, image) = asleep("short");
    change(&pack(&stage), |bytes| bytes.truncate(bytes.len() / 2));
    refused_verify(&stage, &image);
    refused_restart(&stage, &image, 7, &["pack"]);
}

#[test]
fn a_flipped_bit_in_the_manifest() {
    let (stage, image) = asleep("flipped");
    change(&manifest(&stage, &image), |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
    });
    refused_restart(&stage, &image, 7, &[&image]);
}

#[test]
fn a_flipped_bit_in_the_data() {
    let (stage, image) = asleep("rotten");
    change(&pack(&stage), |bytes| bytes[4096] ^= 4);
    refused_verify(&stage, &image);
    refused_restart(&stage, &image, 7, &["cannot be had", "chunk"]);
}

/// Wherever a bit is flipped, the restart says in which file, or what it has is whole all the same. `DORMOUSE_FLIPS` says how many are, `DORMOUSE_SEED` where.
#[test]
fn a_flipped_bit_anywhere() {
    let (flips, from) = (number("DORMOUSE_FLIPS", 6).unwrap(), number("DORMOUSE_SEED", 1).unwrap());
    let (stage, image) = asleep("anywhere");
    let folders = ["images", "index", "packs"].map(|folder| stage.place().store().join(folder));
    let mut found = 0;
    for flip in 0..flips {
        let mut seed = Seed::of_round(from, PACED, "flip", flip);
        let among = |count: usize, seed: &mut Seed| (seed.draw() % count as u64) as usize;
        let files = std::fs::read_dir(&folders[flip as usize % folders.len()]).unwrap();
        let mut files: Vec<_> =
            files.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
        files.sort();
        let file = files.swap_remove(among(files.len(), &mut seed));
        let whole = std::fs::read(&file).unwrap();
        let (at, bit) = (among(whole.len(), &mut seed), among(8, &mut seed));
        change(&file, |bytes| bytes[at] ^= 1 << bit);
        let output = stage.place().restart_command(&image).output().unwrap();
        change(&file, |bytes| *bytes = whole);
        let said = String::from_utf8_lossy(&output.stderr);
        let place = format!("bit {bit} of byte {at} of {}: {said}", file.display());
        assert!(!said.contains("panicked"), "{place}");
        if output.status.success() {
            assert!(String::from_utf8_lossy(&output.stdout).contains("done sum"), "{place}");
        } else {
            found += 1;
            let name = file.file_stem().unwrap().to_str().unwrap();
            Failure::of(&output).unwrap().expect(125, &[name]);
        }
    }
    assert!(found > 0, "bits were flipped that nobody reads");
}

/// Of a job that is stopped nothing is left but its image: what that uses again is read first.
#[test]
fn a_flipped_bit_in_the_data_of_an_earlier_image() {
    let stage = Stage::new("mended").unwrap();
    let job = stage.held(PACED, &["1000"]).unwrap();
    stage.checkpoint(After::LeaveRunning).unwrap();
    change(&pack(&stage), |bytes| bytes[4096] ^= 4);
    let image = stage.checkpoint(After::Stop).unwrap();
    stage.finish(job).unwrap();
    let finished = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(String::from_utf8_lossy(&finished.stdout).contains("done sum"));
}

/// Changes two bytes of the manifest's header, with the checksum made right again as its writer would have.
fn rewrite_header(stage: &Stage, image: &str, offset: usize, value: u16) {
    change(&manifest(stage, image), |bytes| {
        bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes[..32]).update(&bytes[64..]);
        bytes[32..64].copy_from_slice(hasher.finalize().as_bytes());
    });
}

#[test]
fn an_image_of_a_newer_version() {
    let (stage, image) = asleep("newer");
    rewrite_header(&stage, &image, 8, 9);
    for reference in [&image[..], stage.name()] {
        refused_restart(&stage, reference, 8, &[&image, "version 9", "newer dormouse"]);
    }
}

#[test]
fn an_image_of_another_machine_architecture() {
    let (stage, image) = asleep("foreign");
    // 183 is AArch64.
    rewrite_header(&stage, &image, 10, 183);
    refused_restart(&stage, &image, 8, &[&image, "aarch64", "x86-64"]);
}

#[test]
fn an_image_that_is_not_there() {
    let (stage, _) = asleep("absent");
    refused_restart(&stage, "ffffffffffffffffffffffffffffffff", 3, &["ffffffff"]);
}

/// A guest that ran from a copy of its program, to be changed.
fn asleep_from_a_copy(name: &str) -> (Stage, String, PathBuf) {
    let stage = Stage::new(name).unwrap();
    let program = stage.place().cwd().join("program");
    std::fs::copy(stage.guest(PACED), &program).unwrap();
    let job = stage.held_by(stage.place().run_command(&program, &["400".to_owned()])).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    (stage, image, program)
}

#[test]
fn a_changed_program() {
    let (stage, image, program) = asleep_from_a_copy("changed");
    std::fs::remove_file(&program).unwrap();
    std::fs::copy(stage.guest("stencil"), &program).unwrap();
    refused_restart(&stage, &image, 8, &[program.to_str().unwrap()]);
}

#[test]
fn a_missing_program() {
    let (stage, image, program) = asleep_from_a_copy("gone");
    std::fs::remove_file(&program).unwrap();
    refused_restart(&stage, &image, 8, &[program.to_str().unwrap()]);
}

#[test]
fn a_full_store() {
    let stage = Stage::new("full").unwrap();
    let _store = Mount::tmpfs(stage.place().store(), "size=1m").unwrap();
    let job = stage.held(PACED, &["400"]).unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(10, &[stage.place().store().to_str().unwrap()]);
    run_on_after_failed_checkpoint(&stage, job);
}

/// An ext4 at `folder` that says it has room for what the file system in memory that it lies in cannot take: whoever writes hears nothing of that before he syncs.
fn mount_full_disk(disk: &Path, folder: &Path) {
    std::fs::File::create(disk).unwrap().set_len(64 << 20).unwrap();
    std::fs::create_dir(folder).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(disk).status().unwrap();
    let mounted = Command::new("mount").args(["-o", "loop"]).args([disk, folder]).status().unwrap();
    assert!(made.success() && mounted.success(), "this test needs mkfs.ext4 and loop devices");
}

#[test]
fn a_file_that_was_appended_to_and_cannot_be_made_durable() {
    let stage = Stage::new("not-durable").unwrap();
    let backing = stage.place().folder.join("backing");
    let _backing = Mount::tmpfs(backing.clone(), "size=16m").unwrap();
    let folder = backing.join("mounted");
    mount_full_disk(&backing.join("disk"), &folder);
    let log = folder.join("loss.log").display().to_string();
    let guest = stage.guest(PACED).display().to_string();
    let script = "exec 3>>\"$0\"; head -c 30000000 /dev/zero | tr '\\0' x >&3; exec \"$@\"";
    let args = ["-c", script, &log, &guest, "400"].map(str::to_owned);
    let job = stage.held_by(stage.place().run_command(Path::new("/bin/sh"), &args)).unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(1, &["no image", &log, "cannot be made durable"]);
    // Linux tells nobody again that it is lost.
    stage.refused_checkpoint(&[]).unwrap().expect(1, &[&log, "an earlier checkpoint could not make durable"]);
    run_on_after_failed_checkpoint(&stage, job);
}

/// The room that a full disk has for an image, bytes: none, then this, then twice as much each time, since how much an image takes depends
/// on how far the program has come.
const FIRST_ROOM: u64 = 64 << 10;

/// The store becomes full sooner and later (at each single write: `store`'s tests of faults): the image before is there, the job runs on, and what was written in vain is gone.
#[test]
fn a_store_that_becomes_full() {
    let stage = Stage::new("fills").unwrap();
    let (place, args) = (stage.place(), ["900", "5"]);
    let store = Mount::tmpfs(place.store(), "size=1g").unwrap();
    let job = stage.started("stencil", &args).unwrap();
    let undisturbed = Stage::new("never-full").unwrap().started("stencil", &args).unwrap();
    let mut last = stage.checkpoint(After::LeaveRunning).unwrap();
    let mut rooms = iter::once(0).chain((0..16).map(|doubled| FIRST_ROOM << doubled)).enumerate();
    let refused = loop {
        let (level, room) = rooms.next().expect("a checkpoint takes no more than that");
        let before = store.used().unwrap();
        store.resize(before + room).unwrap();
        let output = place.checkpoint_command(After::LeaveRunning).output().unwrap();
        let is_taken = output.status.success();
        store.resize(1 << 30).unwrap();
        let newest = stage.images().unwrap().pop().unwrap();
        let verified = place.dormouse("verify").arg("--store").arg(place.store()).output().unwrap();
        assert!(verified.status.success(), "level {level}: {}", String::from_utf8_lossy(&verified.stderr));
        if is_taken {
            assert_ne!(newest, last);
            last = newest;
            break level;
        }
        Failure::of(&output)
            .unwrap()
            .expect(10, &["full", place.store().to_str().unwrap(), "the job runs on"]);
        assert_eq!(newest, last, "level {level}");
        let left = store.used().unwrap() - before;
        assert!(left < 64 << 10, "{left} bytes of an image that there is not are left at level {level}");
    };
    assert!(refused > 3, "{refused}");
    let native = undisturbed.finish().unwrap().stdout;
    let finished = job.finish().unwrap();
    assert_eq!((finished.exit, &finished.stdout), (Exit::Code(0), &native), "{}", finished.stderr);
    let again = place.restart(&last).unwrap().finish().unwrap();
    assert_eq!(again.exit, Exit::Code(0), "{}", again.stderr);
    assert!(native.ends_with(&again.stdout), "{}", String::from_utf8_lossy(&again.stdout));
}

#[test]
fn a_read_only_store() {
    let stage = Stage::new("read-only").unwrap();
    let _store = Mount::tmpfs(stage.place().store(), "ro").unwrap();
    let job = stage.held(PACED, &["400"]).unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(10, &[stage.place().store().to_str().unwrap()]);
    run_on_after_failed_checkpoint(&stage, job);
}

#[test]
fn a_folder_that_is_no_store_is_named_at_the_start_and_another_can_be_chosen() {
    let stage = Stage::new("no-store").unwrap();
    let (place, other) = (stage.place(), stage.place().folder.join("other"));
    std::fs::create_dir(place.store()).unwrap();
    std::fs::write(place.store().join("something"), "else").unwrap();
    // Whoever counts on checkpoints is not left without.
    let regular = stage.command_with(&["--every", "1m"], PACED, &["1000"]).output().unwrap();
    assert!(regular.stdout.is_empty(), "{regular:?}");
    Failure::of(&regular).unwrap().expect(125, &["something", "the program was not started"]);
    let job = stage.held(PACED, &["1000"]).unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(10, &["something"]);
    let output = place.checkpoint_command(After::Stop).arg("--store").arg(&other).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Signal(9), "{}", finished.stderr);
    let stopped = format!("continue with 'dormouse restart --store {} ", other.display());
    for word in ["checkpoints of this job will fail", "something", "stopped after image", &stopped] {
        assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
    let listed = place.dormouse("ls").arg("--store").arg(&other).arg(stage.name()).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
}

#[test]
fn images_that_are_not_there() {
    let (stage, image) = asleep("not-there");
    let ask = |command: &str, what: &str, store: PathBuf| {
        let output = stage.place().dormouse(command).arg("--store").arg(store).arg(what).output().unwrap();
        Failure::of(&output).unwrap()
    };
    let (store, nowhere) = (stage.place().store(), stage.place().folder.join("nowhere"));
    ask("inspect", &image, nowhere.clone()).expect(3, &["nowhere does not exist"]);
    ask("ls", "nobody", nowhere).expect(3, &["nobody"]);
    ask("ls", "nobody", store.clone()).expect(3, &["nobody", "dormouse ls"]);
    ask("inspect", &image[..1], store).expect(3, &["give at least 4 characters"]);
}

#[test]
fn a_suspended_supervisor() {
    let stage = Stage::new("suspended").unwrap();
    let job = stage.held(PACED, &["800"]).unwrap();
    let pid = rustix::process::Pid::from_raw(job.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TSTP).unwrap();
    // It stops its program first, and itself after that.
    let stopped = rustix::process::WaitIdOptions::STOPPED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), stopped).unwrap();
    let output = stage.place().checkpoint_command(After::Stop).output().unwrap();
    Failure::of(&output).unwrap().expect(1, &[&format!("kill -CONT {}", job.pid())]);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    // What was asked meanwhile is forgotten.
    run_on_after_failed_checkpoint(&stage, job);
}

#[test]
fn too_little_shared_memory() {
    let stage = Stage::new("small").unwrap();
    let mut command = stage.place().dormouse("run");
    let output = command.args(["--device", "soft", "--shared-memory", "1M", "--", "true"]).output().unwrap();
    Failure::of(&output).unwrap().expect(125, &["1048576 bytes", "--shared-memory"]);
}

#[test]
fn an_ordinary_user() {
    let stage = Stage::new("user").unwrap();
    let command = stage.command(PACED, &["1"]);
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]);
    setpriv.arg(command.get_program()).args(command.get_args()).current_dir(stage.place().cwd());
    let all = ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD"];
    Failure::of(&setpriv.output().unwrap()).unwrap().expect(125, &all);
}

#[test]
fn no_privilege_for_namespaces() {
    let stage = Stage::new("unprivileged").unwrap();
    let command = stage.command(PACED, &["1"]);
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"]);
    setpriv.arg(command.get_program()).args(command.get_args()).current_dir(stage.place().cwd());
    let failure = Failure::of(&setpriv.output().unwrap()).unwrap();
    failure.expect(125, &["CAP_SYS_ADMIN"]);
}

/// A guest that writes its output to a file that the job has opened, left running after a checkpoint.
fn awake(name: &str, steps: &str) -> (Stage, String, Child, PathBuf) {
    let stage = Stage::new(name).unwrap();
    let file = stage.place().cwd().join("output");
    let mut command = stage.command_into_file(PACED, &[steps], "output");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    wait_for_growth(&file, 0);
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    (stage, image, child, file)
}

fn wait_for_growth(file: &Path, from: u64) {
    let began = Instant::now();
    while std::fs::metadata(file).map_or(0, |meta| meta.len()) <= from {
        assert!(began.elapsed() < LIMIT, "nothing is written to {}", file.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_job_that_still_runs_is_not_restarted_under_any_name() {
    let (stage, image, mut child, file) = awake("alive", "2000");
    let at_cut = std::fs::metadata(&file).unwrap().len();
    wait_for_growth(&file, at_cut);
    let words = [&format!("job {:?}", stage.name())[..], "still running", "stop it, or wait"];
    refused_restart(&stage, &image, 4, &words);
    let before = std::fs::read(&file).unwrap();
    let restart = stage.place().restart_command(&image).args(["--name", "other-name"]).output().unwrap();
    let failure = Failure::of(&restart).unwrap();
    failure.expect(125, &words);
    assert!(!failure.message.contains("--name"), "{failure:?}");
    assert!(std::fs::read(&file).unwrap().starts_with(&before), "the running job's output was cut back");
    assert!(child.try_wait().unwrap().is_none(), "the guest was over too early");

    stage.checkpoint(After::Stop).unwrap();
    child.wait().unwrap();
    let check = stage.place().restart_command(&image).args(["--check", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success(), "{said}");
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(answer["image"], image);
    assert_eq!(answer["device"], stage.place().device.flag());
}

#[test]
fn of_two_restarts_at_once_one_runs() {
    let (stage, image) = asleep("twins");
    let restart = |name: &str| {
        let mut command = stage.place().restart_command(&image);
        Job::start({
            command.args(["--name", name]);
            command
        })
        .unwrap()
    };
    let twins = [restart("twin-a"), restart("twin-b")].map(|job| job.finish().unwrap());
    let [won, lost] = match &twins {
        [a, b] if a.exit == Exit::Code(0) => [a, b],
        [a, b] => [b, a],
    };
    assert_eq!((won.exit, lost.exit), (Exit::Code(0), Exit::Code(125)), "{} {}", won.stderr, lost.stderr);
    assert!(lost.stderr.contains("still running"), "{}", lost.stderr);
    assert!(String::from_utf8_lossy(&won.stdout).contains("done sum"));
}

#[test]
fn a_stopped_job_can_be_restarted_at_once() {
    let stage = Stage::new("at-once").unwrap();
    let mut job = stage.held(PACED, &["400"]).unwrap();
    for _ in 0..3 {
        let image = stage.checkpoint(After::Stop).unwrap();
        let next = stage.place().restart(&image).unwrap();
        job.finish().unwrap();
        job = dormouse_tests::first_line(next).unwrap();
    }
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
}

#[test]
fn a_restart_without_criu() {
    let (stage, image) = asleep("no-criu-left");
    let mut check = stage.place().restart_command(&image);
    let check = check.arg("--check").env("DORMOUSE_CRIU", "/nowhere/criu").output().unwrap();
    Failure::of(&check).unwrap().expect(9, &["CRIU", "/nowhere/criu"]);
}

#[test]
fn a_restart_with_a_criu_that_does_not_work_on_this_kernel() {
    let (stage, image) = asleep("old-criu-left");
    let old = old_criu(&stage);
    for (flags, code) in [(&["--check"][..], 9), (&[], 125)] {
        let mut restart = stage.place().restart_command(&image);
        let restart = restart.args(flags).env("DORMOUSE_CRIU", &old).output().unwrap();
        Failure::of(&restart).unwrap().expect(code, &["CRIU 3.17.1", "cannot dump"]);
    }
}

#[test]
fn a_restart_without_privilege() {
    let (stage, image) = asleep("unprivileged-restart");
    let command = stage.place().restart_command(&image);
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"]);
    setpriv.arg(command.get_program()).args(command.get_args()).arg("--check");
    Failure::of(&setpriv.output().unwrap()).unwrap().expect(9, &["CAP_SYS_ADMIN"]);
}

#[test]
fn a_restart_without_the_device() {
    let (stage, image) = asleep("no-gpu");
    let place = Place { device: Device::Gpu, ..stage.place() };
    let mut check = place.restart_command(&image);
    let check = check.arg("--check").env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    Failure::of(&check).unwrap().expect(8, &["no device"]);
}

#[test]
fn a_restart_without_a_file_that_was_written() {
    let (stage, image, mut child, file) = awake("lost-output", "2000");
    stage.checkpoint(After::Stop).unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&file).unwrap();
    refused_restart(&stage, &image, 8, &[file.to_str().unwrap(), "bring it back"]);
}

#[test]
fn another_terminal_another_folder_other_pids() {
    let (stage, image) = asleep("elsewhere");
    let undisturbed = stage.undisturbed(&["400"]).unwrap();
    let mut command = stage.place().restart_command(&image);
    command.current_dir("/").env_clear();
    let finished = Job::start(command).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(undisturbed.stdout.ends_with(&finished.stdout) && !finished.stdout.is_empty());
}

#[test]
fn images_of_one_job_do_not_mix() {
    let stage = Stage::new("pair").unwrap();
    let undisturbed = stage.undisturbed(&["300"]).unwrap();
    let job = stage.held(PACED, &["300"]).unwrap();
    let mut images = Vec::new();
    for _ in 0..2 {
        images.push(stage.checkpoint(After::LeaveRunning).unwrap());
    }
    stage.finish(job).unwrap();
    let restart = |image: &String| {
        let finished = stage.place().restart(image).unwrap().finish().unwrap();
        assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
        finished.stdout
    };
    let outputs: Vec<Vec<u8>> = images.iter().map(restart).collect();
    assert!(outputs.iter().all(|output| undisturbed.stdout.ends_with(output)));
    assert!(outputs[0].len() >= outputs[1].len() && !outputs[1].is_empty());
}

/// What one of them asks for the other one has not.
#[test]
fn faults_of_its_own_where_nothing_faults() {
    let stage = Stage::new("senseless").unwrap();
    let mut command = stage.place().dormouse("run");
    command.args(["--device=soft", "--user-faults", "--managed=coherent", "--", "true"]);
    Failure::of(&command.output().unwrap()).unwrap().expect(2, &["--user-faults", "--managed=coherent"]);
}
