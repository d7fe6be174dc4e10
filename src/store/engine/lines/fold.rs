//! The fold of lines into reports: it parses each line by itself, on any core, and accepts their contents one after
//! the other.

use super::log::{LogLine, MAX_LINE};
use super::table::{LogRowOf, LogSource};
use super::{LineFormat, LineStore, LogFacts as _, LogReading};
use crate::model::sanitize_line;
use crate::store::{FoundMessage, Location, Rejection, ScanSink, set_source_path};

/// The buffers with which a thread reads lines.
pub(super) struct LineBuffer<F: LineFormat> {
    pub bytes: Vec<u8>,
    /// An empty list whose memory is used again and again.
    pub found: Vec<FoundMessage<'static>>,
    pub work: F::ParseBuffer,
}

impl<F: LineFormat> Default for LineBuffer<F> {
    fn default() -> Self {
        Self { bytes: Vec::new(), found: Vec::new(), work: F::ParseBuffer::default() }
    }
}

/// Returns the memory of a list without its messages.
#[allow(clippy::unnecessary_filter_map, reason = "it makes another type of nothing")]
pub(super) fn recycle_list(mut list: Vec<FoundMessage<'_>>) -> Vec<FoundMessage<'static>> {
    list.clear();
    // The list is empty, so nothing in it refers to other memory. It is collected in place.
    list.into_iter().filter_map(|_| None).collect()
}

/// A line, and the content that was parsed from this line alone.
pub(super) struct ParsedLine<'a, F: LineFormat> {
    /// Its number in the run, counted from 1.
    number: u64,
    at: Location,
    text: &'a str,
    /// The number of messages in the run up to its end.
    found: usize,
    content: Result<F::LineContent<'a>, String>,
}

/// Parses each line alone, on any core and without any lock. Returns the parsed lines and the number of all lines.
pub(super) fn parse_lines<'a, F: LineFormat>(
    store: &LineStore<F>,
    work: &mut F::ParseBuffer,
    n: u32,
    key: &'a str,
    pieces: &'a [LogLine<'_>],
    found: &mut Vec<FoundMessage<'a>>,
) -> (Vec<ParsedLine<'a, F>>, u64) {
    let source = LogSource::Log(n).number();
    let mut lines = Vec::with_capacity(pieces.len());
    found.reserve(pieces.len().min(1024));
    for (number, piece) in (1u64..).zip(pieces) {
        let (text, skipped) = piece.strip_bom();
        if text.trim().is_empty() {
            continue;
        }
        let offset = piece.offset + u64::from(skipped);
        let at = Location { source, offset, len: piece.len.saturating_sub(skipped) };
        let said = F::parse_line(store, work, key, text, at, found);
        lines.push(ParsedLine { number, at, text, found: found.len(), content: said });
    }
    (lines, pieces.len() as u64)
}

/// The fold that accepts the contents of lines in their order.
pub(super) struct LineFold<'a, F: LineFormat> {
    pub store: &'a LineStore<F>,
    pub sink: &'a mut dyn ScanSink,
    pub n: u32,
    pub log: &'a mut LogRowOf<F>,
    pub key: &'a str,
    /// The path of the log.
    pub path: &'a str,
}

impl<'a, F: LineFormat> LineFold<'a, F> {
    /// Reports a run of lines. Returns true if the last of them is a message. `tail` means that it has no newline.
    pub fn accept_lines<'t>(
        &mut self,
        (lines, count): (Vec<ParsedLine<'t, F>>, u64),
        found: &mut Vec<FoundMessage<'t>>,
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
            let mut reading = LogReading { n: self.n, log, shared: &mut table.shared };
            let mut done = 0;
            let is_copy = F::is_conflict_copy(reading.log);
            for ParsedLine { number, at, text, found: end, content: said } in lines {
                reading.log.tally.lines = before + number;
                for found in found.get_mut(done..end).into_iter().flatten() {
                    found.line = before + number;
                    found.is_in_copy = is_copy;
                    found.is_my_name_unproven = is_copy && found.from_me;
                    reading.log.tally.last_time = Some(found.time.millis());
                }
                done = end;
                let line = (self.key, text, at);
                let taken = said
                    .and_then(|said| F::accept_line(self.store, &mut reading, line, said, found));
                is_message = taken.is_ok();
                if let Err(why) = taken
                    && !reading.log.half
                    && !(tail && F::SHAPE.ignores_torn_tail())
                {
                    bad.push(new_rejection::<F>(at, reading.log, why, tail));
                }
            }
        }
        self.log.tally.lines = before + count;
        // Messages that were found by parsing have their path already.
        if found.last().is_some_and(|last| last.path.is_empty()) {
            set_source_path(self.path, found, &mut []);
        }
        self.report_batch(found, bad);
        is_message
    }

    /// Counts a line that is too long, and rejects it.
    pub fn reject_too_long(&mut self, offset: u64, len: u64) {
        self.log.tally.lines += 1;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let at = Location { source: LogSource::Log(self.n).number(), offset, len };
        let reason = format!("the line is longer than {} MiB", MAX_LINE >> 20);
        self.report_batch(&mut Vec::new(), vec![new_rejection::<F>(at, self.log, reason, false)]);
    }

    fn report_batch(&mut self, found: &mut Vec<FoundMessage<'_>>, mut bad: Vec<Rejection>) {
        set_source_path(self.path, &mut [], &mut bad);
        if !found.is_empty() || !bad.is_empty() {
            self.sink.report_batch(found, &mut bad);
        }
    }

    /// Advances the cursor by this many bytes, and reports progress.
    pub fn advance_cursor(&mut self, read: u64, (done, total): &mut (&mut u64, u64)) {
        self.log.tally.offset += read;
        **done += read;
        self.sink.report_progress(**done, (*total).max(**done));
    }
}

fn new_rejection<F: LineFormat>(
    at: Location,
    log: &LogRowOf<F>,
    why: String,
    tail: bool,
) -> Rejection {
    let why = sanitize_line(&why).into_owned();
    Rejection {
        at,
        line: log.tally.lines,
        reason: if tail {
            format!("the last line of the log is not complete yet ({why})")
        } else {
            why
        },
        time: log.last_time().unwrap_or_else(|| log.facts.begin_time()),
        incomplete: tail,
        ..Rejection::default()
    }
}
