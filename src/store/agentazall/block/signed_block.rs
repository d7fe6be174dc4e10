//! The search for the signed block in a text (docs/formats/agentazall.md, sections 4 and 13).
//!
//! The reference takes the first BEGIN marker and the first END marker after it. These cut every signed reply that
//! quotes a signed message at the wrong place. Here a pair of markers is right if the block's own key verifies it:
//!
//! - The outermost pair is tried first, so a signed reply verifies as a whole and the message it quotes is only text.
//! - Only the text that the signature covers is credited. Text before, inside the seam of, or after the block makes it
//!   a part, whoever wrote that text.
//! - A text that is one block from end to end, and whose signature fits nothing, is a broken signature, not a text that
//!   happens to contain markers.
//!
//! The work is bounded ([`VerifyBudget`]), because anybody can send a text full of markers.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

use crate::model::{PublicKey, verify};
use crate::store::text::pytext::{is_space, strip};

/// The line that opens the signed text.
pub(in super::super) const BEGIN: &str = "---BEGIN AGENTAZALL SIGNED MESSAGE---";
/// The line that closes the signed text.
pub(in super::super) const END: &str = "---END AGENTAZALL SIGNED MESSAGE---";
/// The line that opens the signature.
pub(in super::super) const SIGNATURE_BEGIN: &str = "---BEGIN AGENTAZALL SIGNATURE---";
/// The line that closes the signature; it may be missing.
pub(in super::super) const SIGNATURE_END: &str = "---END AGENTAZALL SIGNATURE---";

/// Number of begin markers that are tried, from the first.
const MAX_BEGINS: usize = 8;
/// Number of end markers that are tried for one begin marker: the last, then from the first.
const MAX_ENDS: usize = 8;
/// Limit of the metadata lines of one block; more are no metadata.
const MAX_META: usize = 10_000;
/// Length of 64 bytes in base64.
const SIGNATURE_CHARS: usize = 88;

/// Standard base64 with its padding. Surplus bits of the last character are accepted, as in the reference. Characters
/// outside the alphabet are refused; the reference skips them.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Decodes base64 that may be wrapped over lines; returns `None` if it does not give `N` bytes.
pub(super) fn decode_base64<const N: usize>(text: &str) -> Option<[u8; N]> {
    let dense: String = text.chars().filter(|c| !is_space(*c)).collect();
    BASE64.decode(dense).ok()?.try_into().ok()
}

/// A text cut at one pair of markers.
#[derive(Clone, Debug)]
pub(super) struct SignedBlock<'a> {
    /// The lines before the first blank one: `Fingerprint`, `Public-Key` and others.
    pub meta: Vec<&'a str>,
    /// Everything between the markers.
    pub inside: &'a str,
    /// The text of the block, as it was before wrapping.
    pub body: &'a str,
    /// The text at the place of the signature.
    pub signature: &'a str,
    /// Text before the block, between its two halves, and after it.
    pub outside: [&'a str; 3],
}

impl<'a> SignedBlock<'a> {
    /// Cuts `text` at the markers at these offsets. Returns `None` if no signature follows. Returns `None` also if
    /// another block begins before this one's text: the lines between are no metadata.
    fn cut_at_markers(text: &'a str, begin: usize, end: usize) -> Option<Self> {
        let inside = text.get(begin + BEGIN.len()..end)?;
        let (between, tail) = text.get(end + END.len()..)?.split_once(SIGNATURE_BEGIN)?;
        let (signature, after) =
            tail.split_once(SIGNATURE_END).unwrap_or_else(|| split_unclosed_signature(tail));
        let (meta, body) = split_metadata(inside)?;
        if meta.iter().any(|line| line.contains(BEGIN)) {
            return None;
        }
        let outside = [text.get(..begin)?, between, after];
        Some(Self { meta, inside, body, signature, outside })
    }

