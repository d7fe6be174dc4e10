//! `README.txt`: everything that an agent needs if it sees nothing else.

use super::attr::README_TIME;
use super::table::{NodeAttributes, TreeChanges, View};
use super::{CachePolicy, Error, Tree};
use crate::model::{MarkRead, Timestamp};
use crate::search::IS_BUILT;

/// A file that every store takes if it carries files at all.
const SOME_FILE: (&str, u64) = ("file.txt", 1);

/// The view `README.txt`.
#[derive(Debug, Default)]
pub(super) struct ReadmeView;

impl View for ReadmeView {
    type Key = ();

    fn stat(&self, tree: &Tree, (): &()) -> Result<NodeAttributes, Error> {
        Ok(NodeAttributes::of_text(&self.text(tree, &())?, CachePolicy::Immutable))
    }

    fn text(&self, tree: &Tree, (): &()) -> Result<(String, Timestamp), Error> {
        Ok((readme_text(tree), README_TIME))
    }

    fn newest_time(&self, _tree: &Tree, (): &()) -> Option<Timestamp> {
        Some(README_TIME)
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<()> {
        if changes.index.stores { vec![()] } else { Vec::new() }
    }
}

/// Returns the text; at most 40 lines.
fn readme_text(tree: &Tree) -> String {
    let me = &tree.settings.me;
    let note = if tree.is_view_only() { " Nothing can be sent or marked here." } else { "" };
    let (reading, each) = (about_reading(tree), about_each(tree));
    let (parts, texts) = (about_parts(tree), about_texts(tree));
    let (ack, files, headers) = (about_ack(tree), about_files(tree), about_headers(tree));
    let (answer, search) = (about_answer(tree), about_search(tree));
    let patience = tree.settings.wait_timeout;
    format!(
        "This folder is the mailbox of \"{me}\". Each message is a file: use ls, cat and echo.{note}

CHECK MAIL
  ls inbox         list the unread messages, oldest first; ls, grep, head, sed, awk and cp mark nothing
{reading}  cat .next        read the oldest and mark it; wait for it up to {patience:?}; no two readers get the same.
                   It prints no file name: the id in its line Message-ID: is enough to answer (REPLY)
  cat .wait        wait up to {patience:?} for unread mail, and print the names, or nothing if none came
{each}  cat .watch | while read NAME; do ...; done      get the name of each message that comes, without end

REPLY (beside any message, in any folder, also after you have read it)
  echo \"text\" > inbox/NAME.reply      to its sender (.reply-all: and to all others); NAME without .txt
  echo \"text\" > threads/THREAD/new    to the last who wrote to you in it, else to whom you wrote
  NAME can be the 8 characters at its end, or what Message-ID: has before the last @: inbox/ab12cd34.reply
{ack}
SEND
  echo \"text\" > outbox/BOB            to the agent or the group called BOB (agents.txt); with headers:
  printf 'To: bob, carol\\nSubject: schema change\\n\\nThe text.\\n' > outbox/BOB
{files}  Other headers: Cc, Bcc, Thread, In-Reply-To, Via,{headers} Idempotency-Key (makes a retry harmless).
  To: says to whom you write, not who can read it: all who have the same store can (threads/, raw/).
  echo cannot report a refusal: the lines \"last sent:\" and \"last refusal:\" of status.txt show it, and sent.txt
  has a line for each message and recipient: waiting, stored, delivered, told, passed, read, answered or refused.
  A refused draft stays: outbox/BOB.error (outbox/NAME.reply.error) says why. To drop it: rm outbox/BOB
  A name that resembles a known one is refused, unless it stands in To:. status.txt lists other new names.
{answer}
LOOK AROUND (this marks nothing as read)
  archive/YYYY-MM-DD/    all messages to you, by day        sent/YYYY-MM-DD/    all messages from you
  threads/THREAD/        one conversation, oldest first, also what others in it wrote to each other
  transcripts/           each conversation as one text      rejected/           what was not accepted, and why
{search}  agents.txt             each agent: name, stores, last wrote, unread, key, pinned, mounted (-: not known)
  status.txt             your name, unread mail, health   .maildir/  for mail programs   raw/  the stores' files
{parts}{texts}The line \"Signature: valid\" proves From:; \"none\", \"unknown\" and \"missing\" prove nothing about who wrote.
"
    )
}

/// Returns the lines about reading one message.
fn about_reading(tree: &Tree) -> &'static str {
    match tree.settings.mark_read {
        _ if tree.is_view_only() => "  cat inbox/NAME   read one (* reads all)\n",
        MarkRead::OnRead => {
            "  cat inbox/NAME   read one (* reads all); it is then marked as read, and leaves inbox/\n"
        }
        MarkRead::OnRemove => {
            "  cat inbox/NAME   read one (* reads all); rm inbox/NAME marks it as read\n"
        }
    }
}

