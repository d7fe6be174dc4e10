//! `msgfs link`: shows the health of links, and retries or drops the mail that waits for one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use msgfs::config;
use msgfs::link::{self, LinkHealth, LinkRequest, LinkState, board};
use msgfs::store::{self, StoreSpec, probe};
use serde::Serialize;

use super::context::{CommandContext, store_folder};
use super::failure::{Failure, refuse};
use super::{GlobalOptions, output};

/// The time within which a running msgfs must do what it is asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The answer if no link is configured, and none was ever open.
const NO_LINK: &str = "there is no link here; `msgfs init --help` tells how to make one";

/// Show the links to other machines; retry or drop the mail that waits for a link
///
/// A link carries mail to and from other machines. A mount, or `msgfs carry --all`, runs the links.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs link\n  msgfs link status --json\n  msgfs link retry relay\n  \
        msgfs link drop relay"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<LinkAction>,
    #[arg(
        long,
        global = true,
        help = "Print one line with a JSON object for each link: name, store, state (starting, connected, waiting, \
                stopped), engine, last_contact, waiting, refused, notes. If they apply, it also has since, why, \
                behind (the writers whose lines wait), and marks (the reason why other machines are not told which \
                messages are read)"
    )]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum LinkAction {
    /// Show the state of each link
    Status,
    /// Try now to send the mail that waits for a link
    Retry {
        /// The name of the link
        name: String,
    },
    /// Make the streams of a nats link on its server, once, as an admin
    Create {
        /// The name of the link in the configuration. You need it only if there are several nats links
        name: Option<String>,
    },
    /// Give up the mail that waits for a link
    ///
    /// The mail is not sent any more. `NAME.warning` in sent/ says so, and whether it may have arrived because an
    /// earlier try got no answer. Mail that is being sent now is given up after the try, unless the other side has
    /// it or may have it.
    Drop {
        /// The name of the link
        name: String,
    },
}

/// A link and its health, as read from its folder.
#[derive(Serialize)]
struct LinkStatusRow {
    name: String,
    store: String,
    #[serde(flatten)]
    health: LinkHealth,
    #[serde(skip)]
    folder: PathBuf,
    /// A process carries for it now.
    #[serde(skip)]
    is_carried: bool,
    /// No process can carry for it.
    #[serde(skip)]
    is_left_out: bool,
    /// Its store is missing.
    #[serde(skip)]
    is_storeless: bool,
}

/// Runs `msgfs link`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let context = CommandContext::find(global)?;
    let is_held = config::find_lock_holder(&context.paths.state).is_some();
    let mut links = list_opened_links(&context.paths.state.join("links"), is_held);
    stop_removed_links(&context, &mut links, is_held)?;
    links.extend(list_shared_links(&context)?);
    match &args.action {
        None | Some(LinkAction::Status) => print_status(&links, is_held, args.json),
        Some(LinkAction::Retry { name }) => {
            request_action(global, &context, &links, name, LinkRequest::Retry)
        }
        Some(LinkAction::Create { name }) => create_streams(&context, name.as_deref()),
        Some(LinkAction::Drop { name }) => {
            request_action(global, &context, &links, name, LinkRequest::Drop)
        }
    }
}

/// Returns the links that have a folder, by store and name.
fn list_opened_links(folder: &Path, is_carried: bool) -> Vec<LinkStatusRow> {
    let folders = |at: &Path| {
        let entries = std::fs::read_dir(at).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    };
    let mut out = Vec::new();
    for store in folders(folder) {
        for name in folders(&folder.join(&store)) {
            let folder = folder.join(&store).join(&name);
            let Some(health) = board::read_saved_health(&folder) else { continue };
            out.push(LinkStatusRow {
                name,
                store: store.clone(),
                health,
                folder,
                is_carried,
                is_left_out: false,
                is_storeless: false,
            });
        }
    }
    out
}

/// Shows links that are switched off, or not in the settings any more, as stopped. An earlier process saved their
/// state.
fn stop_removed_links(
    context: &CommandContext,
    links: &mut [LinkStatusRow],
    is_held: bool,
) -> Result<(), Failure> {
    if links.is_empty() {
        return Ok(());
    }
    let specs = context.store_specs()?;
    let stores: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    for link in links {
        let why = match specs.iter().find(|spec| spec.name == link.store) {
            Some(spec) => match explain_stopped(context, spec, &link.name) {
                Some(why) => why.to_owned(),
                None => continue,
            },
            // The process that carries may have other stores than this command.
            None if is_held => continue,
            None => {
                link.is_storeless = true;
                describe_left_out(&link.store, &stores)
            }
        };
        link.health.state = LinkState::Stopped { why };
        link.is_left_out = true;
    }
    Ok(())
}

/// Returns why a link of a store is switched off or removed; `None` if it is neither, or the store cannot say so now.
fn explain_stopped(context: &CommandContext, spec: &StoreSpec, name: &str) -> Option<&'static str> {
    probe::require_response(&store_folder(spec)).ok()?;
    let store = store::open(spec).ok()?;
    let linked = context.config.linked_stores();
    link::explain_stopped_link(store.as_ref(), &context.config.links, &linked, name)
}

/// Returns why a link whose store is missing is left out.
pub(super) fn describe_left_out(store: &str, stores: &[&str]) -> String {
    format!("it is left out: {}", link::describe_missing_store(store, stores))
}

