//! The command line without a mailbox, as a person sees it: help texts, usage errors, exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;

/// Runs msgfs with a home of its own, in a folder named `foo` in it.
fn msgfs(home: &Path, args: &[&str]) -> Output {
    let cwd = home.join("foo");
    fs::create_dir_all(&cwd).unwrap();
    cargo_bin_cmd!("msgfs")
        .args(args)
        .current_dir(cwd)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("COLUMNS", "100")
        .output()
        .unwrap()
}

fn run(args: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    msgfs(home.path(), args)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns standard error of a run that has to end with this code and print no data.
fn error(code: i32, args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "", "{args:?}");
    text(&output.stderr)
}

const COMMANDS: &[&str] = &[
    "mount",
    "umount",
    "status",
    "agents",
    "inbox",
    "reply",
    "send",
    "ask",
    "sendmail",
    "sent",
    "search",
    "wait",
    "ls",
    "cat",
    "write",
    "rm",
    "mv",
    "mark",
    "keep",
    "check",
    "doctor",
    "key",
    "init",
    "hook",
    "uninstall",
    "link",
    "carry",
    "amp",
    "ssot",
    "completions",
    "man",
];

#[test]
fn help() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    insta::assert_snapshot!("help", text(&output.stdout));
}

#[test]
fn help_of_each_command() {
    for command in COMMANDS {
        let output = run(&[command, "--help"]);
        assert!(output.status.success(), "{command}");
        insta::assert_snapshot!(format!("help_{command}"), text(&output.stdout));
    }
}

#[test]
fn the_list_of_commands_is_complete() {
    let help = text(&run(&["--help"]).stdout);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed: Vec<&str> =
        listed.map_while(|line| line.split_whitespace().next()).filter(|c| *c != "help").collect();
    assert_eq!(listed, COMMANDS);
}

#[test]
fn usage_errors_end_with_2() {
    for args in [
        &["frobnicate"][..],
        &["cat"],
        &["umount"],
        &["send"],
        &["ls", "--wide"],
        &["key", "trust"],
        &["completions", "tcl"],
        &["ssot", "frobnicate"],
        &["ssot", "resume"],
        &["ssot", "resume", "T-2026-001", "now"],
        &["ls", "--me", "a b"],
        &["ls", "../x"],
        &["check", "nowhere"],
        &["wait", "--timeout", "x"],
        &["mount", "-o", "colour"],
        &["key", "trust", "bob", "--key", "x"],
        &["mark"],
    ] {
        error(2, args);
    }
}

#[test]
fn nothing_to_do_shows_the_help_and_ends_with_2() {
    assert!(error(2, &[]).contains("Usage: msgfs"));
}

