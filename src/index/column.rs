//! A table of plain values: those of the snapshot, mapped as they lie there, and after them those that came
//! since.
//!
//! Opening a snapshot reads nothing. Each piece is compared with its checksum before its first value is used. If
//! it differs, the process does not continue ([`SnapshotFile::restart_after_damage`]). The mapping is private: a
//! change is made in a page of this process, never in the file. A write by somebody else is noticed by the time of the
//! file ([`SnapshotFile::require_unchanged`]).

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};
use twox_hash::XxHash3_64;

use crate::store::process;

/// Bytes of a piece, or a little less: the largest power of two of values that fits.
const PIECE: usize = 16 << 10;

/// Returns the number of values of this size in a piece, as a power of two.
const fn piece_shift(size: usize) -> u32 {
    (PIECE / size).ilog2()
}

/// The snapshot that contains a region.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    path: Box<Path>,
    file: File,
    /// True if no other machine can change the file. Only then it may be mapped.
    map: bool,
    /// The time at which the file was written.
    written: Option<SystemTime>,
}

impl SnapshotFile {
    /// Makes the value for an open snapshot. `map` is true if no other machine can change the file.
    pub fn new(path: &Path, file: File, map: bool) -> io::Result<Self> {
        let written = file.metadata()?.modified().ok();
        Ok(Self { path: path.into(), file, map, written })
    }

    /// Restarts the process if somebody wrote into the file while it is mapped: a piece that was checked before may
    /// have other bytes since. Costs one system call.
    pub fn require_unchanged(&self) {
        let is_changed = || self.file.metadata().is_ok_and(|m| m.modified().ok() != self.written);
        if self.map && is_changed() {
            self.restart_after_damage();
        }
    }

    /// Restarts the process. All its answers so far were right, but the next one might be wrong. Without the
    /// snapshot the next process reads the stores again.
    #[cold]
    fn restart_after_damage(&self) -> ! {
        let removed = std::fs::remove_file(&self.path);
        tracing::error!(path = %self.path.display(), ?removed, "the index on disk is damaged; the stores are read again");
        if removed.is_err_and(|e| e.kind() != io::ErrorKind::NotFound) {
            // Otherwise the next process would find the same damage.
            process::set_restart_arguments(None);
        }
        process::restart_process()
    }
}

/// The values of a table that are in a snapshot.
#[derive(Debug)]
struct MappedRegion {
    bytes: MmapMut,
    sums: Box<[u64]>,
    /// A bit for each piece that was found to be as it was written.
    sound: Box<[AtomicU64]>,
    origin: Arc<SnapshotFile>,
}

impl MappedRegion {
    fn open(origin: &Arc<SnapshotFile>, at: u64, len: usize, sums: Box<[u64]>) -> io::Result<Self> {
        let bytes = if origin.map {
            // SAFETY: nobody else may change the file while it is mapped. It is ours alone (in our own folder,
            // without write permission for anybody), is only ever replaced as a whole, by a new file under its
            // name, and lies on a file system of this machine. If somebody truncates it all the same, the system
            // ends this process at the next access: no wrong answer is given, and the data on disk survives that
            // as it survives any kill.
            let mapped = unsafe {
                MmapOptions::new().offset(at).len(len).no_reserve_swap().map_copy(&origin.file)
            };
            mapped?
        } else {
            let mut bytes = MmapMut::map_anon(len)?;
            origin.file.read_exact_at(&mut bytes, at)?;
            bytes
        };
        let sound = (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { bytes, sums, sound, origin: Arc::clone(origin) })
    }

    fn values<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.bytes)
    }

    fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.bytes)
    }

    /// Checks that a piece is as it was written.
    #[inline]
    fn check_piece<T>(&self, piece: usize) {
        let bit = 1 << (piece % 64);
        let sound =
            self.sound.get(piece / 64).is_some_and(|w| w.load(Ordering::Relaxed) & bit != 0);
        if !sound {
            self.check_new_piece::<T>(piece);
        }
    }

    #[cold]
    fn check_new_piece<T>(&self, piece: usize) {
        if !self.is_piece_sound::<T>(piece) {
            self.origin.restart_after_damage();
        }
        // No value changes before its piece was checked, so two threads may check it at once.
        if let Some(word) = self.sound.get(piece / 64) {
            word.fetch_or(1 << (piece % 64), Ordering::Relaxed);
        }
    }

    fn is_piece_sound<T>(&self, piece: usize) -> bool {
        let size = size_of::<T>() << piece_shift(size_of::<T>());
        let bytes = self.bytes.chunks(size).nth(piece);
        bytes.zip(self.sums.get(piece)).is_some_and(|(b, sum)| XxHash3_64::oneshot(b) == *sum)
    }
}

