//! SAMP v1: a shared folder with one append-only JSON-lines log per sender.
//!
//! - [`record`] is one line, its members, and its id.
//! - [`thread`] and [`alias`] have the rules for names and derived threads.
//! - `read_position` is the read position that other readers of the folder share. `receipts` are the proofs in it.
//! - [`files`] are those that come with a message; `first_record` finds their bytes for a record that has only the
//!   list.
//! - `append` is the one write that this module ever makes to a log, its own.
//! - `recovery` appends lines again that other programs took out of that log. `backup` has these lines.
//!
//! The engine `engine::lines` follows the logs.

pub mod alias;
mod append;
mod backup;
pub mod files;
mod first_record;
mod read_position;
mod receipts;
pub mod record;
mod recovery;
pub mod thread;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::engine::Format;
use super::engine::lines::check::{LineCheck, LineReporter};
use super::engine::lines::table::{LogRowOf, LogSource};
use super::engine::lines::{LineFormat, LineStore, LogShape, NameClass};
use super::kind::{DefaultPlace, KindRow};
use super::text::pytext::to_nfc;
use super::{
    AddressFit, AnswerScheme, Facets, FoundMessage, InboundMail, LinkRouter, Location,
    MessageAppender, NextAnswerRule, PartContent, PartReader, PeerReadState, PeerUnread,
    PrepareContext, PreparedRecord, Receipt, Record, RemoteMail, RepeatKind, RouterSlot,
    SentMessage, Store as _, StoreDirectory, StoreError, StoreMarks, StoreProperties, StoreSpec,
    Violation, Watermark, fs, refuse_headers,
};
use crate::model::locks::Mutex;
use crate::model::{DeliveryState, Draft, Message, Remedy, Timestamp, display_path, sanitize_line};
use alias::SampLogName;
use files::LastSampFiles;
use record::{SampRecord, SampScratch};

/// The row of this kind.
pub(super) const KIND: KindRow = KindRow {
    // SAMP needs no files, so no store is looked for.
    place: DefaultPlace::State("agent-message"),
    dir_variables: &["AGENT_MESSAGE_DIR"],
    has_logs: true,
    ..KindRow::new(
        "samp",
        "a name in SAMP takes letters, digits, '.', '_' and '-', begins with a letter or digit and has \
         at most 64 characters",
        EXAMPLE,
        |spec| Ok(Arc::new(SampStore::open(spec)?)),
    )
};

const EXAMPLE: &str = r#"# [[store]]
# name = "work"                      # default: the kind
# kind = "samp"
# dir = "~/sync/agent-message"
"#;

/// A SAMP folder, read and written as one alias.
pub type SampStore = LineStore<Samp>;

/// The length up to which a record goes by every link, so that no limit is checked.
const SHORT: u64 = 4 << 10;

/// The format of a SAMP folder.
#[derive(Debug, Default)]
pub struct Samp {
    /// The links by which lines also go to other machines.
    router: RouterSlot,
    /// True if the folder is only read, and nothing is created.
    is_read_only: bool,
    /// True if somebody named the folder in the configuration. msgfs then does not create it.
    is_named: bool,
    /// The recovery of lines that my log loses; `None` where nothing may be written.
    own_log: Option<recovery::OwnLogTracker>,
    /// The files of the record that was read last.
    last_files: Mutex<Option<LastSampFiles>>,
    /// The read position of this name, as it was read last.
    position: read_position::PositionReader,
    /// The ids of my messages' records for their recipients.
    record_ids: receipts::RecordIds,
}

/// Returns a sentence that says why a name cannot be an alias.
fn describe_bad_alias(name: &str) -> String {
    format!(
        "{:?} is no name in SAMP: it takes letters, digits, '.', '_' and '-', begins with a letter \
         or digit and has at most 64 characters",
        sanitize_line(name)
    )
}

/// Returns the alias of the log with this name, and true if it is a conflict copy.
fn parse_log_name(name: &str) -> Option<(&str, bool)> {
    match alias::classify_log_name(name) {
        SampLogName::Main(alias) => Some((alias, false)),
        SampLogName::Conflict(alias) => Some((alias, true)),
        SampLogName::NotALog | SampLogName::BadAlias => None,
    }
}

