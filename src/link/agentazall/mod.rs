//! The links of an AgentAZAll mailbox, as its own `config.json` describes them (docs/links/agenttalk.md,
//! docs/links/mail.md, docs/links/ftp.md).

#[cfg(any(feature = "ftp", feature = "mail"))]
mod broken_fetches;
#[cfg(any(feature = "ftp", feature = "mail"))]
mod fetch_folder;
#[cfg(feature = "ftp")]
pub mod ftp;
pub mod letter;
#[cfg(feature = "mail")]
pub mod mail;
#[cfg(feature = "http")]
pub mod relay;
#[cfg(any(feature = "ftp", feature = "mail"))]
mod seen_ids;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::engine::{EncodeError, EngineSettings, NamedSettings};
use crate::model::locks::Mutex;
use crate::store::fs;

/// The limit on the size of a configuration.
const MAX_CONFIG: u64 = 16 << 20;

/// The places in a configuration that describe the accounts of one kind of link.
pub struct AccountPlaces {
    /// The kind of link.
    kind: &'static str,
    /// The name of its first link.
    name: &'static str,
    /// The list of the accounts.
    list: &'static str,
    /// The single account of older versions, if there is no list.
    single: &'static str,
    /// The transports with which the accounts count.
    transports: &'static [&'static str],
    /// True for relays: their list counts with any transport, and their single account need not be there.
    is_relay: bool,
}

/// The relays.
pub const RELAYS: AccountPlaces = AccountPlaces {
    kind: "agenttalk",
    name: "relay",
    list: "relays",
    single: "agenttalk",
    transports: &["agenttalk"],
    is_relay: true,
};

/// The accounts of e-mail.
pub const MAIL_ACCOUNTS: AccountPlaces = AccountPlaces {
    kind: "mail",
    name: "email",
    list: "email_accounts",
    single: "email",
    transports: &["email", "both"],
    is_relay: false,
};

/// The servers of FTP.
pub const FTP_SERVERS: AccountPlaces = AccountPlaces {
    kind: "ftp",
    name: "ftp",
    list: "ftp_servers",
    single: "ftp",
    transports: &["ftp", "both"],
    is_relay: false,
};

impl AccountPlaces {
    /// Returns my links of this kind that a configuration describes, with their names.
    pub fn find_links(&self, config: &Path, me: &str) -> NamedSettings {
        let Some(value) = read_config(config) else { return Vec::new() };
        let settings = |(n, part): (usize, String)| {
            let ca = value.pointer(&part).and_then(|part| part.get("ca")).and_then(Value::as_str);
            let ca = ca.map(|ca| config.parent().unwrap_or(Path::new(".")).join(ca));
            let name = match n {
                0 => self.name.to_owned(),
                n => format!("{}-{}", self.name, n + 1),
            };
            let (kind, file, me) = (self.kind.to_owned(), config.to_owned(), me.to_owned());
            (name, EngineSettings { kind, file, part, me, insecure: false, ca, self_copy: false })
        };
        self.list_parts(&value).into_iter().enumerate().map(settings).collect()
    }

    /// Returns the parts of a configuration that describe the accounts.
    fn list_parts(&self, config: &Value) -> Vec<String> {
        let transport = config.get("transport").and_then(Value::as_str).unwrap_or("email");
        let counts = self.transports.contains(&transport);
        let count = config.get(self.list).and_then(Value::as_array).map_or(0, Vec::len);
        if count > 0 {
            let all = (0..count).filter(|_| counts || self.is_relay);
            return all.map(|n| format!("/{}/{n}", self.list)).collect();
        }
        let is_there = self.is_relay || config.get(self.single).is_some_and(Value::is_object);
        (counts && is_there).then(|| format!("/{}", self.single)).into_iter().collect()
    }
}

