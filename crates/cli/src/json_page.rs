//! `docs/json.md` against what the commands print.
#![allow(clippy::unwrap_used)]

use crate::commands::{
    copy, devices, diff, doctor, images, keys, migrate, plan, profile, prune, ps, restart, rm,
};
use crate::flags;
use checkpoint::admin::{Report, ResumeReport, SuspendReport};
use checkpoint::runtime::{Filled, JobFacts, Sleep};
use checkpoint::{Failure, Kind};
use image::{
    Command, DeviceFacts, DeviceOrdinal, FileAction, HostFacts, JobFile, Lineage, Manifest, MappedFile,
    ObjectKind,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use store::{Location, Store, WriteOptions};

const PAGE: &str = include_str!("../../../docs/json.md");

/// Fields and their kinds.
type Fields = BTreeMap<String, BTreeSet<&'static str>>;

fn collect(path: &str, value: &Value, fields: &mut Fields) {
    let kind = match value {
        Value::Object(all) => {
            for (name, value) in all {
                // Of these, the names are data.
                let name = if path.ends_with(".texts") || path.ends_with(".numbers") { "*" } else { name };
                let dot = if path.is_empty() { "" } else { "." };
                collect(&format!("{path}{dot}{name}"), value, fields);
            }
            return;
        }
        Value::Array(all) => {
            all.iter().for_each(|value| collect(&format!("{path}[]"), value, fields));
            return;
        }
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "text",
    };
    fields.entry(path.to_owned()).or_default().insert(kind);
}

/// What the page says in the section with this heading.
fn documented(heading: &str) -> Fields {
    let (_, section) =
        PAGE.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("{heading} is missing"));
    let section = section.split("\n## ").next().unwrap();
    let mut fields = Fields::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (name, rest) = row.split_once("` | ").unwrap();
        let (kind, _) = rest.split_once(" |").unwrap();
        let kinds = kind
            .split(" or ")
            .map(|kind| ["text", "number", "bool", "null"].into_iter().find(|k| *k == kind).unwrap());
        assert!(fields.insert(name.to_owned(), kinds.collect()).is_none(), "{name} is there twice");
    }
    fields
}

/// Checks a section against samples that have every field between them, and null wherever that can be.
fn check(heading: &str, samples: &[&dyn erased::Json], and: Fields) {
    let (mut printed, mut page) = (Fields::new(), documented(heading));
    page.extend(and);
    samples.iter().for_each(|sample| collect("", &sample.json(), &mut printed));
    assert_eq!(printed, page, "{heading}");
}

mod erased {
    use super::{Serialize, Value};

    pub trait Json {
        fn json(&self) -> Value;
    }

    impl<T: Serialize> Json for T {
        fn json(&self) -> Value {
            serde_json::to_value(self).unwrap()
        }
    }
}

fn manifest() -> Manifest {
    let command = Command { args: vec!["train".into()], cwd: "/srv".into() };
    let device = DeviceFacts {
        ordinal: DeviceOrdinal(0),
        backend: "soft".into(),
        name: "device".into(),
        uuid: [7; 16],
        compute_capability: 90,
        total_memory: 1,
        driver_version: 13000,
    };
    let file =
        |build_id: Option<Vec<u8>>, hash| MappedFile { path: "/bin/train".into(), size: 1, build_id, hash };
    Manifest {
        host: HostFacts { cpu_features: vec!["sse2".into()], ..HostFacts::default() },
        devices: vec![device],
        command,
        job_files: vec![JobFile { path: "/srv/log".into(), len: 1, action: FileAction::Truncate }],
        mapped_files: vec![file(Some(vec![1]), None), file(None, Some([1; 32]))],
        ..Manifest::new("job")
    }
}

fn publish(store: &Store, manifest: Manifest, byte: u8) -> String {
    let draft = store.begin().unwrap();
    let writer = draft.writer(&WriteOptions::default()).unwrap();
    writer.put(ObjectKind::HostRecord, &[byte; 5000]).unwrap();
    draft.publish(manifest, vec![writer.finish().unwrap()]).unwrap().id.to_string()
}

