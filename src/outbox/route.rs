//! Routing: the choice of the store that carries a message to a recipient (docs/SEMANTICS.md, S60 and S134).

use std::sync::Arc;

use super::{OutboxError, OutboxSettings, RecipientGroups, find_store, names};
use crate::index::{Index, IndexTables};
use crate::model::{Draft, UnknownRecipient, find_nearest, sanitize_line};
use crate::store::{AddressFit, Advice, Kind, Store, StoreDirectory, StoreError, fs as store_fs};

/// The recipients of a draft that one store carries, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The store's number.
    pub store: usize,
    /// Recipients.
    pub to: Vec<String>,
    /// Further recipients.
    pub cc: Vec<String>,
    /// True for a blind copy: the other recipients do not learn of this one.
    pub is_blind: bool,
}

/// The header line that names a recipient.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecipientHeader {
    To,
    Cc,
    Bcc,
}

/// Returns the recipients of a draft by store, in the order of the stores' first recipients. A recipient that is named
/// twice gets one message.
///
/// # Errors
/// The errors of [`choose_store`], a refusal of an unknown recipient or of a header, and [`OutboxError::NoRecipient`]
/// if nobody is left.
pub fn route_recipients(
    index: &Index,
    draft: &Draft,
    settings: &OutboxSettings,
) -> Result<Vec<Route>, OutboxError> {
    let mut routes: Vec<Route> = Vec::new();
    let mut named: Vec<(usize, String)> = Vec::new();
    let via = draft.via.as_deref().or_else(|| store_by_header(index.stores(), draft));
    let lines = [
        (&draft.to, RecipientHeader::To),
        (&draft.cc, RecipientHeader::Cc),
        (&draft.bcc, RecipientHeader::Bcc),
    ];
    let all = lines.into_iter().flat_map(|(list, line)| list.iter().map(move |a| (a, line)));
    let whole = via.filter(|_| draft.is_whole).and_then(|via| find_store(index, via));
    let groups = |line: RecipientHeader| {
        let is_inherited = line == RecipientHeader::To && draft.to_is_inherited;
        (!is_inherited).then_some(&settings.groups)
    };
    for (address, line, of_group) in all.flat_map(|(a, line)| expand_group(a, line, groups(line))) {
        if of_group && is_only_me(index, address) {
            continue;
        }
        let (address, store) = match &whole {
            Some((store, _)) => (address.as_str(), *store),
            None => choose_store(index, address, via, draft.answered_store.as_deref())?,
        };
        let chosen = index.store(store);
        let canonical = chosen.canonical_address(address);
        let is_me = chosen.is_my_address(address);
        if named.contains(&(store, canonical.clone())) || of_group && is_me {
            continue;
        }
        if whole.is_none() {
            let is_name =
                (line == RecipientHeader::To && draft.to_is_name || draft.is_typed) && !of_group;
            check_known_recipient(index, store, address, settings, is_name)?;
        }
        named.push((store, canonical));
        if line == RecipientHeader::Bcc {
            // The other recipients do not learn of this one.
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
            let list = if line == RecipientHeader::To { &mut route.to } else { &mut route.cc };
            list.push(address.to_owned());
        }
    }
    if routes.is_empty() {
        return Err(OutboxError::NoRecipient(format!(
            "{} has no member but you",
            crate::model::sanitize_line(&draft.to.join(", "))
        )));
    }
    for route in routes.iter_mut().filter(|r| r.to.is_empty()) {
        // No format has messages for nobody. The recipients in other stores are not named here.
        route.to = std::mem::take(&mut route.cc);
    }
    for store in routes.iter().filter_map(|r| index.stores().get(r.store)) {
        check_headers(index.stores(), store.as_ref(), draft)?;
    }
    Ok(routes)
}

/// Returns the members of a group, or the address itself if it is none of these groups. The flag is true for members of
/// a group.
fn expand_group<'a>(
    address: &'a String,
    line: RecipientHeader,
    groups: Option<&'a RecipientGroups>,
) -> impl Iterator<Item = (&'a String, RecipientHeader, bool)> {
    let group = groups.and_then(|groups| groups.get(address));
    let alone = group.is_none().then_some(address).into_iter();
    alone.chain(group.into_iter().flatten()).map(move |a| (a, line, group.is_some()))
}

