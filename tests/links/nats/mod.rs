//! The `nats` link: each row of the list of faults that it must survive is a test of that name.

mod access;
mod faults;
mod figures;
mod foreign;
mod helper;
pub(crate) mod keys;
mod kills;
mod logs;
mod machine;
pub(crate) mod raw;
pub(crate) mod server;
