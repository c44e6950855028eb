//! What is compiled of the Python package `dormouse`: `libdormouse`'s functions, as tuples. `python/dormouse/__init__.py` makes them what users see.

use dormouse_ask::{Answer, Callback, Event, Options, Refusal};
use pyo3::prelude::*;
use std::sync::Arc;

/// What has become of a checkpoint: a code as in `dormouse.h`, the image's id, the ticket, and why there is none.
type Outcome = (i64, Option<String>, u64, Option<String>);

const PUBLISHED: i64 = 0;
const RESTARTED: i64 = 1;
const TAKEN: i64 = 2;

/// `None` where there is no Dormouse.
fn outcome(ended: Result<Answer, Refusal>) -> Option<Outcome> {
    match ended {
        Ok(Answer::Published { image }) => Some((PUBLISHED, Some(image), 0, None)),
        Ok(Answer::Restarted { image }) => Some((RESTARTED, Some(image), 0, None)),
        Ok(Answer::Taken { ticket }) => Some((TAKEN, None, ticket, None)),
        Err(Refusal::Failed { code, text }) => Some((-i64::from(code), None, 0, Some(text))),
        Err(Refusal::NotHere) => None,
    }
}

#[pyfunction]
fn available() -> bool {
    dormouse_ask::is_available()
}

#[pyfunction]
fn checkpoint(py: Python<'_>, no_wait: bool, stop: bool) -> Option<Outcome> {
    outcome(py.detach(|| dormouse_ask::checkpoint(Options { no_wait, stop })))
}

#[pyfunction]
fn wait(py: Python<'_>, ticket: u64) -> Option<Outcome> {
    outcome(py.detach(|| dormouse_ask::wait(ticket)))
}

#[pyfunction]
fn convenient_point(py: Python<'_>) -> Option<Outcome> {
    if !dormouse_ask::is_wanted() {
        return None;
    }
    py.detach(dormouse_ask::convenient_point).transpose().and_then(outcome)
}

/// Has memory left out of images, or saved again: a code as in `dormouse.h`, and why it is not.
#[pyfunction]
fn exclude(py: Python<'_>, address: usize, size: usize, exclude: bool) -> Option<(i64, String)> {
    let tell = if exclude { dormouse_ask::exclude } else { dormouse_ask::include };
    match py.detach(|| tell(address, size)) {
        Ok(()) => Some((0, String::new())),
        Err(Refusal::Failed { code, text }) => Some((-i64::from(code), text)),
        Err(Refusal::NotHere) => None,
    }
}

#[pyfunction]
fn restarts() -> u32 {
    dormouse_ask::restarts()
}

#[pyfunction]
fn image() -> Option<String> {
    dormouse_ask::image()
}

/// Registers `callback` for an event, by its number in `dormouse.h`.
#[pyfunction]
fn on(event: u32, callback: Py<PyAny>) -> bool {
    let event = match event {
        1 => Event::Before,
        2 => Event::After,
        3 => Event::Restarted,
        _ => return false,
    };
    let call: Callback = Arc::new(move |ended| {
        Python::attach(|py| {
            let ended = ended.and_then(|ended| outcome(ended.clone()));
            // The checkpoint does not depend on it.
            if let Err(error) = callback.call1(py, (ended,)) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    });
    dormouse_ask::on(event, call);
    true
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(available, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(wait, module)?)?;
    module.add_function(wrap_pyfunction!(convenient_point, module)?)?;
    module.add_function(wrap_pyfunction!(exclude, module)?)?;
    module.add_function(wrap_pyfunction!(restarts, module)?)?;
    module.add_function(wrap_pyfunction!(image, module)?)?;
    module.add_function(wrap_pyfunction!(on, module)?)
}
