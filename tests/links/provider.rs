//! A provider of AMP 0.1 for tests only: it stores nothing on disk, checks little, and can fail in every way. It
//! behaves as the specification says ([`Manner::Paper`]) or as the one deployed program does ([`Manner::Deployed`]).

#![allow(dead_code, reason = "each test target uses another part")]

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, VerifyingKey};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The behaviour of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// The behaviour of the specification: repeats under one key are one message, messages wait until the recipient
    /// fetches them, keys are PEM.
    Paper,
    /// The behaviour of the deployed program: it takes the flat form only, gives each repeat a new id, makes thread and
    /// payload anew and writes into the inbox at once; keys are hex.
    Deployed,
}

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    Fine,
    /// The provider does nothing and closes the connection.
    CutBefore,
    /// The provider does what was asked and closes the connection without an answer.
    CutAfter,
    /// The provider does what was asked and sends half the answer.
    Half,
    /// The provider does nothing and gives this answer.
    Says(u16, &'static str, &'static str),
    /// The provider does what was asked, and its answer denies it.
    Lies,
    /// The answer never ends.
    Endless,
    /// The answer is longer than it says, or shorter.
    WrongLength(i64),
    /// Each byte of the answer takes a while.
    Slow(Duration),
}

/// An attachment that the provider keeps.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    pub owner: String,
    pub name: String,
    pub size: u64,
    pub digest: String,
    /// The uploaded bytes; they can be uploaded once.
    pub bytes: Option<Vec<u8>>,
    pub is_confirmed: bool,
    /// The number of requests for it so far.
    pub asked: u32,
    /// The key for repeats of the message that has it.
    pub used_by: Option<String>,
}

#[derive(Debug, Default)]
pub struct Agent {
    pub name: String,
    pub address: String,
    pub key: Vec<u8>,
    pub tokens: Vec<String>,
}

/// The state of the provider, which tests read and change.
#[derive(Debug, Default)]
pub struct State {
    pub agents: Vec<Agent>,
    /// Waiting messages by the recipient's address: id and text.
    pub waiting: BTreeMap<String, Vec<(String, String)>>,
    /// Messages that reached each recipient, by any way: id and signature.
    pub delivered: BTreeMap<String, Vec<(String, String)>>,
    /// Faults of the next requests whose path contains this text.
    pub faults: VecDeque<(&'static str, Fault)>,
    /// Every request: method, path, body.
    pub log: Vec<(String, String, String)>,
    /// Files that the provider gives to everyone who knows the path.
    pub files: BTreeMap<String, String>,
    /// The largest attachment that the provider takes; `None` if it takes none.
    pub takes: Option<u64>,
    /// Attachments of messages, by id.
    pub kept: BTreeMap<String, Kept>,
    /// The number of requests for a file before the provider has examined it.
    pub examines: u32,
    /// Findings in files, by name; other files are clean.
    pub finds: BTreeMap<String, &'static str>,
    /// Ids of messages that the recipient removed.
    pub removed: Vec<String>,
    repeats: BTreeMap<String, Value>,
    count: u64,
}

/// A listening provider.
#[derive(Debug)]
pub struct Provider {
    pub name: &'static str,
    pub manner: Manner,
    pub port: u16,
    state: Arc<Mutex<State>>,
}

impl Provider {
    pub fn start(name: &'static str, manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let server = Server { name, manner, port, state: Arc::clone(&state) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || drop(server.serve(stream)));
            }
        });
        Self { name, manner, port, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns its URL as a registration file has it.
    pub fn api_url(&self) -> String {
        match self.manner {
            Manner::Paper => format!("http://127.0.0.1:{}", self.port),
            Manner::Deployed => format!("http://127.0.0.1:{}/api", self.port),
        }
    }

    /// Adds a fault for the next request whose path contains this text.
    pub fn fail(&self, path: &'static str, fault: Fault) {
        self.state().faults.push_back((path, fault));
    }

    /// Adds an agent, as a registration would, and returns its address and token.
    pub fn add(&self, name: &str, key: &[u8; 32]) -> (String, String) {
        let address = format!("{name}@acme.{}", self.name);
        let token = format!("amp_live_sk_{}", hex(&Sha256::digest(name)));
        let mut agent = Agent { name: name.into(), address: address.clone(), ..Agent::default() };
        agent.key = key.to_vec();
        agent.tokens.push(token.clone());
        self.state().agents.push(agent);
        (address, token)
    }

    /// Adds a text that waits for an address.
    pub fn wait_for(&self, address: &str, id: &str, text: &str) {
        let mut state = self.state();
        state.waiting.entry(address.into()).or_default().push((id.into(), text.into()));
    }
}

