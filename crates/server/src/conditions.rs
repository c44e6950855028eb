//! Conditions of graphs in a session's state: how they are told, and made again.

use crate::failure::{Failure, Result};
use crate::objects::{
    Approach, ConditionRecord, Table, Template, TemplatePlaceholders, TemplateRecord, insert,
};
use crate::session::Session;
use crate::write;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::GraphTemplateId;

/// Everything of a session that has to do with conditions.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ConditionState {
    /// Templates, and whether the application still has the graph: one may live on behind an executable graph.
    pub templates: Vec<(TemplateRecord, bool)>,
}

impl ConditionState {
    /// What a restart has to make.
    pub(crate) fn of(table: &Table) -> Self {
        let mut live: BTreeMap<GraphTemplateId, &Arc<Template>> =
            table.templates.iter().map(|(id, template)| (*id, template)).collect();
        let used = table.graphs.values().filter_map(|graph| graph.frame.template.as_ref());
        live.extend(used.map(|template| (template.id, template)));
        let templates =
            live.into_iter().map(|(id, template)| (template.record(), table.templates.contains_key(&id)));
        Self { templates: templates.collect() }
    }

    /// All conditions in the order of their making, each with its template.
    fn in_order(&self) -> Vec<(GraphTemplateId, &ConditionRecord)> {
        let mut all = Vec::new();
        for (template, _) in &self.templates {
            all.extend(template.conditions.iter().map(|record| (template.id, record)));
        }
        all.sort_by_key(|(_, record)| record.placement.turn);
        all
    }
}

/// The templates of a state, those among them that only an executable graph keeps.
pub(crate) type Templates = BTreeMap<GraphTemplateId, Arc<Template>>;

impl Session {
    /// Makes all conditions again.
    pub(crate) fn restore_conditions(&self, state: &ConditionState) -> Result<Templates> {
        let order = state.in_order();
        let made = self
            .make_conditions(&order, Approach::AsItComes)
            .or_else(|_| self.make_conditions(&order, Approach::WhenItIsDue))?;
        let mut table = write(&self.table);
        for (record, _) in state.templates.iter().filter(|(_, named)| *named) {
            if let Some(template) = made.get(&record.id) {
                insert(&mut table.templates, record.id, Arc::clone(template))?;
            }
        }
        Ok(made)
    }

    fn make_conditions(
        &self,
        order: &[(GraphTemplateId, &ConditionRecord)],
        approach: Approach,
    ) -> Result<Templates> {
        let mut made = Templates::new();
        let mut placeholders = TemplatePlaceholders::new(approach);
        for (id, record) in order {
            let ctx = self.context(record.ctx)?;
            let again = placeholders.make_again(&self.placer, &ctx, made.get(id), (*id, record));
            let template = again.map_err(|Failure { code, detail }| {
                Failure::new(code, format!("condition {:#x} of {id:?}: {detail}", record.value))
            })?;
            made.insert(*id, template);
        }
        Ok(made)
    }
}
