//! Queries on a message that the index does not have.

use super::documents::SavedDocument;
use super::error::TableError;
use super::query::{SearchCondition, SearchQuery, SearchTerm};
use super::table::WordTable;
use crate::model::Day;

/// A message of mine that its store does not have yet, as queries see it.
#[derive(Clone, Copy, Debug)]
pub struct OutsideMessage<'a> {
    /// Its subject, as it is shown.
    pub subject: &'a str,
    /// Its text, as it is shown.
    pub body: &'a str,
    /// Its sender.
    pub from: &'a str,
    /// All its recipients.
    pub to: &'a [String],
    /// Its thread: the id, and the name of the folder.
    pub thread: [&'a str; 2],
    /// Its store: the name and the kind.
    pub store: [&'a str; 2],
    /// Its day.
    pub day: Day,
}

impl SearchQuery {
    /// Returns true if a message fits that the index does not have.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn fits_outside(&self, message: &OutsideMessage<'_>) -> Result<bool, TableError> {
        Ok(self.terms().iter().all(|term| fits_term(term, message)) && self.fits_text(message)?)
    }

    fn fits_text(&self, message: &OutsideMessage<'_>) -> Result<bool, TableError> {
        if !self.needs_text() {
            return Ok(true);
        }
        let mut words = WordTable::in_memory()?;
        words.begin()?;
        let document = SavedDocument { row: 1, identity: 0, stamp: 1 };
        words.insert(&document, message.subject, message.body)?;
        words.commit()?;
        Ok(!words.find_rows(self)?.is_empty())
    }
}

/// Returns true if a message fits a term that is not on words.
fn fits_term(term: &SearchTerm, message: &OutsideMessage<'_>) -> bool {
    let fits = match &term.condition {
        SearchCondition::Words(_) => return true,
        SearchCondition::From(name) => name.fits_address(message.from),
        SearchCondition::To(name) => message.to.iter().any(|to| name.fits_address(to)),
        SearchCondition::Thread(name) => message.thread.iter().any(|thread| name.fits(thread)),
        SearchCondition::Store(name) => message.store.iter().any(|store| name.fits(store)),
        SearchCondition::After(day) => message.day >= *day,
        SearchCondition::Before(day) => message.day < *day,
        SearchCondition::Unread => false,
    };
    fits != term.is_negated
}

#[cfg(all(test, feature = "search"))]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    #[test]
    fn each_condition_is_examined() {
        let to = ["bob".to_owned(), "carol@x".to_owned()];
        let message = OutsideMessage {
            subject: "A plan",
            body: "the bug is in the parser",
            from: "me",
            to: &to,
            thread: ["a b", "a%20b"],
            store: ["work", "samp"],
            day: Timestamp::from_secs(0).day(),
        };
        let fits = |query: &str| query.parse::<SearchQuery>().unwrap().fits_outside(&message);
        for query in [
            "bug",
            "PARSER plan",
            "subject:plan",
            "pars* -subject:bug",
            "from:me",
            "to:carol",
            "thread:\"a b\" bug",
            "thread:a%20b",
            "store:work store:samp",
            "after:1970-01-01 before:1970-01-02",
            "-is:unread",
        ] {
            assert!(fits(query).unwrap(), "{query}");
        }
        for query in ["nothing", "subject:bug", "bug -plan", "from:bob", "-from:me", "is:unread"] {
            assert!(!fits(query).unwrap(), "{query}");
        }
    }
}
