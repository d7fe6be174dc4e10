//! The part of `msgfs check` that checks every line of every log against the rules of the format.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use rustix::fs::Dir;

use super::log::{LineRun, LogCursor, LogLine, MAX_LINE, read_lines, split_lines};
use super::log_file::LogFile;
use super::scan::is_recently_changed;
use super::tree::TreeEntry;
use super::{LineFormat, LineStore, NameClass};
use crate::model::{SignatureClaim, sanitize_line};
use crate::store::{ClaimVerifier, Rejection, StoreError, Violation, ViolationReporter, confined};

/// The rule that each line has the form of its format.
const SCHEMA: &str = "schema";

/// A function that reports a violation: line (0: the file), rule, sentence.
pub type LineReporter<'a> = dyn FnMut(u64, &'static str, String) + 'a;

/// A line that is checked.
pub struct LineCheck<'c, F: LineFormat> {
    /// The line as it is.
    pub piece: &'c LogLine<'c>,
    /// The line without the byte order mark that may begin a file.
    pub text: &'c str,
    /// True if it ends in a newline.
    pub ended: bool,
    /// The root of the log, and the name of the log in it.
    pub root: &'c Path,
    /// The name that [`LineFormat::classify_name`] classifies.
    pub name: &'c str,
    /// The counts so far, this line included.
    pub tally: &'c mut LogCursor<F::Count>,
    /// A function that returns what is wrong with a signature.
    verify: ClaimVerifier<'c>,
    ids: &'c mut HashSet<String>,
    told: &'c mut HashSet<String>,
    reporter: &'c mut LineReporter<'c>,
}

impl<F: LineFormat> LineCheck<'_, F> {
    /// Reports that the last line does not end in a newline.
    pub fn report_unended(&mut self) {
        self.report_violation("unterminated", "the last line does not end in a newline".into());
    }

    /// Reports a violation.
    pub fn report_violation(&mut self, rule: &'static str, detail: String) {
        (self.reporter)(self.tally.lines, rule, detail);
    }

    /// Reports a violation whose text was not reported in this check before.
    pub fn report_once(&mut self, rule: &'static str, detail: String) {
        if self.told.insert(detail.clone()) {
            self.report_violation(rule, detail);
        }
    }

    /// Checks that no other message of the log has this id.
    pub fn check_unique_id(&mut self, id: &str) {
        if !self.ids.insert(id.to_owned()) {
            let id = sanitize_line(id).into_owned();
            self.report_violation("duplicate", format!("the id {id:?} is in this log before"));
        }
    }

    /// Checks the signature of a message.
    pub fn check_claim(&mut self, claim: Option<SignatureClaim>) {
        if let Some(wrong) = claim.as_ref().and_then(self.verify) {
            self.report_violation("signature", wrong);
        }
    }
}

impl<F: LineFormat> LineStore<F> {
    /// Returns the roots of logs, even if no scan has found them yet.
    fn current_roots(&self) -> Vec<super::table::LogRoot> {
        let mut roots = self.table.read().roots.clone();
        if roots.is_empty() {
            self.format.find_roots(&self.properties.dir, &mut roots, true, &HashSet::new());
        }
        roots
    }

