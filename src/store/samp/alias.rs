//! Names of senders and of their logs.

/// The longest alias, in bytes (which are characters, an alias being ASCII).
pub const MAX_LEN: usize = 64;

const PREFIX: &str = "log-";
const SUFFIX: &str = ".jsonl";

/// Returns true if this is an alias: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`, the whole of it.
///
/// It is stricter than the pattern in Python, whose `$` also lets one trailing newline pass.
pub fn is_valid_alias(alias: &str) -> bool {
    let mut bytes = alias.bytes();
    alias.len() <= MAX_LEN
        && bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Returns the name of a sender's log.
pub fn log_name(alias: &str) -> String {
    format!("{PREFIX}{alias}{SUFFIX}")
}

/// The meaning of a file's name in the store's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampLogName<'a> {
    /// The log of this sender.
    Main(&'a str),
    /// A copy of this sender's log that a sync program put aside. It is a further source of the sender's messages and
    /// never a participant of its own, nor ever written.
    Conflict(&'a str),
    /// A file that is no log.
    NotALog,
    /// A file that is named like a log, but for no valid alias. Its lines are nobody's messages.
    BadAlias,
}

/// Returns the meaning of a file's name.
///
/// The patterns of sync programs win over the alias rule, because Syncthing's names are also valid aliases.
pub fn classify_log_name(file_name: &str) -> SampLogName<'_> {
    let stem = file_name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    let Some(stem) = stem else { return SampLogName::NotALog };
    let mut alias = stem;
    // A conflict copy can itself get into a conflict.
    while let Some(shorter) = strip_conflict_mark(alias) {
        alias = shorter;
    }
    match is_valid_alias(alias) {
        false => SampLogName::BadAlias,
        true if alias.len() == stem.len() => SampLogName::Main(alias),
        true => SampLogName::Conflict(alias),
    }
}

/// Returns the name without one mark of a sync program at its end, if it has one.
fn strip_conflict_mark(stem: &str) -> Option<&str> {
    strip_syncthing_mark(stem)
        .or_else(|| strip_dropbox_mark(stem))
        .or_else(|| strip_icloud_mark(stem))
}

/// Strips the mark of Syncthing: `A.sync-conflict-YYYYMMDD-HHMMSS-DEVICE`. Releases before 0.14 left out the device.
fn strip_syncthing_mark(stem: &str) -> Option<&str> {
    let (alias, mark) = stem.rsplit_once(".sync-conflict-")?;
    let mut parts = mark.split('-');
    let digits = |part: Option<&str>, len| {
        part.is_some_and(|p| p.len() == len && p.bytes().all(|b| b.is_ascii_digit()))
    };
    let device = |part: &str| {
        part.len() == 7 && part.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
    };
    (digits(parts.next(), 8)
        && digits(parts.next(), 6)
        && parts.next().is_none_or(device)
        && parts.next().is_none())
    .then_some(alias)
}

/// Strips the mark of Dropbox and Nextcloud: `A (Ann's conflicted copy 2026-04-13)`, `A (conflicted copy …)`.
fn strip_dropbox_mark(stem: &str) -> Option<&str> {
    let (alias, mark) = stem.split_once(" (")?;
    let mark = mark.strip_suffix(')')?;
    mark.to_ascii_lowercase().contains("conflicted copy").then_some(alias)
}

/// Strips the mark of iCloud: `A 2`.
fn strip_icloud_mark(stem: &str) -> Option<&str> {
    let (alias, number) = stem.rsplit_once(' ')?;
    let is_number = (1..=4).contains(&number.len())
        && number.bytes().all(|b| b.is_ascii_digit())
        && !number.starts_with('0');
    is_number.then_some(alias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn aliases() {
        let long = "a".repeat(64);
        for good in ["a", "0", "A.b_c-d", "x.jsonl", "a..", "foo-bar", long.as_str()] {
            assert!(is_valid_alias(good), "{good}");
        }
        let too_long = "a".repeat(65);
        let bad = [
            "", ".a", "-a", "_a", "a b", "a/b", "bar\n", "\u{e9}", "a\u{e9}", "a\0", "..",
            &too_long,
        ];
        for bad in bad {
            assert!(!is_valid_alias(bad), "{bad:?}");
        }
    }

    #[test]
    fn log_names() {
        let long = format!("log-{}.jsonl", "a".repeat(64));
        let too_long = format!("log-{}.jsonl", "a".repeat(65));
        let long_conflict =
            format!("log-{}.sync-conflict-20260413-091523-K3X2R2T.jsonl", "a".repeat(64));
        let long_a = "a".repeat(64);
        let table = [
            ("log-foo.jsonl", SampLogName::Main("foo")),
            ("log-x.jsonl.jsonl", SampLogName::Main("x.jsonl")),
            ("log-log-a.jsonl", SampLogName::Main("log-a")),
            (long.as_str(), SampLogName::Main(&long_a)),
            // A copy of OneDrive has the form of an alias.
            ("log-foo-DESKTOP.jsonl", SampLogName::Main("foo-DESKTOP")),
            ("log-.jsonl", SampLogName::BadAlias),
            ("log-foo\n.jsonl", SampLogName::BadAlias),
            ("log-a b.jsonl", SampLogName::BadAlias),
            ("log-..jsonl", SampLogName::BadAlias),
            ("log-\u{e9}.jsonl", SampLogName::BadAlias),
            (too_long.as_str(), SampLogName::BadAlias),
            ("log-foo.jsonl.bak", SampLogName::NotALog),
            ("log-foo.jsonl.gz", SampLogName::NotALog),
            ("LOG-foo.jsonl", SampLogName::NotALog),
            (".log-foo.jsonl", SampLogName::NotALog),
            (".syncthing.log-foo.jsonl.tmp", SampLogName::NotALog),
            ("log-foo.JSONL", SampLogName::NotALog),
            ("log.jsonl", SampLogName::NotALog),
            ("log-jsonl", SampLogName::NotALog),
            ("notes.txt", SampLogName::NotALog),
            ("", SampLogName::NotALog),
            ("log-foo.sync-conflict-20260413-091523-K3X2R2T.jsonl", SampLogName::Conflict("foo")),
            ("log-foo.sync-conflict-20260413-091523.jsonl", SampLogName::Conflict("foo")),
            (long_conflict.as_str(), SampLogName::Conflict(&long_a)),
            (
                "log-f.o.sync-conflict-20260413-091523-K3X2R2T.sync-conflict-20260414-000000-AAAAAAA.jsonl",
                SampLogName::Conflict("f.o"),
            ),
            // These are not quite Syncthing's pattern: ordinary aliases.
            (
                "log-foo.sync-conflict-20260413-091523-short.jsonl",
                SampLogName::Main("foo.sync-conflict-20260413-091523-short"),
            ),
            ("log-foo.sync-conflict-.jsonl", SampLogName::Main("foo.sync-conflict-")),
            ("log-.sync-conflict-20260413-091523-K3X2R2T.jsonl", SampLogName::BadAlias),
            ("log-foo (Ann's conflicted copy 2026-04-13).jsonl", SampLogName::Conflict("foo")),
            ("log-foo (conflicted copy 2026-04-13 091523).jsonl", SampLogName::Conflict("foo")),
            ("log-foo (Ann's Conflicted Copy 2026-04-13 (1)).jsonl", SampLogName::Conflict("foo")),
            ("log-foo (conflicted copy 2026-04-13) (1).jsonl", SampLogName::Conflict("foo")),
            ("log-foo (copy).jsonl", SampLogName::BadAlias),
            ("log- (conflicted copy x).jsonl", SampLogName::BadAlias),
            ("log-foo 2.jsonl", SampLogName::Conflict("foo")),
            ("log-foo 2 3.jsonl", SampLogName::Conflict("foo")),
            ("log-foo 02.jsonl", SampLogName::BadAlias),
            ("log-foo  2.jsonl", SampLogName::BadAlias),
            ("log- 2.jsonl", SampLogName::BadAlias),
        ];
        for (name, expected) in table {
            assert_eq!(classify_log_name(name), expected, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn every_alias_has_its_log(alias in "[A-Za-z0-9][A-Za-z0-9._-]{0,63}") {
            prop_assert!(is_valid_alias(&alias));
            prop_assume!(!alias.contains("sync-conflict"));
            let name = log_name(&alias);
            prop_assert_eq!(classify_log_name(&name), SampLogName::Main(&alias));
        }

        #[test]
        fn only_valid_aliases_come_out(name in "(log-)?.{0,80}(\\.jsonl)?") {
            if let SampLogName::Main(a) | SampLogName::Conflict(a) = classify_log_name(&name) {
                prop_assert!(is_valid_alias(a));
            }
        }
    }
}
