//! The bell. A coding agent's harness runs `msgfs hook run` at the boundaries of its turns, and learns once for each
//! arrival that there is mail.
//!
//! The bell looks and never touches: it marks, makes, sends and mounts nothing. It fails open: if anything is missing
//! or wrong, the harness hears nothing and goes on. A table ([`harness`]) holds the differences between the harnesses;
//! there is one way of doing everything.

mod bell;
pub mod harness;
pub mod install;
mod payload;
mod rate_limit;
mod sessions;
mod switches;
mod volume;
mod waiter;
mod waiter_process;

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getppid};

use crate::config::{Config, Env, Me, MeError, MeOrigin, find_lock_holder};
use crate::fuse::mountpoint;
use crate::mailbox::{MailboxGlance, MailboxOpenError, MailboxOptions};
use crate::store::process;
use crate::view::{UnreadMail, list_unread_mail, sole_unread_name};
use bell::MailLocation;
use harness::HarnessVariables;
pub use harness::{BellStream, Harness, HookEvent};
use payload::HookPayload;
pub use sessions::{Session, SessionDir};
use sessions::{SessionKey, SessionLock, unix_seconds};
pub use volume::describe_volume;
pub use waiter_process::end_waiters;

/// Exit code of a waiter that rings. Every other hook ends with 0.
pub const RINGS: u8 = 10;
/// The time after which a hook ends itself. With the start of the process it is half a second in all.
const GIVE_UP: Duration = Duration::from_millis(430);
/// The time that the note of such an end may take.
const NOTED_WITHIN: Duration = Duration::from_millis(20);
/// The time after which a hook claims no mail, because there may be no time left to print it.
const CLAIM_WITHIN: Duration = Duration::from_millis(400);

/// The command line of a hook.
#[derive(Debug)]
pub struct HookCall {
    /// The event.
    pub event: HookEvent,
    /// The harness in which it happened.
    pub harness: &'static Harness,
    /// True if the process stays until there is mail.
    pub wait: bool,
    /// The mailbox, as far as the command line names it.
    pub options: MailboxOptions,
}

/// The reason why a hook prints nothing, for the log.
#[derive(Debug, thiserror::Error)]
enum SilenceReason {
    /// Nothing to say, and nothing wrong.
    #[error("nothing to say")]
    Nothing,
    /// Input from the harness that is not understood.
    #[error("the harness's message on standard input {0}")]
    BadInput(&'static str),
    /// The absence of the harness that would be woken.
    #[error("the harness says that it is process {0}, but there is no such process")]
    NoHarness(i32),
    /// A mailbox that cannot be opened.
    #[error("{0}")]
    Open(#[from] MailboxOpenError),
    /// A program of the harness that did not wake the session.
    #[error("the session was not woken: {0} {1}")]
    NotWoken(&'static str, String),
    /// A text that the harness did not get.
    #[error("the text cannot be printed: {0}")]
    NotPrinted(io::Error),
    /// A record of earlier rings that cannot be read or saved.
    #[error("the state of the session cannot be read or saved: {0}")]
    State(#[from] io::Error),
    /// A look for mail that took too long.
    #[error(
        "it took longer than {CLAIM_WITHIN:?} to look for mail; this is faster while msgfs is \
         mounted"
    )]
    TimedOut,
    /// No folder from the harness, while the folder of this process is not the agent's.
    #[error("the harness does not say in which folder the agent works")]
    NoFolder,
    /// No name for the agent but in a variable that may belong to another session.
    #[error(
        "no name is set for the agent in {}; write a name into the file .agent-message there, or \
         me = \"NAME\" into the configuration ($MSGFS_ME does not count here)",
        crate::model::display_path(.0)
    )]
    NoName(PathBuf),
    /// Missing variables by which a hook knows its harness.
    #[error("${} and ${} are not set; {} sets them from {} on", .0.flag.0, .0.session, .1, .0.since)]
    MissingVariables(Box<HarnessVariables>, &'static str),
    /// Too many rings.
    #[error(
        "mail was announced too often since a person last typed something; it is announced later"
    )]
    RateLimited,
}

/// The place for the reason for silence, filled as soon as it is known.
type LogSlot = Arc<OnceLock<SessionDir>>;

