//! Markers.

use ptx::ast::{Body, Function, Item, Module, Statement};

use crate::refusal::Place;

/// What a marker's pragma begins with.
pub(crate) const MARK: &str = "cpt";

/// The statements that are markers.
pub(crate) fn markers(body: &Body) -> Vec<usize> {
    let is_marker = |statement: &Statement| {
        let Statement::Pragma(texts) = statement else { return false };
        texts.iter().any(|text| text.split_whitespace().next() == Some(MARK))
    };
    body.statements
        .iter()
        .enumerate()
        .filter(|(_, statement)| is_marker(statement))
        .map(|(at, _)| at)
        .collect()
}

/// Whether a function has markers.
#[must_use]
pub fn is_marked(function: &Function) -> bool {
    function.body.as_ref().is_some_and(|body| !markers(body).is_empty())
}

/// Where a marker is, as a programmer would say.
pub(crate) fn place(module: &Module, body: &Body, statement: usize) -> Place {
    let before = body.statements[..statement].iter().rev();
    let loc = before
        .filter_map(|statement| if let Statement::Loc(loc) = statement { Some(loc) } else { None })
        .next();
    let named = loc.and_then(|loc| {
        let file = module.items.iter().find_map(|item| match item {
            Item::File(file) if file.index == loc.file => Some(file.name.clone()),
            _ => None,
        })?;
        Some(Place::Source(file, loc.line))
    });
    let number = || markers(body).iter().take_while(|marker| **marker <= statement).count();
    named.unwrap_or_else(|| Place::Marker(number()))
}
