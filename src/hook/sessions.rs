//! The sessions' records of rings: one small file each, in a folder of msgfs's own that no other command needs. If a
//! record is lost, its session is told of the same mail once more, and nothing else happens.
//!
//! All reads and writes of a record happen under one lock, so that two hooks of one moment never ring for the same
//! message.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::harness::Harness;
use super::rate_limit;
use super::waiter_process::WaiterProcess;
use crate::config::{Env, is_session_file, locate_session_folder, locate_session_folders};
use crate::model::{encode_hex, sanitize_line, to_json};
use crate::store::fs as store_fs;

/// The time without activity after which a session is over.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The largest size of a session's file.
const LARGEST: u64 = 16 << 20;
/// The size above which a log begins anew.
const LOG: u64 = 64 << 10;
/// The number of rung messages above which those that are no longer unread are forgotten.
const REMEMBERED: usize = 4096;
/// The time that a hook waits for the lock. Others hold it for a moment.
const PATIENCE: Duration = Duration::from_millis(200);
/// The time that a waiter waits for the lock. Nobody waits for a waiter.
const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// Returns the seconds since the epoch.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The folder of all sessions.
#[derive(Clone, Debug)]
pub struct SessionDir {
    dir: PathBuf,
    patience: Duration,
    /// The harness that is named beside each reason for silence.
    harness: &'static str,
}

/// One session, as it is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Its harness.
    pub harness: String,
    /// The folder in which the session was first seen.
    pub cwd: Option<PathBuf>,
    /// The keys of the messages that were rung.
    pub rung: Vec<String>,
    /// The keys of the messages that came and do not ring.
    pub silent: Vec<String>,
    /// The times of rings since a person has typed something.
    pub rings: Vec<u64>,
    /// The text of the last ring, by which msgfs recognises the prompt that a harness makes of it.
    pub said: Option<String>,
    /// The waiter that may ring; none if the session has ended.
    pub waiter: Option<String>,
    /// The process of that waiter.
    pub process: Option<WaiterProcess>,
    /// True if the file exists.
    #[serde(skip)]
    pub(super) known: bool,
}

/// The key of a session's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionKey {
    file_name: String,
    harness: &'static str,
    /// The file of the session that began in this folder without an id.
    unnamed_file: Option<String>,
}

fn session_file_name(harness: &str, kind: &str, id: &str) -> String {
    let mut digits = encode_hex(&Sha256::digest([harness, kind, id].join("\0")));
    digits.truncate(32);
    digits + ".json"
}

impl SessionKey {
    /// Returns the key of the session with this id, or of the one that began without one in this folder; `None` if
    /// neither is known.
    pub fn new(harness: &'static Harness, id: Option<&str>, cwd: Option<&Path>) -> Option<Self> {
        let by_cwd = cwd.map(|cwd| session_file_name(harness.name, "cwd", &cwd.to_string_lossy()));
        let harness_name = harness.name;
        match id {
            Some(id) => Some(Self {
                file_name: session_file_name(harness_name, "id", id),
                harness: harness_name,
                unnamed_file: by_cwd,
            }),
            None => Some(Self { file_name: by_cwd?, harness: harness_name, unnamed_file: None }),
        }
    }
}

/// The right to change the records, until it is dropped.
#[derive(Debug)]
pub struct SessionLock<'a> {
    sessions: &'a SessionDir,
    _lock: File,
}

impl SessionDir {
    /// Returns the folder: below `$XDG_RUNTIME_DIR`, else with the rest of msgfs's state. It makes nothing.
    pub fn locate_dir(env: &Env) -> Option<Self> {
        Some(Self::in_folder(locate_session_folder(env)?))
    }

    fn in_folder(dir: PathBuf) -> Self {
        Self { dir, patience: PATIENCE, harness: "" }
    }

    /// Returns the same folder for the hooks of a harness.
    pub(super) fn for_harness(self, harness: &'static str) -> Self {
        Self { harness, ..self }
    }

    /// Returns every folder that may hold sessions, for callers that also look for those of other logins.
    pub fn locate_all(env: &Env) -> Vec<Self> {
        locate_session_folders(env).into_iter().map(Self::in_folder).collect()
    }

    /// Returns the same folder for a process that nobody waits for. It waits longer for a lock on a busy machine.
    pub fn with_long_patience(self) -> Self {
        Self { patience: LONG_PATIENCE, ..self }
    }

