//! Which store carries a message to a recipient (docs/SEMANTICS.md, S60 and S134).

use std::sync::Arc;

use super::{Groups, OutboxError, Settings, named as named_store};
use crate::index::{Core, Index};
use crate::model::{Draft, UnknownRecipient, nearest, one_line, resembles};
use crate::store::{Agents, Fit, Kind, Store};

/// The recipients of a draft that one store carries, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The store's number.
    pub store: usize,
    /// Recipients.
    pub to: Vec<String>,
    /// Further recipients.
    pub cc: Vec<String>,
    /// Of this recipient nobody is told.
    pub is_blind: bool,
}

/// The header line that names a recipient.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    To,
    Cc,
    Bcc,
}

/// The recipients of a draft by store, in the order of the stores' first recipients. Who is named
/// twice gets one message.
///
/// # Errors
/// As [`carrier`]; if nobody is left.
pub fn routes(
    index: &Index,
    draft: &Draft,
    settings: &Settings,
) -> Result<Vec<Route>, OutboxError> {
    let mut routes: Vec<Route> = Vec::new();
    let mut named: Vec<(usize, String)> = Vec::new();
    let via = draft.via.as_deref().or_else(|| by_header(index.stores(), draft));
    let lines = [(&draft.to, Line::To), (&draft.cc, Line::Cc), (&draft.bcc, Line::Bcc)];
    let all = lines.into_iter().flat_map(|(list, line)| list.iter().map(move |a| (a, line)));
    let whole = via.filter(|_| draft.is_whole).and_then(|via| named_store(index, via));
    for (address, line, of_group) in all.flat_map(|(a, line)| members(a, line, &settings.groups)) {
        if of_group && is_only_me(index.stores(), address) {
            continue;
        }
        let (address, store) = match &whole {
            Some((store, _)) => (address.as_str(), *store),
            None => carrier(index, address, via, draft.near.as_deref())?,
        };
        let canonical = |s: &Arc<dyn Store>| (s.canonical(address), s.canonical(s.me()));
        let (canonical, me) = index.stores().get(store).map(canonical).unwrap_or_default();
        if named.contains(&(store, canonical.clone())) || of_group && canonical == me {
            continue;
        }
        if whole.is_none() {
            let is_name = (line == Line::To && draft.to_is_name || draft.is_typed) && !of_group;
            heard_of(index, store, address, settings, is_name)?;
        }
        named.push((store, canonical));
        if line == Line::Bcc {
            // Nobody else is told.
            let to = vec![address.to_owned()];
            routes.push(Route { store, to, cc: Vec::new(), is_blind: true });
            continue;
        }
        let known = routes.iter().position(|r| r.store == store && !r.is_blind);
        let at = known.unwrap_or_else(|| {
            routes.push(Route { store, to: Vec::new(), cc: Vec::new(), is_blind: false });
            routes.len() - 1
        });
        if let Some(route) = routes.get_mut(at) {
            let list = if line == Line::To { &mut route.to } else { &mut route.cc };
            list.push(address.to_owned());
        }
    }
    if routes.is_empty() {
        return Err(OutboxError::NoRecipient(format!(
            "{} has no member but you",
            crate::model::one_line(&draft.to.join(", "))
        )));
    }
    for route in routes.iter_mut().filter(|r| r.to.is_empty()) {
        // No format has messages for nobody; whom the other stores reach is not told here.
        route.to = std::mem::take(&mut route.cc);
    }
    for store in routes.iter().filter_map(|r| index.stores().get(r.store)) {
        takes_headers(index.stores(), store.as_ref(), draft)?;
    }
    Ok(routes)
}

/// The members of a group, or the address itself; whether it is a group.
fn members<'a>(
    address: &'a String,
    line: Line,
    groups: &'a Groups,
) -> impl Iterator<Item = (&'a String, Line, bool)> {
    let group = groups.get(address);
    let alone = group.is_none().then_some(address).into_iter();
    alone.chain(group.into_iter().flatten()).map(move |a| (a, line, group.is_some()))
}

