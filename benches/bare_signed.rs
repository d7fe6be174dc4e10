//! The least work of a first index of signed messages: reading every file below a folder, and as many strict Ed25519
//! verifications, on all cores. It parses nothing and keeps nothing.
//!
//! ```text
//! bare_signed FOLDER ENDING     the files whose names end so; prints their number, and the seconds
//! ```

use std::error::Error;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Writers, each with a key that is decoded once.
const WRITERS: u8 = 10;

/// The signed text, of the length that messages have.
const TEXT: [u8; 300] = [b'x'; 300];

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let (Some(folder), Some(ending)) = (words.next(), words.next()) else {
        return Err("usage: bare_signed FOLDER ENDING".into());
    };
    let signed: Vec<(VerifyingKey, Signature)> = (0..WRITERS)
        .map(|seed| SigningKey::from_bytes(&[seed; 32]))
        .map(|key| (key.verifying_key(), key.sign(&TEXT)))
        .collect();
    let start = Instant::now();
    let mut files = Vec::new();
    list(Path::new(&folder), &ending, &mut files)?;
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let share = files.len().div_ceil(cores).max(1);
    std::thread::scope(|scope| {
        let running: Vec<_> =
            files.chunks(share).map(|files| scope.spawn(|| read(files, &signed))).collect();
        let done =
            running.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        done.collect::<Outcome<()>>()
    })?;
    println!("{}\n{}", files.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn list(folder: &Path, ending: &str, out: &mut Vec<PathBuf>) -> Outcome<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), ending, out)?;
        } else if entry.file_name().to_string_lossy().ends_with(ending) {
            out.push(entry.path());
        }
    }
    Ok(())
}

/// Reads files, and verifies one signature for each.
fn read(files: &[PathBuf], signed: &[(VerifyingKey, Signature)]) -> Outcome<()> {
    for (file, (key, signature)) in files.iter().zip(signed.iter().cycle()) {
        std::hint::black_box(fs::read(file)?);
        key.verify_strict(&TEXT, signature)?;
    }
    Ok(())
}
