//! Registration with a provider, which makes the file of a link.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::settings::{self, AmpApiKey};
use crate::link::http::{HttpAnswer, HttpClient};
use crate::link::secret;
use crate::model::{Timestamp, display_path, sanitize_line};
use crate::store::amp::{address, pem, registration};
use crate::store::{atomic_file, fs};

/// The limit on the size of an agent's file.
const MAX_FILE: u64 = 1 << 20;
/// The API of a provider whose name only this machine has.
const LOCAL_API: &str = "http://localhost:23000/api";
/// The first bytes of the DER form of a public key.
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// A request for a registration.
#[derive(Clone, Debug, Default)]
pub struct AmpRegisterRequest {
    /// The agent's folder.
    pub agent: PathBuf,
    /// The provider's name.
    pub provider: String,
    /// The URL of its API, if it is not the usual one.
    pub api_url: Option<String>,
    /// The organisation; the agent's own by default.
    pub tenant: Option<String>,
    /// The agent's name there; the agent's own by default.
    pub name: Option<String>,
    /// True if plain text may go to any host.
    pub insecure: bool,
    /// A file with certificates of further authorities, in PEM.
    pub ca: Option<PathBuf>,
}

/// A registration that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAmpRegistration {
    /// The agent's address there.
    pub address: String,
    /// The file.
    pub file: PathBuf,
    /// Further notes for people.
    pub notes: Vec<String>,
}

/// Registers an agent and writes the file. A repeat with the same name and key makes a new API key; the old one stays
/// valid at the provider.
///
/// # Errors
/// Returns the obstacle, without any key.
pub fn register_agent(
    request: &AmpRegisterRequest,
    user_key: Option<&str>,
) -> Result<NewAmpRegistration, String> {
    let provider = request.provider.trim().to_ascii_lowercase();
    if !settings::is_provider_name(&provider) || !provider.contains('.') {
        return Err(format!("{} is not the name of a provider", sanitize_line(&request.provider)));
    }
    let user_key = user_key.map(str::trim).filter(|key| !key.is_empty()).map(AmpApiKey::new);
    if user_key.as_ref().is_some_and(|key| !key.as_str().bytes().all(|b| b.is_ascii_graphic())) {
        return Err("the user key holds characters that cannot be sent".into());
    }
    let default_api = || {
        let is_local = registration::is_local_network(&provider);
        if is_local { LOCAL_API.to_owned() } else { format!("https://api.{provider}") }
    };
    let api = request.api_url.clone().unwrap_or_else(default_api);
    let api = api.trim().trim_end_matches('/');
    let http = HttpClient::new(&settings::api_base(api), request.insecure, request.ca.as_deref())?;
    let (body, public) = build_request_body(request, user_key.is_some())?;
    let secrets: Vec<_> = user_key.into_iter().map(AmpApiKey::into_secret).collect();
    let hide = |text: &str| secret::redact_text(text, &secrets);
    let token = secrets.first().map(|key| key.as_str());
    let answer = http.post_json("/register", token, body.to_string().as_bytes());
    let answer = answer.map_err(|e| {
        format!(
            "{provider} cannot be reached, so nothing was changed here: {}",
            hide(&e.to_string())
        )
    })?;
    if !answer.is_success() {
        return Err(format!("{provider} refuses: {}", hide(&describe_refusal(&answer))));
    }
    let answer: Value = serde_json::from_slice(&answer.body)
        .map_err(|_| format!("the answer of {provider} is not a registration"))?;
    write_registration(request, &provider, api, &answer, &public)
}

/// Builds the body of the request. Returns it with the public key.
fn build_request_body(
    request: &AmpRegisterRequest,
    has_user_key: bool,
) -> Result<(Value, [u8; 32]), String> {
    let read = |name: &str| {
        let path = request.agent.join(name);
        fs::read_small_file(&path, MAX_FILE)
            .map_err(|e| format!("{}: {e}; make an agent with amp-init", display_path(&path)))
    };
    let public = String::from_utf8_lossy(&read("keys/public.pem")?).into_owned();
    let key = pem::parse_public_key(&public).map_err(|e| format!("keys/public.pem: {e}"))?;
    let config: Value = serde_json::from_slice(&read("config.json")?)
        .map_err(|_| "config.json: it is not JSON; mend it or run amp-init".to_owned())?;
    let agent = |name: &str| config.get("agent")?.get(name)?.as_str().map(str::to_owned);
    let name = request.name.clone().or_else(|| agent("name"));
    let name = name.filter(|name| address::is_name(name.trim()));
    let name = name.ok_or("choose a name with --name; it has letters, digits and -")?;
    // A user key implies the organisation.
    let tenant = request.tenant.clone().or_else(|| agent("tenant").filter(|_| !has_user_key));
    if tenant.is_none() && !has_user_key {
        return Err("name your organisation with --tenant".into());
    }
    let texts = [
        ("name", Some(name.trim().to_ascii_lowercase())),
        ("public_key", Some(public.trim_end().to_owned() + "\n")),
        ("key_algorithm", Some("Ed25519".to_owned())),
        ("tenant", tenant),
        ("agent_id", agent("id").filter(|id| is_uuid(id))),
    ];
    Ok((build_object(texts), key.0))
}

/// Builds an object of the texts that exist.
fn build_object<const N: usize>(texts: [(&str, Option<String>); N]) -> Value {
    let member = |(name, text): (&str, Option<String>)| Some((name.to_owned(), text?.into()));
    Value::Object(texts.into_iter().filter_map(member).collect())
}

