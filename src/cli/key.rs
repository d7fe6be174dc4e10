//! `msgfs key`: my key and whom I trust.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};

use clap::Subcommand;
use msgfs::config::{LockError, StateLock};
use msgfs::identity::{Identity, Keyring, Print, Used};
use msgfs::model::{PublicKey, Remedy, one_line};
use msgfs::store;
use msgfs::store::Signer as _;
use zeroize::Zeroizing;

use super::context::Context;
use super::failure::{Failure, refuse};
use super::{Global, message, output};

/// Show, export or import my key; list, trust or forget the keys of others
///
/// The first signed message from an address decides which key belongs to the address. After that,
/// msgfs rejects a message that another key signed (see rejected/ in the tree), until
/// `msgfs key trust` accepts the other key. A running mount notices each change at once.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:\n  msgfs key show\n  msgfs key list\n  msgfs key trust bob\n  \
        msgfs key forget bob"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print my name, my fingerprint and my public key (base64)
    #[command(after_help = "Example:\n  msgfs key show")]
    Show,
    /// List the keys that I trust: address, fingerprint, day, origin, key (base64)
    #[command(after_help = "Examples:\n  msgfs key list\n  msgfs key list --json")]
    List {
        #[arg(
            long,
            help = "Print one JSON object a line for each key: address, fingerprint, since, by_hand, key"
        )]
        json: bool,
    },
    /// Trust a key for an address: the key that was refused last, or the key of --key
    #[command(after_help = "Examples:\n  msgfs key trust bob\n  \
        msgfs key trust bob --key 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")]
    Trust {
        /// The address of the key's owner
        address: String,
        /// The public key: its 32 bytes as base64, as `msgfs key show` prints it
        #[arg(long, value_name = "BASE64", value_parser = public_key)]
        key: Option<PublicKey>,
    },
    /// Write my private key to standard output, for another machine of mine
    #[command(after_help = "Example:\n  msgfs key export | ssh laptop msgfs key import")]
    Export {
        /// Write it even to a terminal
        #[arg(long)]
        force: bool,
    },
    /// Read my private key from standard input, and keep a copy of the key that it replaces
    #[command(after_help = "Example:\n  msgfs key export | ssh laptop msgfs key import")]
    Import,
    /// Forget the keys of an address, so that its next new signed message decides again
    #[command(after_help = "Example:\n  msgfs key forget bob")]
    Forget {
        /// The address of the keys' owner
        address: String,
    },
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let context = Context::find(global)?;
    match &args.command {
        Command::Show => show(&context),
        Command::List { json } => list(&context, *json),
        Command::Trust { address, key } => trust(&context, address, *key),
        Command::Export { force } => export(&context, *force),
        Command::Import => import(&context),
        Command::Forget { address } => forget(global, &context, address),
    }
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    let wrong = "not a public key; it is the base64 of 32 bytes, as `msgfs key show` prints it";
    PublicKey::from_base64(text).ok_or_else(|| wrong.to_owned())
}

/// My key, made if I never had one.
fn own(context: &Context) -> Result<Identity, Failure> {
    context.make_state()?;
    let used = Used::open(&context.paths.signers_file(), false);
    Identity::own(&context.paths.key_file(), &used, true).map_err(Failure::refused)
}

fn export(context: &Context, force: bool) -> Result<(), Failure> {
    let identity = own(context)?;
    if !force && io::stdout().is_terminal() {
        refuse!(
            "the private key is not shown on a terminal; to copy it to another machine: {}; to show it here: --force",
            Remedy::ShareKey
        );
    }
    output::data(&format!("{}\n", *identity.to_file()))
}

