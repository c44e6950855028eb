//! Many clients at a time, each with a far end of its own.

use super::common::{Program, over_tcp};
use libtest_mimic::{Failed, Trial};
use wire::CuError;

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("clients::a_hundred_compute_at_once", a_hundred_compute_at_once),
        Trial::test("clients::no_kernel_reaches_what_another_has", no_kernel_reaches_what_another_has),
    ]
}

fn a_hundred_compute_at_once() -> Result<(), Failed> {
    let clients: Vec<_> = (0..100).map(|_| over_tcp()).collect();
    let programs = clients.iter().map(|(_, backend)| Program::new(backend)).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        for (number, program) in (0..).zip(&programs) {
            scope.spawn(move || {
                for value in 0..50 {
                    program.store(value * 100 + number).unwrap();
                    assert_eq!(program.read(), Ok(value * 100 + number));
                }
            });
        }
    });
    Ok(())
}

/// Not even one that is told the address.
fn no_kernel_reaches_what_another_has() -> Result<(), Failed> {
    let ((_one_far, one_backend), (_other_far, other_backend)) = (over_tcp(), over_tcp());
    let (one, other) = (Program::new(&one_backend)?, Program::new(&other_backend)?);
    one.store(42)?;
    one.wait()?;
    let address = one.at(0).to_le_bytes();
    other.copy(other.at(0), address.as_ptr() as u64, 8)?;
    other.follow(other.at(0))?;
    assert_eq!(other.wait(), Err(CuError::ILLEGAL_ADDRESS));
    assert_eq!(one.read()?, 42);
    Ok(())
}
