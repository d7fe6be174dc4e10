//! Addresses: `name@scope…tenant.provider` (docs/formats/amp.md, section 1).
//!
//! Every program splits from the right: the last two labels are the provider, the label before is the tenant, the rest
//! is the scope. A scope says nothing about trust, so addresses are compared whole.

use std::fmt;

/// The provider of agents on one host, unless the environment names another one.
pub const LOCAL_PROVIDER: &str = "aimaestro.local";

/// The tenant of an address that names no tenant.
pub const DEFAULT_TENANT: &str = "default";

/// The longest address, in bytes.
const MAX_ADDRESS: usize = 254;

/// The longest name, label or scope segment, in bytes.
const MAX_LABEL: usize = 63;

/// An address, split and in its normal form (lower case).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AmpAddress {
    /// The agent.
    pub name: String,
    /// The labels between name and tenant; usually none.
    pub scope: Vec<String>,
    /// The organisation.
    pub tenant: String,
    /// The service that carries the mail: two labels, or one for `local` and similar names.
    pub provider: String,
}

impl fmt::Display for AmpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.name)?;
        self.scope.iter().try_for_each(|segment| write!(f, "{segment}."))?;
        write!(f, "{}.{}", self.tenant, self.provider)
    }
}

/// Parses an address as a person or a client writes it, and completes it. Without `@` it is an agent of my own tenant
/// at the default provider. `name@x` is the default tenant at provider `x`. `name@x.y` is tenant `x` at provider `y`.
///
/// # Errors
/// A sentence that names the broken rule of the grammar.
pub fn parse(text: &str, own_tenant: &str, default_provider: &str) -> Result<AmpAddress, String> {
    let text = text.trim().to_ascii_lowercase();
    let (name, domain) = match text.split_once('@') {
        Some((name, domain)) => (name, Some(domain)),
        None => (text.as_str(), None),
    };
    if !is_name(name) {
        return Err(format!(
            "{text:?} is not an AMP address: the name before the @ has 1 to 63 letters, digits, - and _"
        ));
    }
    let mut labels: Vec<String> = match domain {
        Some(domain) => domain.split('.').map(str::to_owned).collect(),
        None => std::iter::once(own_tenant)
            .chain(default_provider.split('.'))
            .map(str::to_ascii_lowercase)
            .collect(),
    };
    if domain.is_some() && !labels.iter().all(|label| is_label(label)) {
        return Err(format!(
            "{text:?} is not an AMP address: after the @ there must be labels of 1 to 63 letters, \
             digits and -, with dots between them"
        ));
    }
    let last = labels.pop().unwrap_or_default();
    let provider = match (labels.len(), labels.pop()) {
        (0, _) | (_, None) => last,
        (1, Some(label)) => {
            labels.push(label);
            last
        }
        (_, Some(label)) => format!("{label}.{last}"),
    };
    let tenant = labels.pop().unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    let address = AmpAddress { name: name.to_owned(), scope: labels, tenant, provider };
    if address.to_string().len() > MAX_ADDRESS {
        return Err("the address is longer than 254 characters".into());
    }
    Ok(address)
}

/// Returns true if a text is an address in the form that messages use: the grammar of docs/formats/amp.md, section 1. A
/// domain of two labels is allowed because the plugin writes `name@default.local`.
pub fn is_wire_address(text: &str) -> bool {
    let Some((name, domain)) = text.split_once('@') else { return false };
    text.len() <= MAX_ADDRESS
        && is_name(name)
        && domain.contains('.')
        && domain.split('.').all(is_label)
}

/// Returns true if a text may be the name of an agent.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_LABEL).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

