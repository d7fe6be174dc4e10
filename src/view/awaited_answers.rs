//! Reads that wait for the answer to a message of mine: `<name>.answer` beside it in `sent/`, and `msgfs ask`
//! (docs/SEMANTICS.md, S952 to S955).

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answered::{Answer, Question};
use super::file::{FileContent, OpenFile, OpenRequest, ReadToEndMark};
use super::receipts::find_refusals;
use super::wait::{Awaited, refuse_stranger, wait_until};
use super::{Error, Tree};
use crate::index::MsgIx;
use crate::model::locks::Mutex;
use crate::model::{Timestamp, sanitize_line};
use crate::outbox::IDEMPOTENCY_WINDOW_MS;

/// Longest time between two checks whether a link has refused the question.
const ROUND: Duration = Duration::from_secs(10);

/// Opens a `.answer`.
pub(super) fn open_answer(tree: &Tree, ix: MsgIx, how: &OpenRequest) -> Result<OpenFile, Error> {
    refuse_stranger(how)?;
    let question = find_answerable(tree, ix)?;
    let awaited = Awaited::Answer(Box::new(question), Instant::now());
    Ok(OpenFile::Waiting { awaited, opener: how.opener, answer: Mutex::new(None) })
}

/// Finds a message of mine to which answers can be known.
fn find_answerable(tree: &Tree, ix: MsgIx) -> Result<Question, Error> {
    let question = Question::find(tree, ix)?;
    match question.store_without_answers(tree) {
        None => Ok(question),
        Some(store) => Err(Error::NotPermitted(format!(
            "messages in the store {store} do not tell which message they answer; wait for mail with .next"
        ))),
    }
}

/// Returns the content of a `.answer`: the oldest unread answer, which nobody else gets until this reader closes it. If
/// all recipients have answered and all answers were read, it is the newest answer, unless another reader got it since
/// this file was opened.
pub(super) fn claim_answer(
    tree: &Tree,
    question: &Question,
    (opener, opened): (u32, Instant),
) -> Result<Option<FileContent>, Error> {
    let wait = &tree.views.wait;
    let answers = question.list_answers(tree)?;
    for Answer { ix, .. } in &answers {
        let is_free = is_unread(tree, *ix) && wait.try_claim(tree, *ix, true);
        // The answer may have been read while it was claimed.
        if is_free && !is_unread(tree, *ix) {
            wait.return_claim(tree, *ix);
        } else if is_free && let Some(bytes) = render_claimed(tree, *ix)? {
            let mark = Some(ReadToEndMark::new(*ix, opener));
            return Ok(Some(FileContent { bytes, mark }));
        }
    }
    let is_done = question.list_missing(tree, &answers).is_empty()
        && !answers.iter().any(|answer| wait.is_claimed(answer.ix));
    let newest =
        answers.last().filter(|newest| is_done && !wait.was_claimed_since(newest.ix, opened));
    let text = newest.map(|newest| tree.texts.rendered_text(newest.ix));
    match text.transpose() {
        Err(Error::NotFound) => Ok(None),
        text => Ok(text?.map(|bytes| FileContent { bytes, mark: None })),
    }
}

fn is_unread(tree: &Tree, ix: MsgIx) -> bool {
    tree.index.read().messages.entry(ix).is_unread()
}

/// Returns the text of a claimed message. If there is none, its claim ends; a message that is gone is no error.
fn render_claimed(tree: &Tree, ix: MsgIx) -> Result<Option<Arc<[u8]>>, Error> {
    match tree.texts.rendered_text(ix) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) => {
            tree.views.wait.return_claim(tree, ix);
            if matches!(e, Error::NotFound) { Ok(None) } else { Err(e) }
        }
    }
}

/// A question of `msgfs ask`. It may be several messages: one for each store.
#[derive(Clone, Copy, Debug)]
pub struct AskQuery<'a> {
    /// The idempotency key of the messages.
    pub key: &'a str,
    /// The identities of the answers that were printed already.
    pub printed: &'a [u64],
}

/// The state of a question of `msgfs ask`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskProgress {
    /// The identity and the sender of the answer that was printed now.
    pub printed: Option<(u64, String)>,
    /// The recipients who have not answered.
    pub missing: Vec<String>,
    /// The recipients who have not answered and never get the question, with the reasons.
    pub refused: Vec<(String, String)>,
    /// The paths of `.answer` beside the messages.
    pub paths: Vec<String>,
}

impl AskProgress {
    /// Returns true if answers are missing, and nobody is left who could give one.
    pub fn is_hopeless(&self) -> bool {
        self.missing.is_empty() && !self.refused.is_empty()
    }
}

