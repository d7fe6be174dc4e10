//! File names in `outbox/`: drafts in the making, and the recipients that names address.

use crate::model::{Timestamp, is_similar_name};

/// The length of the time with which the name of a message begins.
const STAMP: usize = "20260424T174203.000Z".len();

/// Endings of names under which programs write a file before it gets its own name, or keep its former content.
const WORKING: &[&str] = &["tmp", "part", "bak", "orig", "new"];

/// Returns true for names that editors, `sed -i`, `rsync`, file managers and programs that save in one step use while
/// they work. Such files are never sent, until they are renamed to a plain name (docs/SEMANTICS.md, S49).
pub fn is_private(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let sed = name
        .strip_prefix("sed")
        .is_some_and(|rest| rest.len() == 6 && rest.bytes().all(|b| b.is_ascii_alphanumeric()));
    name.starts_with('.')
        || name.ends_with('~')
        || WORKING.iter().any(|e| ending.eq_ignore_ascii_case(e))
        || name.to_ascii_lowercase().contains(".tmp.")
        || (ending.len() == 3 && ending.starts_with("sw"))
        || name == "4913"
        || (name.len() > 1 && name.starts_with('#') && name.ends_with('#'))
        || sed
        || is_temporary(name)
}

/// Returns true for names that `mktemp` and Python's `tempfile` make up: `tmp.` and at least six letters or digits, or
/// `tmp` and eight of those or underscores, and an ending if the program gave one. They are private too, except for a
/// recipient who is known by that name.
pub fn is_temporary(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("tmp") else { return false };
    let by_mktemp = rest.strip_prefix('.');
    let made_up = by_mktemp.unwrap_or(rest).split('.').next().unwrap_or_default();
    let letter = |b: u8| match by_mktemp {
        Some(_) => b.is_ascii_alphanumeric(),
        None => b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_',
    };
    let long = if by_mktemp.is_some() { made_up.len() >= 6 } else { made_up.len() == 8 };
    long && made_up.bytes().all(letter)
}

/// Returns the name of the draft of a command at which the recipients were typed.
pub fn command_draft_name(command: &str) -> String {
    format!("{command}-{}", std::process::id())
}

/// Returns true if [`command_draft_name`] made the name.
pub fn is_command_draft_name(name: &str) -> bool {
    let commands = ["send-", "sendmail-"];
    let mut numbers = commands.iter().filter_map(|command| name.strip_prefix(command));
    numbers.any(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns true if a name is plain: at most 64 letters, digits, dots, underscores and hyphens, beginning with a letter
/// or digit. Names that are addresses of a store may hold more.
pub fn is_plain(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(inner)
}

/// Returns the address that a file name stands for: the name without `.txt`, `.md` or `.eml`.
pub fn recipient_in_name(name: &str) -> &str {
    [".txt", ".md", ".eml"].iter().find_map(|ext| name.strip_suffix(ext)).unwrap_or(name)
}

/// Returns true for the name of a reply beside a message: that of the message, which begins with its time, and
/// `.reply`.
pub fn is_reply_name(name: &str) -> bool {
    let stem = name.strip_suffix(".reply").or_else(|| name.strip_suffix(".reply-all"));
    stem.and_then(|stem| Timestamp::from_iso8601_basic(stem.get(..STAMP)?)).is_some()
}

/// Returns a name and then its replacements while it is taken: with `.2` at its end, `.3` and so on.
pub fn numbered_names(name: String) -> impl Iterator<Item = String> {
    (1..).map(move |n| if n == 1 { name.clone() } else { format!("{name}.{n}") })
}

/// Returns true if one address is probably the other with a typing error. The names are compared if both addresses are
/// in one place, or the new one is in none. The same name without a place belongs to another agent.
pub fn is_similar(new: &str, known: &str) -> bool {
    match (new.split_once('@'), known.split_once('@')) {
        (Some((new, here)), Some((known, there))) if here == there => is_similar_name(new, known),
        (None, Some((known, _))) => new != known && is_similar_name(new, known),
        _ => is_similar_name(new, known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_files_are_private() {
        for name in [
            ".bob.Ab12Cd",
            "bob~",
            "bob.tmp",
            "bob.part",
            "bob.bak",
            "bob.orig",
            "bob.new",
            "bob.tmp.3124.9f2c",
            "bob.TMP.1",
            ".bob.swp",
            "bob.swx",
            "4913",
            "#bob#",
            "sedAb12Cd",
            ".goutputstream-XYZ",
            "tmp.kX92hQ0aZb",
            "tmp.abcdef.txt",
            "tmpab_3xk9q",
            "tmpab_3xk9q.json",
        ] {
            assert!(is_private(name), "{name}");
        }
        for name in [
            "bob",
            "bob.txt",
            "sed",
            "sedan",
            "sedation",
            "49130",
            "#bob",
            "bob.s",
            "swp",
            "new",
            "bob.tmpx",
            "bob.news",
            "tmp",
            "tmp.bob",
            "tmp.a-b-c-d",
            "tmpbob",
            "tmpAb_3xk9q",
            "tmp_builders",
        ] {
            assert!(!is_private(name), "{name}");
        }
    }

    #[test]
    fn names_address_people() {
        assert_eq!(recipient_in_name("bob.txt"), "bob");
        assert_eq!(recipient_in_name("bob.eml"), "bob");
        assert_eq!(recipient_in_name("host.local.md"), "host.local");
        assert_eq!(recipient_in_name("bob"), "bob");
        assert_eq!(recipient_in_name("bob@acme.crabmail.ai"), "bob@acme.crabmail.ai");
        assert_eq!(recipient_in_name("bob+x@acme.crabmail.ai.txt"), "bob+x@acme.crabmail.ai");
        for name in ["bob@acme.crabmail.ai", "bob+tag@localhost", "bob@x.y.txt"] {
            assert!(!is_private(name) && !is_plain(name), "{name}");
        }
        assert!(is_plain("send-123") && !is_plain("") && !is_plain("-x") && !is_plain("a b"));
    }

    #[test]
    fn a_name_is_compared_with_the_names_in_other_places() {
        for new in ["bem", "Ben", "ben.json", "ben2wx9k0ee"] {
            assert!(is_similar(new, "ben@default.aimaestro.local"), "{new}");
        }
        assert!(!is_similar("ben", "ben@localhost") && !is_similar("carol", "ben@localhost"));
        assert!(
            is_similar("bem@localhost", "ben@localhost")
                && !is_similar("bem@here", "ben@localhost")
        );
    }
}
