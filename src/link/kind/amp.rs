//! The kind of links to a provider of AMP 0.1 over HTTP (docs/links/amp.md).

use super::LinkKind;
use crate::store::Kind;

/// A provider of AMP. The registrations of the agent describe it.
pub(super) const AMP: LinkKind = LinkKind {
    #[cfg(feature = "http")]
    find_accounts: Some(crate::link::amp::find_links),
    #[cfg(feature = "http")]
    open_engine: Some(crate::link::amp::open),
    ..LinkKind::new(
        "amp",
        "http",
        Kind::Amp,
        "# off = true                    # without this, msgfs uses the registrations of the agent\n",
    )
};
