//! Stores opened for one command that writes to them directly, like other programs do.
//!
//! A mount may act for me at the same time. It notices these writes like those of any other program. Then
//! msgfs's own state belongs to the mount, and the stores only read it.

use std::path::PathBuf;
use std::sync::Arc;

use msgfs::config::{LockError, StateLock};
use msgfs::mailbox::open_store;
use msgfs::model::sanitize_line;
use msgfs::store::{Store, StoreSpec, StoreUpkeep};

use super::GlobalOptions;
use super::context::CommandContext;
use super::failure::{Failure, refuse};

/// The settings for opening the stores.
pub(crate) struct StoreOpener {
    /// The folder of msgfs's own state.
    state: PathBuf,
    /// The lock on that folder, unless another process has it. Only with it may stores write there.
    lock: Option<StateLock>,
}

impl StoreOpener {
    /// Locks the state of me, unless a mount or another command holds it.
    pub(crate) fn new(context: &CommandContext) -> Result<Self, Failure> {
        context.create_state_folder()?;
        let lock = match StateLock::acquire(&context.paths.state, None) {
            Ok(lock) => Some(lock),
            Err(LockError::Held(_)) => None,
            Err(e) => return Err(Failure::refused(e)),
        };
        Ok(Self { state: context.paths.state.clone(), lock })
    }

    /// Opens a store.
    pub(crate) fn open(&self, spec: &StoreSpec) -> Result<Arc<dyn Store>, Failure> {
        open_store(spec, (&self.state, self.lock.is_some()))
            .map_err(|e| Failure::refused(format!("store {}: {e}", sanitize_line(&spec.name))))
    }

    /// Opens a store. If it depends on trust, it has learned first which of its messages are refused.
    pub(crate) fn open_with_refusals(
        &self,
        global: &GlobalOptions,
        spec: &StoreSpec,
    ) -> Result<Arc<dyn Store>, Failure> {
        let store = self.open(spec)?;
        if !store.facets().upkeep.is_some_and(StoreUpkeep::depends_on_trust) {
            return Ok(store);
        }
        let mailbox = global.open_mailbox(true)?;
        let heard = mailbox.stores().iter().find(|other| other.name() == spec.name).cloned();
        mailbox.close();
        Ok(heard.unwrap_or(store))
    }
}

/// Returns the store of this name among those that fit, or the only one.
///
/// # Errors
/// Returns an error if there is none, or if there are several and no name. The sentence lists them; `what`
/// describes them.
pub(crate) fn select_spec<'a>(
    specs: &'a [StoreSpec],
    name: Option<&str>,
    what: &str,
) -> Result<&'a StoreSpec, Failure> {
    let names = || specs.iter().map(|s| sanitize_line(&s.name)).collect::<Vec<_>>().join(", ");
    match (specs, name) {
        ([], _) => refuse!(
            "there is no {what} here; add a [[store]] to the configuration (docs/stores has the lines)"
        ),
        (specs, Some(name)) => specs.iter().find(|s| s.name == name).ok_or_else(|| {
            let name = sanitize_line(name);
            Failure::Usage(format!("there is no {what} named {name}; there is: {}", names()))
        }),
        ([only], None) => Ok(only),
        (_, None) => refuse!(
            "there are several stores of this kind: name one of {} with --store NAME",
            names()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::config::{Config, Env};

    fn spec(name: &str) -> StoreSpec {
        let spec =
            Config::default().stores(&Env::new("/", [("HOME", "/x")]), "foo").unwrap().remove(0);
        StoreSpec { name: name.into(), ..spec }
    }

    #[test]
    fn one_store_needs_no_name_and_several_do() {
        let (one, two) = ([spec("a")], [spec("a"), spec("b")]);
        assert_eq!(select_spec(&one, None, "ssot store").unwrap().name, "a");
        assert_eq!(select_spec(&two, Some("b"), "ssot store").unwrap().name, "b");
        for (specs, name, words) in [
            (&[][..], None, "there is no ssot store here"),
            (&two, None, "name one of a, b with --store NAME"),
            (&two, Some("c"), "no ssot store named c; there is: a, b"),
        ] {
            let text = select_spec(specs, name, "ssot store").unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
