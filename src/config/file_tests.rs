use super::*;
use crate::link::{LinkConfig, LinkSettings, MailSettings, NatsSettings, NoSettings};
use crate::store::{Kind, StoreSpec};
use proptest::prelude::*;
use std::fs;

fn env() -> Env {
    Env::new("/cwd", [("HOME", "/home/u"), ("SYNC", "/sync")])
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/msgfs/c.toml"), &env()).map_err(|e| e.to_string())
}

/// Returns the only problem of this text, without the file.
fn trouble(text: &str) -> String {
    let error = parse(text).expect_err(text);
    assert!(!error.contains('\n'), "{error}");
    error.strip_prefix("/etc/msgfs/c.toml:").expect("names the file").to_owned()
}

#[test]
fn groups_are_lists_of_addresses() {
    for (text, line, words) in [
        ("groups = 3", 1, "[groups]"),
        ("[groups]\nteam = \"bob\"", 2, "must be a list of addresses"),
        ("[groups]\nteam = []", 2, "must be a list of addresses"),
        ("[groups]\n\"my team\" = [\"bob\"]", 2, "my team"),
        ("[groups]\na = [\"bob\"]\nb = [\"a\", \"dan\"]", 3, "write its members here"),
    ] {
        let trouble = trouble(text);
        assert!(trouble.starts_with(&format!("{line}: ")) && trouble.contains(words), "{trouble}");
    }
    let several = parse("[groups]\nteam = [1, \"\"]").unwrap_err();
    assert!(
        several.contains("not a value of type integer") && several.contains("empty"),
        "{several}"
    );
    assert!(trouble("[group]\nteam = [\"bob\"]").contains("did you mean \"groups\"?"));
}

#[test]
fn every_key_is_optional() {
    let config = parse("").unwrap();
    let path = Some("/etc/msgfs/c.toml".into());
    assert_eq!(config, Config { path, ..Config::default() });
    assert_eq!(config.wait_timeout, Duration::from_secs(60));
    assert_eq!(config.max_message, 16 * 1024 * 1024);
    assert_eq!(config.durability, Durability::Fsync);
}

#[test]
fn every_key_is_read() {
    let config = parse(
        r#"
me = "foo"
mark_read = "on-remove"
scope = "all"
unsigned = "known"
durability = "none"
wait_timeout = "5m"
unknown_recipient = "refuse"
max_message = "1MiB"
watch = "poll"

[groups]
team = ["bob", "carol@localhost"]
all = ["bob"]

[[store]]
name = "work"
kind = "samp"
dir = "~/sync/agent-message"
me = "foo2"

[[store]]
kind = "samp"
dir = "$SYNC/m"
"#,
    )
    .unwrap();
    assert_eq!(config.me.as_deref(), Some("foo"));
    assert_eq!(config.mark_read, MarkRead::OnRemove);
    assert_eq!(config.scope, Scope::All);
    let team = ["bob", "carol@localhost"].map(str::to_owned).to_vec();
    let groups = [("all".to_owned(), vec!["bob".to_owned()]), ("team".to_owned(), team)];
    assert_eq!(config.groups, groups.into());
    assert_eq!(config.unsigned, Unsigned::Known);
    assert_eq!(config.durability, Durability::None);
    assert_eq!(config.wait_timeout, Duration::from_secs(300));
    assert_eq!(config.unknown_recipient, UnknownRecipient::Refuse);
    assert_eq!(config.max_message, 1 << 20);
    assert_eq!(config.watch, Watch::Poll);
    let spec = |name: &str, dir: &str, as_me: Option<&str>| StoreSpec {
        name: name.into(),
        kind: Kind::Samp,
        dir: dir.into(),
        me: "foo".into(),
        own_address: as_me.map(Into::into),
        home: Some("/home/u".into()),
        durability: Durability::None,
        ..StoreSpec::default()
    };
    assert_eq!(
        config.stores(&env(), "foo").unwrap(),
        [spec("work", "/home/u/sync/agent-message", Some("foo2")), spec("samp", "/sync/m", None)]
    );
    assert_eq!(parse("max_message = 0x400").unwrap().max_message, 1024);
}

