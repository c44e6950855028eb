//! Long sequences in which loops are told once: steps, and bodies with how often they came, nested.

use std::collections::HashMap;
use std::hash::Hash;

/// Loops within loops, at most so deep.
pub const MAX_DEPTH: usize = 6;
/// Longer bodies are not looked for.
const MAX_BODY: usize = 4096;
/// So many steps back a repetition is looked for.
const HORIZON: usize = 1 << 16;

/// What a sequence is made of.
pub trait Step: Copy + Eq + Hash {
    /// How long after the step before it, in nanoseconds.
    fn after(&self) -> u64;
}

/// A step, or a loop of them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node<S> {
    /// One.
    Step(S),
    /// These, so many times.
    Loop {
        /// What is repeated.
        body: Vec<Node<S>>,
        /// How often.
        times: u32,
    },
}

/// A sequence of steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs<S> {
    nodes: Vec<Node<S>>,
    len: u64,
    span: u64,
}

impl<S> Default for Runs<S> {
    fn default() -> Self {
        Self { nodes: Vec::new(), len: 0, span: 0 }
    }
}

impl<S: Step> Runs<S> {
    /// None if steps or nanoseconds are more than 64 bits tell, or loops are nested deeper than [`MAX_DEPTH`].
    #[must_use]
    pub fn new(nodes: Vec<Node<S>>) -> Option<Self> {
        let (len, span) = measure(&nodes, 0)?;
        Some(Self { nodes, len, span })
    }

    /// The nodes, for whoever writes them.
    #[must_use]
    pub fn nodes(&self) -> &[Node<S>] {
        &self.nodes
    }

    /// How many steps.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When the last step is, in nanoseconds.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.span
    }

    /// Each step in turn, with its time.
    pub fn each(&self, mut see: impl FnMut(u64, &S)) {
        let mut now = 0;
        walk(&self.nodes, &mut |step| {
            now += step.after();
            see(now, step);
        });
    }
}

fn walk<S>(nodes: &[Node<S>], see: &mut impl FnMut(&S)) {
    for node in nodes {
        match node {
            Node::Step(step) => see(step),
            Node::Loop { body, times } => (0..*times).for_each(|_| walk(body, see)),
        }
    }
}

/// Steps and nanoseconds.
fn measure<S: Step>(nodes: &[Node<S>], depth: usize) -> Option<(u64, u64)> {
    nodes.iter().try_fold((0_u64, 0_u64), |(len, span), node| {
        let (more, longer) = match node {
            Node::Step(step) => (1, step.after()),
            Node::Loop { body, times } if depth < MAX_DEPTH => {
                let (len, span) = measure(body, depth + 1)?;
                (len.checked_mul(u64::from(*times))?, span.checked_mul(u64::from(*times))?)
            }
            Node::Loop { .. } => return None,
        };
        Some((len.checked_add(more)?, span.checked_add(longer)?))
    })
}

/// Makes [`Runs`] of steps that come one after another. In a loop, a step costs one comparison.
#[derive(Debug)]
pub struct Builder<S> {
    folder: Folder<S>,
}

impl<S: Step> Default for Builder<S> {
    fn default() -> Self {
        Self { folder: Folder::new() }
    }
}

impl<S: Step> Builder<S> {
    /// The next step.
    pub fn push(&mut self, step: S) {
        self.folder.push(Node::Step(step));
    }

    /// All of them. Loops whose bodies hold loops are found here.
    #[must_use]
    pub fn finish(self) -> Option<Runs<S>> {
        let mut nodes = self.folder.finish();
        for _ in 1..MAX_DEPTH {
            let before = nodes.len();
            let mut folder = Folder::new();
            nodes.into_iter().for_each(|node| folder.push(node));
            nodes = folder.finish();
            if nodes.len() == before {
                break;
            }
        }
        Runs::new(nodes)
    }
}

/// Finds what comes twice in a row, one level of it.
#[derive(Debug)]
struct Folder<S> {
    out: Vec<Node<S>>,
    /// What of `out` may still become a loop, and where each node of it was last.
    fresh: usize,
    last: HashMap<Node<S>, usize>,
    open: Option<Open<S>>,
}

/// A loop that goes on.
#[derive(Debug)]
struct Open<S> {
    body: Vec<Node<S>>,
    times: u32,
    /// So much of its body has come again.
    at: usize,
}

impl<S: Step> Folder<S> {
    fn new() -> Self {
        Self { out: Vec::new(), fresh: 0, last: HashMap::new(), open: None }
    }

    fn push(&mut self, node: Node<S>) {
        if let Some(open) = &mut self.open {
            if open.body[open.at] == node && open.times < u32::MAX {
                open.at += 1;
                if open.at == open.body.len() {
                    (open.at, open.times) = (0, open.times + 1);
                }
                return;
            }
            self.close();
        }
        self.alone(node);
    }

    fn close(&mut self) {
        let Some(Open { body, times, at }) = self.open.take() else { return };
        let rest = body[..at].to_vec();
        self.out.push(Node::Loop { body, times });
        self.forget();
        // A part of a body has been looked through already.
        self.out.extend(rest);
    }

    fn forget(&mut self) {
        self.fresh = self.out.len();
        self.last.clear();
    }

    fn alone(&mut self, node: Node<S>) {
        if self.out.len() - self.fresh >= HORIZON {
            self.forget();
        }
        let here = self.out.len();
        let before = self.last.insert(node.clone(), here);
        self.out.push(node);
        let Some(len) = before.map(|before| here - before).filter(|len| *len <= MAX_BODY) else { return };
        let end = self.out.len();
        if end - self.fresh < 2 * len || self.out[end - 2 * len..end - len] != self.out[end - len..] {
            return;
        }
        let body = self.out.split_off(end - len);
        self.out.truncate(end - 2 * len);
        self.open = Some(Open { body, times: 2, at: 0 });
    }

    fn finish(mut self) -> Vec<Node<S>> {
        self.close();
        self.out
    }
}
