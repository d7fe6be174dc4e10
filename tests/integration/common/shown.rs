//! Message files as the mount shows them, taken apart.

use std::fmt::Write as _;

use super::samp;
use super::{Mount, soon};

/// A message file: its header lines in order, and its text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    /// Header lines.
    pub(crate) head: Vec<(String, String)>,
    /// The text, with its final newline.
    pub(crate) body: String,
}

impl Shown {
    /// Takes a message file apart. Panics if it is none.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text
            .split_once("\n\n")
            .unwrap_or_else(|| panic!("no empty line after the header: {text:?}"));
        let head = head
            .lines()
            .map(|l| {
                let (k, v) = l
                    .split_once(':')
                    .unwrap_or_else(|| panic!("no header line: {l:?} in {text:?}"));
                (k.to_owned(), v.strip_prefix(' ').unwrap_or(v).to_owned())
            })
            .collect();
        Self { head, body: body.to_owned() }
    }

    /// Returns the value of a header line.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.head.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Returns the value of a header line that must be there.
    #[track_caller]
    pub(crate) fn must(&self, key: &str) -> &str {
        self.get(key).unwrap_or_else(|| panic!("no {key} in {self:#?}"))
    }

    /// Returns the names of the header lines, in order.
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.head.iter().map(|(k, _)| k.as_str()).collect()
    }

    /// Returns the file without one header line, to compare bytes where the format leaves that line open.
    pub(crate) fn without(&self, key: &str) -> String {
        let mut text = String::new();
        for (k, v) in self.head.iter().filter(|(k, _)| k != key) {
            let _ = writeln!(text, "{k}: {v}");
        }
        text + "\n" + &self.body
    }
}

/// Returns the paths below `folder` of the messages with this id. A program that marks nothing finds them.
#[track_caller]
pub(crate) fn paths(m: &Mount, folder: &str, id: &str) -> Vec<String> {
    let out = m.ok(&format!(
        "LC_ALL=C; grep -rlF --include='*.txt' -- 'Message-ID: <{id}@' {folder} | sort; :"
    ));
    out.lines().map(str::to_owned).collect()
}

/// Returns the path of the only message with this id below `folder`, once it is there.
#[track_caller]
pub(crate) fn path(m: &Mount, folder: &str, id: &str) -> String {
    let mut found = Vec::new();
    soon(&format!("{id} is below {folder}"), || {
        found = paths(m, folder, id);
        !found.is_empty()
    });
    assert_eq!(found.len(), 1, "{id} below {folder}");
    found.remove(0)
}

/// Returns the only message with this id in `archive/`.
#[track_caller]
pub(crate) fn message(m: &Mount, id: &str) -> Shown {
    let file = path(m, "archive", id);
    Shown::parse(&m.cat(&file))
}

/// Returns all texts in `rejected/`, without those that went since the folder was listed.
#[track_caller]
pub(crate) fn rejected(m: &Mount) -> Vec<String> {
    let text = |name: &String| {
        let out = m.sh(&format!("cat 'rejected/{name}'"));
        out.ok().then_some(out.stdout)
    };
    m.ls("rejected").iter().filter_map(text).collect()
}

/// Waits until `rejected/` holds exactly one file, and returns its text.
#[track_caller]
pub(crate) fn one_rejected(m: &Mount) -> String {
    soon("one file is in rejected/", || m.ls("rejected").len() == 1);
    rejected(m).remove(0)
}

/// Returns the texts of all messages below a folder, in the order of `ls`.
#[track_caller]
pub(crate) fn all(m: &Mount, folder: &str) -> Vec<Shown> {
    let out = m.ok(&format!(
        "LC_ALL=C; find {folder} -type f -name '*.txt' -printf '%f\\t%p\\n' | sort | cut -f 2"
    ));
    out.lines()
        .map(|p| Shown::parse(&String::from_utf8(m.bytes_quietly(p)).expect("UTF-8")))
        .collect()
}

/// Returns true if a name ends in this, after a dot.
pub(crate) fn has_ending(name: &str, ending: &str) -> bool {
    std::path::Path::new(name).extension().is_some_and(|e| e == ending)
}

/// Returns a time as message files show it.
pub(crate) fn date(ts: i64) -> String {
    samp::strftime(ts, "%a, %d %b %Y %H:%M:%S +0000")
}

/// Returns the name of a message file with these parts.
pub(crate) fn name(ts: i64, millis: u32, from: &str, id: &str) -> String {
    let from: String = from
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '_' })
        .take(64)
        .collect();
    let plain = id.len() >= 8
        && id.bytes().take(8).all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let id8 = if plain { id[..8].to_owned() } else { samp::sha_hex(id.as_bytes(), 8) };
    format!("{}.{millis:03}Z-{from}-{id8}.txt", samp::strftime(ts, "%Y%m%dT%H%M%S"))
}
