//! AMP/1.0: records of tasks between roles, one immutable JSON file a message in a shared folder, the SSOT
//! (docs/formats/ssot.md).
//!
//! The format, as functions without I/O:
//! - [`vocabulary`], [`json_node`], [`schema`], [`rules`], [`envelope`]: messages and the rules that they break.
//!   [`text`]: the body of a message. `sign`: signatures.
//! - `state`: the state of a task. `order`: the order in which its messages count.
//!
//! The store on top of it:
//! - `folder`: the files of an SSOT. `task`: one task as it is on disk, and `tasks/`.
//! - `format`: the SSOT as a format of the engine, and the state of each task.
//! - `read`: one message in full. `send`: new messages. `acks`, `resume`, `errors_log`: the other files that are
//!   written. `status`, `check`: the rest.

mod acks;
mod check;
pub mod envelope;
mod errors_log;
mod folder;
mod format;
pub mod json_node;
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
pub mod vocabulary;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::engine::files::FileStore;
use super::kind::KindRow;
use super::{AnswerScheme, NextAnswerRule, Store, StoreError, StoreProperties, StoreSpec};
use crate::model::{Roles, sanitize_line};
use format::SsotFormat;
use vocabulary::Role;

/// The row of this kind.
pub(super) const KIND: KindRow = KindRow {
    has_acks: true,
    commands: &[("resume TASK", "lift the lock or the suspension of a task; works only as admin")],
    ..KindRow::new(
        "ssot",
        "a task record goes to admin, coordinator, executor or reviewer",
        EXAMPLE,
        open,
    )
};

const EXAMPLE: &str = r#"# [[store]]
# kind = "ssot"
# dir = "~/sync/ssot"
# me = "executor"                    # a role; default: my name
"#;

/// The SSOT as one role sees it.
type Ssot = FileStore<SsotFormat>;

/// Opens the SSOT for the role that `spec` names. Nothing is made, and the folder need not exist.
///
/// # Errors
/// If I am no role.
fn open(spec: &StoreSpec) -> Result<Arc<dyn Store>, StoreError> {
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
            answers: AnswerScheme::NamedOrNext(NextAnswerRule {
                unsigned_only: false,
                fits: Some(vocabulary::can_answer),
            }),
            max_body: envelope::FILE_BYTES as u64,
            headers: &["Task"],
            locks_threads: true,
            recipient_in: Some(send::parse_recipient),
            ..StoreProperties::new(spec, role.as_str(), &spec.dir)
        };
        Self::new(about, SsotFormat::new(spec.dir.clone(), role))
    }
}
