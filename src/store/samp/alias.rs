//! Names of writers and of their logs.

/// The longest alias, in bytes (which are characters, an alias being ASCII).
pub const MAX_LEN: usize = 64;

const PREFIX: &str = "log-";
const SUFFIX: &str = ".jsonl";

/// Whether this is an alias: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`, the whole of it.
///
/// Stricter than the pattern in Python, whose `$` also lets one trailing newline pass.
pub fn is_valid(alias: &str) -> bool {
    let mut bytes = alias.bytes();
    alias.len() <= MAX_LEN
        && bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The name of a writer's log.
pub fn log_name(alias: &str) -> String {
    format!("{PREFIX}{alias}{SUFFIX}")
}

/// What a file in the store's folder is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogName<'a> {
    /// The log of this writer.
    Main(&'a str),
    /// A copy of this writer's log that a sync program put aside. It is a further source of the
    /// writer's messages and never a participant of its own, nor ever written.
    Conflict(&'a str),
    /// Not a log at all.
    NotALog,
    /// Named like a log, but for no valid alias: nobody's messages.
    BadAlias,
}

/// Says what a file is by its name.
///
/// The patterns of sync programs win over the alias rule, because Syncthing's names are also
/// valid aliases.
pub fn classify(file_name: &str) -> LogName<'_> {
    let stem = file_name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    let Some(stem) = stem else { return LogName::NotALog };
    let mut alias = stem;
    // A conflict copy can itself get into a conflict.
    while let Some(shorter) = without_conflict_mark(alias) {
        alias = shorter;
    }
    match is_valid(alias) {
        false => LogName::BadAlias,
        true if alias.len() == stem.len() => LogName::Main(alias),
        true => LogName::Conflict(alias),
    }
}

/// The name without one mark of a sync program at its end, if it has one.
fn without_conflict_mark(stem: &str) -> Option<&str> {
    syncthing(stem).or_else(|| conflicted_copy(stem)).or_else(|| numbered_copy(stem))
}

/// Syncthing: `A.sync-conflict-YYYYMMDD-HHMMSS-DEVICE`; releases before 0.14 left out the device.
fn syncthing(stem: &str) -> Option<&str> {
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

/// Dropbox and Nextcloud: `A (Ann's conflicted copy 2026-04-13)`, `A (conflicted copy …)`.
fn conflicted_copy(stem: &str) -> Option<&str> {
    let (alias, mark) = stem.split_once(" (")?;
    let mark = mark.strip_suffix(')')?;
    mark.to_ascii_lowercase().contains("conflicted copy").then_some(alias)
}

/// iCloud: `A 2`.
fn numbered_copy(stem: &str) -> Option<&str> {
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
            assert!(is_valid(good), "{good}");
        }
        let too_long = "a".repeat(65);
        let bad = [
            "", ".a", "-a", "_a", "a b", "a/b", "bar\n", "\u{e9}", "a\u{e9}", "a\0", "..",
            &too_long,
        ];
        for bad in bad {
            assert!(!is_valid(bad), "{bad:?}");
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
            ("log-foo.jsonl", LogName::Main("foo")),
            ("log-x.jsonl.jsonl", LogName::Main("x.jsonl")),
            ("log-log-a.jsonl", LogName::Main("log-a")),
            (long.as_str(), LogName::Main(&long_a)),
            // OneDrive's copies cannot be told from an alias.
            ("log-foo-DESKTOP.jsonl", LogName::Main("foo-DESKTOP")),
            ("log-.jsonl", LogName::BadAlias),
            ("log-foo\n.jsonl", LogName::BadAlias),
            ("log-a b.jsonl", LogName::BadAlias),
            ("log-..jsonl", LogName::BadAlias),
            ("log-\u{e9}.jsonl", LogName::BadAlias),
            (too_long.as_str(), LogName::BadAlias),
            ("log-foo.jsonl.bak", LogName::NotALog),
            ("log-foo.jsonl.gz", LogName::NotALog),
            ("LOG-foo.jsonl", LogName::NotALog),
            (".log-foo.jsonl", LogName::NotALog),
            (".syncthing.log-foo.jsonl.tmp", LogName::NotALog),
            ("log-foo.JSONL", LogName::NotALog),
            ("log.jsonl", LogName::NotALog),
            ("log-jsonl", LogName::NotALog),
            ("notes.txt", LogName::NotALog),
            ("", LogName::NotALog),
            ("log-foo.sync-conflict-20260413-091523-K3X2R2T.jsonl", LogName::Conflict("foo")),
            ("log-foo.sync-conflict-20260413-091523.jsonl", LogName::Conflict("foo")),
            (long_conflict.as_str(), LogName::Conflict(&long_a)),
            (
                "log-f.o.sync-conflict-20260413-091523-K3X2R2T.sync-conflict-20260414-000000-AAAAAAA.jsonl",
                LogName::Conflict("f.o"),
            ),
            // Not quite Syncthing's pattern: ordinary aliases.
            (
                "log-foo.sync-conflict-20260413-091523-short.jsonl",
                LogName::Main("foo.sync-conflict-20260413-091523-short"),
            ),
            ("log-foo.sync-conflict-.jsonl", LogName::Main("foo.sync-conflict-")),
            ("log-.sync-conflict-20260413-091523-K3X2R2T.jsonl", LogName::BadAlias),
            ("log-foo (Ann's conflicted copy 2026-04-13).jsonl", LogName::Conflict("foo")),
            ("log-foo (conflicted copy 2026-04-13 091523).jsonl", LogName::Conflict("foo")),
            ("log-foo (Ann's Conflicted Copy 2026-04-13 (1)).jsonl", LogName::Conflict("foo")),
            ("log-foo (conflicted copy 2026-04-13) (1).jsonl", LogName::Conflict("foo")),
            ("log-foo (copy).jsonl", LogName::BadAlias),
            ("log- (conflicted copy x).jsonl", LogName::BadAlias),
            ("log-foo 2.jsonl", LogName::Conflict("foo")),
            ("log-foo 2 3.jsonl", LogName::Conflict("foo")),
            ("log-foo 02.jsonl", LogName::BadAlias),
            ("log-foo  2.jsonl", LogName::BadAlias),
            ("log- 2.jsonl", LogName::BadAlias),
        ];
        for (name, expected) in table {
            assert_eq!(classify(name), expected, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn every_alias_has_its_log(alias in "[A-Za-z0-9][A-Za-z0-9._-]{0,63}") {
            prop_assert!(is_valid(&alias));
            prop_assume!(!alias.contains("sync-conflict"));
            let name = log_name(&alias);
            prop_assert_eq!(classify(&name), LogName::Main(&alias));
        }

        #[test]
        fn only_valid_aliases_come_out(name in "(log-)?.{0,80}(\\.jsonl)?") {
            if let LogName::Main(a) | LogName::Conflict(a) = classify(&name) {
                prop_assert!(is_valid(a));
            }
        }
    }
}