fn truncate(path: &Path, length: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// The images that cannot be read.
fn listed_damage(store: &Store) -> Vec<image::ImageId> {
    store.list().unwrap().damaged.into_iter().map(|image| image.image).collect()
}

#[test]
fn images_are_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(folder.path()).unwrap();
    let json = || flags::Json { json: true };
    let place = || flags::Store {
        store: Some(Location::Folder(folder.path().to_owned())),
        keys: flags::Keys::default(),
    };
    let first = publish(&store, manifest(), 1);
    let second = publish(&store, Manifest { parent: Some(first.parse().unwrap()), ..manifest() }, 2);
    let of = |image: &str| flags::Image { image: image.to_owned(), store: place(), json: json() };
    let [details, later] = [&first, &second].map(|image| images::inspect(&of(image)).unwrap());
    let verify = |quick| {
        let (image, store, json) = (Some(first.clone()), place(), json());
        images::verify(&flags::Verify { image, quick, read_data: !quick, store, json }).unwrap()
    };
    let [whole, there] = [false, true].map(verify);
    // From nothing in common to something, and back.
    let differ = |a: &str, b: &str| {
        let (a, b) = (a.to_owned(), b.to_owned());
        diff::run(&flags::Diff { a, b, store: place(), json: json() }).unwrap()
    };
    let draft = store.begin().unwrap();
    let empty = draft.publish(manifest(), Vec::new()).unwrap().id.to_string();
    let diffs = [differ(&first, &second), differ(&first, &empty), differ(&empty, &first)];
    check("`dormouse diff`", &diffs.each_ref().map(|diff| diff as &dyn erased::Json), Fields::new());
    let rm = |image: &str, dry_run: bool| {
        let images = vec![image.to_owned()];
        rm::run(&flags::Rm { images, max_unused: 0.1, dry_run, store: place(), json: json() })
    };
    rm(&empty, false).unwrap();
    let pruned = |keep_last: u32| {
        let keep = flags::Prune {
            job: None,
            keep_last,
            keep_hourly: 0,
            keep_daily: 0,
            keep_weekly: 0,
            keep_monthly: 0,
            max_unused: 0.1,
            dry_run: true,
            store: place(),
            json: json(),
        };
        prune::run(&keep).unwrap()
    };
    let of_sound_store = pruned(1);
    for entry in fs::read_dir(folder.path().join("packs")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        // In the first frame, and at the end.
        bytes[70] ^= 1;
        bytes.truncate(bytes.len() - 20);
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    let damaged = verify(false);
    check("`dormouse verify`", &[&whole, &there, &damaged], Fields::new());
    let all = flags::Verify { image: None, quick: false, read_data: false, store: place(), json: json() };
    let mut all = serde_json::to_value(images::verify(&all).unwrap()).unwrap();
    assert_eq!(all["ok"], false);
    let reports = std::mem::take(&mut all["images"]);
    let reports = reports.as_array().unwrap();
    assert_eq!(reports.len(), 2);
    let reports: Vec<&dyn erased::Json> = reports.iter().map(|report| report as _).collect();
    check("`dormouse verify`", &reports, Fields::new());
    for length in [200, 70] {
        truncate(&folder.path().join(format!("images/{}.img", publish(&store, manifest(), 3))), length);
    }
    let full = || {
        let why = store::Kept { why: store::KeptWhy::Medium, message: "the disk is full".to_owned() };
        store::Removal { not_rewritten: Some(why), ..Default::default() }
    };
    check(
        "`dormouse rm`",
        &[
            &rm(&first[..8], true).unwrap(),
            &rm::Removed {
                removal: store.would_remove(&listed_damage(&store)).unwrap(),
                dry_run: true,
                max_unused: 0.1,
            },
            &rm::Removed { removal: full(), dry_run: false, max_unused: 0.1 },
        ],
        Fields::new(),
    );
    let of_rm = documented("`dormouse rm`").into_iter().collect();
    let of_full_store = prune::Answer {
        kept_images: Vec::new(),
        lacking: Vec::new(),
        removed: rm::Removed { removal: full(), dry_run: false, max_unused: 0.1 },
    };
    check("`dormouse prune`", &[&of_sound_store, &pruned(1), &of_full_store], of_rm);
    let copy = |dry_run| {
        let (from, to) = (folder.path().to_owned(), folder.path().join("other"));
        let [from, to] = [from, to].map(store::Location::Folder);
        let (images, job, encrypt) = (Vec::new(), Vec::new(), Vec::new());
        let (plain, keys, json) = (false, flags::Keys::default(), json());
        copy::run(&flags::Copy { from, to, images, job, encrypt, plain, keys, dry_run, json }).unwrap()
    };
    let gone = store::CopyReport { gone: vec![first.parse().unwrap()], ..Default::default() };
    let without_one = copy::Copied { report: gone, dry_run: false, named: Vec::new() };
    check("`dormouse copy`", &[&copy(true), &without_one], Fields::new());
    let listed = images::ls(&flags::Ls { job: None, store: place(), json: json() }).unwrap();
    check("`dormouse ls`", &[&listed], Fields::new());
    let of_ls = documented("`dormouse ls`");
    let summary = of_ls
        .into_iter()
        .filter_map(|(name, kinds)| Some((name.strip_prefix("images[].")?.to_owned(), kinds)));
    check("`dormouse inspect`", &[&details, &later], summary.collect());
}

#[test]
fn jobs_are_as_documented() {
    let facts = |restarted_from: Option<String>, filling: Option<Filled>| JobFacts {
        job: "train".into(),
        lineage: Lineage([1; 16]),
        supervisor: 7,
        started_ns: 1,
        command: vec!["train".into()],
        device: "soft".into(),
        managed: server::memory::Managed::default(),
        store: Location::Folder("/store".into()),
        recipients: Vec::new(),
        restarted_from,
        filling,
        sleep: filling.map(|_| Sleep { since_ns: 1, bytes: 1, stored: 1, gpus: None }),
    };
    let jobs = ps::Jobs::from(vec![
        facts(None, None),
        facts(Some("1".repeat(32)), Some(Filled { done: 1, total: 2 })),
    ]);
    check("`dormouse ps`", &[&jobs], Fields::new());
    let report = Report {
        image: String::new(),
        job: String::new(),
        retries: 0,
        total_ms: 1.0,
        drain_ms: 1.0,
        stall_ms: 1.0,
        device_ms: 1.0,
        shared_ms: 1.0,
        host_ms: 1.0,
        write_ms: 1.0,
        rehearsed: true,
        bytes: 1,
        data_bytes: 1,
        device_bytes: 1,
        unchanged: 1,
        device_excluded: 1,
        copied_on_device: 1,
        copied_on_host: 1,
        private_forked: 1,
        private_copied: 1,
        private_withheld: 1,
        shared_copied: 1,
        private_excluded: 1,
        half_way: 1,
        written: 1,
        warnings: vec![String::new()],
    };
    check("`dormouse checkpoint`", &[&report], Fields::new());
    let suspended = SuspendReport {
        job: String::new(),
        retries: 0,
        total_ms: 1.0,
        drain_ms: 1.0,
        copy_ms: 1.0,
        device_bytes: 1,
        host_bytes: 1,
        store_bytes: 1,
        warnings: vec![String::new()],
    };
    check("`dormouse suspend`", &[&suspended], Fields::new());
    let resumed = ResumeReport { job: String::new(), asleep_ms: 1.0, total_ms: 1.0, sessions: 1, gpus: None };
    let elsewhere = ResumeReport { gpus: Some(String::new()), ..resumed.clone() };
    check("`dormouse resume`", &[&resumed, &elsewhere], Fields::new());
    let restartable = restart::Restartable {
        image: String::new(),
        job: String::new(),
        device: String::new(),
        warnings: vec![String::new()],
    };
    check("`dormouse restart --check`", &[&restartable], Fields::new());
}

#[test]
fn plans_are_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let made = ::plan::synthetic::multigrid(20, 3).unwrap();
    fs::write(file("x.profile"), ::plan::format::encode(&made)).unwrap();
    let parse = |args: &[&str]| {
        let all = [&["dormouse"][..], args].concat();
        <flags::Cli as clap::Parser>::try_parse_from(all).unwrap().command
    };
    let shown = |name: &str| {
        let flags::Command::Profile(flags::Profile { command: flags::ProfileCommand::Show(flags) }) =
            parse(&["profile", "show", &file(name)])
        else {
            panic!()
        };
        profile::show(&flags)
    };
    fs::write(file("none.profile"), ::plan::format::encode(&::plan::profile::Profile::default())).unwrap();
    let [full, empty] = ["x.profile", "none.profile"].map(|name| shown(name).unwrap());
    check("`dormouse profile show`", &[&full, &empty], Fields::new());

    let planned = |more: &[&str]| {
        let profile = file("x.profile");
        let args = [&["plan", &profile, "--mtbf-gpu", "60s", "--mtbf-cpu", "90s"][..], more].concat();
        let flags::Command::Plan(flags) = parse(&args) else { panic!() };
        plan::run(&flags)
    };
    let (plan_file, chart) = (file("x.plan"), file("x.html"));
    let apart = planned(&["--model", "async", "-o", &plan_file, "--chart", &chart]).unwrap();
    let soonest = planned(&["--least", "run-time", "--simulate", "2"]).unwrap();
    // None of these was done in time.
    let hopeless = ["--restart-time", "1h", "--simulate", "1", "--least", "run-time"];
    let hopeless = planned(&hopeless).unwrap();
    check("`dormouse plan`", &[&apart, &soonest, &hopeless], Fields::new());
    // What was written is what was printed.
    let read = ::plan::planfile::Plan::from_json(&fs::read(plan_file).unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&apart).unwrap()["parts"], serde_json::to_value(&read.parts).unwrap());
    assert!(fs::read_to_string(chart).unwrap().contains("<svg"));

    let kind = |result: Result<(), Failure>| result.unwrap_err().kind;
    assert_eq!(kind(planned(&["--count", "1"]).map(drop)), Kind::Refused);
    assert_eq!(kind(planned(&["--chart", &file("no/x.svg")]).map(drop)), Kind::Failed);
    assert_eq!(kind(shown("nowhere").map(drop)), Kind::NotFound);
    let whole = fs::read(file("x.profile")).unwrap();
    fs::write(file("short.profile"), &whole[..whole.len() - 1]).unwrap();
    assert_eq!(kind(shown("short.profile").map(drop)), Kind::Damaged);
    let mut newer = whole;
    newer[8] = 2;
    fs::write(file("newer.profile"), newer).unwrap();
    assert_eq!(kind(shown("newer.profile").map(drop)), Kind::Mismatch);
}