#[derive(Clone)]
struct Server {
    name: &'static str,
    manner: Manner,
    port: u16,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    token: String,
    head: String,
    body: String,
    raw: Vec<u8>,
}

type Answer = (u16, Value, Vec<u8>);

fn say(status: u16, code: &str, message: &str) -> Answer {
    (status, json!({ "error": code, "message": message }), Vec::new())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, b| text + &format!("{b:02x}"))
}

impl Server {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let Some(request) = read(&mut stream)? else { return Ok(()) };
        let fault = {
            let mut state = self.state.lock().unwrap();
            let entry = (request.method.clone(), request.path.clone(), request.body.clone());
            state.log.push(entry);
            let at = state.faults.iter().position(|(part, _)| request.path.contains(part));
            at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault)
        };
        if fault == Some(Fault::CutBefore) {
            return Ok(());
        }
        if let Some(Fault::Says(status, headers, body)) = fault {
            return write!(
                stream,
                "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
        let (status, json, raw) = self.answer(&request);
        let body = if raw.is_empty() { json.to_string().into_bytes() } else { raw };
        let (status, body) = match fault {
            Some(Fault::CutAfter) => return Ok(()),
            Some(Fault::Lies) => (500, br#"{"error":"internal_error"}"#.to_vec()),
            _ => (status, body),
        };
        let len = match fault {
            Some(Fault::WrongLength(by)) => (body.len() as i64 + by).max(0),
            _ => body.len() as i64,
        };
        if fault == Some(Fault::Endless) {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{{\"messages\":[")?;
            let junk = vec![b' '; 1 << 20];
            while stream.write_all(&junk).is_ok() {}
            return Ok(());
        }
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        )?;
        match fault {
            Some(Fault::Half) => stream.write_all(&body[..body.len() / 2]),
            Some(Fault::Slow(pause)) => body.iter().try_for_each(|byte| {
                std::thread::sleep(pause);
                stream.write_all(&[*byte]).and_then(|()| stream.flush())
            }),
            _ => stream.write_all(&body),
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let prefix = if self.manner == Manner::Paper { "/v1" } else { "/api/v1" };
        let Some(path) = request.path.strip_prefix(prefix) else {
            return (404, json!({ "error": "Not found" }), Vec::new());
        };
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        if let Some(name) = path.strip_prefix("/files/") {
            assert!(request.token.is_empty(), "the key is for the API only");
            return match state.files.get(name) {
                Some(text) => (200, Value::Null, text.clone().into_bytes()),
                None => say(404, "not_found", "no such file"),
            };
        }
        if let Some(id) = path.strip_prefix("/uploads/") {
            return put(&mut state, request, id);
        }
        let file = path.strip_prefix("/attachments/").unwrap_or_default();
        if let Some(id) = file.strip_suffix("/download") {
            assert!(request.token.is_empty(), "the key is for the API only");
            return match state.kept.get(id).and_then(|kept| kept.bytes.clone()) {
                Some(bytes) => (200, Value::Null, bytes),
                None => say(404, "not_found", "no such file"),
            };
        }
        if (request.method.as_str(), path) == ("POST", "/register") {
            return self.register(&mut state, request, &body);
        }
        let me = state.agents.iter().find(|agent| agent.tokens.contains(&request.token));
        let Some(me) = me.map(|agent| (agent.address.clone(), agent.key.clone())) else {
            // Some providers repeat the token in their answer.
            return say(401, "unauthorized", &format!("no agent has the key {}", request.token));
        };
        match (request.method.as_str(), path) {
            ("POST", "/route") => self.route(&mut state, &me, &body),
            ("GET", "/info") if self.manner == Manner::Paper => info(&state),
            ("POST", "/attachments/upload") if state.takes.is_some() => {
                self.begin_upload(&mut state, &me.0, &body)
            }
            ("POST", _) if file.ends_with("/confirm") => {
                confirm(&mut state, &me.0, file.trim_end_matches("/confirm"))
            }
            ("GET", _) if !file.is_empty() => examined(&mut state, &me.0, file),
            ("GET", "/messages/pending") => pending(&state, &me.0, query),
            ("POST", "/messages/pending/ack") => {
                let ids = body["ids"].as_array().cloned().unwrap_or_default();
                let ids: Vec<String> =
                    ids.iter().filter_map(|id| Some(id.as_str()?.to_owned())).collect();
                let count = ids.iter().filter(|id| remove(&mut state, &me.0, id)).count();
                (200, json!({ "acknowledged": count }), Vec::new())
            }
            ("DELETE", path) if path.starts_with("/messages/pending/") => {
                let id = path.trim_start_matches("/messages/pending/").to_owned();
                if remove(&mut state, &me.0, &id) {
                    (200, json!({ "acknowledged": true }), Vec::new())
                } else {
                    say(404, "not_found", "no such message")
                }
            }
            ("GET", path) if path.starts_with("/agents/resolve/") => {
                self.resolve(&state, path.trim_start_matches("/agents/resolve/"))
            }
            _ => (404, json!({ "error": "Not found" }), Vec::new()),
        }
    }

    fn register(&self, state: &mut State, request: &Request, body: &Value) -> Answer {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let has_user_key = request.token.starts_with("uk_");
        if !has_user_key && text("tenant") != "acme" {
            return (
                400,
                json!({ "error": "invalid_field", "message": "another organisation",
                        "details": { "expected_tenant": "acme" } }),
                Vec::new(),
            );
        }
        let pem: String = text("public_key").lines().filter(|l| !l.contains("---")).collect();
        let der = STANDARD.decode(pem).unwrap_or_default();
        if der.len() != 44 {
            return say(400, "invalid_field", "public_key");
        }
        let (name, key) = (text("name"), der[12..].to_vec());
        if let Some(agent) = state.agents.iter().find(|a| a.name == name && a.key != key) {
            return (
                409,
                json!({ "error": "name_taken", "message": format!("{} is taken", agent.name),
                        "details": { "suggestions": [format!("{name}-2"), format!("{name}-3")] } }),
                Vec::new(),
            );
        }
        state.count += 1;
        let token =
            format!("amp_live_sk_{}", hex(&Sha256::digest(format!("{name}{}", state.count))));
        let address = format!("{name}@acme.{}", self.name);
        match state.agents.iter_mut().find(|a| a.name == name) {
            Some(agent) => agent.tokens.push(token.clone()),
            None => state.agents.push(Agent {
                name: name.clone(),
                address: address.clone(),
                key,
                tokens: vec![token.clone()],
            }),
        }
        let answer = json!({
            "address": address, "short_address": address, "local_name": name, "agent_id": "x",
            "tenant": "acme", "tenant_id": "t", "api_key": token,
            "provider": { "name": self.name, "endpoint": "", "route_url": Value::Null },
        });
        (201, answer, Vec::new())
    }

    fn route(&self, state: &mut State, (from, key): &(String, Vec<u8>), body: &Value) -> Answer {
        let is_flat = body.get("to").is_some();
        if !is_flat && self.manner == Manner::Deployed {
            return (
                400,
                json!({ "error": "missing_field", "message": "to is missing", "field": "to" }),
                Vec::new(),
            );
        }
        let envelope = if is_flat { body } else { &body["envelope"] };
        let text = |name: &str| envelope[name].as_str().unwrap_or_default().to_owned();
        let payload = &body["payload"];
        let hash = STANDARD.encode(Sha256::digest(payload.to_string()));
        let (to, subject, irt) = (text("to"), text("subject"), text("in_reply_to"));
        let signed = format!("{from}|{to}|{subject}|{}|{irt}|{hash}", text("priority"));
        let signature = text("signature");
        if !is_signed(key, &signed, &signature) {
            return say(403, "invalid_signature", "the signature is wrong");
        }
        if !state.agents.iter().any(|agent| agent.address == to) {
            return say(404, "not_found", &format!("nobody is called {to}"));
        }
        let repeat = text("idempotency_key");
        if self.manner == Manner::Paper
            && let Some(answer) = state.repeats.get(&repeat)
        {
            return (200, answer.clone(), Vec::new());
        }
        let none = Vec::new();
        for file in payload["attachments"].as_array().unwrap_or(&none) {
            let id = file["id"].as_str().unwrap_or_default();
            let Some(kept) = state.kept.get_mut(id).filter(|kept| kept.owner == *from) else {
                return say(404, "attachment_not_found", id);
            };
            if kept.used_by.is_some() {
                return say(409, "attachment_already_used", id);
            }
            assert_eq!(file["digest"], kept.digest, "what is signed is what was uploaded");
            assert!(kept.is_confirmed && kept.bytes.is_some());
            kept.used_by = Some(repeat.clone());
        }
        state.count += 1;
        let id = format!("msg_1795291{:06}_{:x}", state.count, state.count + 0xa000);
        let own = |name: &str| payload.get(name).cloned().unwrap_or_default();
        let (payload, thread) = match self.manner {
            Manner::Paper => (payload.clone(), text("thread_id")),
            Manner::Deployed => (
                json!({ "type": own("type"), "message": own("message"), "context": own("context") }),
                if irt.is_empty() { id.clone() } else { irt.clone() },
            ),
        };
        let irt = if irt.is_empty() { Value::Null } else { irt.into() };
        let envelope = json!({
            "version": "amp/0.1", "id": id, "from": from, "to": to, "subject": subject,
            "priority": text("priority"), "timestamp": "2026-11-23T08:00:00.000Z",
            "thread_id": thread, "in_reply_to": irt, "expires_at": Value::Null, "signature": signature,
        });
        let waiting = json!({
            "id": id, "envelope": envelope, "payload": payload, "sender_public_key": hex(key),
            "queued_at": "2026-11-23T08:00:01Z", "expires_at": "2026-11-30T08:00:01Z",
            "delivery_attempts": 0,
        });
        let one = (id.clone(), waiting.to_string());
        state.waiting.entry(to.clone()).or_default().push(one);
        state.delivered.entry(to).or_default().push((id.clone(), signature));
        let answer = json!({ "id": id, "status": "delivered", "method": "local" });
        state.repeats.insert(repeat, answer.clone());
        (200, answer, Vec::new())
    }

    fn begin_upload(&self, state: &mut State, me: &str, body: &Value) -> Answer {
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let size = body["size"].as_u64().unwrap_or_default();
        if state.takes.is_some_and(|max| size > max) {
            return say(413, "attachment_too_large", "it is too large");
        }
        state.count += 1;
        let id = format!("att_1795291_{:x}", state.count + 0xb000);
        let kept = Kept {
            owner: me.to_owned(),
            name: text("filename"),
            size,
            digest: text("digest"),
            ..Kept::default()
        };
        state.kept.insert(id.clone(), kept);
        let answer = json!({
            "attachment_id": id, "upload_method": "PUT", "expires_in": 3600,
            "upload_url": format!("http://127.0.0.1:{}/v1/uploads/{id}?sig=secret", self.port),
            "upload_headers": { "Content-Type": text("content_type"), "X-Upload": "once" },
        });
        (201, answer, Vec::new())
    }

    fn resolve(&self, state: &State, asked: &str) -> Answer {
        // The deployed program compares the name only.
        let name = asked.split('@').next().unwrap_or_default();
        let fits = |a: &&Agent| match self.manner {
            Manner::Paper => a.address == asked,
            Manner::Deployed => a.name == name,
        };
        let Some(agent) = state.agents.iter().find(fits) else {
            return say(404, "not_found", "nobody");
        };
        let key = match self.manner {
            Manner::Deployed => hex(&agent.key),
            Manner::Paper => {
                let spki =
                    [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0], &agent.key[..]];
                let text = STANDARD.encode(spki.concat());
                format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
            }
        };
        (200, json!({ "address": agent.address, "public_key": key }), Vec::new())
    }
}

fn info(state: &State) -> Answer {
    let mut info =
        json!({ "provider": "x", "version": "amp/0.1", "capabilities": ["relay-queue"] });
    if let Some(size) = state.takes {
        info["capabilities"] = json!(["relay-queue", "attachments"]);
        info["attachment_limits"] = json!({ "max_file_size": size });
    }
    (200, info, Vec::new())
}

/// Stores the bytes of a file once; everyone who knows the path may upload them.
fn put(state: &mut State, request: &Request, id: &str) -> Answer {
    assert!(request.token.is_empty(), "the key is for the API only");
    let says = |line: &str| request.head.lines().any(|other| other.eq_ignore_ascii_case(line));
    assert!(says("X-Upload: once") && !says("Transfer-Encoding: chunked"), "{}", request.head);
    match state.kept.get_mut(id).filter(|_| request.method == "PUT") {
        Some(kept) if kept.bytes.is_none() => {
            kept.bytes = Some(request.raw.clone());
            (200, json!({}), Vec::new())
        }
        _ => say(403, "forbidden", "not here, or not again"),
    }
}

fn confirm(state: &mut State, me: &str, id: &str) -> Answer {
    let Some(kept) = state.kept.get_mut(id).filter(|kept| kept.owner == me) else {
        return say(404, "not_found", "no such attachment");
    };
    let Some(bytes) = &kept.bytes else { return say(409, "not_uploaded", "nothing came") };
    let digest = format!("sha256:{}", hex(&Sha256::digest(bytes)));
    if bytes.len() as u64 != kept.size || digest != kept.digest {
        return say(422, "digest_mismatch", "something else came");
    }
    kept.is_confirmed = true;
    (200, json!({ "attachment_id": id, "scan_status": "pending" }), Vec::new())
}

fn examined(state: &mut State, me: &str, id: &str) -> Answer {
    let (examines, finds) = (state.examines, state.finds.clone());
    let Some(kept) = state.kept.get_mut(id).filter(|kept| kept.owner == me) else {
        return say(404, "not_found", "no such attachment");
    };
    kept.asked += 1;
    let found = finds.get(&kept.name).copied().unwrap_or("clean");
    let status = if kept.asked > examines { found } else { "pending" };
    (200, json!({ "attachment_id": id, "scan_status": status }), Vec::new())
}

fn pending(state: &State, me: &str, query: &str) -> Answer {
    let limit = query.split('&').find_map(|q| q.strip_prefix("limit=")?.parse().ok());
    let limit = limit.unwrap_or(10usize).min(100);
    let none = Vec::new();
    let all = state.waiting.get(me).unwrap_or(&none);
    let texts: Vec<&str> = all.iter().take(limit).map(|(_, text)| text.as_str()).collect();
    let rest = all.len().saturating_sub(limit);
    let raw = format!(
        "{{\"messages\":[{}],\"count\":{},\"remaining\":{rest}}}",
        texts.join(","),
        texts.len()
    );
    (200, Value::Null, raw.into_bytes())
}

fn remove(state: &mut State, me: &str, id: &str) -> bool {
    state.removed.push(id.to_owned());
    let Some(waiting) = state.waiting.get_mut(me) else { return false };
    let before = waiting.len();
    waiting.retain(|(other, _)| other != id);
    waiting.len() < before
}

fn is_signed(key: &[u8], text: &str, signature: &str) -> bool {
    let key = key.try_into().ok().and_then(|key| VerifyingKey::from_bytes(key).ok());
    let signature = STANDARD.decode(signature).ok().and_then(|s| Signature::from_slice(&s).ok());
    key.zip(signature).is_some_and(|(key, s)| key.verify_strict(text.as_bytes(), &s).is_ok())
}

fn read(stream: &mut TcpStream) -> std::io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let header = |name: &str| {
                let lines = head.lines().filter_map(|line| line.split_once(':'));
                let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
                found.next().map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
            };
            let len: usize = header("content-length").parse().unwrap_or(0);
            while bytes.len() < end + 4 + len {
                match stream.read(&mut buffer)? {
                    0 => return Ok(None),
                    n => bytes.extend_from_slice(&buffer[..n]),
                }
            }
            let mut words = head.split(' ');
            let mut word = || words.next().unwrap_or_default().to_owned();
            let token = header("authorization").trim_start_matches("Bearer ").to_owned();
            let raw = bytes.split_off(end + 4);
            let body = String::from_utf8_lossy(&raw).into_owned();
            let (method, path) = (word(), word());
            return Ok(Some(Request { method, path, token, head, body, raw }));
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}
