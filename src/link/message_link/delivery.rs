//! The delivery of waiting messages: jobs of many, and what follows from their outcomes.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{ExchangeSort, GIVEN_UP, KILLED, MessageLink, RetrySchedule, crash_point, now};
use crate::link::engine::ExchangeOutcome;
use crate::link::job::{CarrierTask, MessageOrder, OutcomeLine};
use crate::link::journal::{
    DeliveryStage, EntryChange, Journal, JournalEntry, SET_ASIDE, remove_wire_files,
};
use crate::store::fs;

/// The number of messages in the first job of a carrier, and in any. A job gets twice as many as the one before it
/// delivered.
const JOB_MESSAGES: (usize, usize) = (8, 128);
/// The time for which a small job behind another one waits for more messages.
const GATHER: Duration = Duration::from_millis(5);
/// The shortest and the longest pause of a message whose bytes cannot be read here, in milliseconds.
const UNREADABLE: (i64, i64) = (5000, 15 * 60_000);

impl MessageLink {
    /// Records the accepted messages, and returns the messages of the next job.
    pub(super) fn list_due_messages(&self, schedule: &RetrySchedule) -> io::Result<Vec<u64>> {
        let at_once = (schedule.delivered * 2).clamp(JOB_MESSAGES.0, JOB_MESSAGES.1);
        let list = || {
            self.record_accepted(&mut self.lost_acceptance.lock())?;
            io::Result::Ok(self.journal.lock().list_due_entries(now(), at_once))
        };
        let due = list()?;
        if schedule.delivered > 0 && !due.is_empty() && due.len() < JOB_MESSAGES.0 {
            // Others follow in a moment, and each job costs several syncs.
            std::thread::sleep(GATHER);
            return list();
        }
        Ok(due)
    }

    /// Has a carrier deliver some messages.
    pub(super) fn deliver_messages(
        &self,
        mut due: Vec<u64>,
        called: u64,
        schedule: &mut RetrySchedule,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        let mut journal = self.journal.lock();
        let mut lost = Vec::new();
        due.retain(|no| {
            // A person may have given up some since they were listed.
            let open = journal.entry(*no).filter(|entry| entry.is_open());
            let Some(entry) = open else { return false };
            let change = describe_lost_bytes(entry, &journal.wire_path(*no));
            let is_readable = change.is_none();
            lost.extend(change.map(|change| (*no, change)));
            is_readable
        });
        remove_wire_files(&journal.record_changes(lost, now())?);
        if due.is_empty() {
            drop(journal);
            self.update_board();
            changed();
            return Ok(());
        }
        let message = |no: &u64| MessageOrder { no: *no, wire: journal.wire_path(*no) };
        let messages = due.iter().map(message).collect();
        // The job comes first: it ends each try that the journal records.
        let job = self.create_job(CarrierTask::Deliver { messages })?;
        journal.record_tries(due)?;
        drop(journal);
        schedule.delivered = 0;
        self.run_job(job, called, schedule, changed)
    }

    /// Records the outcomes of messages, with one sync.
    pub(super) fn apply_message_outcomes(
        &self,
        lines: &[OutcomeLine],
        schedule: &mut RetrySchedule,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        let outcomes = lines.iter().filter_map(|line| match line {
            OutcomeLine::Message { no, outcome } => Some((*no, outcome)),
            OutcomeLine::Job { .. } | OutcomeLine::End => None,
        });
        let outcomes: Vec<_> = outcomes.collect();
        if outcomes.is_empty() {
            return Ok(());
        }
        let over = {
            let mut journal = self.journal.lock();
            let change = |(no, outcome): &(u64, &ExchangeOutcome)| {
                let entry = find_tried_entry(&journal, *no)?;
                let is_given_up = journal.is_given_up(*no) && is_not_taken(outcome);
                Some((*no, if is_given_up { give_up() } else { change_after(entry, outcome) }))
            };
            let changes = outcomes.iter().filter_map(change).collect();
            journal.record_changes(changes, now())?
        };
        crash_point();
        remove_wire_files(&over);
        schedule.delivered += outcomes.len();
        for (_, outcome) in outcomes {
            self.apply_outcome(ExchangeSort::Delivery, Some(outcome), schedule);
        }
        // The counts follow at the end of the job, right before the store is told of it.
        changed();
        Ok(())
    }

