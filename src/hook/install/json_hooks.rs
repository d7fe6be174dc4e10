//! Hooks among those of others, in a JSON file: added at the end, replaced in place, taken out. Every byte of others
//! stays.

use std::collections::HashSet;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstObject, CstRootNode};
use serde_json::Value;

use super::super::harness::{HookEntries, HookEvent};
use crate::model::quote_shell_word;

/// Hooks to be written, each with the program it calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookSpec<'a> {
    pub(super) entries: &'a HookEntries,
    /// The command that calls msgfs: its name, or a path.
    pub(super) program: &'a str,
    /// True to include hooks for tools.
    pub(super) mid_turn: bool,
}

/// The beginning of the command in each handler of a harness.
const TEMPLATE: &str = "msgfs hook run EVENT";

/// Returns the program in the first word of a shell command, if it is msgfs, by any path.
fn parse_own_program(word: &str) -> Option<String> {
    let quoted = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\''));
    let program = quoted.map_or_else(|| word.to_owned(), |word| word.replace(r"'\''", "'"));
    let is_own = program == "msgfs" || (program.starts_with('/') && program.ends_with("/msgfs"));
    is_own.then_some(program)
}

impl HookSpec<'_> {
    /// Returns each event's key and handler, as they must be.
    fn render_handlers(&self, tool: bool) -> impl Iterator<Item = (&'static str, String)> {
        let program = Value::from(quote_shell_word(self.program)).to_string();
        let program = program.trim_matches('"').to_owned();
        let wanted = self.entries.handlers.iter();
        wanted.filter(move |(event, ..)| tool || *event != HookEvent::Tool).map(
            move |(event, key, handler)| {
                let command = format!("\"{program} hook run {}", event.name());
                (*key, handler.replacen(&format!("\"{TEMPLATE}"), &command, 1))
            },
        )
    }

    /// Wraps a handler in an element of an event's list.
    fn wrap_in_group(&self, handler: &str) -> String {
        if self.entries.is_grouped {
            format!("{{\"hooks\":[{handler}]}}")
        } else {
            handler.to_owned()
        }
    }

    /// Returns every event's key with its handlers, as they must be.
    fn list_by_event(&self, tool: bool) -> Vec<(&'static str, Vec<String>)> {
        let mut lists: Vec<(&str, Vec<String>)> = Vec::new();
        for (key, handler) in self.render_handlers(tool) {
            match lists.iter_mut().find(|(of, _)| *of == key) {
                Some((_, list)) => list.push(handler),
                None => lists.push((key, vec![handler])),
            }
        }
        lists
    }

    /// Returns a new file with our hooks and nothing else.
    pub(super) fn render_new_file(&self) -> String {
        let version = if self.entries.has_version { "\"version\":1," } else { "" };
        let line = |(key, list): (&str, Vec<String>)| {
            let list: Vec<String> =
                list.iter().map(|handler| self.wrap_in_group(handler)).collect();
            format!("\"{key}\":[{}]", list.join(",\n"))
        };
        let lines: Vec<String> = self.list_by_event(self.mid_turn).into_iter().map(line).collect();
        format!("{{{version}\"hooks\":{{\n{}}}}}\n", lines.join(",\n"))
    }

    /// Returns the hooks as TOML, for a person who keeps hooks there.
    pub(super) fn render_toml(&self) -> String {
        let block = |(key, handler): (&str, String)| {
            let members: toml::Table = serde_json::from_str(&handler).unwrap_or_default();
            format!("[[hooks.{key}]]\n[[hooks.{key}.hooks]]\n{members}")
        };
        self.render_handlers(self.mid_turn).map(block).collect::<Vec<_>>().join("\n")
    }

    /// Returns the program that a handler calls, if its command is exactly one of ours, for any event.
    fn read_own_program(&self, handler: &Value) -> Option<String> {
        let command = handler.get(self.entries.command)?.as_str()?;
        let (program, call) = command.split_once(" hook run ")?;
        let (event, end) = call.split_at_checked(call.find(' ')?)?;
        HookEvent::from_name(event)?;
        let is_ours = |(_, _, handler): &(HookEvent, &str, &str)| {
            let known: Option<Value> = serde_json::from_str(handler).ok();
            let known = known.as_ref().and_then(|known| known.get(self.entries.command)?.as_str());
            known.and_then(|known| known.strip_prefix(TEMPLATE)) == Some(end)
        };
        self.entries.handlers.iter().find(|handler| is_ours(handler))?;
        parse_own_program(program)
    }

    /// Returns true if one of our handlers is for tools.
    fn has_tool(&self, own: &[(String, CstNode)]) -> bool {
        own.iter().any(|(key, _)| {
            self.entries.handlers.iter().any(|(e, known, _)| *e == HookEvent::Tool && known == key)
        })
    }

    /// Returns a file that is all ours, made anew. It keeps the hook for tools.
    pub(super) fn renew_file(&self, text: &str) -> Result<String, String> {
        let file = HooksFile::parse(text, self.entries)?;
        let mid_turn = self.mid_turn || self.has_tool(&self.find_own_handlers(&file));
        Ok(Self { mid_turn, ..*self }.render_new_file())
    }

    /// Returns the program that the first of our hooks in a text calls.
    pub(super) fn find_program_in(&self, text: &str) -> Option<String> {
        let own = self.find_own_handlers(&HooksFile::parse(text, self.entries).ok()?);
        self.read_own_program(&own.first()?.1.to_serde_value()?)
    }

    /// Returns the text with our hooks in it.
    pub(super) fn insert_hooks(&self, text: &str) -> Result<String, String> {
        let file = HooksFile::parse(text, self.entries)?;
        let own = self.find_own_handlers(&file);
        let has_tool = self.has_tool(&own);
        if self.entries.has_version && file.root.get("version").is_none() {
            file.root.insert(0, "version", CstInputValue::Number("1".to_owned()));
        }
        let hooks = file.root.object_value_or_set("hooks");
        for (key, list) in self.list_by_event(self.mid_turn || has_tool) {
            let mut there = own.iter().filter(|(of, _)| of == key).map(|(_, node)| node.clone());
            for handler in list {
                let value: Value = serde_json::from_str(&handler).map_err(|e| e.to_string())?;
                match there.next() {
                    None => {
                        hooks
                            .array_value_or_set(key)
                            .append(parse_input_value(&self.wrap_in_group(&handler))?);
                    }
                    Some(node) if node.to_serde_value().as_ref() != Some(&value) => {
                        replace_handler(node, parse_input_value(&handler)?);
                    }
                    Some(_) => {}
                }
            }
            there.for_each(Self::remove_handler);
        }
        Ok(file.tree.to_string())
    }

    /// Returns the text without our hooks, and without the lists and objects that they leave empty.
    pub(super) fn remove_hooks(&self, text: &str) -> Result<String, String> {
        let file = HooksFile::parse(text, self.entries)?;
        for (_, node) in self.find_own_handlers(&file) {
            Self::remove_handler(node);
        }
        Ok(file.tree.to_string())
    }

    /// Returns two flags: the text has hooks of ours, and it has anything else.
    pub(super) fn has_own_and_other(&self, text: &str) -> Result<(bool, bool), String> {
        let file = HooksFile::parse(text, self.entries)?;
        let own = !self.find_own_handlers(&file).is_empty();
        let left: Value = serde_json::from_str(&self.remove_hooks(text)?).unwrap_or_default();
        let other = |(name, _): &(&String, &Value)| *name != "version";
        Ok((own, left.as_object().is_some_and(|left| left.iter().any(|m| other(&m)))))
    }

    /// Returns our handlers, with the keys of their events.
    fn find_own_handlers(&self, file: &HooksFile) -> Vec<(String, CstNode)> {
        let mut own = Vec::new();
        for (key, list) in &file.event_lists {
            for element in list.elements() {
                let handlers = if self.entries.is_grouped {
                    let inner = element.as_object().and_then(|group| group.array_value("hooks"));
                    inner.map(|inner| inner.elements()).unwrap_or_default()
                } else {
                    vec![element]
                };
                let is_own = |node: &CstNode| {
                    node.to_serde_value().is_some_and(|v| self.read_own_program(&v).is_some())
                };
                own.extend(handlers.into_iter().filter(is_own).map(|node| (key.clone(), node)));
            }
        }
        own
    }

    /// Removes a handler, and its group if it has no other handler, and the list, the event and `hooks` if they hold
    /// nothing else.
    fn remove_handler(handler: CstNode) {
        let mut node = handler;
        loop {
            let Some(parent) = node.parent() else { return };
            // A group without handlers is none, whatever else it holds.
            let is_group = parent.parent().is_some_and(|above| above.is_array());
            let alone = match (parent.as_array(), parent.as_object()) {
                (Some(list), _) => list.elements().len() == 1,
                (_, Some(object)) => is_group || object.properties().len() == 1,
                // The value of a member goes with it.
                _ => true,
            };
            let is_root = parent.parent().is_none_or(|above| above.is_root());
            if !alone || is_root {
                node.remove();
                return;
            }
            node = CstNode::Container(parent);
        }
    }
}

