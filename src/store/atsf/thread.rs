//! The facts of a thread in `thread.json` (docs/formats/atsf.md, section 3).

use super::keep::head::KeptSource;
use super::line::parse_time;
use crate::model::{Timestamp, cut_text};
use crate::store::engine::lines::log::BOM;
use crate::store::text::json;
use crate::store::text::json_values::{as_text, pick_members};

/// The largest `thread.json`, in bytes.
pub(super) const MAX_BYTES: usize = 4 << 20;
/// The version of new threads; only this major version is read.
pub const VERSION: &str = "1.1";
const MAJOR: &str = "1";
/// The most characters of a title: each message of the thread has it.
const TITLE: usize = 1000;

/// The result of parsing a `thread.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtsfThreadFile {
    /// A thread.
    Thread(AtsfThreadMeta),
    /// A file of another program: no object, or without `specVersion`.
    Foreign,
    /// It does not parse; it may be torn.
    Broken(String),
    /// A thread that must not be read, with the reason in a sentence.
    Refused(String),
}

/// The members of a `thread.json` that msgfs uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtsfThreadMeta {
    /// The id that the file states; the folder's name is the one that counts.
    pub id: Option<String>,
    /// The title, cut to 1,000 characters.
    pub title: Option<String>,
    /// The time of creation.
    pub created: Option<Timestamp>,
    /// The cached time of its last message.
    pub updated: Option<Timestamp>,
    /// The session from which it was kept, if it says so.
    pub kept: Option<KeptSource>,
}

/// Parses the bytes of a `thread.json`.
pub fn parse(bytes: &[u8]) -> AtsfThreadFile {
    let whole = String::from_utf8_lossy(bytes);
    let content = whole.strip_prefix(BOM).unwrap_or(&whole);
    let names = ["specVersion", "threadId", "title", "createdAt", "updatedAt", "metadata"];
    let Some([version, id, title, created, updated, metadata]) = pick_members(content, names)
    else {
        return match json::visit_members(content, |_, _| {}) {
            Err(json::JsonError::NotAnObject) | Ok(()) => AtsfThreadFile::Foreign,
            Err(e) => AtsfThreadFile::Broken(e.to_string()),
        };
    };
    let Some(version) = version else { return AtsfThreadFile::Foreign };
    let Some(version) = as_text(Some(&version)) else {
        return AtsfThreadFile::Refused("its specVersion is not a string".into());
    };
    if let Err(why) = check_version(&version) {
        return AtsfThreadFile::Refused(why);
    }
    let owned = |value| as_text(value).map(std::borrow::Cow::into_owned);
    let time = |value| as_text(value).and_then(|t| parse_time(&t).time());
    AtsfThreadFile::Thread(AtsfThreadMeta {
        id: owned(id.as_ref()),
        title: as_text(title.as_ref())
            .filter(|title| !title.is_empty())
            .map(|t| cut_text(&t, TITLE).into_owned()),
        created: time(created.as_ref()),
        updated: time(updated.as_ref()),
        kept: KeptSource::from_metadata(metadata.as_ref()),
    })
}

/// Checks that msgfs reads threads of this `specVersion`.
///
/// # Errors
/// The reason, in a sentence.
pub fn check_version(version: &str) -> Result<(), String> {
    let shown = crate::model::sanitize_line(version);
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match version.split_once('.') {
        Some((major, minor)) if digits(major) && digits(minor) => {
            if major == MAJOR {
                return Ok(());
            }
            Err(format!(
                "the thread is written in version {shown} of the format; only 1.x can be read, so \
                 it is left alone"
            ))
        }
        _ => Err(format!("its specVersion {shown:?} is not of the form MAJOR.MINOR")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_threads_of_this_major_are_read() {
        for (version, ok) in [
            ("\"1.1\"", true),
            ("\"1.0\"", true),
            ("\"1.99\"", true),
            ("\"2.0\"", false),
            ("\"10.0\"", false),
            ("\"0.9\"", false),
            ("\"1\"", false),
            ("\"1.x\"", false),
            ("\"v1.1\"", false),
            ("1.1", false),
            ("null", false),
        ] {
            let reading = parse(format!("{{\"specVersion\":{version}}}").as_bytes());
            assert_eq!(matches!(reading, AtsfThreadFile::Thread(_)), ok, "{version}: {reading:?}");
            assert_eq!(matches!(reading, AtsfThreadFile::Refused(_)), !ok, "{version}");
        }
    }

    #[test]
    fn threads_of_other_programs_are_not_ours() {
        for foreign in ["{}", "[]", "1", "{\"id\":\"x\",\"object\":\"thread\"}"] {
            assert_eq!(parse(foreign.as_bytes()), AtsfThreadFile::Foreign, "{foreign}");
        }
        for broken in ["", "{", "{\"specVersion\":\"1.1\",", "\u{0}"] {
            assert!(matches!(parse(broken.as_bytes()), AtsfThreadFile::Broken(_)), "{broken}");
        }
    }

    #[test]
    fn what_is_taken_from_it() {
        let text = r#"{"specVersion":"1.0","threadId":"t","title":"a\nb","createdAt":"2025-02-14T10:30:00.000Z","updatedAt":"2025-02-14T10:30:01Z","context":{"worktree":{"path":"/w","branch":"b"}},"x":"\ud800"}"#;
        let AtsfThreadFile::Thread(meta) = parse(text.as_bytes()) else { panic!() };
        assert_eq!(
            meta,
            AtsfThreadMeta {
                id: Some("t".into()),
                title: Some("a\nb".into()),
                created: Some(Timestamp::from_secs(1_739_529_000)),
                updated: Some(Timestamp::from_secs(1_739_529_001)),
                kept: None
            }
        );
        assert_eq!(parse(format!("\u{feff}{text}").as_bytes()), AtsfThreadFile::Thread(meta));
    }

    #[test]
    fn a_long_title_is_cut() {
        let title = |text: &str| {
            let text = format!("{{\"specVersion\":\"1.1\",\"title\":\"{text}\"}}");
            let AtsfThreadFile::Thread(meta) = parse(text.as_bytes()) else { panic!() };
            meta.title.unwrap()
        };
        let whole = "\u{e9}".repeat(1000);
        assert_eq!(title(&whole), whole);
        assert_eq!(title(&format!("{whole}xy")), format!("{whole}\u{2026}"));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(&bytes);
        }
    }
}