impl Format<SampStore> for Samp {
    fn facets(store: &SampStore) -> Facets<'_> {
        Facets {
            appender: Some(store),
            marks: Some(store),
            directory: Some(store),
            parts: Some(store),
            upkeep: Some(store),
            remote: Some(store),
            ..Facets::default()
        }
    }

    fn note_change(store: &SampStore, path: &Path) {
        store.format.own_log.iter().for_each(|guarded| guarded.note_change(store.me(), path));
    }

    fn describe_missing(store: &SampStore) -> Option<String> {
        let dir = store.dir();
        let is_missing =
            store.format.is_named && store.is_expected_missing() && fs::is_folder_missing(dir);
        is_missing.then(|| {
            format!(
                "the folder {} does not exist; if it is the right one, make it with: {}",
                display_path(dir),
                Remedy::Make(dir.to_owned())
            )
        })
    }

    fn remarks(store: &SampStore) -> Vec<String> {
        let guarded = store.format.own_log.as_ref();
        guarded.map_or_else(Vec::new, |guarded| guarded.incident_lines(&store.properties.me))
    }

    fn is_relevant_path(store: &SampStore, path: &Path) -> bool {
        let name = path.file_name().and_then(OsStr::to_str);
        name.and_then(|name| name.strip_prefix(".seen-")) == Some(store.me())
    }
}

impl LineFormat for Samp {
    const SHAPE: LogShape = LogShape {
        folder: &[],
        log_file: None,
        head_file: None,
        parts_folder: None,
        rewritten: false,
        has_copies: true,
        tree: None,
    };
    type Facts = ();
    type Count = ();
    type Shared = ();
    type ParseBuffer = SampScratch;
    type LineContent<'a> = ();
    type Head = ();

    /// Opens the folder. Creates a missing one as the reference does (`mkdir -p`), unless it is only read, or somebody
    /// named it.
    fn open(spec: &StoreSpec) -> Result<(Self, StoreProperties), StoreError> {
        let (dir, me) = (spec.dir.as_path(), spec.own_address.as_ref().unwrap_or(&spec.me));
        if !alias::is_valid_alias(me) {
            return Err(StoreError::Invalid(describe_bad_alias(me)));
        }
        if std::fs::metadata(dir).is_ok_and(|meta| !meta.is_dir()) {
            let error = io::Error::new(
                io::ErrorKind::NotADirectory,
                "it is not a folder; choose another path",
            );
            return Err(StoreError::io(dir, error));
        }
        let (read_only, is_named) = (spec.state.is_none(), !spec.may_create);
        if !read_only && !is_named {
            fs::make_dirs(dir, 0o777).map_err(|e| StoreError::io(dir, e))?;
        }
        match super::confined::open_dir(dir, &[]) {
            Err(e) if (read_only || is_named) && e.kind() == std::io::ErrorKind::NotFound => {}
            opened => drop(opened.map_err(|e| StoreError::io(dir, e))?),
        }
        if spec.state.is_some()
            && let Err(error) = append::end_torn_line(dir, me)
        {
            // The next append ends the line.
            tracing::debug!(%error, "the end of my log cannot be looked at");
        }
        let about = StoreProperties {
            whole_seconds: true,
            shows_mounted: true,
            can_repeat_appends: false,
            answers: AnswerScheme::NamedOrNext(NextAnswerRule {
                // The reference does not sign, and names no record that it answers.
                unsigned_only: true,
                fits: None,
            }),
            attachment_rule: Some(files::check_attachments),
            ..StoreProperties::new(spec, me, dir)
        };
        let guarded = spec.state.as_deref().map(recovery::OwnLogTracker::new);
        Ok((Self { is_read_only: read_only, is_named, own_log: guarded, ..Self::default() }, about))
    }

    fn may_be_missing(&self) -> bool {
        self.is_read_only || self.is_named
    }

    fn classify_name(name: &str) -> NameClass {
        match alias::classify_log_name(name) {
            SampLogName::Main(_) | SampLogName::Conflict(_) => NameClass::Log,
            SampLogName::NotALog => NameClass::Other,
            SampLogName::BadAlias => {
                NameClass::Bad("alias", "its name holds no valid name of a writer")
            }
        }
    }

    fn log_key(log: &LogRowOf<Self>) -> String {
        parse_log_name(&log.name).map_or_else(String::new, |(alias, _)| alias.to_owned())
    }

    fn log_rank(log: &LogRowOf<Self>) -> i64 {
        Self::is_conflict_copy(log).into()
    }

