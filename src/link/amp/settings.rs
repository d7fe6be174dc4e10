//! Registration files, with the provider, its URLs and the key (docs/links/amp.md).

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use zeroize::Zeroizing;

use crate::link::engine::{EngineSettings, NamedSettings};
use crate::link::secret;
use crate::model::display_path;
use crate::store::amp::address::LOCAL_PROVIDER;
use crate::store::amp::registration;

/// A registration, without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AmpRegistration {
    /// The path of the file.
    pub file: PathBuf,
    /// The path for people.
    pub display_path: String,
    /// The provider's name.
    pub provider: String,
    /// My address there, in lower case.
    pub address: String,
    /// The URL before the paths of the API.
    pub base: String,
    /// The URL that takes messages.
    pub route: String,
    /// The URL that lists pending messages.
    pub fetch: String,
}

/// The key of a registration. No output contains it.
pub(super) struct AmpApiKey(Zeroizing<String>);

impl fmt::Debug for AmpApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(the key)")
    }
}

impl AmpApiKey {
    /// Makes a key from its text.
    pub fn new(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }

    /// Returns the text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text of the key, which is wiped from memory when it is dropped.
    pub fn into_secret(self) -> Zeroizing<String> {
        self.0
    }
}

/// The members of a file that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AmpRegistrationFile {
    provider: Option<String>,
    api_url: Option<String>,
    route_url: Option<String>,
    fetch_url: Option<String>,
    api_key: Option<String>,
}

/// Returns the links that the registrations in a folder describe, with their names.
pub fn find_links(registrations: &Path, me: &str) -> NamedSettings {
    let entries = std::fs::read_dir(registrations).into_iter().flatten().flatten();
    let link = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
        let settings = EngineSettings {
            kind: "amp".into(),
            file: path,
            part: String::new(),
            me: me.to_owned(),
            insecure: false,
            ca: None,
            self_copy: false,
        };
        (!name.is_empty() && !name.starts_with('.')).then_some((name, settings))
    };
    let mut found: NamedSettings = entries.filter_map(|entry| link(entry.path())).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Reads a registration.
///
/// # Errors
/// Returns the reason why it cannot be used, without the key.
pub(super) fn read_registration(path: &Path) -> Result<(AmpRegistration, AmpApiKey), String> {
    let shown = display_path(path);
    let bad = |what: &str| format!("{shown}: {what}");
    let text = secret::read_secret(path).map_err(|e| e.to_string())?;
    // The words of serde may quote the text.
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|_| bad("it is not a registration: it is not JSON"))?;
    let address = registration::parse_registered_address(&value, LOCAL_PROVIDER);
    let address = address.ok_or_else(|| bad("it has no usable address for this agent"))?;
    let file: AmpRegistrationFile = serde_json::from_value(value)
        .map_err(|_| bad("it is not a registration: a member has the wrong type"))?;
    let provider = file.provider.as_deref().unwrap_or_default().trim().to_ascii_lowercase();
    if !is_provider_name(&provider) {
        return Err(bad("it names no provider"));
    }
    let api = file.api_url.as_deref().unwrap_or_default().trim();
    let base = api_base(api);
    let host = url_host(api)
        .ok_or_else(|| bad("its apiUrl is not an address of the form https://HOST"))?;
    let own = |name: &str, url: Option<String>, path: &str| match url.as_deref().map(str::trim) {
        None | Some("") => Ok(format!("{base}{path}")),
        Some(url) if url.contains(['?', '#']) => {
            Err(bad(&format!("its {name} has a query (?) or a fragment (#)")))
        }
        Some(url) if self::url_host(url) == Some(host.clone()) && !is_less_secure(url, api) => {
            Ok(url.trim_end_matches('/').to_owned())
        }
        Some(_) => Err(bad(&format!(
            "its {name} names another host than its apiUrl, so the key is not sent there"
        ))),
    };
    let route = own("routeUrl", file.route_url, "/route")?;
    let fetch = own("fetchUrl", file.fetch_url, "/messages/pending")?;
    let key = file.api_key.ok_or_else(|| bad("it has no apiKey"))?;
    let key = key.trim();
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(bad("its apiKey is empty or holds characters that cannot be sent"));
    }
    let key = AmpApiKey::new(key);
    let file = path.to_owned();
    Ok((AmpRegistration { file, display_path: shown, provider, address, base, route, fetch }, key))
}

/// Returns the URL before the paths of an API. Two conventions exist for the URL in a file.
pub(super) fn api_base(api: &str) -> String {
    let api = api.trim_end_matches('/');
    if api.ends_with("/v1") { api.to_owned() } else { format!("{api}/v1") }
}