/// Whether an address is mine wherever it is one: nothing needs to carry mail to a group to me.
fn is_only_me(stores: &[Arc<dyn Store>], address: &str) -> bool {
    let mut fitting = stores.iter().filter(|s| s.fits(address) > Fit::Via).peekable();
    fitting.peek().is_some() && fitting.all(|s| s.canonical(address) == s.canonical(s.me()))
}

/// The header lines that only some stores have, and are set in a draft.
fn special(draft: &Draft) -> impl Iterator<Item = &'static str> {
    draft.task.iter().map(|_| "Task")
}

/// The name of the only store that has a header of this draft.
fn by_header<'a>(stores: &'a [Arc<dyn Store>], draft: &Draft) -> Option<&'a str> {
    let header = special(draft).next()?;
    let mut having = stores.iter().filter(|s| s.about().headers.contains(&header));
    let only = having.next()?;
    having.next().is_none().then(|| only.name())
}

/// Refuses header lines that a store has not.
fn takes_headers(
    stores: &[Arc<dyn Store>],
    store: &dyn Store,
    draft: &Draft,
) -> Result<(), OutboxError> {
    let Some(header) = special(draft).find(|h| !store.about().headers.contains(h)) else {
        return Ok(());
    };
    let having = stores.iter().filter(|s| s.about().headers.contains(&header));
    let names: Vec<&str> = having.map(|s| s.name()).collect();
    Err(OutboxError::Invalid(format!(
        "{header}: messages in the store {} have no such header, only those in {}; remove the \
         line, or choose another store with a line `Via: NAME`",
        store.name(),
        names.join(", ")
    )))
}

/// The number of the store that carries a message to `recipient`, and the address there.
///
/// # Errors
/// If `via` names no store, the address fits none, or none or several remain.
fn carrier<'a>(
    index: &Index,
    recipient: &'a str,
    via: Option<&str>,
    near: Option<&str>,
) -> Result<(&'a str, usize), OutboxError> {
    if let Some(via) = via {
        return by_name(index.stores(), via, recipient).map(|number| (recipient, number));
    }
    if let Some((name, store)) = at_store(index, recipient) {
        return by_name(index.stores(), store, name).map(|number| (name, number));
    }
    by_address(index, recipient, near).map(|number| (recipient, number))
}

/// `bob@work` as the name and the store of that name, unless a store knows the whole as an address. Some
/// programs want a dot: `bob@work.msgfs` is the same.
fn at_store<'a>(index: &Index, address: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, store) = address.rsplit_once('@').filter(|(name, _)| !name.is_empty())?;
    let store = store.strip_suffix(".msgfs").unwrap_or(store);
    let stores = index.stores();
    let is_known =
        |n: usize, s: &Arc<dyn Store>| s.fits(address) > Fit::Via && knows(index, n, address);
    let is_name = stores.iter().any(|s| s.name() == store);
    (is_name && !stores.iter().enumerate().any(|(n, s)| is_known(n, s))).then_some((name, store))
}

/// Refuses a recipient nobody has heard of, as far as that is asked for; `is_name`: nobody wrote it
/// but as the name of a file, or at a command.
fn heard_of(
    index: &Index,
    number: usize,
    recipient: &str,
    settings: &Settings,
    is_name: bool,
) -> Result<(), OutboxError> {
    let unknown = settings.unknown_recipient;
    let judged = match unknown {
        UnknownRecipient::Accept => false,
        UnknownRecipient::Near => is_name,
        UnknownRecipient::Refuse => true,
    };
    if !judged || knows(index, number, recipient) {
        return Ok(());
    }
    if unknown == UnknownRecipient::Refuse {
        return Err(OutboxError::Unreachable(stranger(&index.read(), &settings.groups, recipient)));
    }
    let Some(store) = index.stores().get(number) else { return Ok(()) };
    let new = store.canonical(recipient);
    let near: Vec<String> = {
        let core = index.read();
        core.addresses().filter(|known| alike(&new, known)).map(str::to_owned).collect()
    };
    let other = |known: &&String| {
        let is_me = index.stores().iter().any(|s| s.canonical(known) == s.canonical(s.me()));
        !is_me && store.canonical(known) != new
    };
    let group = settings.groups.keys().find(|group| alike(&new, group) || alike(recipient, group));
    let meant = near.iter().find(other).or(group);
    meant.map_or(Ok(()), |known| Err(OutboxError::Unreachable(gone_wrong(recipient, known))))
}