    fn is_conflict_copy(log: &LogRowOf<Self>) -> bool {
        parse_log_name(&log.name).is_some_and(|(_, copy)| copy)
    }

    fn log_remark(log: &LogRowOf<Self>) -> Option<String> {
        let copy = log.stamp.is_some() && Self::is_conflict_copy(log);
        copy.then(|| {
            "is a conflict copy left by a sync program; messages only it holds are shown".to_owned()
        })
    }

    fn parse_line<'a>(
        store: &LineStore<Self>,
        work: &mut SampScratch,
        key: &'a str,
        text: &'a str,
        at: Location,
        found: &mut Vec<FoundMessage<'a>>,
    ) -> Result<(), String> {
        let accepted = accept_record(store, work, key, text, at, found);
        if accepted.is_ok() || is_blank(text) {
            return Ok(());
        }
        // Some writers end lines with a bare CR. Offsets in a text that was repaired are not those of the file.
        if text.trim_end().contains('\r') && text.len() == at.len as usize {
            let before = found.len();
            let mut offset = at.offset;
            let whole = text.split('\r').all(|piece| {
                let at = Location { offset, len: piece.len() as u32, ..at };
                offset += piece.len() as u64 + 1;
                is_blank(piece) || accept_record(store, work, key, piece, at, found).is_ok()
            });
            if whole {
                return Ok(());
            }
            found.truncate(before);
        }
        accepted
    }

    fn parse_record(store: &SampStore, at: &Location, text: &str) -> Result<Record, StoreError> {
        let mut scratch = SampScratch::default();
        let parsed = record::parse(text, &mut scratch).map_err(|_| StoreError::Moved)?;
        let files = Self::read_files(store, at, text, &parsed);
        let mut message = make_message(&parsed);
        message.attachments = files.iter().map(|file| file.shown.clone()).collect();
        let claim = if parsed.has_sig { record::parse_claim(text) } else { None };
        // Only messages of mine are searched for answers.
        let is_asked = parsed.rcpt.len() > 1 && parsed.from == store.me();
        let recipients = if is_asked { &parsed.rcpt[..] } else { &[] };
        let id_for = parsed.recipient_ids();
        let further_ids = recipients.iter().map(|to| id_for(to)).collect();
        Ok(Record { message, claim, further_ids, ..Record::default() })
    }

    fn check_head(name: &str, _: &OwnedFd, say: &mut LineReporter<'_>) -> Option<()> {
        if parse_log_name(name)?.1 {
            say(0, "conflict-copy", "left by a sync program beside the log it copies".into());
        }
        Some(())
    }

    fn check_line(_: &LineStore<Self>, line: &mut LineCheck<'_, Self>) {
        let mut scratch = SampScratch::default();
        let parsed = record::parse(line.text, &mut scratch);
        if parsed.is_err()
            && let Some(torn) = Violation::describe_torn(line.piece.text.as_bytes())
        {
            return line.report_violation(Violation::TORN, torn);
        }
        if !line.ended {
            line.report_unended();
        }
        if line.text.as_bytes().trim_ascii().is_empty() {
            return;
        }
        if matches!(line.piece.text, Cow::Owned(_)) {
            line.report_violation("utf-8", "the line is not valid UTF-8".into());
        }
        match parsed {
            Ok(parsed) => check_record(line, &parsed),
            Err(e) => line.report_violation("schema", e.to_string()),
        }
    }
}

/// Returns the message of a record, without its files.
fn make_message(parsed: &SampRecord<'_>) -> Message {
    let owned = |v: &Option<Cow<'_, str>>| v.as_deref().map(str::to_owned);
    Message {
        from: Some(parsed.from.to_string()),
        to: parsed.all_recipients(),
        time: parsed.time(),
        subject: owned(&parsed.subject),
        thread: Some(parsed.thread.to_string()),
        in_reply_to: owned(&parsed.re),
        id: parsed.id.to_string(),
        body: parsed.body_text().into_owned(),
        ..Message::default()
    }
}

impl MessageAppender for SampStore {
    fn address_fit(&self, address: &str) -> AddressFit {
        // No other kind writes addresses without `@` by itself.
        if alias::is_valid_alias(address) { AddressFit::Exact } else { AddressFit::No }
    }

    fn is_registered(&self, address: &str) -> bool {
        self.table.read().logs.iter().any(|log| Samp::log_key(log) == address)
    }

