//! Names of attachments, and reasons to withhold them (docs/formats/amp.md, section 8).

use super::envelope::{AttachmentRef, shown};
use super::id::is_attachment_id;
use super::limits::ATTACHMENT_BYTES;
use crate::model::shorten_name;

/// The longest file name, in bytes.
const MAX_NAME: usize = 255;

/// The name of an attachment without a name.
const UNNAMED: &str = "unnamed_file";

/// Names that are devices on some systems.
const RESERVED: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Returns the name under which an attachment is stored and shown: one path component of `[A-Za-z0-9._-]`, as the
/// plugin cleans it.
pub fn clean_filename(name: &str) -> String {
    let base = name.trim_end_matches('/');
    let base = base.rsplit_once('/').map_or(base, |(_, base)| base);
    if has_coded_separator(base) {
        return UNNAMED.to_owned();
    }
    let plain: String = base.chars().map(|c| if is_plain_char(c) { c } else { '_' }).collect();
    let trimmed = plain.trim_matches('.');
    if trimmed.is_empty() {
        return UNNAMED.to_owned();
    }
    let cut = shorten_name(trimmed, MAX_NAME);
    if is_reserved(&cut) { shorten_name(&format!("_{cut}"), MAX_NAME) } else { cut }
}

fn is_plain_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// Returns true if a name holds `%2F`, `%5C` or `%00` in any case.
fn has_coded_separator(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    ["%2f", "%5c", "%00"].iter().any(|code| lower.contains(code))
}

fn is_reserved(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let numbered = |prefix: &str| {
        stem.strip_prefix(prefix).is_some_and(|n| matches!(n.as_bytes(), [b'1'..=b'9']))
    };
    RESERVED.contains(&stem.as_str()) || numbered("com") || numbered("lpt")
}

/// Returns the reason to withhold an attachment that follows from its entry alone, in a few words for `(withheld: …)`.
/// A URL is no reason: the bytes may still be in the store ([`AttachmentRef::url`]).
pub fn withheld_reason(attachment: &AttachmentRef<'_>) -> Option<String> {
    let AttachmentRef { id, filename, size, digest, scan_status, storage, .. } = attachment;
    if storage.as_deref() == Some("afp") {
        return Some("kept in another service".into());
    }
    if !id.as_deref().is_some_and(is_attachment_id) {
        return Some("bad id".into());
    }
    if !filename.as_deref().is_some_and(is_safe_name) {
        return Some("bad name".into());
    }
    match size {
        None => return Some("no size".into()),
        Some(size) if *size > ATTACHMENT_BYTES => return Some("larger than 25 MB".into()),
        Some(_) => {}
    }
    let Some(digest) = digest.as_deref() else { return Some("no digest".into()) };
    if parse_sha256(digest).is_none() {
        return Some("unknown form of digest".into());
    }
    match scan_status.as_deref() {
        None | Some("clean" | "basic_clean" | "unscanned") => None,
        Some(word @ ("rejected" | "suspicious" | "pending")) => Some(format!("scan status {word}")),
        Some(word) => Some(format!("unknown scan status {}", shown(word))),
    }
}

/// Returns true if a sender may have used this name for a file, and it is no attempt at a path.
fn is_safe_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\'))
        && !has_coded_separator(name)
        && name.contains(|c: char| c != '.')
}

