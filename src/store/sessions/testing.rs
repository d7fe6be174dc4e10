//! A base folder of a harness, for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::message::{SessionBlock, SessionHead, SessionMessage, read_session};
use crate::store::testing::Book;
use crate::store::{self, Kind, Store, StoreSpec};

/// A base folder of a harness.
pub struct SessionBed {
    kind: Kind,
    dir: tempfile::TempDir,
}

impl SessionBed {
    pub fn new(kind: Kind) -> Self {
        Self { kind, dir: tempfile::tempdir().unwrap() }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn append(&self, name: &str, text: &str) {
        use std::io::Write as _;
        let path = self.path(name);
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    pub fn open(&self) -> Arc<dyn Store> {
        let spec = StoreSpec {
            name: self.kind.to_string(),
            kind: self.kind,
            dir: self.dir.path().to_owned(),
            me: "bob".into(),
            ..StoreSpec::default()
        };
        store::open(&spec).unwrap()
    }

    pub fn book(&self) -> Book {
        Book::scanned(&*self.open())
    }

    pub fn read(&self, session: &str) -> (SessionHead, Vec<SessionMessage>) {
        let mut all = Vec::new();
        let head = read_session(self.kind, self.dir.path(), session, &mut |message| {
            all.push(message);
            Ok(())
        });
        (head.unwrap(), all)
    }
}

/// Returns id, sender and thread of all messages, by the time in their names.
pub fn ids(book: &Book) -> Vec<(String, String, String)> {
    let mut all: Vec<_> = book.messages.values().collect();
    all.sort_by_key(|kept| kept.name_time);
    all.iter()
        .map(|kept| (kept.id.to_string(), kept.from.to_string(), kept.thread.to_string()))
        .collect()
}

pub fn three(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into())).collect()
}

/// Returns the blocks of a message in short.
pub fn show_blocks(message: &SessionMessage) -> Vec<String> {
    let word = |block: &SessionBlock| match block {
        SessionBlock::Text(text) => text.clone(),
        SessionBlock::Thinking(text) => format!("thinking {text}"),
        SessionBlock::Image(image) => format!("image {}", image.media_type),
        SessionBlock::Call(call) => {
            format!("call {} {} {:?}", call.id, call.name, call.output.as_deref().unwrap_or("-"))
        }
    };
    message.blocks.iter().map(word).collect()
}
