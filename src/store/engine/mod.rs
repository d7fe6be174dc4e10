//! What lies between the disk and a format, once for all formats of a sort.

pub mod files;