/// Returns true if a part is the first of its kind. Of several the first one sends.
fn is_first_part(part: &str) -> bool {
    part.rsplit('/').next().is_none_or(|last| last.parse::<usize>().unwrap_or(0) == 0)
}

/// The processes that were examined and are no daemon of the format. Examining all of them costs more than a request to
/// a server.
#[derive(Debug)]
struct NonDaemonCache {
    /// The time at which all processes were last listed.
    listed_all_at: Instant,
    /// The newest process at the last examination, if the system reports it.
    newest: Option<u32>,
    /// The number of examinations of each. A process that just started may still become another program.
    looks: HashMap<u32, u8>,
}

/// The pause between listings of all processes.
const LOOK_AT_ALL: Duration = Duration::from_secs(60);
/// The number of times that a new process is examined.
const LOOKS: u8 = 2;

/// The number of new process ids up to which they are tried one by one. Beyond it all processes are listed.
const NEAR: u32 = 100;

static BYSTANDERS: LazyLock<Mutex<Option<NonDaemonCache>>> = LazyLock::new(Mutex::default);

impl NonDaemonCache {
    fn new() -> Self {
        Self { listed_all_at: Instant::now(), newest: None, looks: HashMap::new() }
    }

    /// Returns the processes to examine, given the newest one: those with ids since the last time, and those that were
    /// not examined often enough. Lists all processes now and then, and if the newest one is unknown, and then forgets
    /// those that are gone.
    fn list_due_processes(&mut self, newest: Option<u32>) -> Vec<u32> {
        let before = std::mem::replace(&mut self.newest, newest);
        let is_late = self.listed_all_at.elapsed() >= LOOK_AT_ALL;
        let near = |(before, now): &(u32, u32)| {
            now.checked_sub(*before).is_some_and(|started| started <= NEAR)
        };
        if let Some((before, now)) = before.zip(newest).filter(near).filter(|_| !is_late) {
            let new = before.saturating_add(1)..=now;
            let seldom = |(id, looks): (&u32, &u8)| (*looks < LOOKS).then_some(*id);
            self.looks.retain(|id, _| !new.contains(id));
            return self.looks.iter().filter_map(seldom).chain(new).collect();
        }
        if is_late {
            self.listed_all_at = Instant::now();
            self.looks.values_mut().for_each(|looks| *looks = LOOKS - 1);
        }
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let all = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: HashSet<u32> = all.collect();
        // The system uses the ids of ended processes again.
        self.looks.retain(|id, _| all.contains(id));
        let looks = &self.looks;
        all.into_iter().filter(|id| looks.get(id).is_none_or(|looks| *looks < LOOKS)).collect()
    }
}

/// Returns the id of the newest process or thread, if the system reports it.
fn read_newest_process() -> Option<u32> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split_whitespace().last()?.parse().ok().filter(|id| *id > 0)
}

/// Returns the process of a thread.
fn resolve_process(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    process.unwrap_or(thread)
}

/// Returns the processes that may be a daemon of the format, with their command lines.
fn find_daemons() -> Vec<(u32, Vec<u8>)> {
    let mut kept = BYSTANDERS.lock();
    let bystanders = kept.get_or_insert_with(NonDaemonCache::new);
    let mut found = Vec::new();
    for id in bystanders.list_due_processes(read_newest_process()) {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let looks = bystanders.looks.entry(id).or_default();
        if is_daemon(&line) {
            // A daemon is examined as long as it lives.
            *looks = 0;
            found.push((resolve_process(id), line));
        } else {
            *looks = LOOKS.min(*looks + 1);
        }
    }
    found.sort_unstable();
    found
}

/// Returns why no link may carry for the mailbox of a configuration, if the format's own daemon carries.
fn find_daemon_carrier(config: &Path) -> Option<String> {
    let config = std::fs::canonicalize(config).ok()?;
    let (daemon, _) =
        find_daemons().into_iter().find(|(id, line)| is_daemon_for(*id, line, &config))?;
    Some(format!(
        "`agentazall daemon` (process {daemon}) carries the mail of this mailbox; end it with \
         `kill {daemon}`, or let it go on, and set links = false"
    ))
}

