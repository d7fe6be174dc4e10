//! The link by e-mail against Dovecot and Postfix, and the link by FTP with TLS.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::authority::certify;
use crate::common::{Bed, shown, soon, wait_for};
use crate::machine::Machine;
use crate::peer;
use crate::postoffice::{PASSWORD, PostOffice};
use crate::relay::{bodies, sent};
use crate::secrets::Secrets;

const BAR: &str = "bar@far.example";
const ZED: &str = "zed@far.example";

fn config(address: &str, office: &PostOffice, more: &Value) -> Value {
    let mut email = json!({
        "smtp_server": "127.0.0.1", "smtp_port": office.smtp, "smtp_starttls": true,
        "imap_server": "127.0.0.1", "imap_port": office.imaps, "imap_ssl": true,
        "pop3_server": "127.0.0.1", "pop3_port": office.pop3s, "pop3_ssl": true,
        "username": address, "password": PASSWORD, "ca": office.ca});
    email.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"transport": "email", "log_file": "", "email": email})
}

/// S442: with STARTTLS and TLS of a private authority, a message with an attachment arrives once through a real post
/// office, by IMAP and by POP3. So do the answer and the mail of a person's mail program, and the person gets an
/// answer. Without the authority msgfs sends nothing to the servers, and the status says what to do. The password is in
/// no other file.
#[test]
fn s442_a_real_post_office_with_an_authority_of_ones_own() {
    let office = PostOffice::open(&["bar", "zed", "amy"]);
    let mut bar = Machine::new(BAR, &config(BAR, &office, &json!({})));
    let more = json!({"use_pop3": true, "smtp_ssl": true, "smtp_starttls": false, "smtp_port": office.smtps});
    let zed = Machine::new(ZED, &config(ZED, &office, &more));
    let secrets = Secrets::watch(&mut bar.bed, &[PASSWORD]);
    bar.tree.configure(&config(BAR, &office, &json!({"ca": null})));
    bar.permit(0o600);
    let (m, z) = (bar.mount(), zed.mount());
    let file = bar.file("data.bin", &(0..200_000u32).map(|n| (n * 7) as u8).collect::<Vec<_>>());
    m.ok(&format!(
        "printf 'Subject: \u{fc}ber TLS\\nAttach: {}\\n\\n.\\nhello\\n' | tee outbox/{ZED} > /dev/null",
        file.display()
    ));
    soon("it is told what to do", || {
        let status = m.cat("status.txt");
        status.contains("UnknownIssuer")
            && status.contains("name the file with its certificate by ca")
    });
    assert!(!office.log().contains("sasl_username"), "{}", office.log());
    m.umount();
    bar.tree.configure(&config(BAR, &office, &json!({})));
    bar.permit(0o600);
    let m = bar.mount();
    soon("it comes by POP3", || !z.ls("inbox").is_empty());
    let got = shown::all(&z, "inbox").remove(0);
    assert_eq!((got.must("Subject"), got.body.as_str()), ("\u{fc}ber TLS", ".\nhello\n"));
    assert!(got.must("Signature").starts_with("valid "), "{got:?}");
    assert_eq!(z.ok(&format!("cmp inbox/*.d/data.bin {}", file.display())), "");
    z.ok("name=$(ls inbox/*.txt); echo 'got it' > ${name%.txt}.reply");
    soon("the answer comes by IMAP", || !m.ls("inbox").is_empty());
    assert_eq!(shown::all(&m, "inbox")[0].body, "got it\n");
    let code = "import smtplib,ssl,sys\n\
        from email.message import EmailMessage\n\
        m=EmailMessage(); m['From']='Amy <amy@far.example>'; m['To']='bar@far.example'; m['Subject']='Lunch?'\n\
        m['Message-ID']='<one@amy>'; m.set_content('Dear Bar,\\n\\n.\\nat noon?\\n')\n\
        s=smtplib.SMTP('127.0.0.1',int(sys.argv[1])); s.starttls(context=ssl.create_default_context(cafile=sys.argv[2]))\n\
        s.login('amy@far.example',sys.argv[3]); s.send_message(m); s.quit()";
    peer::python(
        &zed.bed,
        code,
        &[&office.smtp.to_string(), office.ca.to_str().unwrap(), PASSWORD],
    );
    soon("a person's mail comes", || bodies(&m).contains_key("Dear Bar,\n\n.\nat noon?"));
    m.ok("name=$(grep -l Lunch inbox/*.txt); echo 'With pleasure.' > ${name%.txt}.reply");
    soon("the person is answered", || office.mails("amy").len() == 1);
    let mail = fs::read_to_string(&office.mails("amy")[0]).unwrap();
    assert!(mail.contains("In-Reply-To: <one@amy>"), "{mail}");
    assert_eq!((office.mails("bar").len(), office.mails("zed").len()), (2, 1), "{}", office.log());
    soon("nothing waits", || sent(&m, "warning").is_empty());
    let may = [bar.tree.root.join("config.json")];
    secrets.are_nowhere_but(&bar.bed, &m, "bar", &may);
}