    /// Returns the path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes the lock, and makes the folder if it is missing.
    ///
    /// # Errors
    /// I/O errors; `WouldBlock` if others hold the lock for too long.
    pub fn acquire_lock(&self) -> io::Result<SessionLock<'_>> {
        store_fs::make_dirs(&self.dir, 0o700)?;
        let meta = fs::metadata(&self.dir)?;
        if store_fs::foreign_owner(&meta).is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let lock = store_fs::open_read_write(&self.dir.join("hook.lock"), 0o600)?;
        if !store_fs::lock_with_timeout(&lock, self.patience)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(SessionLock { sessions: self, _lock: lock })
    }

    /// Returns a session as it is now; a new one if none is saved.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_session(&self, which: &SessionKey) -> io::Result<Session> {
        let fresh = || Session { harness: which.harness.to_owned(), ..Session::default() };
        Ok(self.read_session_file(&which.file_name)?.unwrap_or_else(fresh))
    }

    fn read_session_file(&self, name: &str) -> io::Result<Option<Session>> {
        let bytes = match store_fs::read_small_file(&self.dir.join(name), LARGEST) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let session: Session = serde_json::from_slice(&bytes)?;
        Ok(Some(Session { known: true, ..session }))
    }

    /// Logs the reason for silence. A failure to log it stays silent, too.
    pub fn log_reason(&self, why: &str) {
        let _ = self.try_log_reason(why);
    }

    fn try_log_reason(&self, why: &str) -> io::Result<()> {
        store_fs::make_dirs(&self.dir, 0o700)?;
        let mut file = store_fs::open_append(&self.log_file(), 0o600)?;
        if file.metadata()?.len() > LOG {
            file.set_len(0)?;
        }
        let time = crate::model::Timestamp::now().rfc3339();
        let harness = if self.harness.is_empty() { "a hook" } else { self.harness };
        file.write_all(format!("{time} {harness}: {}\n", sanitize_line(why)).as_bytes())
    }

    /// Returns the last reason that each harness had for silence, the oldest first.
    pub fn read_last_reasons(&self) -> Vec<String> {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let harness = |line: &str| Some(line.split_once(' ')?.1.split_once(':')?.0.to_owned());
        let mut seen = std::collections::HashSet::new();
        let newest = log.lines().rev().filter(|line| seen.insert(harness(line)));
        let mut reasons: Vec<String> = newest.map(str::to_owned).collect();
        reasons.reverse();
        reasons
    }

    /// Returns the path of the log.
    pub fn log_file(&self) -> PathBuf {
        self.dir.join("hook.log")
    }

    /// Returns the saved sessions.
    pub fn list_sessions(&self) -> Vec<Session> {
        self.list_session_files().into_iter().map(|(_, session)| session).collect()
    }

    /// Returns the saved sessions with the names of their files.
    fn list_session_files(&self) -> Vec<(String, Session)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let load =
            |name: String| self.read_session_file(&name).ok()?.map(|session| (name, session));
        names.filter(|name| is_session_file(name)).filter_map(load).collect()
    }

    /// Takes from every session of a harness the right to ring, and returns those that had a waiter.
    ///
    /// # Errors
    /// The errors of [`SessionDir::acquire_lock`], or if a record cannot be written.
    pub(super) fn dismiss_waiters(&self, harness: &str) -> io::Result<Vec<Session>> {
        let held = self.acquire_lock()?;
        let mut dismissed = Vec::new();
        for (name, session) in self.list_session_files() {
            if session.harness == harness && session.waiter.is_some() {
                held.write_session_file(&name, &session.clone().without_waiter())?;
                dismissed.push(session);
            }
        }
        Ok(dismissed)
    }
}