fn is_uuid(text: &str) -> bool {
    let lens: Vec<usize> = text.split('-').map(str::len).collect();
    lens == [8, 4, 4, 4, 12] && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Returns the words of a refusal with a remedy.
fn describe_refusal(answer: &HttpAnswer) -> String {
    let text = answer.describe_error(&["error", "message"]);
    let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let detail = |name: &str| {
        let found = json.get("details").and_then(|d| d.get(name)).or_else(|| json.get(name))?;
        match found {
            Value::String(text) => Some(text.clone()),
            Value::Array(list) => {
                let texts: Vec<&str> = list.iter().filter_map(Value::as_str).take(8).collect();
                Some(texts.join(", "))
            }
            _ => None,
        }
    };
    let said = [("suggestions", "free are: "), ("expected_tenant", "the organisation is: ")];
    let more = said.into_iter().filter_map(|(name, words)| {
        let found: String = detail(name)?.chars().take(300).collect();
        Some(format!("; {words}{}", sanitize_line(&found)))
    });
    text + &more.collect::<String>()
}

/// Writes the registration file.
fn write_registration(
    request: &AmpRegisterRequest,
    provider: &str,
    api: &str,
    answer: &Value,
    public: &[u8; 32],
) -> Result<NewAmpRegistration, String> {
    let text = |path: &[&str]| {
        let found = path.iter().try_fold(answer, |v, key| v.get(key))?.as_str()?.trim();
        (!found.is_empty()).then(|| found.to_owned())
    };
    let no = |what: &str| format!("{provider} answers without {what}, so nothing was changed here");
    let key = text(&["api_key"]).ok_or_else(|| no("an api_key"))?;
    let mine = text(&["address"]).filter(|a| address::is_wire_address(a));
    let mine = mine.ok_or_else(|| no("a usable address for this agent"))?;
    let mut notes = Vec::new();
    let named = text(&["provider", "name"]).map(|name| name.to_ascii_lowercase());
    let named = named.filter(|name| settings::is_provider_name(name) && name.contains('.'));
    let named = named.unwrap_or_else(|| provider.to_owned());
    check_claims(provider, &named, &mine)?;
    let base = api.strip_suffix("/v1").unwrap_or(api).trim_end_matches('/');
    let route = text(&["provider", "route_url"]).filter(|url| {
        let same = settings::url_host(url) == settings::url_host(api)
            && !settings::is_less_secure(url, api);
        if !same {
            notes.push(format!(
                "it names a route of another host, which is not used: {}",
                sanitize_line(url)
            ));
        }
        same
    });
    let spki = [&SPKI[..], public].concat();
    let digest = Sha256::digest(&spki);
    let file = build_object([
        ("provider", Some(named.clone())),
        ("apiUrl", Some(base.to_owned())),
        ("routeUrl", route),
        ("agentName", text(&["local_name"]).or_else(|| Some(local_name(&mine)))),
        ("tenant", text(&["tenant"]).or_else(|| request.tenant.clone())),
        ("address", Some(mine.clone())),
        ("shortAddress", text(&["short_address"])),
        ("apiKey", Some(key)),
        ("providerAgentId", text(&["agent_id"])),
        ("fingerprint", Some(format!("SHA256:{}", STANDARD.encode(digest)))),
        ("registeredAt", Some(Timestamp::now().rfc3339_short())),
    ]);
    let folder = request.agent.join("registrations");
    let path = folder.join(format!("{named}.json"));
    check_same_server(&path, api)?;
    let bytes = serde_json::to_vec_pretty(&file).map_err(|e| e.to_string())?;
    let bytes = zeroize::Zeroizing::new(bytes);
    fs::make_dirs(&folder, 0o700)
        .and_then(|()| atomic_file::write_atomic(&path, &bytes, 0o600))
        .map_err(|e| {
            format!("{}: {e}; register once more when it is mended", display_path(&path))
        })?;
    Ok(NewAmpRegistration { address: mine, file: path, notes })
}

/// Checks that a provider answers for itself, and not with the name or an address of another one.
///
/// # Errors
/// Returns the remedy, if it does not.
fn check_claims(provider: &str, named: &str, mine: &str) -> Result<(), String> {
    if !is_within(named, provider) {
        return Err(format!(
            "{provider} answers as another provider, {named}, so nothing was changed here; if you \
             know that it is that one, register with that name and --api-url"
        ));
    }
    if !is_within(mine.rsplit('@').next().unwrap_or_default(), provider) {
        return Err(format!(
            "{provider} answers with an address of another provider, {}, so nothing was changed \
             here; register with the provider of that address, if it is yours",
            sanitize_line(mine)
        ));
    }
    Ok(())
}

/// Returns true if a domain is the provider's own or below it.
fn is_within(domain: &str, provider: &str) -> bool {
    let domain = domain.to_ascii_lowercase();
    domain == provider || domain.strip_suffix(provider).is_some_and(|rest| rest.ends_with('.'))
}

/// Checks that a registration file that is there, if any, is one with the same server.
///
/// # Errors
/// Returns the remedy, if it is not.
fn check_same_server(path: &Path, api: &str) -> Result<(), String> {
    let there = fs::empty_if_absent(fs::read_small_file(path, MAX_FILE));
    let there = there.map_err(|e| format!("{}: {e}", display_path(path)))?;
    let there: Value = serde_json::from_slice(&there).unwrap_or_default();
    let host = there.get("apiUrl").and_then(Value::as_str).and_then(settings::url_host);
    match host {
        Some(host) if Some(&host) != settings::url_host(api).as_ref() => Err(format!(
            "{} is the registration with another server, {}, so nothing was changed here; if the \
             provider moved, move this file away and register once more",
            display_path(path),
            sanitize_line(&host)
        )),
        _ => Ok(()),
    }
}

fn local_name(address: &str) -> String {
    address.split('@').next().unwrap_or_default().to_owned()
}
