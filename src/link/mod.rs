//! Links, which carry mail between a store and other machines.
//!
//! A store holds mail on this machine; a link carries it. The tree, the index and the agents know only stores: fetched
//! mail lies in the store like any other, and everything works while the network is gone.
//!
//! - [`kind`]: the configuration of a link, and the table of the kinds.
//! - [`board`]: the health of a link, for people.
//! - [`marks`]: the marks *read* for my other machines.
//! - [`backoff`]: the pauses after failures.
//! - [`private_hosts`]: the hosts to which plain text may go.
//! - [`request`]: requests of commands to the process that carries.
//! - [`secret`]: secret files, and removal of secrets from texts. [`tls`]: the certificates that this machine trusts.
//! - [`disk_space`]: the space that stays free on the disk.
//! - `json_lists`: lists in JSON with broken elements.
//! - [`connection`]: connections with a protocol of lines.
//! - [`agentazall`]: the links of AgentAZAll. [`amp`]: those of AMP.
//! - `links`: all links of a mount. `read_only`: those of a process that only reads. `logs`: the trait of links of logs.
//! - `http`: an HTTP client.
//! - `lifecycle`: the trait of all links, which start, wake, stop and report their health.
//! - [`message_link`]: a link that carries whole messages, with its [`journal`], its [`job`]s and its [`mod@engine`].
//! - [`carrier`]: the process that makes the exchanges of a link. [`carrier_worker`]: its work.
//! - `nats`: the logs of a SAMP folder over NATS JetStream.

#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
pub mod agentazall;
#[cfg(feature = "http")]
pub mod amp;
pub mod backoff;
pub mod board;
pub mod carrier;
pub mod carrier_worker;
#[cfg(any(feature = "ftp", feature = "mail"))]
pub mod connection;
pub mod disk_space;
pub mod engine;
#[cfg(all(test, feature = "http", feature = "ftp", feature = "mail"))]
mod hostile;
#[cfg(feature = "http")]
pub mod http;
pub mod job;
pub mod journal;
#[cfg(feature = "http")]
mod json_lists;
pub mod kind;
mod lifecycle;
mod links;
mod logs;
pub mod marks;
pub mod message_link;
#[cfg(feature = "nats")]
pub mod nats;
pub mod private_hosts;
mod read_only;
pub mod request;
pub mod secret;
pub mod tls;

pub use self::board::{HealthBoard, LinkHealth, LinkState};
pub use self::engine::check_engine;
pub use self::kind::{
    LinkConfig, LinkKind, LinkSettings, MailSettings, NatsConfig, NatsSettings, NoSettings,
    open_engine,
};
pub use self::lifecycle::RescanCallback;
pub use self::links::{
    CarryCheck, HealthBoards, LinkSet, LinkSetOptions, SWITCHED_OFF, TakenLogProof, TakenLogs,
    engine_settings, explain_stopped_link,
};
pub use self::logs::{
    check_log_link, check_shared_marks, describe_missing_store, prepare_server, shared_links_folder,
};
pub use self::marks::{MarkLogProvider, SharedMarkLog};
pub use self::request::LinkRequest;
