//! The configuration, the me of this process, and the folders of its files.
//!
//! [`Config`] is the file, [`Me`] the name that this process acts under, and [`Paths`] the folders of its
//! state. [`StateLock`] makes sure that one process at a time acts for one me. All of it sees the process
//! through [`Env`], never directly.

mod bell_sessions;
mod env;
mod file;
mod links;
mod lock;
mod lock_process;
mod me;
mod paths;
mod presence;
mod reader;
mod stores;
mod values;

pub use bell_sessions::{
    is_session_file, locate_session_folder, locate_session_folders, read_rung_keys,
};
pub use env::Env;
pub use file::{Config, ConfigError, ConfigProblem, TrustRules};
pub use lock::{LockError, LockHolder, StateLock, find_lock_holder, wait_until_free};
pub use lock_process::LockProcess;
pub use me::{Me, MeError, MeOrigin};
pub use paths::{PathError, Paths, private_base};
pub use presence::{MountedAddress, list_mounted_addresses};
pub use stores::{AbsentStore, StoreConfig};
pub use values::{parse_alias, parse_duration};
