//! Tests of what a fetch by FTP writes and remembers.

use std::time::Duration;

use super::super::client::FtpLogin;
use super::*;
use crate::link::connection::ConnectionTimeouts;
use crate::link::connection::tests::server;

/// Returns a session with a server that answers to nothing but the login.
fn client() -> FtpClient {
    let host = server(|mut stream| {
        let _ = io::Write::write_all(&mut stream, b"220 a\r\n230 b\r\n200 c\r\n");
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    let short = Duration::from_secs(2);
    let patience = ConnectionTimeouts { silence: short, line: short, whole: short };
    FtpClient::open(&host, &FtpLogin { user: "u", password: "p", tls: None }, patience).unwrap()
}

/// A file that could not be written here is neither taken nor told.
#[test]
fn what_could_not_be_saved_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let (known, gone) = (HashSet::new(), dir.path().join("gone"));
    let broken = BrokenFetches::read(&gone);
    let mut fetch = FtpFetch::new(client(), broken, &gone, &known, "bob");
    let place = FtpInboxFile::new("bob", "2026-03-11", "a.txt").unwrap();
    let mut saw = FtpFileHistory::default();
    for _ in 0..2 {
        let large = fetch.report_large_file(&place, &mut saw);
        assert!(matches!(large, Err(FtpError::Unsaved(_))), "{large:?}");
        let half = fetch.report_torn_file(&place, &mut saw, b"", "");
        assert!(matches!(half, Err(FtpError::Unsaved(_))), "{half:?}");
        assert!(saw.taken.is_none() && !saw.told);
    }
    fs::make_dirs(&gone, 0o700).unwrap();
    fetch.report_large_file(&place, &mut saw).unwrap();
    fetch.report_torn_file(&place, &mut saw, b"", "").unwrap();
    assert!(saw.taken.is_some() && saw.told);
}

#[test]
fn a_text_that_changed_says_so() {
    let old = b"From: a\n---\nhal";
    let new = b"From: a\n---\nhalf and whole";
    let taken = |sha: &[u8]| FtpDelivery {
        sha: encode_hex(&Sha256::digest(sha)),
        length: 15,
        ..FtpDelivery::default()
    };
    let text = String::from_utf8(add_change_notice(new, &taken(old))).unwrap();
    assert_eq!(
        text,
        "From: a\n---\n[This is the whole of a text of which the server had only the \
         beginning.]\n\nhalf and whole"
    );
    let text = String::from_utf8(add_change_notice(new, &taken(b"other"))).unwrap();
    assert!(text.contains("changed on the server"), "{text}");
    for old in [taken(old), taken(b"other")] {
        let longest = MAX_TEXT + (add_change_notice(new, &old).len() - new.len()) as u64;
        assert!(longest <= fetch_folder::MAX_FILE && longest <= fs::MAX_RECORD as u64);
    }
}
