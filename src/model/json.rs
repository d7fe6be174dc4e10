//! Values as JSON.

use serde::Serialize;

/// Returns a value of texts, numbers and lists as JSON.
///
/// # Panics
/// If the value has a map whose keys are neither texts nor numbers. No type of msgfs has one.
pub fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|e| panic!("a value cannot be written as JSON: {e}"))
}

/// Appends a value as one line of JSON.
///
/// # Panics
/// Like [`to_json`].
pub fn push_json_line(lines: &mut Vec<u8>, value: &impl Serialize) {
    lines.extend(to_json(value));
    lines.push(b'\n');
}
