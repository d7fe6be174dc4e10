//! Five identities, each with a mount over stores of six kinds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::common::{Bed, Mount, agz, amp, samp};

/// The people who write to each other. The mount of the last is never killed, so that its memory can be compared.
pub(crate) const PEOPLE: [&str; 5] = ["anna", "ben", "cleo", "dan", "eve"];
pub(crate) const UNHARMED: usize = PEOPLE.len() - 1;
/// A writer with another program and a wrong clock.
pub(crate) const STRANGER: &str = "zed";
/// The position of the stranger, behind the people.
pub(crate) const ZED: usize = PEOPLE.len();

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Samp,
    Agentazall,
    Amp,
    Amq,
    Atsf,
    Ssot,
}

pub(crate) const KINDS: [Kind; 6] =
    [Kind::Samp, Kind::Agentazall, Kind::Amp, Kind::Amq, Kind::Atsf, Kind::Ssot];

/// The folders of the stores. A project of ATSF and a folder of task records have two roles each: in project `n`,
/// person `n` has the first and the next person the second.
pub(crate) struct Stores {
    pub(crate) bed: Bed,
    home: amp::Home,
    trees: Vec<agz::Tree>,
}

/// Returns the person behind this one, in a ring.
pub(crate) fn next(person: usize) -> usize {
    (person + 1) % PEOPLE.len()
}

pub(crate) fn before(person: usize) -> usize {
    (person + PEOPLE.len() - 1) % PEOPLE.len()
}

/// Returns the thread of project `n`.
fn thread(project: usize) -> String {
    format!("5f0c2f0a-9a35-4b1e-9d1c-00000000000{project}")
}

impl Stores {
    pub(crate) fn new(bed: Bed) -> Self {
        let home = amp::Home::new(&bed);
        let tree = agz::Tree::new(&bed);
        let mut trees = Vec::new();
        for (n, name) in PEOPLE.into_iter().enumerate() {
            home.agent(name, "acme", 10 + n as u8);
            trees.push(tree.beside(&format!("{name}@localhost"), &json!({})));
        }
        let stores = Self { bed, home, trees };
        for name in PEOPLE.into_iter().chain([STRANGER]) {
            for leaf in ["inbox/tmp", "inbox/new", "inbox/cur", "outbox/sent", "receipts"] {
                let folder = stores.queue().join("agents").join(name).join(leaf);
                fs::create_dir_all(folder).expect("mkdir");
            }
        }
        let agents = PEOPLE.into_iter().chain([STRANGER]).collect::<Vec<_>>();
        let meta = json!({"version": 1, "agents": agents}).to_string();
        agz::put(&stores.queue().join("meta/config.json"), meta);
        for (n, name) in PEOPLE.into_iter().enumerate() {
            stores.project(n);
            agz::put(&stores.config(name).join("msgfs/config.toml"), stores.settings(n));
        }
        stores
    }

    fn queue(&self) -> PathBuf {
        self.bed.path("queue/collab")
    }

    /// Returns `$XDG_CONFIG_HOME` of a person.
    fn config(&self, name: &str) -> PathBuf {
        self.bed.path(format!("config-{name}"))
    }

    /// Makes a project with one thread of two messages, as its own program does.
    fn project(&self, n: usize) {
        let message = |k: usize, role: &str| {
            json!({
                "id": format!("6a0f8f7e-0000-4000-8000-0000000000{n}{k}"), "role": role,
                "timestamp": format!("2026-04-24T17:42:0{k}.100Z"),
                "content": [{"type": "text", "text": format!("tok-begun{n}{role}-1-end")}]
            })
        };
        let all = [message(1, "user"), message(2, "agent")];
        let manifest = json!({
            "specVersion": "1.1", "threadId": thread(n), "title": format!("project {n}"),
            "createdAt": "2026-04-24T17:00:00.000Z", "updatedAt": "2026-04-24T17:42:02.100Z",
            "agent": {"id": "claude-code", "name": "Claude Code", "protocol": "acp"},
            "stats": {
                "messageCount": 2, "userMessageCount": 1, "agentMessageCount": 1, "toolCallCount": 0
            }
        });
        let folder = self.bed.path(format!("project-{n}/.agent/threads")).join(thread(n));
        let lines = all.map(|m| format!("{m}\n")).concat();
        agz::put(&folder.join("messages.jsonl"), lines);
        agz::put(&folder.join("thread.json"), format!("{manifest:#}\n"));
    }

    fn settings(&self, n: usize) -> String {
        let store = |kind: &str, name: &str, dir: PathBuf, me: &str| {
            let dir = dir.to_str().expect("UTF-8").to_owned();
            let me = if me.is_empty() { String::new() } else { format!("me = {me:?}\n") };
            format!("[[store]]\nkind = {kind:?}\nname = {name:?}\ndir = {dir:?}\n{me}")
        };
        let mut text = "unknown_recipient = \"accept\"\nwait_timeout = \"5s\"\n".to_owned();
        text += &store("samp", "samp", self.bed.store.clone(), "");
        text += &store("amq", "amq", self.queue(), "");
        text += &store("amp", "amp", self.home.root.clone(), "");
        text += &store("agentazall", "agentazall", self.trees[n].root.clone(), "");
        for (project, roles) in [(n, ["user", "coordinator"]), (before(n), ["agent", "executor"])] {
            for (kind, me) in ["atsf", "ssot"].into_iter().zip(roles) {
                let dir = match kind {
                    "atsf" => self.bed.path(format!("project-{project}")),
                    _ => self.bed.path(format!("ssot-{project}")),
                };
                text += &store(kind, &format!("{kind}-{project}"), dir, me);
            }
        }
        text
    }

