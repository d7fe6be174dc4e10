//! Names from messages that become names on disk or are compared with them.

use crate::store::text::pytext::strip;

/// Limit of a file name on the usual file systems, in bytes.
pub const MAX_NAME: usize = 255;

/// Returns true if an address can name a mailbox: one folder below `mailbox_dir`, and one item of a `To` header.
///
/// It is not empty and has at most 255 bytes. It has no `/`, no comma, no control character or line separator, and no
/// leading dot (so it is not `.` or `..`). It has no white space at either end, because the reader of the header would
/// strip it.
pub fn is_mailbox_name(address: &str) -> bool {
    is_path_component(address)
        && !address.starts_with('.')
        && !address.contains(',')
        && strip(address) == address
}

/// Returns true if an address may belong to a recipient who has no mailbox here yet: `name@host`, with one `@` between
/// two names, or `name.agenttalk`. Letters to anything else would wait for ever.
pub fn is_address(address: &str) -> bool {
    let names = match address.split_once('@') {
        Some((name, host)) => !name.is_empty() && !host.is_empty() && !host.contains('@'),
        None => address.strip_suffix(".agenttalk").is_some_and(|name| !name.is_empty()),
    };
    let bad = |c: char| c.is_whitespace() || matches!(c, ';' | '<' | '>');
    names && is_mailbox_name(address) && !address.contains(bad)
}

/// Returns the address in a `From` header, without the display name that e-mail adds: for `"Bob" <bob@x>` it is
/// `bob@x`. The case is kept.
pub fn bare_address(from: &str) -> String {
    let from = strip(from);
    let inner = from
        .rsplit_once('<')
        .map(|(_, tail)| strip(tail.split_once('>').map_or(tail, |(inner, _)| inner)))
        .filter(|inner| !inner.is_empty());
    inner.unwrap_or(from).to_owned()
}

/// Returns true if an attachment can be shown under this name: one path component of at most 255 bytes without control
/// characters, not `.` or `..`.
pub fn is_attachment_name(name: &str) -> bool {
    is_path_component(name) && name != "." && name != ".."
}

fn is_path_component(name: &str) -> bool {
    let bad = |c: char| c == '/' || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mailbox_names() {
        let longest = "a".repeat(255);
        for good in
            ["bob@localhost", "a", "b\u{f6}b@x", "Bob <b@x>", "a..b", "a b", "---", &longest]
        {
            assert!(is_mailbox_name(good), "{good}");
        }
        let longer = "a".repeat(256);
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "../../x",
            "/abs",
            "a/b",
            "a\0",
            "a\nb",
            "a\rb",
            "a\u{85}b",
            "a\u{2028}b",
            "\x1b[1m",
            "a,b",
            " a",
            "a\u{a0}",
            &longer,
        ] {
            assert!(!is_mailbox_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn addresses_of_people_without_a_mailbox() {
        for good in ["bob@localhost", "b+x@y.z", "bob.agenttalk", "b@x.agenttalk"] {
            assert!(is_address(good), "{good}");
        }
        for bad in [
            "bob@",
            "@localhost",
            "@",
            "bob@@x",
            "a@x;b@x",
            "a@x b@x",
            "a b@x",
            "bob @localhost",
            "bob@ localhost",
            "bob",
            ".agenttalk",
            "a,b@x",
            "<b@x>",
        ] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    #[test]
    fn addresses_without_display_names() {
        for (from, bare) in [
            ("bob@x", "bob@x"),
            (" Bob <bob@x> ", "bob@x"),
            ("\"Bob <alice@x>\" <bob@x>", "bob@x"),
            ("<Bob@X>", "Bob@X"),
            ("Bob < bob@x", "bob@x"),
            ("Bob <>", "Bob <>"),
            ("", ""),
        ] {
            assert_eq!(bare_address(from), bare, "{from}");
        }
    }

    #[test]
    fn attachment_names() {
        for good in ["plan.pdf", ".hidden", "a\\b", "a, b", "\u{e9}", "..."] {
            assert!(is_attachment_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "a\nb", "\u{9b}", "\u{2029}"] {
            assert!(!is_attachment_name(bad), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_mailbox_name_is_one_component_and_survives_the_header(name in "\\PC{0,20}|[./a,\\n ]{0,6}") {
            if is_mailbox_name(&name) {
                let path = std::path::Path::new(&name);
                prop_assert_eq!(path.components().count(), 1);
                prop_assert_eq!(path.file_name(), Some(std::ffi::OsStr::new(&name)));
                let file = format!("To: {name}\n---\n");
                let letter = super::super::text::parse(file.as_bytes());
                prop_assert_eq!(letter.list_values("To"), vec![name]);
            }
        }
    }
}