#[test]
fn without_stores_there_is_samp_at_its_default_place() {
    let stores = Config::default().stores(&env(), "foo").unwrap();
    assert_eq!(
        stores,
        [StoreSpec {
            may_create: true,
            name: "samp".into(),
            kind: Kind::Samp,
            dir: "/home/u/.local/state/agent-message".into(),
            me: "foo".into(),
            home: Some("/home/u".into()),
            ..StoreSpec::default()
        }]
    );
    let config = parse("[[store]]\nkind = \"samp\"\nname = \"x\"").unwrap();
    assert_eq!(config.stores(&env(), "foo").unwrap()[0].dir, stores[0].dir);
    assert!(config.stores(&Env::default(), "foo").is_err());
}

#[test]
fn stores_of_every_kind_are_configured() {
    let config = parse(
        r#"
[[store]]
kind = "agentazall"
dir = "~/agents/bob"
me = "bob.agenttalk"

[[store]]
name = "team"
kind = "amp"
dir = "/srv/amp"
me = "bob@acme.crabmail.ai"

[[store]]
kind = "amp"
"#,
    )
    .unwrap();
    let stores = config.stores(&env(), "foo").unwrap();
    let shown: Vec<_> = stores
        .iter()
        .map(|s| (s.name.as_str(), s.kind, s.dir.to_str().unwrap(), s.own_address.as_deref()))
        .collect();
    assert_eq!(
        shown,
        [
            ("agentazall", Kind::AgentAzall, "/home/u/agents/bob", Some("bob.agenttalk")),
            ("team", Kind::Amp, "/srv/amp", Some("bob@acme.crabmail.ai")),
            ("amp", Kind::Amp, "/home/u/.agent-messaging", None),
        ]
    );
    assert!(stores.iter().all(|s| s.me == "foo" && s.home.as_deref() == Some("/home/u".as_ref())));
}

#[test]
fn the_agent_of_the_environment_counts_where_the_file_names_none() {
    let env = Env::new(
        "/cwd",
        [("HOME", "/h"), ("AGENTAZALL_CONFIG", "/a/c.json"), ("AGENTAZALL_AGENT", "carol@x")],
    );
    let agent = |text: &str| {
        let config = Config::parse(text, Path::new("/c.toml"), &env).unwrap();
        let mut stores = config.stores(&env, "foo").unwrap();
        let spec = stores.remove(0);
        (spec.dir.to_str().unwrap().to_owned(), spec.own_address)
    };
    let entry = "[[store]]\nkind = \"agentazall\"\n";
    assert_eq!(agent(entry), ("/a/c.json".to_owned(), Some("carol@x".to_owned())));
    assert_eq!(agent(&format!("{entry}me = \"dave\"")).1.as_deref(), Some("dave"));
    assert_eq!(agent("[[store]]\nkind = \"amp\"").1, None);
    assert_eq!(agent("").1, None, "SAMP does not know the variable");
}

