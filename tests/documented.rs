//! What the documentation shows in Python is Python, and does what is said of it (`docs/self-checkpoint.md`).
#![allow(clippy::unwrap_used)]

use dormouse_tests::planned::finish;
use dormouse_tests::{Stage, first_line};
use rustix::process::Signal;
use testkit::job::Job;
use testkit::outcome::Exit;

const PAGE: &str = include_str!("../docs/self-checkpoint.md");

/// What the training script leaves to whoever writes one.
const AS_ALWAYS: &str = "
import sys, time, types
sys.modules['torch'] = types.ModuleType('torch')
log, epochs = sys.stdout, 2
def build(): return None, None, range(100)
def train(model, optimizer, batch):
    time.sleep(0.01)
    print('step', batch, flush=True)
def validate(model): print('validated', flush=True)
";

/// The page's blocks of Python: the first lines, and the training script.
fn blocks() -> [&'static str; 2] {
    let blocks = PAGE.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn the_first_lines_in_python_run_with_and_without_dormouse() {
    let stage = Stage::new("first-lines").unwrap();
    let [first, _] = blocks();
    for under_dormouse in [false, true] {
        assert_eq!(finish(stage.python(under_dormouse, &["-c", first])).unwrap().stdout, b"");
    }
    let [image] = &stage.images().unwrap()[..] else { panic!("it has taken one") };
    let restarted = finish(stage.place().restart_command(image)).unwrap();
    assert_eq!(String::from_utf8_lossy(&restarted.stdout), format!("restarted from {image}\n"));
}

#[test]
fn the_training_script_stops_when_it_is_told_to_and_goes_on_in_its_loop() {
    let stage = Stage::new("training").unwrap();
    let script = [AS_ALWAYS, blocks()[1]].concat();
    let whole = finish(stage.python(false, &["-c", &script])).unwrap().stdout;
    let job = first_line(Job::start(stage.python(true, &["-c", &script])).unwrap()).unwrap();
    job.signal(Signal::USR1).unwrap();
    let left = job.finish().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    let [image] = &stage.images().unwrap()[..] else { panic!("it has taken one: {}", left.stderr) };
    let restarted = finish(stage.place().restart_command(image)).unwrap().stdout;
    let back = format!("goes on from {image}, restart 1\n");
    let rest = restarted.strip_prefix(back.as_bytes()).unwrap();
    assert_eq!([&left.stdout[..], rest].concat(), whole);
}
