//! The image of a static program, made once (`golden/guest.c` says how) and restarted for ever, wherever CRIU's own compatibility reaches: what the host record says, the job's init of
//! that time, which travels with the image, and what CRIU wrote then.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use dormouse_tests::Stage;
use testkit::job::Job;
use testkit::outcome::Exit;

/// Where it ran, and runs again.
const CWD: &str = "/tmp/dormouse-golden";

/// A folder that is removed however its test ends.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn an_image_of_long_ago_goes_on() {
    let stage = Stage::new("golden").unwrap();
    let (golden, cwd) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"), Path::new(CWD));
    copy(&golden.join("store"), &stage.place().store());
    fs::create_dir(cwd).expect("the image needs this folder for itself");
    let _gone = Removed(cwd);
    fs::copy(golden.join("guest"), cwd.join("guest")).unwrap();
    fs::write(cwd.join("log"), "before\nwritten when the image was there\n").unwrap();
    fs::write(cwd.join("go"), "").unwrap();
    let [image] = &stage.images().unwrap()[..] else { panic!("there is one") };
    let restarted = Job::start(stage.place().restart_command(image)).unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    assert_eq!(String::from_utf8_lossy(&restarted.stdout), "done\n");
    assert_eq!(fs::read_to_string(cwd.join("log")).unwrap(), "before\nafter\n");
}
