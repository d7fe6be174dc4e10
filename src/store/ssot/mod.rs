//! AMP/1.0: records of tasks between roles, one immutable JSON file a message in a shared folder,
//! the SSOT (docs/formats/ssot.md).
//!
//! The format, as functions without I/O:
//! - [`words`], [`tree`], [`schema`], [`rules`], [`envelope`]: what a message is and which rule it
//!   breaks. [`text`]: how it reads. `sign`: what a signature covers.
//! - `state`: what the messages of a task add up to. `order`: in which order they count.
//!
//! The store on top of it:
//! - `folder`: the files of an SSOT. `task`: one task as it is on disk, and `tasks/`.
//! - `format`: what its files are, and what the messages of each task add up to.
//! - `read`: one message in full. `send`: new ones. `acks`, `resume`, `errors_log`: what else is
//!   written. `status`, `check`: the rest.

mod acks;
mod check;
pub mod envelope;
mod errors_log;
mod folder;
mod format;
mod order;
mod read;
mod resume;
pub mod rules;
pub mod schema;
mod send;
mod sign;
mod state;
mod status;
mod task;
pub mod text;
pub mod tree;
pub mod words;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::engine::files::FileStore;
use super::{Store, StoreError, StoreProperties, StoreSpec};
use crate::model::{Roles, sanitize_line};
use format::SsotFormat;
use words::Role;

/// The SSOT as one role sees it.
type Ssot = FileStore<SsotFormat>;

/// Opens the SSOT for the role that `spec` names. Nothing is made, and the folder need not exist.
///
/// # Errors
/// If I am no role.
pub fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(Ssot::open(spec)?))
}

impl Ssot {
    fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let me = spec.own_address.as_ref().unwrap_or(&spec.me);
        let Some(role) = Role::from_name(me) else {
            let roles = Role::ALL.map(Role::as_str).join(", ");
            return Err(StoreError::Invalid(format!(
                "{:?} is not a role of AMP/1.0 ({roles}); set me = \"executor\" or another of \
                 them in its [[store]]",
                sanitize_line(me)
            )));
        };
        let about = StoreProperties {
            uses_roles: spec.roles == Roles::Verify,
            // The file has the envelope besides, and is printed with blanks.
            max_body: (envelope::FILE_BYTES / 2) as u64,
            headers: &["Task"],
            recipient_in: Some(send::parse_recipient),
            ..StoreProperties::new(spec, role.as_str(), &spec.dir)
        };
        Self::new(about, SsotFormat::new(spec.dir.clone(), role))
    }
}
