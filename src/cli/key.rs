//! `msgfs key`: my key, and the keys that I trust.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};

use clap::Subcommand;
use msgfs::identity::{KeyError, KeyPair, Keyring, SignerRegistry};
use msgfs::model::{PublicKey, Remedy, sanitize_line};
use msgfs::store::{self, AddressFit, Signer as _, Store};
use zeroize::Zeroizing;

use super::context::CommandContext;
use super::failure::{Failure, refuse};
use super::{GlobalOptions, message, output};

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
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
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
    /// Trust a key for an address: the only key that was refused, or the key of --key
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

/// Runs `msgfs key`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let context = CommandContext::find(global)?;
    match &args.command {
        KeyCommand::Show => show_keys(&context),
        KeyCommand::List { json } => list_pins(&context, *json),
        KeyCommand::Trust { address, key } => trust_key(&context, address, *key),
        KeyCommand::Export { force } => export_key(&context, *force),
        KeyCommand::Import => import_key(&context),
        KeyCommand::Forget { address } => forget_keys(global, &context, address),
    }
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    let wrong = "not a public key; it is the base64 of 32 bytes, as `msgfs key show` prints it";
    PublicKey::from_base64(text).ok_or_else(|| wrong.to_owned())
}

/// Returns my key, and makes it if I never had one.
fn load_own_key(context: &CommandContext) -> Result<KeyPair, Failure> {
    context.create_state_folder()?;
    let used = SignerRegistry::open(&context.paths.signers_file(), false);
    KeyPair::load_own(&context.paths.key_file(), &used, true).map_err(Failure::refused)
}

fn export_key(context: &CommandContext, force: bool) -> Result<(), Failure> {
    let identity = load_own_key(context)?;
    if !force && io::stdout().is_terminal() {
        refuse!(
            "the private key is not shown on a terminal; to copy it to another machine: {}; to show it here: --force",
            Remedy::ShareKey
        );
    }
    output::print_data(&format!("{}\n", *identity.to_file_text()))
}

fn import_key(context: &CommandContext) -> Result<(), Failure> {
    let text = Zeroizing::new(message::read_stdin()?);
    let identity = KeyPair::parse(&text).map_err(|e| {
        Failure::refused(format!(
            "standard input has no key: {e}; nothing is changed. To take over the key of another machine, run there: {}",
            Remedy::ShareKey
        ))
    })?;
    context.create_state_folder()?;
    let (me, key) = (sanitize_line(&context.me.name), identity.public_key());
    // The key is trusted first: whatever happens then, a signature of either key counts.
    let keyring = Keyring::open(&context.paths.keyring_file()).map_err(Failure::refused)?;
    keyring.trust_key(&context.me.name, Some(key)).map_err(Failure::refused)?;
    let kept = identity.install_key_file(&context.paths.key_file()).map_err(Failure::refused)?;
    let used = SignerRegistry::open(&context.paths.signers_file(), false);
    match used.record_key(SignerRegistry::OWN, key) {
        Err(e @ KeyError::SignersUnreadable(..)) => output::print_notice(&e.to_string()),
        done => done.map_err(Failure::refused)?,
    }
    output::print_notice(&format!("{} signs for {me} from now on", key.fingerprint()));
    if let Some(kept) = kept {
        output::print_notice(&format!("the old key is kept in {}", context.display_path(&kept)));
    }
    Ok(())
}

fn show_keys(context: &CommandContext) -> Result<(), Failure> {
    let identity = load_own_key(context)?;
    let key = identity.public_key();
    let print = |name: &str, key: PublicKey, note: &str| {
        let (name, fingerprint) = (sanitize_line(name), key.fingerprint());
        output::print_data(&format!("{name}  {fingerprint}  {}{note}\n", key.to_base64()))
    };
    print(&context.me.name, key, "")?;
    for spec in context.store_specs()? {
        let shown = sanitize_line(&spec.name).into_owned();
        let store = match store::open(&spec) {
            Ok(store) => store,
            Err(e) => {
                output::print_notice(&format!("the key in the store {shown} is not known: {e}"));
                continue;
            }
        };
        if let Some(other) = store.public_key(Some(key)).filter(|other| *other != key) {
            print(store.me(), other, &format!("  (in the store {shown})"))?;
        }
    }
    Ok(())
}

