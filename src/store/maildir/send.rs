//! Sending: a copy among my sent mail, then a file in the Maildir of each recipient of this machine, then the program
//! that reaches the others (docs/formats/maildir.md, section 8).
//!
//! A repeated append does only what is missing. A file is delivered if an earlier append noted that, or if a file
//! with the lasting part of its name is in `new/` or `cur/`, which every append looks at first. Nobody knows if the
//! program took a mail before msgfs was killed, so that step may happen twice.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::compose::compose_mail;
use super::format::{MaildirFormat, find_mails};
use super::mail::{self, MaildirMail};
use super::names::{self, SENT};
use super::settings::MaildirMarks;
use super::{MAX_BODY, MaildirStore, is_address};
use crate::mime::utf7::encode_utf7;
use crate::model::locks::Mutex;
use crate::model::{
    Draft, DraftAttachment, Message, Timestamp, plain_id, reply_subject, sanitize_line,
};
use crate::store::digest::secure_hash64;
use crate::store::engine::files::{OpenFolder, PlaceOutcome};
use crate::store::{
    AddressFit, MessageAppender, PrepareContext, PreparedRecord, Store as _, StoreError, fs,
    refuse_headers,
};

/// The most ids in `References`.
const MAX_REFERENCES: usize = 20;
/// The status with which the program says that a mail may go later.
const TEMPORARY: i32 = 75;
/// The time that an append waits for the program. Other mail does not wait longer.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause between two looks at it.
const PAUSE: Duration = Duration::from_millis(5);
/// The most bytes of the program's errors that are shown.
const MAX_SAID: usize = 500;

/// The runs of the program that sends mail.
#[derive(Debug, Default)]
pub(super) struct SendmailRuns(Mutex<RunTable>);

#[derive(Debug, Default)]
struct RunTable {
    /// The runs for which no append waits now, by the id of the mail.
    left: HashMap<String, SendmailRun>,
    /// The time until which appends wait for runs, if the process ends. No other run begins then.
    ending: Option<Instant>,
}

/// A leaf of a Maildir.
type LeafFolder<'a> = OpenFolder<'a, MaildirFormat>;

/// The program that runs, and the file with what it says.
type SendmailRun = (Child, File);

/// Fails if attachments are too large for a mail.
pub(super) fn check_attachments(files: &[(String, u64)]) -> Result<(), StoreError> {
    let bytes = files.iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size));
    if bytes.saturating_mul(4) / 3 <= MAX_BODY {
        return Ok(());
    }
    Err(StoreError::TooLarge("a mail with its attachments has at most 16 MiB".into()))
}

impl MessageAppender for MaildirStore {
    fn canonical_address(&self, address: &str) -> String {
        address.to_ascii_lowercase()
    }

    fn address_fit(&self, address: &str) -> AddressFit {
        match self.find_route(address) {
            Ok(_) => AddressFit::Plain,
            Err(_) if is_address(address) => AddressFit::Via,
            Err(_) => AddressFit::No,
        }
    }

    fn explain_no_route(&self, address: &str) -> Option<StoreError> {
        self.require_own_address().and_then(|_| self.find_route(address)).err()
    }

    fn is_registered(&self, address: &str) -> bool {
        matches!(self.find_route(address), Ok(Some(_)))
    }

    fn preview_message(&self, prepared: &PreparedRecord) -> Option<Message> {
        let mail = mail::parse_mail(prepared.bytes.as_bytes(), "", Timestamp::now()).ok()?;
        let (id, thread) = (prepared.id.clone(), Some(prepared.thread.clone()));
        Some(Message { thread, id, ..mail.message })
    }

    fn check_header(&self, draft: &Draft) -> Result<(), StoreError> {
        let [kind, priority, task] =
            [&draft.kind, &draft.priority, &draft.task].map(Option::is_some);
        refuse_headers("a mail", &[("Type", kind), ("Priority", priority), ("Task", task)])
    }