/// Whether one address is probably the other gone wrong. Where both are in one place, or the new one is
/// in none, the name there is compared; the same name without a place is somebody else's.
fn alike(new: &str, known: &str) -> bool {
    match (new.split_once('@'), known.split_once('@')) {
        (Some((new, here)), Some((known, there))) if here == there => resembles(new, known),
        (None, Some((known, _))) => new != known && resembles(new, known),
        _ => resembles(new, known),
    }
}

/// The text for a file name that resembles a known recipient.
fn gone_wrong(recipient: &str, known: &str) -> String {
    let (recipient, known) = (one_line(recipient), one_line(known));
    format!(
        "nobody called {recipient} is known, but {known} is: write to outbox/{known} if that is who you \
         mean. To write to {recipient}, who is new, begin the text with a line `To: {recipient}` and \
         an empty line, or use `msgfs send --new` (unknown_recipient = \"near\")"
    )
}

/// The store of this name, or the only one that has a link of this name.
fn position(stores: &[Arc<dyn Store>], via: &str) -> Option<usize> {
    let has_way = |s: &Arc<dyn Store>| s.facets().remote.is_some_and(|remote| remote.has_way(via));
    let by_link = || {
        let mut all = (0..).zip(stores).filter(|(_, s)| has_way(s)).map(|(n, _)| n);
        all.next().filter(|_| all.next().is_none())
    };
    stores.iter().position(|s| s.name() == via).or_else(by_link)
}

fn by_name(stores: &[Arc<dyn Store>], via: &str, recipient: &str) -> Result<usize, OutboxError> {
    let Some(number) = position(stores, via) else {
        let names: Vec<&str> = stores.iter().map(|s| s.name()).collect();
        return Err(OutboxError::Unreachable(format!(
            "Via: there is no store or link {:?}; there is {}",
            one_line(via),
            names.join(", ")
        )));
    };
    match stores.get(number).map(|s| s.fits(recipient)) {
        Some(Fit::No) | None => {
            Err(not_an_address(stores.get(number..=number).unwrap_or_default(), recipient))
        }
        Some(_) => Ok(number),
    }
}

fn by_address(index: &Index, recipient: &str, near: Option<&str>) -> Result<usize, OutboxError> {
    let stores = index.stores();
    let fits: Vec<(usize, Fit)> = stores
        .iter()
        .enumerate()
        .map(|(n, s)| (n, s.fits(recipient)))
        .filter(|(_, fit)| *fit > Fit::Via)
        .collect();
    if fits.is_empty() {
        return Err(only_by_name(stores, recipient));
    }
    let known: Vec<usize> =
        fits.iter().map(|(n, _)| *n).filter(|n| knows(index, *n, recipient)).collect();
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
    let is_near = |n: &&usize| stores.get(**n).is_some_and(|s| Some(s.name()) == near);
    if let Some(near) = fitting.iter().find(is_near) {
        return Ok(*near);
    }
    Err(OutboxError::Unreachable(format!(
        "several stores could carry this to {recipient}; write to {recipient}@STORE, or choose one by adding a \
         line to the header:\n{}",
        choices(fitting.iter().filter_map(|n| stores.get(*n)))
    )))
}

/// A header line a store, for a person to choose from.
fn choices<'a>(stores: impl Iterator<Item = &'a Arc<dyn Store>>) -> String {
    let lines: Vec<String> = stores.map(|s| format!("  Via: {}", s.name())).collect();
    lines.join("\n")
}

