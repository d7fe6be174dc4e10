//! Sending: from a draft to signed messages in the folders of their readers (docs/formats/amp.md, sections 2, 4, 7 and
//! 8).
//!
//! An append is a sequence of steps, and each happens once or not at all. The order is: attachments on both sides, my
//! `sent/`, the recipient's `inbox/`. So nobody sees a message whose files are missing. A repeated append after a crash
//! does the missing steps.

use std::fs::Permissions;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::Mode;

use super::AmpStore;
use super::address;
use super::agent::AmpAgent;
use super::envelope::{self, ReadState};
use super::filename::{clean_filename, guess_content_type};
use super::format::message_file_stem;
use super::id::new_id;
use super::limits::FILE_BYTES;
use super::multicast::AmpMulticast;
use super::registration;
use super::remote::AmpLinkChoice;
use super::roster::{AmpRecipient, Roster};
use super::write::{self, AmpNewAttachment, AmpNewMessage};
use crate::model::{
    DeliveryState, Draft, DraftAttachment, Message, Timestamp, plain_id, quote_shell_word,
    reply_subject, sanitize_line,
};
use crate::store::atomic_file::FileSlot;
use crate::store::confined;
use crate::store::engine::files::unread::{MAILBOXES, UnreadRules};
use crate::store::{
    AddressFit, Durability, PeerReadState, PrepareContext, PreparedRecord, Receipt, SentMessage,
    Store as _, StoreDirectory, StoreError, fs, refuse_headers,
};

/// The mode of new folders (docs/formats/amp.md, section 2: nothing breaks when they are private).
const DIR_MODE: u32 = 0o700;
/// The mode of new files.
const FILE_MODE: u32 = 0o600;
/// The modes of my folders and files below another user's folder, as in the reference.
const SHARED_DIR_MODE: u32 = 0o755;
const SHARED_FILE_MODE: u32 = 0o644;
/// A subject made from the body is cut to this many characters.
const MADE_SUBJECT: usize = 80;

/// The destination of a message.
enum AmpDestination<'a> {
    /// The folder of an agent of this machine.
    Here(&'a AmpAgent),
    /// A provider elsewhere.
    Elsewhere {
        /// The link that reaches it.
        link: String,
        /// My address there.
        from: String,
    },
}

