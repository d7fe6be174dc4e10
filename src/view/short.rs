//! Short names: `<id8>` and the whole id stand for the name of a message, wherever it is listed
//! (docs/SEMANTICS.md, S223). Who was handed a text knows its `Message-ID:` and no file name.

use std::collections::BTreeSet;

use super::node::Node;
use super::{Tree, names};
use crate::index::{Core, MsgIx};

/// The messages by the keys of their ids. Made when somebody asks: messages are only ever added, and
/// keep their ids.
#[derive(Debug, Default)]
pub(super) struct ShortNames {
    /// Messages looked at so far.
    upto: usize,
    by_key: BTreeSet<(u32, MsgIx)>,
}

impl ShortNames {
    fn grow(&mut self, core: &Core) {
        let new = self.upto as MsgIx..core.messages_so_far() as MsgIx;
        self.upto = core.messages_so_far();
        let key = |ix| Some((names::key_of_id(&core.id(core.entry(ix)?))?, ix));
        self.by_key.extend(new.filter_map(key));
    }

    fn with(&self, key: u32) -> Vec<MsgIx> {
        let same = self.by_key.range((key, MsgIx::MIN)..=(key, MsgIx::MAX));
        same.map(|(_, ix)| *ix).collect()
    }
}

impl Tree {
    /// The message of a folder that a short name stands for: none, if it fits several.
    pub(super) fn message_with_id(&self, core: &Core, folder: &Node, name: &str) -> Option<MsgIx> {
        let key = names::key_of_name(name)?;
        let near = {
            let mut known = self.short_names.lock();
            known.grow(core);
            known.with(key)
        };
        let is_meant =
            |ix: &MsgIx| core.entry(*ix).is_some_and(|e| names::is_short(name, &core.id(e)));
        let lies = |ix: &MsgIx| core.entry(*ix).is_some_and(|e| self.lies_in(core, e, folder));
        // The id of a record that is not shown here is one of the message that is.
        let shown = |ix| Some(ix).filter(lies).or_else(|| core.first_of(ix).filter(lies));
        let meant = near.into_iter().filter(is_meant).filter_map(shown);
        let meant: BTreeSet<MsgIx> = meant.collect();
        meant.first().copied().filter(|_| meant.len() == 1)
    }

    /// Whether a file name is a short one of this message.
    pub(super) fn is_short_name(&self, folder: &Node, name: &str, ix: MsgIx) -> bool {
        let stem = name.strip_suffix(".txt").filter(|stem| !names::begins_with_time(stem));
        stem.and_then(|stem| self.message_named(folder, stem)).is_some_and(|(_, of)| of == ix)
    }

    /// Whether a name may stand for something else, or for nothing, when more has come.
    pub fn may_mean_another(&self, folder: &Node, name: &str) -> bool {
        let of_messages = matches!(
            folder,
            Node::Inbox | Node::ArchiveDay(_) | Node::SentDay(_) | Node::Thread(_)
        );
        of_messages && !names::begins_with_time(name)
    }
}
