//! From a draft to parcels in the spool: parse, address, route, copy what goes along, sign.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use super::address::{self, Answered};
use super::attachments::{self, NamedSize, Source};
use super::clock::{Before, Clock};
use super::reserved::{Keyed, Reserved};
use super::route::{self, Route};
use super::spool::Parcel;
use super::{IDEMPOTENCY_WINDOW_MS, Open, Outbox, OutboxError, Spooled, draft};
use crate::identity::Identity;
use crate::index::MsgIx;
use crate::model::{Draft, Message, Timestamp, one_line, plain_id, plain_thread};
use crate::store::{Preparing, Signer as _, Store, StoreError};

/// What one store gets of a draft.
struct Part {
    store: usize,
    draft: Draft,
    parent: Option<Message>,
    /// The time in the name of what it answers, wherever that lies, or of my newest message in its
    /// thread, if that is too far ahead of the clock.
    after: Option<Timestamp>,
    signer: Arc<Identity>,
}

/// A signed message and whom it goes to, as its store compares addresses.
type Signed = (Parcel, Vec<String>);

impl Outbox {
    /// Puts the draft as it is now into the spool, in place of an earlier version.
    pub(super) fn spool_draft(&self, d: &mut Open) -> Result<(), OutboxError> {
        let earlier = d.spooled.take();
        if d.is_empty() {
            self.forget(earlier);
            return Ok(());
        }
        let replaced = earlier.as_ref().map_or(&[][..], |spooled| &spooled.parcels);
        let parcels = match self.prepare(d, replaced) {
            Ok(parcels) if !parcels.is_empty() => parcels,
            Ok(_) => {
                self.forget(earlier);
                d.spooled = Some(Spooled { number: None, parcels: Vec::new() });
                return Ok(());
            }
            // More text may come. Until then what an earlier close was told stays true.
            Err(e) => {
                d.spooled = earlier;
                return Err(e);
            }
        };
        // One step, so that a crash leaves one version and not none.
        let instead = earlier.as_ref().and_then(|spooled| spooled.number);
        let put = self.tools.spool.put(parcels.clone(), instead);
        self.tools.attachments.release(replaced);
        let number = put.map_err(|error| {
            self.tools.let_go(&parcels);
            OutboxError::Io { what: "the message could not be put into the spool", error }
        })?;
        d.spooled = Some(Spooled { number: Some(number), parcels });
        Ok(())
    }

    /// Forgets what was spooled, with its ids and copies.
    pub(super) fn forget(&self, spooled: Option<Spooled>) {
        if let Some(n) = spooled.and_then(|spooled| spooled.number) {
            self.tools.end(n, false);
        }
    }

    /// Takes back what was spooled of a draft that is no longer what it was: the next flush or the
    /// last close spools it again.
    pub(super) fn unspool(&self, d: &mut Open) {
        if let Some(spooled) = d.spooled.take() {
            self.forget(Some(spooled));
            d.dirty = true;
        }
    }

    /// Hands what was spooled to the thread that sends.
    pub(super) fn send(&self, spooled: Option<Spooled>) {
        if let Some(Spooled { number: Some(n), parcels }) = spooled {
            self.sender.send(n, parcels, false);
        }
    }