impl AmpStore {
    /// Prepares one message for each recipient.
    fn prepare_for_recipients(
        &self,
        roster: &Roster,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        let mut recipients: Vec<(String, AmpDestination<'_>)> = Vec::new();
        let asked: Vec<String> = with.parent.map_or_else(Vec::new, |parent| {
            parent.to.iter().chain(&parent.from).cloned().collect()
        });
        let via = draft.via.as_deref().and_then(|via| self.find_via_link(via));
        let choice = via.map_or(AmpLinkChoice::Best(&asked), AmpLinkChoice::Via);
        for to in draft.to.iter().chain(&draft.cc) {
            let (address, goal) =
                self.resolve_destination(roster, to, choice, StoreError::Unreachable)?;
            if !recipients.iter().any(|(known, _)| *known == address) {
                recipients.push((address, goal));
            }
        }
        let is_named = |id: &String| super::id::is_message_id(plain_id(id));
        let is_lost =
            draft.in_reply_to.is_none() && draft.thread.as_ref().is_some_and(|id| !is_named(id));
        refuse_headers("an AMP message that answers none", &[("Thread", is_lost)])?;
        let parent = with.parent.filter(|_| draft.is_reply);
        let subject = choose_subject(draft, parent);
        let everybody: Vec<&str> = recipients.iter().map(|(to, _)| to.as_str()).collect();
        let from: Vec<&str> =
            recipients.iter().map(|(_, goal)| goal.sender_address(roster)).collect();
        let ids = assign_ids(&from, &everybody, (&subject, &draft.body), with)?;
        let here = draft.in_reply_to.as_deref().map(plain_id);
        let (written, there) = here.map(|id| self.lookup_remote_ids(id)).unwrap_or_default();
        let written = written.as_deref().or(here);
        let parent = parent.map(|parent| match written {
            Some(id) => Message { id: id.to_owned(), ..parent.clone() },
            None => parent.clone(),
        });
        let made = |(((to, goal), from), id): (((&String, &AmpDestination<'_>), &&str), String)| {
            let carried = matches!(goal, AmpDestination::Elsewhere { .. });
            let answers = there.as_deref().filter(|_| carried).or(here);
            let who = AmpAddressing {
                from,
                to,
                recipients: &everybody,
                is_carried: carried,
                in_reply_to: answers,
                origin_id: written,
            };
            let made = prepare_message(&who, (&subject, id), draft, parent.as_ref(), with)?;
            match goal {
                AmpDestination::Here(agent) => check_mailbox(&agent.dir, from, &made)?,
                AmpDestination::Elsewhere { link, .. } => {
                    let sizes: Vec<u64> = draft.attachments.iter().map(|file| file.size).collect();
                    self.check_link_limits(link, &sizes)
                        .map_err(|why| StoreError::Unreachable(format!("{to}: {why}")))?;
                }
            }
            Ok(made)
        };
        let goals = recipients.iter().map(|(to, goal)| (to, goal));
        goals.zip(&from).zip(ids).map(made).collect()
    }

    /// Finds the destination of a message and the recipient's address. `broken` makes the error for an unreadable
    /// config.
    fn resolve_destination<'r>(
        &self,
        roster: &'r Roster,
        to: &str,
        choice: AmpLinkChoice<'_>,
        broken: fn(String) -> StoreError,
    ) -> Result<(String, AmpDestination<'r>), StoreError> {
        let why = match roster.resolve_recipient(to)? {
            AmpRecipient::Local(agent, address) => {
                return Ok((address, AmpDestination::Here(agent)));
            }
            AmpRecipient::Ambiguous(why) => return Err(StoreError::Invalid(why)),
            AmpRecipient::Broken(why) => return Err(broken(why)),
            AmpRecipient::Unknown(why) => why,
        };
        let to = to.trim().to_ascii_lowercase();
        let road = self
            .choose_link(&to, choice)
            .map_err(|why| StoreError::Unreachable(format!("{to}: {why}")))?;
        // The registration may have gone since the links were opened.
        let road = road.filter(|(_, from)| roster.me.has_address(from));
        let Some((link, from)) = road else {
            let why = self.explain_stopped_link(roster, &to).unwrap_or(why);
            return Err(StoreError::Unreachable(why));
        };
        Ok((to, AmpDestination::Elsewhere { link, from }))
    }

    /// Returns why nothing reaches an address although I am or was registered with its provider.
    fn explain_stopped_link(&self, roster: &Roster, to: &str) -> Option<String> {
        let reaches = |mine: &String| registration::score_reach(mine, to).is_some();
        let is_registered = roster.registered.iter().any(reaches);
        let stopped = self.format.router.get().filter(|_| is_registered)?.stopped_links();
        let stopped: Vec<String> = stopped
            .into_iter()
            .map(|(name, why)| format!("the link {name} is stopped: {why}"))
            .collect();
        (!stopped.is_empty()).then(|| format!("no link reaches {to} now: {}", stopped.join("; ")))
    }
}

/// The addresses and parents of one message.
struct AmpAddressing<'a> {
    from: &'a str,
    to: &'a str,
    recipients: &'a [&'a str],
    /// True if a link carries it.
    is_carried: bool,
    /// The id of the answered message, as the recipient knows it.
    in_reply_to: Option<&'a str>,
    /// The original id of that message.
    origin_id: Option<&'a str>,
}

