//! My own agent and the other agents.

use super::*;

fn refused(spec: &StoreSpec) -> String {
    AmpStore::open(spec).unwrap_err().to_string()
}

#[test]
fn me_is_found_by_config_name_then_index_then_folder() {
    let host = Host::new(&[]);
    host.add("2f6d", "Alice", "alice@acme.aimaestro.local");
    host.add("77aa", "bob", "bob@acme.aimaestro.local");
    std::fs::write(host.agents().join(".index.json"), r#"{"ally": "2f6d"}"#).unwrap();
    for (name, dir) in [("ALICE", "2f6d"), ("Ally", "2f6d"), ("77AA", "77aa"), ("bob", "77aa")] {
        assert!(host.open(name).dir().ends_with(dir), "{name}");
    }
    assert_eq!(host.open("alice").me(), "alice@acme.aimaestro.local");
    let mut spec = host.spec("carol");
    assert!(refused(&spec).contains("there is alice, bob"), "{}", refused(&spec));
    spec.own_address = Some("Bob@acme.aimaestro.local".into());
    assert!(AmpStore::open(&spec).unwrap().dir().ends_with("77aa"));
}

#[test]
fn two_that_fit_are_refused_by_name() {
    let host = Host::new(&[]);
    host.add("a1", "bob", "bob@acme.aimaestro.local");
    host.add("a2", "Bob", "bob@globex.aimaestro.local");
    let text = refused(&host.spec("bob"));
    assert!(text.contains("bob@acme") && text.contains("bob@globex"), "{text}");
    let mut spec = host.spec("x");
    spec.own_address = Some("bob@globex.aimaestro.local".into());
    assert!(AmpStore::open(&spec).unwrap().dir().ends_with("a2"));
}

#[test]
fn a_symlinked_name_is_no_second_agent_and_skeletons_are_none() {
    let host = Host::new(&[]);
    host.add("2f6d", "alice", "alice@acme.aimaestro.local");
    std::os::unix::fs::symlink("2f6d", host.agents().join("alice")).unwrap();
    std::fs::create_dir_all(host.agents().join("bob/messages/inbox")).unwrap();
    assert!(host.open("alice").dir().ends_with("2f6d"));
    assert!(refused(&host.spec("bob")).contains("no agent here is called"));
}

#[test]
fn an_agents_own_folder_is_me_whatever_the_name() {
    let host = Host::new(&["alice", "bob"]);
    let mut spec = host.spec("somebody");
    spec.dir = host.agents().join("alice");
    let store = AmpStore::open(&spec).unwrap();
    assert_eq!(store.me(), address("alice"));
    assert!(store.is_registered("bob"));
    spec.dir = host.dir.path().join("missing");
    assert!(AmpStore::open(&spec).is_err());
    spec.dir = host.agents().join("alice/keys");
    assert!(refused(&spec).contains("neither a folder `agents` nor a `config.json`"));
}

#[test]
fn recipients_of_a_lone_folder_are_those_of_home() {
    let host = Host::new(&["bob"]);
    let other = Host::new(&["alice"]);
    let lone = host.dir.path().join("my-own");
    std::fs::rename(other.agents().join("alice"), &lone).unwrap();
    let home = host.dir.path().join(".agent-messaging");
    std::fs::create_dir(&home).unwrap();
    std::fs::rename(host.agents(), home.join("agents")).unwrap();
    let spec = StoreSpec { dir: lone, ..host.spec("x") };
    let store = AmpStore::open(&spec).unwrap();
    assert!(store.is_registered("bob@acme.aimaestro.local") && store.is_registered("bob"));
    assert!(!store.is_registered("carol"));
}

#[test]
fn addresses_are_compared_whole_and_names_only_where_they_select() {
    let host = Host::new(&["bob"]);
    let store = host.open("bob");
    for known in ["bob", "BOB", "bob@local", "bob@default.local", "Bob@ACME.aimaestro.local"] {
        assert!(store.is_registered(known), "{known}");
        assert_eq!(store.canonical_address(known), address("bob"), "{known}");
    }
    for unknown in ["bob@globex.aimaestro.local", "bob@acme.evil.com", "bob@x.acme.aimaestro.local"]
    {
        assert!(!store.is_registered(unknown), "{unknown}");
        assert_eq!(store.canonical_address(unknown), unknown);
    }
    assert_eq!(store.canonical_address("carol"), "carol@acme.aimaestro.local");
}

#[test]
fn fits() {
    let host = Host::new(&["bob"]);
    let dir = host.agents().join("bob/registrations");
    std::fs::create_dir(&dir).unwrap();
    let registered = r#"{"address": "bob@registered.crabmail.ai"}"#;
    std::fs::write(dir.join("crabmail.ai.json"), registered).unwrap();
    let store = host.open("bob");
    for (text, fit) in [
        ("bob", AddressFit::Plain),
        ("carol-2_x", AddressFit::Plain),
        ("bob@acme.aimaestro.local", AddressFit::Exact),
        ("bob@acme.crabmail.ai", AddressFit::Plain),
        ("bob@repo.acme.crabmail.ai", AddressFit::Plain),
        ("Bob@registered.crabmail.ai", AddressFit::Exact),
        ("bob@local", AddressFit::Exact),
        ("bob@default.local", AddressFit::Exact),
        ("bob@team.aimaestro.local", AddressFit::Exact),
        ("bob@host", AddressFit::Plain),
        ("bob@gmail.com", AddressFit::Plain),
        ("bob.x", AddressFit::No),
        ("bob/../x@acme.aimaestro.local", AddressFit::No),
        ("bob@a..b", AddressFit::No),
        ("", AddressFit::No),
    ] {
        assert_eq!(store.address_fit(text), fit, "{text}");
    }
}

#[test]
fn a_config_rewritten_while_open_counts_at_once() {
    let host = Host::new(&["bob"]);
    let store = host.open("bob");
    let mut books = Book::scanned(&store);
    let path = host.deliver(
        "bob",
        &Mail { to: "robert@new.aimaestro.local".into(), ..mail("msg_1_a", "eve", "bob") },
    );
    store.note_change(&path.canonicalize().unwrap());
    books.scan(&store, false);
    assert!(books.reasons()[0].contains("not addressed to me"), "{:?}", books.rejected);
    host.add("bob", "robert", "robert@new.aimaestro.local");
    books.scan(&store, false);
    assert!(books.rejected.is_empty() && books.one("msg_1_a").to_me);
    // A config in writing changes nothing.
    std::fs::write(host.agents().join("bob/config.json"), "{").unwrap();
    books.scan(&store, false);
    assert!(books.one("msg_1_a").to_me);
}

#[test]
fn registrations_are_my_addresses_too() {
    let host = Host::new(&["bob"]);
    let dir = host.agents().join("bob/registrations");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("crabmail.ai.json"), r#"{"address": "Bob@Acme.CrabMail.ai"}"#).unwrap();
    std::fs::write(dir.join("broken.json"), "{").unwrap();
    let store = host.open("bob");
    host.deliver(
        "bob",
        &Mail { to: "bob@acme.crabmail.ai".into(), ..mail("msg_1_a", "eve", "bob") },
    );
    assert!(Book::scanned(&store).one("msg_1_a").to_me);
}

#[test]
fn a_config_without_address_makes_one() {
    let host = Host::new(&["bob"]);
    let config = r#"{"agent": {"name": "Bob", "id": "x"}, "version": "amp/0.1"}"#;
    std::fs::write(host.agents().join("bob/config.json"), config).unwrap();
    assert_eq!(host.open("bob").me(), "bob@default.aimaestro.local");
}

#[test]
fn doctor_names_clashes_and_keys() {
    let host = Host::new(&["bob"]);
    assert!(host.open("bob").advice().iter().all(|a| !a.serious));
    host.add("other", "robert", &address("bob"));
    let private = host.agents().join("bob/keys/private.pem");
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o644)).unwrap();
    let advice = host.open("bob").advice();
    let command = advice[0].command.as_deref().unwrap();
    assert!(command.starts_with("chmod 600 /") && command.ends_with("keys/private.pem"));
    assert!(advice[1].serious && advice[1].problem.contains(&address("bob")), "{advice:?}");
}

