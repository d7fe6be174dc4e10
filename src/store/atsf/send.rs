//! From a draft to a signed line, and the files of a new thread.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::edit::NewThread;
use super::line::AtsfLine;
use super::roots::{AGENT, THREADS};
use super::sent_log::render_record;
use super::{AtsfStore, assets, default_recipient, project_files, sign};
use crate::model::Draft;
use crate::store::engine::lines::log::MAX_LINE;
use crate::store::text::canonical::push_text;
use crate::store::text::json_values::{as_text, pick_members, split_elements};
use crate::store::{PrepareContext, PreparedRecord, StoreError, confined, refuse_headers};

/// Splits a prepared message into its line and, for a new thread, its `thread.json`.
pub(super) fn split_prepared(bytes: &str) -> (&str, Option<&str>) {
    // A line of JSON holds no newline.
    bytes.split_once('\n').map_or((bytes, None), |(line, meta)| (line, Some(meta)))
}

/// Returns the files that a message refers to, in the order of the attachments.
pub(super) fn list_asset_references(line: &AtsfLine<'_>) -> Vec<String> {
    let reference = |block: &str| {
        let [reference] = pick_members(block, ["assetRef"])?;
        as_text(reference.as_ref()).map(Cow::into_owned)
    };
    split_elements(line.content).into_iter().filter_map(reference).collect()
}

impl AtsfStore {
    pub(super) fn prepare_draft(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        if let Some(me) = draft.to.iter().chain(&draft.cc).find(|to| **to == self.properties.me) {
            return Err(StoreError::Invalid(format!(
                "you are {me:?} in this store; write to {}",
                default_recipient(&self.properties.me)
            )));
        }
        check_headers(draft)?;
        let subject = draft.subject.as_deref().map(str::trim).filter(|s| !s.is_empty());
        let (thread, title, meta) = match (&draft.thread, subject) {
            (Some(thread), _) => {
                let (thread, title) = self.continue_thread(thread, draft)?;
                (thread, title, None)
            }
            (None, Some(subject)) => {
                let (id, meta) = self.begin_thread(subject, draft, with)?;
                (id, Some(subject.to_owned()), Some(meta))
            }
            (None, None) => {
                return Err(StoreError::Invalid(format!(
                    "the messages of the store {} are in threads; begin the text with a line \
                     `Subject: …` for a new thread, or with `Thread: ID` to continue one, and an \
                     empty line after it",
                    self.properties.name
                )));
            }
        };
        let id = loop {
            let id = new_uuid()?;
            if !(with.is_id_taken)(&id) {
                break id;
            }
        };
        let mut bytes = self.render_line(&id, draft, with)?;
        check_length(&thread, title.as_deref(), &bytes)?;
        if let Some(meta) = meta {
            bytes.push('\n');
            bytes.push_str(&meta);
        }
        let to = default_recipient(&self.properties.me).to_owned();
        Ok(vec![PreparedRecord { to, id, thread, bytes, files: draft.attachments.clone() }])
    }

    /// Returns the thread to append to and its title, if an append is possible now. So the writer learns of an error at
    /// once.
    fn continue_thread(
        &self,
        thread: &str,
        draft: &Draft,
    ) -> Result<(String, Option<String>), StoreError> {
        let folder = self.find_thread_folder(thread)?;
        Self::require_appendable(&folder)?;
        for file in &draft.attachments {
            let named = assets::name_asset(file).map_err(|e| StoreError::io(&file.path, e))?;
            let parts = [AGENT, THREADS, &folder.name];
            assets::check_clash(&folder.root, &parts, &named.reference, &file.sha256)?;
        }
        let title = self.find_title(&folder, None);
        Ok((folder.key, title))
    }

