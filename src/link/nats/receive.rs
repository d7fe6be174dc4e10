//! From the stream into the logs.
//!
//! A line carries where it begins in the log as it was published. A log here that is a beginning of
//! that one, or continues it, needs nothing else: the line is there, or it goes to the end. Where a log is
//! neither (somebody compacted it, or two machines write as one), the ids of records decide.

use std::fs::File;
use std::io;

use async_nats::Message;

use super::carrier::{Carrier, Risk, Writer, is_barred};
use super::direct::{SUBJECTS, Stored};
use super::failure::Failure;
use super::line::{self, Line};
use super::log::{Found, Tail, find};
use super::publish::HEADERS;
use super::server::{Info, Server};
use super::state::Cursor;
use crate::store::fs::Stamp;
use crate::store::samp::alias;

/// No subject takes more room in a question.
const SUBJECT: u64 = 256;

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It stands at its place.
    Straight,
    /// It stands elsewhere.
    Aside,
    /// The log here ends before its place: what is missing must come first.
    Replay,
    /// Which ids were published must be known first.
    Compare,
}

impl Carrier {
    /// Puts a line where it belongs, unless it is there.
    fn take(
        &mut self,
        writer: &str,
        line: &Line<'_>,
        seq: u64,
        replayed: bool,
    ) -> io::Result<Taken> {
        let (name, mut known) = self
            .writers
            .remove_entry(writer)
            .unwrap_or_else(|| (writer.to_owned(), Writer::default()));
        let taken = self.put(writer, &mut known, line, (seq, replayed));
        if matches!(taken, Ok(Taken::Straight | Taken::Aside)) {
            known.passed(line, seq, replayed);
        }
        self.writers.insert(name, known);
        taken
    }

    fn put(
        &mut self,
        writer: &str,
        known: &mut Writer,
        line: &Line<'_>,
        (seq, replayed): (u64, bool),
    ) -> io::Result<Taken> {
        // It stood in the log here, or was known not to go there, before it came.
        let passed = seq <= known.place.seq;
        let file = self.logs.read(writer)?;
        let len = file.as_ref().map(Stamp::of).transpose()?.map_or(0, |stamp| stamp.size);
        let found = match &file {
            Some(file) => find(file, len, line)?,
            None if line.at == 0 => Found::End,
            None => Found::Short,
        };
        let missing = match found {
            Found::Line => return Ok(Taken::Straight),
            Found::Part(there) => line.bytes.get(there as usize..).unwrap_or_default(),
            // The log was cut or rewritten since its lines were published: nobody else wrote them. It is looked at
            // when it is left alone, and what is new in it is published first.
            _ if passed && !replayed && known.place.odd.is_none() => {
                self.todo.insert(writer.to_owned());
                return Ok(Taken::Aside);
            }
            Found::End if follows(known, line, file.as_ref())? => line.bytes,
            // Where ids decide, a log is longer or shorter than what was published.
            Found::Short if !replayed && known.place.odd.is_none() => return Ok(Taken::Replay),
            _ => return self.put_by_id(writer, known, line, (file.as_ref(), passed)),
        };
        let name = alias::log_name(writer);
        let landed = self.logs.append(&name, missing, false)?;
        self.unsynced.insert(name);
        if landed.at == len {
            return Ok(Taken::Straight);
        }
        // Another program was quicker: what is where must be found out.
        known.compare(0, 0);
        Ok(Taken::Aside)
    }

    fn put_by_id(
        &mut self,
        writer: &str,
        known: &mut Writer,
        line: &Line<'_>,
        (file, passed): (Option<&File>, bool),
    ) -> io::Result<Taken> {
        if known.refresh(writer, file)?.has(&line.id) {
            return Ok(Taken::Aside);
        }
        if !known.advance(writer, file)? {
            if known.published.is_none() {
                return Ok(Taken::Compare);
            }
            if passed {
                // What the log here lost comes back behind what is still to be published.
                known.wanting = true;
                self.todo.insert(writer.to_owned());
                return Ok(Taken::Aside);
            }
            return self.put_beside(writer, line);
        }
        let name = alias::log_name(writer);
        let landed = self.logs.append(&name, line.bytes, true)?;
        self.unsynced.insert(name);
        // Not if another program has written in between: that line is still to be looked at.
        if landed.at == known.done() {
            known.place.odd = Some((landed.ino, line.bytes.len() as u64 + landed.at));
            known.changed = true;
        }
        Ok(if landed.at == line.at { Taken::Straight } else { Taken::Aside })
    }

