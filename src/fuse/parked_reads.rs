//! Reads that wait for mail: `.wait`, `.next`, `.answer` and `.watch`. Their replies are parked here, and one thread
//! answers them all: when mail comes, when their time is over, and when their process got a signal, which fuser
//! does not report. It sleeps while no read waits. `.watch` has no end, so a reader of it whose signals cannot be seen
//! gets EINTR each second: one that got a signal ends then, and any other reads on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fuser::{Errno, ReplyData};

use super::guard::run_guarded;
use crate::view::reader::{has_hidden_signals, has_pending_signal};
use crate::view::{OpenFile, Tree, WaitTarget, try_fill_answer};

/// Interval at which the processes of waiting readers are checked.
const LOOK: Duration = Duration::from_millis(400);
/// Longest time for which a read without end waits if the signals of its process cannot be seen.
const UNSEEN: Duration = Duration::from_secs(1);

/// A read that waits.
pub(super) struct ParkedRead {
    pub pid: u32,
    pub file: Arc<OpenFile>,
    pub target: WaitTarget,
    pub offset: u64,
    pub size: usize,
    pub reply: ReplyData,
}

/// The queue to the thread. Dropping it ends the thread.
pub(super) struct ParkedReadQueue {
    tree: Arc<Tree>,
    queue: Sender<(ParkedRead, Option<Instant>)>,
}

impl ParkedReadQueue {
    /// Starts the thread.
    pub fn start(tree: &Arc<Tree>) -> std::io::Result<Self> {
        let (queue, parked) = unbounded();
        let of = Arc::clone(tree);
        let thread = std::thread::Builder::new().name("msgfs-wait".into());
        thread.spawn(move || run(&of, &parked))?;
        Ok(Self { tree: Arc::clone(tree), queue })
    }

    /// Parks a read, which is answered as soon as it has data.
    pub fn park_read(&self, read: ParkedRead) {
        let longest = longest_wait(read.target, read.pid, self.tree.settings().wait_timeout);
        let until = longest.map(|longest| Instant::now() + longest);
        match self.queue.send((read, until)) {
            Ok(()) => self.tree.index().change_signal().notify(),
            Err(e) => e.into_inner().0.reply.error(Errno::EIO),
        }
    }
}

/// Returns the time for which a read may wait; `None` if it has no end.
fn longest_wait(target: WaitTarget, pid: u32, timeout: Duration) -> Option<Duration> {
    match target {
        WaitTarget::Arrivals => has_hidden_signals(pid).then_some(UNSEEN),
        _ => Some(timeout),
    }
}

fn run(tree: &Tree, queue: &Receiver<(ParkedRead, Option<Instant>)>) {
    let mut waiting: Vec<(ParkedRead, Option<Instant>)> = Vec::new();
    let mut looked = Instant::now();
    let mut tried = None;
    loop {
        let known = waiting.len();
        if waiting.is_empty() {
            let Ok(first) = queue.recv() else { return };
            waiting.push(first);
        }
        // The count is read first, so a later change ends the wait below at once.
        let seen = tree.index().change_signal().count();
        waiting.extend(queue.try_iter());
        let look = looked.elapsed() >= LOOK;
        if look {
            looked = Instant::now();
        }
        let news = tried.replace(seen) != Some(seen) || waiting.len() > known;
        waiting = answer_ready(tree, waiting, news, look);
        if !waiting.is_empty() {
            let ends =
                waiting.iter().filter_map(|(read, until)| read.file.gathering_end().or(*until));
            let next = ends.min();
            let look_again = looked + LOOK;
            tree.index()
                .change_signal()
                .wait(seen, next.map_or(look_again, |next| next.min(look_again)));
        }
    }
}

/// Answers the reads that have data, and returns the others.
fn answer_ready(
    tree: &Tree,
    waiting: Vec<(ParkedRead, Option<Instant>)>,
    news: bool,
    look: bool,
) -> Vec<(ParkedRead, Option<Instant>)> {
    let mut left = Vec::new();
    // Targets without data for any read.
    let mut dry = Vec::new();
    for (read, until) in waiting {
        if look && has_pending_signal(read.pid) {
            read.reply.error(Errno::EINTR);
            continue;
        }
        let gathered = read.file.gathering_end().is_some_and(|end| Instant::now() >= end);
        let is_dry = !(news || gathered) || dry.contains(&read.target);
        let found = if is_dry {
            Ok(false)
        } else {
            run_guarded("wait", || try_fill_answer(tree, &read.file))
        };
        match found {
            Ok(true) => reply_with_data(tree, read),
            Ok(false) if read.file.gathering_end().is_some() => left.push((read, until)),
            Ok(false) if until.is_some_and(|until| Instant::now() >= until) => {
                if read.target == WaitTarget::Arrivals {
                    read.reply.error(Errno::EINTR);
                    continue;
                }
                read.file.answer_empty();
                reply_with_data(tree, read);
            }
            Ok(false) => {
                if !is_dry && !read.target.depends_on_reader() {
                    dry.push(read.target);
                }
                left.push((read, until));
            }
            Err(e) => read.reply.error(e),
        }
    }
    left
}

fn reply_with_data(tree: &Tree, read: ParkedRead) {
    // A process that was just killed has read nothing, so the next reader gets the data.
    if has_pending_signal(read.pid) {
        return read.reply.error(Errno::EINTR);
    }
    match run_guarded("wait", || tree.read(&read.file, read.offset, read.size, read.pid)) {
        Ok(bytes) => read.reply.data(&bytes),
        Err(e) => read.reply.error(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_without_end_waits_briefly_for_a_process_whose_signals_are_hidden() {
        let (me, minute) = (std::process::id(), Duration::from_secs(60));
        assert_eq!(longest_wait(WaitTarget::Arrivals, me, minute), None);
        assert_eq!(longest_wait(WaitTarget::Arrivals, 0, minute), Some(UNSEEN));
        for pid in [0, me] {
            assert_eq!(longest_wait(WaitTarget::Unread, pid, minute), Some(minute));
        }
    }
}