impl AmpDestination<'_> {
    /// Returns my address for this destination.
    fn sender_address<'a>(&'a self, roster: &'a Roster) -> &'a str {
        match self {
            Self::Here(_) => &roster.me.address,
            Self::Elsewhere { from, .. } => from,
        }
    }
}

/// Assigns ids to the messages for these recipients; no other message has them yet. If all have one sender, the ids
/// follow from one another. I have another address at each provider.
fn assign_ids(
    from: &[&str],
    everybody: &[&str],
    text: (&str, &str),
    with: &PrepareContext<'_>,
) -> Result<Vec<String>, StoreError> {
    loop {
        let now = with.used_time.get();
        let ids: Vec<String> = match from {
            [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|from| from == first) => {
                let several = AmpMulticast::new(now, first, everybody, text);
                everybody.iter().map(|to| several.message_id_for(to)).collect()
            }
            _ => from
                .iter()
                .map(|_| Ok(new_id("msg", now, random_bytes()?)))
                .collect::<Result<_, StoreError>>()?,
        };
        if !ids.iter().any(|id| (with.is_id_taken)(id)) {
            return Ok(ids);
        }
        with.used_time.set(with.used_time.get().plus_millis(1));
    }
}

/// Checks that a mailbox would take the message now. The writer learns of an error only if `close` fails, not later.
fn check_mailbox(dir: &Path, from: &str, made: &PreparedRecord) -> Result<(), StoreError> {
    check_creatable(dir, &["messages", "inbox", &address::correspondent_folder(from)])?;
    if !made.files.is_empty() {
        check_creatable(dir, &["attachments"])?;
    }
    let files = made.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size));
    fs::check_free_space(dir, files.saturating_add(made.bytes.len() as u64))
}

fn check_creatable(base: &Path, parts: &[&str]) -> Result<(), StoreError> {
    confined::check_can_create(base, parts).map_err(|(path, e)| StoreError::io(&path, e))
}

fn prepare_message(
    who: &AmpAddressing<'_>,
    (subject, id): (&str, String),
    draft: &Draft,
    parent: Option<&Message>,
    with: &PrepareContext<'_>,
) -> Result<PreparedRecord, StoreError> {
    let now = with.used_time.get();
    let inherited = parent.and_then(|p| p.extra.iter().find(|(name, _)| *name == "Priority"));
    let priority = draft.priority.as_deref().map(str::to_ascii_lowercase);
    // The parent's priority may be any word.
    let inherited = inherited.map(|(_, value)| value.as_str()).filter(|p| write::is_priority(p));
    // In a message to several, each recipient answers the one he got.
    let several =
        parent.and_then(AmpMulticast::from_message).filter(|several| several.has_recipient(who.to));
    let several = several.filter(|several| who.origin_id.is_some_and(|id| several.has_id(id)));
    let theirs = several.map(|several| several.message_id_for(who.to));
    let in_reply_to = theirs.as_deref().or(who.in_reply_to);
    let answers = draft.is_reply || in_reply_to.is_some();
    let thread = draft.thread.as_deref().map(plain_id).filter(|t| super::id::is_message_id(t));
    let thread = if answers { thread.or(in_reply_to) } else { thread };
    let named: Vec<(String, String)> = draft
        .attachments
        .iter()
        .map(|file| Ok((new_id("att", now, random_bytes()?), clean_filename(&file.name))))
        .collect::<Result<_, StoreError>>()?;
    let files: Vec<AmpNewAttachment<'_>> =
        draft.attachments.iter().zip(&named).map(new_attachment).collect();
    let bytes = write::compose_message(
        &AmpNewMessage {
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
            recipients: who.recipients,
            is_carried: who.is_carried,
            idempotency_key: draft.idempotency_key.as_deref(),
        },
        with.signer,
    )?;
    Ok(PreparedRecord {
        to: who.to.to_owned(),
        thread: thread.unwrap_or(&id).to_owned(),
        id,
        bytes,
        files: draft.attachments.clone(),
    })
}

