//! The table of words: the full-text index of SQLite (FTS5), in a file or in memory.
//!
//! The texts of messages are not in it, only their words. Rows are numbered from 1 on without gaps, so that lists of
//! rows stay short. The body is the first column, which takes two bytes less for each word of a message than any other.
//! `documents` says which message each row stands for: the identities and stamps of the rows of one transaction, packed
//! one behind the other.
//!
//! The file is never mapped into memory and has no write-ahead log, whose index is mapped: a file that is cut while it
//! is mapped would end the process. A query becomes quoted strings of FTS5, so no word of a person is ever its syntax.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params};

use super::documents::SavedDocument;
use super::error::TableError;
use super::fold::fold_for_table;
use super::query::{SearchQuery, WordPattern};
use super::titles::{TitleMark, TitlePrints};

/// The version of the tables.
const VERSION: i64 = 4;

/// The tables of this version.
const SCHEMA: &str = "
    CREATE VIRTUAL TABLE texts USING fts5(
        body, subject, content='', columnsize=0, detail=full, tokenize='unicode61 remove_diacritics 2'
    );
    INSERT INTO texts(texts, rank) VALUES('pgsz', 8000);
    INSERT INTO texts(texts, rank) VALUES('hashsize', 8388608);
    INSERT INTO texts(texts, rank) VALUES('automerge', 8);
    CREATE TABLE documents(first INTEGER PRIMARY KEY, packed BLOB NOT NULL);
    CREATE TABLE removed(row INTEGER PRIMARY KEY);
    CREATE TABLE counts(inserted INTEGER NOT NULL, removed INTEGER NOT NULL);
    INSERT INTO counts VALUES(0, 0);
    CREATE TABLE titles(source INTEGER PRIMARY KEY, print INTEGER NOT NULL);
    PRAGMA user_version = 4;
";

/// The settings of a connection. `mmap_size`, and `journal_mode` at the opening, keep the file from being mapped.
const SETTINGS: &str = "
    PRAGMA mmap_size = 0;
    PRAGMA temp_store = MEMORY;
    PRAGMA cache_size = -16384;
    PRAGMA trusted_schema = OFF;
    PRAGMA cell_size_check = ON;
";

/// The longest wait for a reader in another process.
const PATIENCE: Duration = Duration::from_secs(3);
/// The bytes of a packed document: its identity and its stamp.
const PACKED: usize = 12;
/// The largest number of terms of one expression of FTS5.
const TERMS: usize = 50;

/// An open table of words.
#[derive(Debug)]
pub(super) struct WordTable {
    connection: Connection,
    counts: RowCounts,
    /// The counts before the transaction.
    before: RowCounts,
    /// The packed documents of the transaction.
    packed: Vec<u8>,
}

/// The numbers of rows that were inserted and removed so far.
#[derive(Clone, Copy, Debug, Default)]
struct RowCounts {
    inserted: u32,
    removed: u32,
}

