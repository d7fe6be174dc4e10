//! What a fetch of letters leaves in its job's folder: [`LISTED`], and for each letter `N.json` beside its bytes.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::link::engine::Item;
use crate::store::fs;

/// What is still on the server and known.
pub const LISTED: &str = "listed.json";
/// No file of a fetch is larger, but attachments.
const MAX_FILE: u64 = 64 << 20;

/// What is known, and the letters, made of number, JSON and bytes, whose file has this ending.
pub fn unpack<J: DeserializeOwned>(
    raw: &Path,
    ending: &str,
    letter: impl Fn(usize, J, Vec<u8>) -> io::Result<Item>,
) -> Vec<io::Result<Item>> {
    let read = |name: &str| fs::or_nothing(fs::read_small(&raw.join(name), MAX_FILE));
    let listed: Vec<String> = match read(LISTED) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
        Err(e) => return vec![Err(e)],
    };
    let mut out: Vec<io::Result<Item>> = listed.into_iter().map(|id| Ok(Item::known(id))).collect();
    for n in 0.. {
        match read(&format!("{n}.json")).map(|json| serde_json::from_slice(&json)) {
            Ok(Ok(json)) => {
                let bytes = read(&format!("{n}.{ending}"));
                out.push(bytes.and_then(|bytes| letter(n, json, bytes)));
            }
            // The last one that was written whole.
            Ok(Err(_)) => break,
            Err(e) => {
                out.push(Err(e));
                break;
            }
        }
    }
    out
}