/// S442: however often both mounts are killed, every message through a real post office arrives once.
#[test]
fn s442_a_real_post_office_and_kills() {
    let office = PostOffice::open(&["bar", "zed"]);
    let bar = Machine::new(BAR, &config(BAR, &office, &json!({})));
    let zed = Machine::new(ZED, &config(ZED, &office, &json!({})));
    let count = 12;
    for round in 0..3 {
        let (m, z) = (bar.mount(), zed.mount());
        let (first, last) = (round * count / 3, (round + 1) * count / 3 - 1);
        m.ok(&format!("for i in $(seq {first} {last}); do echo letter $i > outbox/{ZED}; done"));
        std::thread::sleep(Duration::from_millis(150 + 250 * round as u64));
        m.kill9();
        std::thread::sleep(Duration::from_millis(600 * round as u64));
        z.kill9();
    }
    let (_m, z) = (bar.mount(), zed.mount());
    let all: BTreeMap<_, _> = (0..count).map(|n| (format!("letter {n}"), 1)).collect();
    wait_for(Duration::from_secs(120), "all come once", || {
        bar.hurry("email");
        zed.hurry("email");
        std::thread::sleep(Duration::from_millis(500));
        bodies(&z) == all
    });
    soon("nothing waits", || bar.count("sent") == count);
    assert!(office.mails("zed").len() >= count);
    zed.hurry("email");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(bodies(&z), all);
}

/// S442: by FTP with TLS of a private authority a message with an attachment arrives once; without the authority msgfs
/// sends nothing.
#[test]
fn s442_ftp_with_tls() {
    let at = Bed::new();
    let ca = certify(&at.path(""));
    let server = peer::ftps_server(&at, &at.path("cert.pem"), &at.path("key.pem"));
    let config = |ca: Value| {
        json!({"transport": "ftp", "log_file": "", "ftp": {"host": "127.0.0.1", "port": server.port, "user": "team",
            "password": PASSWORD, "ftp_ssl": true, "ca": ca}})
    };
    let mut bar = Machine::new(BAR, &config(Value::Null));
    let zed = Machine::new(ZED, &config(json!(ca)));
    let secrets = Secrets::watch(&mut bar.bed, &[PASSWORD]);
    let (m, z) = (bar.mount(), zed.mount());
    let file = bar.file("data.bin", &vec![7; 100_000]);
    m.ok(&format!(
        "printf 'Attach: {}\\n\\nhello\\n' | tee outbox/{ZED} > /dev/null",
        file.display()
    ));
    soon("it is told what to do", || {
        m.cat("status.txt").contains("name the file with its certificate by ca")
    });
    m.umount();
    bar.tree.configure(&config(json!(ca)));
    bar.permit(0o600);
    let m = bar.mount();
    soon("it comes", || !z.ls("inbox").is_empty());
    assert_eq!(shown::all(&z, "inbox")[0].body, "hello\n");
    assert_eq!(z.ok(&format!("cmp inbox/*.d/data.bin {}", file.display())), "");
    assert!(m.cat("status.txt").contains("ftps://"));
    let may = [bar.tree.root.join("config.json")];
    secrets.are_nowhere_but(&bar.bed, &m, "bar", &may);
}
