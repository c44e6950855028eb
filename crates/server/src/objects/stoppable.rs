//! What an image's marked kernels are launched as, so that they can be stopped half-way.

use cpt::{Kernel, Poll};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What every mark has in its text.
const MARK: &str = "\"cpt";

/// How marked kernels ask for the flag, to measure it: `every`, `count:N`, `adaptive`, `barrier`.
const POLL: &str = "DORMOUSE_POLL";

fn poll() -> Poll {
    let Ok(named) = std::env::var(POLL) else { return Poll::default() };
    named.parse().unwrap_or_else(|error| {
        tracing::warn!("{POLL}={named}: {error}");
        Poll::default()
    })
}

/// Code that is loaded in place of an image's, with twins of its marked kernels.
pub struct Stoppable {
    /// PTX.
    pub text: String,
    /// BLAKE3 of that: what is half-way in it can go on in no other.
    pub hash: [u8; 32],
    kernels: BTreeMap<String, Arc<Kernel>>,
}

impl Stoppable {
    /// What is made of PTX; none where no kernel is marked, or none of the marked ones can be stopped, which is told.
    #[must_use]
    pub fn of(ptx: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(ptx).ok().filter(|text| text.contains(MARK))?;
        let module = ptx::parse(text).inspect_err(|error| {
            tracing::warn!("device code with marked kernels is not understood, and a checkpoint waits for their end: {error}");
        });
        let made = cpt::rewrite_with(&module.ok()?, poll()).inspect_err(|error| {
            tracing::error!(
                "the twins of marked kernels are no PTX, and a checkpoint waits for their end: {error}"
            );
        });
        let made = made.ok()??;
        for refusal in &made.refusals {
            tracing::warn!("{refusal}; a checkpoint waits for its end");
        }
        if made.kernels.is_empty() {
            return None;
        }
        Some(Self {
            hash: *blake3::hash(made.text.as_bytes()).as_bytes(),
            text: made.text,
            kernels: made
                .kernels
                .into_iter()
                .map(|(name, kernel)| (name.to_string(), Arc::new(kernel)))
                .collect(),
        })
    }

    /// What is known of the kernel of that name, if it can be stopped.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.get(name)
    }

    /// Whether a kernel is one that the program does not know of.
    #[must_use]
    pub fn is_twin(&self, name: &str) -> bool {
        self.kernels.values().any(|kernel| &*kernel.twin == name)
    }
}

impl std::fmt::Debug for Stoppable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.kernels.keys()).finish()
    }
}