    /// Prepares one mail for all recipients. It writes nothing.
    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        let me = self.require_own_address()?;
        self.check_header(draft)?;
        let lower = |list: &Vec<String>| list.iter().map(|a| a.to_ascii_lowercase()).collect();
        let [to, cc]: [Vec<String>; 2] = [&draft.to, &draft.cc].map(lower);
        let all: BTreeSet<&str> = to.iter().chain(&cc).map(String::as_str).collect();
        for address in &all {
            if let Some(dir) = self.find_route(address)? {
                self.open_maildir(dir)?;
            }
        }
        let parent = with.parent.filter(|_| draft.is_reply);
        let answered = |parent: &Message| {
            let subject = reply_subject(parent.subject.as_deref().unwrap_or_default());
            subject.unwrap_or_else(|| "Re:".to_owned())
        };
        let random = getrandom::u64();
        let random = random.map_err(|e| StoreError::io(self.dir(), io::Error::other(e)))?;
        let host = me.rsplit_once('@').map_or("", |(_, host)| host);
        let id = format!("{random:016x}@{host}");
        let in_reply_to = draft.in_reply_to.as_deref().map(|id| plain_id(id).to_owned());
        let references =
            in_reply_to.as_ref().map_or_else(Vec::new, |id| self.collect_references(id, parent));
        let root = references.first().unwrap_or(&id);
        let thread = draft.thread.as_ref().or_else(|| parent?.thread.as_ref()).unwrap_or(root);
        let files: Result<Vec<_>, _> = draft.attachments.iter().map(read_attachment).collect();
        let new = Message {
            from: Some(me.clone()),
            to: to.clone(),
            cc: cc.clone(),
            time: with.now,
            subject: draft.subject.clone().or_else(|| parent.map(answered)),
            id: id.clone(),
            in_reply_to,
            thread: Some(thread.clone()).filter(|thread| thread != root),
            ..Message::default()
        };
        let bytes = compose_mail(&new, &references, &files?, draft, with.signer);
        let bytes = bytes.map_err(|why| StoreError::Invalid(why.to_string()))?;
        if bytes.len() as u64 > MAX_BODY {
            return Err(StoreError::TooLarge("a mail has at most 16 MiB".into()));
        }
        let read = mail::parse_mail(bytes.as_bytes(), "", with.now);
        let read = read.map_err(|why| StoreError::Invalid(why.to_string()))?;
        let (id, thread) = (mail::index_id(id.clone(), &read.facts.digest), thread.clone());
        let to = all.into_iter().collect::<Vec<_>>().join(", ");
        Ok(vec![PreparedRecord { to, id, thread, bytes, files: Vec::new() }])
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        fs::check_room_for_files(self.dir(), bytes.saturating_mul(3), 3)
    }

    /// Keeps a copy of a mail, and delivers it. Waits some time for the program that sends mail; after that the append
    /// fails as busy. A mail that the program refuses counts as done, too: only the copy stays.
    fn append_record(&self, prepared: &PreparedRecord) -> Result<(), StoreError> {
        let (outcomes, id) = (&self.format.outcomes, plain_id(&prepared.id));
        let known = outcomes.find_served(id).map_err(|e| StoreError::io(self.dir(), e))?;
        let mut served = known.clone();
        let done = self.send_mail(prepared, &mut served);
        if done.is_err()
            && served != known
            && let Err(error) = outcomes.note(id, served, String::new())
        {
            tracing::warn!(id, %error, "who has a mail was not saved");
        }
        done
    }

    fn end_runs(&self, deadline: Instant) -> bool {
        self.format.runs.end(deadline)
    }
}

impl MaildirStore {
    /// Keeps a copy of a mail, delivers it to those of this machine who do not have it, and hands it to the program for
    /// all others. Adds each recipient who has it to `served`.
    fn send_mail(
        &self,
        prepared: &PreparedRecord,
        served: &mut BTreeSet<String>,
    ) -> Result<(), StoreError> {
        let bytes = prepared.bytes.as_bytes();
        let mail = mail::parse_mail(bytes, "", Timestamp::now());
        let mail = mail.map_err(|why| StoreError::Invalid(why.to_string()))?;
        let name = unique_name(&mail);
        self.keep_copy(&name, bytes)?;
        let mut remote = Vec::new();
        for address in prepared.to.split(", ") {
            match self.find_route(address)? {
                Some(_) if served.contains(address) => {}
                Some(dir) => {
                    // The order matters: files go from new to cur.
                    let [tmp, new, cur] = self.open_maildir(dir)?;
                    put_mail(&tmp, &new, &name, bytes, &[&new, &cur])?;
                    served.insert(address.to_owned());
                }
                None => remote.push(address),
            }
        }
        if let Some(id) = mail.message.in_reply_to.as_deref()
            && self.format.settings.marks == MaildirMarks::On
        {
            self.mark_replied(id, &prepared.to);
        }
        let Some(program) = self.format.settings.sendmail.as_ref().filter(|_| !remote.is_empty())
        else {
            return Ok(());
        };
        let (outcomes, id) = (&self.format.outcomes, &mail.message.id);
        if outcomes.find_refusal(id).is_some() {
            return Ok(());
        }
        let mut command = Command::new(program);
        command.args(["-i", "-f", self.me(), "--"]).args(&remote);
        match self.format.runs.run(id, bytes, command) {
            Err(StoreError::Refused(why)) => {
                self.note_change(&self.dir().join(self.sent_folder()).join("cur").join(&name));
                let to = remote.into_iter().map(str::to_owned).collect();
                outcomes.note(id, to, why).map_err(|e| StoreError::io(self.dir(), e))
            }
            done => done,
        }
    }

