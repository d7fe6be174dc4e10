//! Texts that stores keep: `me/`.

use super::*;
use crate::view::me::MeKey;
use crate::view::table::ViewKey;

fn with_book(texts: &[(&str, &str)]) -> Bed {
    let mut s = store(Vec::new());
    let book = Texts::default();
    for (name, text) in texts {
        book.put("notes", name, text);
    }
    s.book = Some(book);
    bed(vec![s])
}

fn written(b: &Bed) -> Vec<String> {
    b.book().written.lock().drain(..).map(|(name, text)| format!("{name}={text}")).collect()
}

#[test]
fn texts_are_listed_and_read() {
    let b = with_book(&[("x.txt", "hello"), ("a.txt", "")]);
    assert_eq!(b.names("me"), ["notes", "plans"]);
    assert_eq!(b.names("me/notes"), ["a.txt", "x.txt"]);
    assert_eq!(b.cat("me/notes/x.txt"), "hello");
    let attr = b.attr("me/notes/x.txt");
    assert_eq!((attr.mode, attr.size, attr.time), (0o600, 5, Timestamp::from_secs(1000)));
    let dir = b.attr("me/notes");
    assert!(dir.is_dir && dir.mode == 0o700 && dir.time == Timestamp::from_secs(1001));
    assert_eq!(b.attr("me").time, dir.time);
    assert_eq!(b.errno("me/notes/no.txt"), libc::ENOENT);
    assert_eq!(b.errno("me/other"), libc::ENOENT);
    assert!(written(&b).is_empty());
}

#[test]
fn a_text_is_written_once_a_change() {
    let b = with_book(&[("x.txt", "old\n")]);
    b.write("me/notes", "x.txt", "new", false).unwrap();
    assert_eq!(written(&b), ["x.txt=new"]);
    b.write("me/notes", "x.txt", " more", true).unwrap();
    assert_eq!(written(&b), ["x.txt=new more"]);
    b.write("me/plans", "fresh.txt", "first", true).unwrap();
    assert_eq!(written(&b), ["fresh.txt=first"]);
    assert_eq!(b.cat("me/plans/fresh.txt"), "first");
    // Opening for writing and closing without a write changes nothing.
    let file = b.open("me/notes", "x.txt", true);
    b.tree.flush(&file, 7).unwrap();
    b.tree.release(&file);
    assert!(written(&b).is_empty());
    // Each close of the opener that has something new saves. The flush of a child that shares the descriptor
    // does not.
    let file = b.open("me/notes", "x.txt", false);
    b.tree.writer().write_file(&file, 0, b"a").unwrap();
    b.tree.flush(&file, 8).unwrap();
    assert!(written(&b).is_empty());
    assert_eq!(b.attr("me/notes/x.txt").size, 1);
    b.tree.writer().write_file(&file, 1, b"b").unwrap();
    b.tree.release(&file);
    assert_eq!(written(&b), ["x.txt=ab"]);
    // `: > x.txt` empties it, and only at the end.
    let file = b.open("me/notes", "x.txt", false);
    b.tree.flush(&file, 7).unwrap();
    assert!(written(&b).is_empty());
    b.tree.release(&file);
    assert_eq!(written(&b), ["x.txt="]);
}

