//! The bell: a coding agent's harness runs `msgfs hook run` at the boundaries of its turns, and is told,
//! once for each arrival, that there is mail.
//!
//! It looks and never touches: nothing is marked, made, sent or mounted. It fails open: whatever is
//! missing or wrong, the harness hears nothing and goes on. How the harnesses differ is a table
//! ([`harness`]); there is one way of doing everything.

mod bell;
pub mod harness;
pub mod install;
mod pace;
mod payload;
mod state;
mod switches;
mod wait;
mod waiters;

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getppid};

use crate::config::{Config, Env, Me, MeError, Origin, holder};
use crate::fuse::mountpoint;
use crate::mailbox::{Glance, OpenError, Options};
use crate::store::process;
use crate::view::Mail;
use bell::Place;
use harness::Marks;
pub use harness::{Event, Harness, Says};
use payload::Payload;
use state::{Held, Which, now};
pub use state::{Session, Sessions};
pub use waiters::end_all;

/// Exit code of a waiter that rings. Every other hook ends with 0.
pub const RINGS: u8 = 10;
/// After so long whoever waits for a hook waits no longer. Half a second in all, with the start of the
/// process.
const GIVE_UP: Duration = Duration::from_millis(430);
/// How long noting that may take.
const NOTED_WITHIN: Duration = Duration::from_millis(20);
/// Nothing is claimed later than this, because there may be no time to say it.
const CLAIM_WITHIN: Duration = Duration::from_millis(400);

/// What a hook was started as.
#[derive(Debug)]
pub struct Call {
    /// What happened.
    pub event: Event,
    /// In which harness.
    pub harness: &'static Harness,
    /// Stay until there is mail.
    pub wait: bool,
    /// Whose mailbox, as far as the command line says.
    pub options: Options,
}

/// Why nothing is said, for the log.
#[derive(Debug, thiserror::Error)]
enum Silence {
    /// There is nothing to say, and nothing is wrong.
    #[error("nothing to say")]
    Nothing,
    /// What the harness told is not understood.
    #[error("the harness's message on standard input {0}")]
    Told(&'static str),
    /// Whoever would be woken is not there.
    #[error("the harness says that it is process {0}, but there is no such process")]
    Gone(i32),
    /// The mailbox cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// What was rung before is not known.
    #[error("the state of the session cannot be read or saved: {0}")]
    State(#[from] io::Error),
    /// It took too long.
    #[error(
        "it took longer than {CLAIM_WITHIN:?} to look for mail; this is faster while msgfs is \
         mounted"
    )]
    Late,
    /// The harness names no folder, and that of this process is not the agent's.
    #[error("the harness does not say in which folder the agent works")]
    Nowhere,
    /// Nothing but a variable that may be another session's says who the agent is.
    #[error(
        "no name is set for the agent in {}; write a name into the file .agent-message there, or \
         me = \"NAME\" into the configuration ($MSGFS_ME does not count here)",
        crate::model::shown_path(.0)
    )]
    Nameless(PathBuf),
    /// The variables are not set by which it is seen who runs the hook.
    #[error("${} and ${} are not set; {} sets them from {} on", .0.flag.0, .0.session, .1, .0.since)]
    Unmarked(Box<Marks>, &'static str),
    /// It was rung too often.
    #[error(
        "mail was announced too often since a person last typed something; it is announced later"
    )]
    Slowed,
}

/// Where the reason for silence is noted, as soon as that is known.
type Noted = Arc<OnceLock<Sessions>>;

/// Runs a hook to its end, and ends the process: with 0, or with [`RINGS`] when a waiter rings.
pub fn run(call: &Call) -> ! {
    // Whoever reads our standard error may take what it says for an order, or for a failure.
    std::panic::set_hook(Box::new(|_| {}));
    process::end_in_silence();
    let began = Instant::now();
    let noted = Noted::default();
    // First of all: already the folder of the state may hang.
    if !call.wait {
        watch(&noted);
    }
    let env = Env::from_process();
    let Some(sessions) = Sessions::of(&env) else { exit(0) };
    let sessions = sessions.of_harness(call.harness.name);
    let _ = noted.set(sessions.clone());
    let sessions = if call.wait { sessions.patient() } else { sessions };
    let outcome = std::panic::catch_unwind(|| attend(call, env, &sessions, began));
    match outcome {
        Ok(Ok(code)) => exit(i32::from(code)),
        Ok(Err(Silence::Nothing)) => {}
        Ok(Err(why)) => sessions.log(&why.to_string()),
        Err(_) => sessions.log("a bug in msgfs: it panicked"),
    }
    exit(0)
}

/// Ends a hook that nobody understands: with 0, and with a reason in the log.
pub fn refuse(why: &str) -> ! {
    watch(&Noted::default());
    let env = Env::from_process();
    if let Some(sessions) = Sessions::of(&env).filter(|_| !is_off(&env)) {
        sessions.log(why);
    }
    exit(0)
}

