//! `msgfs check`: validates stores.

use std::sync::Arc;

use msgfs::identity::Pin;
use msgfs::mailbox::UnopenedStore;
use msgfs::model::verify;
use msgfs::model::{SignatureClaim, display_path, format_count, sanitize_line};
use msgfs::store::{Store, Violation};
use serde::Serialize;

use clap_complete::engine::ArgValueCompleter;

use super::context::CommandContext;
use super::failure::Failure;
use super::stores::StoreOpener;
use super::{GlobalOptions, complete, output};

/// Check the stores: form, ids, signatures
///
/// Prints one line for each violation, as `file:line: rule: detail`. Exit code 1 means that there is a
/// violation, or that a store could not be checked. A line that broke off when its writer stopped is printed as
/// `torn`, and is no violation. Without `--repair` nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs check\n  msgfs check samp\n  msgfs check --json\n  \
    msgfs check --repair")]
pub(crate) struct Args {
    /// Check only the store with this name
    #[arg(add = ArgValueCompleter::new(complete::stores))]
    store: Option<String>,
    /// Print one JSON object a line for each violation: store, file, line, rule, detail
    #[arg(long)]
    json: bool,
    /// First correct the files that are derived from messages, and print each correction. Messages
    /// are never changed
    #[arg(long)]
    repair: bool,
}

/// Runs `msgfs check`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let repaired = if args.repair { repair_stores(global, args) } else { Ok(()) };
    let checked = check_all(global, args);
    repaired.and(checked)
}

/// Asks the stores to correct their derived files. A failure of one is printed, and the others go on.
fn repair_stores(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let context = CommandContext::find(global)?;
    let opener = StoreOpener::new(&context)?;
    let mut outcome = Ok(());
    for spec in context.store_specs()? {
        if args.store.as_ref().is_some_and(|name| *name != spec.name) {
            continue;
        }
        let made = opener.open_with_refusals(global, &spec).and_then(|store| {
            let failed = |e| Failure::refused(format!("{}: {e}", sanitize_line(&spec.name)));
            store
                .facets()
                .upkeep
                .map_or(Ok(Vec::new()), |upkeep| upkeep.repair_files().map_err(failed))
        });
        match made {
            Ok(lines) => {
                lines.iter().try_for_each(|line| print_repair(&spec.name, line, args))?;
            }
            Err(failure) => {
                output::print_notice(&format!("msgfs: {failure}"));
                outcome = Err(Failure::AlreadyReported);
            }
        }
    }
    outcome
}

/// Prints one correction.
fn print_repair(store: &str, made: &str, args: &Args) -> Result<(), Failure> {
    if args.json {
        return output::print_json_line(&serde_json::json!({ "store": store, "repaired": made }));
    }
    output::print_data(&format!("{}: {}\n", sanitize_line(store), sanitize_line(made)))
}

fn check_all(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let mailbox = global.open_mailbox(true)?;
    let pins = mailbox.list_pins();
    let outcome = check_stores(mailbox.stores(), &mailbox.unopened_stores(), &pins, args);
    mailbox.close();
    outcome
}

fn check_stores(
    stores: &[Arc<dyn Store>],
    unopened: &[UnopenedStore],
    pins: &[Pin],
    args: &Args,
) -> Result<(), Failure> {
    let chosen: Vec<_> = stores
        .iter()
        .filter(|store| args.store.as_ref().is_none_or(|name| store.name() == name))
        .collect();
    if let (true, Some(name)) = (chosen.is_empty(), &args.store) {
        if let Some(left) = unopened.iter().find(|left| left.name == *name) {
            return Err(Failure::refused(sanitize_line(&left.warning)));
        }
        let names: Vec<&str> = stores.iter().map(|store| store.name()).collect();
        let (name, names) = (sanitize_line(name), names.join(", "));
        return Err(Failure::Usage(format!(
            "there is no store named {name}; the stores are: {names}"
        )));
    }
    let (mut violations, mut torn) = (0, 0);
    // The others are at default places, and nobody asked for them.
    let missing = unopened.iter().filter(|left| left.is_configured && args.store.is_none());
    let mut failed = false;
    for left in missing {
        failed = true;
        output::print_notice(&format!("msgfs: {}", sanitize_line(&left.warning)));
    }
    for store in &chosen {
        let mut written = Ok(());
        let find_fault = |claim: &SignatureClaim| {
            let fault = verify::find_claim_fault(claim)?;
            (!store.properties().offers_keys || !fits_other_key(claim, pins)).then_some(fault)
        };
        let outcome = store.check(&find_fault, &mut |violation| {
            *if violation.is_wrong() { &mut violations } else { &mut torn } += 1;
            if written.is_ok() {
                written = print_violation(store.as_ref(), &violation, args.json);
            }
        });
        // A reader that wants no more lines learns from the exit code whether there are violations.
        if !matches!(written, Err(Failure::OutputClosed)) {
            written?;
        }
        if let Err(e) = outcome {
            failed = true;
            output::print_notice(&format!("msgfs: {}: {e}", store.name()));
        }
    }
    let (stores, torn_lines) =
        (format_count(chosen.len() as u64, "store"), format_count(torn, "torn line"));
    output::print_notice(&match violations {
        0 if failed => "some stores could not be checked".to_owned(),
        0 if torn > 0 => {
            format!("{stores} checked, no violations; {torn_lines}, which readers skip")
        }
        0 => format!("{stores} checked, no violations"),
        n => format!("{stores} checked, {}", format_count(n, "violation")),
    });
    if failed || violations > 0 { Err(Failure::AlreadyReported) } else { Ok(()) }
}

/// Returns true if a claimed signature is by a key that is trusted beside the one it names.
fn fits_other_key(claim: &SignatureClaim, pins: &[Pin]) -> bool {
    let SignatureClaim::Signed { key: Some(named), .. } = claim else { return false };
    let has_named =
        |pin: &&Pin| pins.iter().any(|other| other.address == pin.address && other.key == *named);
    pins.iter().filter(has_named).any(|pin| verify::verify_claim(&pin.key, claim))
}

#[derive(Serialize)]
struct ViolationLine<'a> {
    store: &'a str,
    #[serde(flatten)]
    violation: &'a Violation,
}

/// Prints one violation as a line. For people the path is absolute, so that editors can open it; in JSON it is
/// relative to the store.
fn print_violation(store: &dyn Store, violation: &Violation, json: bool) -> Result<(), Failure> {
    if json {
        return output::print_json_line(&ViolationLine { store: store.name(), violation });
    }
    let file = store.dir().join(&violation.file);
    // 0 stands for the file as a whole.
    let at = if violation.line == 0 { String::new() } else { format!(":{}", violation.line) };
    let (rule, detail) = (violation.rule, sanitize_line(&violation.detail));
    output::print_data(&format!("{}{at}: {rule}: {detail}\n", display_path(&file)))
}
