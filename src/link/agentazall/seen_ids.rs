//! The file `.seen_ids`, in which the reference program lists what it has filed. Links add what they filed, so that the
//! reference files nothing twice.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::Path;

use crate::link::engine::{EngineSettings, ExchangeOutcome};
use crate::model::display_path;
use crate::store::{atomic_file, fs};

/// The name of the file in the mailbox.
const FILE: &str = ".seen_ids";
/// The limit on the size of the file; the reference keeps 10,000 lines.
const MAX_FILE: u64 = 16 << 20;

/// Returns the ids that the reference has filed in the mailbox of a link.
///
/// # Errors
/// Returns the system's error, with the path: without the ids the mail of the reference would be filed twice.
pub fn read_reference_ids(settings: &EngineSettings) -> io::Result<HashSet<String>> {
    super::find_mailbox(settings).map_or(Ok(HashSet::new()), |mailbox| read_ids(&mailbox))
}

/// Adds the ids that a link has filed, for the reference.
pub fn report_filed(settings: &EngineSettings, ids: &[String]) -> ExchangeOutcome {
    let added = super::find_mailbox(settings).map_or(Ok(()), |mailbox| add_ids(&mailbox, ids));
    added.map_or_else(ExchangeOutcome::away, |()| ExchangeOutcome::Done)
}

/// Reads the ids; none if there is no file.
fn read_ids(mailbox: &Path) -> io::Result<HashSet<String>> {
    let path = mailbox.join(FILE);
    let bytes = fs::empty_if_absent(fs::read_small_file(&path, MAX_FILE))
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", display_path(&path))))?;
    let text = String::from_utf8_lossy(&bytes);
    let ids = text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty());
    Ok(ids.collect())
}

/// Adds ids, by rename. A file that cannot be read stays as it is. A mailbox that does not exist yet needs none.
fn add_ids(mailbox: &Path, ids: &[String]) -> io::Result<()> {
    if !mailbox.is_dir() {
        return Ok(());
    }
    let known = read_ids(mailbox)?;
    if ids.iter().all(|id| known.contains(id)) {
        return Ok(());
    }
    let is_one_line = |id: &&String| !id.is_empty() && !id.contains(char::is_control);
    let new = ids.iter().filter(is_one_line).map(String::as_str);
    let all: BTreeSet<&str> = known.iter().map(String::as_str).chain(new).collect();
    let text = all.into_iter().collect::<Vec<_>>().join("\n");
    atomic_file::write_atomic(&mailbox.join(FILE), text.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::super::ftp::FtpEngine;
    use super::super::mail::MailEngine;
    use super::*;
    use crate::link::engine::LinkEngine;

    #[test]
    fn ids_are_added_to_those_of_the_reference() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_ids(dir.path()).unwrap().is_empty());
        std::fs::write(dir.path().join(FILE), "7\nftp:2026-03-11/a.txt").unwrap();
        add_ids(dir.path(), &["8".into(), "7".into(), "a\nb".into()]).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(text, "7\n8\nftp:2026-03-11/a.txt");
        add_ids(&dir.path().join("none"), &["8".into()]).unwrap();
        assert!(!dir.path().join("none").exists());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join(FILE)).unwrap();
        file.set_len(MAX_FILE + 1).unwrap();
        let error = add_ids(dir.path(), &["8".into()]).unwrap_err();
        assert!(error.to_string().contains(FILE), "{error}");
        assert_eq!(dir.path().join(FILE).metadata().unwrap().len(), MAX_FILE + 1);
    }

    /// Without the ids nothing is fetched, as the reference may have filed it.
    #[test]
    fn no_mail_is_fetched_without_the_ids_of_the_reference() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, r#"{"mailbox_dir": "mail"}"#).unwrap();
        std::fs::create_dir_all(dir.path().join("mail/bob@x").join(FILE)).unwrap();
        let settings = |part: &str| EngineSettings {
            kind: String::new(),
            file: file.clone(),
            part: part.to_owned(),
            me: "bob@x".to_owned(),
            insecure: false,
            ca: None,
            self_copy: false,
        };
        let engines: [Box<dyn LinkEngine>; 2] = [
            Box::new(FtpEngine::open(&settings("/ftp"))),
            Box::new(MailEngine::open(&settings("/email")).unwrap()),
        ];
        for engine in engines {
            let outcome = engine.open_session().fetch(dir.path(), &HashSet::new());
            let ExchangeOutcome::Away { why, .. } = &outcome else { panic!("{outcome:?}") };
            assert!(why.contains(FILE), "{why}");
        }
    }
}