impl WordTable {
    /// Makes an empty table that is gone with this value.
    ///
    /// # Errors
    /// If SQLite cannot make the table in memory.
    pub fn in_memory() -> Result<Self, TableError> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(SETTINGS)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self {
            connection,
            counts: RowCounts::default(),
            before: RowCounts::default(),
            packed: Vec::new(),
        })
    }

    /// Opens a file. A table that writes is made if the file is empty.
    ///
    /// # Errors
    /// If the file cannot be opened or has another form.
    pub fn open_file(path: &Path, writes: bool) -> Result<Self, TableError> {
        let mode = if writes {
            OpenFlags::SQLITE_OPEN_READ_WRITE
        } else {
            OpenFlags::SQLITE_OPEN_READ_ONLY
        };
        let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(PATIENCE)?;
        connection.execute_batch(SETTINGS)?;
        let version = |of: &Connection| of.query_row("PRAGMA user_version", [], first_integer);
        if writes {
            let is_empty =
                connection.query_row("SELECT count(*) FROM sqlite_schema", [], first_integer)? == 0;
            let begin = if is_empty { "PRAGMA page_size = 8192;" } else { "" };
            connection.execute_batch(begin)?;
            // The journal says what a cut write left, so a kill or a loss of power leaves the file as it was.
            connection
                .execute_batch("PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = NORMAL;")?;
            if is_empty {
                connection.execute_batch(&format!("BEGIN; {SCHEMA} COMMIT;"))?;
            }
        }
        if version(&connection)? != VERSION {
            return Err(TableError::Damaged("it has the form of another version".to_owned()));
        }
        let counts =
            connection.query_row("SELECT inserted, removed FROM counts", [], read_counts)?;
        Ok(Self { connection, counts, before: counts, packed: Vec::new() })
    }

    /// Examines the structure of every page.
    ///
    /// # Errors
    /// If one is damaged.
    pub fn check_pages(&self) -> Result<(), TableError> {
        let text: String =
            self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if text == "ok" { Ok(()) } else { Err(TableError::Damaged(text)) }
    }

    /// Returns the number of rows that were ever inserted. The next row is the one behind them.
    pub fn rows_so_far(&self) -> u32 {
        self.counts.inserted
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn begin(&mut self) -> Result<(), TableError> {
        self.before = self.counts;
        self.packed.clear();
        Ok(self.connection.execute_batch("BEGIN IMMEDIATE")?)
    }

    /// Inserts a message as the next row.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn insert(
        &mut self,
        document: &SavedDocument,
        subject: &str,
        body: &str,
    ) -> Result<(), TableError> {
        let SavedDocument { row, identity, stamp } = *document;
        let mut text = self
            .connection
            .prepare_cached("INSERT INTO texts(rowid, subject, body) VALUES(?1, ?2, ?3)")?;
        text.execute(params![row, fold_for_table(subject), fold_for_table(body)])?;
        self.packed.extend(identity.to_le_bytes());
        self.packed.extend(stamp.to_le_bytes());
        self.counts.inserted = row;
        Ok(())
    }

    /// Returns the saved titles.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn read_titles(&self) -> Result<TitlePrints, TableError> {
        let mut all = self.connection.prepare("SELECT source, print FROM titles")?;
        let all = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(all.collect::<rusqlite::Result<_>>()?)
    }

    /// Saves titles in the place of those of their sources.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn insert_titles(&self, titles: &[TitleMark]) -> Result<(), TableError> {
        let mut title =
            self.connection.prepare_cached("INSERT OR REPLACE INTO titles VALUES(?1, ?2)")?;
        for mark in titles {
            title.execute([mark.key, mark.print])?;
        }
        Ok(())
    }

    /// Removes a row from the documents. Its words stay until the table is made anew.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn remove(&mut self, row: u32) -> Result<(), TableError> {
        let mut known =
            self.connection.prepare_cached("INSERT OR IGNORE INTO removed VALUES(?1)")?;
        self.counts.removed += known.execute([row])? as u32;
        Ok(())
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// If the table cannot be written.
    pub fn commit(&mut self) -> Result<(), TableError> {
        let RowCounts { inserted, removed } = self.counts;
        if inserted > self.before.inserted {
            let first = self.before.inserted + 1;
            let mut packed =
                self.connection.prepare_cached("INSERT INTO documents VALUES(?1, ?2)")?;
            packed.execute(params![first, self.packed])?;
        }
        let counts = params![inserted, removed];
        self.connection.execute("UPDATE counts SET inserted = ?1, removed = ?2", counts)?;
        Ok(self.connection.execute_batch("COMMIT")?)
    }

    /// Forgets what the transaction changed.
    pub fn roll_back(&mut self) {
        self.counts = self.before;
        // A fault may have done so already.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    /// Calls `each` with every document, in the order of rows.
    ///
    /// # Errors
    /// If the table cannot be read, or has other documents than were inserted.
    pub fn visit_documents(&self, each: &mut dyn FnMut(SavedDocument)) -> Result<(), TableError> {
        let mut removed = self.connection.prepare("SELECT row FROM removed ORDER BY row")?;
        let removed = collect_rows(removed.query([])?)?;
        let mut all =
            self.connection.prepare("SELECT first, packed FROM documents ORDER BY first")?;
        let (mut parts, mut row) = (all.query([])?, 0_u32);
        while let Some(part) = parts.next()? {
            let (first, packed) = (part.get::<_, u32>(0)?, part.get_ref(1)?);
            let packed = packed.as_blob().map_err(|e| TableError::Damaged(e.to_string()))?;
            let (documents, rest) = packed.as_chunks::<PACKED>();
            if Some(first) != row.checked_add(1) || !rest.is_empty() {
                return Err(TableError::Damaged("documents are missing".to_owned()));
            }
            for document in documents {
                row += 1;
                let [i0, i1, i2, i3, i4, i5, i6, i7, s0, s1, s2, s3] = *document;
                let identity = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
                let stamp = u32::from_le_bytes([s0, s1, s2, s3]);
                if removed.binary_search(&row).is_err() {
                    each(SavedDocument { row, identity, stamp });
                }
            }
        }
        if (row, removed.len() as u32) == (self.counts.inserted, self.counts.removed) {
            Ok(())
        } else {
            Err(TableError::Damaged("documents are missing".to_owned()))
        }
    }

    /// Returns the rows whose text a query matches, in their order. A query that only excludes words matches all other
    /// rows, removed ones, too.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn find_rows(&self, query: &SearchQuery) -> Result<Vec<u32>, TableError> {
        let texts_of = |negated: bool| {
            let words = query.words().filter(move |(_, is_negated)| *is_negated == negated);
            words.map(|(words, _)| format_words(words)).collect::<Vec<String>>()
        };
        let (wanted, excluded) = (texts_of(false), texts_of(true));
        let mut found: Option<Vec<u32>> = None;
        for some in wanted.chunks(TERMS) {
            let rows = self.match_rows(&some.join(" AND "))?;
            found = Some(match found {
                Some(before) => keep_common(before, &rows),
                None => rows,
            });
        }
        let mut found = match found {
            Some(found) => found,
            None => (1..=self.counts.inserted).collect(),
        };
        for some in excluded.chunks(TERMS) {
            let rows = self.match_rows(&some.join(" OR "))?;
            found.retain(|row| rows.binary_search(row).is_err());
        }
        Ok(found)
    }

    fn match_rows(&self, expression: &str) -> Result<Vec<u32>, TableError> {
        let mut statement =
            self.connection.prepare_cached("SELECT rowid FROM texts WHERE texts MATCH ?1")?;
        collect_rows(statement.query([expression])?)
    }
}