    /// Returns the value of a metadata line; of several the last counts.
    pub fn value(&self, key: &str) -> Option<&'a str> {
        self.values(key).next_back()
    }

    /// Returns the values of all metadata lines of this key.
    pub fn values(&self, key: &str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.meta.iter().filter_map(move |line| parse_meta_line(line, key))
    }

    /// Returns true if it has both a key and a signature, valid or not. Without either, the reference calls the text
    /// unsigned.
    fn is_signed(&self) -> bool {
        self.value("Public-Key").is_some_and(|key| !key.is_empty())
            && !strip(self.signature).is_empty()
    }

    /// Returns true if the text is nothing but this block.
    pub fn is_whole_text(&self) -> bool {
        self.outside.iter().all(|text| strip(text).is_empty())
    }

    /// Returns the key it names; `None` if it cannot be one.
    pub fn key(&self) -> Option<PublicKey> {
        decode_base64(self.value("Public-Key")?).map(PublicKey)
    }

    /// Returns true if it states no fingerprint, or that of `key`.
    pub fn has_right_fingerprint(&self, key: &PublicKey) -> bool {
        let own = key.fingerprint().to_string();
        self.value("Fingerprint").is_none_or(|stated| stated.eq_ignore_ascii_case(&own))
    }
}

/// Returns the value of a metadata line, if it has this key.
pub(super) fn parse_meta_line<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix(':').map(strip)
}

/// Splits a signature without its end marker from the text after it: the program that lost the marker may have added a
/// footer.
fn split_unclosed_signature(tail: &str) -> (&str, &str) {
    let end = tail
        .char_indices()
        .filter(|(_, c)| !is_space(*c))
        .nth(SIGNATURE_CHARS - 1)
        .map_or(tail.len(), |(at, c)| at + c.len_utf8());
    tail.split_at_checked(end).unwrap_or((tail, ""))
}

/// Splits the text between the markers at the first blank line; returns `None` if that is too far down. The body loses
/// the newline that wrapping put before the END marker.
fn split_metadata(inside: &str) -> Option<(Vec<&str>, &str)> {
    let mut rest = inside.trim_start_matches(is_space);
    let mut meta = Vec::new();
    while meta.len() <= MAX_META {
        let (line, tail) = rest.split_once('\n').unwrap_or((rest, ""));
        if strip(line).is_empty() {
            return Some((meta, tail.strip_suffix('\n').unwrap_or(tail)));
        }
        meta.push(line);
        rest = tail;
    }
    None
}

/// A candidate for the bytes that a signature covers.
pub(super) struct SignedTextCandidate<'a> {
    /// The signed bytes.
    pub bytes: Cow<'a, str>,
    /// The text to show for them, if it is not all of them.
    pub shown: Option<&'a str>,
}

impl SignedTextCandidate<'_> {
    /// Returns the text that the signature vouches for.
    pub fn text(&self) -> &str {
        self.shown.unwrap_or(&self.bytes)
    }
}

/// Calls `accept` with each candidate of a block, from its body and from all between its markers, until one is
/// accepted. The most probable come first: the body as it is, stripped as the reference does, with the line ends it may
/// have had. Then come those of the paper, which cover the metadata too.
pub(super) fn try_candidates<'a>(
    body: &'a str,
    inside: &'a str,
    accept: &mut dyn FnMut(&SignedTextCandidate<'a>) -> bool,
) -> bool {
    let mut plain = |bytes: Cow<'a, str>| accept(&SignedTextCandidate { bytes, shown: None });
    let mut seen: Vec<&str> = Vec::with_capacity(3);
    for text in [body, body.trim_end_matches(is_space), strip(body)] {
        if seen.contains(&text) {
            continue;
        }
        seen.push(text);
        if plain(text.into()) {
            return true;
        }
        if text.contains('\n')
            && (plain(text.replace('\n', "\r\n").into()) || plain(text.replace('\n', "\r").into()))
        {
            return true;
        }
    }
    // A CR at the end of a body became one line end with the newline of the END marker.
    if plain(format!("{}\r", body.replace('\n', "\r")).into()) {
        return true;
    }
    let open = inside.strip_prefix('\n').unwrap_or(inside);
    let core = open.strip_suffix('\n').unwrap_or(open);
    let mut paper =
        |bytes: &'a str| accept(&SignedTextCandidate { bytes: bytes.into(), shown: Some(body) });
    paper(core) || paper(open) || paper(inside) || (strip(core) != core && paper(strip(core)))
}

