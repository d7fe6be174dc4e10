//! Which store carries a message to a recipient (contract, section 5).

use std::sync::Arc;

use super::OutboxError;
use crate::index::{Core, Index};
use crate::model::{UnknownRecipient, nearest};
use crate::store::{Fit, Store};

/// The number of the store that carries a message to `recipient`.
///
/// # Errors
/// If `via` names no store, the address fits none, or none or several remain.
pub fn route(
    index: &Index,
    recipient: &str,
    via: Option<&str>,
    unknown: UnknownRecipient,
) -> Result<usize, OutboxError> {
    let stores = index.stores();
    let core = index.read();
    let number = match via {
        Some(via) => by_name(stores, via, recipient)?,
        None => by_address(stores, &core, recipient)?,
    };
    let known = knows(stores, &core, number, recipient);
    if !known && unknown == UnknownRecipient::Refuse {
        return Err(OutboxError::Unreachable(stranger(&core, recipient)));
    }
    Ok(number)
}

fn by_name(stores: &[Arc<dyn Store>], via: &str, recipient: &str) -> Result<usize, OutboxError> {
    let Some(number) = stores.iter().position(|s| s.name() == via) else {
        let names: Vec<&str> = stores.iter().map(|s| s.name()).collect();
        return Err(OutboxError::Unreachable(format!(
            "Via: there is no store {:?}; there is {}",
            crate::model::one_line(via),
            names.join(", ")
        )));
    };
    match stores.get(number).map(|s| s.fits(recipient)) {
        Some(Fit::No) | None => Err(not_an_address(stores, recipient)),
        Some(_) => Ok(number),
    }
}

fn by_address(
    stores: &[Arc<dyn Store>],
    core: &Core,
    recipient: &str,
) -> Result<usize, OutboxError> {
    let fits: Vec<(usize, Fit)> = stores
        .iter()
        .enumerate()
        .map(|(n, s)| (n, s.fits(recipient)))
        .filter(|(_, fit)| *fit != Fit::No)
        .collect();
    if fits.is_empty() {
        return Err(not_an_address(stores, recipient));
    }
    let known: Vec<usize> =
        fits.iter().map(|(n, _)| *n).filter(|n| knows(stores, core, *n, recipient)).collect();
    if let [only] = known[..] {
        return Ok(only);
    }
    let best = fits.iter().map(|(_, fit)| *fit).max();
    let fitting: Vec<usize> = fits
        .iter()
        .filter(|(n, fit)| if known.is_empty() { Some(*fit) == best } else { known.contains(n) })
        .map(|(n, _)| *n)
        .collect();
    if let [only] = fitting[..] {
        return Ok(only);
    }
    let lines: Vec<String> = fitting
        .iter()
        .filter_map(|n| stores.get(*n))
        .map(|s| format!("  Via: {}", s.name()))
        .collect();
    Err(OutboxError::Unreachable(format!(
        "several stores could carry this to {recipient}; choose one by adding a line to the header:\n{}",
        lines.join("\n")
    )))
}

fn knows(stores: &[Arc<dyn Store>], core: &Core, number: usize, recipient: &str) -> bool {
    core.knows(number, recipient) || stores.get(number).is_some_and(|s| s.registered(recipient))
}

/// The text for a name that is no address of any store; `EINVAL`.
pub fn not_an_address(stores: &[Arc<dyn Store>], recipient: &str) -> OutboxError {
    let kinds: Vec<&str> = stores.iter().map(|s| s.kind().as_str()).collect();
    OutboxError::Invalid(format!(
        "{:?} is not an address of any store here ({}); a SAMP alias takes letters, digits, '.', '_' \
         and '-', begins with a letter or digit and has at most 64 characters",
        crate::model::one_line(recipient),
        kinds.join(", ")
    ))
}

fn stranger(core: &Core, recipient: &str) -> String {
    let hint = if let Some(name) = nearest(recipient, core.addresses()) {
        format!("the nearest known name is {name}")
    } else {
        let mut names: Vec<&str> = core.addresses().collect();
        names.sort_unstable();
        names.truncate(10);
        if names.is_empty() {
            "nobody has written or been written to here yet".to_owned()
        } else {
            format!("known are {}", names.join(", "))
        }
    };
    format!("nobody called {recipient} is known; {hint} (unknown_recipient = \"refuse\")")
}