/// Returns the arguments in a command line of the format's program.
fn parse_arguments(line: &[u8]) -> Option<Vec<&[u8]>> {
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let is_program =
        |word: &&[u8]| word.ends_with(b"agentazall") || word.starts_with(b"agentazall.");
    let program = words.iter().take(4).position(is_program)?;
    Some(words.get(program + 1..)?.to_vec())
}

/// Returns true if a command line is that of the format's daemon.
fn is_daemon(line: &[u8]) -> bool {
    parse_arguments(line).is_some_and(|arguments| arguments.contains(&b"daemon".as_slice()))
}

/// Returns true if the format's daemon, with this command line, is the one for a configuration. It finds its own by
/// `--config`, else by `$AGENTAZALL_CONFIG`, else by `$AGENTAZALL_ROOT`, else in its folder.
fn is_daemon_for(process: u32, line: &[u8], config: &Path) -> bool {
    let proc = Path::new("/proc").join(process.to_string());
    let Some(arguments) = parse_arguments(line) else { return false };
    let named = arguments.iter().position(|word| *word == b"--config");
    let named = named.and_then(|at| arguments.get(at + 1)).map(|word| word.to_vec());
    let environment = std::fs::read(proc.join("environ")).unwrap_or_default();
    let variable = |name: &[u8]| {
        let mut lines = environment.split(|b| *b == 0);
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(b"="))?;
        Some(value.to_vec()).filter(|value| !value.is_empty())
    };
    let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
    let named = named.or_else(|| variable(b"AGENTAZALL_CONFIG")).map(path);
    let in_root = || path(variable(b"AGENTAZALL_ROOT").unwrap_or_default()).join("config.json");
    // The path is relative to the folder of that process.
    let path = proc.join("cwd").join(named.unwrap_or_else(in_root));
    std::fs::canonicalize(path).is_ok_and(|path| path == config)
}

/// Reads a configuration; `None` if it cannot be read. The store reports its errors.
fn read_config(config: &Path) -> Option<Value> {
    let real = std::fs::canonicalize(config).ok()?;
    serde_json::from_slice(&fs::read_small_file(&real, MAX_CONFIG).ok()?).ok()
}

/// Reads a part without its password, so that no password is kept.
#[cfg(any(feature = "ftp", feature = "mail"))]
fn read_part(settings: &EngineSettings) -> Value {
    let config = read_config(&settings.file);
    let mut part = config.and_then(|c| c.pointer(&settings.part).cloned()).unwrap_or_default();
    if let Some(part) = part.as_object_mut() {
        part.remove("password");
    }
    part
}

/// Reads a part with its secrets, from a file that only its owner may read.
#[cfg(any(feature = "ftp", feature = "http", feature = "mail"))]
fn read_secret_part(settings: &EngineSettings) -> Result<Value, String> {
    let text = super::secret::read_secret(&settings.file).map_err(|e| e.to_string())?;
    let config: Value = serde_json::from_str(&text)
        .map_err(|_| format!("{} is not JSON", settings.file.display()))?;
    Ok(config.pointer(&settings.part).cloned().unwrap_or_default())
}

/// Reads the password of a part.
///
/// # Errors
/// Returns the reason why it cannot be used.
#[cfg(any(feature = "ftp", feature = "mail"))]
fn read_password(
    settings: &EngineSettings,
    default: &str,
) -> Result<zeroize::Zeroizing<String>, String> {
    let part = read_secret_part(settings)?;
    let password = part.get("password").and_then(Value::as_str).unwrap_or(default);
    if password.chars().any(char::is_control) {
        return Err(format!("the password in {} has a control character", settings.file.display()));
    }
    Ok(zeroize::Zeroizing::new(password.to_owned()))
}

