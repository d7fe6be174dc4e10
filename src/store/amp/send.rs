//! Writing: from a draft to signed messages, and into the folders where their readers look
//! (docs/formats/amp.md, sections 2, 4, 7 and 8).
//!
//! An append is made of steps that each happen once or not at all, in an order in which nobody sees a
//! message whose files are missing: attachments on both sides, my `sent/`, the recipient's `inbox/`.
//! Made again after a crash it does what is still missing.

use std::fs::Permissions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::Mode;

use super::Amp;
use super::address;
use super::agent::Agent;
use super::boxes::stem_of;
use super::envelope::{self, ReadState};
use super::filename::{clean, content_type};
use super::id::new_id;
use super::limits::FILE_BYTES;
use super::remote::Choice;
use super::roster::{Recipient, Roster};
use super::several::Several;
use super::write::{self, File, Outgoing};
use crate::model::{Attached, Draft, Message, Timestamp, one_line, plain_id, shell_word};
use crate::store::below;
use crate::store::engine::files::unread::{MAILBOXES, Mail};
use crate::store::place::Slot;
use crate::store::{
    Agents, Fit, Prepared, Preparing, Store as _, StoreError, Told, fs, refuse_headers,
};

/// Mode of folders made here (docs/formats/amp.md, section 2: nothing breaks when they are
/// private).
const DIR_MODE: u32 = 0o700;
/// Mode of files made here.
const FILE_MODE: u32 = 0o600;
/// Mode of what I put into the folders of another user, as the reference has it.
const SHARED_DIR_MODE: u32 = 0o755;
const SHARED_FILE_MODE: u32 = 0o644;
/// A subject made from the body is cut to this many characters.
const MADE_SUBJECT: usize = 80;

/// Where a message goes.
enum Goal<'a> {
    /// Into the folder of an agent of this machine.
    Here(&'a Agent),
    /// To a provider elsewhere.
    Elsewhere {
        /// The link that reaches it.
        link: String,
        /// My address there.
        from: String,
    },
}

impl Amp {
    /// One message for each recipient.
    fn prepare_all(
        &self,
        roster: &Roster,
        draft: &Draft,
        with: &Preparing<'_>,
    ) -> Result<Vec<Prepared>, StoreError> {
        let mut recipients: Vec<(String, Goal<'_>)> = Vec::new();
        let asked: Vec<String> = with.parent.map_or_else(Vec::new, |parent| {
            parent.to.iter().chain(&parent.from).cloned().collect()
        });
        let via = draft.via.as_deref().and_then(|via| self.way(via));
        let choice = via.map_or(Choice::Best(&asked), Choice::Via);
        for to in draft.to.iter().chain(&draft.cc) {
            let (address, goal) = self.goal(roster, to, choice, StoreError::Unreachable)?;
            if !recipients.iter().any(|(known, _)| *known == address) {
                recipients.push((address, goal));
            }
        }
        let is_named = |id: &String| super::id::is_message_id(plain_id(id));
        let is_lost =
            draft.in_reply_to.is_none() && draft.thread.as_ref().is_some_and(|id| !is_named(id));
        refuse_headers("an AMP message that answers none", &[("Thread", is_lost)])?;
        let parent = with.parent.filter(|_| draft.is_reply);
        let subject = subject(draft, parent);
        let everybody: Vec<&str> = recipients.iter().map(|(to, _)| to.as_str()).collect();
        let from: Vec<&str> = recipients.iter().map(|(_, goal)| goal.from(roster)).collect();
        let ids = ids(&from, &everybody, (&subject, &draft.body), with)?;
        let here = draft.in_reply_to.as_deref().map(plain_id);
        let (written, there) = here.map(|id| self.ids_elsewhere(id)).unwrap_or_default();
        let written = written.as_deref().or(here);
        let parent = parent.map(|parent| match written {
            Some(id) => Message { id: id.to_owned(), ..parent.clone() },
            None => parent.clone(),
        });
        let made = |(((to, goal), from), id): (((&String, &Goal<'_>), &&str), String)| {
            let carried = matches!(goal, Goal::Elsewhere { .. });
            let answers = there.as_deref().filter(|_| carried).or(here);
            let who = Who { from, to, everybody: &everybody, carried, answers, written };
            let made = one(&who, (&subject, id), draft, parent.as_ref(), with)?;
            match goal {
                Goal::Here(agent) => check_mailbox(&agent.dir, from, &made)?,
                Goal::Elsewhere { link, .. } => {
                    let sizes: Vec<u64> = draft.attached.iter().map(|file| file.size).collect();
                    self.takes(link, &sizes)
                        .map_err(|why| StoreError::Unreachable(format!("{to}: {why}")))?;
                }
            }
            Ok(made)
        };
        let goals = recipients.iter().map(|(to, goal)| (to, goal));
        goals.zip(&from).zip(ids).map(made).collect()
    }

    /// Where a message to somebody goes, and his address; `broken` is what a config that cannot be read
    /// means.
    fn goal<'r>(
        &self,
        roster: &'r Roster,
        to: &str,
        choice: Choice<'_>,
        broken: fn(String) -> StoreError,
    ) -> Result<(String, Goal<'r>), StoreError> {
        let why = match roster.recipient(to)? {
            Recipient::Local(agent, address) => return Ok((address, Goal::Here(agent))),
            Recipient::Several(why) => return Err(StoreError::Invalid(why)),
            Recipient::Broken(why) => return Err(broken(why)),
            Recipient::Nobody(why) => why,
        };
        let to = to.trim().to_ascii_lowercase();
        let road = self
            .road(&to, choice)
            .map_err(|why| StoreError::Unreachable(format!("{to}: {why}")))?;
        // A registration may be gone since the links were opened.
        match road.filter(|(_, from)| roster.me.has_address(from)) {
            Some((link, from)) => Ok((to, Goal::Elsewhere { link, from })),
            None => Err(StoreError::Unreachable(why)),
        }
    }
}

/// Between whom a message goes.
struct Who<'a> {
    from: &'a str,
    to: &'a str,
    everybody: &'a [&'a str],
    /// A link carries it.
    carried: bool,
    /// The id of the message that it answers, as the recipient has it.
    answers: Option<&'a str>,
    /// The same, where that message was written.
    written: Option<&'a str>,
}