    pub(crate) fn dir(&self, person: usize) -> PathBuf {
        self.bed.path(format!("mnt-{}", PEOPLE[person]))
    }

    /// Returns a command in the environment of a person.
    pub(crate) fn command(&self, person: usize, program: &str) -> Command {
        let name = PEOPLE[person];
        let mut c = self.bed.command(program);
        c.env("XDG_CONFIG_HOME", self.config(name)).env("MSGFS_ME", name);
        c.env("M", self.dir(person)).env_remove("MSGFS_HOOK");
        c
    }

    pub(crate) fn msgfs(&self, person: usize, args: &[&str]) -> Command {
        let mut c = self.command(person, crate::common::binary().to_str().expect("UTF-8"));
        c.args(args);
        c
    }

    pub(crate) fn mount(&self, person: usize) -> Mount {
        let dir = self.dir(person);
        let mut c = self.msgfs(person, &["mount"]);
        c.arg(&dir);
        self.bed.mount_by(c, &dir, PEOPLE[person])
    }

    /// Writes a message of another program, dated `ts`, to a person; `n` differs at each call.
    pub(crate) fn foreign(&self, kind: Kind, to: usize, text: &str, ts: i64, n: i64) {
        let name = PEOPLE[to];
        match kind {
            Kind::Amp => {
                let mut msg = amp::Msg::new("from afar", text, 0).between(
                    &format!("{STRANGER}@acme.aimaestro.local"),
                    &format!("{name}@acme.aimaestro.local"),
                );
                msg.timestamp = samp::strftime(ts, "%Y-%m-%dT%H:%M:%SZ");
                msg.id = format!("msg_{ts}_{n:016x}");
                self.home.deliver(name, &msg);
            }
            Kind::Agentazall => {
                let tree = &self.trees[to];
                let from = format!("{STRANGER}@localhost");
                let letter = agz::Letter::new(&from, "from afar", text, n)
                    .set("To", &tree.agent)
                    .set("Date", &agz::local(ts));
                let day = agz::local(ts)[..10].to_owned();
                let folder = tree.mailbox(&tree.agent).join(day).join("inbox");
                agz::put(&folder.join(format!("{}.txt", letter.id())), letter.text());
            }
            Kind::Amq => {
                let id = format!("z{n}");
                let head = json!({
                    "schema": 1, "id": id, "from": STRANGER, "to": [name],
                    "thread": format!("p2p/{name}__{STRANGER}"),
                    "created": samp::strftime(ts, "%Y-%m-%dT%H:%M:%S.25Z"),
                });
                let inbox = self.queue().join("agents").join(name).join("inbox");
                let tmp = inbox.join("tmp").join(format!("{id}.md"));
                fs::write(&tmp, format!("---json\n{head:#}\n---\n{text}\n")).expect("write");
                fs::rename(tmp, inbox.join("new").join(format!("{id}.md"))).expect("rename");
            }
            // Stores with two roles have no third writer.
            Kind::Samp | Kind::Atsf | Kind::Ssot => {
                samp::append(&self.bed.store, STRANGER, name, "afar", text, ts);
            }
        }
    }
}

/// Returns the path in the mount of a draft from `from` to `to`, and its text. In kinds with two roles `to` is beside
/// `from` in the ring.
pub(crate) fn draft(kind: Kind, from: usize, to: usize, text: &str) -> (String, String) {
    let name = PEOPLE[to];
    let first = to == next(from);
    let project = if first { from } else { to };
    match kind {
        Kind::Samp => (format!("outbox/{name}"), format!("Via: samp\n\n{text}\n")),
        Kind::Amq => (format!("outbox/{name}"), format!("Via: amq\n\n{text}\n")),
        Kind::Amp => (format!("outbox/{name}"), format!("Via: amp\n\n{text}\n")),
        Kind::Agentazall => {
            (format!("outbox/{name}@localhost"), format!("Via: agentazall\n\n{text}\n"))
        }
        Kind::Atsf => (format!("threads/{}/answer", thread(project)), format!("{text}\n")),
        Kind::Ssot if first => {
            let payload = json!({
                "description": text, "repo": "/srv/shop", "branch": "agent/upload-retry",
                "subtasks": [{
                    "subtask_id": "T-2026-001-S1", "description": "retry", "estimated_lines": 4
                }],
                "acceptance_criteria": ["it survives"], "risk_level": "low"
            });
            task("executor", "task_dispatch", project, &payload)
        }
        Kind::Ssot => {
            let payload = json!({
                "subtask_id": "T-2026-001-S1", "completion_status": "complete",
                "diff_summary": {
                    "files_changed": ["src/upload.rs"], "lines_added": 3, "lines_removed": 2
                },
                "self_assessment": {"criteria_met": [true], "notes": [text]}, "work_log": []
            });
            task("coordinator", "task_result", project, &payload)
        }
    }
}

/// Returns a draft of a task record for the other role in folder `n`.
fn task(to: &str, kind: &str, n: usize, payload: &serde_json::Value) -> (String, String) {
    let head = format!("To: {to}\nVia: ssot-{n}\nType: {kind}\nTask: T-2026-00{n}\n");
    (format!("outbox/{to}"), format!("{head}\n{payload:#}\n"))
}