/// Builds the record of an attachment with its id and its clean name.
fn new_attachment<'a>(
    (file, (id, filename)): (&'a DraftAttachment, &'a (String, String)),
) -> AmpNewAttachment<'a> {
    let (content_type, sha256) = (guess_content_type(filename), file.sha256.as_str());
    AmpNewAttachment { id, filename, content_type, size: file.size, sha256 }
}

fn random_bytes() -> Result<[u8; 8], StoreError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| StoreError::io(Path::new("random numbers"), io::Error::other(e)))?;
    Ok(bytes)
}

/// Chooses the subject: the written one; for a reply the parent's with one `Re: `; else the first line of the text.
fn choose_subject(draft: &Draft, parent: Option<&Message>) -> String {
    if let Some(subject) = draft.subject.as_deref().filter(|s| !s.trim().is_empty()) {
        return subject.to_owned();
    }
    let cut = |text: &str, max: usize| -> String {
        let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        plain.trim().chars().take(max).collect::<String>().trim_end().to_owned()
    };
    let answered = parent.and_then(|parent| reply_subject(parent.subject.as_deref()?));
    let made = if let Some(subject) = answered {
        cut(&subject, super::limits::SUBJECT_CHARS)
    } else {
        let first = draft.body.lines().find(|line| !line.trim().is_empty());
        cut(first.unwrap_or_default(), MADE_SUBJECT)
    };
    if made.is_empty() { "(no subject)".to_owned() } else { made }
}

impl StoreDirectory for AmpStore {
    fn list_peers(&self) -> Vec<String> {
        let Ok(roster) = self.format.home.recent_roster() else { return Vec::new() };
        roster.agents.iter().map(|agent| agent.address.clone()).collect()
    }

    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>> {
        const MAIL: UnreadRules = UnreadRules {
            is_message: |name| message_file_stem(name).is_some(),
            is_unread: (FILE_BYTES, |bytes| {
                envelope::parse(bytes).is_ok_and(|m| !m.status.is_some_and(ReadState::is_read))
            }),
        };
        let roster = self.format.home.recent_roster().ok().filter(|r| r.agents.len() <= MAILBOXES);
        let told = |address: &&str| {
            let agent = roster.as_ref()?.agents.iter().find(|agent| agent.address == *address)?;
            self.format.other_mailboxes.count_unread(
                &agent.dir,
                &["messages/inbox".to_owned()],
                true,
                MAIL,
            )
        };
        addresses.iter().map(told).collect()
    }

    fn provable_states(&self, to: &str) -> Vec<DeliveryState> {
        self.list_provable_states(to)
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        self.find_message_receipts(sent)
    }
}

impl crate::store::MessageAppender for AmpStore {
    fn canonical_address(&self, address: &str) -> String {
        match self.format.home.recent_roster() {
            Ok(roster) => roster.canonical_address(address),
            Err(_) => address.trim().to_ascii_lowercase(),
        }
    }

    fn address_fit(&self, text: &str) -> AddressFit {
        let Ok(roster) = self.format.home.recent_roster() else { return AddressFit::No };
        let provider = &roster.default_provider;
        match address::parse(text, &roster.me.tenant, provider) {
            Err(_) => AddressFit::No,
            Ok(_) if !text.contains('@') => AddressFit::Plain,
            Ok(a) if address::is_local(&a.provider, provider) => AddressFit::Exact,
            Ok(_) if roster.has_address(&text.trim().to_ascii_lowercase()) => AddressFit::Exact,
            Ok(_) if self.is_reachable(text) => AddressFit::Exact,
            // No link carries mail there, so another store has the first claim.
            Ok(_) => AddressFit::Plain,
        }
    }

    fn may_be_id(&self, id: &str) -> bool {
        super::id::is_generated_id(id)
    }

