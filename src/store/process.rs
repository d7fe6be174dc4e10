//! This process and others: memory, and what `/proc` tells.

/// The size of a large buffer, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 256 << 10;

/// Gives memory that is free back to the system: a first index takes much of it for a moment, on all
/// cores, and the allocator would keep it.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has large buffers given back to the system as soon as they are free: the allocator, once it has seen
/// one, would keep all that are not larger. To be called before any thread is started.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: they take numbers only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}

/// The `stat` of a process or thread, from the field after the command's name on.
pub fn stat(id: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The command's name may hold anything, also spaces and parentheses.
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

/// Whether a process has ended, and only whoever started it, or some of its threads, have not noticed
/// yet.
pub fn has_ended(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.starts_with(['Z', 'X']))
}
