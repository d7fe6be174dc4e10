//! One command that ends and removes everything.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Bed, Out, PATIENCE, binary, need_root, run_for, write_script};

/// The head of each script of these tests. It runs in namespaces of its own, because the command ends everything
/// of this user, and other tests run at the same time. Every process that it starts ends with it.
const BEGIN: &str = r#"
set -euo pipefail
while read -r dir; do umount -l "$dir"; done < <(findmnt -rn -o TARGET -t fuse.msgfs,fuse)
soon() { for ((n = 0; n < 1200; n++)); do ! "$@" 2>/dev/null || return 0; sleep 0.05; done; echo "never: $*"; exit 1; }
is_ended() { [[ ! -e /proc/$1 || $(sed 's/.*) //' "/proc/$1/stat") == Z* ]]; }
daemon() { grep -o '"pid":[0-9]*' "$XDG_STATE_HOME/msgfs/$1/lock" | tail -n 1 | tr -dc 0-9; }
mounts() { findmnt -rn -o TARGET -t fuse.msgfs,fuse || true; }
"#;

/// Makes a bed in which `msgfs` is on the PATH, and `systemctl` prints the commands that it got.
fn bed() -> Bed {
    let mut bed = Bed::new();
    fs::create_dir(bed.path("tools")).unwrap();
    symlink(binary(), bed.path("tools/msgfs")).unwrap();
    fs::create_dir_all(bed.path("home/.codex")).unwrap();
    fs::create_dir_all(bed.path("home/.claude")).unwrap();
    let path = format!("{}:{}", bed.path("tools").display(), std::env::var("PATH").unwrap());
    bed.env.push(("PATH".into(), path.into()));
    bed
}

/// Makes a `systemctl` that runs one unit of ours, and one that only has such a name.
fn systemd(bed: &Bed) {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-scripts");
    let own = bed.path("config/systemd/user");
    fs::create_dir_all(own.join("default.target.wants")).unwrap();
    let wants = own.join("default.target.wants");
    symlink(units.join("msgfs.service"), wants.join("msgfs.service")).unwrap();
    symlink(units.join("msgfs@.service"), wants.join("msgfs@bob.service")).unwrap();
    symlink("/gone/msgfs-carry@.service", wants.join("msgfs-carry@bob.service")).unwrap();
    fs::write(bed.path("strange.service"), "[Service]\nExecStart=/usr/bin/backup\n").unwrap();
    symlink(bed.path("strange.service"), wants.join("msgfs@strange.service")).unwrap();
    symlink(units.join("msgfs.service"), wants.join("other.service")).unwrap();
    fs::copy(units.join("msgfs@.service"), own.join("msgfs@.service")).unwrap();
    fs::write(own.join("msgfs.service"), "[Service]\nExecStart=msgfs mount -f /mine\n").unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {log}\ncase $2 in\n\
         list-units) test -e {stopped} || echo 'msgfs@alice.service loaded active running x'\n\
         echo 'msgfs@strange.service loaded active running x' ;;\n\
         stop) touch {stopped} ;;\n\
         show) case $* in *strange*) echo {strange} ;; *) echo {unit} ;; esac ;;\nesac\n",
        log = bed.path("systemctl.log").display(),
        stopped = bed.path("stopped").display(),
        strange = bed.path("strange.service").display(),
        unit = units.join("msgfs@.service").display(),
    );
    write_script(&bed.path("tools/systemctl"), &script);
}

#[track_caller]
fn inside(bed: &Bed, script: &str) -> Out {
    need_root();
    let mut command = bed.command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"]);
    command.arg(format!("{BEGIN}{script}"));
    let out = run_for(command, None, PATIENCE * 3);
    assert!(out.ok(), "{out:?}");
    out
}

/// Returns every file below a folder, with its bytes.
fn bytes_below(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            all.extend(bytes_below(&path));
        } else if path.is_file() {
            all.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}