/// Runs a hook to its end, and ends the process: with 0, or with [`RINGS`] when a waiter rings.
pub fn run(call: &HookCall) -> ! {
    // A harness may take text on our standard error for an order, or for a failure.
    std::panic::set_hook(Box::new(|_| {}));
    process::set_silent_exit();
    let began = Instant::now();
    let noted = LogSlot::default();
    // The watchdog starts first: even the state folder may hang.
    if !call.wait {
        start_watchdog(&noted);
    }
    let env = Env::from_process();
    let Some(sessions) = SessionDir::locate_dir(&env) else { exit(0) };
    let sessions = sessions.for_harness(call.harness.name);
    let _ = noted.set(sessions.clone());
    let sessions = if call.wait { sessions.with_long_patience() } else { sessions };
    let outcome = std::panic::catch_unwind(|| handle_call(call, env, &sessions, began));
    match outcome {
        Ok(Ok(code)) => exit(i32::from(code)),
        Ok(Err(SilenceReason::Nothing)) => {}
        Ok(Err(why)) => sessions.log_reason(&why.to_string()),
        Err(_) => sessions.log_reason("a bug in msgfs: it panicked"),
    }
    exit(0)
}

/// Ends a hook that is not understood, with 0 and a reason in the log.
pub fn refuse_call(why: &str) -> ! {
    start_watchdog(&LogSlot::default());
    let env = Env::from_process();
    if let Some(sessions) = SessionDir::locate_dir(&env).filter(|_| !is_bell_off(&env)) {
        sessions.log_reason(why);
    }
    exit(0)
}

/// Starts a thread that ends the process after [`GIVE_UP`] and logs that.
fn start_watchdog(noted: &LogSlot) {
    let noted = noted.clone();
    let watchdog = thread::Builder::new().spawn(move || {
        thread::sleep(GIVE_UP);
        // The log's folder may hang too, just like the thing that held the hook up.
        thread::spawn(move || {
            noted.get().map(|place| place.log_reason(&SilenceReason::TimedOut.to_string()))
        });
        thread::sleep(NOTED_WITHIN);
        exit(0);
    });
    if watchdog.is_err() {
        exit(0);
    }
}

/// Returns true if the bell is switched off here.
pub fn is_bell_off(env: &Env) -> bool {
    env.var("MSGFS_HOOK").is_some_and(|value| value == "off")
}

/// Returns why a harness hears nothing in the current folder, if nothing names the agent there.
pub fn explain_missing_name(env: &Env, harness: &Harness) -> Option<String> {
    let env = env.clone().without_var("MSGFS_ME");
    let config = Config::load(None, &env).ok().filter(|_| harness.shares_environment)?;
    match Me::resolve(None, &env, &config) {
        Ok(me) if me.origin != MeOrigin::Folder => None,
        Ok(_) | Err(MeError::Folder(_)) => {
            Some(SilenceReason::NoName(env.cwd()?.to_owned()).to_string())
        }
        Err(why) => Some(why.to_string()),
    }
}

/// The input from the harness, as far as every event needs it.
struct HookInput {
    payload: HookPayload,
    session_key: SessionKey,
    /// The process that started this one.
    parent: Option<Pid>,
}

fn handle_call(
    call: &HookCall,
    env: Env,
    sessions: &SessionDir,
    began: Instant,
) -> Result<u8, SilenceReason> {
    if is_bell_off(&env) {
        return Err(SilenceReason::Nothing);
    }
    let parent = getppid();
    let bytes = payload::read_stdin(call.wait)
        .ok_or(SilenceReason::BadInput("was too long, not closed in time, or cannot be read"))?;
    let payload =
        HookPayload::parse(&bytes).ok_or(SilenceReason::BadInput("is not a JSON object"))?;
    check_call_applies(call, &payload, &env)?;
    let session = payload.session_id(call.harness);
    // Only the start may come before the session has an id.
    if session.is_none() && call.event != HookEvent::SessionStart {
        return Err(SilenceReason::BadInput("has no session id"));
    }
    let cwd = payload.cwd();
    let which =
        SessionKey::new(call.harness, session, cwd.as_deref()).ok_or(SilenceReason::Nothing)?;
    let input = HookInput { payload, session_key: which, parent };
    let env = if call.harness.shares_environment { env.without_var("MSGFS_ME") } else { env };
    if call.wait {
        return waiter::run(call, env, sessions, &input);
    }
    let outcome = ring_bell(call, env, sessions, &input, began);
    // A turn that ends without a bell leaves an idle session.
    if outcome.is_err() && call.event == HookEvent::Stop && call.harness.has_own_waiter() {
        waiter_process::start_waiter(call.harness, &bytes)?;
    }
    outcome
}