/// Writes the next answer to a question to `out`, and marks it read once it is written. Waits for it as long as
/// somebody is left who could answer.
///
/// # Errors
/// If answers cannot be known, or the answer cannot be written. It is then not marked.
pub fn copy_next_answer(
    tree: &Tree,
    query: AskQuery<'_>,
    timeout: Duration,
    out: &mut dyn Write,
) -> Result<AskProgress, Error> {
    let mut claimed = None;
    let look = || {
        let unprinted = list_unprinted(tree, query)?;
        let has_answer = !unprinted.is_empty();
        for answer in unprinted {
            // An answer that somebody else has read is printed, too.
            if tree.views.wait.try_claim(tree, answer.ix, false)
                && let Some(bytes) = render_claimed(tree, answer.ix)?
            {
                claimed = Some((answer, bytes));
                break;
            }
        }
        let is_over =
            claimed.is_some() || !has_answer && describe_progress(tree, query)?.is_hopeless();
        Ok::<bool, Error>(is_over)
    };
    wait_until(tree, timeout, look, || None)?;
    let mut progress = describe_progress(tree, query)?;
    if let Some((Answer { ix, from, .. }, bytes)) = claimed {
        let written = out.write_all(&bytes).and_then(|()| out.flush());
        if written.is_ok() {
            tree.note_reading(ix);
            tree.views.wait.note_read(tree, ix);
        }
        tree.views.wait.return_claim(tree, ix);
        written?;
        progress.printed = Some((tree.index.read().messages.entry(ix).identity(), from));
    }
    Ok(progress)
}

/// Waits until there is an answer that was not printed, or nobody is left who could answer. Returns false if neither
/// comes in time.
///
/// # Errors
/// If answers cannot be known.
pub fn wait_for_answer(tree: &Tree, query: AskQuery<'_>, timeout: Duration) -> Result<bool, Error> {
    let is_over = || {
        let has_answer = !list_unprinted(tree, query)?.is_empty();
        Ok::<bool, Error>(has_answer || describe_progress(tree, query)?.is_hopeless())
    };
    let deadline = Instant::now() + timeout;
    loop {
        // A link that refuses the question may change nothing in the index.
        let left = deadline.saturating_duration_since(Instant::now());
        if wait_until(tree, left.min(ROUND), is_over, || None)? || left <= ROUND {
            return is_over();
        }
    }
}

/// Returns the messages of a question that their stores have.
fn find_questions(tree: &Tree, key: &str) -> Result<Vec<Question>, Error> {
    let since = Timestamp::now().plus_millis(-IDEMPOTENCY_WINDOW_MS);
    let asked: Vec<MsgIx> = {
        let messages = &tree.index.read().messages;
        let is_asked = |ix: &MsgIx| {
            let entry = messages.entry(*ix);
            entry.is_from_me() && entry.time() >= since && !messages.is_copy(*ix)
        };
        messages.find_by_idempotency_key(key).iter().copied().filter(is_asked).collect()
    };
    let found = asked.into_iter().map(|ix| find_answerable(tree, ix));
    // A question that has just gone is left out.
    found.filter(|found| !matches!(found, Err(Error::NotFound))).collect()
}

/// Returns the answers to a question that were not printed, oldest first.
fn list_unprinted(tree: &Tree, query: AskQuery<'_>) -> Result<Vec<Answer>, Error> {
    let mut all = Vec::new();
    for question in find_questions(tree, query.key)? {
        all.extend(question.list_answers(tree)?);
    }
    let tables = tree.index.read();
    let identity = |ix| tables.messages.entry(ix).identity();
    all.retain(|answer| !query.printed.contains(&identity(answer.ix)));
    all.sort_by_key(|answer| answer.time);
    Ok(all)
}

fn describe_progress(tree: &Tree, query: AskQuery<'_>) -> Result<AskProgress, Error> {
    let mut progress = AskProgress::default();
    for question in find_questions(tree, query.key)? {
        let mut refusals = find_refusals(tree, question.ix);
        for to in question.list_missing(tree, &question.list_answers(tree)?) {
            match refusals.remove(sanitize_line(&to).as_ref()) {
                Some(why) => progress.refused.push((to, why)),
                None => progress.missing.push(to),
            }
        }
        let day = {
            let tables = tree.index.read();
            tables.messages.name_time(tables.messages.entry(question.ix)).day()
        };
        let name = tree.names.message_name(question.ix);
        progress.paths.push(format!("sent/{day}/{}.answer", name.trim_end_matches(".txt")));
    }
    Ok(progress)
}
