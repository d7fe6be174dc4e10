//! Standing instructions.

use std::fs;

use super::bed;
use crate::common::Bed;

fn integrate(bed: &Bed, harness: &str, more: &[&str]) -> crate::common::Out {
    bed.msgfs_out(&[&["init", "--integrate", "--for", harness], more].concat())
}

/// S524: `msgfs init --integrate` writes a file of its own where the harness has a place for one. Otherwise it
/// writes a block of at most six lines between two markers. Line ends and a missing last one stay. The command can
/// be undone.
#[test]
fn s524_standing_instructions() {
    let bed = bed(0);
    for (harness, name) in [
        ("claude-code", "home/.claude/rules/msgfs.md"),
        ("copilot", "home/.copilot/instructions/msgfs.instructions.md"),
        ("cursor", "cwd/.cursor/rules/msgfs.mdc"),
    ] {
        let path = bed.path(name);
        let out = integrate(&bed, harness, &[]);
        assert!(out.ok() && out.stdout.contains("me: alice"), "{out:?}");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("information, not orders") && text.contains("`msgfs:`"), "{text}");
        assert_eq!(harness == "cursor", text.contains("alwaysApply: true"));
        assert!(integrate(&bed, harness, &[]).stdout.contains(": unchanged"));
        assert!(integrate(&bed, harness, &["--uninstall"]).stdout.contains(": removed"));
        assert!(!path.exists());
        fs::write(&path, "mine\n").unwrap();
        assert_eq!(integrate(&bed, harness, &[]).code(), Some(1));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine\n");
    }
    for (harness, name) in [
        ("codex", "home/.codex/AGENTS.md"),
        ("gemini", "home/.gemini/GEMINI.md"),
        ("opencode", "config/opencode/AGENTS.md"),
    ] {
        let path = bed.path(name);
        assert!(integrate(&bed, harness, &[]).ok());
        let block = fs::read_to_string(&path).unwrap();
        assert!(
            block.starts_with("<!-- msgfs begin -->\n") && block.ends_with("<!-- msgfs end -->\n")
        );
        assert!(block.lines().count() <= 8, "{block}");
        assert!(integrate(&bed, harness, &["--uninstall"]).ok());
        assert!(!path.exists());
        for before in ["", "# Rules\n", "no end", "a\r\nb\r\n", "a\r\nb", "x\n<!-- peer -->\n\n\n"]
        {
            fs::write(&path, before).unwrap();
            let dry = integrate(&bed, harness, &["--dry-run"]);
            assert!(dry.ok() && dry.stdout.contains("+<!-- msgfs begin -->"), "{dry:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
            assert!(integrate(&bed, harness, &[]).ok());
            let with = fs::read_to_string(&path).unwrap();
            assert!(with.starts_with(before));
            assert_eq!(with.contains("\r\n"), before.contains("\r\n"));
            let crlf = with.matches("\r\n").count();
            assert!(crlf == 0 || crlf == with.matches('\n').count(), "{with:?}");
            assert!(integrate(&bed, harness, &[]).stdout.contains(": unchanged"));
            assert!(integrate(&bed, harness, &["--uninstall"]).ok());
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
        }
        for before in ["a\r", "a\nb\r"] {
            fs::write(&path, before).unwrap();
            assert!(integrate(&bed, harness, &[]).ok());
            assert!(integrate(&bed, harness, &[]).stdout.contains(": unchanged"));
            let kept = fs::read_dir(path.parent().unwrap()).unwrap().flatten().map(|e| e.path());
            kept.filter(|kept| *kept != path).for_each(|kept| fs::remove_file(kept).unwrap());
            assert!(integrate(&bed, harness, &["--uninstall"]).ok());
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
        }
        let old = "a\n<!-- msgfs begin -->\nold\n<!-- msgfs end -->\nb\n";
        fs::write(&path, old).unwrap();
        assert!(integrate(&bed, harness, &[]).ok());
        let new = fs::read_to_string(&path).unwrap();
        assert!(
            new.starts_with("a\n<!-- msgfs begin -->\n`") && new.ends_with("-->\nb\n"),
            "{new}"
        );
        fs::write(&path, "<!-- msgfs begin -->\nhalf").unwrap();
        let out = integrate(&bed, harness, &[]);
        assert!(out.code() == Some(1) && out.stdout.contains("not one pair"), "{out:?}");
        for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
    let over = bed.path("home/.codex/AGENTS.override.md");
    fs::write(&over, "mine\n").unwrap();
    assert!(integrate(&bed, "codex", &[]).ok());
    assert!(fs::read_to_string(&over).unwrap().contains("msgfs begin"));
    assert!(!bed.path("home/.codex/AGENTS.md").exists());
    assert_eq!(bed.msgfs_out(&["init", "--dry-run"]).code(), Some(2));
    // OpenCode 1 has read this file instead so far.
    fs::create_dir_all(bed.path("home/.claude")).unwrap();
    fs::write(bed.path("home/.claude/CLAUDE.md"), "x").unwrap();
    let out = integrate(&bed, "opencode", &[]);
    assert!(out.ok() && out.stdout.contains("read ~/.claude/CLAUDE.md until now"), "{out:?}");
}

/// S1156: if Codex gets an `AGENTS.override.md` after the block was written into `AGENTS.md`, uninstall takes the block
/// out of each file that has it. `msgfs uninstall` lists the copies of both.
#[test]
fn s1156_the_block_goes_from_every_file() {
    let bed = bed(0);
    let path = bed.path("home/.codex/AGENTS.md");
    let over = bed.path("home/.codex/AGENTS.override.md");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "# Rules\n").unwrap();
    assert!(integrate(&bed, "codex", &[]).ok());
    fs::write(&over, "mine\n").unwrap();
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap();
    let with = read(&path);
    let dry = integrate(&bed, "codex", &["--uninstall", "--dry-run"]);
    assert!(dry.ok() && dry.stdout.contains("/.codex/AGENTS.md: would be written"), "{dry:?}");
    assert_eq!(read(&path), with);
    let all = bed.msgfs_out(&["uninstall", "--dry-run"]).stdout;
    assert!(all.contains("codex: ~/.codex/AGENTS.md: would be written"), "{all}");
    assert!(all.contains("~/.codex/AGENTS.md.msgfs-bak-"), "{all}");
    assert!(integrate(&bed, "codex", &[]).ok() && read(&over).contains("msgfs begin"));
    assert!(integrate(&bed, "codex", &["--uninstall"]).ok());
    assert_eq!((read(&path), read(&over)), ("# Rules\n".to_owned(), "mine\n".to_owned()));
    let again = integrate(&bed, "codex", &["--uninstall"]).stdout;
    let said = "codex: ~/.codex/AGENTS.override.md: unchanged\n";
    assert!(again.contains(said) && !again.contains("AGENTS.md:"), "{again}");
}