fn import(context: &Context) -> Result<(), Failure> {
    let text = Zeroizing::new(message::from_stdin()?);
    let identity = Identity::parse(&text).map_err(|e| {
        Failure::refused(format!("standard input has no key: {e}; nothing is changed"))
    })?;
    context.make_state()?;
    let (me, key) = (one_line(&context.me.name), identity.public_key());
    // Trusted first: whatever happens then, what either key signs counts.
    let keyring = Keyring::open(&context.paths.keyring_file()).map_err(Failure::refused)?;
    keyring.trust(&context.me.name, Some(key)).map_err(Failure::refused)?;
    let kept = identity.install(&context.paths.key_file()).map_err(Failure::refused)?;
    let used = Used::open(&context.paths.signers_file(), false);
    used.note(Used::OWN, key).map_err(Failure::refused)?;
    output::say(&format!("{} signs for {me} from now on", key.fingerprint()));
    if let Some(kept) = kept {
        output::say(&format!("the old key is kept in {}", context.shown(&kept)));
    }
    if let Err(LockError::Held(holder)) = StateLock::acquire(&context.paths.state, None) {
        output::say(&format!("{holder}, signs with the old key until it is started again"));
    }
    Ok(())
}

fn show(context: &Context) -> Result<(), Failure> {
    let identity = own(context)?;
    let key = identity.public_key();
    let print = |name: &str, key: PublicKey, note: &str| {
        let (name, fingerprint) = (one_line(name), key.fingerprint());
        output::data(&format!("{name}  {fingerprint}  {}{note}\n", key.base64()))
    };
    print(&context.me.name, key, "")?;
    for spec in context.specs()? {
        let shown = one_line(&spec.name).into_owned();
        let store = match store::open(&spec) {
            Ok(store) => store,
            Err(e) => {
                output::say(&format!("the key in the store {shown} is not known: {e}"));
                continue;
            }
        };
        if let Some(other) = store.public_key(Some(key)).filter(|other| *other != key) {
            print(store.me(), other, &format!("  (in the store {shown})"))?;
        }
    }
    Ok(())
}

fn list(context: &Context, json: bool) -> Result<(), Failure> {
    let keyring =
        Keyring::open_read_only(&context.paths.keyring_file()).map_err(Failure::refused)?;
    let pins = keyring.list();
    if json {
        return pins.iter().try_for_each(|pin| {
            output::json_line(&serde_json::json!({
                "address": pin.address,
                "fingerprint": pin.fingerprint.to_string(),
                "since": pin.since.rfc3339(),
                "by_hand": pin.by_hand,
                "key": pin.key.base64(),
            }))
        });
    }
    if pins.is_empty() {
        output::say("no keys yet: nobody has sent a signed message");
    }
    let width = pins.iter().map(|pin| one_line(&pin.address).chars().count()).max().unwrap_or(0);
    let lines: Vec<String> = pins
        .iter()
        .map(|pin| {
            format!(
                "{:width$}  {}  {}  {}  {}\n",
                one_line(&pin.address),
                pin.fingerprint,
                pin.since.day(),
                if pin.by_hand { "by hand  " } else { "first use" },
                pin.key.base64()
            )
        })
        .collect();
    output::data(&lines.concat())
}

fn trust(context: &Context, address: &str, key: Option<PublicKey>) -> Result<(), Failure> {
    let keyring = Keyring::open(&context.paths.keyring_file()).map_err(Failure::refused)?;
    let key = keyring.trust(address, key).map_err(Failure::refused)?;
    output::say(&format!(
        "the key {} is trusted for {} from now on",
        key.fingerprint(),
        one_line(address)
    ));
    Ok(())
}

fn forget(global: &Global, context: &Context, address: &str) -> Result<(), Failure> {
    let keyring = Keyring::open(&context.paths.keyring_file()).map_err(Failure::refused)?;
    let held = if keyring.is_pinned(address) { held(global, address)? } else { BTreeSet::new() };
    if keyring.forget(address, held).map_err(Failure::refused)? {
        output::say(&format!("the keys of {} are forgotten", one_line(address)));
        return Ok(());
    }
    refuse!("no key is known for {}; `msgfs key list` shows the addresses", one_line(address))
}

/// The messages of an address that are there now: none of them may pin a key again.
fn held(global: &Global, address: &str) -> Result<BTreeSet<Print>, Failure> {
    Ok(global.open(true)?.prints_of(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_32_bytes_are_a_key() {
        assert_eq!(public_key(&PublicKey([7; 32]).base64()), Ok(PublicKey([7; 32])));
        for text in ["", "AAAA", "not base64!", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH"] {
            assert!(public_key(text).is_err(), "{text}");
        }
    }
}