    fn may_be_id(&self, id: &str) -> bool {
        id.len() == 16 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }

    fn preview_message(&self, prepared: &PreparedRecord) -> Option<Message> {
        let parsed = record::parse(&prepared.bytes, &mut SampScratch::default()).ok()?;
        let message = make_message(&parsed);
        let id = parsed.shared_id.map_or_else(|| message.id.clone(), |id| format!("{id:016x}"));
        let attachments = files::preview_files(&parsed);
        Some(Message { id, attachments, ..message })
    }

    /// Returns true if the message has this text and files.
    fn is_retry_of(&self, sent: &str, draft: &str) -> bool {
        let (text, draft) = (files::strip_notes(sent), to_nfc(draft.trim()));
        let (_, unnamed) = thread::split_thread(&draft);
        text.is_some_and(|text| [&*draft, &*unnamed].contains(&text.trim()))
    }

    fn check_header(&self, draft: &Draft) -> Result<(), StoreError> {
        refuse_headers(
            "a SAMP record",
            &[("Priority", draft.priority.is_some()), ("Type", draft.kind.is_some())],
        )
    }

    fn prepare_records(
        &self,
        draft: &Draft,
        with: &PrepareContext<'_>,
    ) -> Result<Vec<PreparedRecord>, StoreError> {
        if let Some(why) = Samp::describe_missing(self) {
            let error = io::Error::new(io::ErrorKind::NotFound, why);
            return Err(StoreError::io(self.dir(), error));
        }
        self.check_header(draft)?;
        let all = append::prepare_records(self.me(), draft, with)?;
        let length = all.iter().map(|record| record.bytes.len() as u64 + 1).max().unwrap_or(0);
        let router = self.format.router.get().filter(|_| length > SHORT);
        match router.and_then(LinkRouter::length_limit) {
            Some((most, link)) if length > most => Err(StoreError::TooLarge(format!(
                "the record would have {length} bytes, and the link {} takes {most} at most: \
                 {}, or raise the limit of its server",
                sanitize_line(&link),
                if draft.attachments.is_empty() { "shorten the text" } else { "attach less" }
            ))),
            _ => Ok(all),
        }
    }

    fn check_appendable(&self, bytes: u64) -> Result<(), StoreError> {
        append::check_log_writable(self.dir(), self.me())?;
        self.check_free_space(bytes)
    }

    fn append_record(&self, message: &PreparedRecord) -> Result<(), StoreError> {
        self.append_own_line(message)?;
        // The note comes after the append: a scan that takes the note sees the line.
        self.note_change(&self.dir().join(alias::log_name(self.me())));
        Ok(())
    }

    fn sync_appends(&self) -> Result<(), StoreError> {
        let mut unsynced = self.reader.appending.lock();
        append::with_own_log(self.dir(), self.me(), |log| unsynced.sync_log(log))
    }
}

impl PartReader for SampStore {
    fn open_part(&self, at: &Location, name: &str) -> Result<PartContent, StoreError> {
        let files = self.with_line(at, |text| {
            if let Some(files) = self.format.find_last_files(text) {
                return Ok(files);
            }
            let mut scratch = SampScratch::default();
            let parsed = record::parse(text, &mut scratch).map_err(|_| StoreError::Moved)?;
            Ok(Samp::read_files(self, at, text, &parsed))
        })?;
        let file = files.iter().find(|file| file.shown.name == name);
        PartContent::from_bytes(name, file.and_then(|file| file.bytes.clone()))
    }
}

impl RemoteMail for SampStore {
    fn set_router(&self, router: Arc<dyn LinkRouter>) {
        self.format.router.set(router);
    }

    /// Returns an error, because links write lines into the logs themselves.
    fn file_mail(&self, _: &InboundMail) -> Result<(), StoreError> {
        Err(StoreError::NotPermitted("a SAMP folder takes no single messages".to_owned()))
    }
}

impl StoreMarks for SampStore {
    fn keeps_position(&self) -> bool {
        true
    }

    fn watermark(&self) -> Option<Arc<Watermark>> {
        self.format.position.read(self.dir(), self.me())
    }

    fn was_there_for_position(&self, at: &Location, time: Timestamp) -> bool {
        let Some(written) = self.format.position.write_time_if_ahead() else { return true };
        let changed = match LogSource::from_number(at.source) {
            LogSource::Log(n) => self.table.read().get(n).and_then(|log| Some(log.stamp?.ctime)),
            _ => None,
        };
        written.was_there(time, changed)
    }

