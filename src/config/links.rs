//! The `[[link]]` entries of the configuration (docs/links/).

use toml::Spanned;
use toml::de::DeValue;

use super::reader::{ConfigReader, SpannedValue, nest_keys};
use super::values::parse_entry_name;
use crate::link::{LinkConfig, LinkKind};
use crate::model::find_word;

/// The key of [`LinkConfig::settings`].
pub(super) const LINK_SETTINGS: &str = "link settings";

impl<'a> ConfigReader<'a> {
    /// Moves the settings of one kind into a table below its name, as serde reads an enum.
    pub(super) fn nest_settings(&mut self, link: &mut SpannedValue<'a>) {
        let span = link.span();
        let DeValue::Table(table) = link.get_mut() else { return };
        let kind = table.remove("kind");
        if kind.is_none() {
            self.report_missing_kind("link", &span, LinkKind::ALL.iter().map(|kind| kind.name));
        }
        let found = kind.as_ref().and_then(|kind| {
            let found = find_kind(kind.get_ref().as_str().unwrap_or_default());
            found.inspect_err(|why| self.report_value("kind", kind, why)).ok()
        });
        if found.is_none() {
            // The settings of an unknown kind are not read.
            let all = std::mem::take(table).into_iter();
            *table = all.filter(|(key, _)| LinkKind::from_key(key.get_ref()).is_none()).collect();
        }
        let kind = found.unwrap_or(LinkKind::WITHOUT_SETTINGS);
        nest_keys(table, &span, (LINK_SETTINGS, kind.name), kind.keys);
    }

    /// Checks a `[[link]]`, gives it its default names, and makes its paths absolute.
    pub(super) fn check_link(&mut self, table: &SpannedValue<'_>, link: &mut LinkConfig) {
        let kind = link.kind();
        self.check_texts(table, "name", parse_entry_name);
        self.check_texts(table, "store", parse_entry_name);
        self.resolve_path(table, "ca", &mut link.ca);
        // A link of an unknown kind is read as one that may be absent.
        let is_fine = self.problems.is_empty() && !link.off;
        if let Some(absence) = kind.explain_absence().filter(|_| is_fine) {
            self.report_problem(&table.span(), absence);
        }
        let settings = table.get_ref().get(LINK_SETTINGS);
        if let Some(settings) = settings.and_then(|settings| settings.get_ref().get(kind.name)) {
            self.check_settings(settings, kind.keys, link.settings.files_mut());
            if let Some((key, example)) = kind.needed_key.filter(|_| !link.off) {
                let value = settings.get_ref().get(key).map(Spanned::get_ref);
                if value.is_none_or(|value| value.as_array().is_some_and(|all| all.is_empty())) {
                    let text = format!("a link of kind {:?} needs {example}", kind.name);
                    self.report_problem(&table.span(), text);
                }
            }
        }
        if link.name.is_empty() {
            link.name = kind.to_string();
        }
        if link.store.is_empty() {
            link.store = kind.store_kind.to_string();
        }
    }
}

/// Returns the kind with this name.
///
/// # Errors
/// Returns the names of all kinds, and the one that was meant, if that is clear.
fn find_kind(name: &str) -> Result<&'static LinkKind, String> {
    let kinds: Vec<_> = LinkKind::ALL.iter().map(|kind| (kind.name, *kind)).collect();
    let others = LinkKind::ALL.iter().filter(|kind| !kind.other_words.is_empty());
    let others: Vec<_> = others.map(|kind| (kind.other_words, kind.name)).collect();
    find_word(name, &kinds, &others)
}