    /// Both this machine and another write as this writer: what the other one wrote goes beside, so that
    /// neither's order is lost.
    fn put_beside(&mut self, writer: &str, line: &Line<'_>) -> io::Result<Taken> {
        let name = self.logs.copy(writer, &self.host)?;
        let file = self.logs.beside(&name)?;
        let stamp = file.as_ref().map(Stamp::of).transpose()?.unwrap_or_default();
        let ids = self.copies.entry(name.clone()).or_default();
        ids.read(writer, file.as_ref(), &stamp)?;
        if !ids.has(&line.id) {
            self.logs.append(&name, line.bytes, true)?;
            self.unsynced.insert(name.clone());
        }
        let text = format!("another machine writes as {writer}, too; its lines are in {name}");
        self.say(&format!("two {writer}"), Some(text));
        Ok(Taken::Aside)
    }

    /// A message of the stream has come.
    ///
    /// # Errors
    /// If it can be neither put in place nor refused.
    pub async fn arrive(
        &mut self,
        server: &mut Server,
        (seq, time): (u64, i64),
        message: &Message,
    ) -> Result<(), Failure> {
        self.arrive_as(server, (seq, time), &message.subject, message, 0).await
    }

    /// The same for one that was read out of order.
    ///
    /// # Errors
    /// As [`Carrier::arrive`].
    pub async fn arrive_stored(
        &mut self,
        server: &mut Server,
        stored: &Stored,
    ) -> Result<(), Failure> {
        let (number, subject) = ((stored.seq, stored.time), stored.subject.as_str());
        self.arrive_as(server, number, subject, &stored.message, stored.answers).await
    }

    async fn arrive_as(
        &mut self,
        server: &mut Server,
        (seq, time): (u64, i64),
        subject: &str,
        message: &Message,
        answers: usize,
    ) -> Result<(), Failure> {
        let headers = message.headers.as_ref();
        match line::accept(&server.space, subject, headers, &message.payload, answers) {
            Ok((writer, line)) => self.settle(server, &writer, &line, seq).await?,
            Err(why) => self.pass_over(server, subject, seq, &why.to_string()),
        }
        (self.state.cursor.seq, self.state.cursor.time) = (seq, time);
        Ok(())
    }

    /// Refuses a message. It counts for what the server expects of the next one.
    fn pass_over(&mut self, server: &Server, subject: &str, seq: u64, why: &str) {
        if let Some(writer) = server.space.writer(subject) {
            let known = self.writer(&writer);
            known.place.seq = known.place.seq.max(seq);
            known.changed = true;
        }
        self.refuse(seq, subject, why);
    }

    async fn settle(
        &mut self,
        server: &mut Server,
        writer: &str,
        line: &Line<'_>,
        seq: u64,
    ) -> Result<(), Failure> {
        let mut replayed = false;
        loop {
            match self.take(writer, line, seq, replayed) {
                Ok(Taken::Straight | Taken::Aside) => return Ok(()),
                Ok(Taken::Replay) => {
                    self.replay(server, writer, seq.saturating_sub(1)).await?;
                    replayed = true;
                }
                Ok(Taken::Compare) => self.ask_published(server, writer).await?,
                Err(error) if is_barred(&error) => {
                    let why = format!("{} {error}", alias::log_name(writer));
                    self.pass_over(server, &server.space.subject(writer), seq, &why);
                    let known = self.writer(writer);
                    known.place.end = known.place.end.max(line.end());
                    return Ok(());
                }
                Err(error) => return Err(Failure::Disk(alias::log_name(writer), error)),
            }
        }
    }

