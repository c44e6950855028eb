//! Conditions of graphs.

use super::dispatch::Execute;
use super::graphs::invalid;
use super::{Caller, Session};
use crate::failure::Result;
use crate::objects::{ConditionRecord, Making, Placement, Template, take_out};
use crate::{read, write};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::{GraphPlan, GraphWork};

/// Whether a plan's conditional nodes have conditions of the template, one each, and bodies that a device can run by itself.
pub(super) fn check_conditions(plan: &GraphPlan, template: Option<&Template>) -> Result<()> {
    let mut used = BTreeSet::new();
    // The end of the outermost conditional node's bodies.
    let mut end = 0;
    for (at, node) in plan.nodes.iter().enumerate() {
        if at < end && !fits_body(&node.work) {
            return Err(invalid(format!("node {at} cannot be in a body: {:?}", node.work)));
        }
        let GraphWork::Conditional(conditional) = &node.work else { continue };
        end = end.max(plan.behind(at));
        let value = conditional.handle;
        if !template.is_some_and(|template| template.has(conditional.ctx, value)) {
            return Err(invalid(format!(
                "{value:#x} is no condition of this graph and {:?}",
                conditional.ctx
            )));
        }
        if !used.insert(value) {
            return Err(invalid(format!("condition {value:#x} has two nodes")));
        }
    }
    Ok(())
}

/// Whether a body can have such a node.
fn fits_body(work: &GraphWork) -> bool {
    match work {
        GraphWork::Empty
        | GraphWork::Kernel(_)
        | GraphWork::Copy(_)
        | GraphWork::Fill(_)
        | GraphWork::Conditional(_) => true,
        GraphWork::Host(_)
        | GraphWork::EventRecord(_)
        | GraphWork::EventWait(_)
        | GraphWork::Operations(_) => false,
    }
}

impl Execute for wire::GraphCondition {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let ctx = session.context(self.ctx)?;
        let known = read(&session.table).templates.get(&self.template).cloned();
        let template = match known {
            Some(template) => template,
            None => {
                let made = Template::make(&session.placer.backend, &ctx, self.template)?;
                write(&session.table).templates.entry(self.template).or_insert(made).clone()
            }
        };
        write(&session.table).changes += 1;
        let placement = Placement::default();
        let record = ConditionRecord { ctx: self.ctx, initial: self.initial, value: 0, placement };
        template.add(&session.placer, &ctx, record, Making::New).inspect_err(|_| {
            // Nobody will ever name a template without conditions.
            let is_it =
                |each: &Arc<Template>| each.id == self.template && each.record().conditions.is_empty();
            drop(take_out(&mut write(&session.table).templates, is_it));
        })
    }
}

impl Execute for wire::GraphTemplateDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let mut table = write(&session.table);
        let gone = table.template(self.template)?;
        table.templates.remove(&self.template);
        table.changes += 1;
        // What ends is dropped outside of the lock.
        drop(table);
        drop(gone);
        Ok(())
    }
}
