//! The recipes of `docs/EXAMPLES.md`, each run as the page has it.
//!
//! Real: msgfs and its mounts, git, the NATS server, Postfix and Dovecot. Stand-ins: Claude Code and Codex
//! (`agent_program.py`, which reads the hooks as these do), and `ssh`, `scp` and `crontab`. A home folder stands for a
//! machine that `ssh` reaches.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{samp, write_script};
use crate::pages::{Stage, wrong};
use crate::ports::free_port;
use crate::postoffice::{DOMAIN, PASSWORD, PostOffice};

/// The page.
pub(crate) const PAGE: &str = "docs/EXAMPLES.md";
/// Its chapters; each is a test.
const RECIPES: [&str; 6] = [
    "Two Claude Code sessions in one repository",
    "Claude Code and Codex review each other's work",
    "Three agents and a group",
    "A cron job reports to agents and people",
    "A fleet of ten machines over NATS",
    "An agent is reached by e-mail",
];

/// Makes a stage for a recipe.
fn stage() -> Stage {
    let mut stage = Stage::new();
    let run = stage.bed.path("run").canonicalize().unwrap();
    stage.names.push(("/run/user/1000", run.to_str().unwrap().to_owned()));
    stage
}

/// Puts a program into the PATH of the stage.
fn program(stage: &Stage, name: &str, script: &str) {
    let file = stage.bed.path("tools").join(name);
    write_script(&file, &format!("#!/bin/bash\n{script}\n"));
}

/// Makes a repository with one commit, and two agent programs whose models follow these rules.
fn repository(rules: &Value) -> Stage {
    let mut stage = stage();
    let made = "git config --global user.name Anna; git config --global user.email anna@example.org; \
                git init -q -b main ~/shop; cd ~/shop; echo 'def price(x): return int(x)' > price.py; \
                git add .; git commit -q -m 'the price'";
    let out = stage.bed.sh(made);
    assert!(out.ok(), "{out:?}");
    for name in ["claude", "codex"] {
        let player = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/agent_program.py");
        program(&stage, name, &format!("exec python3 {player} {name} \"$@\""));
    }
    fs::write(stage.bed.path("model.json"), rules.to_string()).unwrap();
    for (name, file) in [("MSGFS_TEST_MODEL", "model.json"), ("MSGFS_TEST_HEARD", "heard")] {
        stage.bed.env.push((name.into(), stage.bed.path(file).into()));
    }
    stage
}

/// Returns the places at which the model of a program heard a bell that names these writers.
fn bells(stage: &Stage, program: &str, from: &str) -> Vec<String> {
    let text = fs::read_to_string(stage.bed.path("heard")).unwrap();
    let heard = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_one = |v: &Value| {
        let text = v["text"].as_str().unwrap();
        v["program"] == program
            && text.contains("msgfs: ")
            && text.contains(&format!("from {from}: "))
    };
    heard.filter(is_one).map(|v| v["from"].as_str().unwrap().to_owned()).collect()
}

/// Runs a recipe.
#[track_caller]
fn works(recipe: usize, stage: &Stage) {
    let wrong = wrong(PAGE, Some(RECIPES[recipe]), stage);
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), terminals(stage));
}

/// Returns the output of other terminals and the texts that models heard.
fn terminals(stage: &Stage) -> String {
    let mut files: Vec<PathBuf> =
        fs::read_dir(stage.bed.path("")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.starts_with("terminal-") || name == "heard"
    });
    files.sort();
    let shown = |f: &PathBuf| format!("{}:\n{}", f.display(), fs::read_to_string(f).unwrap());
    files.iter().map(shown).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_chapter_is_a_recipe() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let chapters: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(chapters, RECIPES);
    let before = page.split("\n## ").next().unwrap();
    assert!(!before.contains("```"), "no test runs a block before the first chapter");
}

#[test]
fn two_sessions_in_one_repository() {
    let stage = repository(&json!([
        {"hears": "^Ask the agent api", "does": "msgfs send api 'Which way does price() round?'"},
        {"hears": "From: web[^$]*Which way does price", "does":
            "echo 'Down, to whole cents.' | msgfs write inbox/{id}.reply"},
        {"hears": "From: api[^$]*Down, to whole cents", "does": "echo 'price() rounds down.' > NOTES.md"},
    ]));
    works(0, &stage);
    // Both sessions were idle, and each heard one bell.
    for from in ["web", "api"] {
        assert_eq!(bells(&stage, "claude", from), ["wake"], "{}", terminals(&stage));
    }
}