/// S770: one command ends mounts (in use, stopped, read-only, dead, detached), carriers and waiters, and removes
/// hooks, standing instructions and units. With `--dry-run` nothing changes. The command says what stays. Mail and
/// keys stay, byte for byte. A second run has nothing to do.
#[test]
fn s770_one_command_ends_everything() {
    let bed = bed();
    systemd(&bed);
    bed.config("me = \"alice\"\n[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:9\"\n");
    fs::write(bed.path("home/.claude/settings.json"), "{\"theme\": \"dark\"}\n").unwrap();
    let out = inside(
        &bed,
        r#"
msgfs hook install --for codex >/dev/null
msgfs hook install --for claude-code >/dev/null
msgfs init --integrate --for claude-code >/dev/null 2>&1
# A waiter, as Claude Code starts it.
export CLAUDECODE=1 CLAUDE_CODE_SESSION_ID=s1
echo '{"session_id":"s1","cwd":"'"$HOME"'"}' >told
bash -c 'msgfs hook run stop --for claude-code --wait <told; exit 0' & waiter=$!
waits() { msgfs hook status | grep -q 'sessions: 1 (1 with a waiter)'; }
soon waits

for me in alice bob carol dan eve; do msgfs mount --me $me ../$me >/dev/null 2>&1; done
msgfs mount --read-only --me alice ../read-only >/dev/null 2>&1
echo 'hello bob' >../alice/outbox/bob
soon grep -rq 'hello bob' ../bob/archive
sleep 600 <../bob/README.txt & user=$!
kill -STOP "$(daemon carol)"
kill -KILL "$(daemon dan)"
sleep 600 <../eve/README.txt & other=$!
eve=$(daemon eve)
umount -l ../eve
# One that waits behind its mount, and one without a mount.
msgfs carry --all --me alice 2>alice.err & behind=$!
soon grep -q 'carries meanwhile' alice.err
msgfs carry --all --me frank 2>frank.err & alone=$!
soon grep -q 'carrying: nats' frank.err

echo '--- dry'
msgfs uninstall --dry-run
echo '--- still'
kill -CONT "$(daemon carol)"
mounts | wc -l
kill -STOP "$(daemon carol)"
waits
kill -0 $behind $alone $eve
test -s "$HOME/.codex/hooks.json"
test -L "$XDG_CONFIG_HOME/systemd/user/default.target.wants/msgfs.service"

echo '--- now'
status=0
msgfs uninstall || status=$?
echo "status $status"
test -z "$(mounts)"
soon is_ended $waiter
for pid in $behind $alone $eve; do is_ended $pid; done
# No msgfs is left; who used a mount lives.
! grep -l '^msgfs$' /proc/[0-9]*/comm 2>/dev/null
kill -0 $user $other

echo '--- again'
msgfs uninstall
msgfs --me bob ls archive 2>/dev/null | wc -l
"#,
    );
    let [before, dry, still, now, again] = &out.stdout.split("--- ").collect::<Vec<_>>()[..] else {
        panic!("{out:?}");
    };
    assert_eq!(*before, "");
    let root = bed.path("");
    let root = root.to_str().unwrap().trim_end_matches('/');
    let said = |text: &str, line: &str| {
        let line = line.replace("ROOT", root);
        assert!(text.lines().any(|said| said == line), "{line:?} is not in {text}\n{out:?}");
    };
    assert!(!dry.contains(": written") && !dry.contains(": ended\n"), "{dry}");
    for line in [
        "claude-code: ~/.claude/settings.json: would be written",
        "codex: ~/.codex/hooks.json: would be removed",
        "One process that waited for mail would be ended.",
        "unit msgfs@alice.service: would be stopped and disabled",
        "msgfs carry of alice: would be ended",
        "mount ROOT/alice: would be unmounted",
        "the msgfs of ROOT/eve, which is not mounted here: would be ended",
    ] {
        said(dry, line);
    }
    assert_eq!(still.lines().nth(1), Some("5"), "{still}");
    for line in [
        "claude-code: ~/.claude/settings.json: written",
        "claude-code: ~/.claude/rules/msgfs.md: removed",
        "codex: ~/.codex/hooks.json: removed",
        "One process that waited for mail is ended.",
        "unit msgfs-carry@bob.service: stopped and disabled",
        "unit msgfs.service: stopped and disabled",
        "unit msgfs@alice.service: stopped and disabled",
        "unit msgfs@bob.service: stopped and disabled",
        "unit file ROOT/config/systemd/user/msgfs@.service: removed",
        "msgfs carry of alice: ended",
        "msgfs carry of frank: ended",
        "mount ROOT/alice: unmounted",
        "mount ROOT/read-only: unmounted",
        "mount ROOT/carol: unmounted",
        "the msgfs of ROOT/carol: ended",
        "mount ROOT/dan: unmounted",
        "the msgfs of ROOT/bob: ended",
        "the msgfs of ROOT/eve, which is not mounted here: ended",
        "What stays:",
        "  mail of the store samp: ROOT/store",
        "  keys, marks and unsent drafts: ROOT/state/msgfs",
        "  configuration: ROOT/config/msgfs/config.toml",
        "  cache, which can be removed: ROOT/cache/msgfs",
        "  unit file ROOT/config/systemd/user/msgfs.service, which was changed or is of another msgfs",
        "status 0",
    ] {
        said(now, line);
    }
    assert!(
        now.contains(
            "ROOT/bob: unmounted, although it was in use by sleep (".replace("ROOT", root).as_str()
        ),
        "{now}"
    );
    assert!(
        now.contains(
            "  what a file was before msgfs changed it: ~/.claude/settings.json.msgfs-bak-"
        ),
        "{now}"
    );
    said(again, "nothing of msgfs runs or is installed here");
    assert_eq!(again.lines().last(), Some("1"), "the mail is there: {again}");

    assert!(!bed.path("home/.codex/hooks.json").exists());
    let settings = fs::read_to_string(bed.path("home/.claude/settings.json")).unwrap();
    assert_eq!(settings, "{\"theme\": \"dark\"}\n");
    let mut wants: Vec<_> = fs::read_dir(bed.path("config/systemd/user/default.target.wants"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    wants.sort();
    assert_eq!(wants, ["msgfs@strange.service", "other.service"]);
    let asked = fs::read_to_string(bed.path("systemctl.log")).unwrap();
    assert!(asked.contains("--user stop -- msgfs@alice.service\n"), "{asked}");
    assert!(!asked.contains("stop -- msgfs@strange"), "{asked}");
    assert_eq!(asked.matches("daemon-reload").count(), 1, "{asked}");
}

/// S770: a process that only has the pid that a lock names is left alone, such as one of another container. The
/// command reports it and exits with 1. An exchange of a link goes on. Mail and keys keep their bytes.
#[test]
fn s770_nobody_else_is_ended() {
    let bed = bed();
    bed.config("me = \"alice\"\n");
    assert!(bed.msgfs_out(&["send", "bob", "hello"]).ok());
    let before = bytes_below(&bed.store);
    let key = fs::read(bed.state("alice").join("identity_key")).unwrap();
    let out = inside(
        &bed,
        r#"
sleep 600 & other=$!
mkdir -p "$XDG_STATE_HOME/msgfs/zoe"
lock=$XDG_STATE_HOME/msgfs/zoe/lock
echo "{\"pid\":$other,\"mountpoint\":\"/nowhere\"}" >"$lock"
flock "$lock" sleep 600 & holder=$!
held() { ! flock -n "$1" true; }
soon held "$lock"
link=$XDG_STATE_HOME/msgfs/alice/links/samp/far
mkdir -p "$link"
flock "$link/carrier.lock" sleep 600 & exchange=$!
soon held "$link/carrier.lock"
msgfs uninstall --dry-run || true
status=0
msgfs uninstall || status=$?
echo "status $status"
kill -0 $other $holder $exchange
"#,
    );
    assert!(out.stdout.ends_with("status 1\n"), "{out:?}");
    let exchange =
        "  1 of the exchanges of links; each ends by itself, so that nothing is sent twice\n";
    assert_eq!(out.stdout.matches(exchange).count(), 2, "{out:?}");
    assert!(out.stderr.contains("is not known here to be a msgfs of yours"), "{out:?}");
    assert_eq!(bytes_below(&bed.store), before);
    assert_eq!(fs::read(bed.state("alice").join("identity_key")).unwrap(), key);
}
