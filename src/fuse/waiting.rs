//! Reads that wait for mail: `.wait`, `.next` and `.watch`. Their replies are parked here, and one thread
//! answers them all: when mail comes, when their time is over, and when their process was signalled,
//! which fuser does not tell us. While nobody waits it sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fuser::{Errno, ReplyData};

use super::guard::run_guarded;
use crate::view::reader::has_pending_signal;
use crate::view::{OpenFile, Tree, WaitTarget};

/// How often the processes of waiting readers are looked at.
const LOOK: Duration = Duration::from_millis(400);

/// A read that waits.
pub(super) struct ParkedRead {
    pub pid: u32,
    pub file: Arc<OpenFile>,
    pub target: WaitTarget,
    pub offset: u64,
    pub size: usize,
    pub reply: ReplyData,
}

/// Queue to the thread. Dropping it ends the thread.
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

    /// Answers a read as soon as there is something to say.
    pub fn park_read(&self, read: ParkedRead) {
        let until = (read.target != WaitTarget::Arrivals)
            .then(|| Instant::now() + self.tree.settings().wait_timeout);
        match self.queue.send((read, until)) {
            Ok(()) => self.tree.index().wake_all(),
            Err(e) => e.into_inner().0.reply.error(Errno::EIO),
        }
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
        // In this order: what comes from here on ends the wait below at once.
        let seen = tree.index().change_count();
        waiting.extend(queue.try_iter());
        let look = looked.elapsed() >= LOOK;
        if look {
            looked = Instant::now();
        }
        let news = tried.replace(seen) != Some(seen) || waiting.len() > known;
        waiting = answer_ready(tree, waiting, news, look);
        if !waiting.is_empty() {
            let next = waiting.iter().filter_map(|(_, until)| *until).min();
            let look_again = looked + LOOK;
            tree.index()
                .wait_for_change(seen, next.map_or(look_again, |next| next.min(look_again)));
        }
    }
}

/// Answers those to whom there is something to say; gives the others back.
fn answer_ready(
    tree: &Tree,
    waiting: Vec<(ParkedRead, Option<Instant>)>,
    news: bool,
    look: bool,
) -> Vec<(ParkedRead, Option<Instant>)> {
    let mut left = Vec::new();
    // There is nothing for anybody else who waits for the same.
    let mut dry = Vec::new();
    for (read, until) in waiting {
        if look && has_pending_signal(read.pid) {
            read.reply.error(Errno::EINTR);
            continue;
        }
        let is_dry = !news || dry.contains(&read.target);
        let found = if is_dry {
            Ok(false)
        } else {
            run_guarded("wait", || tree.try_fill_answer(&read.file))
        };
        match found {
            Ok(true) => reply_with_data(tree, read),
            Ok(false) if until.is_some_and(|until| Instant::now() >= until) => {
                tree.answer_empty(&read.file);
                reply_with_data(tree, read);
            }
            Ok(false) => {
                if !is_dry && read.target != WaitTarget::Arrivals {
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
    // Who was just killed has read nothing: what was found is for the next one.
    if has_pending_signal(read.pid) {
        return read.reply.error(Errno::EINTR);
    }
    match run_guarded("wait", || tree.read(&read.file, read.offset, read.size)) {
        Ok(bytes) => read.reply.data(&bytes),
        Err(e) => read.reply.error(e),
    }
}
