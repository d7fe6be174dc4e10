//! Threads. The format has no thread ids. Messages belong together by signed reply links, and without those by the same
//! subject among the same participants (docs/formats/agentazall.md, section 10).

use sha2::{Digest, Sha256};

use super::names::bare_address;
use crate::model::encode_hex;
use crate::store::text::pytext::{is_space, strip_start, to_nfc};

/// The prefixes that mail programs put before a subject when they answer or forward.
const PREFIXES: [&str; 4] = ["re", "fwd", "fw", "aw"];
/// The longest readable part of a thread id, in bytes.
const MAX_SLUG: usize = 60;

/// Returns a subject without the prefixes of answering and forwarding (any run of `Re:`, `Fwd:`, `Fw:`, `Aw:`, also
/// numbered, `Re[2]:`), in lower case and NFC, every run of white space one blank.
pub fn normalize_subject(subject: &str) -> String {
    let lower = subject.to_lowercase();
    let words: Vec<&str> = lower.split(is_space).filter(|word| !word.is_empty()).collect();
    let text = words.join(" ");
    let text = to_nfc(&text);
    let mut rest = text.as_ref();
    while let Some(next) = strip_reply_prefix(rest) {
        rest = next;
    }
    rest.to_owned()
}

/// Returns the subject after one prefix of answering or forwarding; `None` if it begins with none.
fn strip_reply_prefix(subject: &str) -> Option<&str> {
    let tail = PREFIXES.iter().find_map(|prefix| {
        let tail = subject.strip_prefix(prefix)?;
        tail.starts_with([':', '[', ' ']).then_some(tail)
    })?;
    let tail = strip_start(tail);
    let tail = match tail.strip_prefix('[') {
        Some(count) => {
            let (count, tail) = count.split_once(']')?;
            count.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
            tail
        }
        None => tail,
    };
    strip_start(tail).strip_prefix(':').map(strip_start)
}

/// Returns the id of the thread that a message begins or, without a signed link, belongs to. It is a readable part of
/// the subject, `-`, and 8 hex digits of the SHA-256 of the whole normal subject and the participants (bare addresses
/// in lower case, sorted, each once), separated by NUL.
pub fn derive_thread_id(subject: &str, participants: &[&str]) -> String {
    let subject = normalize_subject(subject);
    let mut people: Vec<String> = participants
        .iter()
        .map(|address| bare_address(address).to_lowercase())
        .filter(|address| !address.is_empty())
        .collect();
    people.sort_unstable();
    people.dedup();
    let mut hash = Sha256::new();
    hash.update(&subject);
    for person in &people {
        hash.update([0]);
        hash.update(person);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let short: String = encode_hex(&digest).chars().take(8).collect();
    format!("{}-{short}", make_slug(&subject))
}

fn make_slug(subject: &str) -> String {
    let mut out = String::new();
    for c in subject.chars() {
        if out.len() == MAX_SLUG {
            break;
        }
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    out.truncate(out.trim_end_matches('-').len());
    if out.is_empty() { "no-subject".into() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_of_answering_are_not_part_of_the_subject() {
        for (subject, normal) in [
            ("Hello  World", "hello world"),
            ("Re: Fwd: FW:aw : Hello\u{a0}\tWorld ", "hello world"),
            ("Re[2]: RE [3] : x", "x"),
            ("re:re:re:", ""),
            ("Re: [list] x", "[list] x"),
            ("Re[x]: y", "re[x]: y"),
            ("Regarding: x", "regarding: x"),
            ("re x", "re x"),
            ("Cafe\u{301}", "caf\u{e9}"),
            ("", ""),
        ] {
            assert_eq!(normalize_subject(subject), normal, "{subject}");
        }
    }

    #[test]
    fn ids_are_readable_and_stable() {
        let id = derive_thread_id("Re: Schema change!", &["b@x", "Alice <A@x>", "a@x"]);
        assert_eq!(id, "schema-change-00843e44");
        assert_eq!(id, derive_thread_id("schema  CHANGE!", &["\"A\" <a@x>", "B@x", ""]));
        assert_ne!(id, derive_thread_id("schema change", &["a@x", "b@x"]));
        assert_ne!(id, derive_thread_id("schema change!", &["a@x", "c@x"]));
        assert!(derive_thread_id("\u{65e5}\u{672c}", &[]).starts_with("no-subject-"));
        assert_ne!(derive_thread_id("\u{65e5}", &[]), derive_thread_id("\u{672c}", &[]));
        let long = derive_thread_id(&"ab ".repeat(100), &[]);
        assert!(long.len() <= MAX_SLUG + 9 && long.is_ascii(), "{long}");
    }

    proptest! {
        #[test]
        fn an_answer_stays_in_its_thread(subject in "\\PC{0,40}|([Rr]e(\\[[0-9]?\\])? ?: ?){0,3}x", n in 0usize..4) {
            let answer = format!("{}{subject}", "Re: ".repeat(n));
            prop_assert_eq!(normalize_subject(&answer), normalize_subject(&subject));
            let id = derive_thread_id(&answer, &["b", "a"]);
            prop_assert_eq!(&id, &derive_thread_id(&subject, &["a", "b", "A"]));
            let slug = &id[..id.len() - 9];
            prop_assert!(slug.len() <= MAX_SLUG && !slug.is_empty());
            prop_assert!(slug.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{}", slug);
        }
    }
}