    /// Returns the Maildir of an address on this machine.
    pub(super) fn find_mailbox_of(&self, to: &str) -> Option<&Path> {
        let (settings, to) = (&self.format.settings, to.to_ascii_lowercase());
        let local = settings.local.get(&to).map(PathBuf::as_path);
        local.or_else(|| settings.me.contains(&to).then(|| self.dir()))
    }

    /// Returns the address under which I send.
    fn require_own_address(&self) -> Result<&String, StoreError> {
        self.format.settings.me.first().ok_or_else(|| {
            StoreError::Invalid(format!(
                "no address of yours is known in the store {}; add a line to its [[store]]: \
                 me = \"NAME@HOST\"",
                self.name()
            ))
        })
    }

    /// Returns the Maildir of an address, or `None` if the program sends mail to it.
    fn find_route(&self, address: &str) -> Result<Option<&Path>, StoreError> {
        if !is_address(address) {
            let shown = sanitize_line(address);
            return Err(StoreError::Invalid(format!("{shown:?} is not written NAME@HOST")));
        }
        let local = self.find_mailbox_of(address);
        if local.is_some() || self.format.settings.sendmail.is_some() {
            return Ok(local);
        }
        Err(StoreError::Unreachable(format!(
            "nothing takes mail to {address}: the store {} has no line for it below [store.local], \
             and no line sendmail = \"/usr/sbin/sendmail\"",
            self.name()
        )))
    }

    /// Returns the ids of the mails before an answer to a mail of this id, which is the parent if that is known.
    fn collect_references(&self, id: &str, parent: Option<&Message>) -> Vec<String> {
        let mails = find_mails(&self.table.read(), secure_hash64(id.as_bytes())).into_iter();
        let mut mails = mails.filter_map(|n| self.read_mail(n).ok());
        let is_parent = |mail: &MaildirMail| {
            let id = mail::index_id(mail.message.id.clone(), &mail.facts.digest);
            parent.is_some_and(|parent| parent.id == id)
        };
        let mut ids = mails.find(is_parent).map_or_else(Vec::new, |mail| {
            if mail.references.is_empty() {
                mail.message.in_reply_to.into_iter().collect()
            } else {
                mail.references
            }
        });
        ids.push(id.to_owned());
        let extra = ids.len().saturating_sub(MAX_REFERENCES);
        ids.drain(1..=extra);
        ids
    }

    /// Returns the path of the folder for copies of sent mail. It may be missing.
    fn sent_folder(&self) -> String {
        let name = self.format.settings.sent.as_deref().unwrap_or(SENT);
        let dotted: Vec<String> = name.split('/').map(encode_utf7).collect();
        let dotted = format!(".{}", dotted.join("."));
        let places = [dotted.clone(), format!(".INBOX{dotted}"), name.to_owned()];
        let is_there = |path: &String| self.open_folder(&format!("{path}/cur")).is_ok();
        places.into_iter().find(is_there).unwrap_or(dotted)
    }

    /// Puts a copy of a mail among my sent mail, unless one is there.
    fn keep_copy(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let folder = self.sent_folder();
        let leaf = |leaf: &str| self.make_folder(&format!("{folder}/{leaf}"));
        let (tmp, _, cur) = (leaf("tmp")?, leaf("new")?, leaf("cur")?);
        put_mail(&tmp, &cur, &format!("{name}:2,S"), bytes, &[&cur])
    }

    /// Opens `tmp/`, `new/` and `cur/` of a Maildir. Only my own gets those that are missing.
    fn open_maildir(&self, dir: &Path) -> Result<[LeafFolder<'_>; 3], StoreError> {
        let shown = dir.display();
        let meta = std::fs::symlink_metadata(dir)
            .map_err(|e| StoreError::Unreachable(format!("there is no Maildir {shown}: {e}")))?;
        let is_mine = dir == self.dir();
        if meta.is_symlink() && !is_mine {
            let why = format!("{shown} is a symbolic link, and mail is not delivered through one");
            return Err(StoreError::NotPermitted(why));
        }
        if let Some(owner) = fs::foreign_owner(&meta).filter(|_| !meta.is_symlink()) {
            let why = format!("{shown} belongs to the user {owner}, who could not read the mail");
            return Err(StoreError::NotPermitted(why));
        }
        let open = |leaf: &str| {
            let opened =
                if is_mine { self.make_folder(leaf) } else { self.open_folder_of(dir, leaf) };
            opened.map_err(|e| StoreError::Unreachable(format!("{shown} is no Maildir: {e}")))
        };
        Ok([open("tmp")?, open("new")?, open("cur")?])
    }
}