    fn is_registered(&self, address: &str) -> bool {
        let Ok(roster) = self.format.home.recent_roster() else { return false };
        // An agent with a broken config is still a known agent.
        match roster.resolve_recipient(address) {
            Err(_) => false,
            Ok(AmpRecipient::Unknown(_)) => self.is_reachable(address),
            Ok(_) => true,
        }
    }

    fn preview_message(&self, prepared: &PreparedRecord) -> Option<Message> {
        self.preview_prepared(prepared)
    }

    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        let roster = self.format.home.refresh_roster()?;
        self.prepare_for_recipients(&roster, draft, with)
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        let dir = &self.properties.dir;
        check_creatable(dir, &["messages", "sent"])?;
        // Every message is stored twice.
        fs::check_room_for_files(dir, bytes.saturating_mul(2), 2)
    }

    /// Appends and delivers a prepared message. A repeated call does only the missing steps.
    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        let _one = self.format.append_lock.lock();
        let roster = self.format.home.refresh_roster()?;
        // A broken config is often mended soon, so the error allows a retry.
        let stored = envelope::parse(message.bytes.as_bytes())
            .map_err(|e| StoreError::Refused(format!("the message cannot be appended: {e}")))?;
        let choice = AmpLinkChoice::From(&stored.from);
        let (to, goal) =
            self.resolve_destination(&roster, &message.to, choice, StoreError::Busy)?;
        let mine = self.properties.dir.as_path();
        let recipient = match goal {
            AmpDestination::Here(agent) => agent.dir.clone(),
            AmpDestination::Elsewhere { link, .. } => {
                let mut parts = Vec::new();
                for (file, attachment) in message.files.iter().zip(&stored.attachments) {
                    let id = attachment.id.as_deref().unwrap_or_default();
                    let name = attachment.filename.as_deref().unwrap_or_default();
                    self.write_attachment(mine, id, name, file)?;
                    parts.push((name.to_owned(), mine.join("attachments").join(id).join(name)));
                }
                // The link may sync the message at any moment, so the files must be on disk first.
                if !parts.is_empty() {
                    self.sync_folders()?;
                }
                self.hand_to_link(&link, &to, message, parts)?;
                if self.properties.durability == Durability::None {
                    // No sync of appends follows.
                    self.format.router.sync_accepted(mine)?;
                }
                return self.write_sent_copy(message, &to);
            }
        };
        let sides = if recipient == *mine { vec![mine] } else { vec![mine, &recipient] };
        for (file, attachment) in message.files.iter().zip(&stored.attachments) {
            let id = attachment.id.as_deref().unwrap_or_default();
            let name = attachment.filename.as_deref().unwrap_or_default();
            for base in &sides {
                self.write_attachment(base, id, name, file)?;
            }
        }
        self.write_sent_copy(message, &stored.to)?;
        let name = format!("{}.json", stored.id);
        let delivered = write::make_delivered_copy(&message.bytes, Timestamp::now())
            .ok_or_else(|| StoreError::Refused("the message cannot be delivered".into()))?;
        let inbox = address::correspondent_folder(&stored.from);
        self.write_message_file(
            &recipient,
            &["messages", "inbox", &inbox],
            &name,
            delivered.as_bytes(),
        )
    }

    /// Makes the names of all appended files durable, and what links accepted.
    fn sync_appends(&self) -> Result<(), StoreError> {
        self.sync_folders()?;
        self.format.router.sync_accepted(&self.properties.dir)
    }
}

impl AmpStore {
    /// Makes the names of all new files durable.
    pub(super) fn sync_folders(&self) -> Result<(), StoreError> {
        let mut unsynced = self.format.unsynced.lock();
        fs::sync_dirs(&*unsynced)?;
        unsynced.clear();
        Ok(())
    }

    /// Writes my message into my `sent/`.
    fn write_sent_copy(&self, message: &PreparedRecord, to: &str) -> Result<(), StoreError> {
        let (name, folder) = (format!("{}.json", message.id), address::correspondent_folder(to));
        let path = ["messages", "sent", &folder];
        self.write_message_file(&self.properties.dir, &path, &name, message.bytes.as_bytes())
    }