    /// Puts into a log what it lacks of the messages up to this one.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub async fn replay(
        &mut self,
        server: &mut Server,
        writer: &str,
        upto: u64,
    ) -> Result<(), Failure> {
        let (mut from, mut straight, mut first) = (1, true, true);
        loop {
            let (some, more) = self.read_again(server, writer, from).await?;
            for stored in some.iter().take_while(|stored| stored.seq <= upto) {
                let Some(line) = fit(server, stored) else { continue };
                straight &= !first || line.at == 0;
                first = false;
                loop {
                    match self.take(writer, &line, stored.seq, true) {
                        Ok(Taken::Compare) => self.ask_published(server, writer).await?,
                        Ok(taken) => break straight &= taken == Taken::Straight,
                        Err(error) if is_barred(&error) => return Ok(()),
                        Err(error) => return Err(Failure::Disk(alias::log_name(writer), error)),
                    }
                }
            }
            self.flush()?;
            match some.last().map(|stored| stored.seq) {
                Some(last) if more && last < upto => from = last + 1,
                _ => break,
            }
        }
        let known = self.writer(writer);
        if straight && !first {
            (known.place.odd, known.mine, known.published) = (None, None, None);
            known.changed = true;
        }
        Ok(())
    }

    /// Some messages of a writer from a number on, and whether there may be more.
    async fn read_again(
        &mut self,
        server: &mut Server,
        writer: &str,
        from: u64,
    ) -> Result<(Vec<Stored>, bool), Failure> {
        let subject = server.space.subject(writer);
        self.risk = Risk::Writers(vec![writer.to_owned()]);
        let read = server.from(&subject, from, self.broken.contains(writer)).await?;
        self.risk = Risk::None;
        Ok(read)
    }

    /// Finds out which ids of a writer were published.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn ask_published(
        &mut self,
        server: &mut Server,
        writer: &str,
    ) -> Result<(), Failure> {
        let (mut ids, mut from) = (std::collections::HashSet::new(), 1);
        loop {
            let (some, more) = self.read_again(server, writer, from).await?;
            ids.extend(some.iter().filter_map(|stored| Some(fit(server, stored)?.id)));
            match some.last() {
                Some(last) if more => from = last.seq + 1,
                _ => break,
            }
        }
        self.writer(writer).published = Some(ids);
        Ok(())
    }

    /// Finds out, after the connection was made, whether the stream is the one that was read, and whether the
    /// logs still hold what they held.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub async fn verify(&mut self, server: &mut Server, info: &Info) -> Result<(), Failure> {
        let cursor = self.state.cursor.clone();
        let held = info.state;
        let mut other = cursor.created != info.created || cursor.seq > held.last_seq;
        if !other && cursor.time != 0 && cursor.seq >= held.first_seq {
            let there = server.one(cursor.seq).await?;
            other = there.is_some_and(|there| there.time != cursor.time);
        }
        if other {
            // Made anew, or put back to an older copy: what is here is published again where it is missing
            // there.
            self.writers.clear();
            self.count_anew();
            let start = Cursor { created: info.created.clone(), ..Cursor::default() };
            self.state.restart(start).map_err(Failure::disk("the state of the link"))?;
        }
        self.state.cursor.most = server.most;
        if self.state.cursor.seq + 1 < held.first_seq {
            (self.state.cursor.seq, self.state.cursor.time) = (held.first_seq - 1, 0);
        }
        for known in self.writers.values_mut() {
            (known.hold, known.proven, known.seen) = (None, false, None);
        }
        for name in &self.broken {
            if let Some(known) = self.writers.get_mut(name) {
                known.wanting = true;
            }
        }
        let names = self.writers.keys().filter(|name| !self.broken.contains(*name));
        let names: Vec<String> = names.cloned().collect();
        let room = (server.most.saturating_sub(HEADERS) / SUBJECT) as usize;
        let several = if self.singly { 1 } else { room.clamp(1, SUBJECTS) };
        for names in names.chunks(several) {
            let subjects: Vec<String> = names.iter().map(|w| server.space.subject(w)).collect();
            self.risk = Risk::Writers(names.to_vec());
            let lasts = server.lasts(&subjects, self.state.cursor.seq).await?;
            self.risk = Risk::None;
            for name in names {
                // Purged, unless it follows.
                let known = self.writer(name);
                (known.place.seq, known.tail) = (0, None);
            }
            for stored in lasts {
                self.verify_log(server, &stored);
            }
        }
        Ok(())
    }

    /// Compares the last message of a subject with the log.
    fn verify_log(&mut self, server: &Server, stored: &Stored) {
        let Some(writer) = server.space.writer(&stored.subject) else { return };
        let file = self.logs.read(&writer).ok().flatten();
        let known = self.writer(&writer);
        known.place.seq = stored.seq;
        known.changed = true;
        let Some(line) = fit(server, stored) else {
            known.wanting = true;
            return;
        };
        known.place.end = line.end();
        known.tail = Some(Tail::of(&line));
        let stamp = file.as_ref().and_then(|file| Stamp::of(file).ok()).unwrap_or_default();
        let found = file.and_then(|file| find(&file, stamp.size, &line).ok());
        let compared = known.place.odd.is_some_and(|(ino, n)| ino == stamp.ino && n <= stamp.size);
        known.wanting |= found != Some(Found::Line) && !compared;
    }
}

/// The line in a message that was read out of order.
fn fit<'a>(server: &Server, stored: &'a Stored) -> Option<Line<'a>> {
    let Message { headers, payload, .. } = &stored.message;
    let (space, subject, answers) = (&server.space, &stored.subject, stored.answers);
    let (_, line) = line::accept(space, subject, headers.as_ref(), payload, answers).ok()?;
    Some(line)
}