    /// Parses, routes, copies and signs. The ids of the result are reserved. Nothing if every recipient
    /// has it already.
    pub(super) fn prepare(
        &self,
        d: &Open,
        replaced: &[Parcel],
    ) -> Result<Vec<Parcel>, OutboxError> {
        let mut draft = self.headers().parse(&d.text)?;
        let answered = address::complete(&self.tools.index, &mut draft, &d.name, &d.target)?;
        let routes = self.routes(&draft)?;
        let sources = sources(&draft, &d.files);
        if says_nothing(&draft.body) && sources.is_empty() {
            return Err(nothing_in_it());
        }
        let copies = if sources.is_empty() {
            None
        } else if self.is_sent(&draft, &routes, replaced)? {
            // A retry, whose files may be gone by now.
            return Ok(Vec::new());
        } else {
            Some(self.tools.attachments.copy(&sources, &self.sizes(&sources, &routes)?)?)
        };
        draft.attached = copies.as_ref().map(|c| c.files.clone()).unwrap_or_default();
        let parts = routes.into_iter().map(|route| self.part(&draft, route, answered));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let mut reserved = self.tools.reserved.lock();
        let given_up: Vec<_> = replaced.iter().map(|p| reserved.remove(p)).collect();
        let made = self.sign(parts, &reserved);
        match &made {
            Ok(signed) => {
                for (p, to) in signed {
                    let (to, body) = (to.clone(), draft.body.clone());
                    let key = draft.idempotency_key.clone();
                    reserved.add(p, key.map(|key| Keyed { key, to, body }));
                }
            }
            Err(_) => replaced.iter().zip(given_up).for_each(|(p, keyed)| reserved.add(p, keyed)),
        }
        drop(reserved);
        let parcels: Vec<Parcel> = made?.into_iter().map(|(p, _)| p).collect();
        // Copies that no parcel names would never be removed.
        if let Some(copies) = copies.filter(|_| parcels.iter().any(|p| !p.message.files.is_empty()))
        {
            copies.keep();
        }
        Ok(parcels)
    }

    /// Recipients by store, in the order of the stores' first recipients.
    pub(super) fn routes(&self, draft: &Draft) -> Result<Vec<Route>, OutboxError> {
        route::routes(&self.tools.index, draft, &self.settings)
    }

    fn store(&self, number: usize) -> Result<&Arc<dyn Store>, OutboxError> {
        self.tools.index.stores().get(number).ok_or(OutboxError::NotFound)
    }

    /// Names and sizes of files that shall go along, if every store takes them.
    fn sizes(&self, files: &[Source], routes: &[Route]) -> Result<Vec<NamedSize>, OutboxError> {
        let sizes = attachments::sizes(files)?;
        for route in routes {
            let carried = self.store(route.store)?.about().carries(&sizes);
            carried.map_err(|e| match e {
                StoreError::Invalid(why) => {
                    let to: Vec<&str> =
                        route.to.iter().chain(&route.cc).map(String::as_str).collect();
                    OutboxError::Invalid(format!("{why} (it is to {})", one_line(&to.join(", "))))
                }
                other => other.into(),
            })?;
        }
        Ok(sizes)
    }

    /// Refuses files that cannot go along, without copying any.
    pub(super) fn judge_files(&self, draft: &Draft, routes: &[Route]) -> Result<(), OutboxError> {
        let sources = sources(draft, &[]);
        if sources.is_empty() { Ok(()) } else { self.sizes(&sources, routes).map(drop) }
    }