/// Panics because a position lies behind the end of its table.
#[cold]
#[track_caller]
fn panic_beyond_end<T>(at: usize, len: usize) -> ! {
    let name = std::any::type_name::<T>();
    panic!(
        "the index is broken: position {at} is behind the end of the table of {name}, which has {len} values"
    )
}

/// Returns the value at a position of a table. A position without a value is a broken invariant.
///
/// # Panics
/// If there is no such value.
#[track_caller]
pub(super) fn at<T>(table: &[T], at: usize) -> &T {
    table.get(at).unwrap_or_else(|| panic_beyond_end::<T>(at, table.len()))
}

/// Returns the value at a position of a table, for a change.
///
/// # Panics
/// If there is no such value.
#[track_caller]
pub(super) fn at_mut<T>(table: &mut [T], at: usize) -> &mut T {
    let len = table.len();
    table.get_mut(at).unwrap_or_else(|| panic_beyond_end::<T>(at, len))
}

/// A table of plain values.
#[derive(Debug)]
pub(super) struct Column<T> {
    base: Option<MappedRegion>,
    base_len: usize,
    tail: Vec<T>,
    /// Number of calls that may have changed it.
    changes: u64,
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self { base: None, base_len: 0, tail: Vec::new(), changes: 0 }
    }
}

impl<T: Pod> Column<T> {
    /// Opens the values at an offset of a snapshot, with this length in bytes. It reads no value.
    pub fn open(origin: &Arc<SnapshotFile>, at: u64, len: u64, sums: &[u64]) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if !len.is_multiple_of(size_of::<T>()) || sums.len() != Self::count_pieces(len) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if len == 0 {
            return Ok(Self::default());
        }
        let base = MappedRegion::open(origin, at, len, sums.into())?;
        Ok(Self { base: Some(base), base_len: len / size_of::<T>(), ..Self::default() })
    }

    /// Returns the number of pieces of this many bytes of values.
    pub fn count_pieces(len: usize) -> usize {
        (len / size_of::<T>()).div_ceil(1 << piece_shift(size_of::<T>()))
    }

    /// Returns true if all pieces are as they were written.
    pub fn is_sound(&self) -> bool {
        self.base
            .as_ref()
            .is_none_or(|b| (0..b.sums.len()).all(|piece| b.is_piece_sound::<T>(piece)))
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.base_len + self.tail.len()
    }

    /// Returns a number that grows with each change.
    pub fn change_count(&self) -> u64 {
        self.changes
    }

    #[inline]
    fn checked_base(&self, at: usize) -> Option<&MappedRegion> {
        let base = self.base.as_ref()?;
        base.check_piece::<T>(at >> piece_shift(size_of::<T>()));
        Some(base)
    }

    /// Returns the value at a position.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        match at.checked_sub(self.base_len) {
            Some(at) => self.tail.get(at),
            None => self.checked_base(at)?.values().get(at),
        }
    }

    /// Returns the value at a position of this table. A position without a value is a broken invariant.
    ///
    /// # Panics
    /// If there is no such value.
    #[inline]
    #[track_caller]
    pub fn at(&self, at: usize) -> &T {
        self.get(at).unwrap_or_else(|| panic_beyond_end::<T>(at, self.len()))
    }

    /// Returns the value at a position of this table, for a change.
    ///
    /// # Panics
    /// If there is no such value.
    #[track_caller]
    pub fn at_mut(&mut self, at: usize) -> &mut T {
        self.changes += 1;
        let len = self.len();
        let value = if let Some(at) = at.checked_sub(self.base_len) {
            self.tail.get_mut(at)
        } else {
            self.checked_base(at);
            self.base.as_mut().and_then(|base| base.values_mut().get_mut(at))
        };
        value.unwrap_or_else(|| panic_beyond_end::<T>(at, len))
    }

    /// Returns values that were added together.
    ///
    /// # Panics
    /// If there are no such values.
    #[inline]
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> &[T] {
        let slice = match range.start.checked_sub(self.base_len) {
            Some(start) => self.tail.get(start..range.end.saturating_sub(self.base_len)),
            None => self.base_slice(range.clone()),
        };
        slice.unwrap_or_else(|| panic_beyond_end::<T>(range.end, self.len()))
    }

    fn base_slice(&self, range: Range<usize>) -> Option<&[T]> {
        let base = self.base.as_ref()?;
        let shift = piece_shift(size_of::<T>());
        let values = base.values().get(range.clone())?;
        (range.start >> shift..=range.end.saturating_sub(1) >> shift)
            .for_each(|p| base.check_piece::<T>(p));
        Some(values)
    }

    /// Adds a value.
    pub fn push(&mut self, value: T) {
        self.changes += 1;
        self.tail.push(value);
    }

    /// Adds values.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        self.changes += 1;
        self.tail.extend_from_slice(values);
    }

    /// Adds a value until the table has this length.
    pub fn grow_to(&mut self, len: usize, value: T) {
        self.changes += 1;
        self.tail.resize(len.saturating_sub(self.base_len).max(self.tail.len()), value);
    }

    /// Makes room for this many more values.
    pub fn reserve(&mut self, more: usize) {
        self.tail.reserve(more);
    }

    /// Releases unused room.
    pub fn shrink_to_fit(&mut self) {
        self.tail.shrink_to_fit();
    }

    /// Returns all values, in order.
    pub fn iter(&self) -> ColumnIter<'_, T> {
        ColumnIter { column: self, at: 0 }
    }

    /// Returns the partition point, as [`slice::partition_point`] does.
    pub fn partition_point(&self, is_before: impl Fn(&T) -> bool) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            if is_before(self.at(middle)) { from = middle + 1 } else { to = middle }
        }
        from
    }
}