#[test]
fn lengths_and_times_can_be_set_as_programs_do() {
    let b = with_book(&[("x.txt", "abcdef")]);
    let node = b.tree.resolve_path("me/notes/x.txt").unwrap();
    b.tree.writer().set_len(&node, None, 3).unwrap();
    assert_eq!(written(&b), ["x.txt=abc"]);
    assert!(node.has(NodeProperty::Editable), "chmod and touch are taken silently");
    let file = b.open("me/notes", "x.txt", true);
    b.tree.writer().set_len(&node, Some(&file), 1).unwrap();
    assert_eq!((b.tree.writer().open_len(&file), b.attr("me/notes/x.txt").size), (Some(1), 1));
    b.tree.release(&file);
    assert_eq!(written(&b), ["x.txt=a"]);
    let too_long = "x".repeat(1001);
    let e = b.write("me/notes", "x.txt", &too_long, false).unwrap_err();
    assert_eq!(e.errno(), libc::EFBIG);
    // The part that was written before does not replace the whole text that the store has.
    let file = b.open("me/notes", "x.txt", false);
    b.tree.writer().write_file(&file, 0, b"part").unwrap();
    assert_eq!(
        b.tree.writer().write_file(&file, 4, too_long.as_bytes()).unwrap_err().errno(),
        libc::EFBIG
    );
    assert_eq!(b.tree.flush(&file, 7).unwrap_err().errno(), libc::EFBIG);
    b.tree.release(&file);
    assert!(written(&b).is_empty());
    assert_eq!(
        (b.cat("me/notes/x.txt"), b.cat("me/notes/.x.txt.unsaved")),
        ("a".into(), "part".into())
    );
}

#[test]
fn a_name_that_cannot_be_is_refused_when_it_is_made() {
    let b = with_book(&[]);
    let e = b.try_open("me/notes", "no-ending", false).unwrap_err();
    assert_eq!(e.errno(), libc::EINVAL);
    for folder in ["me", "me/notes"] {
        let node = b.tree.resolve_path(folder).unwrap();
        assert_eq!(b.tree.writer().mkdir(&node, "x").unwrap_err().errno(), libc::EPERM);
    }
    assert_eq!(b.try_open("me", "x.txt", false).unwrap_err().errno(), libc::EPERM);
    assert!(b.names("me/notes").is_empty());
}