/// Refuses a hook that does not run in the harness it was installed for, or that nobody would hear.
fn check_call_applies(
    call: &HookCall,
    payload: &HookPayload,
    env: &Env,
) -> Result<(), SilenceReason> {
    if payload.is_of_subagent() || (call.harness.variables.is_some() && payload.is_of_cursor()) {
        return Err(SilenceReason::Nothing);
    }
    let says = |name: &str| env.var(name).map(OsStr::to_string_lossy).unwrap_or_default();
    if let Some(marks) = call.harness.variables {
        let HarnessVariables { flag: (flag, set), session, scripted: (entry, script), .. } = marks;
        if env.var(flag).is_none() && env.var(session).is_none() {
            return Err(SilenceReason::MissingVariables(Box::new(marks), call.harness.title));
        }
        let same = payload.session_id(call.harness).is_some_and(|id| says(session) == id);
        // A waiter would hold up a run that a script waits for.
        let held_up = call.wait && says(entry).starts_with(script);
        if says(flag) != set || !same || held_up {
            return Err(SilenceReason::Nothing);
        }
    }
    if call.wait && !(call.event.may_arm_waiter() && call.harness.wake.is_some()) {
        return Err(SilenceReason::Nothing);
    }
    Ok(())
}

/// Returns true if a person typed the prompt. The harness also makes a prompt of our own text.
fn is_typed_prompt(call: &HookCall, payload: &HookPayload, session: &Session) -> bool {
    let prompt = payload.prompt().unwrap_or_default();
    let untyped = call.harness.variables.map(|marks| marks.untyped);
    !untyped.is_some_and(|begin| prompt.trim_start().starts_with(begin))
        && !session.said.as_deref().is_some_and(|said| prompt.contains(said))
}

/// Runs a hook that the harness waits for, and prints its answer.
fn ring_bell(
    call: &HookCall,
    env: Env,
    sessions: &SessionDir,
    input: &HookInput,
    began: Instant,
) -> Result<u8, SilenceReason> {
    let HookInput { payload, session_key: which, .. } = input;
    let ring = match call.event {
        HookEvent::Prompt | HookEvent::SessionEnd => note_prompt_or_end(call, sessions, input)?,
        _ => None,
    };
    let answer = call.harness.find_answer(call.event).ok_or(SilenceReason::Nothing)?;
    let goes_on = call.event == HookEvent::Stop;
    if goes_on && (payload.is_hook_continuation() || !payload.may_continue(call.harness)) {
        return Err(SilenceReason::Nothing);
    }
    let folder = resolve_project_folder(call, &env, sessions, input)?;
    let glance = open_glance(call, &env.with_cwd(folder))?;
    let mail = list_unread_mail(glance.tree());
    let held = sessions.acquire_lock()?;
    if call.event == HookEvent::SessionStart {
        held.remove_old_sessions();
    }
    if began.elapsed() > CLAIM_WITHIN {
        return Err(SilenceReason::TimedOut);
    }
    let before = held.load_session(which)?;
    let claimed = claim_bell_text(&held, call, which, &glance, &mail);
    let (answer, text) = match (claimed, call.harness.ring_notice.zip(ring)) {
        (Err(SilenceReason::Nothing), Some(notice)) => notice,
        (claimed, _) => (answer, claimed?),
    };
    let line = answer.replace("TEXT", &serde_json::Value::from(text).to_string()) + "\n";
    if let Err(error) = write_line(BellStream::Out, &line) {
        // Nobody has heard it.
        held.save_session(which, &before)?;
        return Err(SilenceReason::NotPrinted(error));
    }
    Ok(0)
}

/// Notes a prompt or an end in the state of a session, whatever mail there is. A prompt clears the record of its rings;
/// an end clears its waiter. Returns the text of the last ring, if that made the prompt.
fn note_prompt_or_end(
    call: &HookCall,
    sessions: &SessionDir,
    input: &HookInput,
) -> Result<Option<String>, SilenceReason> {
    let held = sessions.acquire_lock()?;
    let session = held.load_session(&input.session_key)?;
    let mut settled = session.clone();
    // Mail in the turn that begins is announced at its end.
    if call.event == HookEvent::SessionEnd || call.harness.has_own_waiter() {
        settled = settled.without_waiter();
    }
    let prompt = input.payload.prompt().unwrap_or_default();
    if call.event == HookEvent::Prompt && is_typed_prompt(call, &input.payload, &session) {
        settled.rings.clear();
        if call.harness.has_own_waiter() {
            let cwd = session.cwd.clone().or_else(|| input.payload.cwd());
            held.dismiss_neighbours(&input.session_key, cwd.as_deref())?;
        }
    }
    if session.is_known() && settled != session {
        held.save_session(&input.session_key, &settled)?;
    }
    Ok(session.said.filter(|said| prompt.contains(said)))
}

