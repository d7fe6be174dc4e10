//! Numbers of open files and folders.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::locks::RwLock;
use fuser::FileHandle;

/// A table of open files or folders by their handles.
#[derive(Debug)]
pub(super) struct HandleTable<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::new(HashMap::new()) }
    }
}

impl<T> HandleTable<T> {
    /// Adds an open file or folder. Returns its handle.
    pub fn insert(&self, value: T) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(number, Arc::new(value));
        FileHandle(number)
    }

    /// Returns the open file or folder of a handle.
    pub fn get(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.open.read().get(&handle.0).cloned()
    }

    /// Removes a handle. Returns its file or folder.
    pub fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.open.write().remove(&handle.0)
    }
}
