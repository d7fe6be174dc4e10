//! A message as text: its blocks in order. Each block that is not text becomes a marked line and a part with the full
//! content.

use std::collections::HashMap;

use super::line::AtsfLine;
use crate::model::{Attachment, cut_text, sanitize_line, sanitize_text};
use crate::store::text::json_values::{as_text, pick_members, split_elements};

/// The most characters of a title in a marked line.
const TITLE: usize = 120;
/// The most parts of a message.
pub(in crate::store) const MAX_PARTS: usize = 16_384;
/// The most bytes of a word in the name of a part.
const WORD: usize = 40;

/// A message as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtsfRenderedMessage {
    /// The text.
    pub body: String,
    /// The files it refers to, each once.
    pub assets: Vec<Attachment>,
    /// The parts for which marked lines stand.
    pub parts: Vec<AtsfMessagePart>,
}

/// A part for which a marked line stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtsfMessagePart {
    /// The file name, unique in its message.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A function that returns the size of a file by its `assetRef`, or the reason why it is withheld.
pub type AtsfAssetLookup<'a> = dyn Fn(&str) -> Result<u64, String> + 'a;

/// Renders a message.
pub fn render(line: &AtsfLine<'_>, assets: &AtsfAssetLookup<'_>) -> AtsfRenderedMessage {
    let calls = line.calls.map(split_elements).unwrap_or_default();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for (n, call) in calls.iter().enumerate() {
        let id = pick_members(call, ["toolCallId"]);
        if let Some(id) = id.and_then(|[id]| Some(as_text(id.as_ref())?.into_owned())) {
            numbers.entry(id).or_insert(n);
        }
    }
    let mut out = AtsfRenderer {
        assets,
        rendered: AtsfRenderedMessage::default(),
        asset_places: HashMap::new(),
        steps: 0,
        left_out: 0,
    };
    let mut used = vec![None; calls.len()];
    for block in split_elements(line.content) {
        let Some([kind, id]) = pick_members(block, ["type", "toolCallId"]) else {
            out.render_unknown("block", block);
            continue;
        };
        let kind = as_text(kind.as_ref()).unwrap_or_default();
        if kind != "tool_call_ref" {
            out.render_block(&kind, block);
            continue;
        }
        let id = as_text(id.as_ref()).unwrap_or_default();
        match numbers.get(&*id) {
            Some(n) => out.render_call(&calls, *n, &mut used),
            None => out.push_placeholder(&format!(
                "tool call: {} is not in this message",
                shorten_text(&id)
            )),
        }
    }
    for n in 0..calls.len() {
        if used.get(n).is_some_and(Option::is_none) {
            out.render_call(&calls, n, &mut used);
        }
    }
    if out.left_out > 0 {
        out.push_placeholder(&describe_left_out(out.left_out));
    }
    out.rendered
}

struct AtsfRenderer<'a> {
    assets: &'a AtsfAssetLookup<'a>,
    rendered: AtsfRenderedMessage,
    /// The words of a marked line for each asset that is listed already.
    asset_places: HashMap<String, String>,
    /// The number of blocks and tool calls so far, used in the names of parts.
    steps: usize,
    /// The number of parts that are left out.
    left_out: usize,
}

