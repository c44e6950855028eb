//! Continuing a job that has lost a GPU server (`--restart-on-failure`): this process becomes a `dormouse restart` of its newest image.

use crate::flags::{Cli, OnFailure, Restart};
use checkpoint::supervisor::Ended;
use checkpoint::{Failure, Kind, Newest};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;

/// What a restart is told anew, or not at all: a file that is written from the beginning has been.
const OWN: [&str; 8] =
    ["image", "name", "check", "json", "trace", "profile", "restart_on_failure", "fruitless"];

/// Begins the restart, if it is wanted and there is anything to restart; comes back where it is not, or cannot be had.
/// `from`: the image that the job was restarted from.
pub fn restart(ended: &Ended, wanted: &OnFailure, from: Option<&str>) {
    let (Some(most), true, Some(newest)) = (wanted.restart_on_failure, ended.lost, &ended.newest) else {
        return;
    };
    // It has come to its end all the same, or goes on elsewhere.
    let is_over =
        ended.ending.status().success() || ended.stopped_after.is_some() || ended.moved_to.is_some();
    if is_over {
        return;
    }
    let image = newest.image.to_string();
    // Whoever gets no further fails every time.
    let fruitless = if from == Some(image.as_str()) { wanted.fruitless.saturating_add(1) } else { 1 };
    if fruitless > most {
        eprintln!("dormouse: image {image} has been restarted {most} times without another: giving up");
        return;
    }
    let cli = Cli::command();
    let given = cli.clone().get_matches();
    let (Some((_, given)), Some(restart)) = (given.subcommand(), cli.find_subcommand("restart")) else {
        return;
    };
    let mut words = vec!["restart".into()];
    words.extend(common(given, restart, newest));
    words.extend([
        format!("--name={}", ended.job).into(),
        format!("--restart-on-failure={most}").into(),
        format!("--fruitless={fruitless}").into(),
        image.clone().into(),
    ]);
    eprintln!("dormouse: continuing from image {image}");
    let program = std::env::current_exe();
    let error = match program {
        // It comes back only where it fails.
        Ok(program) => std::process::Command::new(program).args(words).exec(),
        Err(error) => error,
    };
    eprintln!("dormouse: cannot continue: {error}");
}

/// The command with which somebody continues the image of such a restart that has failed.
pub fn by_hand(flags: &Restart) -> Option<String> {
    let image = flags.image.parse().ok().filter(|_| flags.on_failure.fruitless > 0)?;
    let (store, keys) = (flags.store.store.clone(), flags.store.keys.key.clone());
    Some(Newest { image, reference: flags.image.clone(), store, keys }.command())
}

/// Opens the image that such a restart continues. Nobody is there to try again, so that is done for as long as others have the store to themselves, which
/// each try waits for by itself.
pub fn open_when_free<T>(mut open: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut told = false;
    loop {
        match open() {
            Err(busy) if busy.kind == Kind::Busy => {
                if !std::mem::replace(&mut told, true) {
                    eprintln!("dormouse: the restart waits: {busy}");
                }
            }
            opened => return opened,
        }
    }
}

/// The flags of this command that a restart takes, too, as they were given.
fn common(given: &ArgMatches, restart: &Command, newest: &Newest) -> Vec<OsString> {
    let is_elsewhere = newest.store.is_some();
    let mut words = repeated(given, restart, |id| !(OWN.contains(&id) || id == "store" && is_elsewhere));
    if let Some(store) = &newest.store {
        words.push(format!("--store={store}").into());
    }
    words
}

/// Those flags of `command`, among them that are `taken`, that were given, as they were.
pub fn repeated(given: &ArgMatches, command: &Command, taken: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut words = Vec::new();
    for flag in command.get_arguments() {
        let (id, Some(long)) = (flag.get_id().as_str(), flag.get_long()) else { continue };
        if !taken(id) {
            continue;
        }
        let was_given = given.try_contains_id(id).unwrap_or(false)
            && given.value_source(id) == Some(ValueSource::CommandLine);
        if !was_given {
            continue;
        }
        if !flag.get_action().takes_values() {
            words.push(format!("--{long}").into());
            continue;
        }
        for value in given.get_raw(id).into_iter().flatten() {
            let mut word = OsString::from(format!("--{long}="));
            word.push(value);
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_waits_for_its_store_and_for_nothing_else() {
        for (then, tries) in [(Ok(()), 3), (Err(Kind::Damaged), 3)] {
            let mut left = tries;
            let opened = open_when_free(|| {
                left -= 1;
                let kind = if left > 0 { Err(Kind::Busy) } else { then };
                kind.map_err(|kind| Failure::new(kind, "images are being removed"))
            });
            assert_eq!((opened.map_err(|failure| failure.kind), left), (then, 0));
        }
    }

    #[test]
    fn a_restart_is_told_what_the_run_was() {
        let newest = |store: Option<&str>| Newest {
            image: image::ImageId([7; 16]),
            reference: "job".into(),
            store: store.map(|store| store::Location::Folder(store.into())),
            keys: Vec::new(),
        };
        let words = |line: &str, newest: &Newest| {
            let cli = Cli::command();
            let given = cli.clone().get_matches_from(line.split(' '));
            let (_, given) = given.subcommand().unwrap();
            let words = common(given, cli.find_subcommand("restart").unwrap(), newest);
            let mut words: Vec<_> = words.into_iter().map(|word| word.into_string().unwrap()).collect();
            words.sort();
            words.join(" ")
        };
        let run = "dormouse run --name a --store /s --device soft --every 5s --keep-last 2 --profile p --managed shadow -- prog --every 9s";
        assert_eq!(
            words(run, &newest(None)),
            "--device=soft --every=5s --keep-last=2 --managed=shadow --store=/s"
        );
        let restart = "dormouse restart --lazy --store /s --visible-devices 1,0 --restart-on-failure=2 --fruitless 1 0707";
        assert_eq!(words(restart, &newest(Some("/other"))), "--lazy --store=/other --visible-devices=1,0");
    }
}
