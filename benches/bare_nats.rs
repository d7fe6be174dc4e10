//! The NATS client alone: `benches/run links` measures the link beside it. It also acts as the rest of a fleet.
//!
//! ```text
//! bare_nats fill URL WRITERS LINES      stores LINES lines of each writer; prints the seconds
//! bare_nats replay URL LINES            reads LINES lines with one consumer; prints the seconds
//! bare_nats arrive URL TIMES            stores and receives one line after another; prints each time in seconds
//! bare_nats crowd URL HOSTS AGENTS RATE that many hosts, each with a consumer of its own, whose AGENTS
//!                                       write RATE lines a second together, until standard input ends
//! ```

use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Message, Subscriber};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The lines of one batch, and the messages of one request.
const BATCH: u64 = 500;

const USAGE: &str = "usage: bare_nats fill|replay|arrive|crowd URL NUMBER...";

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().map_err(|_| USAGE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match *words.as_slice() {
            ["fill", url, writers, lines] => fill(url, number(writers)?, number(lines)?).await,
            ["replay", url, lines] => replay(url, number(lines)?).await,
            ["arrive", url, times] => arrive(url, number(times)?).await,
            ["crowd", url, hosts, agents, rate] => {
                crowd(url, number(hosts)?, number(agents)?, number(rate)?).await
            }
            _ => Err(USAGE.into()),
        }
    })
}

/// Returns a line of the length that messages have.
fn line(writer: &str, n: u64) -> String {
    let body =
        "the schema migration is done, please review the branch before it is merged. ".repeat(2);
    format!(
        "{{\"id\":\"{writer}-{n}\",\"ts\":{},\"from\":\"{writer}\",\"to\":\"bob\",\"thread\":\"t{}\",\"body\":\"{body}{n}\"}}\n",
        1_767_571_200 + n,
        n % 100,
    )
}

fn subject(writer: &str) -> String {
    format!("msgfs.team.{writer}")
}

fn headers(at: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Msgfs-At", at.to_string());
    headers
}

/// Asks the server, and returns its answer unless it is an error.
async fn ask(client: &Client, subject: &str, question: Value) -> Outcome<Value> {
    let answer = client.request(subject.to_owned(), question.to_string().into()).await?;
    stored(&answer)
}

fn stored(answer: &Message) -> Outcome<Value> {
    let answer: Value = serde_json::from_slice(&answer.payload)?;
    match answer.get("error") {
        Some(error) => Err(error.to_string().into()),
        None => Ok(answer),
    }
}

async fn fill(url: &str, writers: u64, lines: u64) -> Outcome<()> {
    let client = async_nats::connect(url).await?;
    let config = json!({
        "name": "MSGFS_team", "subjects": ["msgfs.team.*"], "storage": "file", "retention": "limits",
        "discard": "new", "max_consumers": 10_000, "num_replicas": 1, "compression": "s2",
        "allow_direct": true, "deny_delete": true, "deny_purge": true, "allow_atomic": true,
    });
    ask(&client, "$JS.API.STREAM.CREATE.MSGFS_team", config).await?;
    let start = Instant::now();
    for writer in 0..writers {
        let writer = format!("agent{writer}");
        let (mut n, mut at) = (0, 0);
        while n < lines {
            let upto = lines.min(n + BATCH);
            at = batch(&client, &writer, n..upto, at).await?;
            n = upto;
        }
    }
    say(start.elapsed().as_secs_f64());
    Ok(())
}

/// Stores lines of a writer in one batch, and returns the offset of the next line.
async fn batch(
    client: &Client,
    writer: &str,
    range: std::ops::Range<u64>,
    mut at: usize,
) -> Outcome<usize> {
    let id = format!("{writer}-{}", range.start);
    let count = range.end - range.start;
    for (sequence, n) in (1..).zip(range) {
        let text = line(writer, n);
        let mut headers = headers(at);
        headers.insert("Nats-Batch-Id", &*id);
        headers.insert("Nats-Batch-Sequence", sequence.to_string());
        at += text.len();
        if sequence == count {
            headers.insert("Nats-Batch-Commit", "1");
            stored(&client.request_with_headers(subject(writer), headers, text.into()).await?)?;
        } else {
            client.publish_with_headers(subject(writer), headers, text.into()).await?;
        }
    }
    Ok(at)
}

