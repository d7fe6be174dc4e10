//! Reading the stream out of order, by `DIRECT.GET`: the server keeps nothing for it.

use std::time::Duration;

use async_nats::{HeaderMap, Message, RequestErrorKind};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::failure::Failure;
use super::server::Server;

const NAME: &str = "DIRECT.GET";
/// Messages of one answer.
const BATCH: usize = 500;
/// Bytes of one answer, but for a message that is larger.
const BYTES: u64 = 8 << 20;
/// Subjects of one question.
pub const SUBJECTS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(5);

/// A message as the server holds it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its number.
    pub seq: u64,
    /// Its time in nanoseconds.
    pub time: i64,
    /// Its subject.
    pub subject: String,
    /// Its headers, with one of each that the server adds, and its bytes.
    pub message: Message,
}

/// The last value of a header: the server writes its own behind those of the message.
fn last<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    headers.get_last(name).map(async_nats::HeaderValue::as_str)
}

fn stored(message: Message) -> Option<Stored> {
    let headers = message.headers.as_ref()?;
    let seq = last(headers, "Nats-Sequence")?.parse().ok()?;
    let time: jiff::Timestamp = last(headers, "Nats-Time-Stamp")?.parse().ok()?;
    let subject = last(headers, "Nats-Subject")?.to_owned();
    let time = i64::try_from(time.as_nanosecond()).ok()?;
    Some(Stored { seq, time, subject, message })
}

impl Server {
    /// The messages of one answer, and how many more there are.
    async fn several(&mut self, question: &Value) -> Result<(Vec<Stored>, u64), Failure> {
        let inbox = self.client.new_inbox();
        let lost = |e: &dyn std::fmt::Display| Failure::Lost(e.to_string());
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|e| lost(&e))?;
        let subject = self.api(NAME, "");
        let asked = self.client.publish_with_reply(subject, inbox, question.to_string().into());
        asked.await.map_err(|e| lost(&e))?;
        let mut all = Vec::new();
        loop {
            let answer = tokio::time::timeout(PATIENCE, answers.next());
            let Ok(answer) = self.unless_gone(answer).await? else {
                return Err(self.silent(NAME, RequestErrorKind::TimedOut).await);
            };
            let answer = answer.ok_or_else(|| Failure::Lost("by the client".into()))?;
            let status = answer.status.map_or(0, |status| status.as_u16());
            // A message can bring a status of its own; only the server's end has no number.
            let more = answer.headers.as_ref().and_then(|h| last(h, "Nats-Num-Pending"));
            let more = more.and_then(|more| more.parse().ok()).unwrap_or(0);
            let described = answer.description.clone().unwrap_or_default();
            match (stored(answer), status) {
                (Some(message), _) => all.push(message),
                (None, 204) => return Ok((all, more)),
                (None, 404) => return Ok((all, 0)),
                (None, 503) => return Err(self.silent(NAME, RequestErrorKind::NoResponders).await),
                (None, _) => return Err(Failure::Refused(NAME, described)),
            }
        }
    }

    /// One message; `None` if it is not there.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn one(&mut self, seq: u64) -> Result<Option<Stored>, Failure> {
        self.single(json!({ "seq": seq })).await
    }

    /// The first message at or behind a number; `None` if there is none.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn next_from(&mut self, seq: u64) -> Result<Option<Stored>, Failure> {
        self.single(json!({ "seq": seq, "next_by_subj": ">" })).await
    }

    async fn single(&mut self, question: Value) -> Result<Option<Stored>, Failure> {
        let subject = self.api(NAME, "");
        let asked = self.client.request(subject, question.to_string().into());
        match self.unless_gone(asked).await? {
            Ok(answer) => Ok(stored(answer)),
            Err(error) => Err(self.silent(NAME, error.kind()).await),
        }
    }

    /// Some messages of a subject from a number on, and whether there may be more.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn from(&mut self, subject: &str, seq: u64) -> Result<(Vec<Stored>, bool), Failure> {
        let question =
            json!({ "seq": seq, "next_by_subj": subject, "batch": BATCH, "max_bytes": BYTES });
        let (all, more) = self.several(&question).await?;
        let more = more > 0 && !all.is_empty();
        Ok((all, more))
    }

    /// The last message of each of these subjects (at most [`SUBJECTS`]), up to a number.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn lasts(&mut self, subjects: &[String], upto: u64) -> Result<Vec<Stored>, Failure> {
        let (mut all, mut from) = (Vec::new(), 1);
        loop {
            let question = json!({
                "seq": from, "multi_last": subjects, "up_to_seq": upto, "batch": SUBJECTS,
                "max_bytes": BYTES,
            });
            let (some, more) = self.several(&question).await?;
            let last = some.last().map(|message| message.seq);
            all.extend(some);
            match last {
                Some(last) if more > 0 => from = last + 1,
                _ => return Ok(all),
            }
        }
    }
}
