//! An agent's registrations with providers elsewhere, and the addresses that these reach (docs/formats/amp.md, section
//! 13).

use serde_json::Value;

use super::address::{self, DEFAULT_TENANT};
use super::agent::lowercase_text;

/// Returns the address in a registration file, in lower case; `None` if it has no usable one.
pub fn parse_registered_address(registration: &Value, default_provider: &str) -> Option<String> {
    let written = lowercase_text(registration, &["address"]).or_else(|| {
        let name = lowercase_text(registration, &["agentName"]);
        let name = name.or_else(|| lowercase_text(registration, &["agent_name"]))?;
        let (tenant, provider) = (
            lowercase_text(registration, &["tenant"])?,
            lowercase_text(registration, &["provider"])?,
        );
        Some(format!("{name}@{tenant}.{provider}"))
    });
    let usable =
        |a: &String| a.contains('@') && address::parse(a, DEFAULT_TENANT, default_provider).is_ok();
    written.filter(usable)
}

/// Returns true if only a local network has a provider of this name. The one program that takes nothing but flat
/// messages uses such names.
pub fn is_local_network(provider: &str) -> bool {
    provider.rsplit_once('.').is_some_and(|(_, last)| last == "local")
}

/// Scores the reach from `mine` to `to` through the provider of `mine`: 2 if both have the same whole domain, 1 if the
/// last two labels are the same, else `None`.
pub fn score_reach(mine: &str, to: &str) -> Option<u8> {
    let (mine, to) = (mine.to_ascii_lowercase(), to.trim().to_ascii_lowercase());
    if !address::is_wire_address(&to) {
        return None;
    }
    let (mine, to) = (mine.split_once('@')?.1, to.split_once('@')?.1);
    let last_two = |domain: &str| {
        let mut labels = domain.rsplit('.');
        Some((labels.next()?.to_owned(), labels.next()?.to_owned()))
    };
    if mine == to {
        return Some(2);
    }
    (last_two(mine)? == last_two(to)?).then_some(1)
}

#[cfg(test)]
mod tests {
    use super::score_reach;

    #[test]
    fn the_whole_domain_before_the_provider() {
        for (mine, to, expected) in [
            ("a@acme.crabmail.ai", "bob@acme.crabmail.ai", Some(2)),
            ("a@acme.crabmail.ai", "Bob@ACME.crabmail.ai ", Some(2)),
            ("a@acme.crabmail.ai", "bob@globex.crabmail.ai", Some(1)),
            ("a@acme.crabmail.ai", "bob@repo.acme.crabmail.ai", Some(1)),
            ("a@acme.aimaestro.local", "bob@host-2.aimaestro.local", Some(1)),
            ("a@acme.crabmail.ai", "bob@acme.other.ai", None),
            ("a@acme.crabmail.ai", "bob@acme.crabmail.ai.evil.com", None),
            ("a@acme.crabmail.ai", "bob", None),
            ("a@acme.crabmail.ai", "bob@local", None),
            ("a@acme.crabmail.ai", "../bob@acme.crabmail.ai", None),
            ("a", "bob@acme.crabmail.ai", None),
        ] {
            assert_eq!(score_reach(mine, to), expected, "{mine} {to}");
        }
    }
}
