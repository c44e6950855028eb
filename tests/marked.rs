//! Guests whose kernels are marked, undisturbed: what they compute is what the host computes.
#![allow(clippy::unwrap_used)]

use dormouse_tests::Stage;
use testkit::kit::Kit;
use testkit::manifest::Set;
use testkit::place::Device;

#[test]
fn marked_kernels_compute_what_the_host_does() {
    let stage = Stage::on(Device::Soft, "marked").unwrap();
    let manifest = Kit::locate().unwrap().manifest().unwrap();
    for guest in manifest.set(Set::Marked) {
        // One step, of as much work as usual.
        let [_, work] = guest.args(false) else { panic!("{} wants steps and work", guest.name) };
        let output = stage.command(guest.program(), &["1", work]).output().unwrap();
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("done sum"), "{}: {said}{complained}", guest.name);
    }
}