/// A block whose signature fits.
pub(super) struct VerifiedBlock<'a> {
    /// The block.
    pub block: SignedBlock<'a>,
    /// The key that signed.
    pub key: PublicKey,
    /// The signature.
    pub signature: [u8; 64],
    /// The bytes it covers.
    pub covered: Vec<u8>,
    /// The text it vouches for, as it was signed.
    pub text: String,
}

/// The result of the search in a text.
pub(super) enum BlockMatch<'a> {
    /// A block that its own key verifies.
    Verified(Box<VerifiedBlock<'a>>),
    /// A text that is one block, but whose signature fits nothing.
    Broken(SignedBlock<'a>),
    /// Only text.
    Nothing,
}

/// The bytes that may still be verified. A legitimate text needs its own length about a dozen times at most. A hostile
/// one gets not much more.
struct VerifyBudget(usize);

impl VerifyBudget {
    /// The cost of one verification beside hashing, in bytes hashed in the same time.
    const EACH: usize = 16 << 10;

    fn for_text(text: &str) -> Self {
        Self(text.len().saturating_mul(24) + 96 * Self::EACH)
    }

    fn spend_bytes(&mut self, bytes: usize) -> bool {
        match self.0.checked_sub(bytes + Self::EACH) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }
}

/// Finds the signed block of a text.
pub(super) fn find_signed_block(text: &str) -> BlockMatch<'_> {
    let ends: Vec<usize> = text.match_indices(END).map(|(at, _)| at).collect();
    let Some(last) = ends.last().copied() else { return BlockMatch::Nothing };
    let mut budget = VerifyBudget::for_text(text);
    for (begin, _) in text.match_indices(BEGIN).take(MAX_BEGINS) {
        let inner = begin + BEGIN.len();
        let nearer = ends.iter().copied().filter(|end| (inner..last).contains(end));
        for end in std::iter::once(last).chain(nearer).take(MAX_ENDS) {
            let block =
                SignedBlock::cut_at_markers(text, begin, end).filter(SignedBlock::is_signed);
            if let Some(found) = block.and_then(|block| verify_block(block, &mut budget)) {
                return BlockMatch::Verified(Box::new(found));
            }
        }
        let whole = |block: &SignedBlock<'_>| block.is_signed() && block.is_whole_text();
        if let Some(broken) = SignedBlock::cut_at_markers(text, begin, last).filter(whole) {
            return BlockMatch::Broken(broken);
        }
    }
    BlockMatch::Nothing
}

/// Returns the block with the text that its signature covers, if its own key verifies any.
fn verify_block<'a>(
    block: SignedBlock<'a>,
    budget: &mut VerifyBudget,
) -> Option<VerifiedBlock<'a>> {
    let key = block.key().filter(|key| verify::check_key(key).is_ok())?;
    let signature = decode_base64::<64>(block.signature)?;
    let mut found = None;
    try_candidates(block.body, block.inside, &mut |reading| {
        let bytes = reading.bytes.as_bytes();
        if !budget.spend_bytes(bytes.len()) {
            return true;
        }
        let fits = verify::verify(&key, bytes, &signature);
        if fits {
            found = Some((bytes.to_vec(), reading.text().to_owned()));
        }
        fits
    });
    let (covered, text) = found?;
    Some(VerifiedBlock { block, key, signature, covered, text })
}
