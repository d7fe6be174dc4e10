//! Sending in repeatable steps: uploading attachments and text under temporary names, renaming the folder and then the
//! text to their places, and storing a copy in my own folder.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};

use serde::{Deserialize, Serialize};

use super::client::{FtpClient, FtpError};

/// The folder for temporary files, in which nobody looks for mail.
const TEMP: &str = ".msgfs-tmp";
/// The limit on the length of a header, in bytes.
const MAX_HEADER: u64 = 1 << 20;
/// The age in days, by the server's clock, beyond which temporary files count as left behind.
const LEFT: i64 = 1;

/// The header of the bytes to send. A line end, the text, and the attachments follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FtpUploadHeader {
    /// The recipient.
    pub to: String,
    /// The day of its folder.
    pub day: String,
    /// Its file name, without the ending.
    pub stem: String,
    /// The length of the text.
    pub text: u64,
    /// The names and lengths of the attachments.
    pub parts: Vec<(String, u64)>,
}

/// A message that waits.
#[derive(Debug)]
pub struct FtpUpload {
    head: FtpUploadHeader,
    file: File,
    /// The offset at which the text begins.
    text_offset: u64,
}

impl FtpUpload {
    /// Opens a message and reads its header.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(file: File) -> io::Result<Self> {
        let mut line = Vec::new();
        let text_offset = BufReader::new(&file).take(MAX_HEADER).read_until(b'\n', &mut line)?;
        let head = serde_json::from_slice(&line)?;
        Ok(Self { head, file, text_offset: text_offset as u64 })
    }

    fn read_text(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        self.read_range(self.text_offset, self.head.text)?.read_to_end(&mut text)?;
        Ok(text)
    }

    fn read_range(&mut self, at: u64, length: u64) -> io::Result<impl io::Read> {
        self.file.seek(SeekFrom::Start(at))?;
        Ok(io::Read::by_ref(&mut self.file).take(length))
    }
}

/// The folders that a session knows on the server. They may vanish, so a message that fails goes once more without this
/// knowledge.
#[derive(Debug, Default)]
pub struct FtpKnownFolders {
    made: HashSet<String>,
    /// Folders of temporary files that were cleaned.
    cleaned: HashSet<String>,
}

impl FtpKnownFolders {
    /// Makes a folder that the session does not know.
    fn make_dir(&mut self, client: &mut FtpClient, path: &str) -> Result<(), FtpError> {
        if !self.made.contains(path) {
            client.make_dir(path)?;
            self.made.insert(path.to_owned());
        }
        Ok(())
    }
}

/// The reason why a message was not delivered.
#[derive(Debug)]
pub enum FtpSendError {
    /// A failure after which a new try goes on where this one ended.
    Fault(FtpError),
    /// A refusal by the server.
    Refused(String),
}

