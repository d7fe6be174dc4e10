//! `msgfs check`: every line of every log against the rules of the format.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use rustix::fs::Dir;

use super::log::{MAX_LINE, Piece, Run, Tally, pieces, read_lines};
use super::scan::is_young;
use super::{Format, Lines, Named};
use crate::model::{Claim, one_line};
use crate::store::fs::Stamp;
use crate::store::{Report, StoreError, Verify, Violation, below};

/// Reports a violation: line (0: the file), rule, sentence.
pub type Say<'a> = dyn FnMut(u64, &'static str, String) + 'a;

/// A line that is checked.
pub struct Checked<'c, F: Format> {
    /// The line as it is.
    pub piece: &'c Piece<'c>,
    /// The same without the mark that may begin a file.
    pub text: &'c str,
    /// It ends in a newline.
    pub ended: bool,
    /// The root of the log, and the name of the log in it.
    pub root: &'c Path,
    /// As [`Format::classify`] knows it.
    pub name: &'c str,
    /// What was counted so far, this line included.
    pub tally: &'c mut Tally<F::Count>,
    /// Answers with what is wrong with a signature.
    verify: Verify<'c>,
    ids: &'c mut HashSet<String>,
    say: &'c mut Say<'c>,
}

impl<F: Format> Checked<'_, F> {
    /// Reports that the last line does not end in a newline.
    pub fn unended(&mut self) {
        self.say("unterminated", "the last line does not end in a newline".into());
    }

    /// Reports a violation.
    pub fn say(&mut self, rule: &'static str, detail: String) {
        (self.say)(self.tally.lines, rule, detail);
    }

    /// Takes the id of a message, which no other of the log may have.
    pub fn id(&mut self, id: &str) {
        if !self.ids.insert(id.to_owned()) {
            let id = one_line(id).into_owned();
            self.say("duplicate", format!("the id {id:?} is in this log before"));
        }
    }

    /// Takes the signature of a message.
    pub fn claim(&mut self, claim: Option<Claim>) {
        if let Some(wrong) = claim.as_ref().and_then(self.verify) {
            self.say("signature", wrong);
        }
    }
}

impl<F: Format> Lines<F> {
    /// Where logs lie, whether or not they were looked at.
    fn roots_now(&self) -> Vec<super::table::Root> {
        let mut roots = self.table.read().roots.clone();
        if roots.is_empty() {
            self.format.find_roots(&self.about.dir, &mut roots, true, &HashSet::new());
        }
        roots
    }