/// Returns a member that is a text.
#[cfg(any(feature = "ftp", feature = "mail"))]
fn text_member<'a>(part: &'a Value, key: &str, default: &'a str) -> &'a str {
    part.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).unwrap_or(default)
}

/// Returns a member that is a port.
#[cfg(any(feature = "ftp", feature = "mail"))]
fn port_member(part: &Value, key: &str, default: u16) -> u16 {
    let number = part.get(key).and_then(Value::as_u64);
    number.and_then(|number| u16::try_from(number).ok()).unwrap_or(default)
}

/// Returns a member that is true or false.
#[cfg(any(feature = "ftp", feature = "mail"))]
fn is_enabled(part: &Value, key: &str) -> bool {
    part.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the error for a letter whose attachment cannot be read.
fn attachment_error(name: &str, error: &io::Error) -> EncodeError {
    EncodeError::from_read_error(error, letter::describe_read_error(name, error))
}

/// Returns the mailbox that a configuration describes.
#[cfg(any(feature = "ftp", feature = "mail"))]
fn find_mailbox(settings: &EngineSettings) -> Option<PathBuf> {
    crate::store::agentazall::find_mailbox(&settings.file, &settings.me)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_both_spellings() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let names = |text: &str| -> Vec<String> {
            std::fs::write(&file, text).unwrap();
            let places = [&RELAYS, &MAIL_ACCOUNTS, &FTP_SERVERS];
            let all = places.map(|places| places.find_links(&file, "bob@x"));
            all.into_iter()
                .flatten()
                .map(|(name, s)| format!("{name} {} {}", s.kind, s.part))
                .collect()
        };
        for (text, expected) in [
            ("{}", &[][..]),
            (r#"{"email": {}}"#, &["email mail /email"]),
            (r#"{"transport": "ftp", "email": {}, "ftp": {}}"#, &["ftp ftp /ftp"]),
            (
                r#"{"transport": "both", "email": {}, "ftp": {}, "email_accounts": [{}, {}]}"#,
                &["email mail /email_accounts/0", "email-2 mail /email_accounts/1", "ftp ftp /ftp"],
            ),
            (r#"{"transport": "agenttalk", "ftp_servers": [{}]}"#, &["relay agenttalk /agenttalk"]),
            (
                r#"{"transport": "both", "relays": [{}], "ftp_servers": [{}]}"#,
                &["relay agenttalk /relays/0", "ftp ftp /ftp_servers/0"],
            ),
            ("[]", &[]),
            ("{", &[]),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
        std::fs::write(&file, r#"{"email": {"ca": "my.pem"}}"#).unwrap();
        let links = MAIL_ACCOUNTS.find_links(&file, "bob@x");
        assert_eq!(links[0].1.ca, Some(dir.path().join("my.pem")));
        assert!(
            is_first_part("/ftp")
                && is_first_part("/ftp_servers/0")
                && !is_first_part("/ftp_servers/1")
        );
    }

    #[test]
    fn only_new_processes_are_looked_at() {
        let own = std::process::id();
        let mut all = NonDaemonCache::new();
        assert!(all.list_due_processes(Some(7_000_000)).contains(&own), "at first all");
        let looks = all.looks.len();
        assert_eq!(all.list_due_processes(Some(7_000_003)), [7_000_001, 7_000_002, 7_000_003]);
        assert_eq!(all.looks.len(), looks);
        all.looks = [(own, LOOKS), (7_000_003, 1), (7_000_002, LOOKS)].into();
        assert_eq!(
            all.list_due_processes(Some(7_000_003)),
            [7_000_003],
            "those that were looked at too seldom"
        );
        let mut due = all.list_due_processes(Some(7_000_003 + NEAR));
        due.sort_unstable();
        let expected: Vec<u32> = (7_000_003..=7_000_003 + NEAR).collect();
        assert_eq!(due, expected);
        for newest in [Some(7_000_004 + 2 * NEAR), Some(5), None, Some(9)] {
            all.looks = [(own, LOOKS), (7_000_003, LOOKS)].into();
            let due = all.list_due_processes(newest);
            assert!(
                due.contains(&1) && !due.contains(&own),
                "all but those that are known: {due:?}"
            );
            assert!(!all.looks.contains_key(&7_000_003), "what is gone is forgotten");
        }
        all.listed_all_at = Instant::now().checked_sub(LOOK_AT_ALL).unwrap();
        assert!(all.list_due_processes(Some(9)).contains(&own), "once a minute all");
    }

    #[test]
    fn a_daemon_that_comes_is_noticed_until_it_goes() {
        use std::process::{Command, Stdio};
        let is_found = |id: u32| find_daemons().iter().any(|(found, _)| *found == id);
        assert!(!is_found(std::process::id()));
        let mut daemon = Command::new("sh")
            .args(["-c", "read x; exit", "agentazall", "daemon"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // A new process has no command line yet when `spawn` returns.
        let line = format!("/proc/{}/cmdline", daemon.id());
        while std::fs::read(&line).unwrap().is_empty() {
            std::thread::yield_now();
        }
        for _ in 0..4 {
            assert!(is_found(daemon.id()));
        }
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        assert!(!is_found(daemon.id()));
    }

    #[test]
    fn a_daemon_finds_its_configuration_as_the_reference_does() {
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        let config = |name: &str| std::fs::canonicalize(dir.path().join(name)).unwrap();
        for name in ["here", "root"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("config.json"), "{}").unwrap();
        }
        std::fs::write(dir.path().join("named.json"), "{}").unwrap();
        let named = ("AGENTAZALL_CONFIG", "../named.json");
        let root = ("AGENTAZALL_ROOT", "../root");
        for (variables, expected) in [
            (&[][..], "here/config.json"),
            (&[root], "root/config.json"),
            (&[root, named], "named.json"),
            (&[("AGENTAZALL_CONFIG", ""), root], "root/config.json"),
        ] {
            let mut daemon = Command::new("sh")
                .args(["-c", "read x; exit", "agentazall", "daemon"])
                .current_dir(dir.path().join("here"))
                .env_remove("AGENTAZALL_CONFIG")
                .env_remove("AGENTAZALL_ROOT")
                .envs(variables.iter().copied())
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let read = |name: &str| std::fs::read(format!("/proc/{}/{name}", daemon.id())).unwrap();
            while read("cmdline").is_empty() || read("environ").is_empty() {
                std::thread::yield_now();
            }
            let line = read("cmdline");
            let found = ["here/config.json", "root/config.json", "named.json"]
                .map(|name| is_daemon_for(daemon.id(), &line, &config(name)).then_some(name));
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), [expected]);
        }
    }

    #[cfg(any(feature = "ftp", feature = "mail"))]
    #[test]
    fn passwords_are_read_from_a_file_of_mine_and_kept_nowhere() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, r#"{"ftp": {"host": "h", "password": "hunter2"}}"#).unwrap();
        let mut settings = FTP_SERVERS.find_links(&file, "x").pop().map(|(_, s)| s);
        assert!(settings.is_none(), "the transport is e-mail");
        std::fs::write(&file, r#"{"transport": "ftp", "ftp": {"password": "hunter2"}}"#).unwrap();
        settings = FTP_SERVERS.find_links(&file, "x").pop().map(|(_, s)| s);
        let settings = settings.unwrap();
        assert!(!read_part(&settings).to_string().contains("hunter2"));
        assert!(!serde_json::to_string(&settings).unwrap().contains("hunter2"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let why = read_password(&settings, "").unwrap_err();
        assert!(why.contains("chmod 600") && !why.contains("hunter2"), "{why}");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(read_password(&settings, "").unwrap().as_str(), "hunter2");
    }
}
