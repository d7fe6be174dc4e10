//! A table of plain values: those of the snapshot, mapped as they lie, and behind them those that came
//! since.
//!
//! Nothing is read when a snapshot is opened. Each piece of it is compared with its checksum before
//! the first value of it is used; where that does not fit, the process does not go on with it
//! ([`Region::damaged`]). The mapping is private: a value that changes is changed in a page of this
//! process, and never in the file.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};
use twox_hash::XxHash3_64;

use crate::store::process;

/// Bytes of a piece, or a little less: as many values as fit, by a power of two.
const PIECE: usize = 16 << 10;

/// How many values of this size make a piece, as a power of two.
const fn piece_shift(size: usize) -> u32 {
    (PIECE / size).ilog2()
}

/// The snapshot that a region is a part of.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    pub path: Box<Path>,
    pub file: File,
    /// No other machine can change it under us: it may be mapped.
    pub map: bool,
}

/// The values of a table that lie in a snapshot.
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
            // SAFETY: nobody else may change the file while it is mapped. It is ours alone (in our
            // own folder, and not to be written by anybody), is only ever replaced as a whole, by
            // a new file under its name, and lies on a file system of this machine. Whoever cuts it
            // all the same takes the pages from under us, and the system ends this process: nothing
            // wrong is answered, and what is on the disk survives that as it does any kill.
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
        bytemuck::try_cast_slice(&self.bytes).unwrap_or_default()
    }

    fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::try_cast_slice_mut(&mut self.bytes).unwrap_or_default()
    }

    /// Makes sure that a piece is as it was written.
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
            self.restart_after_damage();
        }
        // Nobody changes a value before its piece was checked, so that two may do it at once.
        if let Some(word) = self.sound.get(piece / 64) {
            word.fetch_or(1 << (piece % 64), Ordering::Relaxed);
        }
    }

    fn is_piece_sound<T>(&self, piece: usize) -> bool {
        let size = size_of::<T>() << piece_shift(size_of::<T>());
        let bytes = self.bytes.chunks(size).nth(piece);
        bytes.zip(self.sums.get(piece)).is_some_and(|(b, sum)| XxHash3_64::oneshot(b) == *sum)
    }

    /// Ends what this process does: what it has answered so far is right, and what it would answer
    /// next is not known. Without the snapshot the next one reads the stores again.
    #[cold]
    fn restart_after_damage(&self) -> ! {
        let path = &self.origin.path;
        let removed = std::fs::remove_file(path);
        tracing::error!(path = %path.display(), ?removed, "the index on disk is damaged; the stores are read again");
        if removed.is_err_and(|e| e.kind() != io::ErrorKind::NotFound) {
            // Else the next one would find the same.
            process::set_restart_arguments(None);
        }
        process::restart_process()
    }
}

/// A table of plain values.
#[derive(Debug)]
pub(super) struct Column<T> {
    base: Option<MappedRegion>,
    base_len: usize,
    tail: Vec<T>,
    /// How often it may have changed.
    changes: u64,
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self { base: None, base_len: 0, tail: Vec::new(), changes: 0 }
    }
}

impl<T: Pod> Column<T> {
    /// The values that lie in a snapshot at a place of this many bytes. Nothing of it is read.
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

    /// How many pieces this many bytes of values have.
    pub fn count_pieces(len: usize) -> usize {
        (len / size_of::<T>()).div_ceil(1 << piece_shift(size_of::<T>()))
    }

    /// Whether all of it is as it was written.
    pub fn is_sound(&self) -> bool {
        self.base
            .as_ref()
            .is_none_or(|b| (0..b.sums.len()).all(|piece| b.is_piece_sound::<T>(piece)))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.base_len + self.tail.len()
    }

    /// Grows with every change.
    pub fn change_count(&self) -> u64 {
        self.changes
    }

    #[inline]
    fn checked_base(&self, at: usize) -> Option<&MappedRegion> {
        let base = self.base.as_ref()?;
        base.check_piece::<T>(at >> piece_shift(size_of::<T>()));
        Some(base)
    }

    /// The value at a position.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        match at.checked_sub(self.base_len) {
            Some(at) => self.tail.get(at),
            None => self.checked_base(at)?.values().get(at),
        }
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.changes += 1;
        if let Some(at) = at.checked_sub(self.base_len) {
            return self.tail.get_mut(at);
        }
        self.checked_base(at)?;
        self.base.as_mut()?.values_mut().get_mut(at)
    }

    /// Values that were added together.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[T] {
        let slice = match range.start.checked_sub(self.base_len) {
            Some(start) => self.tail.get(start..range.end.saturating_sub(self.base_len)),
            None => self.base_slice(range),
        };
        slice.unwrap_or_default()
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

    /// Adds a value until there are so many.
    pub fn grow_to(&mut self, len: usize, value: T) {
        self.changes += 1;
        self.tail.resize(len.saturating_sub(self.base_len).max(self.tail.len()), value);
    }

    /// Makes room for so many more.
    pub fn reserve(&mut self, more: usize) {
        self.tail.reserve(more);
    }

    /// Gives back the room that growing took too much.
    pub fn shrink_to_fit(&mut self) {
        self.tail.shrink_to_fit();
    }

    /// All values, in their order.
    pub fn iter(&self) -> ColumnIter<'_, T> {
        ColumnIter { column: self, at: 0 }
    }

    /// As [`slice::partition_point`].
    pub fn partition_point(&self, is_before: impl Fn(&T) -> bool) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            if self.get(middle).is_some_and(&is_before) { from = middle + 1 } else { to = middle }
        }
        from
    }
}

/// A table as a snapshot has it.
pub(super) trait SnapshotTable {
    /// How long it is.
    fn byte_len(&self) -> u64;

    /// How many pieces it has.
    fn piece_count(&self) -> usize;

    /// Writes all values, and tells the checksums of their pieces.
    ///
    /// # Errors
    /// As the system gave it.
    fn write_to(&self, out: &mut dyn Write, sums: &mut Vec<u64>) -> io::Result<()>;
}

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
                piece.extend(range.filter_map(|at| self.get(at)).copied());
                piece.as_slice()
            } else {
                self.slice(range)
            };
            write_values(values, out, sums)?;
        }
        Ok(())
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

/// The values of a column.
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
