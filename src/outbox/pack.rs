//! From a draft to parcels in the spool: parse, address, route, sign.

use std::path::PathBuf;

use super::reserved::{Keyed, Reserved};
use super::spool::Parcel;
use super::{IDEMPOTENCY_WINDOW_MS, Open, Outbox, OutboxError, address, draft, route};
use crate::model::{Draft, Timestamp};
use crate::store::{Preparing, Signer};

impl Outbox {
    /// Puts the draft as it is now into the spool, in place of an earlier version.
    pub(super) fn spool_draft(&self, d: &mut Open) -> Result<(), OutboxError> {
        let earlier = d.spooled.take();
        if d.text.is_empty() {
            if let Some((n, parcels)) = earlier {
                self.forget(n, &parcels);
            }
            return Ok(());
        }
        let made = self.prepare(d, earlier.as_ref().map_or(&[][..], |(_, p)| p));
        let parcels = match made {
            Ok(parcels) if !parcels.is_empty() => parcels,
            // Every recipient has it already: a retry under the same idempotency key.
            Ok(none) => {
                if let Some((n, parcels)) = earlier {
                    self.forget(n, &parcels);
                }
                d.spooled = Some((0, none));
                return Ok(());
            }
            // More text may come. Until then what an earlier close was told stays true.
            Err(e) => {
                d.spooled = earlier;
                return Err(e);
            }
        };
        // One step, so that a crash leaves one version and not none.
        let instead = earlier.map(|(n, _)| n).filter(|n| *n != 0);
        let n = self.spool.put(parcels.clone(), instead).map_err(|error| {
            self.release_ids(&parcels);
            if let Some(n) = instead {
                self.spool.end(n);
            }
            OutboxError::Io { what: "the message could not be put into the spool", error }
        })?;
        d.spooled = Some((n, parcels));
        Ok(())
    }

    pub(super) fn forget(&self, n: u64, parcels: &[Parcel]) {
        if n != 0 {
            self.spool.end(n);
        }
        self.release_ids(parcels);
    }

    pub(super) fn release_ids(&self, parcels: &[Parcel]) {
        let mut reserved = self.reserved.lock();
        for p in parcels {
            reserved.remove(p);
        }
    }

    /// Parses, routes and signs. The ids of the result are reserved.
    pub(super) fn prepare(
        &self,
        d: &Open,
        replaced: &[Parcel],
    ) -> Result<Vec<Parcel>, OutboxError> {
        let mut draft = draft::parse(&d.text)?;
        draft.attach.extend(d.attach.iter().cloned());
        address::complete(&self.index, &mut draft, &d.name, &d.target)?;
        let signer = self.signer.as_ref().map_err(|e| OutboxError::NoKey(e.clone()))?;
        let routes = self.routes(&draft)?;
        let mut reserved = self.reserved.lock();
        let given_up: Vec<_> = replaced.iter().map(|p| reserved.remove(p)).collect();
        let made = self.sign(&draft, routes, signer.as_ref(), &reserved);
        match &made {
            Ok(parcels) => {
                for p in parcels {
                    let keyed = draft.idempotency_key.as_ref().map(|key| Keyed {
                        key: key.clone(),
                        to: p.message.to.clone(),
                        body: draft.body.clone(),
                    });
                    reserved.add(p, keyed);
                }
            }
            Err(_) => replaced.iter().zip(given_up).for_each(|(p, keyed)| reserved.add(p, keyed)),
        }
        made
    }