/// Whether a line that belongs at the end of a log follows there on what was published before.
fn follows(known: &Writer, line: &Line<'_>, file: Option<&File>) -> io::Result<bool> {
    if known.place.odd.is_some() {
        return Ok(false);
    }
    Ok(match (known.tail, file) {
        _ if line.at == 0 => true,
        (Some(tail), Some(file)) => tail.end() == line.at && tail.is_in(file)?,
        (None, _) => known.place.end == line.at,
        (Some(_), None) => false,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::link::Board;
    use crate::link::nats::state::{Place, State};

    fn text(n: usize) -> String {
        format!(
            "{{\"id\":\"a-{n}\",\"from\":\"a\",\"to\":\"b\",\"thread\":\"t\",\"ts\":1,\"body\":\"{n}\"}}\n"
        )
    }

    fn texts(range: std::ops::Range<usize>) -> String {
        range.map(text).collect()
    }

    /// A machine on which this stands in the log of `a`, and which published the first six lines of it.
    fn machine(dir: &Path, log: &str) -> Carrier {
        let folder = dir.join("samp");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("log-a.jsonl"), log).unwrap();
        let kept = State::open(&dir.join("state")).unwrap().unwrap();
        let board = Arc::new(Board::new("nats", dir, String::new()));
        let mut carrier = Carrier::new(&folder, kept, board).unwrap();
        let (last, all) = (text(5), texts(0..6));
        let at = (all.len() - last.len()) as u64;
        let tail = Line { at, bytes: last.as_bytes(), id: String::new() };
        let known = carrier.writer("a");
        known.place = Place { seq: 6, end: all.len() as u64, ..Place::default() };
        known.tail = Some(Tail::of(&tail));
        carrier
    }

    fn comes(carrier: &mut Carrier, n: usize, seq: u64, replayed: bool) -> Taken {
        let (at, bytes) = (texts(0..n).len() as u64, text(n));
        let line = Line { at, bytes: bytes.as_bytes(), id: format!("a-{n}") };
        carrier.take("a", &line, seq, replayed).unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir.join("samp")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The log is cut and a line is added to it before the lines that this machine published come back to it.
    #[test]
    fn own_lines_that_come_after_a_cut_are_not_another_machines() {
        for cut in [texts(0..2) + &text(6), texts(0..2), texts(3..6) + &text(6), String::new()] {
            let dir = tempfile::tempdir().unwrap();
            let mut carrier = machine(dir.path(), &cut);
            for n in 2..6 {
                assert_eq!(comes(&mut carrier, n, n as u64 + 1, false), Taken::Aside);
            }
            assert_eq!(files(dir.path()), ["log-a.jsonl"]);
            let log = dir.path().join("samp/log-a.jsonl");
            assert_eq!(
                std::fs::read_to_string(log).unwrap(),
                cut,
                "nothing before it is left alone"
            );
            assert!(carrier.todo.contains("a"));
        }
    }

    /// The same when they are put back, and a line is added meanwhile.
    #[test]
    fn what_is_put_back_waits_for_what_is_to_be_published() {
        let dir = tempfile::tempdir().unwrap();
        let mut carrier = machine(dir.path(), &(texts(0..2) + &text(6)));
        let known = carrier.writer("a");
        known.compare(0, 0);
        known.published = Some((0..6).map(|n| format!("a-{n}")).collect::<HashSet<_>>());
        assert_eq!(comes(&mut carrier, 2, 3, true), Taken::Aside);
        assert_eq!(files(dir.path()), ["log-a.jsonl"]);
        assert!(carrier.writer("a").wanting && carrier.todo.contains("a"));
        // Once it is published, what is missing comes to the end.
        carrier.writer("a").published.as_mut().unwrap().insert("a-6".into());
        assert_eq!(comes(&mut carrier, 2, 3, true), Taken::Aside);
        let log = std::fs::read_to_string(dir.path().join("samp/log-a.jsonl")).unwrap();
        assert_eq!(log, texts(0..2) + &text(6) + &text(2));
    }

    /// What another machine wrote in the same name is none of this.
    #[test]
    fn what_another_machine_wrote_goes_beside() {
        let dir = tempfile::tempdir().unwrap();
        let mut carrier = machine(dir.path(), &(texts(0..6) + &text(7)));
        assert_eq!(comes(&mut carrier, 6, 7, false), Taken::Compare);
        let ids = (0..7).map(|n| format!("a-{n}")).collect::<HashSet<_>>();
        carrier.writer("a").published = Some(ids);
        assert_eq!(comes(&mut carrier, 6, 7, false), Taken::Aside);
        assert!(files(dir.path()).iter().any(|name| name.contains("sync-conflict")));
    }
}
