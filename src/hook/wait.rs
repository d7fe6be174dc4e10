//! The waiter: stays behind when a turn ends, and rings when mail comes. One a session, the newest; it
//! ends by itself when nobody is there any more to be woken.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::state::{Session, Sessions, now};
use super::waiters::WaiterProcess;
use super::{Call, Event, RINGS, Silence, Told, is_typed, look, pace, project, say, text};
use crate::config::Env;
use crate::index::Index;
use crate::mailbox::{Mailbox, Options};
use crate::store::process;

/// How long one stays, a little less than the harness lets it.
const STAYS: Duration = Duration::from_secs(28_700);
/// How often it looks whether it is still needed.
const TICK: Duration = Duration::from_secs(1);
/// Mail that comes together is told together: it rings when nothing has come for so long, …
const QUIET: Duration = Duration::from_millis(500);
/// … and after this time at the latest.
const GATHERS: Duration = Duration::from_secs(2);
/// The hook that tells of the event at which this one begins to wait has so long: what it has told does not
/// ring.
const IS_TOLD: Duration = Duration::from_secs(5);

/// Whoever the waiter waits for.
struct Needed<'a> {
    sessions: &'a Sessions,
    told: &'a Told,
    /// Who of the session's waiters this is.
    token: String,
    until: Instant,
    harness: Option<OwnedFd>,
}

impl Needed<'_> {
    /// Becomes the waiter of the session, instead of the one it has.
    fn take_over(&self, call: &Call) -> Result<(), Silence> {
        let held = self.sessions.hold()?;
        held.sweep();
        let which = &self.told.which;
        let session = held.load(which)?;
        // After a person's prompt the waiter from before is still there; after a ring there is none.
        if call.event == Event::Prompt && is_typed(call, &self.told.payload, &session) {
            return Err(Silence::Nothing);
        }
        let (waiter, process) = (Some(self.token.clone()), WaiterProcess::this());
        Ok(held.save(which, &Session { waiter, process, ..session })?)
    }

    /// Whether somebody is still there to be woken by this waiter.
    fn is(&self) -> bool {
        Instant::now() < self.until
            && getppid() == self.told.parent
            && !self.harness.as_ref().is_some_and(has_ended)
            && self.sessions.look(&self.told.which).is_ok_and(|session| self.may_ring(&session))
    }

    fn may_ring(&self, session: &Session) -> bool {
        session.waiter.as_deref() == Some(&self.token)
    }

    /// Waits until a moment of the clock; whether it is still needed then.
    fn sleeps(&self, until: Instant) -> bool {
        while self.is() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(TICK));
        }
        false
    }

    /// Waits until nothing comes any more; whether it is still needed then.
    fn gathers(&self, index: &Index) -> bool {
        let most = Instant::now() + GATHERS;
        loop {
            let seen = index.news();
            if !self.sleeps(most.min(Instant::now() + QUIET)) {
                return false;
            }
            if index.news() == seen || Instant::now() >= most {
                return true;
            }
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let ready = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default()));
    ready.is_ok_and(|n| n > 0)
}

/// The process that the harness says it is, if it says so.
fn harness_process(call: &Call, env: &Env) -> Result<Option<OwnedFd>, Silence> {
    let told = call.harness.marks.and_then(|marks| env.var(marks.process)?.to_str()?.parse().ok());
    let Some(id) = told.and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(id, PidfdFlags::empty()) {
        Err(Errno::SRCH) => Err(Silence::Gone(id.as_raw_nonzero().get())),
        opened => Ok(opened.ok()),
    }
}

/// Waits, and rings or ends in silence.
pub(super) fn run(call: &Call, env: Env, sessions: &Sessions, told: &Told) -> Result<u8, Silence> {
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        let always = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal, 0, always)?;
    }
    let needed = Needed {
        sessions,
        told,
        token: token()?,
        until: Instant::now() + STAYS,
        harness: harness_process(call, &env)?,
    };
    needed.take_over(call)?;
    let folder = project(call, &env, sessions, told)?;
    let env = env.moved_to(folder);
    let options = Options { read_only: true, ..call.options.clone() };
    process::keep_little();
    let mailbox = Mailbox::open_in(&options, &env, &mut |_, _| {})?;
    let index = mailbox.tree().index();
    let mut known: HashSet<String> = HashSet::new();
    if call.event != Event::Stop && !needed.sleeps(Instant::now() + IS_TOLD) {
        return Ok(0);
    }
    let mut first = true;
    loop {
        let seen = index.news();
        let mail: Vec<String> = mailbox.tree().mail().into_iter().map(|mail| mail.key).collect();
        let is_new = mail.iter().any(|key| !known.contains(key));
        if is_new {
            if !first && !needed.gathers(index) {
                return Ok(0);
            }
            match claim(&needed, call, &env) {
                Ok(Some(text)) => {
                    say(call.harness.wakes.unwrap_or(super::Says::Err), &(text + "\n"));
                    return Ok(RINGS);
                }
                Ok(None) => known.extend(mail),
                // The store may be back when it changes again.
                Err(Silence::Open(why)) => sessions.log(&why.to_string()),
                Err(why) => return Err(why),
            }
        }
        first = false;
        process::give_back();
        // What comes wakes it at once.
        while index.news() == seen {
            if !needed.is() {
                return Ok(0);
            }
            index.wait(seen, Instant::now() + TICK);
        }
        if !needed.is() {
            return Ok(0);
        }
    }
}

/// Who of the waiters of a session this is, and no other ever was.
fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(crate::model::hex(&bytes))
}

/// The text to ring with, once it is time; `None` if nothing is new, or this waiter is not needed.
///
/// The mailbox is looked at afresh: what was read meanwhile, here or elsewhere, is not told.
fn claim(needed: &Needed<'_>, call: &Call, env: &Env) -> Result<Option<String>, Silence> {
    let which = &needed.told.which;
    loop {
        let glance = look(call, env)?;
        let mail = glance.tree().mail();
        let keys: Vec<&str> = mail.iter().map(|mail| mail.key.as_str()).collect();
        let held = needed.sessions.hold()?;
        let mut session = held.load(which)?;
        let new = session.claim(&keys);
        if new.is_empty() || !needed.may_ring(&session) {
            return Ok(None);
        }
        let (now, due) = (now(), pace::due(&session.rings, now()));
        if due <= now {
            let new: Vec<_> = new.iter().filter_map(|n| mail.get(*n)).collect();
            let text = text(&glance, &mail, &new);
            session.ring(&text);
            held.save(which, &session)?;
            return Ok(Some(text));
        }
        drop(held);
        // A prompt makes it shorter, so it is looked at again and again.
        drop(glance);
        if !needed.waits_for_turn(due) {
            return Ok(None);
        }
    }
}

impl Needed<'_> {
    /// Waits until it may ring, which a prompt may bring forward; whether it is still needed then.
    fn waits_for_turn(&self, due: u64) -> bool {
        loop {
            if !self.sleeps(Instant::now() + TICK) {
                return false;
            }
            if now() >= due {
                return true;
            }
            if self.sessions.look(&self.told.which).is_ok_and(|session| session.rings.is_empty()) {
                // The prompt that brought it forward tells first what there is.
                return self.sleeps(Instant::now() + GATHERS);
            }
        }
    }
}
