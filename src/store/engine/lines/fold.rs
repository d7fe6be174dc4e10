//! From lines to what is reported: what each says by itself, on any core, and what they say one after
//! the other.

use super::log::{MAX_LINE, Piece};
use super::table::{LogOf, Source};
use super::{Facts as _, Format, Lines, Reading};
use crate::model::one_line;
use crate::store::{Found, Location, Rejected, Sink, all_from};

/// What a thread reads lines with.
pub(super) struct Buffer<F: Format> {
    pub bytes: Vec<u8>,
    /// Empty: its room is used again and again.
    pub found: Vec<Found<'static>>,
    pub work: F::Work,
}

impl<F: Format> Default for Buffer<F> {
    fn default() -> Self {
        Self { bytes: Vec::new(), found: Vec::new(), work: F::Work::default() }
    }
}

/// The room of a list without what is in it.
#[allow(clippy::unnecessary_filter_map, reason = "it makes another type of nothing")]
pub(super) fn emptied(mut list: Vec<Found<'_>>) -> Vec<Found<'static>> {
    list.clear();
    // Nothing is there that could refer to anything; the list is collected in its own place.
    list.into_iter().filter_map(|_| None).collect()
}

/// A line, and what it says by itself.
pub(super) struct Line<'a, F: Format> {
    /// Its number in the run, counted from 1.
    number: u64,
    at: Location,
    text: &'a str,
    /// How many messages were found in the run up to its end.
    found: usize,
    said: Result<F::Said<'a>, String>,
}

/// Reads lines as far as each speaks for itself: on any core, and without any lock. With their number.
pub(super) fn said<'a, F: Format>(
    store: &Lines<F>,
    work: &mut F::Work,
    n: u32,
    key: &'a str,
    pieces: &'a [Piece<'_>],
    found: &mut Vec<Found<'a>>,
) -> (Vec<Line<'a, F>>, u64) {
    let source = Source::Log(n).number();
    let mut lines = Vec::with_capacity(pieces.len());
    found.reserve(pieces.len().min(1024));
    for (number, piece) in (1u64..).zip(pieces) {
        let (text, skipped) = piece.unmarked();
        if text.trim().is_empty() {
            continue;
        }
        let offset = piece.offset + u64::from(skipped);
        let at = Location { source, offset, len: piece.len.saturating_sub(skipped) };
        let said = F::said(store, work, key, text, at, found);
        lines.push(Line { number, at, text, found: found.len(), said });
    }
    (lines, pieces.len() as u64)
}

/// Takes in what lines say, in their order.
pub(super) struct Fold<'a, F: Format> {
    pub store: &'a Lines<F>,
    pub sink: &'a mut dyn Sink,
    pub n: u32,
    pub log: &'a mut LogOf<F>,
    pub key: &'a str,
    /// Of the log.
    pub path: &'a str,
}

impl<'a, F: Format> Fold<'a, F> {
    /// Reports a run of lines; whether the last of them is a message. `tail`: it has no newline.
    pub fn take_in<'t>(
        &mut self,
        (lines, count): (Vec<Line<'t, F>>, u64),
        found: &mut Vec<Found<'t>>,
        tail: bool,
    ) -> bool
    where
        'a: 't,
    {
        let mut bad = Vec::new();
        let mut is_message = false;
        let before = self.log.tally.lines;
        {
            let mut table = self.store.table.write();
            let log = &mut *self.log;
            let mut reading = Reading { n: self.n, log, shared: &mut table.shared };
            let mut done = 0;
            for Line { number, at, text, found: end, said } in lines {
                reading.log.tally.lines = before + number;
                for found in found.get_mut(done..end).into_iter().flatten() {
                    found.line = before + number;
                    reading.log.tally.last_time = Some(found.time.millis());
                }
                done = end;
                let line = (self.key, text, at);
                let taken =
                    said.and_then(|said| F::line(self.store, &mut reading, line, said, found));
                is_message = taken.is_ok();
                if let Err(why) = taken
                    && !reading.log.half
                {
                    bad.push(rejected::<F>(at, reading.log, why, tail));
                }
            }
        }
        self.log.tally.lines = before + count;
        // What was found in lines by themselves has its path already.
        if found.last().is_some_and(|last| last.path.is_empty()) {
            all_from(self.path, found, &mut []);
        }
        self.report(found, bad);
        is_message
    }

    pub fn too_long(&mut self, offset: u64, len: u64) {
        self.log.tally.lines += 1;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let at = Location { source: Source::Log(self.n).number(), offset, len };
        let reason = format!("the line is longer than {} MiB", MAX_LINE >> 20);
        self.report(&mut Vec::new(), vec![rejected::<F>(at, self.log, reason, false)]);
    }

    fn report(&mut self, found: &mut Vec<Found<'_>>, mut bad: Vec<Rejected>) {
        all_from(self.path, &mut [], &mut bad);
        if !found.is_empty() || !bad.is_empty() {
            self.sink.batch(found, &mut bad);
        }
    }

    /// So many bytes more were read.
    pub fn advance(&mut self, read: u64, (done, total): &mut (&mut u64, u64)) {
        self.log.tally.offset += read;
        **done += read;
        self.sink.progress(**done, (*total).max(**done));
    }
}

fn rejected<F: Format>(at: Location, log: &LogOf<F>, why: String, tail: bool) -> Rejected {
    let why = one_line(&why).into_owned();
    Rejected {
        at,
        line: log.tally.lines,
        reason: if tail {
            format!("the last line of the log is not complete yet ({why})")
        } else {
            why
        },
        time: log.last_time().unwrap_or_else(|| log.facts.begun()),
        incomplete: tail,
        ..Rejected::default()
    }
}