    fn advance_watermark(
        &self,
        mark: &Watermark,
        retired: &HashSet<String>,
    ) -> Result<Option<Watermark>, StoreError> {
        read_position::advance_watermark(self.dir(), self.me(), mark, retired)
    }
}

impl StoreDirectory for SampStore {
    fn list_peers(&self) -> Vec<String> {
        let table = self.table.read();
        // The index knows the writer of each accepted record, so only logs without lines are listed here.
        let there = table.logs.iter().filter(|log| log.stamp.is_some() && log.tally.lines == 0);
        there.map(Samp::log_key).filter(|alias| !alias.is_empty()).collect()
    }

    fn peer_read_states(&self, addresses: &[&str]) -> Vec<Option<PeerReadState>> {
        let told = |address: &&str| {
            // A text that is no alias is no part of a path.
            let mark = alias::is_valid_alias(address)
                .then(|| read_position::read_peer_watermark(self.dir(), address))??;
            let since = read_position::modified_time(self.dir(), address);
            Some(PeerReadState { unread: PeerUnread::Position(mark), since })
        };
        addresses.iter().map(told).collect()
    }

    fn provable_states(&self, _: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Passed, Read, Stored, Told, Waiting};
        // A folder has no mailboxes, but the server of a link takes lines.
        let taken = self.format.router.get().map(|_| Delivered);
        let router = [Waiting, Stored].into_iter().chain(taken);
        router.chain([Told, Passed, Read, Answered]).collect()
    }

    fn find_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        self.find_record_receipts(sent)
    }
}

fn is_blank(text: &str) -> bool {
    super::text::pytext::strip(text).is_empty()
}

fn accept_record<'a>(
    store: &LineStore<Samp>,
    work: &mut SampScratch,
    alias: &str,
    text: &'a str,
    at: Location,
    found: &mut Vec<FoundMessage<'a>>,
) -> Result<(), String> {
    let parsed = record::parse(text, work).map_err(|e| e.to_string())?;
    if parsed.from != alias {
        return Err(format!(
            "it says it is from {:?}, but it stands in the log of {alias:?}",
            sanitize_line(&parsed.from)
        ));
    }
    let (time, from_me) = (parsed.time(), alias == store.properties.me);
    let claim = if parsed.has_sig { record::parse_claim(text).map(Box::new) } else { None };
    let multicast = parsed.multicast_key(text);
    let to_me = parsed.to == store.properties.me.as_str();
    let to = if parsed.rcpt.is_empty() { parsed.to.clone() } else { parsed.rcpt.join(", ").into() };
    found.push(FoundMessage {
        at,
        to_me,
        from_me,
        time,
        // A time to the millisecond makes the order of the log irrelevant.
        name_time: parsed.ms.map(|_| time),
        plain_length: parsed.plain_length(&to),
        repeat_kind: if parsed.id_verified { RepeatKind::Same } else { RepeatKind::Claimed },
        claim,
        idempotency_key: parsed.idem.filter(|_| from_me).map(Into::into),
        in_reply_to: parsed.re.filter(|_| from_me || to_me),
        multicast,
        has_parts: parsed.files.is_some(),
        to,
        from: parsed.from,
        thread: parsed.thread,
        id: parsed.id,
        ..FoundMessage::default()
    });
    Ok(())
}

fn check_record(line: &mut LineCheck<'_, Samp>, parsed: &SampRecord<'_>) {
    let alias = parse_log_name(line.name).map_or("", |(alias, _)| alias);
    if parsed.from != alias {
        line.report_violation(
            "from",
            format!("from is {:?}, the log is that of {alias:?}", parsed.from),
        );
    }
    if !alias::is_valid_alias(&parsed.to) {
        line.report_violation("to", format!("to is {:?}, which is not a valid name", parsed.to));
    }
    if !parsed.id_verified {
        line.report_violation("id", format!("the content does not hash to the id {:?}", parsed.id));
    }
    if let Some(fault) = parsed.files.and_then(files::find_list_fault) {
        line.report_violation("files", fault);
    }
    line.check_unique_id(&parsed.id);
    if parsed.has_sig {
        line.check_claim(record::parse_claim(line.text));
    }
}
