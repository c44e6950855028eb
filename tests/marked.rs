//! Guests whose kernels are marked: a checkpoint does not wait for a launch that takes longer than it would.
#![allow(clippy::unwrap_used)]

use dormouse_tests::Stage;
use std::time::{Duration, Instant};
use testkit::job::{Job, LIMIT};
use testkit::manifest::Managed;
use testkit::outcome::Exit;
use testkit::place::{After, Device, Place, Report};

/// A guest in the middle of its second launch, of which it prints a line at its end.
fn in_its_second_launch(stage: &Stage, guest: &str, args: &[&str]) -> Job {
    let job = stage.started(guest, args).unwrap();
    assert!(job.stdout.wait_for_line(LIMIT));
    std::thread::sleep(Duration::from_millis(300));
    job
}

/// Two launches of some seconds each; the guests compare with what the host computes.
fn stops_and_goes_on(guest: &str, args: [&str; 2]) {
    let stage = Stage::on(Device::Soft, guest).unwrap();
    let mut job = stage.started(guest, &args).unwrap();
    assert!(job.stdout.wait_for_line(LIMIT));
    for printed_before in [1, 0] {
        // It is in the middle of the second launch, of which it prints a line at its end.
        std::thread::sleep(Duration::from_millis(300));
        let image = stage.checkpoint(After::LeaveRunning).unwrap();
        let printed = job.stdout.so_far();
        assert_eq!(
            printed.iter().filter(|byte| **byte == b'\n').count(),
            printed_before,
            "it is over too soon"
        );
        stage.place().kill_everything(job).unwrap();
        job = stage.place().restart(&image).unwrap();
    }
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(String::from_utf8_lossy(&finished.stdout).contains("done sum"));
}

#[test]
fn a_checkpoint_stops_a_marked_kernel_and_a_restart_has_it_go_on() {
    stops_and_goes_on("marked_stencil", ["2", "150000"]);
}

/// Its kernel calls a function of another source: the program has machine code that nvcc has linked, and the PTX of each.
#[test]
fn a_kernel_of_what_nvcc_has_linked_stops_half_way() {
    stops_and_goes_on("marked_linked", ["2", "300000"]);
}

/// The program has no device code of its own: NVRTC compiles it, and `dormouse.cuh` marks it.
#[test]
fn a_kernel_that_the_program_compiles_itself_stops_half_way() {
    stops_and_goes_on("marked_nvrtc", ["2", "8000000"]);
}

/// A graph is launched in parts: a checkpoint comes in the middle of one, the image knows how many there have been, and its restart goes on with the others.
#[test]
fn a_launch_of_a_graph_stops_in_each_of_its_marked_kernels() {
    let stage = Stage::on(Device::Soft, "marked_graph").unwrap();
    let args = ["2", "400000"];
    let whole = stage.started("marked_graph", &args).unwrap().finish().unwrap().stdout;
    let mut job = stage.started("marked_graph", &args).unwrap();
    let mut printed = Vec::new();
    for _ in 0..3 {
        // Within the second launch, of which it prints a line at its end.
        std::thread::sleep(Duration::from_millis(400));
        let image = stage.checkpoint(After::LeaveRunning).unwrap();
        printed.extend(stage.place().kill_everything(job).unwrap());
        assert!(printed.iter().filter(|byte| **byte == b'\n').count() <= 1, "it is over too soon");
        job = stage.place().restart(&image).unwrap();
    }
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!([printed, finished.stdout].concat(), whole);
}

/// What a kernel has printed before it stopped comes once, and so does what it prints behind that.
#[test]
fn a_kernel_that_prints_stops_half_way() {
    let stage = Stage::on(Device::Soft, "marked_printf").unwrap();
    let args = ["2", "600000"];
    let whole = stage.started("marked_printf", &args).unwrap().finish().unwrap().stdout;
    let job = in_its_second_launch(&stage, "marked_printf", &args);
    let Report { image, half_way, .. } = stage.reported_checkpoint(After::LeaveRunning).unwrap();
    assert_eq!(half_way, 1);
    let inspected = stage.inspect(&image).unwrap();
    assert_eq!(inspected["half_way"], 1, "{inspected}");
    let printed = stage.place().kill_everything(job).unwrap();
    assert!(!String::from_utf8_lossy(&printed).contains("step 2 sum"), "it is over too soon");
    let finished = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let printed = [printed, finished.stdout].concat();
    assert_eq!(String::from_utf8_lossy(&printed), String::from_utf8_lossy(&whole));
}

