//! Reading of the stream out of order, by `DIRECT.GET`, for which the server keeps no state.
//!
//! A message with broken headers kills the connection of a client that reads it so. Subjects that may hold one are read
//! by `STREAM.MSG.GET`, one message at a time and more slowly, because it sends the whole message as base64 in JSON.

use std::str::FromStr as _;
use std::time::Duration;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Message, RequestErrorKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::NatsError;
use super::server::NatsConnection;

const NAME: &str = "DIRECT.GET";
/// The number of messages in an answer.
const BATCH: usize = 500;
/// The number of messages that are read one by one.
const FEW: usize = 50;
/// The number of bytes in an answer, unless one message is larger.
const BYTES: u64 = 8 << 20;
/// The number of subjects in a request.
pub const SUBJECTS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(5);

/// A message as the server holds it.
#[derive(Clone, Debug)]
pub struct StreamMessage {
    /// The number of the message.
    pub seq: u64,
    /// The time of the message in nanoseconds.
    pub time: i64,
    /// Its subject.
    pub subject: String,
    /// Its headers and bytes.
    pub message: Message,
    /// The number of times that the server added each header of an answer.
    pub answers: usize,
}

/// A message in the form of the API.
#[derive(Debug, Deserialize)]
struct ApiMessage {
    seq: u64,
    subject: String,
    time: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl ApiMessage {
    fn into_stored(self) -> Option<StreamMessage> {
        let payload = BASE64.decode(&self.data).ok()?;
        // A message without headers is refused, like one with broken ones.
        let headers = BASE64.decode(&self.hdrs).ok().and_then(|bytes| parse_headers(&bytes));
        let length = payload.len();
        let message = Message {
            subject: self.subject.as_str().into(),
            reply: None,
            payload: payload.into(),
            headers,
            status: None,
            description: None,
            length,
        };
        let time = parse_nanoseconds(&self.time)?;
        Some(StreamMessage { seq: self.seq, time, subject: self.subject, message, answers: 0 })
    }
}

fn parse_nanoseconds(time: &str) -> Option<i64> {
    i64::try_from(time.parse::<jiff::Timestamp>().ok()?.as_nanosecond()).ok()
}

/// Parses a block of headers; `None` if it is broken.
fn parse_headers(block: &[u8]) -> Option<HeaderMap> {
    let mut lines = std::str::from_utf8(block).ok()?.split_terminator("\r\n");
    let mut all = HeaderMap::new();
    lines.next().filter(|first| first.starts_with("NATS/1.0"))?;
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        all.append(HeaderName::from_str(name).ok()?, HeaderValue::from_str(value.trim()).ok()?);
    }
    Some(all)
}

/// Returns the last value of a header. The server writes its own value behind those of the message.
fn last_header<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    headers.get_last(name).map(HeaderValue::as_str)
}

fn parse_stored(message: Message) -> Option<StreamMessage> {
    let headers = message.headers.as_ref()?;
    let seq = last_header(headers, "Nats-Sequence")?.parse().ok()?;
    let time = parse_nanoseconds(last_header(headers, "Nats-Time-Stamp")?)?;
    let subject = last_header(headers, "Nats-Subject")?.to_owned();
    Some(StreamMessage { seq, time, subject, message, answers: 1 })
}