fn list_pins(context: &CommandContext, json: bool) -> Result<(), Failure> {
    let keyring =
        Keyring::open_read_only(&context.paths.keyring_file()).map_err(Failure::refused)?;
    let pins = keyring.list_pins();
    if json {
        return pins.iter().try_for_each(|pin| {
            output::print_json_line(&serde_json::json!({
                "address": pin.address,
                "fingerprint": pin.fingerprint.to_string(),
                "since": pin.since.rfc3339(),
                "by_hand": pin.by_hand,
                "key": pin.key.to_base64(),
            }))
        });
    }
    if pins.is_empty() {
        output::print_notice("no keys yet: nobody has sent a signed message");
    }
    let width =
        pins.iter().map(|pin| sanitize_line(&pin.address).chars().count()).max().unwrap_or(0);
    let lines: Vec<String> = pins
        .iter()
        .map(|pin| {
            format!(
                "{:width$}  {}  {}  {}  {}\n",
                sanitize_line(&pin.address),
                pin.fingerprint,
                pin.since.day(),
                if pin.by_hand { "by hand  " } else { "first use" },
                pin.key.to_base64()
            )
        })
        .collect();
    output::print_data(&lines.concat())
}

/// Returns an address as my stores' messages spell it, so that its pin counts for them. An address that the keyring
/// knows as it is written stays.
fn spell_address(
    context: &CommandContext,
    keyring: &Keyring,
    address: &str,
) -> Result<String, Failure> {
    let is_known = |name: &str| keyring.is_pinned(name) || keyring.refused_key(name).is_some();
    if is_known(address) {
        return Ok(address.to_owned());
    }
    let specs = context.store_specs()?;
    let stores = specs.iter().filter_map(|spec| store::open(spec).ok());
    let spellings = stores
        .filter(|store| !store.properties().uses_roles)
        .map(|store| (store.address_fit(address), store.canonical_address(address)))
        .filter(|(fit, _)| *fit != AddressFit::No);
    let best =
        spellings.max_by_key(|(fit, spelling)| (is_known(spelling), *fit, spelling == address));
    Ok(best.map_or_else(|| address.to_owned(), |(_, spelling)| spelling))
}

fn trust_key(
    context: &CommandContext,
    address: &str,
    key: Option<PublicKey>,
) -> Result<(), Failure> {
    let keyring = Keyring::open(&context.paths.keyring_file()).map_err(Failure::refused)?;
    let address = &spell_address(context, &keyring, address)?;
    let key = keyring.trust_key(address, key).map_err(Failure::refused)?;
    output::print_notice(&format!(
        "the key {} is trusted for {} from now on",
        key.fingerprint(),
        sanitize_line(address)
    ));
    Ok(())
}

fn forget_keys(
    global: &GlobalOptions,
    context: &CommandContext,
    address: &str,
) -> Result<(), Failure> {
    let keyring = Keyring::open(&context.paths.keyring_file()).map_err(Failure::refused)?;
    let address = &spell_address(context, &keyring, address)?;
    let held = if keyring.is_pinned(address) {
        let mailbox = global.open_mailbox(true)?;
        if mailbox.stores().iter().any(|store| is_me(store.as_ref(), address)) {
            refuse!(
                "{} is your own address, and your own key stays: without it, others could sign in your name",
                sanitize_line(address)
            );
        }
        // None of the messages that the stores hold now may pin a key again.
        mailbox.messages_of_address(address)
    } else {
        BTreeSet::new()
    };
    if keyring.forget_address(address, held).map_err(Failure::refused)? {
        output::print_notice(&format!("the keys of {} are forgotten", sanitize_line(address)));
        return Ok(());
    }
    refuse!("no key is known for {}; `msgfs key list` shows the addresses", sanitize_line(address))
}

/// Returns true if an address is mine in a store whose addresses have keys.
fn is_me(store: &dyn Store, address: &str) -> bool {
    !store.properties().uses_roles && store.is_my_address(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_32_bytes_are_a_key() {
        assert_eq!(public_key(&PublicKey([7; 32]).to_base64()), Ok(PublicKey([7; 32])));
        for text in ["", "AAAA", "not base64!", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH"] {
            assert!(public_key(text).is_err(), "{text}");
        }
    }
}
