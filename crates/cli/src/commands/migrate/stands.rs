//! How far a migration is, for whoever interrupts it.

use super::locked;
use crate::flags::{Destination, Migrate};
use checkpoint::Failure;
use checkpoint::runtime::{self, JobFacts};
use host::signals;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// How far it is.
#[derive(Default)]
pub struct Stands {
    /// The images that were taken ahead and are of no use but to the migration.
    pub ahead: Vec<String>,
    /// Whether such are being removed.
    pub forgets: bool,
    pub course: Course,
}

/// Where the job runs.
#[derive(Default)]
pub enum Course {
    /// Here, if anywhere.
    #[default]
    Stays,
    /// There, from now on or soon, or here.
    Goes(String),
    /// There.
    Gone(String),
}

/// Has whoever waits no longer told what becomes of the job.
pub fn tell_at_end(root: &Path, job: &JobFacts, flags: &Migrate) -> Result<Arc<Mutex<Stands>>, Failure> {
    let stands = Arc::new(Mutex::new(Stands::default()));
    let (seen, root, job) = (Arc::clone(&stands), root.to_owned(), job.clone());
    let elsewhere = match (&flags.to, flags.shared_store) {
        (Destination::There(address), false) => Some(address.machine()),
        _ => None,
    };
    let moved = Moved {
        name: job.job.clone(),
        store: job.store.to_string(),
        new_name: flags.name.clone().unwrap_or_else(|| job.job.clone()),
        elsewhere,
    };
    let words = move || {
        let stands = locked(&seen);
        let runs = runtime::find(&root, &job.job).is_ok_and(|found| found.supervisor == job.supervisor);
        for line in moved.last_words(&stands, runs) {
            // Whoever is to read it may be gone.
            let _ = writeln!(io::stderr(), "dormouse: {line}");
        }
        // This process ends now, with what it knows.
        std::mem::forget(stands);
    };
    signals::last_words(words).map_err(|error| Failure::of("signals cannot be waited for", &error))?;
    Ok(stands)
}

/// A job that is being moved, in words.
struct Moved {
    name: String,
    store: String,
    /// What it is to be called there.
    new_name: String,
    /// The machine where what was taken ahead lies, too.
    elsewhere: Option<String>,
}

impl Moved {
    /// What becomes of it, of which this machine knows whether it `runs` here, and of what was taken ahead; a sentence a line.
    fn last_words(&self, stands: &Stands, runs: bool) -> Vec<String> {
        let Self { name, store, new_name, elsewhere } = self;
        let mut lines = vec![match &stands.course {
            Course::Stays if runs => format!("job {name} is not moved, and goes on where it was"),
            Course::Stays => format!("job {name} is not moved, and has ended; its images are in {store}"),
            Course::Goes(place) => format!(
                "job {name} runs at {place} soon, as {new_name}, or goes on where it was, or ends: `dormouse ps` says so here and there; its last image is in {store}"
            ),
            Course::Gone(place) => format!("job {new_name} runs at {place}"),
        }];
        // Of a job that has ended they may be all that is left.
        let are_of_no_use = runs || !matches!(stands.course, Course::Stays);
        if are_of_no_use && !stands.forgets {
            let stay = "images that were taken ahead stay, one that is just ready included: `dormouse ls` shows them";
            lines.push(stay.to_owned());
            if !stands.ahead.is_empty() {
                let too = elsewhere
                    .as_ref()
                    .map_or(String::new(), |machine| format!(", and the same at {machine}"));
                let images = stands.ahead.join(" ");
                lines.push(format!("to remove those before: 'dormouse rm --store {store} {images}'{too}"));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(elsewhere: Option<&str>) -> Moved {
        Moved {
            name: "train".to_owned(),
            store: "/store".to_owned(),
            new_name: "again".to_owned(),
            elsewhere: elsewhere.map(str::to_owned),
        }
    }

    fn stands(course: Course, ahead: &[&str]) -> Stands {
        Stands { ahead: ahead.iter().map(|&image| image.to_owned()).collect(), forgets: false, course }
    }

    fn place() -> String {
        "node2:7071".to_owned()
    }

    #[test]
    fn a_job_that_stays_is_told_as_that_and_what_is_of_no_use_any_more() {
        let stays =
            |ahead: &[&str], elsewhere| moved(elsewhere).last_words(&stands(Course::Stays, ahead), true);
        let [job, images] = &stays(&[], None)[..] else { panic!("nothing is known by name") };
        assert_eq!(job, "job train is not moved, and goes on where it was");
        assert!(images.contains("one that is just ready included"), "{images}");
        assert_eq!(
            stays(&["one", "two"], None)[2],
            "to remove those before: 'dormouse rm --store /store one two'"
        );
        let there = &stays(&["one"], Some("node2"))[2];
        assert!(there.ends_with("'dormouse rm --store /store one', and the same at node2"), "{there}");
    }

    /// A job that has ended by itself, or whose supervisor was killed: what was taken ahead may be all that is left, and nobody is told to remove it.
    #[test]
    fn what_is_left_of_a_lost_job_is_kept() {
        let words = moved(Some("node2")).last_words(&stands(Course::Stays, &["one"]), false);
        assert_eq!(words, ["job train is not moved, and has ended; its images are in /store"]);
    }

    #[test]
    fn of_a_job_that_goes_it_is_told_where_to_look() {
        for runs in [true, false] {
            let words = moved(None).last_words(&stands(Course::Goes(place()), &["one"]), runs);
            for word in
                ["train runs at node2:7071 soon, as again", "or ends", "`dormouse ps`", "image is in /store"]
            {
                assert!(words[0].contains(word), "{word}: {}", words[0]);
            }
            assert_eq!(words.len(), 3, "{words:?}");
        }
    }

    #[test]
    fn of_a_job_that_is_gone_only_what_is_not_removed_yet_is_told() {
        let gone = stands(Course::Gone(place()), &["one"]);
        let words = moved(None).last_words(&gone, false);
        assert_eq!((&*words[0], words.len()), ("job again runs at node2:7071", 3));
        let forgets = Stands { forgets: true, ..gone };
        assert_eq!(moved(None).last_words(&forgets, false), ["job again runs at node2:7071"]);
    }
}