#[test]
fn private_names_live_here_until_they_get_a_plain_one() {
    let b = with_book(&[("x.txt", "old")]);
    b.write("me/notes", "sedAb12Cd", "new", false).unwrap();
    b.write("me/notes", ".y.txt.QwErTy", "synced", false).unwrap();
    assert_eq!(b.names("me/notes"), [".y.txt.QwErTy", "sedAb12Cd", "x.txt"]);
    assert_eq!(b.cat("me/notes/sedAb12Cd"), "new");
    b.rename("me/notes", "sedAb12Cd", "x.txt").unwrap();
    // rsync renames while the release of its temporary file may still be under way.
    let open = b.open("me/notes", ".y.txt.QwErTy", true);
    b.rename("me/notes", ".y.txt.QwErTy", "y.txt").unwrap();
    assert_eq!(b.names("me/notes"), ["x.txt", "y.txt"]);
    b.tree.release(&open);
    assert_eq!(written(&b), ["x.txt=new", "y.txt=synced"]);
    assert_eq!((b.cat("me/notes/x.txt"), b.cat("me/notes/y.txt")), ("new".into(), "synced".into()));
    // A rename that the store refuses changes nothing.
    b.write("me/notes", "z.tmp", "z", false).unwrap();
    assert_eq!(b.rename("me/notes", "z.tmp", "bad name").unwrap_err().errno(), libc::EINVAL);
    assert_eq!(b.cat("me/notes/z.tmp"), "z");
    let notes = b.tree.resolve_path("me/notes").unwrap();
    let e = b.tree.writer().rename(&notes, "z.tmp", &notes, "x.txt", false).unwrap_err();
    assert_eq!(e.errno(), libc::EEXIST);
    let cut = b.open("me/notes", "cut.tmp", false);
    b.tree.writer().write_file(&cut, 0, b"beginning").unwrap();
    b.tree.writer().write_file(&cut, 9, "x".repeat(1000).as_bytes()).unwrap_err();
    b.tree.release(&cut);
    assert_eq!(b.rename("me/notes", "cut.tmp", "x.txt").unwrap_err().errno(), libc::EFBIG);
    b.unlink("me/notes", "cut.tmp").unwrap();
    b.rename("me/notes", "z.tmp", "w.tmp").unwrap();
    b.unlink("me/notes", "w.tmp").unwrap();
    assert_eq!(b.unlink("me/notes", "w.tmp").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(b.names("me/notes"), ["x.txt", "y.txt"]);
}

#[test]
fn texts_are_not_removed_or_renamed() {
    let b = with_book(&[("x.txt", "old")]);
    for done in [b.unlink("me/notes", "x.txt"), b.rename("me/notes", "x.txt", "y.txt")] {
        let e = done.unwrap_err();
        assert_eq!(e.errno(), libc::EPERM, "{e}");
    }
    let plans = b.tree.resolve_path("me/plans").unwrap();
    let notes = b.tree.resolve_path("me/notes").unwrap();
    let e = b.tree.writer().rename(&notes, "x.txt", &plans, "x.txt", true).unwrap_err();
    assert_eq!(e.errno(), libc::EXDEV, "mv then copies");
    assert_eq!(b.cat("me/notes/x.txt"), "old");
}

#[test]
fn a_text_that_gets_the_name_of_one_that_was_moved_away_is_shown() {
    let b = with_book(&[("x.txt", "old"), ("y.txt", "other")]);
    b.book().removable.store(true, Ordering::Relaxed);
    b.rename("me/notes", "x.txt", "x.txt~").unwrap();
    b.rename("me/notes", "y.txt", "x.txt").unwrap();
    assert_eq!(b.names("me/notes"), ["x.txt", "x.txt~"]);
    assert_eq!((b.cat("me/notes/x.txt"), b.cat("me/notes/x.txt~")), ("other".into(), "old".into()));
}

#[test]
fn an_editor_moves_the_text_away_writes_it_anew_and_drops_the_old() {
    let b = with_book(&[("x.txt", "old")]);
    b.rename("me/notes", "x.txt", "x.txt~").unwrap();
    assert_eq!(b.names("me/notes"), ["x.txt~"]);
    assert_eq!(b.errno("me/notes/x.txt"), libc::ENOENT);
    assert_eq!(b.book().get("notes", "x.txt").unwrap(), "old", "the store keeps it");
    b.write("me/notes", "x.txt", "new", true).unwrap();
    assert_eq!(written(&b), ["x.txt=new"], "not added to what was moved away");
    b.unlink("me/notes", "x.txt~").unwrap();
    assert_eq!(b.names("me/notes"), ["x.txt"]);
    // Only the backup is removed: the text is under its name again.
    b.rename("me/notes", "x.txt", "x.txt~").unwrap();
    b.unlink("me/notes", "x.txt~").unwrap();
    assert_eq!(b.cat("me/notes/x.txt"), "new");
    // The text is renamed back, as after a failed write.
    b.rename("me/notes", "x.txt", "x.txt~").unwrap();
    b.rename("me/notes", "x.txt~", "x.txt").unwrap();
    assert_eq!(
        (b.names("me/notes"), b.cat("me/notes/x.txt")),
        (vec!["x.txt".into()], "new".into())
    );
}

#[test]
fn two_who_write_at_once_lose_nothing_to_each_other() {
    let b = with_book(&[("log.txt", "0")]);
    let one = b.open("me/notes", "log.txt", true);
    let two = b.open("me/notes", "log.txt", true);
    b.tree.writer().write_file(&one, 0, b"1").unwrap();
    b.tree.writer().write_file(&two, 0, b"2").unwrap();
    b.tree.flush(&one, 7).unwrap();
    b.tree.release(&one);
    b.tree.release(&two);
    assert_eq!(b.book().get("notes", "log.txt").unwrap(), "012");
    // Another program adds to the text in the store meanwhile.
    let mine = b.open("me/notes", "log.txt", true);
    b.book().put("notes", "log.txt", "012 theirs");
    b.tree.writer().write_file(&mine, 0, b" mine").unwrap();
    b.tree.flush(&mine, 7).unwrap();
    b.tree.release(&mine);
    assert_eq!(b.book().get("notes", "log.txt").unwrap(), "012 theirs mine");
    // A text that replaces the other one replaces its additions, too.
    let mine = b.open("me/notes", "log.txt", false);
    b.book().put("notes", "log.txt", "theirs");
    b.tree.writer().write_file(&mine, 0, b"mine").unwrap();
    b.tree.release(&mine);
    assert_eq!(b.book().get("notes", "log.txt").unwrap(), "mine");
}

#[test]
fn what_cannot_be_saved_is_told_and_kept() {
    let b = with_book(&[("x.txt", "old")]);
    b.book().full.store(true, Ordering::Relaxed);
    let e = b.write("me/notes", "x.txt", " one", true).unwrap_err();
    assert_eq!(e.errno(), libc::ENOSPC);
    b.write("me/notes", "x.txt", " two", true).unwrap_err();
    assert_eq!(b.names("me/notes"), [".x.txt.unsaved", ".x.txt.unsaved.2", "x.txt"]);
    assert_eq!(b.cat("me/notes/x.txt"), "old");
    assert_eq!(b.cat("me/notes/.x.txt.unsaved"), "old one");
    assert_eq!(b.cat("me/notes/.x.txt.unsaved.2"), "old two");
    let status = b.cat("status.txt");
    assert!(status.contains("note: me/notes/x.txt was not saved: "), "{status}");
    assert!(status.contains("me/notes/.x.txt.unsaved.2 until"), "{status}");
    b.book().full.store(false, Ordering::Relaxed);
    b.rename("me/notes", ".x.txt.unsaved", "x.txt").unwrap();
    b.unlink("me/notes", ".x.txt.unsaved.2").unwrap();
    assert_eq!(b.cat("me/notes/x.txt"), "old one");
    assert!(!b.cat("status.txt").contains("not saved"));
}

#[test]
fn two_stores_with_texts_have_a_folder_each() {
    let both = ["work", "home"].map(|name| {
        let book = Texts::default();
        book.put("notes", "x.txt", name);
        Memory { book: Some(book), ..named(name, Vec::new()) }
    });
    let b = bed(both.into());
    assert_eq!(b.names("me"), ["work", "home"]);
    assert_eq!(b.names("me/home"), ["notes", "plans"]);
    assert_eq!(b.cat("me/home/notes/x.txt"), "home");
    b.write("me/work/notes", "x.txt", "new", false).unwrap();
    assert_eq!(
        (b.cat("me/work/notes/x.txt"), b.cat("me/home/notes/x.txt")),
        ("new".into(), "home".into())
    );
    let notes = b.tree.resolve_path("me/home/notes").unwrap();
    assert_eq!(b.tree.parent_folder(&notes), b.tree.resolve_path("me/home").unwrap());
    assert_eq!(b.tree.parent_folder(&b.tree.parent_folder(&notes)), ViewKey::Me(MeKey::Top).into());
    assert!(b.cat("README.txt").contains("me/STORE/{notes,plans}/"));
}

#[test]
fn a_read_only_tree_shows_texts_and_takes_none() {
    let mut s = store(Vec::new());
    s.book = Some(Texts::default());
    s.book.as_ref().unwrap().put("notes", "x.txt", "text");
    let b = bed_with(vec![s], true);
    assert_eq!((b.cat("me/notes/x.txt"), b.attr("me/notes/x.txt").mode), ("text".into(), 0o400));
    for done in [
        b.try_open("me/notes", "x.txt", true).map(drop),
        b.try_open("me/notes", "y.txt", false).map(drop),
        b.unlink("me/notes", "x.txt"),
        b.rename("me/notes", "x.txt", "y"),
    ] {
        assert_eq!(done.unwrap_err().errno(), libc::EROFS);
    }
}