fn collect_rows(mut rows: rusqlite::Rows<'_>) -> Result<Vec<u32>, TableError> {
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(row.get(0)?);
    }
    Ok(found)
}

/// Returns the rows of a sorted list that another sorted list has, too.
fn keep_common(mut rows: Vec<u32>, others: &[u32]) -> Vec<u32> {
    rows.retain(|row| others.binary_search(row).is_ok());
    rows
}

/// Returns a pattern in the syntax of FTS5.
fn format_words(words: &WordPattern) -> String {
    let column = if words.in_subject { "subject : " } else { "" };
    let star = if words.is_prefix { " *" } else { "" };
    format!("({column}\"{}\"{star})", fold_for_table(&words.text).replace('"', "\"\""))
}

fn first_integer(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(0)
}

fn read_counts(row: &Row<'_>) -> rusqlite::Result<RowCounts> {
    Ok(RowCounts { inserted: row.get(0)?, removed: row.get(1)? })
}

impl From<rusqlite::Error> for TableError {
    fn from(error: rusqlite::Error) -> Self {
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::CannotOpen
                | ErrorCode::OutOfMemory,
            ) => Self::Unavailable(text),
            _ => Self::Damaged(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table_of(texts: &[(&str, &str)]) -> WordTable {
        let mut table = WordTable::in_memory().unwrap();
        table.begin().unwrap();
        for (number, (subject, body)) in texts.iter().enumerate() {
            let row = number as u32 + 1;
            let document = SavedDocument { row, identity: row.into(), stamp: 1 };
            table.insert(&document, subject, body).unwrap();
        }
        table.commit().unwrap();
        table
    }

    fn find(table: &WordTable, query: &str) -> Vec<u32> {
        table.find_rows(&query.parse().unwrap()).unwrap()
    }

    #[test]
    fn queries_find_their_rows() {
        let table = table_of(&[
            ("Parser bug", "the parser fails"),
            ("", "no parser here: Äpfel über alles"),
            ("bug", "a long phrase of words"),
            ("line", "foo-bar http://x/y std::vec AND OR NOT NEAR"),
            ("", "ελληνικά ёлка йод 한국어 が"),
            ("Straße", "ſo viele Ofﬁziere"),
        ]);
        for (query, rows) in [
            ("parser", &[1, 2][..]),
            ("PARSER bug", &[1]),
            ("bug", &[1, 3]),
            ("subject:parser", &[1]),
            ("pars*", &[1, 2]),
            ("apfel", &[2]),
            ("ÄPFEL", &[2]),
            ("A\u{308}pfel", &[2]),
            ("ελληνικα", &[5]),
            ("ΕΛΛΗΝΙΚΆ", &[5]),
            ("елка", &[5]),
            ("й*", &[5]),
            ("한국어", &[5]),
            ("が", &[5]),
            ("か", &[]),
            ("STRASSE", &[6]),
            ("subject:STRAẞE", &[6]),
            ("so offiz*", &[6]),
            ("\"long phrase\"", &[3]),
            ("\"phrase long\"", &[]),
            ("\"long phr\"*", &[3]),
            ("bug -parser", &[3]),
            ("-parser", &[3, 4, 5, 6]),
            ("-parser -bug", &[4, 5, 6]),
            ("AND OR", &[4]),
            ("NEAR", &[4]),
            ("foo-bar", &[4]),
            ("std::vec", &[4]),
            ("http://x/y", &[4]),
            ("subject", &[]),
            ("nothing", &[]),
            ("parser nothing", &[]),
        ] {
            assert_eq!(find(&table, query), rows, "{query}");
        }
    }

    #[test]
    fn a_query_of_many_words_is_done_in_parts() {
        let table = table_of(&[("", "a b"), ("", "a c")]);
        let many = "a ".repeat(1000);
        assert_eq!(find(&table, &format!("{many} b")), [1]);
        assert_eq!(find(&table, &format!("{} -c", "-x ".repeat(1000))), [1]);
    }

    #[test]
    fn a_file_keeps_its_documents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        std::fs::write(&path, "").unwrap();
        let mut table = WordTable::open_file(&path, true).unwrap();
        table.begin().unwrap();
        table
            .insert(&SavedDocument { row: 1, identity: u64::MAX >> 8, stamp: 7 }, "s", "b")
            .unwrap();
        table.insert(&SavedDocument { row: 2, identity: 5, stamp: 8 }, "s", "c").unwrap();
        table.remove(2).unwrap();
        table.commit().unwrap();
        drop(table);
        let table = WordTable::open_file(&path, false).unwrap();
        let mut all = Vec::new();
        table.visit_documents(&mut |one| all.push(one)).unwrap();
        assert_eq!(all, [SavedDocument { row: 1, identity: u64::MAX >> 8, stamp: 7 }]);
        assert_eq!(find(&table, "b"), [1]);
        table.check_pages().unwrap();
    }

