//! Modified UTF-7, in which servers write the names of mail folders (RFC 3501, section 5.1.3).

use base64::Engine as _;
use base64::alphabet::IMAP_MUTF7;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The base64 of modified UTF-7.
const UTF7: GeneralPurpose = GeneralPurpose::new(
    &IMAP_MUTF7,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// Decodes modified UTF-7. `None` if a text is anything else.
pub fn decode_utf7(text: &str) -> Option<String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((plain, coded)) = rest.split_once('&') {
        let (coded, after) = coded.split_once('-')?;
        out.push_str(plain);
        if coded.is_empty() {
            out.push('&');
        } else {
            let bytes = UTF7.decode(coded).ok()?;
            let (units, odd) = bytes.as_chunks::<2>();
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            out.push_str(&String::from_utf16(&units).ok().filter(|_| odd.is_empty())?);
        }
        rest = after;
    }
    Some(out + rest)
}

/// Encodes a text in modified UTF-7.
pub fn encode_utf7(text: &str) -> String {
    let (mut out, mut coded) = (String::new(), Vec::new());
    for c in text.chars().map(Some).chain([None]) {
        if let Some(c) = c.filter(|c| !matches!(c, ' '..='~')) {
            coded.extend(c.encode_utf16(&mut [0; 2]).iter().flat_map(|unit| unit.to_be_bytes()));
            continue;
        }
        if !coded.is_empty() {
            out.extend(["&", &UTF7.encode(std::mem::take(&mut coded)), "-"]);
        }
        match c {
            Some('&') => out.push_str("&-"),
            Some(c) => out.push(c),
            None => {}
        }
    }
    out
}