/// Returns the folder of the project whose agent the session is. The harness names it; otherwise it is the folder in
/// which the session was first seen. It is never the current folder of this process.
fn resolve_project_folder(
    call: &HookCall,
    env: &Env,
    sessions: &SessionDir,
    input: &HookInput,
) -> Result<PathBuf, SilenceReason> {
    let HookInput { payload, session_key: which, .. } = input;
    let named =
        call.harness.project_variable.and_then(|name| env.folder_var(name)).map(Path::to_owned);
    if let Some(folder) = named.or_else(|| payload.project_root(call.harness)) {
        return Ok(folder);
    }
    let held = sessions.acquire_lock()?;
    let session = held.load_session(which)?;
    if let Some(folder) = session.cwd {
        return Ok(folder);
    }
    let folder = payload.cwd().ok_or(SilenceReason::NoFolder)?;
    held.save_session(which, &Session { cwd: Some(folder.clone()), ..session })?;
    Ok(folder)
}

/// Opens the mailbox of the agent in the project's folder, which is the current folder of `env`, to look at only.
fn open_glance(call: &HookCall, env: &Env) -> Result<MailboxGlance, SilenceReason> {
    let nameless = || SilenceReason::NoName(env.cwd().unwrap_or(Path::new("")).to_owned());
    let shared = call.harness.shares_environment;
    match MailboxGlance::open(&call.options, env) {
        // Nobody has said that the agent has the name of the folder.
        Ok(glance) if shared && glance.me().origin == MeOrigin::Folder => Err(nameless()),
        Err(MailboxOpenError::Me(MeError::Folder(_))) if shared => Err(nameless()),
        opened => Ok(opened?),
    }
}

/// Claims the mail that was not announced yet, and returns the text of the bell. At the start of a session the text
/// covers all unread mail. Mail that does not ring is claimed in silence.
fn claim_bell_text(
    held: &SessionLock<'_>,
    call: &HookCall,
    which: &SessionKey,
    glance: &MailboxGlance,
    mail: &[UnreadMail],
) -> Result<String, SilenceReason> {
    let mut session = held.load_session(which)?;
    let keys: Vec<&str> = mail.iter().map(|mail| mail.key.as_str()).collect();
    let new = session.claim_unrung(&keys);
    let ringing = select_ringing(&mut session, glance, mail, &new);
    let is_start_with_mail = || {
        let all: Vec<&UnreadMail> = mail.iter().collect();
        call.event == HookEvent::SessionStart
            && !volume::select_ringing(glance.config(), glance.tree(), &all).is_empty()
    };
    if ringing.is_empty() && !is_start_with_mail() {
        if !new.is_empty() {
            held.save_session(which, &session)?;
        }
        return Err(SilenceReason::Nothing);
    }
    let text = render_bell_text(glance, mail, &ringing);
    // A turn that goes on costs as much as one that is woken.
    if call.event == HookEvent::Stop && call.harness.has_prompt_hook() {
        let now = unix_seconds();
        if rate_limit::compute_next_ring(&session.rings, now) > now {
            return Err(SilenceReason::RateLimited);
        }
        session.note_ring(&text);
    }
    if !new.is_empty() {
        held.save_session(which, &session)?;
    }
    Ok(text)
}

/// Returns those of the claimed messages that ring, and notes the others as silent.
fn select_ringing<'a>(
    session: &mut Session,
    glance: &MailboxGlance,
    mail: &'a [UnreadMail],
    new: &[usize],
) -> Vec<&'a UnreadMail> {
    let claimed: Vec<&UnreadMail> = new.iter().filter_map(|n| mail.get(*n)).collect();
    let ringing = volume::select_ringing(glance.config(), glance.tree(), &claimed);
    let is_silent = |one: &&&UnreadMail| !ringing.iter().any(|ringing| ringing.key == one.key);
    session.note_silent(claimed.iter().filter(is_silent).map(|one| one.key.as_str()));
    ringing
}

fn render_bell_text(glance: &MailboxGlance, mail: &[UnreadMail], new: &[&UnreadMail]) -> String {
    let only = sole_unread_name(glance.tree());
    let mount = find_mountpoint(glance);
    let place = MailLocation {
        me: &glance.me().name,
        mount: mount.as_deref(),
        single_message: only.as_deref(),
    };
    let senders: Vec<&str> = new.iter().map(|mail| mail.from.as_str()).collect();
    bell::render_bell(mail.len(), &senders, &place)
}

/// Returns the folder in which this identity is mounted. It asks the kernel's table only, never the mount, which may
/// hang.
fn find_mountpoint(glance: &MailboxGlance) -> Option<PathBuf> {
    let holder = find_lock_holder(&glance.paths().state)?;
    let mounts = mountpoint::read_mounts().ok()?;
    holder.find_mount(&mounts).map(|mount| mount.mountpoint.clone())
}

/// Writes a line at once, or not at all as far as that can be helped.
fn write_line(to: BellStream, line: &str) -> io::Result<()> {
    match to {
        BellStream::Out => process::write_stdout(line.as_bytes()),
        BellStream::Err => io::stderr().write_all(line.as_bytes()),
    }
}
