//! A check for settings by which a harness runs none of our hooks, in all their files.

use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::CstRootNode;
use serde_json::Value;

use super::super::harness::Harness;
use super::super::switches::{HookSwitch, OffCondition};
use super::plugin::settings_path;
use crate::config::Env;
use crate::store::fs::read_small_file;

/// The largest size of such a file.
pub(super) const LARGEST: u64 = 1 << 20;

/// Returns each file that keeps a harness from running our hooks here, with the setting in it.
pub fn find_off_switches(env: &Env, harness: &Harness) -> Vec<(PathBuf, String)> {
    let files = |switch: &'static HookSwitch| switch.files.iter().map(move |file| (switch, file));
    let all = harness.switches.iter().flat_map(files);
    all.filter_map(|(switch, (place, name))| {
        let path = settings_path(env, &super::harness_folder(env, harness)?, *place, name)?;
        is_switched_off(&read_settings(&path)?, switch).then(|| (path, switch.path.join(".")))
    })
    .collect()
}

/// Reads settings, with comments or without, or in TOML.
pub(super) fn read_settings(path: &Path) -> Option<Value> {
    let place = path.canonicalize().ok()?;
    let text = String::from_utf8(read_small_file(&place, LARGEST).ok()?).ok()?;
    if path.extension().is_some_and(|end| end == "toml") {
        return serde_json::to_value(text.parse::<toml::Table>().ok()?).ok();
    }
    CstRootNode::parse(&text, &ParseOptions::default()).ok()?.value()?.to_serde_value()
}

fn is_switched_off(settings: &Value, switch: &HookSwitch) -> bool {
    let said = switch.path.iter().try_fold(settings, |value, name| value.get(name));
    match (said, switch.off_condition) {
        (Some(Value::Bool(said)), OffCondition::Equals(off)) => *said == off,
        (Some(Value::Array(list)), OffCondition::Lists(name)) => list.iter().any(|one| one == name),
        _ => false,
    }
}
