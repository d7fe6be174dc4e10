//! Texts as other programs read and print them, once for all formats: JSON with the places of its values, canonical
//! printing, numbers, times, and Python's treatment of text.

pub mod canonical;
pub mod edit;
pub mod json;
pub(in crate::store) mod json_values;
pub mod number;
pub mod pytext;
pub mod signature;
pub mod strict_json;
pub mod tape;
pub mod time;