/// Ends the process when nobody waits for it any longer, and notes that.
fn watch(noted: &Noted) {
    let noted = noted.clone();
    let watchdog = thread::Builder::new().spawn(move || {
        thread::sleep(GIVE_UP);
        // Where it is noted may hang just like what it was kept by.
        thread::spawn(move || noted.get().map(|place| place.log(&Silence::Late.to_string())));
        thread::sleep(NOTED_WITHIN);
        exit(0);
    });
    if watchdog.is_err() {
        exit(0);
    }
}

/// Whether the bell is switched off here.
pub fn is_off(env: &Env) -> bool {
    env.var("MSGFS_HOOK").is_some_and(|value| value == "off")
}

/// Returns why a harness hears nothing in the current folder, if nothing says who works there.
pub fn nameless(env: &Env, harness: &Harness) -> Option<String> {
    let env = env.clone().without("MSGFS_ME");
    let config = Config::load(None, &env).ok().filter(|_| harness.shares_environment)?;
    match Me::resolve(None, &env, &config) {
        Ok(me) if me.origin != Origin::Folder => None,
        Ok(_) | Err(MeError::Folder(_)) => {
            Some(Silence::Nameless(env.cwd()?.to_owned()).to_string())
        }
        Err(why) => Some(why.to_string()),
    }
}

/// What the harness told, as far as every event needs it.
struct Told {
    payload: Payload,
    which: Which,
    /// Returns the process that has started this one.
    parent: Option<Pid>,
}

fn attend(call: &Call, env: Env, sessions: &Sessions, began: Instant) -> Result<u8, Silence> {
    if is_off(&env) {
        return Err(Silence::Nothing);
    }
    let parent = getppid();
    let bytes = payload::read(call.wait)
        .ok_or(Silence::Told("was too long, not closed in time, or cannot be read"))?;
    let payload = Payload::parse(&bytes).ok_or(Silence::Told("is not a JSON object"))?;
    check_meant(call, &payload, &env)?;
    let session = payload.session(call.harness);
    // Only the start may come before the session has an id.
    if session.is_none() && call.event != Event::SessionStart {
        return Err(Silence::Told("has no session id"));
    }
    let cwd = payload.cwd();
    let which = Which::new(call.harness, session, cwd.as_deref()).ok_or(Silence::Nothing)?;
    let told = Told { payload, which, parent };
    let env = if call.harness.shares_environment { env.without("MSGFS_ME") } else { env };
    if call.wait {
        return wait::run(call, env, sessions, &told);
    }
    ring(call, env, sessions, &told, began)
}

/// Refuses a hook that does not run where it was installed for, or that nobody would hear.
fn check_meant(call: &Call, payload: &Payload, env: &Env) -> Result<(), Silence> {
    if payload.is_of_subagent() || (call.harness.marks.is_some() && payload.is_of_cursor()) {
        return Err(Silence::Nothing);
    }
    let says = |name: &str| env.var(name).map(OsStr::to_string_lossy).unwrap_or_default();
    if let Some(marks) = call.harness.marks {
        let Marks { flag: (flag, set), session, scripted: (entry, script), .. } = marks;
        if env.var(flag).is_none() && env.var(session).is_none() {
            return Err(Silence::Unmarked(Box::new(marks), call.harness.title));
        }
        let same = payload.session(call.harness).is_some_and(|id| says(session) == id);
        // One that runs to its end in a script would be held up.
        let held_up = call.wait && says(entry).starts_with(script);
        if says(flag) != set || !same || held_up {
            return Err(Silence::Nothing);
        }
    }
    if call.wait && !(call.event.arms() && call.harness.wakes.is_some()) {
        return Err(Silence::Nothing);
    }
    Ok(())
}

/// Returns whether a person has typed the prompt. The harness makes one of what we have said, too.
fn is_typed(call: &Call, payload: &Payload, session: &Session) -> bool {
    let prompt = payload.prompt().unwrap_or_default();
    let untyped = call.harness.marks.map(|marks| marks.untyped);
    !untyped.is_some_and(|begin| prompt.trim_start().starts_with(begin))
        && !session.said.as_deref().is_some_and(|said| prompt.contains(said))
}

