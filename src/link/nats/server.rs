//! One connection: requests to the JetStream API, and events of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, Event, Request, RequestErrorKind, ServerError};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use super::bucket_value::MAX_VALUE;
use super::failure::NatsError;
use super::login;
use super::subject::{NatsSpace, do_subjects_meet};
use crate::link::NatsConfig;
use crate::model::sanitize_line;

/// The code of an answer when nothing has this name.
const NOT_FOUND: u64 = 404;
/// The lowest code of an answer that the server cannot do it now.
const UNABLE: u64 = 500;
/// The time within which an ending server closes the connection.
const ENDING: Duration = Duration::from_secs(1);

/// A connection to a server, for one space.
#[derive(Debug)]
pub struct NatsConnection {
    /// The client of the library.
    pub client: Client,
    /// The space.
    pub space: NatsSpace,
    /// The stream that requests are about.
    pub stream: String,
    /// The largest payload that the server takes.
    pub max_payload: u64,
    api: String,
    events: UnboundedReceiver<Event>,
    gone: watch::Receiver<bool>,
}

/// The description of a stream.
#[derive(Clone, Debug, Deserialize)]
pub struct StreamInfo {
    /// The time of its creation.
    pub created: String,
    /// The range of its messages.
    pub state: StreamState,
    config: StreamConfig,
}

/// The range of messages in a stream.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct StreamState {
    /// The sequence number of the first message that is left.
    pub first_seq: u64,
    /// The sequence number of the last message that there ever was.
    pub last_seq: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct StreamConfig {
    #[serde(default)]
    subjects: Vec<String>,
    retention: String,
    #[serde(default)]
    allow_direct: bool,
    #[serde(default)]
    no_ack: bool,
    #[serde(default)]
    allow_atomic: bool,
    #[serde(default)]
    allow_rollup_hdrs: bool,
    #[serde(default)]
    allow_msg_schedules: bool,
    #[serde(default)]
    allow_msg_ttl: bool,
    #[serde(default)]
    discard: String,
    #[serde(default)]
    discard_new_per_subject: bool,
    #[serde(default)]
    max_msgs: i64,
    #[serde(default)]
    max_bytes: i64,
    #[serde(default)]
    max_msgs_per_subject: i64,
    #[serde(default)]
    max_age: i64,
    subject_transform: Option<Value>,
    #[serde(default)]
    sources: Option<Vec<Value>>,
}

impl StreamConfig {
    /// Lists what could drop or change messages of any stream, each with true if the stream has it. A limit that
    /// refuses new messages drops none.
    fn list_losses(&self) -> [(bool, &'static str); 7] {
        let drops_old = self.discard != "new";
        [
            (self.retention != "limits", "retention is not limits"),
            (self.no_ack, "no_ack is true"),
            (self.max_age > 0, "max_age is not 0, so messages can end by themselves"),
            (
                self.max_msgs > 0 && drops_old,
                "max_msgs is a limit with discard old, so new messages remove old ones",
            ),
            (
                self.max_bytes > 0 && drops_old,
                "max_bytes is a limit with discard old, so new messages remove old ones",
            ),
            (
                self.subject_transform.is_some(),
                "subject_transform moves messages to other subjects",
            ),
            (
                self.sources.as_ref().is_some_and(|sources| !sources.is_empty()),
                "sources put messages of other streams in it",
            ),
        ]
    }

    /// Returns true if a message can remove an older one of its subject. Only `discard_new_per_subject` refuses it.
    fn drops_old_of_subject(&self) -> bool {
        let refuses_new = self.discard == "new" && self.discard_new_per_subject;
        self.max_msgs_per_subject > 0 && !refuses_new
    }
}

impl StreamInfo {
    fn parse(answer: Value) -> Result<Self, NatsError> {
        serde_json::from_value(answer)
            .map_err(|_| NatsError::BadAnswer("what is known of the stream"))
    }

    /// Returns true if several lines can be published as one batch.
    pub fn can_batch(&self) -> bool {
        self.config.allow_atomic
    }

    /// Fails for a stream that could drop or change lines by itself, or takes them from other streams.
    fn check_usable(&self, space: &NatsSpace) -> Result<(), NatsError> {
        let c = &self.config;
        let wrong = [
            (
                !c.subjects.contains(&space.all_subjects()),
                "subjects do not hold those of the space",
            ),
            (!c.allow_direct, "allow_direct is false"),
            (
                c.drops_old_of_subject(),
                "max_msgs_per_subject is a limit without discard_new_per_subject, so new lines remove old ones",
            ),
            (c.allow_rollup_hdrs, "allow_rollup_hdrs is true, so a message can remove others"),
            (c.allow_msg_schedules, "allow_msg_schedules is true"),
            (c.allow_msg_ttl, "allow_msg_ttl is true, so messages can end by themselves"),
        ];
        check_none_wrong(space.stream_name(), wrong.into_iter().chain(c.list_losses()))
    }