/// Returns true if an address is mine in a store that it fits, and the other stores that it fits know nobody of that
/// name. Mail to a group need not be carried to me.
fn is_only_me(index: &Index, address: &str) -> bool {
    let fits = |(_, s): &(usize, &Arc<dyn Store>)| s.address_fit(address) > AddressFit::Via;
    let fitting = (0..).zip(index.stores()).filter(fits);
    let (mine, others): (Vec<_>, Vec<_>) = fitting.partition(|(_, s)| s.is_my_address(address));
    !mine.is_empty() && !others.iter().any(|(number, _)| is_known_to_store(index, *number, address))
}

/// Returns the header lines of a draft that only some stores have.
fn special_headers(draft: &Draft) -> impl Iterator<Item = &'static str> {
    draft.task.iter().map(|_| "Task")
}

/// Returns the name of the only store that has such a header of this draft.
fn store_by_header<'a>(stores: &'a [Arc<dyn Store>], draft: &Draft) -> Option<&'a str> {
    let header = special_headers(draft).next()?;
    let mut having = stores.iter().filter(|s| s.properties().headers.contains(&header));
    let only = having.next()?;
    having.next().is_none().then(|| only.name())
}

/// Refuses header lines that a store does not have.
fn check_headers(
    stores: &[Arc<dyn Store>],
    store: &dyn Store,
    draft: &Draft,
) -> Result<(), OutboxError> {
    let Some(header) = special_headers(draft).find(|h| !store.properties().headers.contains(h))
    else {
        return Ok(());
    };
    let having = stores.iter().filter(|s| s.properties().headers.contains(&header));
    let names: Vec<&str> = having.map(|s| s.name()).collect();
    Err(OutboxError::Invalid(format!(
        "{header}: messages in the store {} have no such header, only those in {}; remove the \
         line, or choose another store with a line `Via: NAME`",
        store.name(),
        names.join(", ")
    )))
}

/// Returns the address in the chosen store, and the number of the store that carries a message to `recipient`.
///
/// # Errors
/// If `via` names no store, the address fits none, or none or several remain.
fn choose_store<'a>(
    index: &Index,
    recipient: &'a str,
    via: Option<&str>,
    near: Option<&str>,
) -> Result<(&'a str, usize), OutboxError> {
    let split = split_store_address(index, recipient);
    if let Some(via) = via {
        let stores = index.stores();
        let chosen = find_store_or_link(stores, via).and_then(|number| stores.get(number));
        let is_chosen = |store: &str| chosen.is_some_and(|chosen| chosen.name() == store);
        let name = split.filter(|(_, store)| is_chosen(store)).map_or(recipient, |(name, _)| name);
        return store_by_name(stores, via, name).map(|number| (name, number));
    }
    if let Some((name, store)) = split {
        return store_by_name(index.stores(), store, name).map(|number| (name, number));
    }
    store_by_address(index, recipient, near).map(|number| (recipient, number))
}

/// Splits `bob@work` into the name and the store of that name, unless a store knows the whole as an address. Some
/// programs want a dot: `bob@work.msgfs` means the same.
fn split_store_address<'a>(index: &Index, address: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, store) = split_store_name(address)?;
    let stores = index.stores();
    let is_known = |n: usize, s: &Arc<dyn Store>| {
        s.address_fit(address) > AddressFit::Via && is_known_to_store(index, n, address)
    };
    let is_name = stores.iter().any(|s| s.name() == store);
    (is_name && !stores.iter().enumerate().any(|(n, s)| is_known(n, s))).then_some((name, store))
}

/// Splits an address at its last `@`, whatever stores there are.
pub(super) fn split_store_name(address: &str) -> Option<(&str, &str)> {
    let (name, store) = address.rsplit_once('@').filter(|(name, _)| !name.is_empty())?;
    Some((name, store.strip_suffix(".msgfs").unwrap_or(store)))
}