/// Returns the configured links whose state all names of the user share.
fn list_shared_links(context: &CommandContext) -> Result<Vec<LinkStatusRow>, Failure> {
    let states = context.paths.state.parent().unwrap_or(&context.paths.state);
    let stores: Vec<String> = context.store_folders()?.into_iter().map(|(name, _)| name).collect();
    let shown = |(link, engine): (&link::LinkConfig, String)| {
        let folder = link::shared_links_folder(states).join(&link.name);
        let not_opened = || LinkHealth { engine: engine.clone(), ..LinkHealth::default() };
        let mut health = board::read_saved_health(&folder).unwrap_or_else(not_opened);
        let (name, store) = (link.name.clone(), link.store.clone());
        // One of the names of this machine carries for all of them.
        let is_carried = config::find_lock_holder(&folder).is_some();
        let is_storeless = !is_carried && !stores.contains(&store);
        if link.off {
            health.state = LinkState::Stopped { why: link::SWITCHED_OFF.to_owned() };
        } else if is_storeless {
            // The state that an earlier process saved is out of date.
            let stores: Vec<&str> = stores.iter().map(String::as_str).collect();
            let why = describe_left_out(&store, &stores);
            health = LinkHealth { state: LinkState::Stopped { why }, ..not_opened() };
        }
        let (folder, is_left_out) = (PathBuf::new(), link.off || is_storeless);
        LinkStatusRow { name, store, health, folder, is_carried, is_left_out, is_storeless }
    };
    let links = context.config.links.iter();
    Ok(links.filter_map(|link| Some((link, link.describe_place()?))).map(shown).collect())
}

/// Makes the streams of a link.
fn create_streams(context: &CommandContext, name: Option<&str>) -> Result<(), Failure> {
    let links = context.config.links.iter().filter(|link| link.kind().carries_logs());
    let links: Vec<&link::LinkConfig> = links.collect();
    let spec = match (&links[..], name) {
        ([], _) => refuse!(
            "the configuration has no [[link]] of kind \"nats\"; `msgfs init --link nats` makes one"
        ),
        ([only], None) => only,
        (_, name) => {
            let asked = name.unwrap_or_default();
            if let Some(spec) = links.iter().find(|link| link.name == asked) {
                spec
            } else {
                let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
                let names = names.join(", ");
                if asked.is_empty() {
                    refuse!("there are several links of kind \"nats\": name one of {names}");
                }
                refuse!("there is no link {asked:?} of kind \"nats\"; there is {names}");
            }
        }
    };
    link::prepare_server(spec).map_err(|why| Failure::refused(format!("{}: {why}", spec.name)))?;
    output::print_data(&format!("the streams of {} are there\n", spec.name))
}

/// Prints the links. `is_held` is true if a process acts for me now.
fn print_status(links: &[LinkStatusRow], is_held: bool, json: bool) -> Result<(), Failure> {
    if json {
        return links.iter().try_for_each(output::print_json_line);
    }
    if links.is_empty() {
        return output::print_data(&format!("{NO_LINK}\n"));
    }
    let idle = links.iter().filter(|link| !link.is_carried && !link.is_left_out);
    let idle: Vec<&str> = idle.map(|link| link.name.as_str()).collect();
    if !idle.is_empty() {
        let of = if idle.len() < links.len() {
            format!(" for {}", idle.join(", "))
        } else {
            String::new()
        };
        output::print_notice(&if is_held {
            format!("nothing carries now{of}; if that stays so, `msgfs status` has the reason")
        } else {
            format!("nothing carries now{of}: neither a mount nor `msgfs carry --all` is running")
        });
    }
    let lines: Vec<String> = links.iter().flat_map(|l| l.health.render_lines(&l.name)).collect();
    output::print_data(&(lines.join("\n") + "\n"))
}

fn request_action(
    global: &GlobalOptions,
    context: &CommandContext,
    links: &[LinkStatusRow],
    name: &str,
    request: LinkRequest,
) -> Result<(), Failure> {
    let Some(link) = links.iter().find(|link| link.name == name) else {
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
        if names.is_empty() {
            refuse!("there is no link {name:?}: {NO_LINK}");
        }
        refuse!("there is no link {name:?}; there is {}", names.join(", "));
    };
    if link.folder.as_os_str().is_empty() {
        refuse!(
            "the lines that wait for {name} stay in the log, and the link sends them by itself"
        );
    }
    // A person can give up the mail that waits for a link that is switched off or removed, as long as its store is there.
    let is_refused = link.is_left_out && (request == LinkRequest::Retry || link.is_storeless);
    if let (true, LinkState::Stopped { why }) = (is_refused, &link.health.state) {
        refuse!("the link {name} cannot be asked: {why}");
    }
    let io = |e| Failure::from_io("the link cannot be asked", &e);
    request.write(&link.folder).map_err(io)?;
    if config::find_lock_holder(&context.paths.state).is_none() {
        let mailbox = global.open_mailbox(false)?;
        mailbox.links().run_requests();
        mailbox.close();
    }
    let until = Instant::now() + ANSWER_WITHIN;
    while LinkRequest::read(&link.folder).is_some() {
        if Instant::now() > until {
            refuse!("the link {name} does not answer; see `msgfs link status`");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = board::read_saved_health(&link.folder).unwrap_or_default();
    output::print_data(&(after.render_lines(name).join("\n") + "\n"))
}
