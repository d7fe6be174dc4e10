//! `msgfs check` for a mailbox, and its part of `msgfs doctor`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::layout::LetterPath;
use super::letter::{self, LetterHash, ParsedLetter};
use super::{AgentAzall, attachments, config, date, key};
use crate::model::{plain_id, quote_shell_word};
use crate::store::engine::files::{self, WalkEntry};
use crate::store::{Advice, ClaimVerifier, StoreError, Violation, ViolationReporter};
use crate::store::{confined, fs};

/// Headers that the reference writes on every message (docs/formats/agentazall.md, section 2).
const HEADERS: [&str; 6] = ["From", "To", "Subject", "Date", "Message-ID", "Status"];

type LetterViolationSink<'a> = dyn FnMut(&str, &'static str, String) + 'a;

/// Texts by writer and id, with the file that had the first.
type SeenTexts = HashMap<LetterHash, (LetterHash, String)>;

/// Returns the line about a mailbox that does not exist.
pub(super) fn describe_missing_mailbox(base: &Path) -> String {
    format!(
        "there is no mailbox {}; if there was one, move it back; otherwise the first message that \
         you send makes it",
        base.display()
    )
}

impl AgentAzall {
    /// Checks all files for [`MessageReader::check`](crate::store::MessageReader::check).
    ///
    /// # Errors
    /// If the mailbox cannot be listed.
    pub(super) fn check_mailbox(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        let mut say = |file: &str, rule: &'static str, detail: String| {
            report(Violation { file: file.to_owned(), line: 0, rule, detail });
        };
        self.require_mailbox_folder()?;
        if std::fs::symlink_metadata(self.mailbox_dir()).is_err() {
            return Ok(());
        }
        let mut seen = SeenTexts::new();
        self.visit_entries(&mut |visit| match visit {
            WalkEntry::Message { folder, name, stamp, bytes } => {
                let path = format!("{folder}/{name}");
                let Some(place) = LetterPath::parse(&path) else { return };
                if bytes.is_empty() {
                    return say(&path, "file", "the file is empty".into());
                }
                if let Some(why) = letter::find_size_fault(bytes) {
                    return say(&path, "file", why);
                }
                let who = (self.format.me.as_str(), self.zone());
                let parsed = letter::parse_letter(bytes, &stamp, &place, who);
                if let Some(why) = parsed.find_link_fault() {
                    return say(&path, "file", why);
                }
                self.check_letter(&path, &parsed, verify, &mut say);
                check_duplicate_id(&path, &parsed, &mut seen, &mut say);
            }
            WalkEntry::Other { .. } => {}
            WalkEntry::Wrong(wrong) => say(&wrong.file, wrong.rule, wrong.detail),
        })
    }

    fn check_letter(
        &self,
        path: &str,
        parsed: &ParsedLetter,
        verify: ClaimVerifier<'_>,
        say: &mut LetterViolationSink<'_>,
    ) {
        let letter = &parsed.letter;
        for header in HEADERS {
            if letter.get(header).is_none() {
                say(path, "header", format!("there is no {header} line"));
            }
        }
        if let Some(text) = letter.get("Date")
            && date::parse_date(text, self.zone()).is_none()
        {
            say(path, "date", format!("{text:?} is not a date in any of the known forms"));
        }
        let stem = path.strip_suffix(".txt").unwrap_or(path);
        let folder =
            attachments::open_attachments_dir(self.mailbox_dir(), stem).unwrap_or_default();
        for a in attachments::list_attachments(folder.as_ref(), parsed, &self.format.digests)
            .unwrap_or_default()
        {
            if let Some(why) = a.withheld {
                say(path, "attachment", format!("{:?}: {why}", a.name));
            }
        }
        if let Some(wrong) = parsed.content.claim.as_ref().and_then(verify) {
            say(path, "signature", wrong);
        }
    }

    /// Returns the advice for [`Store::advice`](crate::store::Store::advice).
    pub(super) fn list_mailbox_advice(&self) -> Vec<Advice> {
        let mut out = Vec::new();
        let mut add = |problem: String, command: Option<String>, serious: bool| {
            out.push(Advice { problem, command, serious });
        };
        let word = |path: &Path| quote_shell_word(&path.to_string_lossy());
        let base = self.mailbox_dir();
        if let Err(e) = config::read_config(&self.format.config_file) {
            add(e.to_string(), None, true);
        }
        match std::fs::symlink_metadata(base) {
            Err(_) => {
                add(
                    describe_missing_mailbox(base),
                    Some(format!("mkdir -p {}", word(base))),
                    false,
                );
            }
            Ok(meta) if !meta.is_dir() => {
                let what = fs::describe_file_type(&meta);
                add(format!("the mailbox {} is {what}, not a folder", base.display()), None, true);
            }
            Ok(_) => match key::read_key(base) {
                Ok(Some(_)) => {}
                Ok(None) => add(
                    format!("{} has no signing key yet; mounting writes one", self.format.me),
                    None,
                    false,
                ),
                Err(e) => {
                    let file = key::key_path(base);
                    let command =
                        format!("mv -n {} {}", word(&file), word(&choose_damaged_name(&file)));
                    add(e.to_string(), Some(command), true);
                }
            },
        }
        if key::is_exposed(base) {
            let path = key::key_path(base);
            add(
                format!("others can read the private key {}", path.display()),
                Some(format!("chmod 600 {}", word(&path))),
                false,
            );
        }
        for clash in self.find_name_clashes() {
            add(clash, None, false);
        }
        out
    }

    /// Returns lines about other agents with my address.
    fn find_name_clashes(&self) -> Vec<String> {
        let mut out = Vec::new();
        for file in config::list_sibling_configs(&self.format.config_file) {
            if config::is_same_folder(&file, &self.format.config_file) {
                continue;
            }
            let Ok(theirs) = config::read_config(&file) else { continue };
            if theirs.agent.as_ref() != Some(&self.format.me) {
                continue;
            }
            let shown = file.display();
            if config::is_same_folder(&theirs.mailboxes, &self.format.mailboxes) {
                out.push(format!(
                    "{shown} also says agent_name {:?}: two agents share one mailbox",
                    self.format.me
                ));
            } else if has_other_key(self.mailbox_dir(), &theirs.mailboxes.join(&self.format.me)) {
                out.push(format!(
                    "{shown} also says agent_name {:?}, with another key: an agent that trusts \
                     one of the keys refuses the other",
                    self.format.me
                ));
            }
        }
        let like_me = |name: &str| {
            name != self.format.me && name.to_lowercase() == self.format.me.to_lowercase()
        };
        let all =
            confined::open_dir(&self.format.mailboxes, &[]).and_then(|dir| files::list_names(&dir));
        let names = all.unwrap_or_default().into_iter().flat_map(|(name, _)| name);
        out.extend(
            names.filter(|name| like_me(name)).map(|name| {
                format!("there is also a mailbox {name:?}, which differs only in case")
            }),
        );
        out.sort_unstable();
        out
    }
}