#[test]
fn migrations_are_as_documented() {
    let round = migrate::Round { written: 1, sent: 1, ms: 0.5 };
    let text = String::new;
    let migrated = migrate::Migrated {
        job: text(),
        to: text(),
        name: text(),
        device: text(),
        image: text(),
        rounds: vec![round.clone()],
        last: round,
        downtime_ms: 0.5,
        stall_ms: 0.5,
        write_ms: 0.5,
        send_ms: 0.5,
        start_ms: 0.5,
        total_ms: 0.5,
        supervisor: 1,
        stdout: "/x".into(),
        stderr: "/x".into(),
        warnings: vec![text()],
    };
    check("`dormouse migrate`", &[&migrated], Fields::new());
}

#[test]
fn keys_are_as_documented() {
    use link::keys::{GRACE, Keys, Moment, Quota, YEAR};
    let folder = tempfile::tempdir().unwrap();
    let all = Keys::new(folder.path().join("keys"));
    let in_a_year = std::time::SystemTime::now() + YEAR;
    let key = all.create(in_a_year).unwrap().fingerprint();
    let young = keys::own(&all, Ok(())).unwrap();
    let next = all.rotate(in_a_year, GRACE).unwrap().fingerprint();
    check("`dormouse keys show`", &[&young, &keys::own(&all, Ok(())).unwrap()], Fields::new());
    let quota = Quota {
        memory: Some(1 << 30),
        sessions: Some(1),
        devices: Some("1".into()),
        expires: Some(Moment(in_a_year)),
        jobs: true,
    };
    all.authorize("plain", key, Quota::default(), None).unwrap();
    all.authorize("plain", next, Quota::default(), Some(GRACE)).unwrap();
    all.authorize("other", link::Fingerprint::of(b"x"), quota, None).unwrap();
    all.revoke("other").unwrap();
    all.trust("gpu1:7070", key, None).unwrap();
    all.trust("gpu1:7070", next, Some(GRACE)).unwrap();
    check("`dormouse keys list`", &[&keys::list(&all).unwrap()], Fields::new());
}