/// Puts a mail in place under a name, unless it is in one of these folders.
fn put_mail(
    tmp: &LeafFolder<'_>,
    to: &LeafFolder<'_>,
    name: &str,
    bytes: &[u8],
    places: &[&LeafFolder<'_>],
) -> Result<(), StoreError> {
    let is_it = |there: &String| names::delivery_part(there) == names::delivery_part(name);
    for place in places {
        if place.list_names()?.iter().any(is_it) {
            return Ok(());
        }
    }
    match to.publish_file(name, &tmp.stage_file(name, bytes)?)? {
        PlaceOutcome::Done | PlaceOutcome::NameTaken => Ok(()),
        PlaceOutcome::Gone => Err(StoreError::Moved),
    }
}

/// Returns the unique name of a mail of mine. It is the same whenever the mail is delivered.
fn unique_name(mail: &MaildirMail) -> String {
    let time = mail.message.time;
    let micros = time.millis().rem_euclid(1000) * 1000;
    let (chance, host) = mail.message.id.split_once('@').unwrap_or((&mail.message.id, "localhost"));
    format!("{}.M{micros}R{chance}.{host}", time.millis().div_euclid(1000))
}

fn read_attachment(file: &DraftAttachment) -> Result<(String, Vec<u8>), StoreError> {
    let read = fs::read_small_file(&file.path, MAX_BODY);
    Ok((file.name.clone(), read.map_err(|e| StoreError::io(&file.path, e))?))
}

impl SendmailRuns {
    /// Sets the time until which later appends wait for their runs, and lets no new run begin. Returns true if there is
    /// a run for which no append waits.
    fn end(&self, deadline: Instant) -> bool {
        let mut runs = self.0.lock();
        runs.ending = Some(deadline);
        !runs.left.is_empty()
    }

    /// Has the program take a mail, or goes on with an earlier run.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if it has not finished or says to try later, [`StoreError::Refused`] if it takes it never.
    fn run(&self, id: &str, bytes: &[u8], command: Command) -> Result<(), StoreError> {
        let io = |e| StoreError::io(Path::new("sendmail"), e);
        let busy = |why: &str| Err(StoreError::Busy(format!("sendmail {why}")));
        let (earlier, is_ending) = {
            let mut runs = self.0.lock();
            (runs.left.remove(id), runs.ending.is_some())
        };
        if earlier.is_none() && is_ending {
            return busy("is not run any more, because msgfs ends");
        }
        let mut run = earlier.map_or_else(|| start_program(command, bytes), Ok).map_err(io)?;
        let patience = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = run.0.try_wait().map_err(io)? {
                break status;
            }
            let mut runs = self.0.lock();
            if Instant::now() >= runs.ending.map_or(patience, |ending| ending.max(patience)) {
                runs.left.insert(id.to_owned(), run);
                return busy("has not finished yet");
            }
            drop(runs);
            thread::sleep(PAUSE);
        };
        let mut said = [0; MAX_SAID];
        let len = run.1.read_at(&mut said, 0).unwrap_or(0);
        let said = String::from_utf8_lossy(said.get(..len).unwrap_or_default());
        let said = sanitize_line(said.trim());
        match status.code() {
            Some(0) => Ok(()),
            Some(TEMPORARY) => busy(&format!("says to try later: {said}")),
            // It was killed, and has said nothing about the mail.
            None => busy(&format!("did not end: {status}: {said}")),
            Some(_) => Err(StoreError::Refused(format!("sendmail: {status}: {said}"))),
        }
    }
}

/// Starts the program. A file in memory has the whole mail, so the end of msgfs cuts nothing off, and another one takes
/// what the program says.
fn start_program(mut command: Command, mail: &[u8]) -> io::Result<SendmailRun> {
    let file = |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
    let (mut input, said) = (file("msgfs-mail")?, file("msgfs-sendmail")?);
    input.write_all(mail)?;
    input.rewind()?;
    command.stdin(input).stdout(Stdio::null()).stderr(said.try_clone()?).current_dir("/");
    Ok((command.spawn()?, said))
}
