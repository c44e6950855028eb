#![allow(clippy::unwrap_used)]

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

fn folder() -> (TempDir, Keys) {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path().join("keys"));
    (folder, keys)
}

fn in_a_year() -> SystemTime {
    SystemTime::now() + YEAR
}

fn some_key() -> Fingerprint {
    Identity::new(in_a_year()).unwrap().fingerprint()
}

#[test]
fn a_key_is_made_once_and_for_its_owner_only() {
    let (_folder, keys) = folder();
    let none = keys.identity().unwrap_err();
    assert!(
        matches!(none, KeysError::None { .. }) && none.to_string().contains("dormouse keys new"),
        "{none}"
    );
    let made = keys.create(in_a_year()).unwrap();
    let read = keys.identity().unwrap();
    assert_eq!(made.fingerprint(), read.fingerprint());
    let off = in_a_year().duration_since(read.expires()).unwrap();
    assert!(off < Duration::from_secs(5), "{off:?}");
    assert!(matches!(keys.create(in_a_year()), Err(KeysError::Exists { .. })));
    let file = keys.folder().join(IDENTITY);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(keys.folder())), (0o600, 0o700));
    let shown = format!("{read:?}");
    let secret = fs::read_to_string(&file).unwrap();
    assert!(!secret.lines().any(|line| line.len() > 40 && shown.contains(line)), "{shown}");
    for mode in [0o640, 0o604, 0o644] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let refused = keys.identity().unwrap_err();
        assert!(matches!(refused, KeysError::OpenToOthers { .. }), "{refused}");
        assert!(refused.to_string().contains("identity.pem") && !refused.to_string().contains("BEGIN"));
    }
}