    /// Every name among the logs of all roots that is UTF-8, with the root and the open folder in which
    /// the log lies; `bad` hears of other names.
    ///
    /// # Errors
    /// Only if there is no store without the folder.
    pub(crate) fn each_log(
        &self,
        mut each: impl FnMut(u32, &Path, &str, io::Result<&OwnedFd>),
        mut bad: impl FnMut(&Path, OsString, &'static str, &str),
    ) -> Result<(), StoreError> {
        for (n, root) in (0u32..).zip(self.roots_now()).filter(|(_, root)| root.here) {
            let listed = below::open_dir(&root.path, F::SHAPE.folder)
                .and_then(|dir| Ok((Dir::read_from(&dir)?, dir)));
            let (entries, dir) = match listed {
                Ok(listed) => listed,
                Err(e) if e.kind() == io::ErrorKind::NotFound && self.is_unborn() => continue,
                Err(e) if F::SHAPE.is_flat() => return Err(StoreError::io(&root.path, e)),
                Err(_) => continue,
            };
            let bytes = entries.flatten().map(|e| e.file_name().to_bytes().to_vec());
            let mut names: Vec<OsString> = bytes.map(OsString::from_vec).collect();
            names.sort_unstable();
            for name in names.into_iter().filter(|name| name != "." && name != "..") {
                let Some(text) = name.to_str() else {
                    bad(&root.path, name, "name", "the name is not UTF-8");
                    continue;
                };
                match F::classify(text) {
                    Named::Other => {}
                    Named::Bad(rule, why) => bad(&root.path, name, rule, why),
                    Named::Log if F::SHAPE.file.is_none() => each(n, &root.path, text, Ok(&dir)),
                    Named::Log => {
                        let opened = below::step(&dir, text);
                        each(n, &root.path, text, opened.as_ref().map_err(|e| e.kind().into()));
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_logs(
        &self,
        verify: Verify<'_>,
        report: Report<'_>,
    ) -> Result<(), StoreError> {
        let report = std::cell::RefCell::new(report);
        let file = |root: &Path, name: &Path, file: Option<&str>| {
            let path = F::SHAPE.folder.iter().fold(root.to_owned(), |p, part| p.join(part));
            let path = file.map_or_else(|| path.join(name), |file| path.join(name).join(file));
            path.strip_prefix(&self.about.dir).unwrap_or(&path).to_string_lossy().into_owned()
        };
        let say = |file: &str, line: u64, rule: &'static str, detail: String| {
            report.borrow_mut()(Violation { file: file.to_owned(), line, rule, detail });
        };
        self.each_log(
            |_, root, name, dir| {
                // Other programs put other things beside the folders of logs.
                let Ok(dir) = dir else { return };
                let beside = file(root, name.as_ref(), F::SHAPE.beside);
                let say_beside = &mut |line: u64, rule, detail| say(&beside, line, rule, detail);
                let Some(head) = F::check_head(name, dir, say_beside) else { return };
                let log = file(root, name.as_ref(), F::SHAPE.file);
                let mut say_log = |line, rule, detail| say(&log, line, rule, detail);
                if let Some(tally) = self.check_log(root, name, dir, verify, &mut say_log) {
                    F::check_counted(&head, &tally, say_beside);
                }
            },
            |root, name, rule, why| say(&file(root, name.as_ref(), None), 0, rule, why.into()),
        )
    }

    /// Checks a log; what is counted in it. `None` if it is not here.
    fn check_log(
        &self,
        root: &Path,
        name: &str,
        dir: &OwnedFd,
        verify: Verify<'_>,
        say: &mut Say<'_>,
    ) -> Option<Tally<F::Count>> {
        let file = match below::open_file(dir, F::SHAPE.file.unwrap_or(name)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                say(0, "file", format!("cannot be read: {e}"));
                return None;
            }
        };
        let end = Stamp::of(&file).ok()?.size;
        let mut tally = Tally::default();
        let mut ids: HashSet<String> = HashSet::new();
        let mut check =
            |piece: &Piece<'_>, ended, tally: &mut Tally<F::Count>, say: &mut Say<'_>| {
                tally.lines += 1;
                let (text, marked) = piece.unmarked();
                if marked > 0 {
                    let text = "a byte order mark, which other programs cannot read";
                    say(tally.lines, "bom", text.into());
                }
                let ids = &mut ids;
                let mut line = Checked { piece, text, ended, root, name, tally, verify, ids, say };
                F::check_line(self, &mut line);
            };
        let read = read_lines(&file, 0, end, |run| match run {
            Run::Lines(run, offset) => {
                for piece in pieces(run, offset) {
                    check(&piece, true, &mut tally, say);
                }
            }
            Run::TooLong(..) => {
                tally.lines += 1;
                let text = format!("the line is longer than {} MiB", MAX_LINE >> 20);
                say(tally.lines, "schema", text);
            }
        });
        match read {
            Ok((offset, tail)) => {
                if Stamp::of(&file).is_ok_and(|stamp| is_young(&stamp)) {
                    // Its writer may not be done.
                    if let Some(torn) = Violation::torn(&tail) {
                        say(tally.lines + 1, Violation::TORN, torn);
                    }
                    return Some(tally);
                }
                for piece in pieces(&tail, offset) {
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