impl AtsfRenderer<'_> {
    fn push_line(&mut self, text: &str) {
        let body = &mut self.rendered.body;
        if !body.is_empty() && !body.ends_with('\n') {
            body.push('\n');
        }
        body.push_str(text);
    }

    /// Adds a marked line.
    fn push_placeholder(&mut self, what: &str) {
        self.push_line(&format!("[{what}]"));
    }

    /// Adds a part under a numbered name. Returns the name, or words that stand for a part that is left out.
    fn add_part(&mut self, word: &str, extension: &str, bytes: &[u8]) -> String {
        if self.rendered.parts.len() >= MAX_PARTS {
            self.left_out += 1;
            return "left out".to_owned();
        }
        let name = format!("{:02}-{}.{extension}", self.steps, safe_word(word));
        // People read it with `cat`, like the body; raw/ has the bytes.
        let text = String::from_utf8_lossy(bytes);
        let safe = sanitize_text(&text);
        self.rendered
            .parts
            .push(AtsfMessagePart { name: name.clone(), bytes: safe.into_owned().into() });
        name
    }

    fn render_block(&mut self, kind: &str, block: &str) {
        let names = ["text", "assetRef", "mimeType", "uri", "name", "title"];
        let Some([value, asset, mime, uri, name, title]) = pick_members(block, names) else {
            return;
        };
        let get = |value| as_text(value).unwrap_or_default();
        match (kind, as_text(value.as_ref())) {
            ("text", Some(value)) => {
                self.steps += 1;
                self.push_line(&value);
            }
            ("thinking", Some(value)) => {
                self.steps += 1;
                let part = self.add_part("thinking", "txt", value.as_bytes());
                let count = value.chars().count();
                self.push_placeholder(&format!("thinking: {count} characters -> {part}"));
            }
            ("image" | "audio", _) if asset.is_some() => {
                self.steps += 1;
                let place = self.add_asset(&get(asset.as_ref()));
                self.push_placeholder(&format!(
                    "{kind}: {} -> {place}",
                    shorten_text(&get(mime.as_ref()))
                ));
            }
            ("resource", value) if value.is_some() || asset.is_some() => {
                self.steps += 1;
                let place = match value {
                    Some(value) => self.add_part("resource", "txt", value.as_bytes()),
                    None => self.add_asset(&get(asset.as_ref())),
                };
                let mime = as_text(mime.as_ref())
                    .map_or_else(String::new, |m| format!(" {}", shorten_text(&m)));
                self.push_placeholder(&format!(
                    "resource: {}{mime} -> {place}",
                    shorten_text(&get(uri.as_ref()))
                ));
            }
            ("resource_link", _) if uri.is_some() => {
                self.steps += 1;
                let part = self.add_part("resource_link", "json", block.as_bytes());
                let called = as_text(title.as_ref()).or_else(|| as_text(name.as_ref()));
                let called =
                    called.map_or_else(String::new, |name| format!("{:?} ", shorten_text(&name)));
                let uri = get(uri.as_ref());
                self.push_placeholder(&format!(
                    "resource link: {called}{} -> {part}",
                    shorten_text(&uri)
                ));
            }
            _ => self.render_unknown(kind, block),
        }
    }

    /// Renders a block of an unknown type.
    fn render_unknown(&mut self, kind: &str, block: &str) {
        self.steps += 1;
        let kind = if kind.is_empty() { "block" } else { kind };
        let part = self.add_part(kind, "json", block.as_bytes());
        self.push_placeholder(&format!("{}: not shown here -> {part}", shorten_text(kind)));
    }

    /// Lists a file that the message refers to, and returns its name for a marked line. The file is looked up once.
    fn add_asset(&mut self, reference: &str) -> String {
        if let Some(place) = self.asset_places.get(reference) {
            return place.clone();
        }
        let shown = shorten_text(reference);
        let (size, withheld) = match (self.assets)(reference) {
            Ok(size) => (size, None),
            Err(why) => (0, Some(format!("withheld: {why}"))),
        };
        let place =
            withheld.as_ref().map_or_else(|| shown.clone(), |why| format!("{shown} ({why})"));
        self.rendered.assets.push(Attachment { name: shown, size, withheld });
        self.asset_places.insert(reference.to_owned(), place.clone());
        place
    }

    /// Renders a tool call. A second reference to the call repeats only the name of the part: a line is many times as
    /// long as a reference.
    fn render_call(&mut self, calls: &[&str], n: usize, used: &mut [Option<String>]) {
        let Some(call) = calls.get(n) else { return };
        if let Some(Some(part)) = used.get(n) {
            return self.push_placeholder(&format!("tool call -> {part}"));
        }
        self.steps += 1;
        let names = ["name", "title", "status"];
        let [name, title, status] = pick_members(call, names).unwrap_or_default();
        let name = as_text(name.as_ref()).unwrap_or_default();
        let part = self.add_part(&format!("tool-{name}"), "json", call.as_bytes());
        let title = as_text(title.as_ref()).filter(|title| *title != name);
        let title =
            title.map_or_else(String::new, |title| format!(" \"{}\"", shorten_text(&title)));
        let status =
            as_text(status.as_ref()).map_or_else(String::new, |s| format!(" {}", shorten_text(&s)));
        self.push_placeholder(&format!(
            "tool call: {}{title}{status} -> {part}",
            shorten_text(&name)
        ));
        if let Some(slot) = used.get_mut(n) {
            *slot = Some(part);
        }
    }
}