/// Returns true if a name is an address of any of the stores, `NAME@STORE`, or a plain name.
pub(super) fn is_well_formed(stores: &[Arc<dyn Store>], name: &str) -> bool {
    let fits = |s: &Arc<dyn Store>, name: &str| s.address_fit(name) != AddressFit::No;
    let is_in_store = || {
        split_store_name(name)
            .is_some_and(|(name, store)| stores.iter().any(|s| s.name() == store && fits(s, name)))
    };
    names::is_plain(name) || stores.iter().any(|s| fits(s, name)) || is_in_store()
}

/// Refuses an unknown recipient, if the settings ask for that. `is_name` is true if the recipient was written only as
/// the name of a file or at a command.
fn check_known_recipient(
    index: &Index,
    number: usize,
    recipient: &str,
    settings: &OutboxSettings,
    is_name: bool,
) -> Result<(), OutboxError> {
    let unknown = settings.unknown_recipient;
    let judged = match unknown {
        UnknownRecipient::Accept => false,
        UnknownRecipient::Near => is_name,
        UnknownRecipient::Refuse => true,
    };
    if !judged || is_known_to_store(index, number, recipient) {
        return Ok(());
    }
    if unknown == UnknownRecipient::Refuse {
        return Err(OutboxError::Unreachable(unknown_recipient_text(
            &index.read(),
            &settings.groups,
            recipient,
        )));
    }
    let Some(store) = index.stores().get(number) else { return Ok(()) };
    let new = store.canonical_address(recipient);
    let near: Vec<String> = {
        let tables = index.read();
        tables
            .messages
            .names()
            .known_addresses()
            .filter(|known| names::is_similar(&new, known))
            .map(str::to_owned)
            .collect()
    };
    let other = |known: &&String| {
        let is_me = index.stores().iter().any(|s| s.is_my_address(known));
        !is_me && store.canonical_address(known) != new
    };
    let group = settings
        .groups
        .keys()
        .find(|group| names::is_similar(&new, group) || names::is_similar(recipient, group));
    let meant = near.iter().find(other).or(group);
    meant.map_or(Ok(()), |known| {
        Err(OutboxError::Unreachable(similar_recipient_text(recipient, known)))
    })
}

/// Returns the text for a file name that resembles a known recipient.
fn similar_recipient_text(recipient: &str, known: &str) -> String {
    let (recipient, known) = (sanitize_line(recipient), sanitize_line(known));
    format!(
        "nobody called {recipient} is known, but {known} is: write to outbox/{known} if that is who you \
         mean. To write to {recipient}, who is new, begin the text with a line `To: {recipient}` and \
         an empty line, or use `msgfs send --new {recipient} TEXT`"
    )
}

/// Returns the store of this name, or the only one that has a link of this name.
fn find_store_or_link(stores: &[Arc<dyn Store>], via: &str) -> Option<usize> {
    let has_way = |s: &Arc<dyn Store>| s.facets().remote.is_some_and(|remote| remote.has_link(via));
    let by_link = || {
        let mut all = (0..).zip(stores).filter(|(_, s)| has_way(s)).map(|(n, _)| n);
        all.next().filter(|_| all.next().is_none())
    };
    stores.iter().position(|s| s.name() == via).or_else(by_link)
}

/// Returns the error for a `Via` that names no store, and no link or those of several stores.
fn describe_unknown_via(stores: &[Arc<dyn Store>], via: &str) -> String {
    let remotes = stores.iter().filter_map(|s| Some((s.name(), s.facets().remote?)));
    let with_link = remotes.clone().filter(|(_, remote)| remote.has_link(via));
    let with_link: Vec<&str> = with_link.map(|(name, _)| name).collect();
    let via = sanitize_line(via);
    if !with_link.is_empty() {
        let names = with_link.join(", ");
        return format!("Via: several stores have a link {via:?}; name one of the stores: {names}");
    }
    let links = remotes.flat_map(|(_, remote)| remote.link_names());
    let names: Vec<String> = stores.iter().map(|s| s.name().to_owned()).chain(links).collect();
    format!("Via: there is no store or link {via:?}; there is {}", names.join(", "))
}

