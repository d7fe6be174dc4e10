//! The waiter. It stays behind when a turn ends, and rings when mail comes. Each session has one, the newest; it ends
//! by itself when the session, its parent or the harness is gone.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::harness::WakeMeans;
use super::sessions::{Session, SessionDir, unix_seconds};
use super::waiter_process::{WaiterProcess, find_named_harness, list_terminals, wake_session};
use super::{
    HookCall, HookEvent, HookInput, RINGS, SilenceReason, is_typed_prompt, open_glance, rate_limit,
    render_bell_text, resolve_project_folder, select_ringing, write_line,
};
use crate::config::{Config, Env};
use crate::index::Index;
use crate::mailbox::{Mailbox, MailboxGlance, MailboxOptions};
use crate::model::BellVolume;
use crate::store::process;
use crate::view::list_unread_mail;

/// The lifetime of a waiter, a little less than the harness allows.
const STAYS: Duration = Duration::from_secs(28_700);
/// The time between two checks that the waiter is still needed.
const TICK: Duration = Duration::from_secs(1);
/// The time without new mail after which the waiter rings, so that mail that comes together is announced together.
const QUIET: Duration = Duration::from_millis(500);
/// The longest wait for such a quiet time.
const GATHERS: Duration = Duration::from_secs(2);
/// The time that the hook of the same event has to announce its mail. The waiter does not ring for that mail.
const IS_TOLD: Duration = Duration::from_secs(5);

/// A waiter and the session that it waits for.
struct Waiter<'a> {
    sessions: &'a SessionDir,
    input: &'a HookInput,
    /// The token that tells this waiter from the session's others.
    token: String,
    deadline: Instant,
    harness: Option<OwnedFd>,
    /// True if the parent was the hook that started the waiter, and is gone.
    is_detached: bool,
    /// The terminals of which one shows the session, where the harness has sessions without any.
    terminals: Vec<WaiterProcess>,
    /// True if a signal may end the process. While it claims a ring and prints it, none may: the next waiter would not
    /// ring for this mail again.
    may_end: Arc<AtomicBool>,
}

impl Waiter<'_> {
    /// Replaces the session's waiter with this one.
    fn take_over_session(&self, call: &HookCall) -> Result<(), SilenceReason> {
        let held = self.sessions.acquire_lock()?;
        held.remove_old_sessions();
        let which = &self.input.session_key;
        let session = held.load_session(which)?;
        // After a person's prompt the earlier waiter is still there; after a ring there is none.
        if call.event == HookEvent::Prompt && is_typed_prompt(call, &self.input.payload, &session) {
            return Err(SilenceReason::Nothing);
        }
        // In one folder, only the session in which a person typed last is woken.
        if self.is_detached && held.has_other_waiter(which, session.cwd.as_deref()) {
            return Err(SilenceReason::Nothing);
        }
        let (waiter, process) = (Some(self.token.clone()), WaiterProcess::current());
        Ok(held.save_session(which, &Session { waiter, process, ..session })?)
    }

    /// Tells the session that there is mail. Mail of which it cannot be told is announced by the next hook.
    fn ring_session(&self, call: &HookCall, env: &Env, ring: Ring) -> Result<u8, SilenceReason> {
        match call.harness.wake {
            Some(WakeMeans::Print(stream)) => {
                if let Err(error) = write_line(stream, &format!("{}\n", ring.text)) {
                    self.give_back(&ring)?;
                    return Err(SilenceReason::NotPrinted(error));
                }
                Ok(RINGS)
            }
            Some(WakeMeans::Command(words)) => {
                self.may_end.store(true, Ordering::Relaxed);
                let session = self.input.payload.session_id(call.harness).unwrap_or_default();
                let woken = wake_session(call.harness, env, words, session, &ring.text);
                if woken.is_err() {
                    self.give_back(&ring)?;
                }
                woken.map(|()| 0)
            }
            None => Err(SilenceReason::Nothing),
        }
    }

    /// Gives back the claim of a ring that nobody heard.
    fn give_back(&self, ring: &Ring) -> io::Result<()> {
        let held = self.sessions.acquire_lock()?;
        let mut session = held.load_session(&self.input.session_key)?;
        session.rung.retain(|key| !ring.keys.contains(key));
        session.rings.pop();
        held.save_session(&self.input.session_key, &session)
    }

    /// Takes this waiter out of the session's record, unless a newer one is there.
    fn leave_session(&self) -> io::Result<()> {
        let held = self.sessions.acquire_lock()?;
        let session = held.load_session(&self.input.session_key)?;
        if self.may_ring(&session) {
            held.save_session(&self.input.session_key, &session.without_waiter())?;
        }
        Ok(())
    }

    /// Returns true if a session is still there for this waiter to wake.
    fn is_needed(&self) -> bool {
        Instant::now() < self.deadline
            && (self.is_detached || getppid() == self.input.parent)
            && !self.harness.as_ref().is_some_and(has_ended)
            && self.terminals.iter().all(WaiterProcess::is_running)
            && self
                .sessions
                .load_session(&self.input.session_key)
                .is_ok_and(|session| self.may_ring(&session))
    }

    fn may_ring(&self, session: &Session) -> bool {
        session.waiter.as_deref() == Some(&self.token)
    }

    /// Sleeps until `until`. Returns true if the waiter is still needed then.
    fn sleep_until(&self, until: Instant) -> bool {
        while self.is_needed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(TICK));
        }
        false
    }

    /// Waits until no mail comes any more. Returns true if the waiter is still needed then.
    fn wait_until_quiet(&self, index: &Index) -> bool {
        let most = Instant::now() + GATHERS;
        loop {
            let seen = index.change_signal().count();
            if !self.sleep_until(most.min(Instant::now() + QUIET)) {
                return false;
            }
            if index.change_signal().count() == seen || Instant::now() >= most {
                return true;
            }
        }
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let ready = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default()));
    ready.is_ok_and(|n| n > 0)
}