    /// Calls `each` for every name of a log in all roots, with the number and path of the root and the open folder
    /// that contains the log. `bad` gets names that break a rule.
    ///
    /// # Errors
    /// Only if there is no store without the folder.
    pub(crate) fn for_each_log(
        &self,
        mut each: impl FnMut(u32, &Path, &str, io::Result<&OwnedFd>),
        mut bad: impl FnMut(&Path, OsString, &'static str, &str),
    ) -> Result<(), StoreError> {
        for (n, root) in (0u32..).zip(self.current_roots()).filter(|(_, root)| root.here) {
            let listed = confined::open_dir(&root.path, F::SHAPE.folder)
                .and_then(|dir| Ok((Dir::read_from(&dir)?, dir)));
            let (entries, dir) = match listed {
                Ok(listed) => listed,
                Err(e) if e.kind() == io::ErrorKind::NotFound && self.is_expected_missing() => {
                    continue;
                }
                Err(e) if F::SHAPE.is_flat() => return Err(StoreError::io(&root.path, e)),
                Err(_) => continue,
            };
            if F::SHAPE.tree.is_some() {
                drop(entries);
                self.walk_tree(&root, &dir, &mut |found| {
                    if let TreeEntry::Log(name, dir) = found {
                        each(n, &root.path, name, Ok(dir));
                    }
                });
                continue;
            }
            let bytes = entries.flatten().map(|e| e.file_name().to_bytes().to_vec());
            let mut names: Vec<OsString> = bytes.map(OsString::from_vec).collect();
            names.sort_unstable();
            for name in names.into_iter().filter(|name| name != "." && name != "..") {
                let Some(text) = name.to_str() else {
                    bad(&root.path, name, "name", "the name is not UTF-8");
                    continue;
                };
                match F::classify_name(text) {
                    NameClass::Other => {}
                    NameClass::Bad(rule, why) => bad(&root.path, name, rule, why),
                    NameClass::Log if F::SHAPE.log_file.is_none() => {
                        each(n, &root.path, text, Ok(&dir));
                    }
                    NameClass::Log => {
                        let opened = confined::open_subdir(&dir, text);
                        each(n, &root.path, text, opened.as_ref().map_err(|e| e.kind().into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks every line of every log.
    pub(super) fn check_logs(
        &self,
        verify: ClaimVerifier<'_>,
        report: ViolationReporter<'_>,
    ) -> Result<(), StoreError> {
        let report = std::cell::RefCell::new(report);
        let mut told = HashSet::new();
        let file = |root: &Path, name: &Path, file: Option<&str>| {
            let path = F::SHAPE.folder.iter().fold(root.to_owned(), |p, part| p.join(part));
            let path = file.map_or_else(|| path.join(name), |file| path.join(name).join(file));
            path.strip_prefix(&self.properties.dir).unwrap_or(&path).to_string_lossy().into_owned()
        };
        let malformed = std::cell::RefCell::new(HashSet::new());
        let say = |file: &str, line: u64, rule: &'static str, detail: String| {
            if rule == SCHEMA {
                malformed.borrow_mut().insert((file.to_owned(), line));
            }
            report.borrow_mut()(Violation { file: file.to_owned(), line, rule, detail });
        };
        self.for_each_log(
            |_, root, name, dir| {
                // Other programs put other things beside the folders of logs.
                let Ok(dir) = dir else { return };
                let beside = file(root, name.as_ref(), F::SHAPE.head_file);
                let say_beside = &mut |line: u64, rule, detail| say(&beside, line, rule, detail);
                let Some(head) = F::check_head(name, dir, say_beside) else { return };
                let log = file(root, name.as_ref(), F::SHAPE.log_file);
                let mut say_log = |line, rule, detail| say(&log, line, rule, detail);
                if let Some(tally) =
                    self.check_log((root, name, dir), verify, &mut told, &mut say_log)
                {
                    F::check_counts(&head, &tally, say_beside);
                }
            },
            |root, name, rule, why| say(&file(root, name.as_ref(), None), 0, rule, why.into()),
        )?;
        let malformed = malformed.take();
        for Rejection { path, line, reason, .. } in F::list_rejected(self)? {
            let path = file(&self.properties.dir, path.as_ref(), None);
            if !malformed.contains(&(path.clone(), line)) {
                say(&path, line, "rejected", reason);
            }
        }
        Ok(())
    }

    /// Checks a log and returns its counts. `None` if it is not there.
    fn check_log(
        &self,
        (root, name, dir): (&Path, &str, &OwnedFd),
        verify: ClaimVerifier<'_>,
        told: &mut HashSet<String>,
        say: &mut LineReporter<'_>,
    ) -> Option<LogCursor<F::Count>> {
        let LogFile { file, stamp, len: end } = match F::SHAPE.open_log(dir, name) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                say(0, "file", format!("cannot be read: {e}"));
                return None;
            }
        };
        let mut tally = LogCursor::default();
        let mut ids: HashSet<String> = HashSet::new();
        let mut check = |piece: &LogLine<'_>,
                         ended,
                         tally: &mut LogCursor<F::Count>,
                         say: &mut LineReporter<'_>| {
            tally.lines += 1;
            let (text, marked) = piece.strip_bom();
            if marked > 0 {
                let text = "a byte order mark, which other programs cannot read";
                say(tally.lines, "bom", text.into());
            }
            let (ids, told) = (&mut ids, &mut *told);
            let mut line = LineCheck {
                piece,
                text,
                ended,
                root,
                name,
                tally,
                verify,
                ids,
                told,
                reporter: say,
            };
            F::check_line(self, &mut line);
        };
        let read = read_lines(&file, 0, end, |run| match run {
            LineRun::Lines(run, offset) => {
                for piece in split_lines(run, offset) {
                    check(&piece, true, &mut tally, say);
                }
            }
            LineRun::TooLong(..) => {
                tally.lines += 1;
                let text = format!("the line is longer than {} MiB", MAX_LINE >> 20);
                say(tally.lines, SCHEMA, text);
            }
        });
        match read {
            Ok((offset, tail)) => {
                if is_recently_changed(&stamp) {
                    // Its writer may not be done.
                    if let Some(torn) = Violation::describe_torn(&tail) {
                        say(tally.lines + 1, Violation::TORN, torn);
                    }
                    return Some(tally);
                }
                for piece in split_lines(&tail, offset) {
                    check(&piece, false, &mut tally, say);
                }
                Some(tally)
            }
            Err(e) => {
                say(tally.lines + 1, "file", format!("cannot be read to its end: {e}"));
                None
            }
        }
    }
}
