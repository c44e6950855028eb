//! Jobs that move to another model of device, and to an older kernel: what cannot go on there is named before the job is stopped, and what its program may have
//! kept is told.
#![allow(clippy::unwrap_used)]

use crate::migrate::{ARGS, migrate, output, report, wait_for_end};
use dormouse_tests::{Failure, PACED, Stage};
use std::os::unix::process::CommandExt;
use std::process::Command;
use testkit::outcome::Exit;

/// `dormouse migrate` of the stage's job to a software device of this compute capability; guests have PTX for 9.0, and machine code.
fn to_model(stage: &Stage, capability: &str) -> Command {
    let mut command = migrate(stage, "here", &["--device", "soft"]);
    command.env("DORMOUSE_SOFT_CAPABILITY", capability);
    command
}

/// Whoever carries this out, and whom it starts, sees the kernel as a Linux 2.6.
fn on_linux_2_6(command: &mut Command) {
    // SAFETY: between fork and exec it makes one system call.
    unsafe {
        command.pre_exec(|| match libc::personality(libc::UNAME26 as libc::c_ulong) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

#[test]
fn code_for_other_models_alone_is_refused_before_a_job_is_stopped() {
    let stage = Stage::new("older-model").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let refused = to_model(&stage, "80").output().unwrap();
    let words = ["the module of", "cannot be made again", "sm_90", "compute_90", "code=compute_80"];
    Failure::of(&refused).unwrap().expect(8, &words);
    assert_eq!(stage.images().unwrap().len(), 0, "something was taken and is left");
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, finished.stdout), (Exit::Code(0), whole.stdout), "{}", finished.stderr);
}

#[test]
fn what_a_program_may_have_kept_is_told() {
    let stage = Stage::new("newer-model").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut command = to_model(&stage, "100");
    on_linux_2_6(&mut command);
    let moved = report(&command.output().unwrap());
    let left = stage.finish(job).unwrap();
    let rest = wait_for_end(&moved);
    assert_eq!([left.stdout, rest].concat(), whole.stdout);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let told = [
        "\"Dormouse Soft Device\", and may have kept its attributes".to_owned(),
        "here there is Dormouse Soft Device 10.0".to_owned(),
        format!("has run on, Linux {kernel}:"),
        "older, Linux 2.6.".to_owned(),
    ];
    let log = std::fs::read_to_string(output(&stage).join(format!("{}.err", stage.name()))).unwrap();
    for word in told {
        let warnings = moved["warnings"].as_array().unwrap();
        let is_told = |warning: &serde_json::Value| warning.as_str().unwrap().contains(&word);
        assert_eq!(warnings.iter().filter(|warning| is_told(warning)).count(), 1, "{word}: {moved}");
        assert!(log.contains(&word), "{word}: {log}");
    }
}
