//! `dormouse receive`: takes over jobs of other machines.

use super::continued::{self, Place, Question, Starting, Unstarted, Wanted, When};
use super::far_end::code;
use super::serve::{front_failure, say_where};
use super::store_access;
use crate::flags::{Arrival, Arrivals, Receive};
use checkpoint::{Chain, Failure, Kind};
use link::far_end::{FarEndError, FarEndOptions};
use link::{Front, FrontOptions, Keys, Service};
use serde::Serialize;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::Location;
use store::media::Dir;

/// How many connections may be there that have not said what they want, and how many clients.
const HALF_OPEN: usize = 64;
const CLIENTS: usize = 64;

/// Takes jobs over until it is ended. They live on.
pub fn run(flags: &Receive) -> Result<(), Failure> {
    host::check_privilege().map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    let place = place(&flags.arrivals)?;
    let program =
        std::env::current_exe().map_err(|error| Failure::of("cannot find this program's file", &error))?;
    let front = Front::bind(FrontOptions {
        listen: flags.listen,
        keys: Keys::default(),
        insecure_loopback: false,
        max_clients: CLIENTS,
        half_open: HALF_OPEN,
    })
    .map_err(front_failure)?;
    say_where(&front, &format!("taking over jobs, into {},", place.store))?;
    let served = front.run(|control| {
        let mut arrival = Command::new(&program);
        arrival.arg("arrival").arg("--store").arg(place.store.to_path()).arg("--output").arg(&place.output);
        for key in &place.keys {
            arrival.arg("--key").arg(key);
        }
        arrival.args(["--grace-ms", &flags.grace.as_millis().to_string()]);
        arrival.stdin(control).stdout(Stdio::null()).spawn()
    });
    served.map_err(front_failure)
}

fn place(flags: &Arrivals) -> Result<Place, Failure> {
    let access = store_access(&flags.store)?;
    let Location::Folder(folder) = access.at.clone().absolute() else {
        let message = format!(
            "jobs bring their images into a folder, which {} is not: name one with --store. Those whose store is there come with `migrate --shared-store`",
            access.at
        );
        return Err(Failure::new(Kind::Usage, message));
    };
    // Images are memory of processes: nobody else's to read.
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| Failure::of(format_args!("cannot make {}", folder.display()), &error))?;
    let output = std::path::absolute(&flags.output).unwrap_or_else(|_| flags.output.clone());
    Ok(Place { store: Location::Folder(folder), keys: access.key.files().to_vec(), output })
}

/// Serves one client.
pub fn arrival(flags: &Arrival) -> ExitCode {
    let options = FarEndOptions {
        service: Service::Jobs,
        insecure_loopback: false,
        // It starts what root starts.
        confinement: None,
        rdma: false,
        grace: Duration::from_millis(flags.grace_ms),
    };
    let ended = link::far_end::control().map_err(FarEndError::from).and_then(|control| {
        link::far_end(control, &options, |facts| {
            if !facts.quota.jobs {
                return Err(format!(
                    "its key may not bring jobs; to let it, type there:  dormouse keys authorize --jobs {} SHA256:…",
                    facts.name
                ));
            }
            let place = place(&flags.arrivals).map_err(|failure| failure.message)?;
            let name = facts.name.clone();
            // A restart reads it, of which nobody is to wait for a disk.
            let folder = Dir::new(&place.store.to_path()).cached();
            Ok(move |wires| {
                let begun = Begun::default();
                let served =
                    arrival::serve(wires, &folder, |question| answered(question, &name, &place, &begun));
                begun.give_up();
                if let Err(error) = served {
                    tracing::info!("a session of {name} ended: {}", Chain(&error));
                }
            })
        })
    });
    code(ended)
}

/// A job that has been begun here, whose image is on its way.
#[derive(Default)]
struct Begun(Mutex<Option<(Wanted, Starting)>>);

impl Begun {
    fn begin(&self, wanted: Wanted, place: &Place) -> Result<(), Failure> {
        wanted.check()?;
        self.give_up();
        let starting = continued::begin(&wanted, place, When::Arrived)?;
        *self.slot() = Some((wanted, starting));
        Ok(())
    }

    /// What was begun of this image.
    fn take(&self, image: &str) -> Option<Starting> {
        self.slot().take_if(|(wanted, _)| wanted.image == image).map(|(_, starting)| starting)
    }

    /// Nothing of it is left.
    fn give_up(&self) {
        if let Some((_, mut starting)) = self.slot().take() {
            starting.give_up();
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<(Wanted, Starting)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answered(question: &[u8], client: &str, place: &Place, begun: &Begun) -> Vec<u8> {
    match serde_json::from_slice(question) {
        Ok(Question::Check(wanted)) => {
            json(&wanted.check().and_then(|()| continued::check(&wanted, place, None)))
        }
        Ok(Question::Begin(wanted)) => json(&begun.begin(wanted, place)),
        Ok(Question::Start(wanted)) => {
            let checked = wanted.check().map_err(Unstarted::Failed);
            let started = checked.and_then(|()| match begun.take(&wanted.image) {
                Some(starting) => starting.finish(),
                None => continued::start(&wanted, place),
            });
            match &started {
                Ok(_) => tracing::warn!("job {} of {client} goes on here", wanted.job),
                Err(Unstarted::Failed(failure) | Unstarted::Unknown(failure)) => {
                    tracing::warn!("job {} of {client} does not go on here: {failure}", wanted.job);
                }
            }
            json(&started)
        }
        Err(error) => json(&Err::<(), _>(Failure::of("a question that makes no sense", &error))),
    }
}

fn json(answer: &impl Serialize) -> Vec<u8> {
    // What cannot be told is not understood there.
    serde_json::to_vec(answer).unwrap_or_default()
}