#[test]
fn claude_code_and_codex_review_each_other() {
    let stage = repository(&json!([
        {"hears": "^Make price", "does": "sed -i 's/int/round/' price.py; git commit -q -a -m 'price() rounds half up'; \
            msgfs send codex 'Please review price() rounds half up, on main.'"},
        {"hears": "From: claude[^$]*Please review", "does":
            "echo 'round() rounds half to even: use Decimal.' > ~/codex-mail/inbox/{id}.reply"},
        {"hears": "^Write tests", "does": "echo 'assert price(2.5) == 3' > tests.py; git add .; \
            git commit -q -m 'tests of price()'; echo 'Please review tests of price(), on codex.' > ~/codex-mail/outbox/claude; \
            tail -n 1 ~/codex-mail/.next"},
        {"hears": "From: codex[^$]*half to even", "does": "git commit -q --allow-empty -m 'price() uses Decimal'"},
        {"hears": "From: codex[^$]*Please review", "does":
            "echo 'Good. Add a price below zero.' | msgfs write inbox/{id}.reply"},
        {"hears": "^Good. Add a price below zero", "does": "git commit -q --allow-empty -m 'a price below zero'"},
    ]));
    works(1, &stage);
    assert_eq!(bells(&stage, "codex", "claude")[0], "start hook", "{}", terminals(&stage));
    assert_eq!(bells(&stage, "claude", "codex")[0], "wake", "{}", terminals(&stage));
}

#[test]
fn three_agents_and_a_group() {
    let stage = repository(&json!([]));
    works(2, &stage);
    // The message to the group has a record for each member but its writer.
    let records = samp::read_log(&stage.bed.path("home/.local/state/agent-message"), "claude");
    let mut all: Vec<&str> = records.iter().map(|record| samp::member(record, "to")).collect();
    all.sort_unstable();
    assert_eq!(all, ["codex", "gemini"]);
}

#[test]
fn a_cron_job_reports() {
    let stage = stage();
    program(
        &stage,
        "crontab",
        "table=$HOME/../crontab\n\
         if [ \"$1\" = -l ]; then cat $table 2>/dev/null || { echo no crontab for anna >&2; exit 1; }; else cat > $table; fi",
    );
    let out = stage.bed.sh(
        "mkdir ~/shop; printf '#!/bin/sh\\necho \"price: expected 3, got 2\"\\nexit 1\\n' > ~/shop/check; chmod +x ~/shop/check",
    );
    assert!(out.ok(), "{out:?}");
    works(3, &stage);
    let table = fs::read_to_string(stage.bed.path("crontab")).unwrap();
    assert_eq!(table.lines().filter(|line| line.ends_with("~/bin/nightly")).count(), 1, "{table}");
    // The job ran twice that night.
    let records = samp::read_log(&stage.bed.path("home/.local/state/agent-message"), "nightly");
    let mut all: Vec<&str> = records.iter().map(|record| samp::member(record, "to")).collect();
    all.sort_unstable();
    assert_eq!(all, ["anna", "fixer"]);
}

#[test]
fn a_fleet_of_ten_machines() {
    let mut stage = stage();
    let machines = stage.bed.path("machines");
    let home = format!(
        "home={}/$host; mkdir -p \"$home/run\"; chmod 700 \"$home/run\"",
        machines.display()
    );
    let there = "cd \"$home\"; HOME=$home XDG_RUNTIME_DIR=$home/run exec bash -c \"$*\"";
    program(&stage, "ssh", &format!("host=$1; shift\n{home}\n{there}"));
    program(
        &stage,
        "scp",
        &format!("host=${{3%%:*}}\n{home}\nexec cp -p \"$2\" \"$home/${{3#*:}}\""),
    );
    if let Some(server) = std::env::var_os("NATS_SERVER") {
        stage.link("nats-server", Path::new(&server));
    }
    let port = free_port();
    stage.names.extend([
        ("10.0.0.5", "127.0.0.1".to_owned()),
        (":4222", format!(":{port}")),
        ("port: 4222", format!("port: {port}")),
    ]);
    works(4, &stage);
    let one = samp::read_log(&machines.join("host01/.local/state/agent-message"), "agent01");
    for n in 1..=10 {
        let folder = machines.join(format!("host{n:02}/.local/state/agent-message"));
        assert_eq!(samp::read_log(&folder, "agent01"), one, "host {n}");
    }
}

#[test]
fn an_agent_is_reached_by_mail() {
    let mut stage = stage();
    let office = PostOffice::open(&["bot", "amy"]);
    // msgfs and curl trust the authority of this machine.
    for name in ["SSL_CERT_FILE", "CURL_CA_BUNDLE"] {
        stage.bed.env.push((name.into(), office.ca.clone().into()));
    }
    stage.names.extend([
        ("mail.example.org", "127.0.0.1".to_owned()),
        ("example.org", DOMAIN.to_owned()),
        ("PASSWORD", PASSWORD.to_owned()),
        (":587", format!(":{}", office.smtp)),
        (":993", format!(":{}", office.imaps)),
        ("\"smtp_port\": 587", format!("\"smtp_port\": {}", office.smtp)),
        ("\"imap_port\": 993", format!("\"imap_port\": {}", office.imaps)),
    ]);
    works(5, &stage);
    assert_eq!((office.mails("bot").len(), office.mails("amy").len()), (1, 1), "{}", office.log());
}
