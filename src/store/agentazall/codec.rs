//! The table on disk: a plain sequence of fields, little-endian, texts with their length before them.

use super::group::Held;
use super::letter::{Form, Head};
use super::table::{Row, State};
use crate::model::Timestamp;
use crate::store::fs::Stamp;

/// First bytes; another layout gets another number.
const MAGIC: &[u8; 8] = b"agzall\0\x02";

/// Everything that is kept with the index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// What the rows depend on besides the files: times are local.
    pub zone: String,
    /// The files.
    pub rows: Vec<Row>,
    /// Who has got which file of `outbox/`.
    pub delivered: Vec<(String, Vec<String>)>,
}

/// The bytes of a table.
pub(super) fn encode(saved: &Saved) -> Vec<u8> {
    let mut out = Out(Vec::with_capacity(saved.rows.len() * 300 + 64));
    out.0.extend_from_slice(MAGIC);
    out.text(&saved.zone);
    out.count(saved.rows.len());
    for row in &saved.rows {
        put_row(&mut out, row);
    }
    out.count(saved.delivered.len());
    for (path, to) in &saved.delivered {
        out.text(path);
        out.count(to.len());
        for to in to {
            out.text(to);
        }
    }
    out.0
}

/// The table of these bytes; `None` if they are not exactly what [`encode`] made.
pub(super) fn decode(bytes: &[u8]) -> Option<Saved> {
    let mut of = In(bytes.strip_prefix(MAGIC)?);
    let zone = of.text()?;
    let rows = of.list(get_row)?;
    let delivered = of.list(|of| Some((of.text()?, of.list(In::text)?)))?;
    of.0.is_empty().then_some(Saved { zone, rows, delivered })
}

fn put_row(out: &mut Out, row: &Row) {
    let Stamp { dev, ino, size, mtime, ctime } = row.stamp;
    out.text(&row.path);
    for n in [dev, ino, size, row.parts] {
        out.put(&n.to_le_bytes());
    }
    for n in [mtime, ctime] {
        out.put(&n.to_le_bytes());
    }
    match row.held {
        Held::No => out.put(&[0]),
        Held::Plain => out.put(&[1]),
        Held::Twin(hash) => {
            out.put(&[2]);
            out.put(&hash);
        }
    }
    match &row.state {
        State::Gone => out.put(&[0]),
        State::Letter(head) => {
            out.put(&[1]);
            put_head(out, head);
        }
        State::Refused(head, reason) => {
            out.put(&[2]);
            put_head(out, head);
            out.text(reason);
        }
        State::Problem { reason, incomplete } => {
            out.put(&[3, u8::from(*incomplete)]);
            out.text(reason);
        }
    }
}

fn get_row(of: &mut In<'_>) -> Option<Row> {
    let path = of.text()?.into_boxed_str();
    let (dev, ino, size, parts) = (of.u64()?, of.u64()?, of.u64()?, of.u64()?);
    let (mtime, ctime) = (i128::from_le_bytes(of.take()?), i128::from_le_bytes(of.take()?));
    let held = match of.byte()? {
        0 => Held::No,
        1 => Held::Plain,
        2 => Held::Twin(of.take()?),
        _ => return None,
    };
    let state = match of.byte()? {
        0 => State::Gone,
        1 => State::Letter(Box::new(get_head(of)?)),
        2 => State::Refused(Box::new(get_head(of)?), of.text()?.into()),
        3 => State::Problem { incomplete: of.byte()? == 1, reason: of.text()?.into() },
        _ => return None,
    };
    Some(Row {
        path,
        stamp: Stamp { dev, ino, size, mtime, ctime },
        parts,
        state,
        held,
        message: 0,
    })
}

