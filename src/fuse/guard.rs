//! A guard around every handler. A panic is answered with EIO instead of a hanging caller, because fuser's loop
//! does not survive a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fuser::Errno;

use crate::view::Error;

/// Runs a handler. Its error becomes an errno, its panic EIO.
pub(super) fn run_guarded<T>(
    operation: &'static str,
    handler: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Errno> {
    // Locks that do not poison protect the state that a panic leaves behind. Such state may be incomplete, but
    // it is readable, and the next scan corrects it.
    let outcome = catch_unwind(AssertUnwindSafe(handler));
    // Other code formats and writes the log line; the answer does not depend on it.
    let _ = catch_unwind(AssertUnwindSafe(|| match &outcome {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(operation, error = %error, "refused"),
        Err(panic) => {
            let reason = describe_panic(panic.as_ref());
            tracing::error!(operation, reason, "a handler panicked; answered EIO");
        }
    }));
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Errno::from_i32(error.errno())),
        Err(_) => Err(Errno::EIO),
    }
}

/// Returns the sentence of a panic.
fn describe_panic(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it has no sentence")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::index::testing::{Bed, at, message};
    use crate::model::{MarkRead, Scope};
    use crate::view::{Tree, TreeSettings};

    /// Returns a tree over an index, read only.
    fn tree(bed: &Bed, index: &Arc<crate::index::Index>) -> Tree {
        let settings = TreeSettings {
            me: "me".into(),
            key: None,
            mark_read: MarkRead::OnRead,
            scope: Scope::Mine,
            wait_timeout: Duration::ZERO,
            read_only: true,
            allow_other: false,
            warnings: Arc::default(),
            recent_reads_file: bed.dir.path().join("read-last"),
            reply_warnings_file: bed.dir.path().join("answer-warnings.jsonl"),
            link_boards: Arc::default(),
            taken_logs: Arc::default(),
            bell_record: None,
            groups: crate::outbox::RecipientGroups::default(),
            find_mounted: crate::view::MountedFinder::default(),
            search: None,
        };
        Tree::new(Arc::clone(index), None, settings)
    }

    #[test]
    fn a_position_that_leads_nowhere_is_answered_with_an_error_and_the_rest_goes_on() {
        let bed = Bed::new();
        bed.put(1, message("foo", "a", 5));
        bed.put(2, message("foo", "b", 6));
        let index = Arc::new(bed.open());
        let tree = tree(&bed, &index);
        let list = |path: &str| {
            let names = || {
                let listing = tree.list_folder(&tree.resolve_path(path)?)?;
                let entries = (0..).map_while(|number| listing.resolve_entry(&tree, number));
                Ok(entries.map(|(name, _)| name).collect())
            };
            run_guarded::<Vec<String>>("readdir", names).map_err(Errno::code)
        };
        let (inbox, whole) = (list("inbox").unwrap(), list("threads/a").unwrap());
        assert_eq!((inbox.len(), whole.len()), (2, 1));
        // The chain of the thread of `a` goes on behind the end of the table.
        index.plant_broken_chain(at(&index, "a"));
        assert_eq!(list("threads/a"), Err(libc::EIO));
        assert_eq!(list("threads/a"), Err(libc::EIO), "no lock is held for ever");
        // Everything else is answered, and changes arrive.
        assert_eq!((list("inbox").unwrap(), list("threads/b").unwrap().len()), (inbox, 1));
        index.mark_message(at(&index, "b"), true, false).unwrap();
        bed.put(3, message("foo", "c", 7));
        index.refresh_store(0, false).unwrap();
        assert_eq!((list("inbox").unwrap().len(), list("threads/c").unwrap().len()), (2, 1));
        // The next process reads the stores again and has the message.
        drop((tree, index));
        bed.drop_cache();
        let index = Arc::new(bed.open());
        let tree = self::tree(&bed, &index);
        assert!(tree.list_folder(&tree.resolve_path("threads/a").unwrap()).is_ok());
    }

    #[test]
    fn the_sentence_of_a_panic_is_logged() {
        for panic in [
            catch_unwind(|| panic!("position {} leads nowhere", 7)),
            catch_unwind(|| panic!("position 7 leads nowhere")),
        ] {
            assert_eq!(describe_panic(panic.unwrap_err().as_ref()), "position 7 leads nowhere");
        }
    }

    #[test]
    fn panics_and_errors_are_answered() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let answer = run_guarded("test", || -> Result<(), Error> { panic!("on purpose") });
        std::panic::set_hook(quiet);
        assert_eq!(answer.unwrap_err().code(), libc::EIO);
        assert_eq!(
            run_guarded::<()>("test", || Err(Error::NotFound)).unwrap_err().code(),
            libc::ENOENT
        );
        assert_eq!(run_guarded("test", || Ok(1)).unwrap(), 1);
    }
}