    /// Records what follows for the messages of a job that have no outcome. If the job has no end, its carrier died,
    /// and the engine may have the first of them.
    pub(super) fn finish_delivery(
        &self,
        messages: &[MessageOrder],
        lines: &[OutcomeLine],
        schedule: &mut RetrySchedule,
    ) -> io::Result<()> {
        let is_killed = !lines.contains(&OutcomeLine::End);
        let changes: Vec<(u64, EntryChange)> = {
            let journal = self.journal.lock();
            let open =
                messages.iter().filter_map(|l| Some((l.no, find_tried_entry(&journal, l.no)?)));
            let change = |(n, (no, entry)): (usize, (u64, &JournalEntry))| {
                let change = if is_killed && n == 0 {
                    delay_entry(entry, (KILLED, true), None, |_| now())
                } else if journal.is_given_up(no) {
                    give_up()
                } else {
                    EntryChange::Untried
                };
                (no, change)
            };
            open.enumerate().map(change).collect()
        };
        if is_killed && !changes.is_empty() {
            self.apply_outcome(ExchangeSort::Delivery, None, schedule);
        }
        let over = self.journal.lock().record_changes(changes, now())?;
        remove_wire_files(&over);
        Ok(())
    }
}

/// Returns an entry that a carrier has or had, and whose outcome is not recorded.
fn find_tried_entry(journal: &Journal, no: u64) -> Option<&JournalEntry> {
    journal.entry(no).filter(|entry| entry.stage == DeliveryStage::Trying)
}

/// Returns the change of an entry whose bytes cannot be read here, which says nothing about the engine; `None` if they
/// can be read.
fn describe_lost_bytes(entry: &JournalEntry, wire: &Path) -> Option<EntryChange> {
    match fs::open_regular(wire) {
        Ok(_) => None,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Some(EntryChange::GivenUp {
            why: "its bytes are gone from the folder of the link; send it again".to_owned(),
            is_unanswered: false,
        }),
        Err(e) => {
            // The pause grows with the age, since no try counts.
            let age = now().saturating_sub(entry.since).clamp(UNREADABLE.0, UNREADABLE.1);
            let why = format!("its bytes cannot be read here: {e}");
            let until = now().saturating_add(age);
            Some(EntryChange::Later { why, until, is_unanswered: false })
        }
    }
}

/// Returns the change of an entry that a person gave up.
pub(in crate::link) fn give_up() -> EntryChange {
    EntryChange::GivenUp { why: GIVEN_UP.to_owned(), is_unanswered: false }
}

/// Returns true if the engine does not have the message after this outcome of a try, and may take it later.
fn is_not_taken(outcome: &ExchangeOutcome) -> bool {
    matches!(outcome, ExchangeOutcome::Later { .. } | ExchangeOutcome::Away { .. })
}

/// Returns the change of an entry after this outcome of a try.
fn change_after(entry: &JournalEntry, outcome: &ExchangeOutcome) -> EntryChange {
    match outcome {
        ExchangeOutcome::Done => EntryChange::Taken { given: None },
        ExchangeOutcome::Named { id } => EntryChange::Taken { given: Some(id.clone()) },
        ExchangeOutcome::Refused { why } => EntryChange::Refused { why: why.clone() },
        ExchangeOutcome::Later { why, after } => {
            delay_entry(entry, (why, false), *after, |until| until)
        }
        // Only the link backs off, and the message goes as soon as the link does. If it fails again, the message itself
        // may be the cause.
        ExchangeOutcome::Away { why, .. } | ExchangeOutcome::Unknown { why } => {
            let is_set_aside = entry.tries >= SET_ASIDE;
            let is_unanswered = matches!(outcome, ExchangeOutcome::Unknown { .. });
            let choose = |until| if is_set_aside { until } else { now() };
            delay_entry(entry, (why, is_unanswered), None, choose)
        }
    }
}

/// Returns the change of an entry that goes later. Its try failed for a reason, and perhaps has no answer. `choose`
/// gets the time that its own backoff gives.
fn delay_entry(
    entry: &JournalEntry,
    (why, is_unanswered): (&str, bool),
    after: Option<u64>,
    choose: impl FnOnce(i64) -> i64,
) -> EntryChange {
    match entry.next_try_time(now(), after.map(Duration::from_secs)) {
        Some(until) => {
            EntryChange::Later { why: why.to_owned(), until: choose(until), is_unanswered }
        }
        None => EntryChange::GivenUp { why: format!("not taken for a week: {why}"), is_unanswered },
    }
}