impl Goal<'_> {
    /// My address for whoever is there.
    fn from<'a>(&'a self, roster: &'a Roster) -> &'a str {
        match self {
            Self::Here(_) => &roster.me.address,
            Self::Elsewhere { from, .. } => from,
        }
    }
}

/// The ids of a message to these, which nobody has yet, and the moment they are of. They follow from one
/// another if all of it has one writer; I have another address at each provider.
fn ids(
    from: &[&str],
    everybody: &[&str],
    text: (&str, &str),
    with: &Preparing<'_>,
) -> Result<Vec<String>, StoreError> {
    loop {
        let now = with.used.get();
        let ids: Vec<String> = match from {
            [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|from| from == first) => {
                let several = Several::new(now, first, everybody, text);
                everybody.iter().map(|to| several.id_to(to)).collect()
            }
            _ => from
                .iter()
                .map(|_| Ok(new_id("msg", now, random()?)))
                .collect::<Result<_, StoreError>>()?,
        };
        if !ids.iter().any(|id| (with.taken)(id)) {
            return Ok(ids);
        }
        with.used.set(with.used.get().plus_millis(1));
    }
}

/// Whether a mailbox would take the message now: whoever writes it hears of a close that fails, and
/// of nothing later.
fn check_mailbox(dir: &Path, from: &str, made: &Prepared) -> Result<(), StoreError> {
    can_make(dir, &["messages", "inbox", &address::folder(from)])?;
    if !made.files.is_empty() {
        can_make(dir, &["attachments"])?;
    }
    let files = made.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size));
    fs::room_for(dir, files.saturating_add(made.bytes.len() as u64))
}

fn can_make(base: &Path, parts: &[&str]) -> Result<(), StoreError> {
    below::can_make(base, parts).map_err(|(path, e)| StoreError::io(&path, e))
}