/// The device is given up in the middle of a launch, which goes on where it was.
#[test]
fn a_kernel_is_suspended_half_way() {
    let stage = Stage::on(Device::Soft, "marked_asleep").unwrap();
    let args = ["2", "600000"];
    let whole = stage.started("marked_printf", &args).unwrap().finish().unwrap().stdout;
    let job = in_its_second_launch(&stage, "marked_printf", &args);
    let report = stage.place().asked("suspend").output().unwrap().stdout;
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let drain = Duration::from_secs_f64(report["drain_ms"].as_f64().unwrap() / 1e3);
    stage.place().resume().unwrap();
    let resumed = Instant::now();
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    // A launch that had been waited for would be over.
    assert!(resumed.elapsed() > drain * 2, "{report}");
    assert_eq!(String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&whole));
}

/// How often a kernel polls is in none of its frames: what has stopped goes on however it polls then.
#[test]
fn a_kernel_goes_on_with_polls_of_another_kind() {
    let stage = Stage::on(Device::Soft, "other_polls").unwrap();
    let job = in_its_second_launch(&stage, "marked_stencil", &["2", "150000"]);
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    stage.place().kill_everything(job).unwrap();
    let printed = |poll: &str| {
        let mut command = stage.place().restart_command(&image);
        command.env("DORMOUSE_POLL", poll);
        let finished = Job::start(command).unwrap().finish().unwrap();
        assert_eq!(finished.exit, Exit::Code(0), "{poll}: {}", finished.stderr);
        String::from_utf8_lossy(&finished.stdout).into_owned()
    };
    let as_it_was = printed("adaptive");
    assert!(as_it_was.contains("done sum"), "{as_it_was}");
    for poll in ["count:7", "every", "barrier"] {
        assert_eq!(printed(poll), as_it_was, "{poll}");
    }
}

/// Two marked kernels at once, of which each is stopped for the other one again and again, and both for a checkpoint; its restart does so without being told.
#[test]
fn marked_kernels_take_turns() {
    let stage = Stage::on(Device::Soft, "turns").unwrap();
    let (guest, args) = (stage.guest("marked_streams"), ["3", "120000"].map(str::to_owned));
    let undisturbed = stage.place().run(&guest, &args).unwrap().finish().unwrap();
    assert_eq!(undisturbed.exit, Exit::Code(0), "{}", undisturbed.stderr);

    let place = stage.place();
    let mut command = place.dormouse("run");
    command.args(["--preempt-after=20ms", "--device=soft", "--name", place.name]);
    command.arg("--store").arg(place.store()).arg("--").arg(&guest).args(&args).env("DORMOUSE_LOG", "debug");
    let job = Job::start(command).unwrap();
    assert!(job.stdout.wait_for_line(LIMIT));
    let image = stage.checkpoint(After::Stop).unwrap();
    let first = job.finish().unwrap();
    let mut command = place.restart_command(&image);
    command.env("DORMOUSE_LOG", "debug");
    let second = Job::start(command).unwrap().finish().unwrap();
    assert_eq!(second.exit, Exit::Code(0), "{}", second.stderr);
    // How many each has in which of the runs is up to the machine.
    for said in [first.stderr.as_str(), &second.stderr] {
        assert!(said.contains("makes room"), "nobody has made room: {said}");
    }
    for kernel in ["hash", "pass_on"] {
        let is_turn = |line: &str| line.contains("makes room") && line.contains(kernel);
        let said = [first.stderr.as_str(), &second.stderr].concat();
        assert!(said.lines().any(is_turn), "{kernel} has made no room: {said}");
    }
    assert_eq!([first.stdout, second.stdout].concat(), undisturbed.stdout);
}

/// A kernel that has made room is in nobody's stream, and may reach managed memory all the same when it goes on: what the host writes there is
/// not taken for all there is.
#[test]
fn a_kernel_over_managed_memory_makes_room_again_and_again() {
    let stage = Stage::on(Device::Soft, "managed_turns").unwrap();
    let (guest, args) = (stage.guest("marked_managed"), ["4", "60000"].map(str::to_owned));
    let place = Place { managed: Some(Managed::Shadow), ..stage.place() };
    let undisturbed = place.run(&guest, &args).unwrap().finish().unwrap();
    assert_eq!(undisturbed.exit, Exit::Code(0), "{}", undisturbed.stderr);
    let mut command = place.dormouse("run");
    command.args(["--preempt-after=5ms", "--managed=shadow", "--device=soft", "--name", place.name]);
    command.arg("--store").arg(place.store()).arg("--").arg(&guest).args(&args).env("DORMOUSE_LOG", "debug");
    let turns = Job::start(command).unwrap().finish().unwrap();
    assert_eq!(turns.exit, Exit::Code(0), "{}", turns.stderr);
    assert_eq!(turns.stdout, undisturbed.stdout);
    let times = turns.stderr.matches("makes room").count();
    assert!(times >= 3, "room was made {times} times: {}", turns.stderr);
}
