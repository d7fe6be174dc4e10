//! Mail programs of others read message files as mail.

use crate::common::{Bed, samp};

const T0: i64 = 1_777_052_523;

/// S19: mblaze and Python's mail parser find header and body where they belong.
#[test]
fn s19_mail_programs_read_messages() {
    let bed = Bed::new();
    let rec =
        samp::append(&bed.store, "foo", "bar", "a thread", "first line\n\nFrom: nobody\n", T0);
    let m = bed.mount("bar");
    let file = format!("archive/{}/{}", rec.day(), rec.name(0));
    assert_eq!(m.ok(&format!("mhdr -h from {file}")).trim(), "foo");
    assert_eq!(m.ok(&format!("mhdr -h thread {file}")).trim(), "a thread");
    assert_eq!(m.ok(&format!("mhdr -D -h date {file}")).trim(), T0.to_string());
    let shown = m.ok(&format!("mshow -n -h from:to {file}"));
    assert!(shown.contains("first line\n\nFrom: nobody"), "{shown}");
    let body = m.py(
        "import email.parser, email.policy, sys\n\
         m = email.parser.BytesParser(policy=email.policy.default).parse(open(sys.argv[1], 'rb'))\n\
         assert not m.defects, m.defects\n\
         print(m['from'], m['to'], m['message-id'], len(m.get_content().splitlines()))",
        &[&file],
    );
    assert_eq!(body.trim(), format!("foo bar <{}@samp> 3", rec.id));
}

/// S20: text that is not ASCII is declared, so that mail programs show it.
#[test]
fn s20_mail_programs_read_unicode() {
    let bed = Bed::new();
    let rec = samp::append(&bed.store, "foo", "bar", "t", "Gr\u{fc}\u{df}e \u{1faa8}", T0);
    let m = bed.mount("bar");
    let file = format!("archive/{}/{}", rec.day(), rec.name(0));
    let shown = m.ok(&format!("LC_ALL=C.UTF-8 mshow -n {file}"));
    assert!(shown.contains("Gr\u{fc}\u{df}e \u{1faa8}"), "{shown}");
}