#[test]
fn damaged_files_are_named_and_not_shown() {
    let (_folder, keys) = folder();
    let other = Identity::new(in_a_year()).unwrap().to_pem();
    keys.create(in_a_year()).unwrap();
    let file = keys.folder().join(IDENTITY);
    let good = fs::read_to_string(&file).unwrap();
    let certificate = other.split_once("-----BEGIN CERT").unwrap().1;
    let key = good.split_once("-----BEGIN CERT").unwrap().0;
    let mixed = format!("{key}-----BEGIN CERT{certificate}");
    for bad in ["", "secret", key, &good[..good.len() / 2], &mixed] {
        fs::write(&file, bad).unwrap();
        let refused = keys.identity().unwrap_err();
        assert!(matches!(refused, KeysError::Damaged { .. }), "{refused}");
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
    fs::write(&file, vec![b'x'; (1 << 20) + 1]).unwrap();
    assert!(keys.identity().unwrap_err().to_string().contains("too long"));
    fs::write(keys.folder().join(CLIENTS), "{").unwrap();
    fs::set_permissions(keys.folder().join(CLIENTS), Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(keys.clients(), Err(KeysError::Damaged { .. })));
    fs::set_permissions(keys.folder().join(CLIENTS), Permissions::from_mode(0o620)).unwrap();
    assert!(matches!(keys.clients(), Err(KeysError::OpenToOthers { .. })));
}

#[test]
fn clients_are_let_in_until_something_is_over() {
    let (_folder, keys) = folder();
    let (first, second) = (some_key(), some_key());
    let quota = Quota {
        memory: Some(40 << 30),
        sessions: Some(2),
        devices: Some("1,0".into()),
        expires: None,
        jobs: true,
    };
    keys.authorize("desk", first, quota.clone(), None).unwrap();
    let admitted = |key| keys.clients().unwrap().admit(key).cloned();
    let desk = admitted(first).unwrap();
    assert_eq!((&*desk.name, desk.quota), ("desk", quota.clone()));
    assert_eq!(admitted(second).unwrap_err(), Denied::Unknown);
    // A name has one key, a key one name.
    assert!(matches!(keys.authorize("desk", second, quota.clone(), None), Err(KeysError::Taken(_))));
    assert!(matches!(keys.authorize("other", first, quota.clone(), None), Err(KeysError::Taken(_))));
    for bad in ["", "a b", "-x", "é", &"x".repeat(65)] {
        assert!(
            matches!(keys.authorize(bad, second, quota.clone(), None), Err(KeysError::BadName(_))),
            "{bad}"
        );
    }
    // With a successor, both for a while; what is not said of it stays.
    keys.authorize("desk", second, Quota::default(), Some(GRACE)).unwrap();
    assert!(admitted(first).is_ok());
    assert_eq!(admitted(second).unwrap().quota, quota);
    keys.authorize("desk", second, quota.clone(), Some(Duration::ZERO)).unwrap();
    assert_eq!((admitted(first).unwrap_err(), admitted(second).is_ok()), (Denied::Expired, true));
    // By its own date.
    let over = Quota { expires: Some(Moment(SystemTime::now())), ..quota.clone() };
    keys.authorize("desk", second, over, None).unwrap();
    assert_eq!(admitted(second).unwrap_err(), Denied::Expired);
    keys.revoke("desk").unwrap();
    assert_eq!(admitted(second).unwrap_err(), Denied::Revoked);
    assert!(matches!(keys.authorize("new", second, quota.clone(), None), Err(KeysError::Taken(_))));
    assert!(matches!(keys.revoke("nobody"), Err(KeysError::Unknown(_))));
    // Let in again with another key, the revoked one stays out.
    let third = some_key();
    keys.authorize("desk", third, quota.clone(), None).unwrap();
    assert_eq!((admitted(second).unwrap_err(), admitted(third).is_ok()), (Denied::Revoked, true));
}

#[test]
fn nothing_of_a_revoked_client_comes_back_unsaid() {
    let (_folder, keys) = folder();
    let admitted = |key| keys.clients().unwrap().admit(key).cloned();
    let jobs = Quota {
        memory: Some(40 << 30),
        sessions: Some(2),
        devices: Some("1,0".into()),
        expires: Some(Moment(in_a_year())),
        jobs: true,
    };
    for replace in [None, Some(GRACE), Some(Duration::ZERO)] {
        let name = format!("desk{}", replace.map_or(0, |grace| 1 + grace.as_secs()));
        let [first, second, third] = [some_key(), some_key(), some_key()];
        keys.authorize(&name, first, jobs.clone(), None).unwrap();
        keys.revoke(&name).unwrap();
        keys.authorize(&name, second, Quota::default(), replace).unwrap();
        assert_eq!(admitted(second).unwrap().quota, Quota::default(), "{replace:?}");
        // However often it is let in with another key: those that were revoked are remembered.
        keys.authorize(&name, third, Quota::default(), Some(GRACE)).unwrap();
        keys.revoke(&name).unwrap();
        keys.authorize(&name, some_key(), Quota::default(), replace).unwrap();
        for revoked in [first, second, third] {
            assert_eq!(admitted(revoked).unwrap_err(), Denied::Revoked);
            let refused = keys.authorize("other", revoked, Quota::default(), None).unwrap_err().to_string();
            assert!(refused.contains(&format!("was revoked as the client {name}")), "{refused}");
        }
        // By its own name and fingerprint one is let in again.
        keys.authorize(&name, second, Quota::default(), Some(GRACE)).unwrap();
        assert_eq!(admitted(second).unwrap().quota, Quota::default());
        assert_eq!(admitted(first).unwrap_err(), Denied::Revoked);
    }
}

#[test]
fn servers_are_known_by_one_key_at_a_time() {
    let (_folder, keys) = folder();
    let (first, second) = (some_key(), some_key());
    let known = || keys.servers().unwrap().keys("gpu:7070");
    assert_eq!(known(), []);
    keys.trust("gpu:7070", first, None).unwrap();
    keys.trust("gpu:7070", first, None).unwrap();
    assert!(matches!(keys.trust("gpu:7070", second, None), Err(KeysError::Taken(_))));
    keys.trust("gpu:7070", second, Some(GRACE)).unwrap();
    assert_eq!(known(), [second, first]);
    keys.trust("gpu:7070", second, None).unwrap();
    assert_eq!(known(), [second, first]);
    keys.trust("gpu:7070", second, Some(Duration::ZERO)).unwrap();
    assert_eq!(known(), [second]);
    keys.revoke("gpu:7070").unwrap();
    assert_eq!(known(), []);
}

#[test]
fn rotation_leaves_the_old_key_for_a_while() {
    let (_folder, keys) = folder();
    assert!(matches!(keys.rotate(in_a_year(), GRACE), Err(KeysError::None { .. })));
    let old = keys.create(in_a_year()).unwrap();
    assert!(keys.previous().unwrap().is_none());
    let new = keys.rotate(in_a_year(), GRACE).unwrap();
    assert_ne!(old.fingerprint(), new.fingerprint());
    let previous = keys.previous().unwrap().unwrap();
    assert_eq!(previous.fingerprint(), old.fingerprint());
    let left = previous.expires().duration_since(SystemTime::now()).unwrap();
    assert!(left <= GRACE && left > GRACE - Duration::from_secs(5), "{left:?}");
    assert_eq!(keys.identity().unwrap().fingerprint(), new.fingerprint());
    keys.rotate(in_a_year(), Duration::ZERO).unwrap();
    assert!(keys.previous().unwrap().is_none());
    // Grace never makes a key live longer than it would have.
    assert!(new.until(in_a_year() + YEAR).unwrap().expires() <= new.expires());
}
