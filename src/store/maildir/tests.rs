mod marks;
mod reading;
mod sending;

use std::path::PathBuf;

use ed25519_dalek::SigningKey;
use serde_json::Value;

use super::*;
use crate::model::Timestamp;
use crate::store::Kind;
use crate::store::testing::{Book, traits::*};

/// The time of files whose mail has none.
const MODIFIED: Timestamp = Timestamp::from_secs(1_700_000_000);

/// A Maildir.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        place.make("box");
        place
    }

    /// Makes a mail folder.
    fn make(&self, folder: &str) {
        for leaf in ["new", "cur", "tmp"] {
            std::fs::create_dir_all(self.path(folder).join(leaf)).unwrap();
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        std::fs::write(self.path("box").join(path), text).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path("box").join(from), self.path("box").join(to)).unwrap();
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn store(&self) -> MaildirStore {
        self.store_with(MaildirSettings::default())
    }

    fn store_with(&self, settings: MaildirSettings) -> MaildirStore {
        let me = match settings.me {
            none if none.is_empty() => vec!["anna@example.org".into(), "Anna@localhost".into()],
            some => some,
        };
        MaildirStore::open(&self.spec(MaildirSettings { me, ..settings })).unwrap()
    }

    fn spec(&self, maildir: MaildirSettings) -> StoreSpec {
        StoreSpec {
            may_create: true,
            name: "maildir".into(),
            kind: Kind::Maildir,
            dir: self.path("box"),
            me: "anna".into(),
            own_address: None,
            state: None,
            roles: crate::model::Roles::default(),
            durability: crate::model::Durability::default(),
            home: None,
            settings: KindSettings::Maildir(maildir),
        }
    }
}

/// Returns a mail with this id and these header lines.
fn mail(id: &str, head: &str, body: &str) -> String {
    format!(
        "From: Bob <Bob@example.org>\nTo: anna@example.org\nMessage-ID: <{id}>\n\
         Date: Fri, 24 Apr 2026 17:42:03 +0000\n{head}\n{body}\n"
    )
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../tests/vectors/maildir.json")).unwrap()
}

fn parse(text: &str) -> MaildirMail {
    mail::parse_mail(text.as_bytes(), "x", MODIFIED).unwrap()
}

/// Returns the only message.
#[track_caller]
fn only(book: &Book) -> &crate::store::testing::Kept {
    assert_eq!(book.messages.len(), 1, "{:?}", book.messages.keys());
    book.messages.values().next().unwrap()
}

fn vector_key() -> crate::store::testing::Key {
    let seed: Vec<u8> = (0..32).collect();
    SigningKey::from_bytes(&seed.try_into().unwrap()).into()
}

#[test]
fn a_missing_maildir_is_told_with_a_command_that_makes_it() {
    let place = Place { dir: tempfile::tempdir().unwrap() };
    let store = place.store();
    let told = |words: &str| {
        let health = store.health();
        assert!(health.len() == 1 && health[0].contains(words), "{health:?}");
    };
    let make = || {
        let advice = store.advice();
        let [one] = &advice[..] else { panic!("{advice:?}") };
        let command = one.command.as_ref().unwrap();
        let made = std::process::Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(made.success());
        assert!(store.health().is_empty() && store.advice().is_empty());
    };
    told("does not exist; a Maildir has new/, cur/ and tmp/; mend it with: mkdir -p ");
    make();
    std::fs::remove_dir(place.path("box/tmp")).unwrap();
    std::fs::remove_dir(place.path("box/new")).unwrap();
    told("no new/ and no tmp/ is there");
    make();
}
