//! What is in `outbox/`, and what it says.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::locks::Mutex;

use super::{DraftId, Listed, Open, Outbox, Target, note};

impl Outbox {
    /// Everything in `outbox/`, by name.
    pub fn list(&self) -> Vec<Listed> {
        let mut out: HashMap<String, Listed> = HashMap::new();
        for (name, kept) in self.shelf.lock().iter().filter(|(_, k)| k.is_shown()) {
            let file = |name: String, len: usize, is_note| {
                (name.clone(), Listed { name, len: len as u64, time: kept.time, is_note })
            };
            out.extend([file(name.clone(), kept.text.len(), false)]);
            if let Some(error) = &kept.error {
                out.extend([file(format!("{name}.error"), note(error).len(), true)]);
            }
        }
        for (name, (error, time)) in self.notes.lock().iter() {
            let name = format!("{name}.error");
            let len = note(error).len() as u64;
            out.insert(name.clone(), Listed { name, len, time: *time, is_note: true });
        }
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        for d in open {
            let d = d.lock();
            if !d.unlinked && !d.composed && d.target == Target::Outbox {
                let (name, len) = (d.name.clone(), d.text.len() as u64);
                out.insert(name.clone(), Listed { name, len, time: d.time, is_note: false });
            }
        }
        let mut list: Vec<Listed> = out.into_values().collect();
        list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// One entry of `outbox/`.
    pub fn find(&self, name: &str) -> Option<Listed> {
        if let Some(open) = self.find_open(name, &Target::Outbox) {
            return Some(open);
        }
        let file = |len: usize, time, is_note| {
            Some(Listed { name: name.to_owned(), len: len as u64, time, is_note })
        };
        let shelf = self.shelf.lock();
        if let Some(kept) = shelf.get(name).filter(|k| k.is_shown()) {
            return file(kept.text.len(), kept.time, false);
        }
        let draft = name.strip_suffix(".error")?;
        if let Some((error, time)) = self.notes.lock().get(draft) {
            return file(note(error).len(), *time, true);
        }
        let kept = shelf.get(draft)?;
        file(note(kept.error.as_ref()?).len(), kept.time, true)
    }

    /// Whether the only thing of this name is a draft whose last close has just returned: to
    /// everybody else it is sent, though its release is still on the way. Who writes one message
    /// after the other asks at once and is not kept waiting; who asks later waits until it is clear
    /// whether that was the last close.
    pub fn is_leaving(&self, name: &str) -> bool {
        let open: Vec<(DraftId, Arc<Mutex<Open>>)> =
            self.open.lock().iter().map(|(id, d)| (*id, Arc::clone(d))).collect();
        let in_outbox = |d: &Open| d.name == name && d.target == Target::Outbox;
        let named: Vec<DraftId> =
            open.iter().filter(|(_, d)| in_outbox(&d.lock())).map(|(id, _)| *id).collect();
        !named.is_empty() && named.iter().all(|id| self.sender.leaves(*id))
    }

    /// A draft by name and target: an open one, or a private one that is kept.
    pub fn find_for(&self, name: &str, target: &Target) -> Option<Listed> {
        self.find_open(name, target).or_else(|| {
            let shelf = self.shelf.lock();
            let kept = shelf.find(name, target).filter(|k| k.error.is_none())?;
            let len = kept.text.len() as u64;
            Some(Listed { name: name.to_owned(), len, time: kept.time, is_note: false })
        })
    }

    /// An open draft by name and target.
    pub fn find_open(&self, name: &str, target: &Target) -> Option<Listed> {
        let open: Vec<Arc<Mutex<Open>>> = self.open.lock().values().cloned().collect();
        open.iter().find_map(|d| {
            let d = d.lock();
            (d.name == name && d.target == *target && !d.unlinked && !d.composed).then(|| Listed {
                name: name.to_owned(),
                len: d.text.len() as u64,
                time: d.time,
                is_note: false,
            })
        })
    }

    /// Largest text in bytes.
    pub fn max_message(&self) -> u64 {
        self.settings.max_message
    }

    /// The text of a draft by name and target: of the newest open one, else of a kept one; in
    /// `outbox/` also of the note beside it.
    pub fn text(&self, name: &str, target: &Target) -> Option<Arc<[u8]>> {
        // Not under the table's lock: a draft is locked while its flush waits for the disk.
        let open: Vec<(DraftId, Arc<Mutex<Open>>)> =
            self.open.lock().iter().map(|(id, d)| (*id, Arc::clone(d))).collect();
        let named = open.iter().filter(|(_, d)| {
            let d = d.lock();
            d.name == name && d.target == *target && !d.composed
        });
        if let Some((_, d)) = named.max_by_key(|(id, _)| *id) {
            return Some(d.lock().text.clone().into());
        }
        let shelf = self.shelf.lock();
        if *target != Target::Outbox {
            return shelf.find(name, target).map(|k| Arc::clone(&k.text));
        }
        if let Some(kept) = shelf.get(name) {
            return Some(Arc::clone(&kept.text));
        }
        let draft = name.strip_suffix(".error")?;
        let of_folder = self.notes.lock().get(draft).map(|(error, _)| error.clone());
        let error = of_folder.or_else(|| shelf.get(draft)?.error.clone())?;
        Some(note(&error).into_bytes().into())
    }

    /// The text of an open draft.
    pub fn open_text(&self, id: DraftId) -> Option<Vec<u8>> {
        self.draft(id).ok().map(|d| d.lock().text.clone())
    }

    /// Length of an open draft.
    pub fn open_len(&self, id: DraftId) -> Option<u64> {
        self.draft(id).ok().map(|d| d.lock().text.len() as u64)
    }
}
