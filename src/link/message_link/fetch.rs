//! A fetch, and its end: its mail is filed, and then acknowledged.

use std::io;

use super::{DISK_WAIT, ExchangeSort, MessageLink, RetrySchedule, crash_point, now};
use crate::link::board::LinkState;
use crate::link::disk_space;
use crate::link::engine::ExchangeOutcome;
use crate::link::job::{CarrierJob, CarrierTask};
use crate::model::sanitize_line;

/// The number of new messages in a fetch after which the engine is asked again at once, since it may have more.
const MANY: usize = 100;
/// The number of messages that are acknowledged at once.
const ACKNOWLEDGED_AT_ONCE: usize = 100;

impl MessageLink {
    /// Has a carrier fetch mail.
    pub(super) fn fetch_mail(
        &self,
        called: u64,
        schedule: &mut RetrySchedule,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        disk_space::check_free_space(&self.folder)?;
        let known = {
            let journal = self.journal.lock();
            let known = journal.seen_ids().filter(|id| self.engine.is_needed_by_fetch(id));
            known.map(str::to_owned).collect()
        };
        // The carrier must not stay before the first answer, so that people learn of each try, nor after a delivery, of
        // which the store must be told.
        let may_stay = matches!(self.board.health().state, LinkState::Connected { .. })
            && std::mem::take(&mut schedule.delivered) == 0;
        let every =
            (may_stay && self.engine.can_keep_polling()).then(|| self.engine.poll_interval());
        let every = every.map(|every| every.as_millis() as u64);
        let job = self.create_job(CarrierTask::Fetch { known, every })?;
        schedule.next_fetch = i64::MAX;
        let fetched = self.run_job(job, called, schedule, changed);
        // A fetch with much mail leaves another time than this one.
        let next = now() + self.engine.poll_interval().as_millis() as i64;
        schedule.next_fetch = schedule.next_fetch.min(next);
        fetched
    }

    /// Files the messages of a fetch, and then acknowledges them. Returns false if some could not be saved, and the job
    /// must stay.
    pub(super) fn finish_fetch(
        &self,
        job: &CarrierJob,
        outcome: Option<&ExchangeOutcome>,
        schedule: &mut RetrySchedule,
    ) -> io::Result<bool> {
        let mut seen = Vec::new();
        let mut acknowledged = Vec::new();
        let (mut failed, mut new) = (None, 0);
        for item in self.engine.unpack_items(&job.raw_folder()) {
            let filed = item.and_then(|item| {
                let is_seen = item.is_only_known() || self.journal.lock().is_seen(&item.id);
                if !is_seen {
                    (self.filer)(&item.arrived)?;
                    new += 1;
                }
                Ok(item)
            });
            match filed {
                Ok(item) => {
                    crash_point();
                    seen.push(item.id);
                    acknowledged.extend(item.ack_id);
                }
                Err(e) => failed = Some(e),
            }
        }
        self.journal.lock().record_seen(&seen, now())?;
        crash_point();
        for ids in acknowledged.chunks(ACKNOWLEDGED_AT_ONCE) {
            let said = self.create_job(CarrierTask::Acknowledge { ids: ids.to_vec() })?;
            self.run_job(said, self.wakeup.current_counts().calls, schedule, &|| {})?;
        }
        if let Some(error) = failed {
            self.hold_fetch(job, &error, schedule);
            return Ok(false);
        }
        schedule.held.remove(job.name());
        let is_whole =
            matches!(outcome, Some(ExchangeOutcome::Done | ExchangeOutcome::Away { .. }));
        if !is_whole && self.engine.is_fetch_destructive() && job.has_asked() {
            self.journal.lock().record_cut(now())?;
        }
        let withheld = outcome.and_then(|outcome| match outcome {
            ExchangeOutcome::Later { why, .. } => Some(format!("{why}; it is asked for again")),
            _ => None,
        });
        if (is_whole || withheld.is_some()) && new >= MANY {
            schedule.next_fetch = 0;
        }
        *self.withheld.lock() = withheld;
        self.apply_outcome(ExchangeSort::Fetch, outcome, schedule);
        Ok(true)
    }

    /// Keeps a fetch with mail that could not be saved, and tells people. It is tried again later.
    fn hold_fetch(&self, job: &CarrierJob, error: &io::Error, schedule: &mut RetrySchedule) {
        let why = format!("the mail of this link cannot be saved here: {error}");
        tracing::warn!(link = self.name, why = %sanitize_line(&why), "the link keeps the mail that \
            it fetched, and tries again");
        self.board.report_failure(&why);
        *self.withheld.lock() = Some(format!("{why}; it is kept, and no other is fetched before"));
        let until = now().saturating_add(DISK_WAIT.as_millis() as i64);
        schedule.held.insert(job.name().to_owned(), until);
    }
}