fn is_label(text: &str) -> bool {
    (1..=MAX_LABEL).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Returns true if mail for this provider is delivered on this host.
pub fn is_local(provider: &str, default_provider: &str) -> bool {
    [default_provider, LOCAL_PROVIDER, "local", "default.local"]
        .iter()
        .any(|local| local.eq_ignore_ascii_case(provider))
}

/// Returns the folder below `inbox/` or `sent/` for a correspondent (docs/formats/amp.md, section 4). Several addresses
/// can share one folder.
pub fn correspondent_folder(address: &str) -> String {
    address
        .chars()
        .filter_map(|c| match c {
            '@' | '.' => Some('_'),
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<String, String> {
        parse(text, "acme", LOCAL_PROVIDER).map(|address| address.to_string())
    }

    #[test]
    fn split_from_the_right() {
        let address = parse("Bob@Repo.GitHub.acme.aimaestro.local", "x", "y").unwrap();
        assert_eq!(
            address,
            AmpAddress {
                name: "bob".into(),
                scope: vec!["repo".into(), "github".into()],
                tenant: "acme".into(),
                provider: "aimaestro.local".into(),
            }
        );
        assert_eq!(address.to_string(), "bob@repo.github.acme.aimaestro.local");
    }

    #[test]
    fn short_forms_are_completed() {
        for (text, whole) in [
            ("bob", "bob@acme.aimaestro.local"),
            (" BOB ", "bob@acme.aimaestro.local"),
            ("a@x", "a@default.x"),
            ("bob@local", "bob@default.local"),
            ("a@team.local", "a@team.local"),
            ("bob@acme.crabmail.ai", "bob@acme.crabmail.ai"),
            ("my_bot-1@acme.crabmail.ai", "my_bot-1@acme.crabmail.ai"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(whole), "{text}");
        }
        let team = parse("a@team.local", "acme", LOCAL_PROVIDER).unwrap();
        assert_eq!((team.tenant.as_str(), team.provider.as_str()), ("team", "local"));
    }

    #[test]
    fn what_is_no_address() {
        let long = format!("bob@{}.local", "a.".repeat(130).trim_end_matches('.'));
        let label = format!("bob@{}.local", "a".repeat(64));
        for text in [
            "",
            "@",
            "@acme.x",
            "bob@",
            "bob@acme..x",
            "bob@.x",
            "bob@x.",
            "a b@acme.x",
            "a@b@c.d",
            "bob/../bob@acme.aimaestro.local",
            "..",
            "b.ob@acme.x",
            "bob@ac_me.x",
            "bob|x",
            "b\u{f6}b",
            &long,
            &label,
        ] {
            assert!(read(text).is_err(), "{text}");
            assert!(!is_wire_address(text), "{text}");
        }
        for text in ["bob", "a@x", " bob@acme.x", "bob@acme.x|"] {
            assert!(!is_wire_address(text), "{text}");
        }
        assert!(is_wire_address("Alice@acme.aimaestro.local"));
        assert!(is_wire_address("bob@default.local"));
    }

    #[test]
    fn local_providers() {
        for provider in ["AIMaestro.local", "local", "default.local", "corp.example"] {
            assert!(is_local(provider, "Corp.Example"), "{provider}");
        }
        for provider in ["crabmail.ai", "acme.internal", "x.local", ""] {
            assert!(!is_local(provider, "corp.example"), "{provider}");
        }
    }

    #[test]
    fn folders() {
        for (address, name) in [
            ("alice@acme.aimaestro.local", "alice_acme_aimaestro_local"),
            ("a_b@c.d", "a_b_c_d"),
            ("../../x", "____x"),
            ("A|b\u{e9} c", "Abc"),
        ] {
            assert_eq!(correspondent_folder(address), name);
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_a_wire_address(text in "[A-Za-z0-9_.@-]{0,40}") {
            if let Ok(address) = parse(&text, "acme", LOCAL_PROVIDER) {
                let whole = address.to_string();
                prop_assert!(is_wire_address(&whole), "{whole}");
                prop_assert_eq!(parse(&whole, "other", "other"), Ok(address));
            }
        }

        #[test]
        fn nothing_panics_and_folders_are_harmless(text in any::<String>()) {
            let _ = parse(&text, &text, &text);
            let _ = is_wire_address(&text);
            prop_assert!(correspondent_folder(&text).bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')));
        }
    }
}