/// Returns the host of a URL, in lower case.
pub(super) fn url_host(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let known = ["http", "https"].iter().any(|s| s.eq_ignore_ascii_case(scheme));
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => authority.split(':').next()?,
    };
    (known && !host.is_empty() && !authority.contains('@')).then(|| host.to_ascii_lowercase())
}

/// Returns true if a URL is plain text and that of the API is not.
pub(super) fn is_less_secure(url: &str, api: &str) -> bool {
    let is_plain =
        |url: &str| url.split(':').next().is_some_and(|s| s.eq_ignore_ascii_case("http"));
    is_plain(url) && !is_plain(api)
}

/// Returns true if a text is the name of a provider, and harmless as a file name.
pub(super) fn is_provider_name(text: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len()) && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    text.len() <= 200 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(json: &serde_json::Value, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acme.json");
        std::fs::write(&path, json.to_string()).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn plain() -> serde_json::Value {
        serde_json::json!({
            "provider": "crabmail.ai", "apiUrl": "https://api.crabmail.ai/", "apiKey": "amp_live_sk_secret",
            "agentName": "alice", "tenant": "acme", "address": "Alice@acme.crabmail.ai",
        })
    }

    #[test]
    fn both_conventions_of_the_base_and_the_urls_beside_it() {
        for (api, route, fetch, expected) in [
            ("https://x", None, None, ("https://x/v1/route", "https://x/v1/messages/pending")),
            ("https://x/", None, None, ("https://x/v1/route", "https://x/v1/messages/pending")),
            (
                "http://127.0.0.1:1/api",
                None,
                None,
                ("http://127.0.0.1:1/api/v1/route", "http://127.0.0.1:1/api/v1/messages/pending"),
            ),
            (
                "https://x/api/v1",
                None,
                None,
                ("https://x/api/v1/route", "https://x/api/v1/messages/pending"),
            ),
            (
                "https://x",
                Some("https://X:9/r/"),
                Some("https://x/f"),
                ("https://X:9/r", "https://x/f"),
            ),
        ] {
            let mut json = plain();
            json["apiUrl"] = api.into();
            json["routeUrl"] = route.into();
            json["fetchUrl"] = fetch.into();
            let (_dir, path) = file(&json, 0o600);
            let (at, _) = read_registration(&path).unwrap();
            assert_eq!((at.route.as_str(), at.fetch.as_str()), expected, "{api}");
            assert_eq!(
                (at.address.as_str(), at.provider.as_str()),
                ("alice@acme.crabmail.ai", "crabmail.ai")
            );
        }
    }

    #[test]
    fn what_is_not_used_says_why_and_never_the_key() {
        let other = |member: &str, value: serde_json::Value| {
            let mut json = plain();
            json[member] = value;
            json
        };
        for (json, mode, why) in [
            (plain(), 0o644, "chmod 600"),
            (other("routeUrl", "https://evil.com/v1/route".into()), 0o600, "another host"),
            (other("routeUrl", "https://api.crabmail.ai@evil.com/".into()), 0o600, "another host"),
            (other("routeUrl", "http://api.crabmail.ai/v1/route".into()), 0o600, "another host"),
            (other("fetchUrl", "https://api.crabmail.ai.evil.com/".into()), 0o600, "another host"),
            (other("fetchUrl", "https://api.crabmail.ai/?x=1".into()), 0o600, "query"),
            (other("apiUrl", "ftp://x".into()), 0o600, "apiUrl"),
            (other("apiUrl", 7.into()), 0o600, "wrong type"),
            (other("provider", "../x".into()), 0o600, "no provider"),
            (other("address", "x".into()), 0o600, "no usable address"),
            (other("apiKey", "a\nX-Evil: 1".into()), 0o600, "cannot be sent"),
            (serde_json::json!("amp_live_sk_secret"), 0o600, "address"),
        ] {
            let (_dir, path) = file(&json, mode);
            let error = read_registration(&path).unwrap_err();
            assert!(error.contains(why), "{json}: {error}");
            assert!(!error.contains("sk_secret") && !error.contains("X-Evil"), "{error}");
        }
        let (dir, path) = file(&plain(), 0o600);
        std::fs::write(&path, "{\"apiKey\": \"amp_live_sk_secret\"").unwrap();
        assert!(!read_registration(&path).unwrap_err().contains("sk_secret"));
        std::fs::write(dir.path().join("notes.txt"), "").unwrap();
        let names: Vec<String> =
            find_links(dir.path(), "me").into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["acme"]);
        let key = AmpApiKey::new("amp_live_sk_secret");
        assert_eq!(format!("{key:?}"), "(the key)");
    }
}
