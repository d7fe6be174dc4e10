//! `msgfs amp`: commands that only stores of kind `amp` need.

use std::io::Read as _;
use std::path::Path;

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;
use msgfs::link::amp::{AmpRegisterRequest, register_agent};
use msgfs::link::{LinkSettings, secret};
use msgfs::model::{display_path, sanitize_text};
use msgfs::store::{self, Kind};
use zeroize::Zeroizing;

use super::context::CommandContext;
use super::failure::Failure;
use super::{GlobalOptions, complete, output, stores};

/// The largest user key, in bytes.
const MAX_KEY: u64 = 64 << 10;

/// Register with AMP providers, which carry mail between machines
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  msgfs amp register crabmail.ai --tenant acme\n  \
        msgfs amp register acme.aimaestro.local --api-url http://10.0.0.5:23000/api"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: AmpCommand,
}

#[derive(Debug, Subcommand)]
enum AmpCommand {
    /// Register my agent with a provider, and so make a link to it
    ///
    /// Writes the registration into the agent's folder registrations/. No other user can read the file.
    /// Mounts and `msgfs carry --all` use the link from their next start on. A second registration makes
    /// a new key.
    #[command(after_help = "Examples:\n  msgfs amp register crabmail.ai --tenant acme\n  \
        msgfs amp register crabmail.ai --user-key - < key")]
    Register(AmpRegisterArgs),
}

#[derive(Debug, clap::Args)]
struct AmpRegisterArgs {
    /// The name of the provider
    provider: String,
    #[arg(
        long,
        value_name = "URL",
        help = "The URL of its API [default: https://api.PROVIDER; for a name in .local: this machine, \
                port 23000]"
    )]
    api_url: Option<String>,
    /// The file with my user key at the provider, or - for standard input. msgfs does not keep the key
    #[arg(long, value_name = "FILE")]
    user_key: Option<String>,
    /// My organisation at the provider [default: the organisation of the agent]
    #[arg(long)]
    tenant: Option<String>,
    /// My name at the provider [default: the name of the agent]
    #[arg(long)]
    name: Option<String>,
    /// Use the store with this name, if there are several of this kind
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(complete::stores))]
    store: Option<String>,
}

/// Runs `msgfs amp`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let AmpCommand::Register(args) = &args.command;
    let context = CommandContext::find(global)?;
    let mut specs = context.store_specs()?;
    specs.retain(|spec| spec.kind == Kind::Amp);
    let spec = stores::select_spec(&specs, args.store.as_deref(), "amp store")?;
    let store = store::open(spec).map_err(Failure::refused)?;
    let user_key = args.user_key.as_deref().map(read_user_key).transpose()?;
    let links = &context.config.links;
    let of_store = |link: &&msgfs::link::LinkConfig| {
        matches!(link.settings, LinkSettings::Amp(_)) && link.store == spec.name
    };
    let link = links.iter().find(of_store);
    let request = AmpRegisterRequest {
        agent: store.dir().to_owned(),
        provider: args.provider.clone(),
        api_url: args.api_url.clone(),
        tenant: args.tenant.clone(),
        name: args.name.clone(),
        insecure: link.is_some_and(|link| link.insecure),
        ca: link.and_then(|link| link.ca.clone()),
    };
    let made = register_agent(&request, user_key.as_ref().map(|key| key.as_str()));
    let made = made.map_err(|why| Failure::refused(sanitize_text(&why)))?;
    for note in &made.notes {
        output::print_notice(&format!("note: {}", sanitize_text(note)));
    }
    output::print_data(&format!(
        "registered as {}\nlink: {}\nmounts and `msgfs carry --all` use it from their next start on\n",
        sanitize_text(&made.address),
        display_path(&made.file)
    ))
}

/// Returns the user key, which is never on the command line.
fn read_user_key(from: &str) -> Result<Zeroizing<String>, Failure> {
    if from != "-" {
        return secret::read_secret(Path::new(from)).map_err(Failure::refused);
    }
    let mut text = Zeroizing::new(String::new());
    let read = std::io::stdin().take(MAX_KEY).read_to_string(&mut text);
    read.map_err(|e| Failure::from_io("the user key cannot be read", &e))?;
    Ok(text)
}