fn store_by_name(
    stores: &[Arc<dyn Store>],
    via: &str,
    recipient: &str,
) -> Result<usize, OutboxError> {
    let Some(number) = find_store_or_link(stores, via) else {
        return Err(OutboxError::Unreachable(describe_unknown_via(stores, via)));
    };
    if let Some(store) = stores.get(number).filter(|store| store.facets().appender.is_none()) {
        return Err(OutboxError::Invalid(format!(
            "Via: the store {} is only read: {}; choose another store",
            sanitize_line(store.name()),
            store.kind().row().address_grammar
        )));
    }
    match stores.get(number).map(|s| s.address_fit(recipient)) {
        Some(AddressFit::No) | None => {
            Err(address_form_error(stores.get(number..=number).unwrap_or_default(), recipient))
        }
        Some(_) => Ok(number),
    }
}

fn store_by_address(
    index: &Index,
    recipient: &str,
    near: Option<&str>,
) -> Result<usize, OutboxError> {
    let stores = index.stores();
    let fits: Vec<(usize, AddressFit)> = stores
        .iter()
        .enumerate()
        .map(|(n, s)| (n, s.address_fit(recipient)))
        .filter(|(n, fit)| *fit > AddressFit::Via || is_known_without_via(index, *n, recipient))
        .collect();
    if fits.is_empty() {
        return Err(unreachable_error(stores, recipient));
    }
    let known: Vec<usize> =
        fits.iter().map(|(n, _)| *n).filter(|n| is_known_to_store(index, *n, recipient)).collect();
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
        via_lines(fitting.iter().filter_map(|n| stores.get(*n)))
    )))
}

/// Returns one header line a store, for a person to choose from.
fn via_lines<'a>(stores: impl Iterator<Item = &'a Arc<dyn Store>>) -> String {
    let lines: Vec<String> = stores.map(|s| format!("  Via: {}", s.name())).collect();
    lines.join("\n")
}

/// Returns the error for an address that no store takes without `Via`.
fn unreachable_error(stores: &[Arc<dyn Store>], recipient: &str) -> OutboxError {
    let via: Vec<_> =
        stores.iter().filter(|s| s.address_fit(recipient) == AddressFit::Via).collect();
    if via.is_empty() {
        return invalid_address_error(stores, recipient);
    }
    let shown = sanitize_line(recipient);
    let lines = via_lines(via.iter().copied().filter(|s| s.is_registered(recipient)));
    if lines.is_empty() {
        let names: Vec<&str> = via.iter().map(|s| s.name()).collect();
        let names = names.join(", ");
        let missing = via.iter().find(|s| store_fs::is_folder_missing(s.dir()));
        let hint = missing
            .and_then(|s| s.advice().first().map(Advice::to_line))
            .or_else(|| suggest_recipient(stores, recipient));
        let reason = via.iter().find_map(|s| s.facets().appender?.explain_no_route(recipient));
        return match (reason, hint) {
            (Some(why), None) | (Some(why @ StoreError::Invalid(_)), _) => why.into(),
            (_, hint) => {
                let hint = hint.as_deref().unwrap_or("check the name");
                OutboxError::Unreachable(format!("{shown} has no mailbox in {names}; {hint}"))
            }
        };
    }
    OutboxError::Unreachable(format!(
        "no store carries this to {shown} unless you name the store; add a line to the \
         header:\n{lines}"
    ))
}

/// Returns true if a group or somebody is known by this name. A store that takes every name only with `Via` knows those
/// who are in its messages.
pub(super) fn is_known_recipient(index: &Index, name: &str, settings: &OutboxSettings) -> bool {
    let is_known = |(number, store): (usize, &Arc<dyn Store>)| {
        is_in_messages(index, number, store.as_ref(), name)
            || store.address_fit(name) > AddressFit::Via && store.is_registered(name)
    };
    settings.groups.contains_key(name) || index.stores().iter().enumerate().any(is_known)
}

/// Returns true if a draft of this name in `outbox/` goes to somebody: the name is a group, a whole address, or one by
/// which somebody is known.
pub(super) fn is_recipient_name(index: &Index, name: &str, settings: &OutboxSettings) -> bool {
    let recipient = names::recipient_in_name(name);
    let is_whole = || {
        recipient.contains('@')
            && !names::is_reply_name(recipient)
            && is_well_formed(index.stores(), recipient)
    };
    is_whole() || is_known_recipient(index, recipient, settings)
}