    #[test]
    fn garbage_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        std::fs::write(&path, "garbage, and more than a header of it. ".repeat(1000)).unwrap();
        for writes in [false, true] {
            let opened = WordTable::open_file(&path, writes);
            assert!(matches!(opened, Err(TableError::Damaged(_))), "{opened:?}");
        }
        let absent = WordTable::open_file(&dir.path().join("absent"), false);
        assert!(matches!(absent, Err(TableError::Unavailable(_))), "{absent:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_query_is_an_error_of_the_table(texts in prop::collection::vec(any::<String>(), 1..4), query: String) {
            let texts: Vec<(&str, &str)> = texts.iter().map(|text| ("", text.as_str())).collect();
            if let Ok(query) = query.parse() {
                prop_assert!(table_of(&texts).find_rows(&query).is_ok());
            }
        }

        #[test]
        fn the_place_of_a_match_is_one(text in "[a-zA-ZäÖéñßſﬁ ,.-]{0,40}", query in "[a-zA-ZäÖéñßſﬁ]{1,2}\\*?") {
            let query: SearchQuery = query.parse().unwrap();
            let finder = super::super::fold::MatchFinder::new(&query);
            let is_found = !table_of(&[("", &text)]).find_rows(&query).unwrap().is_empty();
            prop_assert_eq!(finder.find_in_body(&text).is_some(), is_found, "{} in {}", query, text);
        }
    }
}
