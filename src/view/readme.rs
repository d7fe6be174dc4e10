//! `README.txt`: all that an agent needs that sees nothing else.

use super::Tree;

/// A file that stores which carry files at all would take.
const SOME_FILE: (&str, u64) = ("file.txt", 1);

impl Tree {
    /// The text; at most 40 lines.
    pub(super) fn readme(&self) -> String {
        let me = &self.settings.me;
        let can_write = if self.only_shows() {
            "\nThis mount is read-only: nothing can be sent or marked.\n"
        } else {
            ""
        };
        let (parts, texts) = (self.about_parts(), self.about_texts());
        let (ack, headers) = (self.about_ack(), self.about_headers());
        let patience = self.settings.wait_timeout;
        format!(
            "This folder is the mailbox of \"{me}\". Messages are files; use ls, cat and echo.
{can_write}
CHECK MAIL
  ls inbox                        unread messages, oldest first
  cat inbox/NAME                  read one; it is then marked read and leaves inbox/ (* reads all);
                                  so does .next; head, tail, sed, awk, grep, cp and ls mark nothing
  cat .next                       read the oldest, waiting for one; no two readers get the same
  cat .wait                       wait until there is unread mail: its names, or nothing after {patience:?}
  cat .watch | while read NAME; do ...; done      the names of what arrives, one by one, without end

REPLY
  echo \"text\" > inbox/NAME.reply          to the sender of that message (NAME without .txt)
  echo \"text\" > inbox/NAME.reply-all      to its sender and all its other recipients
  echo \"text\" > threads/THREAD/new        to who last wrote to you in it, else to whom you wrote
  NAME can be the 8 characters that end it, or what Message-ID: has before the @, as in
  inbox/ab12cd34.reply. Replies work beside any message, also after it was read.
{ack}
SEND
  echo \"text\" > outbox/BOB                to the agent called BOB
  Several lines, a subject, several recipients:
    printf 'To: bob, carol\\nSubject: schema change\\n\\nThe text.\\n' > outbox/BOB
  Other headers: Cc, Bcc, Thread, In-Reply-To, Via,{headers} Idempotency-Key (makes a retry harmless).
  A sent message leaves outbox/ and is in sent/. If it was refused it stays in outbox/, and
  outbox/BOB.error says why and what to do (and so does NAME.reply.error). To a name never seen before it is sent, and status.txt
  says so; if the name looks like a known one misspelt, it is refused unless it stands in To:.

LOOK AROUND (never marks anything read)
  archive/YYYY-MM-DD/    every message to you, by day       sent/YYYY-MM-DD/    every message from you
  threads/THREAD/        your conversations, oldest first, with what others in them wrote each other
  transcripts/           each as one text                   raw/                the stores' own files
  rejected/              what was refused on the way in, and why (bad signature, broken file)
  agents.txt             who there is, a line each: name, stores, last wrote, unread, key, pinned
  status.txt             you, unread, health, last refusal  .maildir/           for mail programs (not listed)
{parts}{texts}
The line Signature: in a message says who vouches for From: \"valid\" is signed by the key known for
that sender; \"none\", \"unknown\" and \"missing\" are not proof of who wrote it.
"
        )
    }

    /// The line about `.d/`, if messages here can carry files.
    fn about_parts(&self) -> &'static str {
        let file = [(SOME_FILE.0.to_owned(), SOME_FILE.1)];
        if self.index.stores().iter().any(|s| s.about().carries(&file).is_ok()) {
            "  NAME.d/                the files that came with a message, beside its NAME.txt\n"
        } else {
            ""
        }
    }

    /// The line about `.ack`, if messages here can ask for one.
    fn about_ack(&self) -> &'static str {
        let asked = self.index.stores().iter().any(|s| s.kind().acknowledges());
        if asked && !self.only_shows() {
            "  echo ok > inbox/NAME.ack                acknowledges a message that asks for it\n"
        } else {
            ""
        }
    }

    /// The header lines that only some stores know.
    fn about_headers(&self) -> String {
        let all = self.index.stores().iter().flat_map(|s| s.about().headers);
        all.fold(String::new(), |known, name| {
            let more = format!(" {name},");
            if known.contains(&more) { known } else { known + &more }
        })
    }

    /// The line about `me/`, if there is any.
    fn about_texts(&self) -> String {
        let mut keepers =
            self.index.stores().iter().filter_map(|s| Some((s.name(), s.facets().notebook?)));
        let Some((_, first)) = keepers.next() else { return String::new() };
        let store = if keepers.next().is_some() { "STORE/" } else { "" };
        let path = format!("me/{store}{{{}}}/", first.folders().join(","));
        let how = if self.only_shows() { "" } else { ": > replaces one, >> adds to it" };
        format!("  {path:<22} your own texts, kept for you{how}\n")
    }
}
