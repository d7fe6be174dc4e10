//! Threads of signed links.

use serde_json::json;

use crate::amp::with;
use crate::common::amp::{self, ALICE, BAR, Msg};
use crate::common::samp;
use crate::common::shown::message;

/// S122: the thread is the root by signed `in_reply_to`, whatever `thread_id` says. Dashes are read as
/// underscores. A parent that comes late joins both. An unsigned answer keeps its own thread.
#[test]
fn s122_links() {
    let root = Msg::new("root", "question", 1).signed(2);
    let mine = Msg::new("Re: root", "answer", 2).between(BAR, ALICE).answering(&root.id).signed(1);
    let deep = Msg::new("Re: root", "thanks", 3).answering(&mine.id.replace('_', "-")).signed(2);
    let hint = Msg::new("hint", "same thread_id only", 4)
        .envelope(json!({"thread_id": root.id}))
        .signed(2);
    let fake = Msg::new("fake", "unsigned answer", 5)
        .between("eve@acme.aimaestro.local", BAR)
        .answering(&root.id);
    let (bed, home, m) = with(|_, home| {
        for x in [&deep, &hint, &fake] {
            home.receive(x);
        }
        crate::common::agz::put(&home.place("bar", "sent", ALICE, &mine.id), mine.text());
    });
    let dir = |id: &str| format!("threads/{}", samp::thread_dir(id));
    assert_eq!(m.ls(&dir(&mine.id)), [mine.name(), deep.name()]);
    home.receive(&root);
    m.appears(&format!("inbox/{}", root.name()));
    assert_eq!(m.ls(&dir(&root.id)), [root.name(), mine.name(), deep.name()]);
    let mut all =
        vec![samp::thread_dir(&root.id), samp::thread_dir(&hint.id), samp::thread_dir(&fake.id)];
    all.sort();
    assert_eq!(m.ls("threads"), all);
    let got = message(&m, &deep.id);
    assert_eq!(got.must("Thread"), root.id);
    assert_eq!(got.must("In-Reply-To"), format!("<{}@amp>", mine.id));
    m.umount();
    assert_eq!(bed.mount("bar").ls("threads"), all);
}

/// S122: a cycle is cut: its smallest id is the root.
#[test]
fn s122_cycle() {
    let ids: Vec<String> = (1..=3).map(|n| Msg::new("s", "x", n).id).collect();
    let msgs: Vec<Msg> = (0..3)
        .map(|i| Msg::new("s", "x", i as i64 + 1).answering(&ids[(i + 1) % 3]).signed(2))
        .collect();
    let selfish = Msg::new("s", "y", 9);
    let selfish = selfish.clone().answering(&selfish.id).signed(2);
    let (_bed, _home, m) = with(|_, home| {
        for x in msgs.iter().chain([&selfish]) {
            home.receive(x);
        }
    });
    let mut wanted = vec![samp::thread_dir(&ids[0]), samp::thread_dir(&selfish.id)];
    wanted.sort();
    assert_eq!(m.ls("threads"), wanted);
    assert_eq!(m.ls(&format!("threads/{}", samp::thread_dir(&ids[0]))).len(), 3);
}

/// S128: a reply goes to the sender, is a `response` with one `Re: `, and inherits priority and thread.
#[test]
fn s128_reply() {
    let root = Msg { priority: "high".into(), ..Msg::new("Deploy?", "may I", 1) }.signed(2);
    let (_bed, home, m) = with(|_, home| {
        home.receive(&root);
    });
    m.ok(&format!("echo 'you may' > 'threads/{}/answer'", samp::thread_dir(&root.id)));
    let (_, v) = home.only("alice", "inbox");
    amp::verify(&v, &samp::key(1));
    let e = &v["envelope"];
    assert_eq!(
        (&e["from"], &e["to"], &e["in_reply_to"]),
        (&json!(BAR), &json!(ALICE), &json!(root.id))
    );
    assert_eq!((&e["subject"], &e["priority"]), (&json!("Re: Deploy?"), &json!("high")));
    assert_eq!(
        (&v["payload"]["type"], &v["payload"]["message"]),
        (&json!("response"), &json!("you may"))
    );
    assert_eq!(e["thread_id"], json!(root.id));
    assert_eq!(m.ls(&format!("threads/{}", samp::thread_dir(&root.id))).len(), 2);
    // The answer to an answer still has one `Re: `, and headers have precedence over inherited values.
    let next = Msg::new("Re: Deploy?", "done?", 2).answering(e["id"].as_str().unwrap()).signed(2);
    home.receive(&next);
    m.appears(&format!("inbox/{}", next.name()));
    m.ok(&format!(
        "printf 'Priority: low\\nType: update\\n\\nyes\\n' > '{}'",
        next.archived().replace(".txt", ".reply")
    ));
    let all = home.list("alice", "inbox");
    let v = all.iter().map(|f| amp::read(f)).find(|v| v["payload"]["message"] == "yes").unwrap();
    assert_eq!(
        (&v["envelope"]["subject"], &v["envelope"]["priority"]),
        (&json!("Re: Deploy?"), &json!("low"))
    );
    assert_eq!(
        (&v["payload"]["type"], &v["envelope"]["in_reply_to"]),
        (&json!("update"), &json!(next.id))
    );
}