impl From<FtpError> for FtpSendError {
    fn from(fault: FtpError) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for FtpSendError {
    fn from(error: io::Error) -> Self {
        Self::Fault(FtpError::Io(error))
    }
}

/// Puts a message in its place on the server. Does nothing the second time.
///
/// # Errors
/// Returns [`FtpSendError`].
pub fn deliver_upload(
    client: &mut FtpClient,
    waiting: &mut FtpUpload,
    me: &str,
    folders: &mut FtpKnownFolders,
) -> Result<(), FtpSendError> {
    let head = waiting.head.clone();
    let temp = format!("/{}/{TEMP}", head.to);
    let inbox = format!("/{}/{}/inbox", head.to, head.day);
    let (text_temp, text_final) =
        (format!("{temp}/{}.txt", head.stem), format!("{inbox}/{}.txt", head.stem));
    let text = waiting.read_text()?;
    if !has_same_text(client, &text_final, &text)? {
        for folder in
            [&format!("/{}", head.to), &temp, &format!("/{}/{}", head.to, head.day), &inbox]
        {
            folders.make_dir(client, folder)?;
        }
        upload_attachments(client, waiting, &temp, &format!("{inbox}/{}", head.stem))?;
        store_verified(client, &text_temp, &mut text.as_slice(), head.text)?;
        // Renaming would replace a file that appeared meanwhile.
        if !has_same_text(client, &text_final, &text)? {
            check_rename(client.rename(&text_temp, &text_final))?;
        }
    }
    store_sent_copy(client, &head, me, &text, folders)?;
    if head.parts.is_empty() && folders.cleaned.contains(&temp) {
        return Ok(());
    }
    match clean_temp_folder(client, &temp, &head.stem) {
        Err(FtpError::Refused(_)) => {}
        other => other?,
    }
    folders.cleaned.insert(temp);
    Ok(())
}

/// Returns true if this text stands at its place. Refuses if another text stands there.
fn has_same_text(client: &mut FtpClient, path: &str, text: &[u8]) -> Result<bool, FtpSendError> {
    let Some(size) = client.query_size(path)? else { return Ok(false) };
    let taken = || FtpSendError::Refused(format!("the server has another file of the name {path}"));
    if size != text.len() as u64 {
        return Err(taken());
    }
    let mut there = Vec::new();
    client.retrieve_file(path, size, &mut there)?;
    if there == text { Ok(true) } else { Err(taken()) }
}

/// Puts the attachments in their folder, all or none.
fn upload_attachments(
    client: &mut FtpClient,
    waiting: &mut FtpUpload,
    temp: &str,
    folder: &str,
) -> Result<(), FtpSendError> {
    let head = waiting.head.clone();
    if head.parts.is_empty() || has_all_files(client, folder, &head.parts)? {
        return Ok(());
    }
    let mine = format!("{temp}/{}", head.stem);
    client.make_dir(&mine)?;
    let mut at = waiting.text_offset + head.text;
    for (name, length) in &head.parts {
        store_verified(
            client,
            &format!("{mine}/{name}"),
            &mut waiting.read_range(at, *length)?,
            *length,
        )?;
        at += length;
    }
    match client.rename(&mine, folder) {
        Err(FtpError::Refused(_)) if has_all_files(client, folder, &head.parts)? => Ok(()),
        other => check_rename(other),
    }
}

fn has_all_files(
    client: &mut FtpClient,
    folder: &str,
    parts: &[(String, u64)],
) -> Result<bool, FtpError> {
    for (name, length) in parts {
        if client.query_size(&format!("{folder}/{name}"))? != Some(*length) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Uploads a file and checks its size.
fn store_verified(
    client: &mut FtpClient,
    path: &str,
    from: &mut dyn io::Read,
    length: u64,
) -> Result<(), FtpSendError> {
    match client.store_file(path, from) {
        Err(FtpError::Refused(reply)) if matches!(reply.code, 550 | 553) => {
            return Err(FtpSendError::Refused(reply.to_string()));
        }
        other => other?,
    }
    match client.query_size(path)? {
        Some(size) if size != length => {
            let why = format!("the server kept {size} of {length} bytes");
            Err(FtpSendError::Fault(FtpError::Io(io::Error::other(why))))
        }
        // Some servers do not report sizes.
        _ => Ok(()),
    }
}

fn check_rename(result: Result<(), FtpError>) -> Result<(), FtpSendError> {
    match result {
        Err(FtpError::Refused(reply)) if reply.code == 553 => {
            Err(FtpSendError::Refused(reply.to_string()))
        }
        other => Ok(other?),
    }
}

/// Stores the copy under my own name, like the reference program. The delivery counts even if the server refuses the
/// copy.
fn store_sent_copy(
    client: &mut FtpClient,
    head: &FtpUploadHeader,
    me: &str,
    text: &[u8],
    folders: &mut FtpKnownFolders,
) -> Result<(), FtpError> {
    let (mine, temp) = (format!("/{me}/{}", head.day), format!("/{me}/{TEMP}"));
    let path = format!("{mine}/sent/{}.txt", head.stem);
    if client.query_size(&path)?.is_some() {
        return Ok(());
    }
    for folder in [&format!("/{me}"), &temp, &mine, &format!("{mine}/sent")] {
        folders.make_dir(client, folder)?;
    }
    let half = format!("{temp}/sent-{}.txt", head.stem);
    let done = client.store_file(&half, &mut &*text).and_then(|()| client.rename(&half, &path));
    match done {
        Err(FtpError::Refused(reply)) if reply.code != 421 => {
            // A folder may have vanished.
            folders.made.clear();
            tracing::debug!(%reply, "the server does not store a copy of the sent message");
            Ok(())
        }
        other => other,
    }
}

/// Removes my temporary files, and those that others left behind long ago. Ignores a server's refusal.
fn clean_temp_folder(client: &mut FtpClient, temp: &str, stem: &str) -> Result<(), FtpError> {
    let all = client.list_folder(temp)?;
    let day = |modify: &str| modify.get(..8).and_then(|day| day.parse::<jiff::civil::Date>().ok());
    // The newest file shows the current day on the server.
    let today = all.iter().filter_map(|e| day(&e.modify)).max();
    for entry in &all {
        let age = today
            .zip(day(&entry.modify))
            .and_then(|(today, day)| (today - day).total(jiff::Unit::Day).ok());
        let is_mine = entry.name == stem || entry.name == format!("{stem}.txt");
        if !is_mine && age.is_none_or(|age| age <= LEFT as f64) {
            continue;
        }
        let path = format!("{temp}/{}", entry.name);
        if entry.is_dir == Some(true) {
            for part in client.list_folder(&path)? {
                client.remove(&format!("{path}/{}", part.name), false)?;
            }
        }
        client.remove(&path, entry.is_dir == Some(true))?;
    }
    Ok(())
}
