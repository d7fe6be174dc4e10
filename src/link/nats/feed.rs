//! The feed of new messages: a consumer that the server drops after the last request.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::failure::NatsError;
use super::server::NatsConnection;

/// The number of messages in a request.
const BATCH: usize = 500;
/// The number of bytes in a request, at least.
const BYTES: u64 = 8 << 20;
/// The time for which the server holds a request open.
const OPEN: Duration = Duration::from_secs(30);
/// The pause between heartbeats of an open request.
const SIGN: Duration = Duration::from_secs(5);
/// The time without a heartbeat after which a request counts as lost.
const SILENCE: Duration = Duration::from_secs(13);
/// The texts of the server when a feed ends for another reason than permissions.
const ENDS: [&str; 3] = ["Server Shutdown", "Leadership Change", "Consumer Deleted"];

/// A message of the stream.
#[derive(Debug)]
pub struct FeedMessage {
    /// The number of the message.
    pub seq: u64,
    /// The time of the message in nanoseconds.
    pub time: i64,
    /// The number of messages behind it.
    pub pending: u64,
    /// The message.
    pub message: Message,
}

/// A consumer of messages.
#[derive(Debug)]
pub struct StreamFeed {
    answers: Subscriber,
    inbox: String,
    next_subject: String,
    max_bytes: u64,
    /// The number of messages of the open request that are still to come.
    open_count: usize,
    /// The number of messages that came. The server counts them too, so a gap shows that a message was lost.
    count: u64,
}

impl StreamFeed {
    /// Starts a feed of all messages from a number on, or of those of some subjects. Returns it with the number of
    /// existing ones.
    ///
    /// # Errors
    /// Returns a failure if the server refuses.
    pub async fn start(
        server: &mut NatsConnection,
        name: &str,
        seq: u64,
        only: Option<&str>,
    ) -> Result<(Self, u64), NatsError> {
        let config = json!({
            "stream_name": server.stream,
            "config": {
                "name": name, "deliver_policy": "by_start_sequence", "opt_start_seq": seq,
                "filter_subject": only,
                "ack_policy": "none", "replay_policy": "instant", "max_deliver": 1, "mem_storage": true,
                "num_replicas": 1, "inactive_threshold": OPEN.as_nanos() as u64,
            },
            "action": "create",
        });
        let made = match server.request_api("CONSUMER.CREATE", &format!(".{name}"), &config).await?
        {
            Ok(made) => made,
            Err(error) => return Err(NatsError::Refused("CONSUMER.CREATE", error.description)),
        };
        let pending = made.get("num_pending").and_then(Value::as_u64).unwrap_or(0);
        let inbox = server.client.new_inbox();
        let lost = |e: async_nats::SubscribeError| NatsError::Lost(e.to_string());
        let answers = server.client.subscribe(inbox.clone()).await.map_err(lost)?;
        let next = server.api_subject("CONSUMER.MSG.NEXT", &format!(".{name}"));
        let most = BYTES.max(2 * server.max_payload);
        Ok((
            Self { answers, inbox, next_subject: next, max_bytes: most, open_count: 0, count: 0 },
            pending,
        ))
    }

    /// Returns the next message; `None` if none comes for five seconds. Cancelling the call loses nothing.
    ///
    /// # Errors
    /// Returns a failure if nothing can come any more.
    pub async fn next(
        &mut self,
        client: &async_nats::Client,
    ) -> Result<Option<FeedMessage>, NatsError> {
        loop {
            if self.open_count == 0 {
                let question = json!({
                    "batch": BATCH, "max_bytes": self.max_bytes, "expires": OPEN.as_nanos() as u64,
                    "idle_heartbeat": SIGN.as_nanos() as u64,
                });
                let question = question.to_string().into();
                client
                    .publish_with_reply(self.next_subject.clone(), self.inbox.clone(), question)
                    .await
                    .map_err(|e| NatsError::Lost(e.to_string()))?;
                self.open_count = BATCH;
            }
            let message = match tokio::time::timeout(SILENCE, self.answers.next()).await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(NatsError::Lost("by the client".into())),
                Err(_) => {
                    return Err(NatsError::Lost("the server does not answer any more".into()));
                }
            };
            if *message.subject != *self.inbox {
                self.open_count -= 1;
                return self.parse_counted(message).map(Some);
            }
            // This is a status of the server.
            match (message.status, message.description.as_deref().unwrap_or_default()) {
                (Some(StatusCode::IDLE_HEARTBEAT), _) => return Ok(None),
                (Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND), _) => self.open_count = 0,
                (Some(_), text)
                    if text.contains("MaxBytes") || text.contains("Batch Completed") =>
                {
                    self.open_count = 0;
                }
                // The server or the consumer ends; nothing is refused.
                (Some(status), text)
                    if status == StatusCode::NO_RESPONDERS || ENDS.contains(&text) =>
                {
                    return Err(NatsError::Lost(format!("{status} {text}")));
                }
                (Some(_), text) => {
                    return Err(NatsError::Refused("CONSUMER.MSG.NEXT", text.to_owned()));
                }
                (None, _) => {}
            }
        }
    }

    fn parse_counted(&mut self, message: Message) -> Result<FeedMessage, NatsError> {
        let numbers = message.reply.as_deref().and_then(parse_numbers);
        let (seq, count, time, pending) =
            numbers.ok_or(NatsError::BadAnswer("a message has no number"))?;
        self.count += 1;
        if count != self.count {
            return Err(NatsError::Lost("a message was lost on the way".into()));
        }
        Ok(FeedMessage { seq, time, pending, message })
    }
}

/// Parses the number of a message in the stream and in the feed, its time, and the number of messages behind it, from
/// the subject for its acknowledgement:
/// `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<tries>.<seq>.<count>.<time>.<pending>…`.
fn parse_numbers(reply: &str) -> Option<(u64, u64, i64, u64)> {
    let parts: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    let skip = match parts.len() {
        7 => 3,
        9.. => 5,
        _ => return None,
    };
    let mut numbers = parts.iter().skip(skip);
    let seq = numbers.next()?.parse().ok()?;
    let count = numbers.next()?.parse().ok()?;
    Some((seq, count, numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::parse_numbers;

    #[test]
    fn both_spellings() {
        let old = "$JS.ACK.MSGFS_t.h-x.1.7.3.1700000000000000000.9";
        let new = "$JS.ACK._.HASH.MSGFS_t.h-x.1.7.3.1700000000000000000.9";
        for reply in [old, new, &format!("{new}.token")] {
            assert_eq!(parse_numbers(reply), Some((7, 3, 1_700_000_000_000_000_000, 9)));
        }
        for reply in ["", "$JS.ACK.", "$JS.ACK.a.b.1.x.3.4.5", "x.7.3", "$JS.ACK.1.2.3.4.5.6"] {
            assert_eq!(parse_numbers(reply), None, "{reply}");
        }
    }
}
