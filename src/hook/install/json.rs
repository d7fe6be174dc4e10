//! Hooks among those of others, in a JSON file: added at the end, replaced in place, taken out. Every byte
//! that is somebody else's stays.

use std::collections::HashSet;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstArray, CstInputValue, CstNode, CstObject, CstRootNode};
use serde_json::Value;

use super::super::harness::{Entries, Event};
use crate::model::shell_word;

/// Hooks to be written, each with the program it calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) entries: &'a Entries,
    /// How msgfs is called: its name, or a path.
    pub(super) program: &'a str,
    /// Those of tools, too.
    pub(super) mid_turn: bool,
}

/// Returns how a shell command calls msgfs, if it is a hook of ours: `msgfs hook run …`, by whatever path.
fn own_program(command: &str) -> Option<String> {
    let (program, _) = command.split_once(" hook run ")?;
    let quoted = program.strip_prefix('\'').and_then(|p| p.strip_suffix('\''));
    let program = quoted.map_or_else(|| program.to_owned(), |p| p.replace(r"'\''", "'"));
    let is_own = program == "msgfs" || (program.starts_with('/') && program.ends_with("/msgfs"));
    is_own.then_some(program)
}

impl Wanted<'_> {
    /// Event's key and handler, as they are to be.
    fn handlers(&self, tool: bool) -> impl Iterator<Item = (&'static str, String)> {
        let program = Value::from(shell_word(self.program)).to_string();
        let program = program.trim_matches('"').to_owned();
        let wanted = self.entries.handlers.iter();
        wanted.filter(move |(event, ..)| tool || *event != Event::Tool).map(
            move |(event, key, handler)| {
                let command = format!("\"{program} hook run {}", event.name());
                (*key, handler.replacen("\"msgfs hook run EVENT", &command, 1))
            },
        )
    }

    /// A handler in what stands in an event's list.
    fn grouped(&self, handler: &str) -> String {
        if self.entries.grouped { format!("{{\"hooks\":[{handler}]}}") } else { handler.to_owned() }
    }

    /// Every event's key with its handlers, as they are to be.
    fn lists(&self, tool: bool) -> Vec<(&'static str, Vec<String>)> {
        let mut lists: Vec<(&str, Vec<String>)> = Vec::new();
        for (key, handler) in self.handlers(tool) {
            match lists.iter_mut().find(|(of, _)| *of == key) {
                Some((_, list)) => list.push(handler),
                None => lists.push((key, vec![handler])),
            }
        }
        lists
    }

    /// A new file with nothing else in it.
    pub(super) fn fresh(&self) -> String {
        let version = if self.entries.version { "\"version\":1," } else { "" };
        let line = |(key, list): (&str, Vec<String>)| {
            let list: Vec<String> = list.iter().map(|handler| self.grouped(handler)).collect();
            format!("\"{key}\":[{}]", list.join(",\n"))
        };
        let lines: Vec<String> = self.lists(self.mid_turn).into_iter().map(line).collect();
        format!("{{{version}\"hooks\":{{\n{}}}}}\n", lines.join(",\n"))
    }

    /// The same as TOML, for whoever keeps hooks there.
    pub(super) fn toml(&self) -> String {
        let block = |(key, handler): (&str, String)| {
            let members: toml::Table = serde_json::from_str(&handler).unwrap_or_default();
            format!("[[hooks.{key}]]\n[[hooks.{key}.hooks]]\n{members}")
        };
        self.handlers(self.mid_turn).map(block).collect::<Vec<_>>().join("\n")
    }

    /// Returns how a handler calls msgfs, if it is ours.
    fn own_program(&self, handler: &Value) -> Option<String> {
        own_program(handler.get(self.entries.command)?.as_str()?)
    }

    /// Returns how the first of our hooks in a text calls msgfs.
    pub(super) fn program_in(&self, text: &str) -> Option<String> {
        let own = self.own_in(&Hooks::read(text, self.entries).ok()?);
        self.own_program(&own.first()?.1.to_serde_value()?)
    }

    /// The text with our hooks in it.
    pub(super) fn put(&self, text: &str) -> Result<String, String> {
        let file = Hooks::read(text, self.entries)?;
        let own = self.own_in(&file);
        let has_tool = own.iter().any(|(key, _)| {
            self.entries.handlers.iter().any(|(e, known, _)| *e == Event::Tool && known == key)
        });
        if self.entries.version && file.root.get("version").is_none() {
            file.root.insert(0, "version", CstInputValue::Number("1".to_owned()));
        }
        let hooks = file.root.object_value_or_set("hooks");
        for (key, list) in self.lists(self.mid_turn || has_tool) {
            let mut there = own.iter().filter(|(of, _)| of == key).map(|(_, node)| node.clone());
            for handler in list {
                let value: Value = serde_json::from_str(&handler).map_err(|e| e.to_string())?;
                match there.next() {
                    None => {
                        hooks.array_value_or_set(key).append(input(&self.grouped(&handler))?);
                    }
                    Some(node) if node.to_serde_value().as_ref() != Some(&value) => {
                        replace(node, input(&handler)?);
                    }
                    Some(_) => {}
                }
            }
            there.for_each(Self::remove);
        }
        Ok(file.tree.to_string())
    }

    /// The text without our hooks, and without what is empty then.
    pub(super) fn take(&self, text: &str) -> Result<String, String> {
        let file = Hooks::read(text, self.entries)?;
        for (_, node) in self.own_in(&file) {
            Self::remove(node);
        }
        Ok(file.tree.to_string())
    }

    /// Whether any of our hooks is in it, and whether anything else is.
    pub(super) fn found(&self, text: &str) -> Result<(bool, bool), String> {
        let file = Hooks::read(text, self.entries)?;
        let own = !self.own_in(&file).is_empty();
        let left: Value = serde_json::from_str(&self.take(text)?).unwrap_or_default();
        let other = |(name, _): &(&String, &Value)| *name != "version";
        Ok((own, left.as_object().is_some_and(|left| left.iter().any(|m| other(&m)))))
    }

    /// Our handlers, with the keys of their events.
    fn own_in(&self, file: &Hooks) -> Vec<(String, CstNode)> {
        let mut own = Vec::new();
        for (key, list) in &file.lists {
            for element in list.elements() {
                let handlers = if self.entries.grouped {
                    let inner = element.as_object().and_then(|group| group.array_value("hooks"));
                    inner.map(|inner| inner.elements()).unwrap_or_default()
                } else {
                    vec![element]
                };
                let is_own = |node: &CstNode| {
                    node.to_serde_value().is_some_and(|v| self.own_program(&v).is_some())
                };
                own.extend(handlers.into_iter().filter(is_own).map(|node| (key.clone(), node)));
            }
        }
        own
    }

    /// Removes a handler, and what holds nothing else: its group, its list, the event, `hooks`.
    fn remove(handler: CstNode) {
        let mut node = handler;
        loop {
            let Some(parent) = node.parent() else { return };
            let alone = match (parent.as_array(), parent.as_object()) {
                (Some(list), _) => list.elements().len() == 1,
                (_, Some(object)) => object.properties().len() == 1,
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
struct Hooks {
    tree: CstRootNode,
    root: CstObject,
    /// By event.
    lists: Vec<(String, CstArray)>,
}

impl Hooks {
    fn read(text: &str, entries: &Entries) -> Result<Self, String> {
        let whole: Value =
            serde_json::from_str(text).map_err(|e| format!("it is not valid JSON ({e})"))?;
        let tree = CstRootNode::parse(text, &strict())
            .map_err(|e| format!("it is not valid JSON ({e})"))?;
        let root = tree.object_value().ok_or("it is not a JSON object")?;
        once(&CstNode::Container(jsonc_parser::cst::CstContainerNode::Object(root.clone())))?;
        if entries.version && whole.get("version").is_some_and(|version| *version != 1) {
            return Err("its version is not 1".to_owned());
        }
        let mut lists = Vec::new();
        let Some(hooks) = root.get("hooks") else { return Ok(Self { tree, root, lists }) };
        let hooks = hooks.object_value().ok_or("its \"hooks\" is not an object")?;
        for member in hooks.properties() {
            let key = member.decoded_name().unwrap_or_default();
            if !entries.only.is_empty() && !entries.only.contains(&key.as_str()) {
                return Err(format!(
                    "\"{}\" is not a known event, and one unknown event makes the whole file \
                     invalid",
                    crate::model::one_line(&key)
                ));
            }
            match member.array_value() {
                Some(list) => lists.push((key, list)),
                // Some keep settings among the events; where ours go there must be a list.
                None if entries.handlers.iter().any(|(_, ours, _)| *ours == key) => {
                    return Err(format!("its \"{key}\" is not a list"));
                }
                None => {}
            }
        }
        Ok(Self { tree, root, lists })
    }
}

/// JSON and nothing else.
fn strict() -> ParseOptions {
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

/// Refuses an object that has one name twice: which of them counts is up to each reader.
fn once(node: &CstNode) -> Result<(), String> {
    if let Some(object) = node.as_object() {
        let mut names = HashSet::new();
        for member in object.properties() {
            let name = member.decoded_name().unwrap_or_default();
            if !names.insert(name.clone()) {
                return Err(format!(
                    "it has the member \"{}\" twice",
                    crate::model::one_line(&name)
                ));
            }
        }
    }
    node.children_exclude_trivia_and_tokens().iter().try_for_each(once)
}

fn replace(node: CstNode, with: CstInputValue) {
    // Own handlers are objects: they have a command.
    if let Some(object) = node.as_object() {
        object.replace_with(with);
    }
}

/// JSON text as what the tree takes, in the order of its members.
fn input(text: &str) -> Result<CstInputValue, String> {
    let tree = CstRootNode::parse(text, &strict()).map_err(|e| e.to_string())?;
    Ok(tree.value().map_or(CstInputValue::Null, |value| given(&value)))
}

fn given(node: &CstNode) -> CstInputValue {
    if let Some(object) = node.as_object() {
        let member = |member: &jsonc_parser::cst::CstObjectProp| {
            let value = member.value().map_or(CstInputValue::Null, |value| given(&value));
            (member.decoded_name().unwrap_or_default(), value)
        };
        return CstInputValue::Object(object.properties().iter().map(member).collect());
    }
    if let Some(list) = node.as_array() {
        return CstInputValue::Array(list.elements().iter().map(given).collect());
    }
    match node.to_serde_value() {
        Some(Value::String(text)) => CstInputValue::String(text),
        Some(Value::Bool(value)) => CstInputValue::Bool(value),
        Some(Value::Number(number)) => CstInputValue::Number(number.to_string()),
        _ => CstInputValue::Null,
    }
}