fn has_other_key(mine: &Path, theirs: &Path) -> bool {
    match (key::read_key(mine), key::read_key(theirs)) {
        (Ok(Some(mine)), Ok(Some(theirs))) => mine != theirs,
        _ => false,
    }
}

/// Returns a free name beside a file.
fn choose_damaged_name(file: &Path) -> PathBuf {
    let name = |n: u32| {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(if n == 0 { ".damaged".to_owned() } else { format!(".damaged{n}") });
        file.with_file_name(name)
    };
    let free = (0..1000).map(name).find(|path| std::fs::symlink_metadata(path).is_err());
    free.unwrap_or_else(|| name(1000))
}

/// Reports a message with the writer and id of another and a different text.
fn check_duplicate_id(
    path: &str,
    parsed: &ParsedLetter,
    seen: &mut SeenTexts,
    say: &mut LetterViolationSink<'_>,
) {
    let text = parsed.facts.text_hash;
    let first = seen.entry(parsed.facts.name_hash).or_insert_with(|| (text, path.to_owned()));
    if first.0 != text {
        let (id, other) = (plain_id(&parsed.id), &first.1);
        say(path, "duplicate", format!("{other} has the id {id:?} too, with another text"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::letter::MAX_FILE;
    use super::super::tests::Bed;
    use crate::store::MessageReader as _;
    use crate::store::Store;

    #[test]
    fn every_broken_rule_is_named_with_its_file() {
        let bed = Bed::new();
        bed.letter("2026-03-11/inbox/good.txt", "bob@x", "good", "2026-03-11 10:00:00", "hi");
        bed.put(
            "2026-03-11/inbox/b.txt",
            "From: bob@x\nDate: never\nMessage-ID: good\nAttachments: p.pdf\n---\nother",
        );
        std::os::unix::fs::symlink("good.txt", bed.base().join("2026-03-11/inbox/l.txt")).unwrap();
        bed.put("2026-03-11/inbox/e.txt", "");
        let unreadable = "From: bob@x\nX-Msgfs-Unreadable: half a mail\nMessage-ID: u\n---\nx";
        bed.put("2026-03-11/inbox/u.txt", unreadable);
        bed.put("2026-03-11/inbox/z.txt", "From: bob@x\n---\n");
        let large = bed.base().join("2026-03-11/inbox/z.txt");
        let large = std::fs::File::options().write(true).open(large).unwrap();
        large.set_len(MAX_FILE as u64 + 1).unwrap();
        bed.put("2026-03-11/inbox/d.txt/x", "");
        let store = bed.scanned();
        let (mut found, mut details) = (Vec::new(), Vec::new());
        store
            .check(&|_| None, &mut |v| {
                details.push(v.detail);
                found.push((v.file, v.rule));
            })
            .unwrap();
        found.sort();
        for text in
            ["it is a symbolic link, not a file", "it is a folder, not a file", "the file is empty"]
        {
            assert_eq!(details.iter().filter(|d| *d == text).count(), 1, "{text} in {details:?}");
        }
        let of = |file: &str| -> Vec<&str> {
            found.iter().filter(|(f, _)| f.ends_with(file)).map(|(_, rule)| *rule).collect()
        };
        assert!(of("/b.txt").len() >= 5, "{found:?}");
        for rule in ["header", "date", "attachment", "duplicate"] {
            assert!(found.iter().any(|(_, r)| *r == rule), "{rule} in {found:?}");
        }
        for odd in ["/l.txt", "/d.txt", "/e.txt", "/u.txt", "/z.txt"] {
            assert_eq!(of(odd), ["file"], "{odd}");
        }
    }

    #[test]
    fn keys_and_clashes_are_named() {
        let bed = Bed::new();
        let store = bed.store();
        let problems = |store: &dyn Store| -> Vec<String> {
            store.advice().into_iter().map(|a| format!("{} {:?}", a.problem, a.command)).collect()
        };
        assert!(
            problems(&store).iter().any(|p| p.contains("no signing key")),
            "{:?}",
            problems(&store)
        );
        bed.put(".identity_key", r#"{"private_key_hex": "0707070707070707070707070707070707070707070707070707070707070707"}"#);
        std::fs::create_dir(bed.base().parent().unwrap().join("ME@X")).unwrap();
        let said = problems(&store);
        assert!(said.iter().any(|p| p.contains("chmod 600")), "{said:?}");
        assert!(said.iter().any(|p| p.contains("differs only in case")), "{said:?}");
        bed.put(".identity_key", "{");
        std::fs::write(bed.base().join(".identity_key.damaged"), "older").unwrap();
        let advice = store.advice();
        let damaged = advice.iter().find(|a| a.problem.contains("is damaged")).unwrap();
        assert!(damaged.serious);
        let command = damaged.command.as_deref().unwrap();
        assert!(command.starts_with("mv -n ") && command.ends_with(".damaged1"), "{command}");
        assert!(store.health().iter().any(|line| line.contains("is damaged")));
    }
}