fn one(
    who: &Who<'_>,
    (subject, id): (&str, String),
    draft: &Draft,
    parent: Option<&Message>,
    with: &Preparing<'_>,
) -> Result<Prepared, StoreError> {
    let now = with.used.get();
    let inherited = parent.and_then(|p| p.extra.iter().find(|(name, _)| *name == "Priority"));
    let priority = draft.priority.as_deref().map(str::to_ascii_lowercase);
    // What somebody else wrote as its priority may be any word.
    let inherited = inherited.map(|(_, value)| value.as_str()).filter(|p| write::is_priority(p));
    // Of a message to several each recipient answers his own.
    let several = parent.and_then(Several::of_message).filter(|several| several.is_to(who.to));
    let several = several.filter(|several| who.written.is_some_and(|id| several.has(id)));
    let theirs = several.map(|several| several.id_to(who.to));
    let in_reply_to = theirs.as_deref().or(who.answers);
    let answers = draft.is_reply || in_reply_to.is_some();
    let thread = draft.thread.as_deref().map(plain_id).filter(|t| super::id::is_message_id(t));
    let thread = if answers { thread.or(in_reply_to) } else { thread };
    let named: Vec<(String, String)> = draft
        .attached
        .iter()
        .map(|file| Ok((new_id("att", now, random()?), clean(&file.name))))
        .collect::<Result<_, StoreError>>()?;
    let files: Vec<File<'_>> = draft.attached.iter().zip(&named).map(entry).collect();
    let bytes = write::compose(
        &Outgoing {
            from: who.from,
            to: who.to,
            subject,
            priority: priority.as_deref().or(inherited).unwrap_or("normal"),
            kind: draft.kind.as_deref().unwrap_or(if answers {
                "response"
            } else {
                "notification"
            }),
            in_reply_to,
            thread_id: thread.unwrap_or(&id),
            id: &id,
            now,
            body: &draft.body,
            files: &files,
            recipients: who.everybody,
            carried: who.carried,
            idempotency_key: draft.idempotency_key.as_deref(),
        },
        with.signer,
    )?;
    Ok(Prepared {
        to: who.to.to_owned(),
        thread: thread.unwrap_or(&id).to_owned(),
        id,
        bytes,
        files: draft.attached.clone(),
    })
}

/// An attachment under its id and its clean name.
fn entry<'a>((file, (id, filename)): (&'a Attached, &'a (String, String))) -> File<'a> {
    let (content_type, sha256) = (content_type(filename), file.sha256.as_str());
    File { id, filename, content_type, size: file.size, sha256 }
}

fn random() -> Result<[u8; 8], StoreError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| StoreError::io(Path::new("random numbers"), io::Error::other(e)))?;
    Ok(bytes)
}

/// The subject as written; of a reply, the parent's with one `Re: `; else the first line of the
/// text.
fn subject(draft: &Draft, parent: Option<&Message>) -> String {
    if let Some(subject) = draft.subject.as_deref().filter(|s| !s.trim().is_empty()) {
        return subject.to_owned();
    }
    let cut = |text: &str, max: usize| -> String {
        let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        plain.trim().chars().take(max).collect::<String>().trim_end().to_owned()
    };
    let answered = parent.and_then(|p| p.subject.as_deref()).filter(|s| !s.trim().is_empty());
    let made = if let Some(subject) = answered {
        let mut rest = subject.trim();
        while let Some((head, tail)) = rest.split_at_checked(3)
            && head.eq_ignore_ascii_case("re:")
        {
            rest = tail.trim_start();
        }
        cut(&format!("Re: {rest}"), super::limits::SUBJECT_CHARS)
    } else {
        let first = draft.body.lines().find(|line| !line.trim().is_empty());
        cut(first.unwrap_or_default(), MADE_SUBJECT)
    };
    if made.is_empty() { "(no subject)".to_owned() } else { made }
}

impl Agents for Amp {
    fn agents(&self) -> Vec<String> {
        let Ok(roster) = self.format.home.recent() else { return Vec::new() };
        roster.agents.iter().map(|agent| agent.address.clone()).collect()
    }