    /// What one store gets of the draft: its recipients, and what they know of the conversation.
    fn part(
        &self,
        draft: &Draft,
        route: Route,
        answered: Option<Answered>,
    ) -> Result<Part, OutboxError> {
        let store = self.store(route.store)?;
        let signer = self.keys.pinned(store.as_ref())?;
        self.tools.index.set_my_key(route.store, signer.public_key());
        let mut draft = Draft { to: route.to, cc: route.cc, ..draft.clone() };
        draft.is_blind = route.is_blind;
        let answered = answered.filter(|_| !route.is_blind);
        if route.is_blind {
            (draft.thread, draft.in_reply_to, draft.is_reply) = (None, None, false);
        }
        let mut parent = answered.filter(|a| a.store == route.store).map(|a| a.ix);
        if let Some(elsewhere) = answered.filter(|a| a.store != route.store) {
            // Ids of one store mean nothing in another; what the writer wrote is left alone.
            draft.in_reply_to.take_if(|_| elsewhere.gave_id);
            draft.thread.take_if(|_| elsewhere.gave_thread && store.about().links());
            if self.store(elsewhere.store)?.about().labels() {
                draft.thread = draft.thread.map(|id| plain_thread(&id).to_owned());
            }
            draft.is_reply = draft.in_reply_to.is_some() || draft.thread.is_some();
        }
        if store.about().labels() {
            let core = self.tools.index.read();
            draft.thread = draft.thread.map(|id| address::labelled(&core, route.store, id));
        }
        if store.about().links()
            && draft.in_reply_to.is_none()
            && let Some(thread) = &draft.thread
        {
            let core = self.tools.index.read();
            parent = address::newest_in_thread(&core, route.store, thread);
            let id = parent.and_then(|ix| core.entry(ix)).map(|e| core.id(e));
            draft.in_reply_to = id.map(|id| plain_id(&id).to_owned());
        }
        draft.is_reply |= draft.in_reply_to.is_some() && parent.is_some();
        if let (Some(id), None, None) = (&draft.in_reply_to, answered, parent)
            && !store.outgoing()?.may_be_id(id)
        {
            return Err(OutboxError::Invalid(format!(
                "In-Reply-To: no message here has the id {:?}; take that in the line Message-ID of the message, \
                 or remove the line",
                one_line(id)
            )));
        }
        let after = {
            let core = self.tools.index.read();
            let named = answered.map(|a| a.ix).into_iter().chain(parent);
            let named = named.filter_map(|ix| core.entry(ix).map(|e| core.name_time(e)));
            let thread = draft.thread.as_ref().and_then(|id| core.find_thread(route.store, id));
            let far = Clock::horizon(Timestamp::now());
            let mine = thread.and_then(|thread| core.newest_from_me_in(thread, far));
            named.chain(mine).map(Timestamp::calendar).max()
        };
        let parent = parent.and_then(|ix| self.message(ix));
        Ok(Part { store: route.store, draft, parent, after, signer })
    }

    /// Reads a message of the index. That it cannot be read is no reason not to answer it.
    fn message(&self, ix: MsgIx) -> Option<Message> {
        for _ in 0..2 {
            let (entry, id) = {
                let core = self.tools.index.read();
                let entry = *core.entry(ix)?;
                (entry, core.id(&entry))
            };
            match self.tools.index.store_of(&entry)?.read(&entry.location()) {
                Ok(record) if record.message.id == id => return Some(record.message),
                // It moved since the last scan.
                Ok(_) | Err(StoreError::Moved) => {
                    let _ = self.tools.index.refresh(entry.store(), true);
                }
                Err(e) => {
                    tracing::warn!(error = %e, "the message that is answered cannot be read");
                    return None;
                }
            }
        }
        None
    }

