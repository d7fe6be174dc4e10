//! A message as it is shown: its text, with a marked line for each thought, image and call, and the files beside it.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::message::{CallStatus, SessionBlock, SessionImage, SessionMessage, ToolCall};
use crate::model::{encode_hex, sanitize_text};
use crate::store::atsf::blocks::{MAX_PARTS, describe_left_out, safe_word, shorten_text};
use crate::store::text::json;

/// A message as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedSessionMessage {
    /// The text.
    pub body: String,
    /// The files beside it.
    pub parts: Vec<SessionPart>,
    /// The names of the files with whole results that its calls name. They lie in the session's own folder.
    pub result_files: Vec<String>,
}

/// A file beside a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPart {
    /// Its name, unique in the message.
    pub name: String,
    /// Its bytes. Several parts may share them.
    pub bytes: Arc<[u8]>,
}

/// Renders a message.
pub fn render_message(message: &SessionMessage) -> RenderedSessionMessage {
    let mut out = SessionRenderer::default();
    for block in &message.blocks {
        out.steps += 1;
        match block {
            SessionBlock::Text(text) => out.push_line(text),
            SessionBlock::Thinking(text) => {
                let part = out.add_text_part("thinking", "txt", text);
                let count = text.chars().count();
                out.push_line(&format!("[thinking: {count} characters -> {part}]"));
            }
            SessionBlock::Image(image) => out.render_image(image),
            SessionBlock::Call(call) => out.render_call(call),
        }
    }
    if out.left_out > 0 {
        out.push_line(&format!("[{}]", describe_left_out(out.left_out)));
    }
    out.rendered
}

#[derive(Default)]
struct SessionRenderer {
    rendered: RenderedSessionMessage,
    /// By the name of each image so far, its part, or words that stand for one that is left out.
    images: HashMap<String, String>,
    /// The digests of images by the address of their bytes, so that shared bytes are hashed once.
    digests: HashMap<*const u8, String>,
    /// The number of blocks so far, used in the names of parts.
    steps: usize,
    /// The number of parts that are left out.
    left_out: usize,
}

impl SessionRenderer {
    fn push_line(&mut self, text: &str) {
        let body = &mut self.rendered.body;
        if !body.is_empty() && !body.ends_with('\n') {
            body.push('\n');
        }
        body.push_str(text);
    }

    fn add_text_part(&mut self, word: &str, extension: &str, text: &str) -> String {
        let name = format!("{:02}-{}.{extension}", self.steps, safe_word(word));
        self.add_part(name, || sanitize_text(text).as_bytes().into())
    }

    /// Adds a part. Returns its name, or words that stand for a part that is left out.
    fn add_part(&mut self, name: String, bytes: impl FnOnce() -> Arc<[u8]>) -> String {
        if self.rendered.parts.len() >= MAX_PARTS {
            self.left_out += 1;
            return "left out".to_owned();
        }
        self.rendered.parts.push(SessionPart { name: name.clone(), bytes: bytes() });
        name
    }

    fn render_image(&mut self, image: &SessionImage) {
        let address = image.data.as_ptr();
        let digest = self.digests.entry(address).or_insert_with(|| hash_image(image));
        let name = name_image(digest, &image.media_type);
        let part = match self.images.get(&name) {
            Some(part) => part.clone(),
            None => self.add_part(name.clone(), || Arc::clone(&image.data)),
        };
        self.push_line(&format!("[image: {} -> {part}]", shorten_text(&image.media_type)));
        self.images.insert(name, part);
    }

    fn render_call(&mut self, call: &ToolCall) {
        let name = if call.name.is_empty() { "result" } else { &call.name };
        let part = self.add_text_part(&format!("tool-{name}"), "json", &call_json(call));
        let status = match call.status {
            CallStatus::Completed => "completed",
            CallStatus::Failed => "failed",
            CallStatus::Pending => "pending",
        };
        self.push_line(&format!("[tool call: {} {status} -> {part}]", shorten_text(name)));
        if let Some(file) = call.output.as_deref().and_then(find_result_file)
            && !self.rendered.result_files.iter().any(|known| known == file)
        {
            self.rendered.result_files.push(file.to_owned());
        }
    }
}

/// Returns the name of an image: that of its content, as in a kept thread.
pub fn image_name(image: &SessionImage) -> String {
    name_image(&hash_image(image), &image.media_type)
}

fn hash_image(image: &SessionImage) -> String {
    encode_hex(&Sha256::digest(&image.data))
}

fn name_image(digest: &str, media_type: &str) -> String {
    let kind = media_type.strip_prefix("image/").unwrap_or("bin");
    let kind = kind.split(['+', ';']).next().unwrap_or(kind);
    let is_sound =
        (1..=10).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_alphanumeric());
    let extension = match kind {
        "jpeg" => "jpg",
        kind if is_sound => kind,
        _ => "bin",
    };
    format!("sha256-{}.{extension}", digest.get(..16).unwrap_or_default())
}