#[test]
fn machines_and_failures_are_as_documented() {
    let found = devices::run(&flags::Devices {
        device: flags::Target::Here(flags::Device::Soft),
        greeting: false,
        json: flags::Json { json: true },
    });
    let mut found = serde_json::to_value(found.unwrap()).unwrap();
    // The software device has neither texts nor gaps.
    found["devices"][0]["texts"]["serial"] = "1".into();
    found["devices"][0]["numbers"]["gap"] = serde_json::json!([null]);
    check("`dormouse devices`", &[&found], Fields::new());
    check(
        "`dormouse doctor`",
        &[&doctor::Findings { checks: vec![doctor::found("criu", String::new())] }],
        Fields::new(),
    );
    let failure = |kind| serde_json::json!({ "error": Failure::new(kind, "so it is") });
    check("A failure", &[&failure(Kind::Busy)], Fields::new());
    for kind in [
        Kind::NotFound,
        Kind::Busy,
        Kind::NotIdle,
        Kind::Refused,
        Kind::Damaged,
        Kind::Mismatch,
        Kind::DeviceFull,
        Kind::Unavailable,
        Kind::Unreachable,
        Kind::Store,
        Kind::Ended,
        Kind::Failed,
    ] {
        let name = &failure(kind)["error"]["kind"];
        assert!(PAGE.contains(&format!("`{}`", name.as_str().unwrap())), "{name}");
    }
}