/// Returns true if the store knows the recipient. The lock of the tables is not held while the store answers: a scan
/// takes the two in the other order.
fn is_known_to_store(index: &Index, number: usize, recipient: &str) -> bool {
    index.stores().get(number).is_some_and(|store| {
        is_in_messages(index, number, store.as_ref(), recipient) || store.is_registered(recipient)
    })
}

/// Returns true if a store that takes every name only with `Via` carries mail to this recipient, who is in its
/// messages.
fn is_known_without_via(index: &Index, number: usize, recipient: &str) -> bool {
    index.stores().get(number).is_some_and(|store| {
        store.address_fit(recipient) == AddressFit::Via
            && store.is_registered(recipient)
            && is_in_messages(index, number, store.as_ref(), recipient)
    })
}

/// Returns true if the address has sent or received a message of the store.
fn is_in_messages(index: &Index, number: usize, store: &dyn Store, address: &str) -> bool {
    let canonical = store.canonical_address(address);
    let tables = index.read();
    let known = tables.messages.names();
    known.is_known_address(number, address) || known.is_known_address(number, &canonical)
}

/// Returns the `EINVAL` error for a name that is no address of any store.
pub fn invalid_address_error(stores: &[Arc<dyn Store>], recipient: &str) -> OutboxError {
    let Some((name, store)) = split_store_name(recipient) else {
        return address_form_error(stores, recipient);
    };
    if let Some(number) = stores.iter().position(|s| s.name() == store) {
        return address_form_error(stores.get(number..=number).unwrap_or_default(), name);
    }
    if !names::is_plain(name) || !names::is_plain(store) {
        return address_form_error(stores, recipient);
    }
    let names: Vec<&str> = stores.iter().map(|s| s.name()).collect();
    let mut forms: Vec<&str> = stores.iter().map(|s| s.kind().row().address_grammar).collect();
    forms.retain(|form| form.contains('@'));
    forms.sort_unstable();
    forms.dedup();
    let forms = std::iter::once("").chain(forms).collect::<Vec<_>>().join("; ");
    OutboxError::Invalid(format!(
        "{recipient:?} is not an address of any store here: there is no store {store:?}; there is {}{forms}",
        names.join(", ")
    ))
}

/// Returns the `EINVAL` error that tells the forms of addresses in these stores.
fn address_form_error(stores: &[Arc<dyn Store>], recipient: &str) -> OutboxError {
    let sending = stores.iter().filter(|store| store.facets().appender.is_some());
    let mut kinds: Vec<Kind> = sending.map(|s| s.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.is_empty() {
        return OutboxError::Unreachable("no store here sends messages: they are only read".into());
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let grammars: Vec<&str> = kinds.iter().map(|kind| kind.row().address_grammar).collect();
    let hint =
        suggest_recipient(stores, recipient).map(|hint| format!("{hint}; ")).unwrap_or_default();
    OutboxError::Invalid(format!(
        "{:?} is not an address of any store here ({}); {hint}{}",
        sanitize_line(recipient),
        names.join(", "),
        grammars.join("; ")
    ))
}

/// Suggests the agent of these stores whose name resembles a recipient.
fn suggest_recipient(stores: &[Arc<dyn Store>], recipient: &str) -> Option<String> {
    let others = |store: &Arc<dyn Store>| {
        let all = store.facets().directory.map(StoreDirectory::list_peers).unwrap_or_default();
        all.into_iter().filter(|known| !store.is_my_address(known)).collect::<Vec<_>>()
    };
    let mut known = stores.iter().flat_map(others);
    let known = known.find(|known| known != recipient && names::is_similar(recipient, known))?;
    let known = sanitize_line(&known).into_owned();
    Some(format!("{known} is known: write to outbox/{known} if that is who you mean"))
}

fn unknown_recipient_text(
    tables: &IndexTables,
    groups: &RecipientGroups,
    recipient: &str,
) -> String {
    let name = |address: &str| address.split('@').next().unwrap_or_default().to_owned();
    let known =
        || groups.keys().map(String::as_str).chain(tables.messages.names().known_addresses());
    let by_name = || {
        let near = find_nearest(recipient, known().map(|a| a.split('@').next().unwrap_or(a)))?;
        known().find(|a| name(a) == near)
    };
    let hint = if let Some(name) = find_nearest(recipient, known()).or_else(by_name) {
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
