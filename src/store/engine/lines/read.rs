//! One message, by where it stands.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use super::log::BOM;
use super::table::{KEPT, Source};
use super::{Format, Lines};
use crate::store::fs::{MAX_RECORD, Stamp, read_at_most};
use crate::store::{Location, StoreError, below};

/// How long after a change a log may be half rewritten.
const GRACE: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl<F: Format> Lines<F> {
    /// Opens the file a source stands for. It is never kept open: that would keep its disk from being
    /// unmounted.
    fn open_source(&self, source: u32) -> Result<File, StoreError> {
        let (n, name) = match Source::of(source) {
            Source::Kept => return Err(StoreError::Moved),
            Source::Log(n) => (n, F::SHAPE.file),
            Source::Beside(n) => (n, F::SHAPE.beside),
        };
        let (root, mut parts) = {
            let table = self.table.read();
            let (root, mut parts) = table.place(n)?;
            let log = table.get(n).map(|log| log.name.as_str());
            parts.extend(name.or(log).map(str::to_owned));
            (root, parts)
        };
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        below::open_below(&root, &names).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if F::SHAPE.rewritten => StoreError::Moved,
            _ => StoreError::io(&parts.drain(..).fold(root.clone(), |p, part| p.join(part)), e),
        })
    }

    pub(super) fn bytes_at(&self, at: &Location, limit: usize) -> Result<Vec<u8>, StoreError> {
        let limit = limit.min(at.len as usize);
        if at.source == KEPT {
            return self.format.read_kept(at.offset, limit);
        }
        let file = self.open_source(at.source)?;
        let mut bytes = vec![0; limit];
        let n = read_at_most(&file, &mut bytes, at.offset)
            .map_err(|e| StoreError::io(&self.about.dir, e))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// Hands the line at a location to `use_it`, which answers [`StoreError::Moved`] if it is no
    /// message. A log that is being rewritten is short for a moment.
    pub(crate) fn with_line<T>(
        &self,
        at: &Location,
        use_it: impl Fn(&str) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let io = |e| StoreError::io(&self.about.dir, e);
        if at.source == KEPT {
            let bytes = self.format.read_kept(at.offset, at.len as usize)?;
            return use_it(&String::from_utf8_lossy(&bytes));
        }
        if at.len as usize > MAX_RECORD {
            return Err(StoreError::Moved);
        }
        let until = Instant::now() + GRACE;
        loop {
            let file = self.open_source(at.source)?;
            if let Some(line) = whole_line(&file, at).map_err(io)? {
                match use_it(&String::from_utf8_lossy(&line)) {
                    Err(StoreError::Moved) => {}
                    done => return done,
                }
            }
            let changed = Stamp::of(&file).and_then(|_| file.metadata()?.modified()).map_err(io)?;
            let young = changed.elapsed().map_or(true, |age| age < GRACE);
            if !F::SHAPE.rewritten || !young || Instant::now() >= until {
                return Err(StoreError::Moved);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The bytes at a location, if a line begins and ends there.
fn whole_line(file: &File, at: &Location) -> io::Result<Option<Vec<u8>>> {
    const MARK: u64 = BOM.len_utf8() as u64;
    let before = u64::from(at.offset > 0);
    let mut bytes = vec![0; at.len as usize + before as usize + 1];
    let got = read_at_most(file, &mut bytes, at.offset - before)?;
    bytes.truncate(got);
    // Some writers end lines with a bare CR.
    let end = |b: &u8| matches!(b, b'\n' | b'\r');
    let starts = at.offset == 0 || at.offset == MARK || bytes.first().is_some_and(end);
    let line = bytes.get(before as usize..).unwrap_or_default();
    let (line, rest) = line.split_at_checked(at.len as usize).unwrap_or_default();
    let ends = line.len() == at.len as usize && rest.iter().all(end);
    Ok((starts && ends).then(|| line.to_vec()))
}