/// The hooks that the harness waits for.
fn ring(
    call: &Call,
    env: Env,
    sessions: &Sessions,
    told: &Told,
    began: Instant,
) -> Result<u8, Silence> {
    let Told { payload, which, .. } = told;
    if matches!(call.event, Event::Prompt | Event::SessionEnd) {
        settle(call, sessions, told)?;
    }
    let answer = call.harness.answer(call.event).ok_or(Silence::Nothing)?;
    let goes_on = call.event == Event::Stop;
    if goes_on && (payload.is_continued() || !payload.may_go_on(call.harness)) {
        return Err(Silence::Nothing);
    }
    let folder = project(call, &env, sessions, told)?;
    let glance = look(call, &env.moved_to(folder))?;
    let mail = glance.tree().mail();
    let held = sessions.hold()?;
    if call.event == Event::SessionStart {
        held.sweep();
    }
    if began.elapsed() > CLAIM_WITHIN {
        return Err(Silence::Late);
    }
    let text = claim(&held, call, which, &glance, &mail)?;
    drop(held);
    let line = answer.replace("TEXT", &serde_json::Value::from(text).to_string()) + "\n";
    say(Says::Out, &line);
    Ok(0)
}

/// Notes a prompt or an end in the state of a session, whatever mail there is: the count of its rings begins
/// anew, or there is no waiter any more.
fn settle(call: &Call, sessions: &Sessions, told: &Told) -> Result<(), Silence> {
    let held = sessions.hold()?;
    let session = held.load(&told.which)?;
    let settled = match call.event {
        Event::SessionEnd => session.clone().alone(),
        _ if is_typed(call, &told.payload, &session) => {
            Session { rings: Vec::new(), ..session.clone() }
        }
        _ => return Ok(()),
    };
    if session.is_known() && settled != session {
        held.save(&told.which, &settled)?;
    }
    Ok(())
}

/// The project's folder, whose agent the session is: as the harness says, else where the session was
/// first heard of. Never where this process is.
fn project(call: &Call, env: &Env, sessions: &Sessions, told: &Told) -> Result<PathBuf, Silence> {
    let Told { payload, which, .. } = told;
    let named = call.harness.project.and_then(|name| env.folder(name)).map(Path::to_owned);
    if let Some(folder) = named.or_else(|| payload.root(call.harness)) {
        return Ok(folder);
    }
    let held = sessions.hold()?;
    let session = held.load(which)?;
    if let Some(folder) = session.cwd {
        return Ok(folder);
    }
    let folder = payload.cwd().ok_or(Silence::Nowhere)?;
    held.save(which, &Session { cwd: Some(folder.clone()), ..session })?;
    Ok(folder)
}

/// Looks at the mailbox of the agent in the project's folder, which is that of the environment.
fn look(call: &Call, env: &Env) -> Result<Glance, Silence> {
    let nameless = || Silence::Nameless(env.cwd().unwrap_or(Path::new("")).to_owned());
    let shared = call.harness.shares_environment;
    match Glance::open(&call.options, env) {
        // Nobody has said that the agent is called as the folder.
        Ok(glance) if shared && glance.me().origin == Origin::Folder => Err(nameless()),
        Err(OpenError::Me(MeError::Folder(_))) if shared => Err(nameless()),
        opened => Ok(opened?),
    }
}

/// The text for what was not rung yet; at the start of a session for what is unread at all.
fn claim(
    held: &Held<'_>,
    call: &Call,
    which: &Which,
    glance: &Glance,
    mail: &[Mail],
) -> Result<String, Silence> {
    let mut session = held.load(which)?;
    let keys: Vec<&str> = mail.iter().map(|mail| mail.key.as_str()).collect();
    let new = session.claim(&keys);
    if mail.is_empty() || (new.is_empty() && call.event != Event::SessionStart) {
        return Err(Silence::Nothing);
    }
    let told: Vec<&Mail> = new.iter().filter_map(|n| mail.get(*n)).collect();
    let text = text(glance, mail, &told);
    // A turn that goes on costs as much as one that is woken.
    if call.event == Event::Stop && call.harness.hears_prompts() {
        let now = now();
        if pace::due(&session.rings, now) > now {
            return Err(Silence::Slowed);
        }
        session.ring(&text);
    }
    if !new.is_empty() {
        held.save(which, &session)?;
    }
    Ok(text)
}

fn text(glance: &Glance, mail: &[Mail], new: &[&Mail]) -> String {
    let only = glance.tree().only_mail();
    let mount = mount_of(glance);
    let place = Place { me: &glance.me().name, mount: mount.as_deref(), only: only.as_deref() };
    bell::text(mail.len(), new, &place)
}

/// Where this identity is mounted. Only the kernel's table is asked, never the mount, which may hang.
fn mount_of(glance: &Glance) -> Option<PathBuf> {
    let dir = holder(&glance.paths().state)?.mountpoint?;
    let mounts = mountpoint::mounts().ok()?;
    mountpoint::find(&mounts, &dir).is_some_and(mountpoint::MountEntry::is_ours).then_some(dir)
}

/// Writes at once, or not at all as far as anybody can help it.
fn say(to: Says, line: &str) {
    let _ = match to {
        Says::Out => io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush()),
        Says::Err => io::stderr().write_all(line.as_bytes()),
    };
}