    /// The signed records of a draft, in stores that have room for them.
    fn sign(&self, parts: Vec<Part>, reserved: &Reserved) -> Result<Vec<Signed>, OutboxError> {
        let mut signed: Vec<Signed> = Vec::new();
        // Those who are in the threads of them.
        let mut along: HashMap<(usize, String), Vec<String>> = HashMap::new();
        let mut used: Vec<&Arc<dyn Store>> = Vec::new();
        for mut part in parts {
            if self.nobody_left(part.store, &mut part.draft, reserved)? {
                continue;
            }
            let store = self.store(part.store)?;
            store.require_there()?;
            let max_body = store.about().max_body;
            if part.draft.body.len() as u64 > max_body {
                return Err(OutboxError::TooLarge(max_body));
            }
            // The store is not kept from the tables: it may wait for a scan that fills them.
            let taken = |id: &str| {
                self.tools.index.read().find(part.store, store.me(), id).is_some()
                    || reserved.has(store.name(), id)
            };
            let others = |thread: &str, people: &[&str]| {
                let along = along.get(&(part.store, thread.to_owned())).into_iter().flatten();
                let along = along.flat_map(|to| to.split(", "));
                self.has_others((part.store, store), thread, people, reserved, along)
            };
            let begun = |thread: &str| {
                along.contains_key(&(part.store, thread.to_owned()))
                    || reserved.people(store.name(), thread).next().is_some()
                    || self.tools.index.read().has_messages(part.store, thread)
            };
            let now = self.moment(part.after);
            let with = Preparing {
                parent: part.parent.as_ref(),
                taken: &taken,
                others: &others,
                begun: &begun,
                ..Preparing::new(now, part.signer.as_ref())
            };
            let made = store.outgoing()?.prepare(&part.draft, &with)?;
            self.clock.lock().used(now, with.used.get());
            let one_for_all = made.len() == 1;
            for message in made {
                let to: Vec<String> = if one_for_all {
                    let all = part.draft.to.iter().chain(&part.draft.cc);
                    all.map(|to| store.canonical(to)).collect()
                } else {
                    message.to.split(", ").map(|to| store.canonical(to)).collect()
                };
                let thread = (part.store, message.thread.clone());
                along.entry(thread).or_default().push(message.to.clone());
                signed.push((Parcel { store: store.name().to_owned(), message }, to));
            }
            used.push(store);
        }
        let size = |p: &Parcel| {
            p.message.bytes.len() as u64 + 2 + p.message.files.iter().map(|f| f.size).sum::<u64>()
        };
        let bytes: u64 = signed.iter().map(|(p, _)| size(p)).sum();
        for store in used {
            store.outgoing()?.appendable(bytes)?;
        }
        Ok(signed)
    }

    /// The time of what is sent now, after this one.
    fn moment(&self, parent: Option<Timestamp>) -> Timestamp {
        let now = Timestamp::now();
        let mine = self.tools.index.read().newest_from_me(Clock::horizon(now));
        self.clock.lock().next(now, Before { mine, parent })
    }