    /// Fails for a stream in which marks would expire by themselves, or pile up.
    fn check_usable_for_marks(&self, space: &NatsSpace) -> Result<(), NatsError> {
        let c = &self.config;
        let wrong = [
            (
                !c.subjects.contains(&space.mark_subjects()),
                "subjects do not hold those of the marks",
            ),
            (c.max_msgs_per_subject != 1, "max_msgs_per_subject is not 1"),
        ];
        check_none_wrong(space.bucket_name(), wrong.into_iter().chain(c.list_losses()))
    }
}

fn check_none_wrong(
    stream: String,
    mut wrong: impl Iterator<Item = (bool, &'static str)>,
) -> Result<(), NatsError> {
    match wrong.find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(NatsError::Stream(stream, why.to_owned())),
        None => Ok(()),
    }
}

/// An error of the API.
#[derive(Debug, Default, Deserialize)]
pub struct ApiError {
    /// The code, as in HTTP.
    #[serde(default)]
    pub code: u64,
    /// The exact code of NATS.
    #[serde(default)]
    pub err_code: u64,
    /// The description in words.
    #[serde(default)]
    pub description: String,
}

impl NatsConnection {
    /// Connects to the server of a link.
    ///
    /// # Errors
    /// Returns the reason, with a remedy.
    pub async fn connect(spec: &NatsConfig) -> Result<Self, NatsError> {
        let space = NatsSpace::new(&spec.settings.space).ok_or_else(|| {
            let rule = "space: takes 1 to 32 letters, digits, '_' and '-'";
            NatsError::Settings(rule.to_owned())
        })?;
        let addresses = login::parse_addresses(spec)?;
        let (tell, events) = unbounded_channel();
        let (going, gone) = watch::channel(false);
        let connected = Arc::new(AtomicBool::new(false));
        let again = Arc::clone(&connected);
        let options = login::build_options(spec, &addresses)?
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    going.send_replace(true);
                }
                // The receiver is gone if the link ends.
                let _ = tell.send(event);
                std::future::ready(())
            })
            // The library must not reconnect. The link makes a new connection, with files read anew and no pending
            // messages in the way.
            .reconnect_delay_callback(move |_| {
                let ended = again.load(Ordering::Relaxed);
                if ended { Duration::from_secs(24 * 3600) } else { Duration::ZERO }
            });
        let client =
            options.connect(addresses).await.map_err(|e| NatsError::from_connect_error(&e))?;
        connected.store(true, Ordering::Relaxed);
        let info = client.server_info();
        if !client.is_server_compatible(2, 11, 0) {
            return Err(NatsError::OldServer(sanitize_line(&info.version).into_owned()));
        }
        let api = spec.settings.api.clone();
        let (stream, most) = (space.stream_name(), info.max_payload as u64);
        Ok(Self { client, space, stream, max_payload: most, api, events, gone })
    }

    /// Returns the same connection for requests about the bucket of marks.
    pub fn with_mark_bucket(self) -> Self {
        Self { stream: self.space.bucket_name(), ..self }
    }

    /// Returns the subject of a request to the API about the stream.
    pub fn api_subject(&self, what: &str, of: &str) -> String {
        format!("{}.{what}.{}{of}", self.api, self.stream)
    }

    /// Awaits `work` unless the connection ends meanwhile.
    ///
    /// # Errors
    /// Returns [`NatsError::Lost`] if the connection ends.
    pub async fn run_while_connected<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let mut gone = self.gone.clone();
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = gone.wait_for(|gone| *gone) => Err(NatsError::Lost("by the server".into())),
        }
    }

    /// Returns a failure once it is clear that the server is not ending: an ending server refuses permitted requests.
    /// Otherwise returns [`NatsError::Lost`].
    async fn confirm_failure(&self, failure: NatsError) -> NatsError {
        match self.run_while_connected(tokio::time::sleep(ENDING)).await {
            Ok(()) => failure,
            Err(lost) => lost,
        }
    }

    /// Sends a request to the API. Returns its answer or its error.
    ///
    /// # Errors
    /// Returns a failure if no answer comes.
    pub async fn request_api(
        &mut self,
        name: &'static str,
        of: &str,
        payload: &Value,
    ) -> Result<Result<Value, ApiError>, NatsError> {
        let subject = self.api_subject(name, of);
        let request = Request::new().payload(payload.to_string().into());
        match self.run_while_connected(self.client.send_request(subject, request)).await? {
            Ok(message) => {
                let mut answer: Value = serde_json::from_slice(&message.payload)
                    .map_err(|_| NatsError::BadAnswer("the answer of the API is not JSON"))?;
                match answer.get_mut("error").map(Value::take) {
                    Some(error) => {
                        let error: ApiError = serde_json::from_value(error).unwrap_or_default();
                        if error.code >= UNABLE {
                            self.run_while_connected(tokio::time::sleep(ENDING)).await?;
                        }
                        Ok(Err(error))
                    }
                    None => Ok(Ok(answer)),
                }
            }
            Err(error) => Err(self.explain_no_answer(name, error.kind()).await),
        }
    }

    /// Returns the reason why a request had no answer.
    pub async fn explain_no_answer(
        &mut self,
        name: &'static str,
        kind: RequestErrorKind,
    ) -> NatsError {
        if kind == RequestErrorKind::NoResponders {
            let why = "nothing answers there; JetStream is off for this account, or `api` is not \
                its prefix";
            return self.confirm_failure(NatsError::Refused(name, why.to_owned())).await;
        }
        tokio::task::yield_now().await;
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::ServerError(ServerError::Other(text))
                    if text.contains("ermissions Violation") =>
                {
                    return NatsError::Refused(name, sanitize_line(&text).into_owned());
                }
                Event::Disconnected | Event::Closed => {
                    return NatsError::Lost("by the server".into());
                }
                _ => {}
            }
        }
        self.confirm_failure(NatsError::NoAnswer(name)).await
    }

    /// Returns the description of the stream, usable or not; `None` if there is none.
    ///
    /// # Errors
    /// Returns a failure if the server does not describe it.
    pub async fn query_stream(&mut self) -> Result<Option<StreamInfo>, NatsError> {
        match self.request_api("STREAM.INFO", "", &json!({})).await? {
            Ok(answer) => StreamInfo::parse(answer).map(Some),
            Err(error) if error.code == NOT_FOUND => Ok(None),
            Err(error) => Err(NatsError::Refused("STREAM.INFO", error.description)),
        }
    }

    /// Returns the description of the stream of lines; `None` if there is none.
    ///
    /// # Errors
    /// Returns a failure if the server does not describe the stream, or it cannot be used.
    pub async fn query_line_stream(&mut self) -> Result<Option<StreamInfo>, NatsError> {
        let info = self.query_stream().await?;
        info.iter().try_for_each(|info| info.check_usable(&self.space))?;
        Ok(info)
    }

    /// Returns the description of the bucket of marks, like [`NatsConnection::query_line_stream`].
    ///
    /// # Errors
    /// Fails like [`NatsConnection::query_line_stream`].
    pub async fn query_mark_bucket(&mut self) -> Result<Option<StreamInfo>, NatsError> {
        let info = self.query_stream().await?;
        info.iter().try_for_each(|info| info.check_usable_for_marks(&self.space))?;
        Ok(info)
    }

    /// Creates the stream of lines.
    ///
    /// # Errors
    /// Returns a failure if the server does not create it.
    pub async fn create_line_stream(&mut self) -> Result<StreamInfo, NatsError> {
        let config = json!({
            "name": self.space.stream_name(), "subjects": [self.space.all_subjects()], "storage": "file",
            "retention": "limits", "discard": "new", "max_age": 0, "max_msgs": -1, "max_bytes": -1,
            "max_msgs_per_subject": -1, "max_msg_size": -1,
            // Each machine has one, and the default is 1000.
            "max_consumers": 10_000,
            "num_replicas": 1, "compression": "s2", "allow_direct": true, "deny_delete": true,
            "deny_purge": true, "allow_rollup_hdrs": false, "allow_atomic": true,
            "duplicate_window": 120_000_000_000_u64,
        });
        let info = self.create_stream(&config).await?;
        info.check_usable(&self.space)?;
        Ok(info)
    }

    /// Creates the bucket of marks, like [`NatsConnection::create_line_stream`].
    ///
    /// # Errors
    /// Fails like [`NatsConnection::create_line_stream`].
    pub async fn create_mark_bucket(&mut self) -> Result<StreamInfo, NatsError> {
        let config = json!({
            "name": self.space.bucket_name(), "subjects": [self.space.mark_subjects()], "storage": "file",
            "retention": "limits", "discard": "old", "max_age": 0, "max_msgs": -1, "max_bytes": -1,
            "max_msgs_per_subject": 1, "max_msg_size": MAX_VALUE,
            // Each identity on each machine has one.
            "max_consumers": -1,
            "num_replicas": 1, "compression": "s2", "allow_direct": true, "deny_delete": true,
            "deny_purge": true, "allow_rollup_hdrs": false, "duplicate_window": 120_000_000_000_u64,
        });
        let info = self.create_stream(&config).await?;
        info.check_usable_for_marks(&self.space)?;
        Ok(info)
    }

    async fn create_stream(&mut self, config: &Value) -> Result<StreamInfo, NatsError> {
        let stream = self.stream.clone();
        let no = |why| NatsError::NoStream(stream, why);
        match self.request_api("STREAM.CREATE", "", config).await {
            Ok(Ok(answer)) => StreamInfo::parse(answer),
            Ok(Err(error)) => Err(no(sanitize_line(&error.description).into_owned())),
            Err(NatsError::Refused(..) | NatsError::NoAnswer(..)) => {
                Err(no("it is not permitted".to_owned()))
            }
            Err(other) => Err(other),
        }
    }

    /// Returns the next event of the server. Callers await it beside other work.
    pub async fn next_event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Returns true if this user may publish a subject, as the server reports it. A `*` in it stands for any token.
    pub async fn may_publish(&mut self, subject: &str) -> bool {
        let permissions = self.query_permissions().await;
        let allowed = permissions.as_ref().and_then(|all| all.pointer("/publish/allow"));
        allowed.and_then(Value::as_array).is_none_or(|allowed| {
            let mut patterns = allowed.iter().filter_map(Value::as_str);
            patterns.any(|pattern| do_subjects_meet(pattern, subject))
        })
    }

    async fn query_permissions(&mut self) -> Option<Value> {
        let request = Request::new().payload("".into());
        let answer = self.client.send_request("$SYS.REQ.USER.INFO", request).await.ok()?;
        let answer: Value = serde_json::from_slice(&answer.payload).ok()?;
        answer.pointer("/data/permissions").cloned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::link::NatsSettings;
    use crate::link::nats::block_on_runtime;

    /// Answers each request with this text, and then ends if `ends` is true.
    fn serve(mut stream: TcpStream, says: &str, ends: bool) -> std::io::Result<()> {
        let info = r#"{"server_id":"x","version":"2.12.0","max_payload":1048576,"headers":true,"proto":1}"#;
        write!(stream, "INFO {info}\r\n")?;
        let (mut lines, mut line) = (BufReader::new(stream.try_clone()?), String::new());
        let mut sid = String::new();
        while lines.read_line(&mut line)? > 0 {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            line.clear();
            match words.first().map(String::as_str) {
                Some("PING") => write!(stream, "PONG\r\n")?,
                Some("SUB") => sid.clone_from(&words[2]),
                Some("PUB") if words.len() == 4 => {
                    let mut body = vec![0; words[3].parse::<usize>().unwrap() + 2];
                    lines.read_exact(&mut body)?;
                    let (reply, len) = (&words[2], says.len());
                    let status = says.starts_with("NATS/1.0");
                    if status {
                        write!(stream, "HMSG {reply} {sid} {len} {len}\r\n{says}\r\n")?;
                    } else {
                        write!(stream, "MSG {reply} {sid} {len}\r\n{says}\r\n")?;
                    }
                    if ends {
                        std::thread::sleep(Duration::from_millis(50));
                        return write!(stream, "-ERR 'Server Shutdown'\r\n");
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the configuration of a link to a server that answers each request with this text.
    fn served(says: &'static str, ends: bool) -> NatsConfig {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _ = serve(stream, says, ends);
        });
        let settings = NatsSettings { url: vec![url], ..NatsSettings::default() };
        NatsConfig { settings, ..NatsConfig::default() }
    }

    /// Returns a connection to a server that does not answer lines.
    pub async fn silent_server() -> NatsConnection {
        NatsConnection::connect(&served("", false)).await.unwrap()
    }

    fn asked(says: &'static str, ends: bool) -> NatsError {
        let spec = served(says, ends);
        let asked = async {
            let mut server = NatsConnection::connect(&spec).await?.with_mark_bucket();
            server.query_mark_bucket().await
        };
        block_on_runtime(asked).unwrap().unwrap_err()
    }

    /// A server that ends refuses permitted requests first; that refusal is not reported.
    #[test]
    fn a_server_that_ends_refuses_nothing() {
        for (says, refuses) in [
            ("NATS/1.0 503\r\n\r\n", "nothing answers"),
            (
                r#"{"error":{"code":503,"err_code":10008,"description":"unavailable"}}"#,
                "unavailable",
            ),
        ] {
            let failure = asked(says, true);
            assert!(matches!(failure, NatsError::Lost(_)), "{says}: {failure}");
            let failure = asked(says, false);
            assert!(matches!(failure, NatsError::Refused(..)), "{says}: {failure}");
            assert!(failure.to_string().contains(refuses), "{failure}");
        }
    }
}