    fn told(&self, addresses: &[&str]) -> Vec<Option<Told>> {
        const MAIL: Mail = Mail {
            is_message: |name| stem_of(name).is_some(),
            is_unread: (FILE_BYTES, |bytes| {
                envelope::parse(bytes).is_ok_and(|m| !m.status.is_some_and(ReadState::is_read))
            }),
        };
        let roster = self.format.home.recent().ok().filter(|r| r.agents.len() <= MAILBOXES);
        let told = |address: &&str| {
            let agent = roster.as_ref()?.agents.iter().find(|agent| agent.address == *address)?;
            self.format.others.count(&agent.dir, &["messages/inbox".to_owned()], true, MAIL)
        };
        addresses.iter().map(told).collect()
    }
}

impl crate::store::Outgoing for Amp {
    fn canonical(&self, address: &str) -> String {
        match self.format.home.recent() {
            Ok(roster) => roster.canonical(address),
            Err(_) => address.trim().to_ascii_lowercase(),
        }
    }

    fn fits(&self, text: &str) -> Fit {
        let Ok(roster) = self.format.home.recent() else { return Fit::No };
        let provider = &roster.default_provider;
        match address::parse(text, &roster.me.tenant, provider) {
            Err(_) => Fit::No,
            Ok(_) if !text.contains('@') => Fit::Plain,
            Ok(a) if address::is_local(&a.provider, provider) => Fit::Exact,
            Ok(_) if roster.has(&text.trim().to_ascii_lowercase()) => Fit::Exact,
            Ok(_) if self.is_reached(text) => Fit::Exact,
            // Nobody carries it there, so another store has the first claim.
            Ok(_) => Fit::Plain,
        }
    }

    fn may_be_id(&self, id: &str) -> bool {
        super::id::is_own(id)
    }

    fn registered(&self, address: &str) -> bool {
        let Ok(roster) = self.format.home.recent() else { return false };
        // One whose config is broken for a moment is no stranger.
        match roster.recipient(address) {
            Err(_) => false,
            Ok(Recipient::Nobody(_)) => self.is_reached(address),
            Ok(_) => true,
        }
    }

    fn prepare(&self, draft: &Draft, with: &Preparing<'_>) -> Result<Vec<Prepared>, StoreError> {
        let roster = self.format.home.roster()?;
        self.prepare_all(&roster, draft, with)
    }

    fn appendable(&self, bytes: u64) -> Result<(), StoreError> {
        let dir = &self.about.dir;
        can_make(dir, &["messages", "sent"])?;
        // Every message is stored twice.
        fs::room_for(dir, bytes.saturating_mul(2))
    }

    /// Appends and delivers a prepared message; done again it does only what is missing.
    fn append(&self, message: &Prepared) -> Result<(), StoreError> {
        let _one = self.format.appending.lock();
        let roster = self.format.home.roster()?;
        // A config that is broken is mended soon, so it is tried again soon.
        let stored = envelope::parse(message.bytes.as_bytes())
            .map_err(|e| StoreError::Refused(format!("the message cannot be appended: {e}")))?;
        let choice = Choice::From(&stored.from);
        let (to, goal) = self.goal(&roster, &message.to, choice, StoreError::Busy)?;
        let mine = self.about.dir.as_path();
        let recipient = match goal {
            Goal::Here(agent) => agent.dir.clone(),
            Goal::Elsewhere { link, .. } => {
                let mut parts = Vec::new();
                for (file, attachment) in message.files.iter().zip(&stored.attachments) {
                    let id = attachment.id.as_deref().unwrap_or_default();
                    let name = attachment.filename.as_deref().unwrap_or_default();
                    self.put_attachment(mine, id, name, file)?;
                    parts.push((name.to_owned(), mine.join("attachments").join(id).join(name)));
                }
                // The link has the message on disk at once, so its files are there first.
                if !parts.is_empty() {
                    self.sync()?;
                }
                self.hand_to(&link, &to, message, parts)?;
                return self.put_sent(message, &to);
            }
        };
        let sides = if recipient == *mine { vec![mine] } else { vec![mine, &recipient] };
        for (file, attachment) in message.files.iter().zip(&stored.attachments) {
            let id = attachment.id.as_deref().unwrap_or_default();
            let name = attachment.filename.as_deref().unwrap_or_default();
            for base in &sides {
                self.put_attachment(base, id, name, file)?;
            }
        }
        self.put_sent(message, &stored.to)?;
        let name = format!("{}.json", stored.id);
        let delivered = write::delivered(&message.bytes, Timestamp::now())
            .ok_or_else(|| StoreError::Refused("the message cannot be delivered".into()))?;
        let inbox = address::folder(&stored.from);
        self.put(&recipient, &["messages", "inbox", &inbox], &name, delivered.as_bytes())
    }