/// A file of hooks, as far as it is understood.
struct HooksFile {
    tree: CstRootNode,
    root: CstObject,
    /// The list of each event.
    event_lists: Vec<(String, CstArray)>,
}

impl HooksFile {
    fn parse(text: &str, entries: &HookEntries) -> Result<Self, String> {
        let whole: Value =
            serde_json::from_str(text).map_err(|e| format!("it is not valid JSON ({e})"))?;
        let tree = CstRootNode::parse(text, &strict_options())
            .map_err(|e| format!("it is not valid JSON ({e})"))?;
        let root = tree.object_value().ok_or("it is not a JSON object")?;
        check_unique_names(&CstNode::Container(jsonc_parser::cst::CstContainerNode::Object(
            root.clone(),
        )))?;
        if entries.has_version && whole.get("version").is_some_and(|version| *version != 1) {
            return Err("its version is not 1".to_owned());
        }
        let mut lists = Vec::new();
        let Some(hooks) = root.get("hooks") else {
            return Ok(Self { tree, root, event_lists: lists });
        };
        let hooks = hooks.object_value().ok_or("its \"hooks\" is not an object")?;
        for member in hooks.properties() {
            let key = member.decoded_name().unwrap_or_default();
            if !entries.known_events.is_empty() && !entries.known_events.contains(&key.as_str()) {
                return Err(format!(
                    "\"{}\" is not a known event, and one unknown event makes the whole file \
                     invalid",
                    crate::model::sanitize_line(&key)
                ));
            }
            match member.array_value() {
                Some(list) => lists.push((key, list)),
                // Some harnesses keep settings among the events. An event of ours must have a list.
                None if entries.handlers.iter().any(|(_, ours, _)| *ours == key) => {
                    return Err(format!("its \"{key}\" is not a list"));
                }
                None => {}
            }
        }
        Ok(Self { tree, root, event_lists: lists })
    }
}