#[test]
fn a_store_without_a_place_says_what_to_set() {
    let config = parse("[[store]]\nkind = \"agentazall\"\nname = \"work\"").unwrap();
    let text = config.stores(&env(), "foo").unwrap_err().to_string();
    for word in ["\"work\"", "dir = ", "$AGENTAZALL_CONFIG", "$AGENTAZALL_ROOT"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn stores_at_their_default_places_are_found_unless_stores_are_configured() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    fs::create_dir_all(dir.path().join(".agent-messaging/agents")).unwrap();
    fs::write(dir.path().join("c.json"), "{}").unwrap();
    let file = dir.path().join("c.json");
    let env = Env::new("/", [("HOME", home), ("AGENTAZALL_CONFIG", file.to_str().unwrap())]);
    let found = Config::default().find_default_stores(&env, "foo");
    let shown: Vec<_> = found.iter().map(|s| (s.name.as_str(), s.dir.as_path())).collect();
    let amp = dir.path().join(".agent-messaging");
    assert_eq!(shown, [("agentazall", file.as_path()), ("amp", amp.as_path())]);
    assert_eq!(Config::default().stores(&env, "foo").unwrap().len(), 1);
    let text = "[[store]]\nkind = \"samp\"";
    let config = Config::parse(text, Path::new("/c.toml"), &env).unwrap();
    assert_eq!(config.find_default_stores(&env, "foo"), []);
    assert_eq!(Config::default().find_default_stores(&self::env(), "foo"), []);
}

#[test]
fn relative_folders_start_at_the_file() {
    let config = parse("[[store]]\nkind = \"samp\"\ndir = \"mail\"").unwrap();
    assert_eq!(config.stores(&env(), "f").unwrap()[0].dir, Path::new("/etc/msgfs/mail"));
}

#[test]
fn unknown_words_come_with_the_nearest() {
    assert_eq!(
        trouble("me = \"a\"\nmark_raed = \"on-read\""),
        "2: unknown key \"mark_raed\"; did you mean \"mark_read\"?"
    );
    assert_eq!(
        trouble("mark_read = \"onread\""),
        "1: mark_read = \"onread\": must be one of \"on-read\", \"on-remove\"; did you mean \"on-read\"?"
    );
    assert_eq!(
        trouble("[[link]]\nkind = \"smtp\""),
        "2: kind = \"smtp\": must be one of \"nats\", \"amp\", \"agenttalk\", \"mail\", \"ftp\"; did you mean \"mail\"?"
    );
    assert_eq!(
        trouble("\n\n[[store]]\nkind = \"smap\""),
        "4: kind = \"smap\": must be one of \"samp\", \"agentazall\", \"amp\", \"atsf\", \"ssot\", \"amq\", \"maildir\", \"claude\", \"codex\"; did you mean \"samp\"?"
    );
    assert_eq!(
        trouble("[[store]]\nkind = \"samp\"\ndri = \"/x\""),
        "3: unknown key \"dri\"; did you mean \"dir\"?"
    );
    assert!(trouble("zzzzzzzz = 1").contains("known are \"me\", "));
    assert!(trouble("foo = 1").contains("known are"), "`off` is a key of links only");
    assert!(trouble("[[stores]]\nkind = \"samp\"").contains("did you mean \"store\"?"));
}

/// S94: the errors about a Maildir name its keys as a person writes them.
#[test]
fn wrong_keys_and_values_of_a_maildir() {
    let trouble = |line: &str| trouble(&format!("[[store]]\nkind = \"maildir\"\n{line}"));
    for (line, text) in [
        ("sendmial = \"/x\"", "3: unknown key \"sendmial\"; did you mean \"sendmail\"?"),
        ("folder = [\"Work\"]", "3: unknown key \"folder\"; did you mean \"folders\"?"),
        ("mark = \"off\"", "3: unknown key \"mark\"; did you mean \"marks\"?"),
        (
            "zzzzzzzz = 1",
            "3: unknown key \"zzzzzzzz\"; known are \"name\", \"kind\", \"dir\", \"me\", \"links\", \
             \"folders\", \"sent\", \"sendmail\", \"local\", \"marks\"",
        ),
        (
            "marks = \"of\"",
            "3: marks = \"of\": must be one of \"on\", \"off\"; did you mean \"on\"?",
        ),
        (
            "folders = \"Work\"",
            "3: folders must be a list of folders, as in [\"Work\", \"lists/rust\"], not a value of type \
             string",
        ),
    ] {
        assert_eq!(trouble(line), text);
    }
}

#[test]
fn keys_in_the_wrong_place_are_told_where_they_belong() {
    assert!(trouble("kind = \"samp\"").contains("is a key of [[store]]"));
    assert!(trouble("[[store]]\nkind = \"samp\"\nunsigned = \"refuse\"").contains(
        "3: unknown key \"unsigned\"; \"unsigned\" belongs above the first line in brackets"
    ));
}

#[test]
fn bad_values_are_named_with_their_line() {
    for (text, line, part) in [
        ("me = \"a b\"", 1, "me = \"a b\": a name has"),
        ("\nme = 5", 2, "me must be a text in quotes, not a value of type integer"),
        ("scope = true", 1, "not a value of type boolean"),
        ("wait_timeout = 60", 1, "must be a text"),
        ("wait_timeout = \"60\"", 1, "units ms, s, m, h, as in 60s"),
        ("wait_timeout = \"soon\"", 1, "a whole number, as in 60s"),
        ("wait_timeout = \"1.5h\"", 1, "must be whole, as in 60s"),
        ("max_message = \"100GiB\"", 1, "\"GiB\" is none of the units B, kB, MB, KiB, MiB"),
        ("max_message = \"lots\"", 1, "as in 16MiB"),
        ("unsigned = foo", 1, "a text needs quotes"),
        ("unsigned = True", 1, "in small letters"),
        ("max_message = \"16 Mib\"", 1, "units"),
        ("max_message = -1", 1, "from 1B to 512MiB"),
        ("max_message = 0", 1, "from 1B to 512MiB"),
        ("store = 1", 1, "[[store]], with two brackets"),
        ("[store]\nkind = \"samp\"", 1, "two brackets"),
        ("store = [1]", 1, "[[store]]"),
        ("\n[[store]]\nname = \"x\"", 2, "needs kind"),
        ("[[store]]\nkind = \"samp\"\ndir = \"$NOPE/x\"", 3, "$NOPE is not set"),
        ("[[store]]\nkind = \"samp\"\ndir = \"~bob\"", 3, "in full"),
        ("[[store]]\nkind = \"samp\"\ndir = \"\"", 3, "empty"),
        ("[[store]]\nkind = \"samp\"\ndir = \"a\\u0000b\"", 3, "NUL"),
        ("[[store]]\nkind = \"samp\"\nme = \"\"", 3, "a name has"),
        ("[[store]]\nkind = \"amp\"\nme = \" \"", 3, "me = \" \": an address cannot be empty"),
        ("[[store]]\nkind = \"agentazall\"\nme = \"a\\nb\"", 3, "control"),
        ("[[store]]\nkind = \"amp\"\nme = 5", 3, "text in quotes"),
        ("[[store]]\nkind = \"samp\"\nname = \"a/b\"", 3, "slash"),
        ("[[store]]\nkind = \"samp\"\nname = \"\"", 3, "empty"),
        ("[[store]]\nkind = \"samp\"\nname = \".a\"", 3, "dot"),
        ("[[store]]\nkind = \"samp\"\nname = \"a\\nb\"", 3, "control"),
        ("me = \"a\"\nscope = ", 2, ""),
        ("me = \"a\"\nme = \"b\"", 2, "duplicate key"),
        ("[[store]]\nkind = \"samp\"\n\n[[store]]\nkind = \"samp\"", 4, "named \"samp\" (line 1)"),
        (
            "[[store]]\nname = \"w\"\nkind = \"samp\"\n[[store]]\nkind = \"samp\"\nname = \"w\"",
            6,
            "named \"w\" (line 2)",
        ),
    ] {
        let told = trouble(text);
        assert!(told.starts_with(&format!("{line}: ")) && told.contains(part), "{text}: {told}");
    }
}

#[test]
fn everything_wrong_is_told_at_once_and_in_order() {
    let error = parse("watch = \"x\"\nscope = 1\nfoo_bar = 2\nme = \"/\"").unwrap_err();
    let lines: Vec<_> =
        error.lines().map(|l| l.split(':').nth(1).unwrap().parse::<u32>().unwrap()).collect();
    assert_eq!(lines, [1, 2, 3, 4], "{error}");
}

#[test]
fn the_default_file_may_be_missing_and_a_named_one_may_not() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::new(dir.path(), [("XDG_CONFIG_HOME", dir.path())]);
    assert_eq!(Config::load(None, &env).unwrap(), Config::default());
    assert_eq!(Config::load(None, &Env::default()).unwrap(), Config::default());
    let error = Config::load(Some(Path::new("mine.toml")), &env).unwrap_err();
    assert!(matches!(error, ConfigError::Missing { .. }), "{error}");

    fs::create_dir(dir.path().join("msgfs")).unwrap();
    let file = dir.path().join("msgfs/config.toml");
    fs::write(&file, "me = \"one\"").unwrap();
    let config = Config::load(None, &env).unwrap();
    assert_eq!((config.me.as_deref(), config.path.as_ref()), (Some("one"), Some(&file)));

    fs::write(dir.path().join("mine.toml"), "me = \"two\"").unwrap();
    let config = Config::load(Some(Path::new("mine.toml")), &env).unwrap();
    assert_eq!(config.me.as_deref(), Some("two"));
    assert_eq!(config.path, Some(dir.path().join("mine.toml")));

    fs::write(&file, b"me = \"a\"\n# \xff\n").unwrap();
    let error = Config::load(None, &env).unwrap_err().to_string();
    assert!(error.ends_with("config.toml:2: this line is not UTF-8"), "{error}");
    let error = Config::load(Some(dir.path()), &env).unwrap_err();
    assert!(matches!(error, ConfigError::Io { .. }), "{error}");
    let endless = Config::load(Some(Path::new("/dev/zero")), &env).unwrap_err();
    assert!(endless.to_string().contains("1 MiB"), "{endless}");
}