/// A table in the form for a snapshot.
pub(super) trait SnapshotTable {
    /// Returns its length in bytes.
    fn byte_len(&self) -> u64;

    /// Returns its number of pieces.
    fn piece_count(&self) -> usize;

    /// Writes all values, and appends the checksums of their pieces to `sums`.
    ///
    /// # Errors
    /// The error of the system.
    fn write_to(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()>;
}

/// A table of any type in the form for a snapshot.
pub(super) type AnyTable<'a> = Box<dyn SnapshotTable + 'a>;

impl<T: Pod> SnapshotTable for Column<T> {
    fn byte_len(&self) -> u64 {
        (self.len() * size_of::<T>()) as u64
    }

    fn piece_count(&self) -> usize {
        Self::count_pieces(self.len() * size_of::<T>())
    }

    fn write_to(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
        let mut piece: Vec<T> = Vec::new();
        let each = 1 << piece_shift(size_of::<T>());
        for from in (0..self.len()).step_by(each) {
            let range = from..(from + each).min(self.len());
            let values = if from < self.base_len && self.base_len < range.end {
                piece.clear();
                piece.extend(range.map(|at| *self.at(at)));
                piece.as_slice()
            } else {
                self.slice(range)
            };
            write_values(values, out, sums)?;
        }
        Ok(())
    }
}

impl<T: SnapshotTable + ?Sized> SnapshotTable for &T {
    fn byte_len(&self) -> u64 {
        (**self).byte_len()
    }

    fn piece_count(&self) -> usize {
        (**self).piece_count()
    }

    fn write_to(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
        (**self).write_to(out, sums)
    }
}

impl<T: Pod> SnapshotTable for Vec<T> {
    fn byte_len(&self) -> u64 {
        size_of_val(self.as_slice()) as u64
    }

    fn piece_count(&self) -> usize {
        Column::<T>::count_pieces(size_of_val(self.as_slice()))
    }

    fn write_to(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
        write_values(self, out, sums)
    }
}

fn write_values<T: Pod>(values: &[T], out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()> {
    for piece in values.chunks(1 << piece_shift(size_of::<T>())) {
        let bytes = bytemuck::cast_slice(piece);
        sums.push(XxHash3_64::oneshot(bytes));
        out.write_all(bytes)?;
    }
    Ok(())
}

/// An iterator over the values of a column.
#[derive(Debug)]
pub(super) struct ColumnIter<'a, T> {
    column: &'a Column<T>,
    at: usize,
}

impl<'a, T: Pod> Iterator for ColumnIter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        let value = self.column.get(self.at)?;
        self.at += 1;
        Some(value)
    }
}

impl<'a, T: Pod> IntoIterator for &'a Column<T> {
    type Item = &'a T;
    type IntoIter = ColumnIter<'a, T>;

    fn into_iter(self) -> ColumnIter<'a, T> {
        self.iter()
    }
}

#[cfg(test)]
impl<T> From<Vec<T>> for Column<T> {
    fn from(tail: Vec<T>) -> Self {
        Self { tail, ..Self::default() }
    }
}

#[cfg(test)]
impl<T: Pod> std::ops::Index<usize> for Column<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        self.get(at).unwrap()
    }
}