impl NatsConnection {
    /// Returns the messages of one answer, and the number of further ones.
    async fn fetch_batch(
        &mut self,
        question: &Value,
    ) -> Result<(Vec<StreamMessage>, u64), NatsError> {
        let inbox = self.client.new_inbox();
        let lost = |e: &dyn std::fmt::Display| NatsError::Lost(e.to_string());
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|e| lost(&e))?;
        let subject = self.api_subject(NAME, "");
        let asked = self.client.publish_with_reply(subject, inbox, question.to_string().into());
        asked.await.map_err(|e| lost(&e))?;
        let mut all = Vec::new();
        loop {
            let answer = tokio::time::timeout(PATIENCE, answers.next());
            let Ok(answer) = self.run_while_connected(answer).await? else {
                return Err(self.explain_no_answer(NAME, RequestErrorKind::TimedOut).await);
            };
            let answer = answer.ok_or_else(|| NatsError::Lost("by the client".into()))?;
            let status = answer.status.map_or(0, |status| status.as_u16());
            // A message can bring its own status; only the server's end marker has no sequence number.
            let more = answer.headers.as_ref().and_then(|h| last_header(h, "Nats-Num-Pending"));
            let more = more.and_then(|more| more.parse().ok()).unwrap_or(0);
            let described = answer.description.clone().unwrap_or_default();
            match (parse_stored(answer), status) {
                (Some(message), _) => all.push(message),
                (None, 204) => return Ok((all, more)),
                (None, 404) => return Ok((all, 0)),
                (None, 503) => {
                    return Err(self.explain_no_answer(NAME, RequestErrorKind::NoResponders).await);
                }
                (None, _) => return Err(NatsError::Refused(NAME, described)),
            }
        }
    }

    /// Returns one message; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns a failure if no answer comes.
    pub async fn fetch_message(&mut self, seq: u64) -> Result<Option<StreamMessage>, NatsError> {
        let question = json!({ "seq": seq }).to_string();
        let asked = self.client.request(self.api_subject(NAME, ""), question.into());
        match self.run_while_connected(asked).await? {
            Ok(answer) => Ok(parse_stored(answer)),
            Err(error) => Err(self.explain_no_answer(NAME, error.kind()).await),
        }
    }

    /// Returns the first message of a subject at or behind a number, even a broken one; `None` if there is none.
    ///
    /// # Errors
    /// Returns a failure if no answer comes.
    pub async fn fetch_via_api(
        &mut self,
        subject: &str,
        seq: u64,
    ) -> Result<Option<StreamMessage>, NatsError> {
        let question = json!({ "seq": seq, "next_by_subj": subject });
        match self.request_api("STREAM.MSG.GET", "", &question).await? {
            Ok(mut answer) => {
                let told = answer.get_mut("message").map(Value::take).unwrap_or_default();
                let told: Option<ApiMessage> = serde_json::from_value(told).ok();
                let stored = told.and_then(ApiMessage::into_stored);
                stored.ok_or(NatsError::BadAnswer("a message as the API tells it")).map(Some)
            }
            Err(error) if error.code == 404 => Ok(None),
            Err(error) => Err(NatsError::Refused("STREAM.MSG.GET", error.description)),
        }
    }

    /// Returns some messages of a subject from a number on, and true if there may be more. Set `carefully` if one of
    /// them may be broken.
    ///
    /// # Errors
    /// Returns a failure if no answer comes.
    pub async fn fetch_from(
        &mut self,
        subject: &str,
        mut seq: u64,
        carefully: bool,
    ) -> Result<(Vec<StreamMessage>, bool), NatsError> {
        if carefully {
            let mut all = Vec::new();
            while all.len() < FEW {
                let Some(stored) = self.fetch_via_api(subject, seq).await? else {
                    return Ok((all, false));
                };
                seq = stored.seq + 1;
                all.push(stored);
            }
            return Ok((all, true));
        }
        let question =
            json!({ "seq": seq, "next_by_subj": subject, "batch": BATCH, "max_bytes": BYTES });
        let (all, more) = self.fetch_batch(&question).await?;
        let more = more > 0 && !all.is_empty();
        Ok((all, more))
    }

    /// Returns the last message of each of these subjects (at most [`SUBJECTS`]), up to a number.
    ///
    /// # Errors
    /// Returns a failure if no answer comes.
    pub async fn fetch_last_messages(
        &mut self,
        subjects: &[String],
        upto: u64,
    ) -> Result<Vec<StreamMessage>, NatsError> {
        let (mut all, mut from) = (Vec::new(), 1);
        loop {
            let question = json!({
                "seq": from, "multi_last": subjects, "up_to_seq": upto, "batch": SUBJECTS,
                "max_bytes": BYTES,
            });
            let (some, more) = self.fetch_batch(&question).await?;
            let last = some.last().map(|message| message.seq);
            all.extend(some);
            match last {
                Some(last) if more > 0 => from = last + 1,
                _ => return Ok(all),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_headers_are_none() {
        let good = parse_headers(b"NATS/1.0\r\nMsgfs-At: 7\r\nX:\r\n\r\n").unwrap();
        assert_eq!(last_header(&good, "Msgfs-At"), Some("7"));
        for bad in [
            b"" as &[u8],
            b"X: 1\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\nX: \xff\r\n\r\n",
            b"NATS/1.0\r\nX: a\rb\r\n\r\n",
            b"NATS/1.0\r\nX y: a\r\n\r\n",
        ] {
            assert!(parse_headers(bad).is_none(), "{bad:?}");
        }
    }
}