    /// Returns the id and the `thread.json` of a new thread.
    fn begin_thread(
        &self,
        title: &str,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<(String, String), StoreError> {
        let io = |(path, e): (std::path::PathBuf, io::Error)| StoreError::io(&path, e);
        confined::check_can_create(&self.properties.dir, &[AGENT, THREADS]).map_err(io)?;
        let id = new_uuid()?;
        let preferred = project_files::read_preferred_agent(&self.properties.dir);
        let named = draft.to.first().map_or("agent", String::as_str);
        let project = std::path::absolute(&self.properties.dir)
            .unwrap_or_else(|_| self.properties.dir.clone());
        let meta = NewThread {
            id: &id,
            title,
            created: with.now,
            agent: preferred.as_deref().unwrap_or(named),
            project: project.to_string_lossy(),
        };
        let meta = meta.render();
        Ok((id, meta))
    }

    fn render_line(
        &self,
        id: &str,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<String, StoreError> {
        let mut out = String::with_capacity(draft.body.len() + 512);
        let time = with.now.rfc3339();
        let _ = write!(
            out,
            "{{\"id\":\"{id}\",\"role\":\"{}\",\"timestamp\":\"{time}\"",
            self.properties.me
        );
        out.push_str(",\"content\":[");
        if !draft.body.is_empty() || draft.attachments.is_empty() {
            out.push_str("{\"type\":\"text\",\"text\":");
            push_text(&mut out, &draft.body);
            out.push('}');
        }
        for file in &draft.attachments {
            let named = assets::name_asset(file).map_err(|e| StoreError::io(&file.path, e))?;
            if !out.ends_with('[') {
                out.push(',');
            }
            if named.is_image {
                out.push_str("{\"type\":\"image\"");
            } else {
                // The format has no block for other files; the application knows this one.
                let _ = write!(
                    out,
                    "{{\"type\":\"resource\",\"uri\":\"{}\"",
                    utf8_percent_encode(&file.name, ESCAPED)
                );
            }
            let (reference, mime) = (&named.reference, named.mime);
            let _ = write!(out, ",\"assetRef\":\"{reference}\",\"mimeType\":\"{mime}\"}}");
        }
        out.push(']');
        if let Some(key) = &draft.idempotency_key {
            out.push_str(",\"idem\":");
            push_text(&mut out, key);
        }
        out.push('}');
        Ok(sign::sign_object(out, with.signer))
    }
}

/// The bytes of a file name that a relative URI does not hold as they are.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Makes a random UUID (RFC 9562, version 4).
fn new_uuid() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| StoreError::io(Path::new("random numbers"), io::Error::other(e)))?;
    let number = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let hex = format!("{number:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    let parts = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)];
    Ok(parts.join("-"))
}

/// Refuses a line that no reader takes for a message, in the log or in the record of the sent log around it.
fn check_length(thread: &str, title: Option<&str>, line: &str) -> Result<(), StoreError> {
    if render_record(thread, title, "").len() + line.len() <= MAX_LINE {
        return Ok(());
    }
    Err(StoreError::TooLarge(format!(
        "the line would be longer than {} MiB, which no reader takes for a message",
        MAX_LINE >> 20
    )))
}

/// Refuses header lines that a thread cannot hold, so that nothing is dropped in silence.
fn check_headers(draft: &Draft) -> Result<(), StoreError> {
    if draft.to.len() > 1 {
        return Err(StoreError::Invalid(
            "To: a message of a thread goes to its other side only; name one recipient".into(),
        ));
    }
    refuse_headers("a message of a thread", &[("Cc", !draft.cc.is_empty())])?;
    check_header(draft)
}

/// Refuses the lines of a header that no message of a thread has.
pub(super) fn check_header(draft: &Draft) -> Result<(), StoreError> {
    let lines = [("Priority", draft.priority.is_some()), ("Type", draft.kind.is_some())];
    refuse_headers("a message of a thread", &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_random_and_of_version_4() {
        let (a, b) = (new_uuid().unwrap(), new_uuid().unwrap());
        assert_ne!(a, b);
        for id in [a, b] {
            let bytes = id.as_bytes();
            assert_eq!(id.len(), 36);
            assert!([8, 13, 18, 23].iter().all(|n| bytes[*n] == b'-'), "{id}");
            assert_eq!(bytes[14], b'4');
            assert!(matches!(bytes[19], b'8' | b'9' | b'a' | b'b'), "{id}");
        }
    }

    #[test]
    fn a_line_must_fit_its_record_in_the_sent_log() {
        let record = render_record("t", Some("title"), "").len();
        let line = "x".repeat(MAX_LINE - record);
        check_length("t", Some("title"), &line).unwrap();
        let refused = check_length("t", Some("title!"), &line);
        assert!(matches!(refused, Err(StoreError::TooLarge(_))));
    }

    #[test]
    fn names_as_uris() {
        let encode_uri = |name| utf8_percent_encode(name, ESCAPED).to_string();
        assert_eq!(encode_uri("plan v2.pdf"), "plan%20v2.pdf");
        assert_eq!(encode_uri("\u{e9}\"/"), "%C3%A9%22%2F");
    }
}
