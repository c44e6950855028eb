//! Markers.

use ptx::ast::{Body, Function, Item, Loc, Module, Statement};

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

/// Where a marker or an instruction is, as a programmer would say: of what was inlined, a marker is where it was written, an instruction where the kernel or
/// function itself comes to it.
pub(crate) fn place(module: &Module, body: &Body, statement: usize) -> Place {
    let mut locs = body.statements[..statement]
        .iter()
        .rev()
        .filter_map(|statement| if let Statement::Loc(loc) = statement { Some(loc) } else { None });
    let last = locs.next();
    let (loc, otherwise) = match &body.statements[statement] {
        Statement::Instruction(instruction) => (outermost(last, locs), Place::Line(instruction.line)),
        _ => (last, Place::Marker(markers(body).iter().filter(|marker| **marker <= statement).count())),
    };
    let named = loc.and_then(|loc| {
        let file = module.items.iter().find_map(|item| match item {
            Item::File(file) if file.index == loc.file => Some(file.name.clone()),
            _ => None,
        })?;
        Some(Place::Source(file, loc.line))
    });
    named.unwrap_or(otherwise)
}

/// The call that was inlined first, out of which others were, among those that stand before, the last ones first.
fn outermost<'a>(last: Option<&'a Loc>, mut before: impl Iterator<Item = &'a Loc>) -> Option<&'a Loc> {
    let mut found = last?;
    while let Some(at) = &found.inlined_at {
        let is_it = |loc: &&Loc| (loc.file, loc.line, loc.column) == (at.file, at.line, at.column);
        let Some(next) = before.find(is_it) else { break };
        found = next;
    }
    Some(found)
}
