//! `msgfs inbox`: prints the unread messages.

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::access::{self, AccessPurpose, TreeAccess};
use super::failure::Failure;
use super::{GlobalOptions, output};

/// Print the unread messages, oldest first, and mark them as read
///
/// Does the same as `cat inbox/*` in a mount, with a separator line before each message. With `mark_read = "on-remove"`
/// in the configuration it marks nothing. `msgfs status` lists the unread messages and marks nothing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs inbox\n  msgfs wait && msgfs inbox\n  msgfs inbox --json"
)]
pub(crate) struct Args {
    #[arg(
        long,
        help = "Print one JSON object a line for each message: name, body, and each header line as a string. \
                The names of header lines are in small letters, with _ for - (from, to, in_reply_to, \
                message_id)"
    )]
    json: bool,
}

/// Runs `msgfs inbox`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    access::with_tree(global, AccessPurpose::ACT, |tree| {
        let unread = tree.list_unread()?;
        if unread.is_empty() {
            output::print_notice("no new messages");
        }
        let paths: Vec<String> = unread.iter().map(|name| format!("inbox/{name}")).collect();
        let print = if args.json { print_message_json } else { access::print_file_section };
        access::for_each_path(&paths, |path| print(tree, path))
    })
}

fn print_message_json(tree: &dyn TreeAccess, path: &str) -> Result<(), Failure> {
    let name = access::split_path(path).1;
    let size = tree.ls(path)?.first().map_or(0, |file| file.size);
    let mut out = MessageJsonWriter { name, size, text: Vec::new(), printed: None };
    let read = tree.cat(path, &mut out);
    match out.printed {
        Some(said) => said.and(read),
        // The message has become shorter since its length was read.
        None => read.and_then(|()| output::print_json_line(&message_to_json(name, &out.text))),
    }
}

/// A writer that prints a message once it is complete, which is before it is closed and so marked.
struct MessageJsonWriter<'a> {
    name: &'a str,
    size: u64,
    text: Vec<u8>,
    /// The result of the print.
    printed: Option<Result<(), Failure>>,
}

impl Write for MessageJsonWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        if self.text.len() as u64 >= self.size {
            let said = output::print_json_line(&message_to_json(self.name, &self.text));
            let failed = said.is_err();
            self.printed = Some(said);
            if failed {
                return Err(io::ErrorKind::Other.into());
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a message file as an object.
fn message_to_json(name: &str, text: &[u8]) -> Value {
    let text = String::from_utf8_lossy(text);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut all = Map::new();
    for (key, value) in head.lines().filter_map(|line| line.split_once(':')) {
        let key = key.to_ascii_lowercase().replace('-', "_");
        all.insert(key, value.trim_start().into());
    }
    all.insert("name".to_owned(), name.into());
    all.insert("body".to_owned(), body.into());
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_an_object_of_its_lines() {
        let text = b"From: foo\nSubject: a: b\nIn-Reply-To: <x@samp>\n\nname: no header\n\nend\n";
        let json = serde_json::json!({
            "name": "n.txt", "from": "foo", "subject": "a: b", "in_reply_to": "<x@samp>",
            "body": "name: no header\n\nend\n",
        });
        assert_eq!(message_to_json("n.txt", text), json);
    }
}
