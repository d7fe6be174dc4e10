//! Indexes generated messages with one library and queries them. `run` starts it and makes the table.
//!
//! `search-libraries build FOLDER COUNT [COMMIT_EVERY]`, `… query FOLDER`, `… wait FOLDER` (opens the index, queries
//! it, waits for a line on standard input, queries again). The library is the one feature that the program was built
//! with.

#[cfg(feature = "fts5")]
mod fts5;
#[cfg(feature = "tantivy")]
mod tantivy_index;
mod text;

#[cfg(feature = "fts5")]
use fts5::Index;
#[cfg(feature = "tantivy")]
use tantivy_index::Index;

use std::error::Error;
use std::io::Read;
use std::time::Instant;

/// One query of the comparison.
pub enum Query {
    /// Documents that contain all words.
    Words(&'static [&'static str]),
    /// Documents that contain the words next to each other.
    Phrase(&'static [&'static str]),
    /// Documents with a word that begins so.
    Prefix(&'static str),
}

const QUERIES: &[(&str, Query)] = &[
    ("rare word", Query::Words(&["w40000"])),
    ("two words", Query::Words(&["w100", "w300"])),
    ("phrase", Query::Phrase(&["w10", "w30"])),
    ("prefix", Query::Prefix("w1234")),
    ("common word", Query::Words(&["w0"])),
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let word = |n: usize| args.get(n).map_or("", String::as_str);
    match word(1) {
        "build" => build(word(2), word(3).parse()?, word(4).parse().unwrap_or(u64::MAX)),
        "query" => query(&Index::open(word(2))?, 30),
        "wait" => {
            let index = Index::open(word(2))?;
            query(&index, 1)?;
            println!("waiting");
            std::io::stdin().read_exact(&mut [0])?;
            query(&index, 1)
        }
        other => Err(format!("unknown command {other:?}").into()),
    }
}

/// Indexes `count` messages, and commits after each `commit_every`.
fn build(folder: &str, count: u64, commit_every: u64) -> Result<(), Box<dyn Error>> {
    let mut index = Index::create(folder)?;
    let (mut bytes, mut text) = (0, text::Generator::new());
    for n in 0..count {
        let (subject, body) = text.next_message();
        bytes += subject.len() + body.len();
        index.add(n, &subject, &body)?;
        if (n + 1) % commit_every == 0 {
            index.commit()?;
            println!("committed {}", n + 1);
        }
    }
    index.finish()?;
    println!("text {bytes}");
    Ok(())
}

/// Prints, for each query, the number of documents, the newest ten, and the median time of `rounds` queries in
/// microseconds.
fn query(index: &Index, rounds: usize) -> Result<(), Box<dyn Error>> {
    for (name, query) in QUERIES {
        let (mut times, mut found) = (Vec::new(), (0, Vec::new()));
        for _ in 0..rounds {
            let begin = Instant::now();
            found = index.search(query)?;
            times.push(begin.elapsed().as_micros());
        }
        times.sort_unstable();
        println!("query\t{name}\t{}\t{:?}\t{}", found.0, found.1.first(), times[rounds / 2]);
    }
    println!("documents {}", index.count()?);
    Ok(())
}
