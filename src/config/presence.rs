//! The identities of the same user that have a mount on this machine now. Each mount notes its addresses in its lock
//! file, and the lock says that the mount is still there.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::lock::find_lock_holder;
use crate::store::probe;

/// An address of an identity, and the folder of the store that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedAddress {
    /// The address.
    pub address: String,
    /// The folder of the store, without symbolic links.
    pub dir: PathBuf,
}

impl MountedAddress {
    /// Creates the address of a store in this folder.
    pub fn new(address: &str, dir: &Path) -> Self {
        Self { address: address.to_owned(), dir: resolve_folder(dir) }
    }
}

/// Returns the path of a folder without symbolic links. A folder that does not exist keeps its path.
fn resolve_folder(dir: &Path) -> PathBuf {
    fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned())
}

/// Returns the addresses, in the store with this folder, of the other identities that have a mount now. `state` is my
/// state folder; theirs lie beside it. A folder that does not answer is left out.
pub fn list_mounted_addresses(state: &Path, dir: &Path) -> Vec<String> {
    let Some(others) = state.parent().and_then(|all| fs::read_dir(all).ok()) else {
        return Vec::new();
    };
    let dir = resolve_folder(dir);
    let folders = others.flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
    let folders = folders.map(|entry| entry.path()).filter(|folder| folder != state);
    let is_my_user = |folder: &PathBuf| {
        let me = rustix::process::geteuid().as_raw();
        probe::require_response(folder).is_ok()
            && fs::symlink_metadata(folder).is_ok_and(|meta| meta.uid() == me)
    };
    let mounted = folders.filter(is_my_user).filter_map(|folder| find_lock_holder(&folder));
    let addresses = mounted.filter(|holder| holder.mountpoint.is_some()).flat_map(|h| h.addresses);
    let mut here: Vec<String> = addresses.filter(|a| a.dir == dir).map(|a| a.address).collect();
    here.sort_unstable();
    here.dedup();
    here
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StateLock;

    #[test]
    fn only_mounts_on_the_same_store_are_listed() {
        let tmp = tempfile::tempdir().unwrap();
        let path = |name: &str| tmp.path().join(name);
        let store = path("store");
        fs::create_dir(&store).unwrap();
        std::os::unix::fs::symlink(&store, path("link")).unwrap();
        let hold = |name: &str, mountpoint: Option<&Path>, dir: &Path| {
            let state = path("state").join(name);
            fs::create_dir_all(&state).unwrap();
            let lock = StateLock::acquire(&state, mountpoint).unwrap();
            lock.write_holder(mountpoint, &[MountedAddress::new(name, dir)]).unwrap();
            lock
        };
        let mounted = Some(Path::new("/m"));
        let bob = hold("bob", mounted, &store);
        let _me = hold("me", mounted, &store);
        let _command = hold("carol", None, &store);
        let _elsewhere = hold("dave", mounted, &path("other"));
        let _linked = hold("eve", mounted, &path("link"));
        std::os::unix::fs::symlink(path("state/bob"), path("state/again")).unwrap();
        let listed = || list_mounted_addresses(&path("state/me"), &path("link"));
        assert_eq!(listed(), ["bob", "eve"]);
        drop(bob);
        assert_eq!(listed(), ["eve"]);
        fs::write(path("state/eve/lock"), "{\"pid\":1,\"mountpoint\":\"/m\"}").unwrap();
        assert_eq!(listed(), [""; 0], "the lock of an older version says no address");
    }
}