/// Returns parse options for JSON and nothing else.
fn strict_options() -> ParseOptions {
    ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// Refuses an object that has one name twice: readers differ in which of them counts.
fn check_unique_names(node: &CstNode) -> Result<(), String> {
    if let Some(object) = node.as_object() {
        let mut names = HashSet::new();
        for member in object.properties() {
            let name = member.decoded_name().unwrap_or_default();
            if !names.insert(name.clone()) {
                return Err(format!(
                    "it has the member \"{}\" twice",
                    crate::model::sanitize_line(&name)
                ));
            }
        }
    }
    node.children_exclude_trivia_and_tokens().iter().try_for_each(check_unique_names)
}

fn replace_handler(node: CstNode, with: CstInputValue) {
    // Own handlers are objects: they have a command.
    if let Some(object) = node.as_object() {
        object.replace_with(with);
    }
}

/// Parses JSON text into an input value of the tree, in the order of its members.
fn parse_input_value(text: &str) -> Result<CstInputValue, String> {
    let tree = CstRootNode::parse(text, &strict_options()).map_err(|e| e.to_string())?;
    Ok(tree.value().map_or(CstInputValue::Null, |value| to_input_value(&value)))
}

fn to_input_value(node: &CstNode) -> CstInputValue {
    if let Some(object) = node.as_object() {
        let member = |member: &jsonc_parser::cst::CstObjectProp| {
            let value = member.value().map_or(CstInputValue::Null, |value| to_input_value(&value));
            (member.decoded_name().unwrap_or_default(), value)
        };
        return CstInputValue::Object(object.properties().iter().map(member).collect());
    }
    if let Some(list) = node.as_array() {
        return CstInputValue::Array(list.elements().iter().map(to_input_value).collect());
    }
    match node.to_serde_value() {
        Some(Value::String(text)) => CstInputValue::String(text),
        Some(Value::Bool(value)) => CstInputValue::Bool(value),
        Some(Value::Number(number)) => CstInputValue::Number(number.to_string()),
        _ => CstInputValue::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::harness::{Harness, HookLayout};

    const THEIRS: &str = r#"{"type":"command","command":"echo"}"#;
    const OURS: &str = r#"{"type":"command","command":"/old/msgfs hook run stop --for claude-code 2>/dev/null || true"}"#;

    fn claude_hooks() -> HookSpec<'static> {
        match &Harness::from_name("claude-code").unwrap().hooks {
            HookLayout::Shared(entries) => HookSpec { entries, program: "msgfs", mid_turn: false },
            other => panic!("{other:?}"),
        }
    }

    fn group(handlers: &[&str]) -> String {
        format!(r#"{{"matcher":"startup","hooks":[{}]}}"#, handlers.join(","))
    }

    fn file(groups: &[String]) -> String {
        format!(r#"{{"theme":"dark","hooks":{{"SessionStart":[{}]}}}}"#, groups.join(","))
    }

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_group_goes_with_its_last_handler() {
        let empty = r#"{"theme":"dark"}"#.to_owned();
        for (before, after) in [
            (file(&[group(&[OURS])]), empty.clone()),
            (file(&[group(&[OURS, OURS]), group(&[OURS])]), empty),
            (file(&[group(&[OURS]), group(&[THEIRS])]), file(&[group(&[THEIRS])])),
            (file(&[group(&[OURS, THEIRS])]), file(&[group(&[THEIRS])])),
        ] {
            let removed = claude_hooks().remove_hooks(&before).unwrap();
            assert_eq!(value(&removed), value(&after), "{before}");
        }
    }

    #[test]
    fn only_a_whole_command_of_ours_is_ours() {
        let line = |text: &str| {
            let command = Value::from(text).to_string();
            file(&[group(&[&format!(r#"{{"type":"command","command":{command}}}"#)])])
        };
        let ours = "msgfs hook run stop --for claude-code";
        for end in [
            "; /home/anna/mine.sh",
            " 2>/dev/null || true; /home/anna/mine.sh",
            " | tee -a /home/anna/log",
            " --me anna 2>/dev/null || true",
            " --wait; test $? -eq 10 && exit 2; exit 0; x",
        ] {
            let text = line(&format!("{ours}{end}"));
            assert_eq!(claude_hooks().remove_hooks(&text).unwrap(), text);
        }
        for program in ["msgfs", "/opt/bin/msgfs", "'/my tools/msgfs'"] {
            for end in ["2>/dev/null || true", "--wait; test $? -eq 10 && exit 2; exit 0"] {
                let text = line(&format!("{program} hook run stop --for claude-code {end}"));
                assert_eq!(claude_hooks().has_own_and_other(&text), Ok((true, true)), "{text}");
            }
        }
    }

    #[test]
    fn a_surplus_handler_goes_with_its_group() {
        let before = file(&[group(&[OURS]), group(&[OURS]), group(&[OURS]), group(&[THEIRS])]);
        let after = value(&claude_hooks().insert_hooks(&before).unwrap());
        let groups = after["hooks"]["SessionStart"].as_array().unwrap();
        assert_eq!(groups.len(), 3, "{after}");
        assert!(groups.iter().all(|group| !group["hooks"].as_array().unwrap().is_empty()));
        assert_eq!(groups[2], value(&group(&[THEIRS])));
    }
}