/// Opens the process that the harness names as its own, if it names one.
fn open_harness_process(call: &HookCall, env: &Env) -> Result<Option<OwnedFd>, SilenceReason> {
    let named_process =
        call.harness.variables.and_then(|marks| env.var(marks.process)?.to_str()?.parse().ok());
    let named_process = named_process.or_else(|| find_named_harness(call.harness, env));
    let Some(id) = named_process.and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(id, PidfdFlags::empty()) {
        Err(Errno::SRCH) => Err(SilenceReason::NoHarness(id.as_raw_nonzero().get())),
        opened => Ok(opened.ok()),
    }
}

/// Waits, and rings or ends in silence.
pub(super) fn run(
    call: &HookCall,
    env: Env,
    sessions: &SessionDir,
    input: &HookInput,
) -> Result<u8, SilenceReason> {
    let may_end = Arc::new(AtomicBool::new(true));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&may_end))?;
    }
    let is_detached = call.harness.has_own_waiter();
    let cwd = input.payload.cwd().filter(|_| is_detached);
    let terminals = cwd.map(|cwd| list_terminals(call.harness, &cwd)).unwrap_or_default();
    if is_detached && terminals.is_empty() {
        return Err(SilenceReason::Nothing);
    }
    let needed = Waiter {
        sessions,
        input,
        token: generate_token()?,
        deadline: Instant::now() + STAYS,
        harness: open_harness_process(call, &env)?,
        is_detached,
        terminals,
        may_end,
    };
    let folder = resolve_project_folder(call, &env, sessions, input)?;
    let env = env.with_cwd(folder);
    if is_switched_off(call, &env) {
        return Err(SilenceReason::Nothing);
    }
    needed.take_over_session(call)?;
    let outcome = wait_for_mail(call, &env, &needed);
    if is_detached {
        needed.leave_session()?;
    }
    outcome
}

/// Waits until there is mail, and rings; or until nobody needs the waiter.
fn wait_for_mail(call: &HookCall, env: &Env, needed: &Waiter<'_>) -> Result<u8, SilenceReason> {
    let options = MailboxOptions { read_only: true, ..call.options.clone() };
    process::limit_heap_retention();
    let mailbox = Mailbox::open_with_env(&options, env, &mut |_, _| {})?;
    let index = mailbox.tree().index();
    let mut known: HashSet<String> = HashSet::new();
    if call.event != HookEvent::Stop && !needed.sleep_until(Instant::now() + IS_TOLD) {
        return Ok(0);
    }
    let mut first = true;
    loop {
        let seen = index.change_signal().count();
        let mail: Vec<String> =
            list_unread_mail(mailbox.tree()).into_iter().map(|mail| mail.key).collect();
        let is_new = mail.iter().any(|key| !known.contains(key));
        if is_new {
            if !first && !needed.wait_until_quiet(index) {
                return Ok(0);
            }
            match claim_ring(needed, call, env) {
                Ok(Some(ring)) => return needed.ring_session(call, env, ring),
                Ok(None) => known.extend(mail),
                // The store may be back when it changes again.
                Err(SilenceReason::Open(why)) => needed.sessions.log_reason(&why.to_string()),
                Err(why) => return Err(why),
            }
        }
        first = false;
        process::trim_heap();
        // New mail ends this wait at once.
        while index.change_signal().count() == seen {
            if !needed.is_needed() {
                return Ok(0);
            }
            index.change_signal().wait(seen, Instant::now() + TICK);
        }
        if !needed.is_needed() {
            return Ok(0);
        }
    }
}