/// Returns a call as JSON. Arguments that are JSON stay as they are.
fn call_json(call: &ToolCall) -> String {
    let input = match call.input.trim() {
        "" => "null".to_owned(),
        input if json::walk_value(input, |_| {}).is_ok() => input.to_owned(),
        input => quote_json(input),
    };
    let output = call.output.as_deref().map_or_else(|| "null".to_owned(), quote_json);
    format!(
        "{{\"id\":{},\"name\":{},\"input\":{input},\"output\":{output},\"is_error\":{}}}\n",
        quote_json(&call.id),
        quote_json(&call.name),
        call.status == CallStatus::Failed
    )
}

fn quote_json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the name of the file to which a harness has written a whole result, if the text of the result names one. It
/// is looked for in the session's own folder, whatever path the text has.
fn find_result_file(output: &str) -> Option<&str> {
    const FOLDER: &str = "/tool-results/";
    let mut end = output.len().min(4096);
    while !output.is_char_boundary(end) {
        end -= 1;
    }
    let (_, rest) = output.get(..end)?.split_once(FOLDER)?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    let name = rest.get(..end.unwrap_or(rest.len()))?.trim_end_matches('.');
    (!name.is_empty() && !name.starts_with('.')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::store::sessions::message::SessionRole;

    fn shown(blocks: Vec<SessionBlock>) -> RenderedSessionMessage {
        render_message(&SessionMessage {
            id: "a".into(),
            role: SessionRole::Agent,
            agent: None,
            time: Timestamp::default(),
            blocks,
            stop_reason: None,
            model: None,
            tokens: None,
            in_reply_to: None,
            name_time: None,
            result_files: Vec::new(),
        })
    }

    fn call(name: &str, input: &str, output: Option<&str>, status: CallStatus) -> SessionBlock {
        let (id, output) = ("t1".into(), output.map(str::to_owned));
        let (name, input) = (name.into(), input.into());
        SessionBlock::Call(ToolCall { id, name, input, output, status, duration_ms: None })
    }

    #[test]
    fn every_block_has_its_line() {
        let image = SessionImage { media_type: "image/jpeg".into(), data: [1, 2].into() };
        let s = shown(vec![
            SessionBlock::Thinking("hm\u{e9}".into()),
            call("Ba/sh", r#"{"command":"ls"}"#, Some("x\u{1b}"), CallStatus::Completed),
            call("", "", Some("late"), CallStatus::Failed),
            SessionBlock::Image(image.clone()),
            SessionBlock::Image(image),
            SessionBlock::Text("done".into()),
        ]);
        let name = "sha256-a12871fee210fb86.jpg";
        assert_eq!(
            s.body,
            format!(
                "[thinking: 3 characters -> 01-thinking.txt]\n\
                 [tool call: Ba/sh completed -> 02-tool-Ba_sh.json]\n\
                 [tool call: result failed -> 03-tool-result.json]\n\
                 [image: image/jpeg -> {name}]\n[image: image/jpeg -> {name}]\ndone"
            )
        );
        let part = |name: &str| {
            let part = s.parts.iter().find(|part| part.name == name).unwrap();
            String::from_utf8_lossy(&part.bytes).into_owned()
        };
        assert_eq!(s.parts.len(), 4);
        let call: serde_json::Value = serde_json::from_str(&part("02-tool-Ba_sh.json")).unwrap();
        assert_eq!(call["input"]["command"], "ls");
        assert_eq!((&call["output"], &call["is_error"]), (&"x\u{1b}".into(), &false.into()));
        let late: serde_json::Value = serde_json::from_str(&part("03-tool-result.json")).unwrap();
        assert_eq!((&late["input"], &late["is_error"]), (&serde_json::Value::Null, &true.into()));
    }

    #[test]
    fn one_image_under_many_names_is_in_memory_once() {
        let data: Arc<[u8]> = [1, 2].into();
        let image = |n: usize| {
            let (media_type, data) = (format!("image/a{n}"), Arc::clone(&data));
            SessionBlock::Image(SessionImage { media_type, data })
        };
        let s = shown((0..MAX_PARTS + 7).chain([0, MAX_PARTS + 6]).map(image).collect());
        assert_eq!(s.parts.len(), MAX_PARTS);
        assert!(s.parts.iter().all(|part| Arc::ptr_eq(&part.bytes, &data)));
        let mut last = s.body.lines().rev();
        let end = "[7 more parts are left out; a message has at most 16384]";
        assert_eq!(last.next(), Some(end));
        let left_out = Some("[image: image/a16390 -> left out]");
        assert_eq!(last.next(), left_out);
        assert_eq!(last.next(), Some("[image: image/a0 -> sha256-a12871fee210fb86.a0]"));
        assert_eq!(last.next(), left_out);
    }

    #[test]
    fn only_the_name_of_a_result_file_is_taken() {
        for (text, name) in [
            (
                "saved to /home/a/.claude/projects/p/s/tool-results/toolu_1.txt.\nPreview",
                Some("toolu_1.txt"),
            ),
            ("x /tool-results/../../etc/passwd", None),
            ("x /tool-results//etc/passwd", None),
            ("/etc/passwd", None),
        ] {
            assert_eq!(find_result_file(text), name, "{text}");
        }
    }
}
