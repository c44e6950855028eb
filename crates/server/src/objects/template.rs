//! Graphs that conditions belong to. Kernels know a condition by a value that the device library chooses: a restart has to get the
//! same ones.

use super::{Context, Making, Placement, Placer};
use crate::failure::{Failure, Result};
use crate::lock;
use backend::{Backend, RawTemplate};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use wire::{ContextId, CuError, GraphTemplateId};

/// How many conditions a restart makes to get at the value that one had.
const TRIES: usize = 1 << 12;

/// What it takes to make a condition again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ConditionRecord {
    /// Its context.
    pub ctx: ContextId,
    /// What it is at the beginning of each launch, if anybody says so.
    pub initial: Option<u32>,
    /// What kernels know it by.
    pub value: u64,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// What it takes to make a template again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TemplateRecord {
    /// Its handle.
    pub id: GraphTemplateId,
    /// Its conditions, in the order of their making.
    pub conditions: Vec<ConditionRecord>,
}

/// A live template; ended when the last user lets go.
pub struct Template {
    /// Its handle.
    pub id: GraphTemplateId,
    /// The context of its first condition.
    pub ctx: Arc<Context>,
    /// The backend's handle.
    pub raw: RawTemplate,
    conditions: Mutex<Vec<ConditionRecord>>,
    backend: Arc<dyn Backend>,
}

impl Template {
    /// A template without conditions.
    ///
    /// # Errors
    /// The backend's.
    pub fn make(backend: &Arc<dyn Backend>, ctx: &Arc<Context>, id: GraphTemplateId) -> Result<Arc<Self>> {
        let raw = backend.template_create(ctx.raw)?;
        let (ctx, backend) = (Arc::clone(ctx), Arc::clone(backend));
        Ok(Arc::new(Self { id, ctx, raw, conditions: Mutex::default(), backend }))
    }

    /// Adds a condition, and completes its record; gives what kernels know it by.
    ///
    /// # Errors
    /// The backend's.
    pub fn add(
        &self,
        placer: &Placer,
        ctx: &Arc<Context>,
        mut record: ConditionRecord,
        making: Making,
    ) -> Result<u64> {
        let initial = record.initial;
        record.value = placer.place_unseen(&mut record.placement, making, || {
            self.backend.template_condition(ctx.raw, self.raw, initial)
        })?;
        let value = record.value;
        lock(&self.conditions).push(record);
        Ok(value)
    }

    /// Whether kernels of the context know a condition of this template by that.
    #[must_use]
    pub fn has(&self, ctx: ContextId, value: u64) -> bool {
        lock(&self.conditions).iter().any(|condition| (condition.ctx, condition.value) == (ctx, value))
    }

    /// What it takes to make it again.
    #[must_use]
    pub fn record(&self) -> TemplateRecord {
        TemplateRecord { id: self.id, conditions: lock(&self.conditions).clone() }
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if let Err(error) = self.backend.template_destroy(self.ctx.raw, self.raw) {
            tracing::warn!(template = self.id.0, %error, "template of a graph not destroyed");
        }
    }
}

/// How a restart gets at the value of a condition whose template has others already, and so cannot be made anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Approach {
    /// By taking what comes: as it was when the program made it, if nothing of that time is gone.
    AsItComes,
    /// By having others take what comes until it is this one's turn, where a value that is free again is the next one's.
    WhenItIsDue,
}

/// What a restart has made on its way to the values it needs, to be let go of when it has them all.
pub struct TemplatePlaceholders {
    held: Vec<(Arc<Template>, u64)>,
    approach: Approach,
}

impl TemplatePlaceholders {
    /// None yet.
    #[must_use]
    pub fn new(approach: Approach) -> Self {
        Self { held: Vec::new(), approach }
    }

    /// Makes a condition of a template again, with the value it had. The template is made with its first.
    ///
    /// # Errors
    /// The backend's; `OPERATING_SYSTEM` when the value cannot be had.
    pub fn make_again(
        &mut self,
        placer: &Placer,
        ctx: &Arc<Context>,
        template: Option<&Arc<Template>>,
        (id, record): (GraphTemplateId, &ConditionRecord),
    ) -> Result<Arc<Template>> {
        let backend = &placer.backend;
        let wanted = record.value;
        let add = |template: &Template| template.add(placer, ctx, record.clone(), Making::Again);
        // The value may be in use here: free again, it is the next one's.
        self.held.retain(|(_, value)| *value != wanted);
        let Some(template) = template else {
            return self.find(wanted, || {
                let made = Template::make(backend, ctx, id)?;
                let value = add(&made)?;
                Ok((made, value))
            });
        };
        if self.approach == Approach::WhenItIsDue {
            drop(self.find(wanted, || {
                let made = Template::make(backend, ctx, id)?;
                let value = backend.template_condition(ctx.raw, made.raw, None)?;
                Ok((made, value))
            })?);
        }
        match add(template)? {
            found if found == wanted => Ok(Arc::clone(template)),
            found => Err(differs(found, wanted)),
        }
    }

    /// Makes templates with a condition each until one has the value `wanted`; keeps the others.
    fn find(
        &mut self,
        wanted: u64,
        make: impl Fn() -> Result<(Arc<Template>, u64)>,
    ) -> Result<Arc<Template>> {
        let mut found = 0;
        for _ in 0..TRIES {
            let (template, value) = make()?;
            if value == wanted {
                return Ok(template);
            }
            found = value;
            self.held.push((template, value));
        }
        Err(differs(found, wanted))
    }
}

fn differs(found: u64, wanted: u64) -> Failure {
    let detail = format!(
        "the device library calls it {found:#x} and not {wanted:#x} as before; restart with the same driver and device"
    );
    Failure::new(CuError::OPERATING_SYSTEM, detail)
}