    /// Makes the names of everything that was appended durable.
    fn sync(&self) -> Result<(), StoreError> {
        let mut unsynced = self.format.unsynced.lock();
        fs::sync_dirs(&*unsynced)?;
        unsynced.clear();
        Ok(())
    }
}

impl Amp {
    /// Puts a message of mine into my `sent/`.
    fn put_sent(&self, message: &Prepared, to: &str) -> Result<(), StoreError> {
        let (name, folder) = (format!("{}.json", message.id), address::folder(to));
        let path = ["messages", "sent", &folder];
        self.put(&self.about.dir, &path, &name, message.bytes.as_bytes())
    }

    /// Puts a new message file into a folder. One of the same name is this message, from an append
    /// that was interrupted: nobody else makes its id.
    pub(super) fn put(
        &self,
        base: &Path,
        parts: &[&str],
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.put_new(base, parts, name, |file| file.write_all(bytes))?;
        if base == self.about.dir {
            self.note(&base.join(parts.join("/")).join(name));
        }
        Ok(())
    }

    fn put_attachment(
        &self,
        base: &Path,
        id: &str,
        name: &str,
        file: &Attached,
    ) -> Result<(), StoreError> {
        // Asked for only if it is needed: the copy is removed once everything is delivered.
        if below::open_below(base, &["attachments", id, name]).is_ok() {
            return Ok(());
        }
        let source = fs::open_regular(&file.path).map_err(|e| StoreError::io(&file.path, e))?;
        self.put_new(base, &["attachments", id], name, |to| {
            let copied = io::copy(&mut source.take(file.size.saturating_add(1)), to)?;
            if copied == file.size {
                return Ok(());
            }
            Err(io::Error::new(io::ErrorKind::InvalidData, "changed while it was being sent"))
        })
    }

    /// Puts a file into a folder, unless something has its name.
    pub(super) fn put_new(
        &self,
        base: &Path,
        parts: &[&str],
        name: &str,
        fill: impl FnOnce(&mut std::fs::File) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let folder = base.join(parts.join("/"));
        let io = |e| StoreError::io(&folder.join(name), e);
        let dir = below::make_dir(base, parts, DIR_MODE).map_err(io)?;
        // What lies with another user is mine, and he must read it.
        let theirs = std::fs::metadata(base).is_ok_and(|m| fs::foreign_owner(&m).is_some());
        let made = rustix::fs::fstat(&dir).map_err(|e| io(e.into()))?;
        let mine = made.st_uid == rustix::process::geteuid().as_raw();
        if theirs && mine && made.st_mode & 0o777 != SHARED_DIR_MODE {
            let mode = Mode::from_raw_mode(SHARED_DIR_MODE);
            rustix::fs::fchmod(&dir, mode).map_err(|e| io(e.into()))?;
        }
        if below::look(&dir, name).is_err() {
            let fill = |file: &mut std::fs::File| {
                if theirs {
                    file.set_permissions(Permissions::from_mode(SHARED_FILE_MODE))?;
                }
                fill(file)
            };
            match Slot::below(&dir, name).and_then(|slot| slot.fill(FILE_MODE, fill)) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                done => done.map_err(io)?,
            }
            self.format.unsynced.lock().insert(folder);
        }
        Ok(())
    }
}

/// Whether a message can carry these files.
pub(super) fn carries(files: &[(String, u64)]) -> Result<(), StoreError> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in files {
        if name.is_empty() || name.contains('/') || name.contains('\0') {
            return Err(StoreError::Invalid(format!(
                "Attach: {} is not the name of a file",
                one_line(name)
            )));
        }
        let clean = clean(name);
        if names.contains(&clean) {
            return Err(StoreError::Invalid(format!(
                "Attach: two files would be called {} in this store; rename one of them",
                shell_word(&clean)
            )));
        }
        names.push(clean);
    }
    write::check_sizes(files.iter().map(|(name, size)| (name.as_str(), *size)))
}
