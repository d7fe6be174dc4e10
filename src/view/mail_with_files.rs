//! The bytes of a message with files in `.maildir/`: a mail of several parts, its text and then its files.
//!
//! A large file is never held in memory: the length of the mail follows from the sizes of the files, and a read encodes
//! the range that is read.

use sha2::{Digest as _, Sha256};

use super::file::slice_range;
use super::{Error, Tree};
use crate::index::MsgIx;
use crate::mime::compose::{self, BASE64_LINE, BASE64_LINE_BYTES};
use crate::model::locks::Mutex;
use crate::model::{MIME_LINES, encode_hex};
use crate::store::{PartContent, fs};

/// A message with files as a mail.
#[derive(Debug)]
pub struct MailWithFiles {
    message: MsgIx,
    /// The pieces, each with the offset at which it begins.
    pieces: Vec<(u64, MailPiece)>,
    len: u64,
    /// The file that was read last, by its name. One file is open at a time.
    open_part: Mutex<Option<(String, PartContent)>>,
}

/// A piece of a mail.
#[derive(Debug)]
enum MailPiece {
    /// Text as it stands.
    Text(String),
    /// A file in base64: its name and its size.
    File(String, u64),
}

impl MailPiece {
    fn len(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::File(_, size) => {
                let (lines, rest) = (size / BASE64_LINE_BYTES, size % BASE64_LINE_BYTES);
                lines * BASE64_LINE + if rest == 0 { 0 } else { rest.div_ceil(3) * 4 + 1 }
            }
        }
    }
}

impl MailWithFiles {
    /// Returns the mail of a message; `None` if no files come with the message.
    ///
    /// # Errors
    /// Store errors as they come.
    pub(super) fn of_message(tree: &Tree, ix: MsgIx) -> Result<Option<Self>, Error> {
        let files = match tree.parts.of_message(ix) {
            Err(Error::NotFound | Error::NoText) => return Ok(None),
            files => files?,
        };
        if files.is_empty() {
            return Ok(None);
        }
        let text = tree.texts.rendered_text(ix)?;
        let text = String::from_utf8_lossy(&text);
        let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
        // The first part says how the text is encoded.
        let head = head.strip_suffix(MIME_LINES.trim_end()).unwrap_or(head).trim_end();
        let digest = encode_hex(&Sha256::digest(text.as_bytes()));
        let boundary = format!("=_msgfs_{}", digest.get(..32).unwrap_or_default());
        let mut before = format!("{head}\nMIME-Version: 1.0\n");
        before.push_str(&compose::format_multipart_head(&boundary));
        before.extend(["--", &boundary, "\n", compose::TEXT_PART_HEAD, "8bit\n\n", body, "\n"]);
        let mut mail =
            Self { message: ix, pieces: Vec::new(), len: 0, open_part: Mutex::default() };
        for file in files.iter() {
            before.push_str(&compose::format_file_head(&file.name, &boundary));
            mail.push(MailPiece::Text(std::mem::take(&mut before)));
            mail.push(MailPiece::File(file.name.clone(), file.size));
        }
        mail.push(MailPiece::Text(format!("--{boundary}--\n")));
        Ok(Some(mail))
    }

    fn push(&mut self, piece: MailPiece) {
        let len = piece.len();
        self.pieces.push((self.len, piece));
        self.len += len;
    }

    /// Returns its length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Reads from the mail.
    ///
    /// # Errors
    /// As the store gave it; `UnexpectedEof` if a file has become shorter.
    pub(super) fn read(&self, tree: &Tree, offset: u64, size: usize) -> Result<Vec<u8>, Error> {
        let end = offset.saturating_add(size as u64).min(self.len);
        let mut out = Vec::new();
        let first = self.pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
        for (start, piece) in self.pieces.get(first..).unwrap_or_default() {
            if *start >= end {
                break;
            }
            let from = offset.saturating_sub(*start).min(piece.len());
            let upto = (end - start).min(piece.len());
            let len = upto.saturating_sub(from) as usize;
            match piece {
                MailPiece::Text(text) => out.extend(slice_range(text.as_bytes(), from, len)),
                MailPiece::File(name, size) => {
                    out.extend(self.read_encoded(tree, (name, *size), from, len)?);
                }
            }
        }
        Ok(out)
    }

    /// Returns a range of the base64 of a file.
    fn read_encoded(
        &self,
        tree: &Tree,
        (name, size): (&str, u64),
        from: u64,
        len: usize,
    ) -> Result<Vec<u8>, Error> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let first = from / BASE64_LINE;
        let last = (from + len as u64 - 1) / BASE64_LINE;
        let start = first * BASE64_LINE_BYTES;
        let end = ((last + 1) * BASE64_LINE_BYTES).min(size);
        let bytes = self.read_part(tree, name, start, (end - start) as usize)?;
        if bytes.len() as u64 != end - start {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let lines = compose::encode_base64_lines(&bytes);
        Ok(slice_range(lines.as_bytes(), from - first * BASE64_LINE, len).to_vec())
    }

    /// Returns a range of a file.
    fn read_part(&self, tree: &Tree, name: &str, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let read = |content: &PartContent| match content {
            PartContent::File(file) => fs::read_range(file, at, len).map_err(Error::from),
            PartContent::Bytes(bytes) => Ok(slice_range(bytes, at, len).to_vec()),
        };
        let mut open = self.open_part.lock();
        if let Some((_, content)) = open.as_ref().filter(|(of, _)| of == name) {
            return read(content);
        }
        // The file before it is closed first.
        *open = None;
        drop(open);
        let content = tree.parts.open_content(self.message, name)?;
        let bytes = read(&content);
        *self.open_part.lock() = Some((name.to_owned(), content));
        bytes
    }
}