/// Returns the line about reading each message as it comes, if reading can mark it.
fn about_each(tree: &Tree) -> String {
    let remove = match tree.settings.mark_read {
        _ if tree.is_view_only() => return String::new(),
        MarkRead::OnRead => "",
        MarkRead::OnRemove => "; rm inbox/$NAME",
    };
    let each = format!("for NAME in $(cat .wait); do cat inbox/$NAME{remove}; done");
    format!("  while :; do {each}; done      read all that comes\n")
}

/// Returns the lines about sending files, if messages here can carry some.
fn about_files(tree: &Tree) -> &'static str {
    if can_carry_files(tree) && !tree.is_view_only() {
        "  A file goes along by a header with its absolute path (Attach: /tmp/plan.pdf), or in a folder, body last:
  mkdir outbox/BOB; cp plan.pdf outbox/BOB/; echo \"text\" > outbox/BOB/body\n"
    } else {
        ""
    }
}

/// Returns the line about `.answer`, if reading can mark.
fn about_answer(tree: &Tree) -> String {
    if tree.is_view_only() {
        return String::new();
    }
    let patience = tree.settings.wait_timeout;
    format!(
        "  cat sent/*/NAME.answer              wait up to {patience:?} for the answer to a message of yours, and read it\n"
    )
}

/// Returns true if a store here carries files.
fn can_carry_files(tree: &Tree) -> bool {
    let file = [(SOME_FILE.0.to_owned(), SOME_FILE.1)];
    tree.index.stores().iter().any(|s| s.properties().check_attachments(&file).is_ok())
}

/// Returns the line about `.d/`, if messages here can carry files.
fn about_parts(tree: &Tree) -> &'static str {
    if can_carry_files(tree) {
        "  NAME.d/                the files that came with the message NAME.txt, beside it\n"
    } else {
        ""
    }
}

/// Returns the line about `.ack`, if messages here can ask for one.
fn about_ack(tree: &Tree) -> &'static str {
    let asked = tree.index.stores().iter().any(|s| s.kind().row().has_acks);
    if asked && !tree.is_view_only() {
        "  echo ok > inbox/NAME.ack            acknowledge a message that asks for it\n"
    } else {
        ""
    }
}

/// Returns the header names that only some stores know.
fn about_headers(tree: &Tree) -> String {
    let all = tree.index.stores().iter().flat_map(|s| s.properties().headers);
    all.fold(String::new(), |known, name| {
        let more = format!(" {name},");
        if known.contains(&more) { known } else { known + &more }
    })
}

/// Returns the line about `search/`, if there is any.
fn about_search(tree: &Tree) -> &'static str {
    if IS_BUILT && tree.settings.search.is_some() {
        "  search/\"WORD WORD\"/    the messages with all these words; hits.txt there is short; also from:BOB, -WORD\n"
    } else {
        ""
    }
}

/// Returns the line about `me/`, if there is any.
fn about_texts(tree: &Tree) -> String {
    let mut keepers =
        tree.index.stores().iter().filter_map(|s| Some((s.name(), s.facets().notebook?)));
    let Some((_, first)) = keepers.next() else { return String::new() };
    let store = if keepers.next().is_some() { "STORE/" } else { "" };
    let path = format!("me/{store}{{{}}}/", first.folders().join(","));
    let how = if tree.is_view_only() { "" } else { ": > replaces a text, >> adds to it" };
    format!("  {path:<22} texts that you keep for yourself{how}\n")
}
