//! Tests of reports from long logs, which are read on all cores, and of scans that read only changed logs.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::store::testing::Book;
use crate::store::{self, Kind, Store, StoreSpec};

/// The number of bytes that one thread reads alone.
const SHORT: usize = 500 << 10;

fn open(dir: &std::path::Path) -> std::sync::Arc<dyn Store> {
    let spec = StoreSpec {
        may_create: true,
        name: "samp".into(),
        kind: Kind::Samp,
        dir: dir.to_owned(),
        me: "bar".into(),
        ..StoreSpec::default()
    };
    store::open(&spec).unwrap()
}

/// Returns a log with everything that can be in one: records, some twice, lines that are none, empty ones, a long one.
fn log() -> String {
    let (mut log, mut last) = (String::from('\u{feff}'), String::new());
    for n in 0..12_000 {
        let (body, ts) = ("word ".repeat(n % 90), 1_700_000_000 + n / 3);
        let body = if n == 5_000 { body.repeat(2_000) } else { body };
        let line = match n {
            _ if n % 50 == 0 => std::mem::take(&mut last),
            _ if n % 97 == 0 => format!("{{\"ts\":{n}"),
            _ if n % 101 == 0 => "  ".to_owned(),
            _ => format!(
                r#"{{"ts":{ts},"from":"foo","to":"bar","thread":"t{}","body":"{n} {body}"}}"#,
                n % 7
            ),
        };
        let end = if n % 89 == 0 { "\r\n" } else { "\n" };
        write!(log, "{line}{end}").unwrap();
        last = line;
    }
    log
}

#[test]
fn the_order_is_that_of_the_log_on_all_cores() {
    let (at_once, piecemeal) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = log();
    assert!(log.len() > 3 << 20);
    std::fs::write(at_once.path().join("log-foo.jsonl"), &log).unwrap();
    let all = Book::scanned(&*open(at_once.path()));

    let store = open(piecemeal.path());
    let mut file = std::fs::File::create(piecemeal.path().join("log-foo.jsonl")).unwrap();
    let mut book = Book::default();
    let mut rest = log.as_str();
    while !rest.is_empty() {
        let cut = rest.get(SHORT..).and_then(|rest| rest.find('\n')).map(|end| SHORT + end + 1);
        let (piece, tail) = rest.split_at(cut.unwrap_or(rest.len()));
        file.write_all(piece.as_bytes()).unwrap();
        book.scan(&*store, true);
        rest = tail;
    }
    assert!(all.order.len() > 11_000 && all.rejected.len() > 100);
    assert!(all.order == book.order);
    assert!(format!("{:?}", all.rejected) == format!("{:?}", book.rejected));
    assert!(all.messages == book.messages);
}

#[test]
fn who_says_what_changed_has_that_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let log = |writer: &str| dir.path().join(format!("log-{writer}.jsonl"));
    let write = |writer: &str, n: u64| {
        let line = format!(
            r#"{{"ts":17000000{n:02},"from":"{writer}","to":"bar","thread":"t","body":"{n}"}}"#
        );
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log(writer));
        writeln!(file.unwrap(), "{line}").unwrap();
    };
    write("foo", 0);
    let store = open(dir.path());
    let mut book = Book::scanned(&*store);
    let mut looked = |noted: &[std::path::PathBuf]| {
        for path in noted {
            store.note_change(path);
        }
        book.scan(&*store, false);
        book.order.len()
    };
    assert_eq!(looked(&[]), 1);
    write("foo", 1);
    write("zed", 2);
    assert_eq!(looked(&[log("foo")]), 2, "the other log is not looked at");
    assert_eq!(looked(&[dir.path().join(".seen-bar")]), 2, "nor for what is no log");
    assert_eq!(looked(&[log("zed")]), 3, "a log that is new");
    write("foo", 3);
    assert_eq!(looked(&[]), 4, "who says nothing means all");
    write("foo", 4);
    write("zed", 5);
    assert_eq!(looked(&[dir.path().to_owned()]), 6, "and so does who names the folder");
    write("zed", 6);
    assert_eq!(looked(&[log("no name!")]), 7, "or what is named like a log and is none");
}