impl SessionLock<'_> {
    /// Returns the session. A session that began without an id takes over this id.
    ///
    /// # Errors
    /// If the file cannot be read. It is then removed, and the next hook begins anew.
    pub fn load_session(&self, which: &SessionKey) -> io::Result<Session> {
        let dir = &self.sessions.dir;
        if let Some(unnamed) = &which.unnamed_file
            && !dir.join(&which.file_name).exists()
        {
            let _ = fs::rename(dir.join(unnamed), dir.join(&which.file_name));
        }
        self.sessions.load_session(which).inspect_err(|_| {
            let _ = fs::remove_file(dir.join(&which.file_name));
        })
    }

    /// Saves the session as it is now.
    ///
    /// # Errors
    /// I/O errors.
    pub fn save_session(&self, which: &SessionKey, session: &Session) -> io::Result<()> {
        self.write_session_file(&which.file_name, session)
    }

    fn write_session_file(&self, name: &str, session: &Session) -> io::Result<()> {
        let path = self.sessions.dir.join(name);
        let temp = path.with_extension("new");
        let mut file = store_fs::open_read_write(&temp, 0o600)?;
        file.set_len(0)?;
        // The file is not synced: after a loss of power there is no session any more.
        file.write_all(&to_json(session))?;
        fs::rename(temp, path)
    }

    /// Returns true if another session of the harness in this folder has a waiter that may ring.
    pub(super) fn has_other_waiter(&self, which: &SessionKey, cwd: Option<&Path>) -> bool {
        self.list_neighbours(which, cwd).iter().any(|(_, session)| session.has_running_waiter())
    }

    /// Takes from the other sessions of the harness in this folder the right to ring.
    pub(super) fn dismiss_neighbours(
        &self,
        which: &SessionKey,
        cwd: Option<&Path>,
    ) -> io::Result<()> {
        for (name, session) in self.list_neighbours(which, cwd) {
            if session.waiter.is_some() {
                self.write_session_file(&name, &session.without_waiter())?;
            }
        }
        Ok(())
    }

    /// Returns the other sessions of the harness in a folder, with the names of their files.
    fn list_neighbours(&self, which: &SessionKey, cwd: Option<&Path>) -> Vec<(String, Session)> {
        let mut all = self.sessions.list_session_files();
        all.retain(|(name, session)| {
            *name != which.file_name
                && session.harness == which.harness
                && session.cwd.as_deref() == cwd
        });
        all
    }

    /// Removes the files of sessions long over.
    pub fn remove_old_sessions(&self) {
        let entries = fs::read_dir(&self.sessions.dir).into_iter().flatten().flatten();
        for entry in entries {
            let is_ours = entry.file_name().to_str().is_some_and(is_session_file);
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if is_ours && age.is_some_and(|age| age > KEPT) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Session {
    /// Claims the unread messages that were not rung yet, and returns their positions in `unread`, the keys of all
    /// unread messages.
    pub fn claim_unrung(&mut self, unread: &[&str]) -> Vec<usize> {
        let claimed: HashSet<&str> =
            self.rung.iter().chain(&self.silent).map(String::as_str).collect();
        let is_new = |(_, key): &(usize, &&str)| !claimed.contains(**key);
        let new: Vec<usize> = unread.iter().enumerate().filter(is_new).map(|(n, _)| n).collect();
        let keys = new.iter().filter_map(|n| unread.get(*n)).map(|key| (*key).to_owned());
        let keys: Vec<String> = keys.collect();
        self.rung.extend(keys);
        forget_read(&mut self.rung, unread);
        forget_read(&mut self.silent, unread);
        new
    }

    /// Notes that messages which were claimed do not ring.
    pub fn note_silent<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        let keys: HashSet<&str> = keys.collect();
        let (silent, rung) = std::mem::take(&mut self.rung)
            .into_iter()
            .partition::<Vec<_>, _>(|key| keys.contains(key.as_str()));
        self.rung = rung;
        self.silent.extend(silent);
    }

    /// Notes a ring with this text now.
    pub(super) fn note_ring(&mut self, text: &str) {
        rate_limit::note_ring(&mut self.rings, unix_seconds());
        self.said = Some(text.to_owned());
    }

    /// Returns the session without a waiter.
    pub(super) fn without_waiter(self) -> Self {
        Self { waiter: None, process: None, ..self }
    }

    /// Returns true if a waiter runs that may ring.
    pub fn has_running_waiter(&self) -> bool {
        self.waiter.is_some() && self.process.as_ref().is_some_and(WaiterProcess::is_running)
    }

    /// Returns true if a waiter has ended without being told to.
    pub fn has_lost_waiter(&self) -> bool {
        self.waiter.is_some() && self.process.is_some() && !self.has_running_waiter()
    }

    /// Returns true if the session is saved already.
    pub fn is_known(&self) -> bool {
        self.known
    }
}

/// Drops the oldest keys beyond [`REMEMBERED`] whose messages are no longer unread.
fn forget_read(keys: &mut Vec<String>, unread: &[&str]) {
    let Some(gone) = keys.len().checked_sub(REMEMBERED).filter(|gone| *gone > 0) else { return };
    let still: HashSet<&str> = unread.iter().copied().collect();
    let mut dropped = 0;
    keys.retain(|key| {
        let drop = dropped < gone && !still.contains(key.as_str());
        dropped += usize::from(drop);
        !drop
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn sessions() -> (tempfile::TempDir, SessionDir) {
        let dir = tempfile::tempdir().unwrap();
        let sessions =
            SessionDir { dir: dir.path().join("msgfs/hook"), patience: PATIENCE, harness: "" };
        (dir, sessions)
    }

    fn which(harness: &str, id: Option<&str>, cwd: &str) -> SessionKey {
        SessionKey::new(Harness::from_name(harness).unwrap(), id, Some(Path::new(cwd))).unwrap()
    }

    #[test]
    fn a_waiter_waits_for_a_lock_that_is_held_for_long() {
        let (_dir, sessions) = sessions();
        let held = sessions.acquire_lock().unwrap();
        assert_eq!(sessions.acquire_lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| sessions.clone().with_long_patience().acquire_lock().map(|_| ()));
            std::thread::sleep(2 * PATIENCE);
            drop(held);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_message_is_claimed_once() {
        let mut session = Session::default();
        assert_eq!(session.claim_unrung(&["a", "b"]), [0, 1]);
        assert_eq!(session.claim_unrung(&["a", "b"]), [0; 0]);
        assert_eq!(session.claim_unrung(&["b", "c"]), [1]);
        assert_eq!(session.claim_unrung(&["a", "b", "c"]), [0; 0], "made unread again");
        session.note_silent(["b", "x"].into_iter());
        assert_eq!(
            (session.rung.as_slice(), session.silent.as_slice()),
            (["a".to_owned(), "c".to_owned()].as_slice(), ["b".to_owned()].as_slice())
        );
        assert_eq!(session.claim_unrung(&["a", "b", "c"]), [0; 0], "claimed in silence");
    }

    #[test]
    fn what_is_kept_does_not_grow_without_end() {
        let mut session = Session::default();
        let keys: Vec<String> = (0..6000).map(|n| format!("{n:016x}")).collect();
        for some in keys.chunks(500) {
            let unread: Vec<&str> = some.iter().map(String::as_str).chain(["always"]).collect();
            session.claim_unrung(&unread);
        }
        assert_eq!(session.rung.len(), REMEMBERED);
        assert!(session.claim_unrung(&["always"]).is_empty(), "what is unread is never forgotten");
    }

    #[test]
    fn a_session_without_an_id_is_adopted_by_the_first_that_has_one() {
        let (_dir, sessions) = sessions();
        let held = sessions.acquire_lock().unwrap();
        let unnamed = which("copilot", None, "/p");
        let session = Session { rung: vec!["a".into()], ..held.load_session(&unnamed).unwrap() };
        held.save_session(&unnamed, &session).unwrap();
        assert!(
            held.load_session(&which("copilot", Some("s"), "/q")).unwrap().rung.is_empty(),
            "another folder"
        );
        assert!(
            held.load_session(&which("cursor", Some("s"), "/p")).unwrap().rung.is_empty(),
            "another harness"
        );
        assert_eq!(held.load_session(&which("copilot", Some("s"), "/p")).unwrap().rung, ["a"]);
        assert!(
            held.load_session(&which("copilot", Some("t"), "/p")).unwrap().rung.is_empty(),
            "it is adopted"
        );
        assert_eq!(
            held.load_session(&which("copilot", Some("s"), "/elsewhere")).unwrap().rung,
            ["a"]
        );
    }

    #[test]
    fn it_is_private_and_foreign_text_is_no_name() {
        let (_dir, sessions) = sessions();
        let held = sessions.acquire_lock().unwrap();
        let odd = which("codex", Some("../../../etc/x\n"), "/p");
        held.save_session(&odd, &Session::default()).unwrap();
        let names: Vec<_> = fs::read_dir(sessions.dir()).unwrap().flatten().collect();
        assert_eq!(names.len(), 2, "the lock and the session: {names:?}");
        for entry in names {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::metadata(sessions.dir()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(sessions.dir().join(&odd.file_name), "{").unwrap();
        assert!(held.load_session(&odd).is_err());
        assert!(!held.load_session(&odd).unwrap().is_known(), "it is not in the way for ever");
    }

    #[test]
    fn only_old_sessions_are_removed() {
        let (_dir, sessions) = sessions();
        let held = sessions.acquire_lock().unwrap();
        let (old, new) = (which("codex", Some("old"), "/"), which("codex", Some("new"), "/"));
        for session in [&old, &new] {
            held.save_session(session, &Session::default()).unwrap();
        }
        let past = SystemTime::now() - KEPT - Duration::from_secs(60);
        let foreign = sessions.dir().join("keyring.json");
        fs::write(&foreign, "{}").unwrap();
        for path in [&sessions.dir().join(&old.file_name), &foreign] {
            File::options().write(true).open(path).unwrap().set_modified(past).unwrap();
        }
        held.remove_old_sessions();
        assert!(
            !sessions.load_session(&old).unwrap().is_known()
                && sessions.load_session(&new).unwrap().is_known()
        );
        assert!(foreign.exists());
    }
}