#[test]
fn an_agent_whose_config_is_broken_is_no_stranger() {
    let host = Host::new(&["alice"]);
    host.add("77aa", "bob", &address("bob"));
    std::fs::write(host.agents().join(".index.json"), r#"{"Bob": "77aa"}"#).unwrap();
    let config = host.agents().join("77aa/config.json");
    let whole = std::fs::read(&config).unwrap();
    for broken in ["", "{", "[]"] {
        std::fs::write(&config, broken).unwrap();
        let store = host.open("alice");
        for name in ["bob", "77aa", "bob@local", "bob@acme.aimaestro.local"] {
            assert!(store.is_registered(name), "{name}");
            let error = sending::prepare(&store, &sending::draft(name, "x"), None).unwrap_err();
            assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
            assert!(error.to_string().contains("77aa/config.json"), "{error}");
        }
        assert!(!store.is_registered("carol"));
        assert!(store.health().iter().any(|l| l.contains("77aa/config.json")));
        assert!(refused(&host.spec("bob")).contains("77aa/config.json"));
        std::fs::write(&config, &whole).unwrap();
        assert!(sending::prepare(&store, &sending::draft("bob", "x"), None).is_ok());
        assert!(!store.health().iter().any(|l| l.contains("config.json")));
    }
}

#[test]
fn texts_say_what_to_do() {
    let host = Host::new(&[]);
    host.add("a1", "bob", &address("bob"));
    host.add("a2", "bob", &address("bob"));
    let text = refused(&host.spec("bob"));
    assert!(text.contains("dir = \"") && text.contains("agents/a1\""), "{text}");
    let mut spec = host.spec("bob");
    spec.dir = host.agents().join("a1");
    assert!(AmpStore::open(&spec).unwrap().advice()[0].problem.contains("dir = "));
    spec.dir = host.dir.path().join("missing");
    let text = refused(&spec);
    assert!(text.contains("does not exist") && text.contains("amp-init"), "{text}");
}
