//! `msgfs send --wait-for`: waits until each recipient of a message shows a state.

use std::thread;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use msgfs::model::{DeliveryState, sanitize_line};
use msgfs::view::{SentReceipt, sent_report_path};

use super::GlobalOptions;
use super::access::{self, AccessPurpose};
use super::failure::{Failure, refuse};
use super::sent::read_receipts;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// The time after which a message that waits is tried again, if no mount does that.
const ROUND: Duration = Duration::from_secs(2);
/// The exit code when the time is over.
const TIMED_OUT: u8 = 3;

/// Returns the parser of the states for which one can wait.
pub(super) fn state_parser() -> impl TypedValueParser<Value = DeliveryState> {
    let states = DeliveryState::ALL.into_iter().filter(|state| *state != DeliveryState::Refused);
    PossibleValuesParser::new(states.map(DeliveryState::as_str)).try_map(|word| {
        DeliveryState::from_word(&word).ok_or_else(|| format!("{word} is no state"))
    })
}

/// Refuses a state that the store of a recipient can never show. Returns the number of recipients, as far as the draft
/// tells it; the draft itself is judged when it is sent.
pub(super) fn check_state(
    global: &GlobalOptions,
    (name, draft): (&str, &[u8]),
    wanted: DeliveryState,
) -> Result<usize, Failure> {
    let mailbox = global.open_mailbox(true)?;
    let routes = mailbox.tree().route_text(name, draft);
    let unfit = routes.iter().find(|(_, states)| !states.contains(&wanted)).cloned();
    mailbox.close();
    if let Some((to, states)) = unfit {
        let words: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
        let to = sanitize_line(&to);
        refuse!(
            "nothing is sent: a message to {to} can never be shown as {wanted}; its store can show \
             {}",
            words.join(", ")
        );
    }
    Ok(routes.len())
}

/// Waits until each recipient of the messages with an idempotency key shows a state or a later one.
///
/// # Errors
/// [`Failure::Refused`] at once if the message was refused for a recipient, [`TIMED_OUT`] when the time is over, also if
/// the state cannot be read then.
pub(super) fn wait_for_state(
    global: &GlobalOptions,
    (key, recipients): (&str, usize),
    wanted: DeliveryState,
    timeout: Duration,
) -> Result<(), Failure> {
    if wanted == DeliveryState::Waiting {
        // An accepted message waits or is further on.
        return Ok(());
    }
    let deadline = Instant::now() + timeout;
    let report = sent_report_path("key=", key);
    let seen = watch_receipts(global, (&report, recipients), deadline, |seen| {
        is_over(seen, recipients, wanted)
    })
    .map_err(|failure| {
        let why = format!("the message is sent, but its state cannot be read: {failure}");
        Failure::Code(TIMED_OUT, why)
    })?;
    if let Some(refused) = seen.iter().find(|one| one.state == DeliveryState::Refused) {
        let why = refused.reason.as_deref().unwrap_or("no reason is known");
        refuse!("{} does not get it: {why}", describe_recipient(refused));
    }
    if is_over(&seen, recipients, wanted) {
        return Ok(());
    }
    let behind = seen.iter().filter(|one| one.state < wanted).map(|one| match &one.reason {
        Some(why) => format!("{}: {} ({why})", describe_recipient(one), one.state),
        None => format!("{}: {}", describe_recipient(one), one.state),
    });
    let behind: Vec<String> = behind.collect();
    let behind = if behind.is_empty() { "it waits".to_owned() } else { behind.join("; ") };
    Err(Failure::Code(
        TIMED_OUT,
        format!("the message is sent, but not {wanted} in time; {behind}"),
    ))
}

/// Reads a report again and again until it is as wanted or the time is over. Returns the last one.
fn watch_receipts(
    global: &GlobalOptions,
    (report, recipients): (&str, usize),
    deadline: Instant,
    is_wanted: impl Fn(&[SentReceipt]) -> bool,
) -> Result<Vec<SentReceipt>, Failure> {
    loop {
        let round = Instant::now() + ROUND;
        let outcome = access::with_tree(global, AccessPurpose::FOLLOW, |tree| {
            loop {
                let seen = read_receipts(tree, report)?;
                let now = Instant::now();
                if is_wanted(&seen)
                    || now >= deadline
                    || now >= round && is_waiting(&seen, recipients)
                {
                    return Ok(seen);
                }
                sleep_until(deadline);
            }
        });
        match outcome {
            Ok(seen) if !is_wanted(&seen) && Instant::now() < deadline => {
                // Without a mount nobody tries again but a command that acts.
                let _ = access::with_tree(global, AccessPurpose::ACT, |_| Ok(()));
            }
            // The process that acts has ended, and another one takes its place.
            Err(_) if Instant::now() < deadline => sleep_until(deadline),
            outcome => return outcome,
        }
    }
}

/// Returns true if nothing has to be waited for any more.
fn is_over(seen: &[SentReceipt], recipients: usize, wanted: DeliveryState) -> bool {
    let is_refused = |one: &SentReceipt| one.state == DeliveryState::Refused;
    seen.iter().any(is_refused)
        || seen.len() >= recipients.max(1) && seen.iter().all(|one| one.state >= wanted)
}

/// Returns true if a message may wait for its store.
fn is_waiting(seen: &[SentReceipt], recipients: usize) -> bool {
    seen.len() < recipients.max(1) || seen.iter().any(|one| one.state == DeliveryState::Waiting)
}

fn sleep_until(deadline: Instant) {
    thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
}

fn describe_recipient(one: &SentReceipt) -> &str {
    one.recipient.as_deref().unwrap_or("the recipient")
}
