//! Links: what carries mail of a store to other machines and brings theirs.
//!
//! A store holds mail on this machine; a link carries it. The tree, the index and the agents know only
//! stores: what a link brought lies in the store like any mail, and everything works while the network is
//! gone.
//!
//! - [`spec`]: what is configured.
//! - [`board`]: where a link stands, for people.
//! - [`marks`]: what was read, as my other machines are told of it.
//! - [`backoff`]: when something is tried again.
//! - [`reach`]: to whom plain text may go.
//! - [`request`]: what commands ask of whoever carries.
//! - [`secret`]: files that hold secrets, and texts that must not. [`tls`]: whom this machine believes.
//! - [`room`]: what stays free on the disk.
//! - `elements`: lists in JSON of which one element is odd.
//! - [`wire`]: connections that speak in lines.
//! - [`agentazall`]: the links of AgentAZAll. [`amp`]: those of AMP.
//! - [`post`]: a link that carries whole messages, with its [`journal`], its [`job`]s and its [`mod@engine`].
//! - `nats`: the logs of a SAMP folder over NATS JetStream.

#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
pub mod agentazall;
#[cfg(feature = "http")]
pub mod amp;
pub mod backoff;
pub mod board;
#[cfg(feature = "http")]
mod elements;
pub mod engine;
#[cfg(all(test, feature = "http", feature = "ftp", feature = "mail"))]
mod hostile;
#[cfg(feature = "http")]
pub mod http;
pub mod job;
pub mod journal;
mod links;
#[cfg(feature = "nats")]
mod logs;
#[cfg(not(feature = "nats"))]
#[path = "no_logs.rs"]
mod logs;
mod look;
pub mod marks;
#[cfg(feature = "nats")]
pub mod nats;
pub mod post;
pub mod reach;
pub mod request;
pub mod room;
pub mod secret;
pub mod spec;
pub mod tls;
#[cfg(any(feature = "ftp", feature = "mail"))]
pub mod wire;

pub use self::board::{HealthBoard, LinkHealth, LinkState};
pub use self::engine::check_engine;
pub use self::links::{
    HealthBoards, LinkSet, LinkSetOptions, RescanCallback, engine_settings, open_engine,
};
pub use self::marks::{MarkLogProvider, SharedMarkLog};
pub use self::request::LinkRequest;
pub use self::spec::{LinkConfig, LinkKind, shared_links_folder};