/// Generates lines that are nearly a configuration.
fn nearly() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "me",
        "mark_read",
        "scope",
        "wait_timeout",
        "max_message",
        "store",
        "kind",
        "dir",
        "name",
        "[[store]]",
        "[store]",
        "[x]",
        "é",
        "\"a.b\"",
    ]);
    let value = prop::sample::select(vec![
        "\"samp\"",
        "\"on-read\"",
        "\"$X~\"",
        "1",
        "-9e9",
        "[]",
        "[[1]]",
        "{a = 1}",
        "true",
        "1979-05-27",
        "\"\\u0000\"",
        "'''",
        "\"é\n",
        "99999999999999999999",
        "nan",
    ]);
    let line = prop_oneof![
        (key.clone(), value).prop_map(|(k, v)| format!("{k} = {v}")),
        key.prop_map(str::to_owned),
    ];
    proptest::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in prop_oneof![any::<String>(), nearly()]) {
        match Config::parse(&text, Path::new("c"), &env()) {
            Ok(config) => prop_assert!(config.stores(&env(), "me").is_ok()),
            Err(ConfigError::Invalid { problems, .. }) => {
                let lines = text.bytes().filter(|b| *b == b'\n').count() + 1;
                prop_assert!(!problems.is_empty());
                for problem in problems {
                    prop_assert!((1..=lines).contains(&problem.line));
                    prop_assert!(!problem.text.chars().any(char::is_control));
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn links_say_what_they_cannot_be() {
    let link = |text: &str| format!("[[link]]\n{text}");
    for (text, words) in [
        ("kind = \"nats\"\nurl = \"ws://h:80\"", "cannot be a WebSocket"),
        ("kind = \"nats\"\nurl = [\"nats://h:4222\", \"wss://h\"]", "nats://HOST:4222"),
        ("kind = \"nats\"\nurl = \"h:4222\"", "must be of the form nats://"),
        ("kind = \"nats\"", "needs url"),
        ("kind = \"mail\"\nurl = \"nats://h:4222\"", "from the store's own files"),
    ] {
        let trouble = trouble(&link(text));
        assert!(trouble.contains(words), "{text}: {trouble}");
    }
    for kind in ["nats", "amp", "agenttalk", "mail", "ftp"] {
        let url = if kind == "nats" { "url = \"tls://h:4222\"\n" } else { "" };
        let config = parse(&link(&format!("kind = \"{kind}\"\n{url}ca = \"team.pem\""))).unwrap();
        assert_eq!(config.links[0].ca.as_deref(), Some(Path::new("/etc/msgfs/team.pem")), "{kind}");
    }
}

/// S566: only a link of kind `mail` gets copies.
#[test]
fn s566_self_copy_is_a_key_of_mail() {
    let link = |kind: &str| format!("[[link]]\nkind = \"{kind}\"\nself_copy = true");
    for (text, self_copy) in [(link("mail"), true), ("[[link]]\nkind = \"mail\"".into(), false)] {
        let settings = &parse(&text).unwrap().links[0].settings;
        assert_eq!(*settings, LinkSettings::Mail(MailSettings { self_copy }));
    }
    for kind in ["ftp", "agenttalk", "amp"] {
        let trouble = trouble(&link(kind));
        assert!(trouble.contains("\"self_copy\" is a key of links of kind \"mail\""), "{trouble}");
    }
}

#[test]
fn every_key_of_a_link_is_read() {
    let config = parse(
        r#"
[[link]]
kind = "nats"
name = "fleet"
store = "logs"
url = ["nats://a:4222", "tls://b:4222"]
space = "ops"
creds = "team.creds"
user = "host1"
password_file = "~/password"
ca = "$SYNC/ca.pem"
api = "JS.team"
inbox = "_INBOX_host1"
marks = false
insecure = true

[[link]]
kind = "ftp"
off = true
"#,
    )
    .unwrap();
    let settings = NatsSettings {
        url: vec!["nats://a:4222".into(), "tls://b:4222".into()],
        space: "ops".into(),
        creds: Some("/etc/msgfs/team.creds".into()),
        user: Some("host1".into()),
        password_file: Some("/home/u/password".into()),
        api: "JS.team".into(),
        inbox: Some("_INBOX_host1".into()),
        marks: false,
    };
    let nats = LinkConfig {
        name: "fleet".into(),
        store: "logs".into(),
        ca: Some("/sync/ca.pem".into()),
        insecure: true,
        off: false,
        settings: LinkSettings::Nats(settings),
    };
    let ftp = LinkConfig {
        name: "ftp".into(),
        store: "agentazall".into(),
        ca: None,
        insecure: false,
        off: true,
        settings: LinkSettings::Ftp(NoSettings {}),
    };
    assert_eq!(config.links, [nats, ftp]);
}

#[test]
fn wrong_values_are_told_wherever_they_are() {
    let nats = "[[link]]\nkind = \"nats\"\nurl = \"nats://h:4222\"\n";
    for (text, told) in [
        ("[trust]\nroles = 1", "2: roles must be a text in quotes, not a value of type integer"),
        (
            "[trust]\nroles = \"pim\"",
            "2: roles = \"pim\": must be one of \"verify\", \"pin\"; did you mean \"pin\"?",
        ),
        (
            "[trust]\nme = \"x\"",
            "2: unknown key \"me\"; \"me\" belongs above the first line in brackets",
        ),
        ("trust = 1", "1: trust is written as [trust] with its keys below"),
        ("trust = [\"pin\"]", "1: trust is written as [trust] with its keys below"),
        (
            "link = [[\"a\", \"b\"]]",
            "1: a link is written as [[link]], with two brackets, and its keys below",
        ),
        ("me.x = 1", "1: me must be a text in quotes, not a value of type table"),
        ("me = 1979-05-27", "1: me must be a text in quotes, not a value of type datetime"),
        (
            "[groups.team]\na = 1",
            "1: team must be a list of addresses, as in [\"bob\", \"carol\"], not a value of type table",
        ),
        ("[groups]\nteam = [[]]", "2: team must be a text in quotes, not a value of type array"),
        ("[[store]]\nkind = 1", "2: kind must be a text in quotes, not a value of type integer"),
        (
            "[[store]]\nkind = \"samp\"\nlinks = \"yes\"",
            "3: links must be true or false, not a value of type string",
        ),
        (
            "[[store]]\nkind = \"samp\"\ndir = []",
            "3: dir must be a text in quotes, not a value of type array",
        ),
        (
            "[[store]]\nkind = \"amq\"\ndir = \"x\"",
            "3: dir = \"x\": dir of an amq store must be an absolute path, or begin with ~/ or a variable",
        ),
        ("max_message = []", "1: max_message must be a text in quotes, not a value of type array"),
        ("wait_timeout = \"25h\"", "1: wait_timeout = \"25h\": it must be at most 24h"),
        (
            &format!("{nats}marks = 1"),
            "4: marks must be true or false, not a value of type integer",
        ),
        (&format!("{nats}user = \"a b\""), "4: user = \"a b\": must be a word without blanks"),
        (&format!("{nats}creds = \"$NO\""), "4: creds = \"$NO\": $NO is not set"),
        (
            &format!("{nats}me = \"x\""),
            "4: unknown key \"me\"; \"me\" belongs above the first line in brackets",
        ),
        (
            &format!("{nats}self_copy = true"),
            "4: unknown key \"self_copy\"; \"self_copy\" is a key of links of kind \"mail\"",
        ),
        (
            &format!("{nats}[[link]]\nkind = \"ftp\"\nname = \"nats\""),
            "6: there is already a link named \"nats\" (line 1); give this one another name = \"…\"",
        ),
        (
            "[[link]]\nkind = \"nats\"\nurl = 5",
            "3: url = 5: must be a text in quotes, or a list of them",
        ),
        (&format!("{nats}spcae = \"x\""), "4: unknown key \"spcae\"; did you mean \"space\"?"),
        (
            "[[link]]\nkind = \"nats\"\nurl = []",
            "1: a link of kind \"nats\" needs url = \"nats://HOST:4222\"",
        ),
        (
            "[[link]]\nurl = \"nats://h:4222\"",
            "1: this [[link]] needs kind = \"…\", one of \"nats\", \"amp\", \"agenttalk\", \"mail\", \"ftp\"",
        ),
        (
            "[[link]]\nkind = \"nast\"\nspace = \"x\"",
            "2: kind = \"nast\": must be one of \"nats\", \"amp\", \"agenttalk\", \"mail\", \"ftp\"; did you mean \"nats\"?",
        ),
    ] {
        assert_eq!(trouble(text), told, "{text}");
    }
}

/// S441: no problem shows a password, however its address is misspelled.
#[test]
fn s441_no_problem_shows_the_login_of_an_address() {
    for url in [
        r#""joe:hunter2secret@127.0.0.1:4222""#,
        r#""joe:hunter2secret""#,
        r#""nats:joe:hunter2secret@h""#,
        r"'nats:/joe:hunter2secret@h:1'",
        r#""nats:/joe:hunter2secret\u0040h""#,
        r#"["nats://h:4222", "joe:hunter2secret@h"]"#,
        r#"[["nats://joe:hunter2secret@h"]]"#,
        r#"{ a = "joe:hunter2secret@h" }"#,
        r#""wss://joe:hunter2secret@h""#,
        r#""wss://joe:hunter2secret\u0040h""#,
        r#""nats:/joe:hunter2secret@h"#,
        "joe:hunter2secret@h",
    ] {
        let told = trouble(&format!("[[link]]\nkind = \"nats\"\nurl = {url}"));
        assert!(told.starts_with("3: "), "{told}");
        assert!(!told.contains("hunter2secret") && !told.contains("joe"), "{told}");
    }
    let told = trouble("[[link]]\nkind = \"nats\"\nurl = \"wss://u:pw@h\"");
    assert!(told.starts_with("3: url = \"wss://h\": must be of the form"), "{told}");
}

/// A file that is nothing but problems is reported in a moment.
#[test]
fn problems_without_end_are_told_in_part() {
    let groups: Vec<String> = (0..20_000).map(|n| format!("g{n} = 1")).collect();
    let told = parse(&format!("[groups]\n{}", groups.join("\n"))).unwrap_err();
    assert!(told.lines().count() < 200, "{}", told.lines().count());
}