fn put_head(out: &mut Out, head: &Head) {
    out.text(&head.from);
    out.text(&head.id);
    out.put(&head.time.millis().to_le_bytes());
    let form = match head.form {
        Form::Local => 0,
        Form::Relay => 1,
        Form::Mail => 2,
        Form::None => 3,
    };
    out.put(&[form, u8::from(head.read), u8::from(head.parts), u8::from(head.whole)]);
    out.put(&head.text);
    out.option(head.key.as_ref().map(|k| &k[..]));
    out.option(head.link.as_ref().map(|k| &k[..]));
    out.option(head.copy.as_ref().map(|k| &k[..]));
    out.put(&head.file);
    out.put(&[u8::from(head.unfinished)]);
}

fn get_head(of: &mut In<'_>) -> Option<Head> {
    let (from, id) = (of.text()?.into(), of.text()?.into());
    let time = Timestamp::from_millis(i64::from_le_bytes(of.take()?));
    let [form, read, parts, whole] = of.take()?;
    let form = match form {
        0 => Form::Local,
        1 => Form::Relay,
        2 => Form::Mail,
        3 => Form::None,
        _ => return None,
    };
    let text = of.take()?;
    let (key, link, copy) = (of.option().ok()?, of.option().ok()?, of.option().ok()?);
    let (read, parts, whole) = (read == 1, parts == 1, whole == 1);
    let (file, unfinished) = (of.take()?, of.byte()? == 1);
    Some(Head { from, id, time, form, read, parts, whole, key, text, link, copy, file, unfinished })
}

struct Out(Vec<u8>);

impl Out {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn count(&mut self, n: usize) {
        self.put(&(n as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.put(text.as_bytes());
    }

    fn option(&mut self, bytes: Option<&[u8]>) {
        self.put(&[u8::from(bytes.is_some())]);
        self.put(bytes.unwrap_or_default());
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[b]| b)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.u64()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// `Err` where the bytes end or are not an option.
    fn option<const N: usize>(&mut self) -> Result<Option<[u8; N]>, ()> {
        match self.byte().ok_or(())? {
            0 => Ok(None),
            1 => self.take().map(Some).ok_or(()),
            _ => Err(()),
        }
    }

    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let len = usize::try_from(self.u64()?).ok()?;
        // A number that is too large ends with the bytes, not with the memory.
        let mut out = Vec::with_capacity(len.min(self.0.len() / 8));
        for _ in 0..len {
            out.push(one(self)?);
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows() -> Vec<Row> {
        let head = Head {
            from: "bob@x".into(),
            id: "ab\u{e9}".into(),
            time: Timestamp::from_millis(-5),
            form: Form::Mail,
            read: true,
            parts: false,
            whole: true,
            key: Some([1; 32]),
            text: [2; 16],
            link: None,
            copy: Some([3; 16]),
            file: [4; 32],
            unfinished: true,
        };
        let stamp = Stamp { dev: 1, ino: 2, size: 3, mtime: -4, ctime: 1 << 70 };
        let problem = State::Problem { reason: "odd".into(), incomplete: true };
        let states = [
            State::Gone,
            State::Letter(Box::new(head.clone())),
            State::Refused(Box::new(head), "no".into()),
            problem,
        ];
        let row = |state| Row {
            path: "2026-03-11/inbox/a.txt".into(),
            stamp,
            parts: 7,
            state,
            held: Held::Twin([9; 32]),
            message: 0,
        };
        states.into_iter().map(row).collect()
    }

    #[test]
    fn what_is_saved_comes_back() {
        let delivered = vec![("a".to_owned(), vec!["b".to_owned(), String::new()])];
        let saved = Saved { zone: "Europe/Vienna".into(), rows: rows(), delivered };
        let bytes = encode(&saved);
        assert_eq!(decode(&bytes), Some(saved));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None);
        }
        assert_eq!(decode(&[bytes.as_slice(), b"x"].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_looked_at(at in 8usize..400, byte in any::<u8>(), junk in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = encode(&Saved { rows: rows(), ..Saved::default() });
            let at = at.min(bytes.len() - 1);
            bytes[at] = byte;
            let _ = decode(&bytes);
            let _ = decode(&[MAGIC.as_slice(), &junk].concat());
        }
    }
}