/// Returns true if no mail rings, as long as the configuration is as it is now.
fn is_switched_off(call: &HookCall, env: &Env) -> bool {
    Config::load(call.options.config.as_deref(), env)
        .is_ok_and(|config| config.bell == BellVolume::Off)
}

/// Returns a token that no waiter ever had.
fn generate_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(crate::model::encode_hex(&bytes))
}

/// A ring, and the keys of the messages that were claimed for it.
struct Ring {
    text: String,
    keys: Vec<String>,
}

/// The result of an attempt to claim a ring.
enum RingClaim {
    /// The session is to be told.
    Claimed(Ring),
    /// Nothing is new, or this waiter is not needed.
    Nothing,
    /// The session rang too often. It may ring again at this time, in seconds since 1970.
    TooSoon(u64),
}

/// Returns the ring when its time has come; `None` if nothing is new, or this waiter is not needed.
///
/// It opens the mailbox afresh, so that it does not announce mail that was read meanwhile, here or elsewhere.
fn claim_ring(
    needed: &Waiter<'_>,
    call: &HookCall,
    env: &Env,
) -> Result<Option<Ring>, SilenceReason> {
    loop {
        let glance = open_glance(call, env)?;
        needed.may_end.store(false, Ordering::Relaxed);
        let claim = needed.try_claim_ring(&glance);
        let is_claimed = matches!(claim, Ok(RingClaim::Claimed(_)));
        needed.may_end.store(!is_claimed, Ordering::Relaxed);
        // A prompt shortens the wait, so the time is computed again after each.
        drop(glance);
        match claim? {
            RingClaim::Claimed(ring) => return Ok(Some(ring)),
            RingClaim::TooSoon(due) if needed.wait_for_turn(due) => {}
            RingClaim::Nothing | RingClaim::TooSoon(_) => return Ok(None),
        }
    }
}

impl Waiter<'_> {
    /// Claims a ring for the mail that the session was not told of.
    fn try_claim_ring(&self, glance: &MailboxGlance) -> Result<RingClaim, SilenceReason> {
        let which = &self.input.session_key;
        let mail = list_unread_mail(glance.tree());
        let keys: Vec<&str> = mail.iter().map(|mail| mail.key.as_str()).collect();
        let held = self.sessions.acquire_lock()?;
        let mut session = held.load_session(which)?;
        let new = session.claim_unrung(&keys);
        if new.is_empty() || !self.may_ring(&session) {
            return Ok(RingClaim::Nothing);
        }
        let ringing = select_ringing(&mut session, glance, &mail, &new);
        if ringing.is_empty() {
            held.save_session(which, &session)?;
            return Ok(RingClaim::Nothing);
        }
        let now = unix_seconds();
        let due = rate_limit::compute_next_ring(&session.rings, now);
        if due > now {
            return Ok(RingClaim::TooSoon(due));
        }
        let text = render_bell_text(glance, &mail, &ringing);
        session.note_ring(&text);
        held.save_session(which, &session)?;
        let keys = ringing.iter().map(|mail| mail.key.clone()).collect();
        Ok(RingClaim::Claimed(Ring { text, keys }))
    }

    /// Waits until the waiter may ring. A prompt may bring that forward. Returns true if the waiter is still needed
    /// then.
    fn wait_for_turn(&self, due: u64) -> bool {
        loop {
            if !self.sleep_until(Instant::now() + TICK) {
                return false;
            }
            if unix_seconds() >= due {
                return true;
            }
            if self
                .sessions
                .load_session(&self.input.session_key)
                .is_ok_and(|session| session.rings.is_empty())
            {
                // The hook of the prompt that brought it forward first announces its mail.
                return self.sleep_until(Instant::now() + GATHERS);
            }
        }
    }
}
