//! Another program that reads ATSF threads: `tests/peers/atsf_reader.py`.

use std::path::Path;

use serde_json::Value;

use super::{Bed, run};

/// Reads all threads of a project, as the other program does. Its error names each violation of the format.
pub(crate) fn try_read(bed: &Bed, project: &Path) -> Result<Value, String> {
    let mut reader = bed.command("python3");
    reader.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/atsf_reader.py")).arg(project);
    let out = run(reader, None);
    if !out.ok() {
        return Err(out.said());
    }
    Ok(serde_json::from_str(&out.stdout).expect("JSON"))
}

/// Reads the texts of a thread, in order. The whole project must keep to the format.
#[track_caller]
pub(crate) fn texts(bed: &Bed, project: &Path, thread: &str) -> Vec<String> {
    let threads = try_read(bed, project).unwrap_or_else(|why| panic!("{why}"));
    let messages = threads[thread]["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["text"].as_str().expect("text").to_owned()).collect()
}
