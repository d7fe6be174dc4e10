//! SHA-256 digests of files.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;

use crate::model::locks::Mutex;
use lru::LruCache;
use sha2::{Digest as _, Sha256};

use super::fs::{Stamp, read_at_most};
use crate::model::encode_hex;

/// Returns a hash for which nobody can make two texts: the first 8 bytes of a SHA-256, never 0.
pub fn secure_hash64(bytes: &[u8]) -> u64 {
    let full: [u8; 32] = Sha256::digest(bytes).into();
    u64::from_le_bytes(full.first_chunk::<8>().copied().unwrap_or_default()).max(1)
}

/// The number of files whose digest is remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);
/// The number of bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// A digest, and the stamp that the file had when it was made.
type StampedDigest = (Stamp, [u8; 32]);

/// The digests of files that were read, by device and inode number.
#[derive(Debug)]
pub struct DigestCache(Mutex<LruCache<(u64, u64), StampedDigest>>);

impl Default for DigestCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl DigestCache {
    /// Returns the SHA-256 of an open file, in hex. The file is read once as long as it does not change.
    ///
    /// # Errors
    /// As [`hash_file`].
    pub fn file_digest(&self, file: &File) -> io::Result<String> {
        let stamp = Stamp::from_file(file)?;
        let key = (stamp.dev, stamp.ino);
        if let Some((of, digest)) = self.0.lock().get(&key)
            && *of == stamp
        {
            return Ok(encode_hex(digest));
        }
        let digest = hash_file(file)?;
        // The digest is kept only if nobody changed the file while it was read.
        if Stamp::from_file(file)? == stamp {
            self.0.lock().put(key, (stamp, digest));
        }
        Ok(encode_hex(&digest))
    }
}

/// Reads an open file and returns its SHA-256.
///
/// # Errors
/// As the system gave it.
pub fn hash_file(file: &File) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let n = read_at_most(file, &mut buffer, at)?;
        hash.update(buffer.get(..n).unwrap_or_default());
        at += n as u64;
        if n < buffer.len() {
            return Ok(hash.finalize().into());
        }
    }
}
