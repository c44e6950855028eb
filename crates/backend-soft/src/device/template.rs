//! Graphs that conditions belong to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use backend::{RawContext, RawTemplate, Result};
use wire::CuError;

use super::backend::{Of, SoftBackend};
use crate::conditions::{Condition, Conditions};

/// A graph that conditions belong to; they end with it.
pub struct Template {
    all: Arc<Conditions>,
    own: Mutex<Vec<u64>>,
    /// Whether there is an executable graph made of it.
    made: AtomicBool,
}

impl Template {
    /// A condition of its own.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other.
    pub fn condition(&self, handle: u64) -> Result<Arc<Condition>> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.iter()
            .find(|own| **own == handle)
            .and_then(|own| self.all.get(*own))
            .ok_or(CuError::INVALID_VALUE)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        for handle in self.own.get_mut().unwrap_or_else(PoisonError::into_inner) {
            self.all.remove(*handle);
        }
    }
}

/// The right to make an executable graph of a template: nobody else has it.
pub struct Made(Arc<Of<Template>>);

impl Made {
    /// Takes it.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is a graph made of it.
    pub fn of(template: Arc<Of<Template>>) -> Result<Self> {
        match template.object.made.swap(true, Ordering::AcqRel) {
            true => Err(CuError::INVALID_VALUE),
            false => Ok(Self(template)),
        }
    }

    /// The template.
    pub fn template(&self) -> &Template {
        &self.0.object
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.0.object.made.store(false, Ordering::Release);
    }
}

impl backend::Conditions for SoftBackend {
    fn template_create(&self, ctx: RawContext) -> Result<RawTemplate> {
        self.context(ctx)?.context.check()?;
        let object =
            Template { all: self.conditions.clone(), own: Mutex::default(), made: AtomicBool::new(false) };
        Ok(RawTemplate(self.templates.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    fn template_condition(
        &self,
        ctx: RawContext,
        template: RawTemplate,
        initial: Option<u32>,
    ) -> Result<u64> {
        self.context(ctx)?.context.check()?;
        let template = self.templates.get(template.0)?;
        let handle = self.conditions.add(initial);
        template.object.own.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(handle)
    }

    fn template_destroy(&self, _ctx: RawContext, template: RawTemplate) -> Result<()> {
        self.templates.remove(template.0).map(drop)
    }
}
