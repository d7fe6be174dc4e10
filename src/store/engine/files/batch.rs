//! The files that are read before their messages are reported.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;

use super::FileStore;
use super::format::{FileFormat, FileInput, FileReading};
use super::open::StoreFile;
use super::table::FileFlags;
use super::walk::DirCache;
use crate::model::name_encoding;
use crate::store::confined;
use crate::store::fs::Stamp;

/// The number of bytes from which no more files are read at once.
const CHUNK_BYTES: usize = 4 << 20;

/// A file that was read in full.
#[derive(Debug)]
struct BatchFile<F> {
    file: StoreFile<F>,
    stamp: Stamp,
    companion_hash: u64,
    /// The range of its bytes in the batch.
    bytes: Range<usize>,
}

/// The state with which a thread reads files.
pub(super) struct FileReader<F: FileFormat> {
    /// The numbers of the files that it is to read.
    pub queue: VecDeque<u32>,
    dirs: Option<DirCache<'static>>,
    /// Room for the next bytes.
    pub buffer: Vec<u8>,
    format: PhantomData<F>,
}

impl<F: FileFormat> Default for FileReader<F> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), dirs: None, buffer: Vec::new(), format: PhantomData }
    }
}

/// The results of reading files.
pub(super) struct ReadBatch<F> {
    done: Vec<BatchFile<F>>,
    /// The bytes of the files, one after the other. Separate buffers would have to be allocated and freed.
    pub bytes: Vec<u8>,
    pub gone: Vec<u32>,
    pub failed: Vec<(StoreFile<F>, io::Error)>,
    /// The number of files that were taken from the queue.
    pub count: usize,
}

impl<F: FileFormat> FileReader<F> {
    /// Returns the open folders of this thread.
    pub fn dirs(&mut self, files: &FileStore<F>) -> &mut DirCache<'static> {
        self.dirs.get_or_insert_with(|| DirCache::new(files.properties.dir.clone()))
    }

    /// Reads the next files, as many as are held at once.
    pub fn read_batch(&mut self, files: &FileStore<F>) -> ReadBatch<F::Facts> {
        let bytes = std::mem::take(&mut self.buffer);
        let mut out =
            ReadBatch { done: Vec::new(), bytes, gone: Vec::new(), failed: Vec::new(), count: 0 };
        out.bytes.clear();
        while out.bytes.len() < CHUNK_BYTES
            && let Some(n) = self.queue.pop_front()
        {
            out.count += 1;
            let file = StoreFile::from_table(&files.table.read(), n);
            let Some(file) = file.filter(|file| !file.row.has_flag(FileFlags::GONE)) else {
                continue;
            };
            let start = out.bytes.len();
            match read_with_companions(files, self.dirs(files), &file, &mut out.bytes) {
                Ok((stamp, beside)) => {
                    out.done.push(BatchFile {
                        file,
                        stamp,
                        companion_hash: beside,
                        bytes: start..out.bytes.len(),
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => out.gone.push(n),
                Err(e) => out.failed.push((file, e)),
            }
        }
        out
    }
}

fn read_with_companions<F: FileFormat>(
    files: &FileStore<F>,
    dirs: &mut DirCache<'_>,
    file: &StoreFile<F::Facts>,
    bytes: &mut Vec<u8>,
) -> io::Result<(Stamp, u64)> {
    let opened = confined::open_file(&*dirs.open(&file.folder)?, &file.name)?;
    let stamp = confined::read_whole_into(&opened, F::LONGEST.saturating_add(1), bytes)?;
    Ok((stamp, files.companion_hash(dirs, &file.folder, &file.name)?))
}

/// Returns the files of a batch as a format gets them.
pub(super) fn file_inputs<T>(reads: &ReadBatch<T>) -> Vec<FileInput<'_, T>> {
    let mut out = Vec::with_capacity(reads.done.len());
    for BatchFile { file, stamp, companion_hash: beside, bytes } in &reads.done {
        let bytes = reads.bytes.get(bytes.clone()).unwrap_or_default();
        out.push(FileInput { file, stamp: *stamp, companion_hash: *beside, bytes });
    }
    out
}

/// Parses files.
pub(super) fn parse_files<'r, F: FileFormat>(
    files: &FileStore<F>,
    context: &F::Context,
    dirs: &mut DirCache<'_>,
    opened: &'r [FileInput<'r, F::Facts>],
) -> Vec<FileReadingResult<'r, F>> {
    let mut said = |opened: &'r FileInput<'r, F::Facts>| {
        if name_encoding::is_encoded(&opened.file.name) {
            return Ok(FileReading::rejected("its name is not UTF-8".into()));
        }
        files.format.parse_file(context, dirs, opened)
    };
    opened.iter().map(&mut said).collect()
}

/// The reading of a file, if it could be read.
pub(super) type FileReadingResult<'r, F> =
    io::Result<FileReading<<F as FileFormat>::Message<'r>, <F as FileFormat>::Facts>>;
