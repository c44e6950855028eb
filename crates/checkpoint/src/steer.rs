//! Checkpoints at boundaries that the program comes to: one prepares when it is near, and closes the gate when it is there.

use crate::cut::Servers;
use crate::error::Failure;
use crate::sessions::Sessions;
use plan::follow::Passed;
use server::control::{Answer, Ask, Course};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often one looks how near the next boundary is.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// A planned boundary that was near and is not there after so long, or twice as long as in the profile, is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether something is in the way.
const TURN: Duration = Duration::from_millis(200);

/// What GPU servers are asked to watch.
#[derive(Clone, Debug, Default)]
pub struct Watching {
    /// The profile of session 1; that of session N is its name and `.N`.
    pub profile: Option<PathBuf>,
    /// By what the program is steered.
    pub course: Option<Course>,
}

impl Watching {
    /// What session `number` is asked, if anything.
    pub(crate) fn ask(&self, number: u32, passed: Option<Passed>) -> Option<Ask> {
        let profile = self.profile.as_ref().map(|file| {
            let mut name = file.clone().into_os_string();
            if number != 1 {
                name.push(format!(".{number}"));
            }
            PathBuf::from(name).as_path().into()
        });
        let course = self.course.clone();
        (profile.is_some() || course.is_some()).then_some(Ask::Watch { profile, course, passed })
    }
}

/// When a gate is to be closed.
#[derive(Debug)]
pub struct Moment {
    /// The session that comes to the boundary.
    session: u32,
    /// No later than that.
    until: Instant,
    /// Whether nothing yet that the program did is in its plan.
    strange: bool,
    /// When it was there.
    reached: OnceLock<Instant>,
}

impl Moment {
    /// Whether nothing yet that the program did is in its plan.
    pub(crate) fn is_strange(&self) -> bool {
        self.strange
    }

    /// When it was there, if it has been.
    pub(crate) fn reached(&self) -> Option<Instant> {
        self.reached.get().copied()
    }
}

/// The moment of the next checkpoint, if it is near: the first session that has launched a kernel is the one that counts. At `limit` it is there.
pub(crate) fn approach(sessions: &Sessions, limit: Instant, is_planned: bool) -> Option<Moment> {
    let approaches = sessions.all().into_iter().filter_map(|session| {
        match session.server().ask(&Ask::Approach, &mut |_, _| {}) {
            Ok(Answer::Approach(approach)) => Some((session.record.number, approach)),
            // It is gone, or will be said to be by whoever looks after it.
            _ => None,
        }
    });
    let (session, approach) = approaches.into_iter().find(|(_, approach)| approach.boundaries > 0)?;
    let now = Instant::now();
    (approach.near || now >= limit).then(|| Moment {
        session,
        strange: approach.strange,
        until: if is_planned { limit.min(now + patience(approach.lead_ms)) } else { limit },
        reached: OnceLock::new(),
    })
}

fn patience(lead_ms: u64) -> Duration {
    PATIENCE.max(Duration::from_millis(lead_ms.saturating_mul(2)))
}

/// Waits until the moment is there; false when something is in the way before.
///
/// # Errors
/// When the server does not answer.
pub(crate) fn wait(
    moment: &Moment,
    servers: &mut Servers<'_>,
    is_in_the_way: impl Fn() -> bool,
) -> Result<bool, Failure> {
    let Some(server) = servers.iter_mut().find(|server| server.session() == moment.session) else {
        return Ok(true);
    };
    loop {
        let rest = moment.until.saturating_duration_since(Instant::now());
        let within = rest.min(TURN);
        let ask = Ask::Await { within_ms: within.as_millis() as u64 };
        match server.ask(&ask, &mut |_, _| {})? {
            Answer::Come { come } if come || rest <= TURN => {
                // The first time counts, where the gate has to be closed again.
                moment.reached.get_or_init(Instant::now);
                return Ok(true);
            }
            Answer::Come { .. } if is_in_the_way() => return Ok(false),
            Answer::Come { .. } => {}
            other => return Err(server.unexpected(&other)),
        }
    }
}