/// Returns a foreign word on one line and not too long.
pub(in crate::store) fn shorten_text(text: &str) -> String {
    sanitize_line(&cut_text(text, TITLE)).into_owned()
}

/// Describes the parts above [`MAX_PARTS`] in words of a marked line.
pub(in crate::store) fn describe_left_out(count: usize) -> String {
    format!("{count} more parts are left out; a message has at most {MAX_PARTS}")
}

/// Returns a foreign word in a form that a file name may have.
pub(in crate::store) fn safe_word(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    word.chars().take(WORD).map(|c| if safe(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::line::parse;
    use super::*;
    use proptest::prelude::*;

    fn shown(content: &str, calls: &str) -> AtsfRenderedMessage {
        let text = format!(
            r#"{{"id":"m","role":"agent","timestamp":"","content":{content},"toolCalls":{calls}}}"#
        );
        let assets = |name: &str| match name {
            "sha256-0123456789abcdef.png" => Ok(7),
            _ => Err("the file is not here".to_owned()),
        };
        render(&parse(&text).unwrap(), &assets)
    }

    #[test]
    fn every_block_has_its_line() {
        let content = r#"[{"type":"thinking","text":"hm\u00e9"},{"type":"text","text":"one"},
            {"type":"tool_call_ref","toolCallId":"b"},{"type":"image","assetRef":"sha256-0123456789abcdef.png","mimeType":"image/png"},
            {"type":"image","assetRef":"../../x","mimeType":"image/png"},{"type":"text","text":"two\n"},
            {"type":"resource","uri":"file:///a","mimeType":"text/plain","text":"A"},
            {"type":"resource_link","uri":"http://x","name":"X"},{"type":"future","a":[1]},7,
            {"type":"tool_call_ref","toolCallId":"z"}]"#;
        let calls = r#"[{"toolCallId":"a","name":"grep","status":"failed"},{"toolCallId":"b","name":"Ba/sh","title":"ls\n-la","status":"completed","output":"x"}]"#;
        let s = shown(content, calls);
        assert_eq!(
            s.body,
            "[thinking: 3 characters -> 01-thinking.txt]\none\n\
             [tool call: Ba/sh \"ls\u{240a}-la\" completed -> 03-tool-Ba_sh.json]\n\
             [image: image/png -> sha256-0123456789abcdef.png]\n\
             [image: image/png -> ../../x (withheld: the file is not here)]\ntwo\n\
             [resource: file:///a text/plain -> 07-resource.txt]\n\
             [resource link: \"X\" http://x -> 08-resource_link.json]\n\
             [future: not shown here -> 09-future.json]\n\
             [block: not shown here -> 10-block.json]\n\
             [tool call: z is not in this message]\n\
             [tool call: grep failed -> 11-tool-grep.json]"
        );
        let part = |name: &str| s.parts.iter().find(|p| p.name == name).unwrap().bytes.clone();
        assert_eq!(part("01-thinking.txt"), "hm\u{e9}".as_bytes());
        assert_eq!(part("09-future.json"), br#"{"type":"future","a":[1]}"#);
        assert!(part("03-tool-Ba_sh.json").ends_with(br#""output":"x"}"#));
        let assets: Vec<(&str, u64, bool)> =
            s.assets.iter().map(|a| (a.name.as_str(), a.size, a.withheld.is_some())).collect();
        assert_eq!(assets, [("sha256-0123456789abcdef.png", 7, false), ("../../x", 0, true)]);
    }

    #[test]
    fn an_asset_is_looked_up_once() {
        let image = r#"{"type":"image","assetRef":"x","mimeType":"image/png"}"#;
        let text = format!(
            r#"{{"id":"m","role":"agent","timestamp":"","content":[{image},{image},{image}]}}"#
        );
        let lookups = std::cell::Cell::new(0);
        let assets = |_: &str| {
            lookups.set(lookups.get() + 1);
            Err("no".to_owned())
        };
        let s = render(&parse(&text).unwrap(), &assets);
        assert_eq!((lookups.get(), s.assets.len()), (1, 1));
        assert_eq!(s.body, ["[image: image/png -> x (withheld: no)]"; 3].join("\n"));
    }

    #[test]
    fn a_call_marked_twice_is_one_part() {
        let r = r#"{"type":"tool_call_ref","toolCallId":"a"}"#;
        let s =
            shown(&format!("[{r},{r}]"), r#"[{"toolCallId":"a","name":"x","status":"running"}]"#);
        assert_eq!(s.parts.len(), 1);
        assert_eq!(
            s.body,
            "[tool call: x running -> 01-tool-x.json]\n[tool call -> 01-tool-x.json]"
        );
        assert_eq!(shown("[]", "[]"), AtsfRenderedMessage::default());
    }

    #[test]
    fn many_marks_of_one_call_are_not_much_longer_than_their_blocks() {
        let marks = [r#"{"type":"tool_call_ref","toolCallId":"a"}"#; 1000].join(",");
        let long = "\u{1f600}".repeat(TITLE);
        let call =
            serde_json::json!([{"toolCallId": "a", "name": long, "title": long, "status": long}]);
        let s = shown(&format!("[{marks}]"), &call.to_string());
        assert_eq!((s.parts.len(), s.body.lines().count()), (1, 1000));
        assert!(s.body.len() < 2 * marks.len() + 8 * long.len(), "{}", s.body.len());
    }

    #[test]
    fn a_message_has_at_most_so_many_parts() {
        let (count, mut calls, mut marks) = (MAX_PARTS + 7, Vec::new(), Vec::new());
        for n in 0..count {
            calls.push(format!(r#"{{"toolCallId":"{n}","name":"x","status":"failed"}}"#));
            marks.push(format!(r#"{{"type":"tool_call_ref","toolCallId":"{}"}}"#, count - 1 - n));
        }
        let s = shown(&format!("[{}]", marks.join(",")), &format!("[{}]", calls.join(",")));
        assert_eq!((s.parts.len(), s.body.lines().count()), (MAX_PARTS, count + 1));
        let mut last = s.body.lines().rev();
        let end = "[7 more parts are left out; a message has at most 16384]";
        assert_eq!(last.next(), Some(end));
        assert_eq!(last.next(), Some("[tool call: x failed -> left out]"));
        let first = s.parts.first().map(|part| part.bytes.starts_with(calls[count - 1].as_bytes()));
        assert_eq!(first, Some(true));
    }

    proptest! {
        #[test]
        fn names_are_safe_and_unique(kinds in proptest::collection::vec(any::<String>(), 0..8)) {
            let blocks: Vec<String> =
                kinds.iter().map(|k| serde_json::json!({"type": k, "name": k}).to_string()).collect();
            let array = format!("[{}]", blocks.join(","));
            let s = shown(&array, &array);
            let names: HashSet<&str> = s.parts.iter().map(|p| p.name.as_str()).collect();
            prop_assert_eq!(names.len(), s.parts.len());
            prop_assert!(names.iter().all(|n| crate::store::confined::is_component(n)));
        }
    }
}