#[test]
fn an_unknown_command_is_named_with_the_nearest() {
    insta::assert_snapshot!(error(2, &["mont"]), @"
    error: unrecognized subcommand 'mont'

      tip: some similar subcommands exist: 'man', 'umount', 'mount'

    Usage: msgfs [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn an_unknown_mount_option_is_named_with_the_nearest() {
    insta::assert_snapshot!(error(2, &["mount", "-o", "rw,alow_other", "/nowhere"]), @"
    error: invalid value 'rw,alow_other' for '-o <OPTIONS>': unknown mount option `alow_other`; did you mean `allow_other`? (known: me=NAME, config=FILE, ro, rw, allow_other)

    For more information, try '--help'.
    ");
}

#[test]
fn a_wrong_time_is_named() {
    insta::assert_snapshot!(error(2, &["wait", "--timeout", "soon"]), @"
    error: invalid value 'soon' for '--timeout <TIME>': it must begin with a whole number, as in 60s

    For more information, try '--help'.
    ");
}

#[test]
fn a_wrong_key_is_named() {
    insta::assert_snapshot!(error(2, &["key", "trust", "bob", "--key", "AAAA"]), @"
    error: invalid value 'AAAA' for '--key <BASE64>': not a public key; it is the base64 of 32 bytes, as `msgfs key show` prints it

    For more information, try '--help'.
    ");
}

#[test]
fn a_header_cannot_be_smuggled_in() {
    insta::assert_snapshot!(error(2, &["send", "bob", "--subject", "a\nTo: eve", "x"]), @"
    error: invalid value 'a
    To: eve' for '--subject <LINE>': must be one line without control characters

    For more information, try '--help'.
    ");
}

#[test]
fn an_empty_text_is_not_sent() {
    insta::assert_snapshot!(error(1, &["send", "bob"]), @"msgfs: nothing was sent: the text is empty; give it as an argument or on standard input");
}

#[test]
fn paths_cannot_leave_the_tree() {
    insta::assert_snapshot!(error(2, &["cat", "--me", "foo", "inbox/../../etc/passwd"]), @"msgfs: inbox/../../etc/passwd: paths start at the root of the mount and cannot leave it; try `msgfs ls`");
}

#[test]
fn what_is_not_mounted_cannot_be_unmounted() {
    insta::assert_snapshot!(error(1, &["umount", "/proc"]), @"msgfs: /proc is a mount of proc, not of msgfs; to unmount it: umount /proc");
    assert!(error(1, &["umount", "/no/such/folder"]).contains("No such file or directory"));
}

#[test]
fn a_folder_that_is_not_empty_is_not_mounted_on() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("mail")).unwrap();
    fs::write(home.path().join("mail/letter"), "x").unwrap();
    let output = msgfs(home.path(), &["mount"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(home.path().join("mail/letter").exists());
    assert!(!home.path().join("state/agent-message").exists(), "nothing was made");
}

#[test]
fn a_wrong_configuration_is_told_with_file_and_line() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("c.toml");
    fs::write(&file, "me = \"foo\"\nmark_raed = \"on-read\"\n").unwrap();
    for command in ["status", "doctor", "inbox"] {
        let output = msgfs(home.path(), &[command, "--config", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("c.toml:2:") && said.contains("mark_read"), "{command}: {said}");
    }
}

#[test]
fn keys_are_made_shown_and_managed() {
    let home = tempfile::tempdir().unwrap();
    let out = |args: &[&str]| {
        let output = msgfs(home.path(), args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = out(&["key", "show"]);
    assert!(shown.starts_with("foo  "), "{shown}");
    assert_eq!(shown, out(&["key", "show"]), "a key is made once");
    let public = shown.split_whitespace().last().unwrap().to_owned();
    assert_eq!(out(&["key", "list"]), "");
    out(&["key", "trust", "bob", "--key", &public]);
    let list = out(&["key", "list"]);
    assert!(
        list.starts_with("bob") && list.contains(&public) && list.contains("by hand"),
        "{list}"
    );
    out(&["key", "forget", "bob"]);
    assert_eq!(out(&["key", "list"]), "");
    assert_eq!(msgfs(home.path(), &["key", "forget", "bob"]).status.code(), Some(1));
}

#[test]
fn the_manual_page_is_complete() {
    let page = text(&run(&["man"]).stdout);
    for command in COMMANDS {
        assert!(page.contains(&format!("MSGFS {}", command.to_uppercase())), "{command}");
    }
}

/// Packages contain the pages that the program prints.
#[test]
fn generated_pages_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-scripts/generated");
    let pages: [(&str, &[&str]); 4] = [
        ("msgfs.1", &["man"]),
        ("msgfs.bash", &["completions", "bash"]),
        ("_msgfs", &["completions", "zsh"]),
        ("msgfs.fish", &["completions", "fish"]),
    ];
    for (name, args) in pages {
        let kept = fs::read_to_string(folder.join(name)).unwrap();
        assert!(
            kept == text(&run(args).stdout),
            "{name}: mount-scripts/package pages writes it anew"
        );
    }
}

/// Packages contain the plugin that the program writes.
#[test]
fn the_plugin_is_current() {
    let home = tempfile::tempdir().unwrap();
    let written = home.path().join("written");
    let output = msgfs(home.path(), &["hook", "plugin", written.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("mount-scripts/claude-plugin");
    assert_eq!(files_below(&kept, &kept), files_below(&written, &written));
}

/// Returns every file below a folder, by its path in it.
fn files_below(folder: &Path, root: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files_below(&path, root));
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            all.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    all.sort();
    all
}

#[test]
fn the_version_says_which_links_are_built_in() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text(&run(&["-V"]).stdout), format!("msgfs {version}\n"));
    let features = [
        ("http", cfg!(feature = "http")),
        ("ftp", cfg!(feature = "ftp")),
        ("mail", cfg!(feature = "mail")),
        ("nats", cfg!(feature = "nats")),
    ];
    let names: Vec<&str> = features.iter().filter(|(_, is_in)| *is_in).map(|(n, _)| *n).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(" ") };
    assert_eq!(text(&run(&["--version"]).stdout), format!("msgfs {version}\nlinks: {names}\n"));
}

/// A configured link that is not built in is refused with the command that adds it; a link that is off is not refused.
#[test]
fn a_link_that_is_not_built_in_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config.toml");
    for (kind, is_in) in [("nats", cfg!(feature = "nats")), ("ftp", cfg!(feature = "ftp"))] {
        let url = if kind == "nats" { "url = \"nats://127.0.0.1:9\"\n" } else { "" };
        for off in [false, true] {
            let link = format!("[[link]]\nkind = \"{kind}\"\n{url}off = {off}\n");
            fs::write(&config, format!("me = \"foo\"\n{link}")).unwrap();
            let output = msgfs(home.path(), &["--config", config.to_str().unwrap(), "ls"]);
            let said = text(&output.stderr);
            let lacks = format!(
                "this msgfs was built without links of kind {kind}; to add them, in its source: cargo install"
            );
            assert_eq!(output.status.success(), is_in || off, "{said}");
            assert_eq!(said.contains(&lacks), !is_in && !off, "{said}");
        }
    }
}