    /// Writes a new message file into a folder. An existing file of that name is the same message, from an interrupted
    /// append: nobody else makes its id.
    pub(super) fn write_message_file(
        &self,
        base: &Path,
        parts: &[&str],
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.write_new_file(base, parts, name, |file| file.write_all(bytes))?;
        if base == self.properties.dir {
            self.note_change(&base.join(parts.join("/")).join(name));
        }
        Ok(())
    }

    fn write_attachment(
        &self,
        base: &Path,
        id: &str,
        name: &str,
        file: &DraftAttachment,
    ) -> Result<(), StoreError> {
        // The source is opened only if it is needed: it is removed once everything is delivered.
        if confined::open_path(base, &["attachments", id, name]).is_ok() {
            self.format.unsynced.lock().insert(base.join("attachments").join(id));
            return Ok(());
        }
        let source = fs::open_regular(&file.path).map_err(|e| StoreError::io(&file.path, e))?;
        self.write_new_file(base, &["attachments", id], name, |to| {
            let copied = io::copy(&mut source.take(file.size.saturating_add(1)), to)?;
            if copied == file.size {
                return Ok(());
            }
            Err(io::Error::new(io::ErrorKind::InvalidData, "changed while it was being sent"))
        })
    }

    /// Writes a file into a folder, unless the name exists.
    pub(super) fn write_new_file(
        &self,
        base: &Path,
        parts: &[&str],
        name: &str,
        fill: impl FnOnce(&mut std::fs::File) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let folder = base.join(parts.join("/"));
        let io = |e| StoreError::io(&folder.join(name), e);
        let theirs = std::fs::metadata(base).is_ok_and(|m| fs::foreign_owner(&m).is_some());
        let share = |dir: &OwnedFd| if theirs { share_folder(dir) } else { Ok(()) };
        let dir = confined::make_dir_with(base, parts, DIR_MODE, share).map_err(io)?;
        // A process that ended may have made it.
        share(&dir).map_err(io)?;
        if confined::stat(&dir, name).is_err() {
            let fill = |file: &mut std::fs::File| {
                if theirs {
                    file.set_permissions(Permissions::from_mode(SHARED_FILE_MODE))?;
                }
                fill(file)
            };
            match FileSlot::for_component(&dir, name)
                .and_then(|slot| slot.create_with(FILE_MODE, fill))
            {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                done => done.map_err(io)?,
            }
        }
        // A process that ended may have made a file that is there, and not have brought its name to disk.
        self.format.unsynced.lock().insert(folder);
        Ok(())
    }
}

/// Opens a folder of mine that lies below another user's, who must be able to read it.
fn share_folder(dir: &OwnedFd) -> io::Result<()> {
    let made = rustix::fs::fstat(dir)?;
    let mine = made.st_uid == rustix::process::geteuid().as_raw();
    if mine && made.st_mode & 0o777 != SHARED_DIR_MODE {
        rustix::fs::fchmod(dir, Mode::from_raw_mode(SHARED_DIR_MODE))?;
    }
    Ok(())
}

/// Checks that a message can carry these files.
pub(super) fn check_attachable(files: &[(String, u64)]) -> Result<(), StoreError> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in files {
        if name.is_empty() || name.contains('/') || name.contains('\0') {
            return Err(StoreError::Invalid(format!(
                "Attach: {} is not the name of a file",
                sanitize_line(name)
            )));
        }
        let clean = clean_filename(name);
        if names.contains(&clean) {
            return Err(StoreError::Invalid(format!(
                "Attach: two files would be called {} in this store; rename one of them",
                quote_shell_word(&clean)
            )));
        }
        names.push(clean);
    }
    write::check_sizes(files.iter().map(|(name, size)| (name.as_str(), *size)))
}
