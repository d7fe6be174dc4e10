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
use super::{Call, RINGS, Silence, Told, project, say, text};
use crate::config::Env;
use crate::mailbox::{Glance, Mailbox, Options};
use crate::store::process;

/// How long one stays, a little less than the harness lets it.
const STAYS: Duration = Duration::from_secs(28_700);
/// How often it looks whether it is still needed.
const TICK: Duration = Duration::from_secs(1);
/// Mail that comes together is told together.
const GATHERS: Duration = Duration::from_secs(2);

/// Rings are counted since the last prompt: after this many in this time (seconds), …
const MANY: (usize, u64) = (5, 600);
/// … there is one in a minute at most, …
const SLOWED: u64 = 60;
/// … and never more than this many in this time.
const MOST: (usize, u64) = (20, 3600);

/// When a waiter may ring again, after these rings.
fn due(rings: &[u64], now: u64) -> u64 {
    // A clock that was set back must not keep it waiting for ever.
    let at = |ring: &u64| (*ring).min(now);
    let mut due = now;
    let recent = rings.iter().filter(|ring| now - at(ring) < MANY.1).count();
    if let Some(last) = rings.iter().map(at).max().filter(|_| recent >= MANY.0) {
        due = due.max(last + SLOWED);
    }
    let mut hour: Vec<u64> = rings.iter().map(at).filter(|ring| now - ring < MOST.1).collect();
    hour.sort_unstable();
    if let Some(oldest) = hour.len().checked_sub(MOST.0).and_then(|n| hour.get(n)) {
        due = due.max(oldest + MOST.1);
    }
    due
}

/// Whoever the waiter waits for.
struct Needed<'a> {
    sessions: &'a Sessions,
    told: &'a Told,
    /// Who of the session's waiters this is.
    token: String,
    until: Instant,
    parent: Option<Pid>,
    harness: Option<OwnedFd>,
}

impl Needed<'_> {
    /// Whether somebody is still there to be woken by this waiter.
    fn is(&self) -> bool {
        Instant::now() < self.until
            && getppid() == self.parent
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
        parent: getppid(),
        harness: harness_process(call, &env)?,
    };
    {
        let held = sessions.hold()?;
        held.sweep();
        let session = held.load(&told.which)?;
        held.save(&told.which, &Session { waiter: Some(needed.token.clone()), ..session })?;
    }
    let folder = project(call, &env, sessions, told)?.ok_or(Silence::Nothing)?;
    let env = env.moved_to(folder);
    let options = Options { read_only: true, ..call.options.clone() };
    process::keep_little();
    let mailbox = Mailbox::open_in(&options, &env, &mut |_, _| {})?;
    let index = mailbox.tree().index();
    let mut known: HashSet<String> = HashSet::new();
    let mut first = true;
    loop {
        let seen = index.news();
        let mail: Vec<String> = mailbox.tree().mail().into_iter().map(|mail| mail.key).collect();
        let is_new = mail.iter().any(|key| !known.contains(key));
        if is_new {
            if !first && !needed.sleeps(Instant::now() + GATHERS) {
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
        let glance = Glance::open(&call.options, env)?;
        let mail = glance.tree().mail();
        let keys: Vec<&str> = mail.iter().map(|mail| mail.key.as_str()).collect();
        let held = needed.sessions.hold()?;
        let mut session = held.load(which)?;
        let rings = session.rings.clone();
        let new = session.claim(&keys);
        if new.is_empty() || !needed.may_ring(&session) {
            return Ok(None);
        }
        let (now, due) = (now(), due(&rings, now()));
        if due <= now {
            session.rings = rings.into_iter().filter(|ring| now.abs_diff(*ring) < MOST.1).collect();
            session.rings.push(now);
            held.save(which, &session)?;
            let new: Vec<_> = new.iter().filter_map(|n| mail.get(*n)).collect();
            return Ok(Some(text(&glance, &mail, &new)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_slowed_and_capped() {
        let now = 1_000_000;
        assert_eq!(due(&[], now), now);
        assert_eq!(due(&[now, now, now, now], now), now);
        assert_eq!(due(&[now; 5], now), now + 60);
        assert_eq!(due(&[now - 601, now, now, now, now], now), now);
        assert_eq!(due(&[now - 100, now - 90, now - 80, now - 70, now - 61], now), now);
        assert_eq!(due(&[now - 100, now - 90, now - 80, now - 70, now - 30], now), now + 30);
        let each_minute: Vec<u64> = (0..20).map(|n| now - 60 * n).collect();
        assert_eq!(due(&each_minute, now), now - 60 * 19 + 3600);
        assert_eq!(due(&each_minute, now + 3600), now + 3600);
        assert_eq!(due(&[now + 1_000_000; 30], now), now + 3600, "the clock was set back");
    }

    #[test]
    fn thirty_rings_in_a_row_take_hours() {
        let (mut rings, mut now) = (Vec::new(), 1_000_000);
        let began = now;
        for _ in 0..30 {
            now = due(&rings, now);
            rings.push(now);
        }
        assert_eq!(rings[4], began);
        assert_eq!(rings[5], began + 60);
        assert!(now - began >= 3600, "{}", now - began);
    }
}