/// A consumer, and the messages that it was asked for.
struct Consumer {
    client: Client,
    answers: Subscriber,
    inbox: String,
    next: String,
    open: u64,
}

impl Consumer {
    async fn start(client: Client, policy: &str) -> Outcome<Self> {
        let inbox = client.new_inbox();
        let name = inbox.replace('.', "-");
        let config = json!({
            "stream_name": "MSGFS_team", "action": "create",
            "config": { "name": name, "deliver_policy": policy, "ack_policy": "none", "mem_storage": true,
                        "num_replicas": 1, "inactive_threshold": 60_000_000_000_u64 },
        });
        ask(&client, &format!("$JS.API.CONSUMER.CREATE.MSGFS_team.{name}"), config).await?;
        let answers = client.subscribe(inbox.clone()).await?;
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.MSGFS_team.{name}");
        let mut consumer = Self { client, answers, inbox, next, open: 0 };
        consumer.question().await?;
        Ok(consumer)
    }

    async fn question(&mut self) -> Outcome<()> {
        let question = json!({ "batch": BATCH, "expires": 30_000_000_000_u64 }).to_string();
        self.client
            .publish_with_reply(self.next.clone(), self.inbox.clone(), question.into())
            .await?;
        self.open = BATCH;
        Ok(())
    }

    async fn next(&mut self) -> Outcome<Message> {
        loop {
            if self.open == 0 {
                self.question().await?;
            }
            let message = self.answers.next().await.ok_or("the connection has ended")?;
            if *message.subject == *self.inbox {
                // The request has expired.
                self.open = 0;
            } else {
                self.open -= 1;
                return Ok(message);
            }
        }
    }
}

async fn replay(url: &str, lines: u64) -> Outcome<()> {
    let client = async_nats::connect(url).await?;
    let start = Instant::now();
    let mut consumer = Consumer::start(client, "all").await?;
    for _ in 0..lines {
        consumer.next().await?;
    }
    say(start.elapsed().as_secs_f64());
    Ok(())
}

async fn arrive(url: &str, times: u64) -> Outcome<()> {
    let (writer, reader) = (async_nats::connect(url).await?, async_nats::connect(url).await?);
    let mut consumer = Consumer::start(reader, "new").await?;
    let mut at = 0;
    for n in 0..times {
        let text = line("bare", n);
        let (headers, len) = (headers(at), text.len());
        let start = Instant::now();
        let sent = writer.request_with_headers(subject("bare"), headers, text.into());
        let (sent, received) = tokio::join!(sent, consumer.next());
        stored(&sent?)?;
        received?;
        say(start.elapsed().as_secs_f64());
        at += len;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn crowd(url: &str, hosts: u64, agents: u64, rate: u64) -> Outcome<()> {
    let mut clients = Vec::new();
    for _ in 0..hosts {
        let client = async_nats::connect(url).await?;
        clients.push(client.clone());
        let mut consumer = Consumer::start(client, "new").await?;
        tokio::spawn(async move { while consumer.next().await.is_ok() {} });
    }
    say("ready");
    let stdin = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / rate as f64));
    let mut logs: Vec<(String, usize)> = (0..agents).map(|n| (format!("crowd{n}"), 0)).collect();
    for n in 0.. {
        for ((name, end), client) in logs.iter_mut().zip(clients.iter().cycle()) {
            tick.tick().await;
            if stdin.is_finished() {
                return Ok(());
            }
            let text = line(name, n);
            let (headers, len) = (headers(*end), text.len());
            stored(&client.request_with_headers(subject(name), headers, text.into()).await?)?;
            *end += len;
        }
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is what it is for")]
fn say(what: impl Display) {
    println!("{what}");
}