/// Returns the 64 hex digits of a supported digest (`sha256:` and lower-case hex).
pub fn parse_sha256(digest: &str) -> Option<&str> {
    digest.strip_prefix("sha256:").filter(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Returns the MIME type for the extension, else `application/octet-stream`.
pub fn guess_content_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, e)| e).to_ascii_lowercase();
    match extension.as_str() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "patch" | "diff" => "text/x-diff",
        "json" => "application/json",
        "xml" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_cleaned_as_the_plugin_cleans_them() {
        let long = format!("{}.tar.gz", "a".repeat(300));
        let cases = [
            ("a_b.log", "a_b.log"),
            ("a b.log", "a_b.log"),
            ("/tmp/x/plan.pdf", "plan.pdf"),
            ("../../etc/passwd", "passwd"),
            ("..", UNNAMED),
            ("", UNNAMED),
            ("a%2Fb", UNNAMED),
            ("a%5cb", UNNAMED),
            ("a%00", UNNAMED),
            ("a\\b", "a_b"),
            ("...x...", "x"),
            ("na\u{ef}ve.txt", "na_ve.txt"),
            ("CON", "_CON"),
            ("lpt1.tar.gz", "_lpt1.tar.gz"),
            ("com0", "com0"),
            ("com10", "com10"),
            ("console", "console"),
        ];
        for (name, expected) in cases {
            assert_eq!(clean_filename(name), expected, "{name}");
        }
        assert_eq!(clean_filename(&long).len(), MAX_NAME);
        assert!(
            clean_filename(&long).ends_with("a.gz") || clean_filename(&long).ends_with(".tar.gz")
        );
        for reserved in ["con", "NUL.tar", "lpt1"] {
            let cleaned = clean_filename(&format!("{reserved}.{}", "a".repeat(300)));
            assert_eq!(cleaned.len(), MAX_NAME, "{reserved}");
            assert!(cleaned.starts_with(&format!("_{reserved}.a")), "{cleaned}");
        }
    }

    fn good() -> AttachmentRef<'static> {
        AttachmentRef {
            id: Some("att_1795291680144_0eb86f9f".into()),
            filename: Some("a b.log".into()),
            size: Some(9),
            digest: Some(format!("sha256:{}", "0a".repeat(32)).into()),
            scan_status: Some("basic_clean".into()),
            ..AttachmentRef::default()
        }
    }

    #[test]
    fn what_is_withheld() {
        type Change = fn(&mut AttachmentRef<'static>);
        let cases: [(Change, Option<&str>); 20] = [
            (|_| {}, None),
            (|a| a.url = Some("https://x".into()), None),
            (|a| a.scan_status = None, None),
            (|a| a.scan_status = Some("unscanned".into()), None),
            (|a| a.id = None, Some("bad id")),
            (|a| a.id = Some("att_1_../x".into()), Some("bad id")),
            (|a| a.id = Some("msg_1_a".into()), Some("bad id")),
            (|a| a.filename = None, Some("bad name")),
            (|a| a.filename = Some("../x".into()), Some("bad name")),
            (|a| a.filename = Some("a%2fx".into()), Some("bad name")),
            (|a| a.filename = Some("a\nx".into()), Some("bad name")),
            (|a| a.filename = Some("..".into()), Some("bad name")),
            (|a| a.size = None, Some("no size")),
            (|a| a.size = Some(ATTACHMENT_BYTES + 1), Some("larger than 25 MB")),
            (|a| a.digest = None, Some("no digest")),
            (|a| a.digest = Some("md5:00".into()), Some("unknown form of digest")),
            (
                |a| a.digest = Some(format!("sha256:{}", "0A".repeat(32)).into()),
                Some("unknown form of digest"),
            ),
            (|a| a.scan_status = Some("suspicious".into()), Some("scan status suspicious")),
            (|a| a.scan_status = Some("x\n".into()), Some("unknown scan status \"x\u{240a}\"")),
            (|a| a.storage = Some("afp".into()), Some("kept in another service")),
        ];
        for (change, expected) in cases {
            let mut attachment = good();
            change(&mut attachment);
            assert_eq!(withheld_reason(&attachment).as_deref(), expected, "{attachment:?}");
        }
    }

    proptest! {
        #[test]
        fn clean_names_are_safe_and_stay(name in any::<String>(), ext in "[a-z/%.25fF ]{0,8}") {
            let cleaned = clean_filename(&format!("{name}{ext}"));
            prop_assert!(!cleaned.is_empty() && cleaned.len() <= MAX_NAME);
            prop_assert!(cleaned.chars().all(is_plain_char));
            prop_assert!(cleaned.contains(|c| c != '.'));
            prop_assert_eq!(clean_filename(&cleaned), cleaned);
        }
    }
}