    /// Whether a thread has people who are none of these, or not all of these; I am in all of mine.
    fn has_others<'a>(
        &self,
        (number, store): (usize, &Arc<dyn Store>),
        thread: &str,
        people: &[&str],
        reserved: &'a Reserved,
        along: impl Iterator<Item = &'a str>,
    ) -> bool {
        // The store is not asked under the lock of the tables, as for `taken`.
        let known = self.tools.index.read().people_of(number, thread);
        let canonical = |name: &str| store.canonical(draft::bare_address(name));
        let mut known: BTreeSet<String> = known.iter().map(|name| canonical(name)).collect();
        known.extend(reserved.people(store.name(), thread).chain(along).map(canonical));
        if known.is_empty() {
            return false;
        }
        known.insert(canonical(store.me()));
        let these = people.iter().copied().chain([store.me()]);
        known != these.map(canonical).collect()
    }

    /// Whether everybody got the draft already under its idempotency key, or is about to; `replaced`
    /// are earlier versions of this same draft.
    fn is_sent(
        &self,
        draft: &Draft,
        routes: &[Route],
        replaced: &[Parcel],
    ) -> Result<bool, OutboxError> {
        if draft.idempotency_key.is_none() {
            return Ok(false);
        }
        let mut reserved = self.tools.reserved.lock();
        let given_up: Vec<_> = replaced.iter().map(|p| reserved.remove(p)).collect();
        let all = routes.iter().try_fold(true, |all, route| {
            let (to, cc) = (route.to.clone(), route.cc.clone());
            let mut part = Draft { to, cc, ..draft.clone() };
            Ok(self.nobody_left(route.store, &mut part, &reserved)? && all)
        });
        replaced.iter().zip(given_up).for_each(|(p, keyed)| reserved.add(p, keyed));
        all
    }

    /// Takes out the recipients who already got this under the same idempotency key, or are about to;
    /// true if nobody is left.
    fn nobody_left(
        &self,
        number: usize,
        part: &mut Draft,
        reserved: &Reserved,
    ) -> Result<bool, OutboxError> {
        let Some(key) = part.idempotency_key.clone() else { return Ok(false) };
        let store = self.store(number)?;
        let outgoing = store.outgoing()?;
        let says = |sent: &str, draft: &str| same_text(sent, draft) || outgoing.says(sent, draft);
        let sent = self.sent_under(number, &key);
        let left = |named: &String| -> Result<Option<String>, OutboxError> {
            let to = store.canonical(named);
            let earlier = match sent.iter().find(|(recipients, _)| recipients.contains(&to)) {
                Some((_, Ok(body))) => Some(body.clone()),
                Some((_, Err(why))) => return Err(OutboxError::Unreachable(why.clone())),
                None => reserved.text(store.name(), &to, &key).map(str::to_owned),
            };
            match earlier {
                None => Ok(Some(named.clone())),
                Some(body) if says(&body, &part.body) => Ok(None),
                Some(_) => Err(OutboxError::Invalid(format!(
                    "Idempotency-Key: {key:?} was used for another text to {to}; use a new key for \
                     a new message"
                ))),
            }
        };
        let all_left = |list: &[String]| -> Result<Vec<String>, OutboxError> {
            list.iter().filter_map(|to| left(to).transpose()).collect()
        };
        let (to, cc) = (all_left(&part.to)?, all_left(&part.cc)?);
        (part.to, part.cc) = if to.is_empty() { (cc, to) } else { (to, cc) };
        Ok(part.to.is_empty())
    }

    /// My recent messages in a store that carry an idempotency key: whom each went to, as the store
    /// compares addresses, and its text, or why it cannot be read.
    fn sent_under(&self, number: usize, key: &str) -> Vec<(Vec<String>, Result<String, String>)> {
        let Ok(store) = self.store(number) else { return Vec::new() };
        let since = Timestamp::now().plus_millis(-IDEMPOTENCY_WINDOW_MS);
        let sent: Vec<_> = {
            let core = self.tools.index.read();
            let sent = core.with_idempotency_key(key).iter().filter_map(|ix| core.entry(*ix));
            sent.filter(|e| e.store() == number && e.is_from_me() && e.time() >= since)
                .map(|e| (core.to(e).to_owned(), e.location()))
                .collect()
        };
        let canonical = |to: &str| store.canonical(draft::bare_address(to));
        sent.into_iter()
            .map(|(to, at)| {
                let mut to: Vec<String> = to.split(", ").map(canonical).collect();
                // The index need not know of those in Cc.
                let text = store.read(&at).map(|record| {
                    let m = record.message;
                    to.extend(m.to.iter().chain(&m.cc).map(|one| canonical(one)));
                    m.body
                });
                (to, text.map_err(|e| format!("a message with this key cannot be read: {e}")))
            })
            .collect()
    }
}

/// Whether nobody could read anything in a text: blanks, and the NULs of a file that was only made longer.
fn says_nothing(body: &str) -> bool {
    body.chars().all(|c| c.is_whitespace() || c == '\0')
}

/// Why a draft without text and files is not sent.
pub(super) fn nothing_in_it() -> OutboxError {
    OutboxError::Invalid("the text is empty, so there is nothing to send; write a text".into())
}

/// The files that go along: those named in the header, then those of a composing folder.
fn sources(draft: &Draft, files: &[(String, PathBuf)]) -> Vec<Source> {
    let named = draft.attach.iter().map(|path| Source::Path(path.into()));
    let composed = files.iter().map(|(name, path)| Source::Composed(name.clone(), path.clone()));
    named.chain(composed).collect()
}

fn same_text(sent: &str, draft: &str) -> bool {
    use unicode_normalization::UnicodeNormalization;
    // Formats differ in line ends and in blanks around a text.
    let plain = |text: &str| -> String {
        text.replace("\r\n", "\n").replace('\r', "\n").trim().nfc().collect()
    };
    let (sent, draft) = (plain(sent), plain(draft));
    // A thread prefix was taken off when it was sent.
    sent == draft || draft.ends_with(&sent) && draft.starts_with("[thread:")
}