    /// The records of a draft, in stores that have room for them.
    fn sign(
        &self,
        draft: &Draft,
        routes: Vec<(usize, Vec<String>)>,
        signer: &dyn Signer,
        reserved: &Reserved,
    ) -> Result<Vec<Parcel>, OutboxError> {
        let mut parcels = Vec::new();
        for (number, to) in routes {
            let Some(store) = self.index.stores().get(number) else { continue };
            let mut part = Draft { to, cc: Vec::new(), ..draft.clone() };
            if self.already_sent(number, &mut part, reserved)? {
                continue;
            }
            if draft.body.len() as u64 > store.max_body() {
                return Err(OutboxError::TooLarge(store.max_body()));
            }
            let core = self.index.read();
            let taken = |id: &str| {
                core.find(number, store.me(), id).is_some() || reserved.has(store.name(), id)
            };
            let with = Preparing { now: Timestamp::now(), signer, taken: &taken };
            for message in store.prepare(&part, &with)? {
                parcels.push(Parcel { store: store.name().to_owned(), message });
            }
        }
        let bytes: u64 = parcels.iter().map(|p| p.message.bytes.len() as u64 + 2).sum();
        for p in &parcels {
            if let Some(store) = self.index.stores().iter().find(|s| s.name() == p.store) {
                store.appendable(bytes)?;
            }
        }
        Ok(parcels)
    }

    /// Recipients by store, in the order of the stores' first recipients.
    pub(super) fn routes(&self, draft: &Draft) -> Result<Vec<(usize, Vec<String>)>, OutboxError> {
        let mut routes: Vec<(usize, Vec<String>)> = Vec::new();
        for to in draft.to.iter().chain(&draft.cc) {
            let unknown = self.settings.unknown_recipient;
            let number = route::route(&self.index, to, draft.via.as_deref(), unknown)?;
            match routes.iter_mut().find(|(n, _)| *n == number) {
                Some((_, list)) => list.push(to.clone()),
                None => routes.push((number, vec![to.clone()])),
            }
        }
        Ok(routes)
    }

    /// Takes out the recipients who already got this under the same idempotency key, or are about to;
    /// true if nobody is left.
    fn already_sent(
        &self,
        number: usize,
        part: &mut Draft,
        reserved: &Reserved,
    ) -> Result<bool, OutboxError> {
        let (Some(key), Some(store)) = (&part.idempotency_key, self.index.stores().get(number))
        else {
            return Ok(false);
        };
        let since = Timestamp::now().plus_millis(-IDEMPOTENCY_WINDOW_MS);
        let sent: Vec<_> = {
            let core = self.index.read();
            let sent = core.with_idempotency_key(key).iter().filter_map(|ix| core.entry(*ix));
            sent.filter(|e| e.store() == number && e.is_live() && e.time() >= since)
                .map(|e| (core.to(e).to_owned(), e.location()))
                .collect()
        };
        let mut left = Vec::new();
        for to in std::mem::take(&mut part.to) {
            let earlier = match sent.iter().find(|(recipient, _)| *recipient == to) {
                Some((_, at)) => Some(store.read(at)?.message.body),
                None => reserved.text(store.name(), &to, key).map(str::to_owned),
            };
            match earlier {
                None => left.push(to),
                Some(body) if same_text(&body, &part.body) => {}
                Some(_) => {
                    return Err(OutboxError::Invalid(format!(
                        "Idempotency-Key: {key:?} was used for another text to {to}; use a new key \
                         for a new message"
                    )));
                }
            }
        }
        part.to = left;
        Ok(part.to.is_empty())
    }

    /// Where the files of a composing folder lie while it is sent.
    pub(super) fn composed(&self, name: &str) -> PathBuf {
        let hash = crate::index::stable_hash(4, &[name]);
        self.state.join("composing").join(format!("{hash:016x}"))
    }

    pub(super) fn lay_out(
        &self,
        name: &str,
        files: &[(String, Vec<u8>)],
    ) -> Result<Vec<String>, OutboxError> {
        let dir = self.composed(name);
        let io = |error| OutboxError::Io { what: "the attachments could not be kept", error };
        let mut paths = Vec::new();
        for (file, bytes) in files {
            std::fs::create_dir_all(&dir).map_err(io)?;
            let path = dir.join(file);
            std::fs::write(&path, bytes).map_err(io)?;
            paths.push(path.to_string_lossy().into_owned());
        }
        Ok(paths)
    }
}

fn same_text(sent: &str, draft: &str) -> bool {
    use unicode_normalization::UnicodeNormalization;
    // A thread prefix was taken off when it was sent.
    let (sent, draft): (String, String) = (sent.nfc().collect(), draft.nfc().collect());
    sent == draft || draft.ends_with(&sent) && draft.trim_start().starts_with("[thread:")
}