/// Why an address that no store takes unasked cannot be reached.
fn only_by_name(stores: &[Arc<dyn Store>], recipient: &str) -> OutboxError {
    let via: Vec<_> = stores.iter().filter(|s| s.fits(recipient) == Fit::Via).collect();
    if via.is_empty() {
        return not_an_address(stores, recipient);
    }
    let shown = one_line(recipient);
    let lines = choices(via.iter().copied().filter(|s| s.registered(recipient)));
    if lines.is_empty() {
        let names: Vec<&str> = via.iter().map(|s| s.name()).collect();
        let names = names.join(", ");
        let hint = meant(stores, recipient).unwrap_or_else(|| "check the name".to_owned());
        return OutboxError::Unreachable(format!("{shown} has no mailbox in {names}; {hint}"));
    }
    OutboxError::Unreachable(format!(
        "no store carries this to {shown} unless you name the store; add a line to the \
         header:\n{lines}"
    ))
}

/// Whether anybody is known by this name.
pub(super) fn is_known(index: &Index, name: &str, settings: &Settings) -> bool {
    settings.groups.contains_key(name)
        || (0..index.stores().len()).any(|number| knows(index, number, name))
}

/// Whether the store knows the recipient. The store is asked without the lock of the tables: a scan
/// takes the two the other way round.
fn knows(index: &Index, number: usize, recipient: &str) -> bool {
    index.stores().get(number).is_some_and(|store| {
        let canonical = store.canonical(recipient);
        let written = |address: &str| index.read().knows(number, address);
        written(recipient) || written(&canonical) || store.registered(recipient)
    })
}

/// The text for a name that is no address of any store; `EINVAL`.
pub fn not_an_address(stores: &[Arc<dyn Store>], recipient: &str) -> OutboxError {
    let mut kinds: Vec<Kind> = stores.iter().map(|s| s.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let grammars: Vec<&str> = kinds.iter().map(|kind| kind.grammar()).collect();
    let hint = meant(stores, recipient).map(|hint| format!("{hint}; ")).unwrap_or_default();
    OutboxError::Invalid(format!(
        "{:?} is not an address of any store here ({}); {hint}{}",
        one_line(recipient),
        names.join(", "),
        grammars.join("; ")
    ))
}

/// Names the agent of these stores whose name a recipient resembles.
fn meant(stores: &[Arc<dyn Store>], recipient: &str) -> Option<String> {
    let others = |store: &Arc<dyn Store>| {
        let me = store.canonical(store.me());
        let all = store.facets().agents.map(Agents::agents).unwrap_or_default();
        all.into_iter().filter(|known| store.canonical(known) != me).collect::<Vec<_>>()
    };
    let mut known = stores.iter().flat_map(others);
    let known = known.find(|known| known != recipient && alike(recipient, known))?;
    let known = one_line(&known).into_owned();
    Some(format!("{known} is known: write to outbox/{known} if that is who you mean"))
}

fn stranger(core: &Core, groups: &Groups, recipient: &str) -> String {
    let name = |address: &str| address.split('@').next().unwrap_or_default().to_owned();
    let known = || groups.keys().map(String::as_str).chain(core.addresses());
    let by_name = || {
        let near = nearest(recipient, known().map(|a| a.split('@').next().unwrap_or(a)))?;
        known().find(|a| name(a) == near)
    };
    let hint = if let Some(name) = nearest(recipient, known()).or_else(by_name) {
        format!("the nearest known name is {name}")
    } else {
        let mut names: Vec<&str> = known().collect();
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

#[cfg(test)]
mod tests {
    use super::alike;

    #[test]
    fn a_name_is_compared_with_the_names_in_other_places() {
        for new in ["bem", "Ben", "ben.json", "ben2wx9k0ee"] {
            assert!(alike(new, "ben@default.aimaestro.local"), "{new}");
        }
        assert!(!alike("ben", "ben@localhost") && !alike("carol", "ben@localhost"));
        assert!(alike("bem@localhost", "ben@localhost") && !alike("bem@here", "ben@localhost"));
    }
}
