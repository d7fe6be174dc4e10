//! SQLite's FTS5: a table without content, with positions, read and written without a mapping.

use std::error::Error;
use std::path::Path;

use rusqlite::Connection;

use crate::Query;

pub struct Index {
    db: Connection,
}

fn connect(folder: &str) -> Result<Connection, Box<dyn Error>> {
    let db = Connection::open(Path::new(folder).join("index.sqlite"))?;
    db.execute_batch(
        "PRAGMA mmap_size = 0; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -16384;",
    )?;
    Ok(db)
}

impl Index {
    pub fn create(folder: &str) -> Result<Self, Box<dyn Error>> {
        std::fs::create_dir_all(folder)?;
        let db = connect(folder)?;
        db.execute_batch(
            "CREATE VIRTUAL TABLE texts USING fts5(body, subject, content='', columnsize=0,
                 tokenize='unicode61 remove_diacritics 2');
             CREATE TABLE documents(number INTEGER PRIMARY KEY, identity INTEGER, length INTEGER);
             BEGIN",
        )?;
        Ok(Self { db })
    }

    pub fn open(folder: &str) -> Result<Self, Box<dyn Error>> {
        Ok(Self { db: connect(folder)? })
    }

    pub fn add(&mut self, n: u64, subject: &str, body: &str) -> Result<(), Box<dyn Error>> {
        let n = i64::try_from(n)?;
        self.db
            .prepare_cached("INSERT INTO texts(rowid, body, subject) VALUES (?1, ?2, ?3)")?
            .execute((n, body, subject))?;
        self.db.prepare_cached("INSERT INTO documents VALUES (?1, ?2, ?3)")?.execute((
            n,
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 8,
            body.len() as i64,
        ))?;
        Ok(())
    }

    pub fn commit(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.db.execute_batch("COMMIT; BEGIN")?)
    }

    pub fn finish(self) -> Result<(), Box<dyn Error>> {
        Ok(self.db.execute_batch("COMMIT; INSERT INTO texts(texts) VALUES ('optimize'); VACUUM")?)
    }

    pub fn count(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.db.query_row("SELECT count(*) FROM documents", [], |row| row.get::<_, i64>(0))?
            as u64)
    }

    /// Returns the number of matches and the newest ten.
    pub fn search(&self, query: &Query) -> Result<(u64, Vec<u64>), Box<dyn Error>> {
        let text = match query {
            Query::Words(words) => {
                words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" AND ")
            }
            Query::Phrase(words) => format!("\"{}\"", words.join(" ")),
            Query::Prefix(begin) => format!("\"{begin}\" *"),
        };
        let mut statement = self
            .db
            .prepare_cached("SELECT rowid FROM texts WHERE texts MATCH ?1 ORDER BY rowid DESC")?;
        let mut rows = statement.query([text])?;
        let (mut count, mut newest) = (0, Vec::new());
        while let Some(row) = rows.next()? {
            count += 1;
            if newest.len() < 10 {
                newest.push(row.get::<_, i64>(0)? as u64);
            }
        }
        Ok((count, newest))
    }
}
