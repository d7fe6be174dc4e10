//! The jobs of a link: handed to its carrier, and awaited.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{ExchangeSort, MessageLink, RetrySchedule, crash_point, now};
use crate::link::carrier::{self, CarrierProcess};
use crate::link::job::{CarrierJob, CarrierTask, OutcomeLine};

/// The pause between checks of a carrier that reports to this process.
const WATCHED: Duration = Duration::from_secs(5);
/// The longest time for which outcomes are gathered.
const GATHER_AT_MOST: Duration = Duration::from_millis(20);
/// The pause between checks of a carrier that an earlier process started: at first, and later.
const ASK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

impl MessageLink {
    /// Writes an order of a new job.
    pub(super) fn create_job(&self, task: CarrierTask) -> io::Result<CarrierJob> {
        let no = self.next_job.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{}-{no:06}", now(), std::process::id());
        let job = CarrierJob::new(&self.folder, &name, &self.settings, task);
        crash_point();
        job
    }

    /// Runs a job in the carrier to its end. Starts a carrier if there is none.
    pub(super) fn run_job(
        &self,
        job: CarrierJob,
        called: u64,
        schedule: &mut RetrySchedule,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        crash_point();
        if !self.ensure_carrier()? {
            return Ok(());
        }
        if let Some(carrier) = self.carrier.lock().as_mut() {
            // A carrier that died meanwhile is noticed below.
            let _ = carrier.hand_over(&job);
        }
        crash_point();
        self.wait_for_job(job, called, schedule, changed)
    }

    /// Starts a carrier if there is none, once the last one has ended. Returns false if the link must end instead.
    fn ensure_carrier(&self) -> io::Result<bool> {
        if self.carrier.lock().as_ref().is_some_and(|carrier| !carrier.is_dead()) {
            return Ok(true);
        }
        while carrier::has_carrier(&self.folder)? {
            if self.is_stopped() {
                return Ok(false);
            }
            std::thread::sleep(ASK.0);
        }
        let wakeup = Arc::clone(&self.wakeup);
        let report = move || wakeup.update_counts(|counts| counts.reports += 1);
        let started = CarrierProcess::start(&self.program, &self.folder, report)?;
        *self.carrier.lock() = Some(started);
        Ok(true)
    }

    /// Returns true if a carrier may work on a job: this process's own, or one that an earlier process left.
    fn is_at_work(&self, job: &CarrierJob) -> io::Result<bool> {
        let mut own = self.carrier.lock();
        match own.as_ref() {
            Some(carrier) if !carrier.is_dead() => Ok(carrier.is_working()),
            _ => {
                *own = None;
                Ok(carrier::has_carrier(&self.folder)? || job.has_old_carrier()?)
            }
        }
    }

    /// Waits until a job is over, and applies its outcomes as they come. A carrier that asks for mail must end that as
    /// soon as the number of calls differs from `called`.
    pub(super) fn wait_for_job(
        &self,
        mut job: CarrierJob,
        called: u64,
        schedule: &mut RetrySchedule,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        let (mut pause, mut is_interrupted) = (ASK.0, false);
        let mut lines = Vec::new();
        loop {
            let seen = self.wakeup.current_counts();
            // An outcome that comes after this is read below.
            let is_at_work = self.is_at_work(&job)?;
            let new = job.read_outcomes()?;
            let began = Instant::now();
            self.apply_message_outcomes(&new, schedule, changed)?;
            let spent = if new.is_empty() { Duration::ZERO } else { began.elapsed() };
            lines.extend(new);
            let copy_due = self.board.save_if_due().unwrap_or(WATCHED);
            if !is_at_work {
                break;
            }
            if self.is_stopped() {
                return Ok(());
            }
            let is_fetch = matches!(job.task(), CarrierTask::Fetch { .. });
            let own = self.carrier.lock().is_some();
            if own && !is_interrupted && seen.calls != called && is_fetch {
                self.carrier.lock().as_ref().inspect(|carrier| carrier.interrupt_job());
                is_interrupted = true;
            }
            if own {
                // The outcomes that come meanwhile share the next sync. Others have the disk until then.
                std::thread::sleep((spent * 3).min(GATHER_AT_MOST));
                self.wait_for_call(seen, copy_due.min(WATCHED));
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(ASK.1);
            }
        }
        if lines.is_empty() {
            lines = job.read_old_outcome()?;
            self.apply_message_outcomes(&lines, schedule, changed)?;
        }
        let outcome = lines.iter().find_map(|line| match line {
            OutcomeLine::Job { outcome } => Some(outcome),
            OutcomeLine::Message { .. } | OutcomeLine::End => None,
        });
        match job.task().clone() {
            CarrierTask::Fetch { .. } => {
                if !self.finish_fetch(&job, outcome, schedule)? {
                    self.update_board();
                    changed();
                    return Ok(());
                }
            }
            CarrierTask::Acknowledge { .. } => {
                self.apply_outcome(ExchangeSort::Fetch, outcome, schedule);
            }
            CarrierTask::Deliver { messages } => {
                self.finish_delivery(&messages, &lines, schedule)?;
            }
            CarrierTask::Send(message) => self.finish_delivery(&[message], &lines, schedule)?,
        }
        crash_point();
        job.remove()?;
        crash_point();
        self.update_board();
        changed();
        Ok(())
    }
}
