//! `sent.txt`: one line for each recipient of each message of mine, newest first, with the state that is proven now.
//!
//! The command `msgfs sent` reads the same as data from the folder `.sent/`, which lists nothing: `recent`, `all`,
//! `id=ID` and `key=KEY`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::generation_cache::GenerationCache;
use super::listing::Listing;
use super::names;
use super::node::{Ino, Node, NodeProperty, PagePolicy};
use super::receipts::{SentReceipt, SentSelection, collect_receipts};
use super::table::{View, ViewKey};
use super::{Error, Tree};
use crate::model::Timestamp;

/// The first line.
const HEADING: &str = "# time\tid\trecipient\tstate\tsince\tsubject\n";
/// Time for which a text is reused, so that its size at the lookup and its bytes at the open agree.
const MAX_AGE: Duration = Duration::from_millis(20);
/// The number of texts that are kept for that time.
const TEXTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// A node of the view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SentKey {
    /// `sent.txt`
    List,
    /// `.sent/`
    Reports,
    /// A file in `.sent/`, by its name.
    Report(String),
}

/// The view `sent.txt`.
#[derive(Debug)]
pub(super) struct SentView {
    texts: GenerationCache<SentKey, Arc<(String, Timestamp)>>,
}

impl Default for SentView {
    fn default() -> Self {
        Self { texts: GenerationCache::with_max_age(TEXTS, MAX_AGE) }
    }
}

impl View for SentView {
    type Key = SentKey;

    fn node_properties(key: &SentKey) -> &'static [NodeProperty] {
        match key {
            SentKey::Reports => &[NodeProperty::Folder],
            SentKey::List | SentKey::Report(_) => &[NodeProperty::Pages(PagePolicy::Bypass)],
        }
    }

    fn note_root_lookup(&self, _: &Tree, key: &SentKey) {
        self.texts.remove(key);
    }

    fn text(&self, tree: &Tree, key: &SentKey) -> Result<(String, Timestamp), Error> {
        let selection = match key {
            SentKey::List => SentSelection::Recent,
            SentKey::Reports => return Err(Error::IsDir),
            SentKey::Report(name) => parse_report_name(name).ok_or(Error::NotFound)?,
        };
        let text = self.texts.get(key.clone(), tree.generation(), || {
            let receipts = collect_receipts(tree, &selection);
            let text = match key {
                SentKey::List => format_receipts(&receipts),
                _ => format_report(&receipts),
            };
            Arc::new((text, newest_time(&receipts)))
        });
        Ok((text.0.clone(), text.1))
    }

    fn inode_number(&self, tree: &Tree, key: &SentKey) -> Option<Ino> {
        let SentKey::Report(name) = key else { return None };
        Some(tree.assign_path_inode(&[".sent", name], &ViewKey::Sent(key.clone()).into()))
    }

    fn list(&self, _: &Tree, folder: &SentKey) -> Result<Listing, Error> {
        match folder {
            SentKey::Reports => Ok(Listing::from_named(std::iter::empty())),
            _ => Err(Error::NotDir),
        }
    }

    fn find(&self, _: &Tree, folder: &SentKey, name: &str) -> Result<Option<Node>, Error> {
        match folder {
            SentKey::Reports => Ok(parse_report_name(name).map(|_| {
                let report = SentKey::Report(name.to_owned());
                self.texts.remove(&report);
                ViewKey::Sent(report).into()
            })),
            _ => Err(Error::NotDir),
        }
    }
}

/// Returns the path of a report in the tree: `kind` is the first part of its name, `word` the rest.
pub fn sent_report_path(kind: &str, word: &str) -> String {
    format!(".sent/{kind}{}", names::encode_slashes(word))
}

/// Returns the messages that a file in `.sent/` reports.
fn parse_report_name(name: &str) -> Option<SentSelection> {
    match name.split_once('=') {
        None if name == "recent" => Some(SentSelection::Recent),
        None if name == "all" => Some(SentSelection::All),
        Some(("id", id)) if !id.is_empty() => Some(SentSelection::Id(names::decode_slashes(id))),
        Some(("key", key)) if !key.is_empty() => {
            Some(SentSelection::Key(names::decode_slashes(key)))
        }
        _ => None,
    }
}

/// Returns the time of the newest message or proof.
fn newest_time(receipts: &[SentReceipt]) -> Timestamp {
    let times = receipts.iter().map(|one| one.times.1.map_or(one.times.0, |t| t.max(one.times.0)));
    times.max().unwrap_or(super::attr::NO_TIME)
}

/// Returns the text of `sent.txt` with these lines.
pub fn format_receipts(receipts: &[SentReceipt]) -> String {
    let lines = receipts.iter().map(|one| {
        let SentReceipt { time, id, recipient, state, since, subject, .. } = one;
        let [to, since, subject] =
            [recipient, since, subject].map(|field| field.as_deref().unwrap_or("-"));
        let fields = [time, id, to, state.as_str(), since, subject];
        // A field never ends before its tab.
        fields.map(|field| field.replace('\t', " ")).join("\t") + "\n"
    });
    std::iter::once(HEADING.to_owned()).chain(lines).collect()
}

/// Returns one JSON array on one line.
fn format_report(receipts: &[SentReceipt]) -> String {
    match serde_json::to_string(receipts) {
        Ok(text) => text + "\n",
        Err(e) => panic!("a receipt is texts only, but it cannot be printed: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_reports() {
        assert_eq!(parse_report_name("recent"), Some(SentSelection::Recent));
        assert_eq!(parse_report_name("all"), Some(SentSelection::All));
        assert_eq!(parse_report_name("id=a%2Fb%25"), Some(SentSelection::Id("a/b%".into())));
        assert_eq!(parse_report_name("key=k=1"), Some(SentSelection::Key("k=1".into())));
        for name in ["", "id", "id=", "key=", "other", "all=1"] {
            assert_eq!(parse_report_name(name), None, "{name}");
        }
    }
}
