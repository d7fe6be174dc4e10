//! `search/`: queries, the entries of their folders, `hits.txt`, and damage of the index.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::*;
use crate::search::SearchSettings;

/// Makes a letter with a subject and a body.
fn about(id: &str, secs: i64, subject: &str, body: &str) -> Letter {
    let plain = letter(id, secs, &[]);
    let subject = Some(subject.to_owned()).filter(|subject| !subject.is_empty());
    Letter { message: Message { subject, body: body.into(), ..plain.message }, ..plain }
}

fn letters() -> Vec<Letter> {
    vec![
        about("00000001", T0, "Parser bug", "the parser fails on Äpfel\n"),
        about("00000002", T0 + 1, "", "no parser here\nbut a second line\n"),
        about("00000003", T0 + 86_400, "bug", "a long phrase of words\n"),
    ]
}

/// Makes a tree that searches, with the file of its index.
fn searching(letters: Vec<Letter>, may_write: bool) -> (Bed, PathBuf) {
    let mut bed = bed(vec![store(letters)]);
    let file = bed.dir.path().join("cache/search");
    let search = Some(SearchSettings { file: file.clone(), may_write });
    let (index, outbox) = (Arc::clone(&bed.tree.index), bed.tree.outbox.clone());
    bed.tree = Tree::new(index, outbox, TreeSettings { search, ..bed.tree.settings.clone() });
    (bed, file)
}

/// Returns the ids of the messages that a query lists.
fn ids(bed: &Bed, query: &str) -> Vec<String> {
    let names = bed.names(&format!("search/{query}"));
    let texts = names.iter().filter_map(|name| name.strip_suffix(".txt"));
    let ids = texts.filter_map(|stem| stem.rsplit_once('-')).map(|(_, id)| id.to_owned());
    ids.collect()
}

fn find(bed: &Bed, query: &str) -> String {
    let ids = ids(bed, query);
    ids.iter().map(|id| id.trim_start_matches('0')).collect::<Vec<_>>().join(" ")
}

#[test]
fn words_of_subject_and_body_are_found() {
    for may_write in [true, false] {
        let (bed, _) = searching(letters(), may_write);
        for (query, found) in [
            ("parser", "1 2"),
            ("parser bug", "1"),
            ("PARSER -bug", "2"),
            ("apfel", "1"),
            ("\"long phrase\"", "3"),
            ("phras*", "3"),
            ("subject:parser", "1"),
            ("bob", ""),
            ("from:bob", "1 2 3"),
            ("from:bob@x bug", "1 3"),
            ("from:bo", ""),
            ("to:me parser", "1 2"),
            ("thread:00000002", "2"),
            ("-thread:00000002", "1 3"),
            ("store:amp", "1 2 3"),
            ("store:other", ""),
            ("after:2026-04-25", "3"),
            ("before:2026-04-25", "1 2"),
            ("is:unread", "1 2 3"),
            ("-is:unread", ""),
            ("second%2Fline", "2"),
        ] {
            assert_eq!(find(&bed, query), found, "{query}");
        }
    }
}

#[test]
fn the_entries_are_the_files_of_the_archive() {
    let (bed, _) = searching(letters(), true);
    let name = format!("{STEM}.txt");
    let (found, archived) = (format!("search/parser/{name}"), format!("archive/{DAY}/{name}"));
    assert_eq!(bed.attr(&found).ino, bed.attr(&archived).ino);
    assert_eq!(bed.cat(&found), bed.cat(&archived));
    assert_eq!(bed.attr("search/parser").time, Timestamp::from_secs(T0 + 1));
    assert_eq!(bed.cat("search/parser/00000001.txt"), bed.cat(&archived));
    assert_eq!(bed.errno("search/parser/00000003.txt"), libc::ENOENT);
    assert_eq!(
        bed.errno(&format!("search/bug/{}", name.replace("00000001", "00000002"))),
        libc::ENOENT
    );
    bed.tree.resolve_path(&format!("search/parser/{STEM}.reply")).unwrap();
    assert!(bed.tree.index.read().messages.lists().unread().count() == 3, "nothing is read");
}

#[test]
fn an_id_has_a_dot_and_a_wrong_one_is_noted() {
    let all = vec![about("1234.5678@x.org", T0, "", "parser"), about("00000002", T0 + 1, "", "no")];
    let (bed, _) = searching(all, true);
    for name in ["1234.5678@x.org", "1234.5678@x.org.txt"] {
        assert!(bed.cat(&format!("search/parser/{name}")).contains("parser"), "{name}");
    }
    assert_eq!(bed.tree.last_unknown_id.get(), None);
    // A message that is no hit is not in the folder.
    for (name, id) in [("deadbeef", "deadbeef"), ("00000002.txt", "00000002")] {
        assert_eq!(bed.errno(&format!("search/parser/{name}")), libc::ENOENT);
        assert_eq!(bed.tree.last_unknown_id.get().map(|unknown| unknown.id), Some(id.into()));
    }
}

#[test]
fn hits_are_listed_newest_first() {
    let (bed, _) = searching(letters(), true);
    assert_eq!(
        bed.cat("search/parser/hits.txt"),
        "00000002\tbob@x\t2026-04-24\tno parser here\tno parser here\n\
         00000001\tbob@x\t2026-04-24\tParser bug\tthe parser fails on Äpfel\n\
         2 hits\n"
    );
    assert_eq!(bed.cat("search/nothing/hits.txt"), "0 hits: no message matches\n");
    assert_eq!(bed.names("search/nothing"), ["hits.txt"]);
    let text = bed.cat("search/parser/hits.txt");
    assert_eq!(bed.attr("search/parser/hits.txt").size, text.len() as u64);
}

#[test]
fn a_line_of_hits_has_at_most_80_characters() {
    let long = format!("{} needle {}", "x y ".repeat(5000), "z\u{7}\u{202e} ".repeat(5000));
    let subject = "a very long subject ".repeat(20);
    let many = (1..=30).map(|n| about(&format!("{n:08}"), T0 + n, &subject, &long)).collect();
    let (bed, _) = searching(many, true);
    let text = bed.cat("search/needle/hits.txt");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[10]), (11, "30 hits"));
    for line in &lines[..10] {
        assert!(line.chars().count() <= 80 && line.contains("needle"), "{line}");
        assert!(!line.contains(['\u{7}', '\u{202e}']), "{line:?}");
        assert_eq!(line.split('\t').count(), 5, "{line}");
    }
    assert!(text.len() < 1200, "{}", text.len());
}

#[test]
fn a_query_that_cannot_be_parsed_is_not_there() {
    let (bed, _) = searching(letters(), true);
    for query in ["\"open", "from:", "after:yesterday", "!!!", "-", "is:new", " "] {
        assert_eq!(bed.errno(&format!("search/{query}")), libc::ENOENT, "{query}");
    }
    assert_eq!(bed.errno("search/.git"), libc::ENOENT);
    assert!(bed.names("search").is_empty());
    let _ = bed.tree.resolve_path("search/from:");
    let status = bed.cat("status.txt");
    assert!(
        status.contains("\nlast bad query: from: (a value must follow from: at once)\n"),
        "{status}"
    );
}

#[test]
fn a_message_is_found_as_soon_as_it_is_listed() {
    let (bed, _) = searching(letters(), true);
    assert_eq!(find(&bed, "parser"), "1 2");
    bed.stores[0].folder.lock().push(about("00000004", T0 + 9, "", "a new parser"));
    bed.tree.index.refresh_store(0, true).unwrap();
    assert_eq!(find(&bed, "parser"), "1 2 4");
    assert!(bed.cat("search/parser/hits.txt").contains("3 hits"));
}

#[test]
fn a_damaged_index_is_made_again() {
    let (bed, file) = searching(letters(), true);
    assert_eq!(find(&bed, "parser"), "1 2");
    bed.tree.stop_search();
    let whole = fs::read(&file).unwrap();
    let half = |at: usize, with: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let harms: Vec<Option<Vec<u8>>> = vec![
        None,
        Some(Vec::new()),
        Some(whole[..whole.len() / 2].to_vec()),
        Some(whole[..100].to_vec()),
        Some(vec![0; whole.len()]),
        Some(vec![0xff; whole.len()]),
        Some(half(whole.len() / 2, &[0xa5; 64])),
        Some(half(whole.len() - 4000, &[0; 3000])),
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let damage = || match &harm {
            None => fs::remove_file(&file).unwrap(),
            Some(bytes) => fs::write(&file, bytes).unwrap(),
        };
        // The hits of one query are kept, so each is another.
        let listed = |tree: &Tree, when: &str| {
            let listed =
                list_path(tree, &format!("search/parser -x{number}{}", when.replace(' ', "")))
                    .unwrap();
            assert_eq!(listed.len(), 3, "{number} {when}");
        };
        let tree = || Tree::new(Arc::clone(&bed.tree.index), None, bed.tree.settings.clone());
        let first = tree();
        listed(&first, "before");
        damage();
        listed(&first, "while open");
        first.stop_search();
        damage();
        let second = tree();
        listed(&second, "while closed");
        second.stop_search();
    }
}

/// S936: the words of a subject are those that its file shows, so such a message never costs the index its file.
#[test]
fn a_subject_is_found_by_the_words_that_are_shown() {
    let hidden = about("00000001", T0, "de\u{34f}ploy no\u{ad}w", "a text\n");
    let (bed, file) = searching(vec![hidden], true);
    assert_eq!(find(&bed, "ploy"), "1");
    let inode = || fs::metadata(&file).map(|meta| meta.ino()).unwrap();
    let first = inode();
    for number in 0..5 {
        // The hits of one query are kept, so each is another.
        assert_eq!(find(&bed, &format!("deploy -x{number}")), "");
    }
    assert_eq!(find(&bed, "\"de ploy no w\""), "1");
    assert_eq!(inode(), first);
}

#[test]
fn a_process_that_may_not_write_leaves_the_file_alone() {
    let (bed, file) = searching(letters(), false);
    assert_eq!(find(&bed, "parser"), "1 2");
    assert!(!file.exists());
    let (writer, written) = searching(letters(), true);
    assert_eq!(find(&writer, "parser"), "1 2");
    writer.tree.stop_search();
    let before = fs::read(&written).unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for (harm, bytes) in [("whole", before.clone()), ("cut", before[..before.len() / 2].to_vec())] {
        fs::write(&file, &bytes).unwrap();
        assert_eq!(find(&bed, &format!("parser -{harm}")), "1 2", "{harm}");
        assert_eq!(fs::read(&file).unwrap(), bytes, "{harm}");
    }
}

#[test]
fn a_folder_that_takes_no_file_hides_nothing() {
    let (bed, file) = searching(letters(), true);
    fs::write(file.parent().unwrap(), "a file in place of the folder").unwrap();
    assert_eq!(find(&bed, "parser"), "1 2");
    let status = bed.cat("status.txt");
    assert!(status.contains("the index of search cannot be written to"), "{status}");
}

#[test]
fn hostile_texts_and_queries_are_bounded() {
    let line = "long ".repeat(400_000);
    let words: Vec<String> = (0..100_000).map(|n| format!("w{n:x}")).collect();
    let words = words.join(" ");
    let odd = "\u{1}nul\0 \u{feff}zero\u{200b}width \u{1b}[31m colour";
    let all = vec![
        about("00000001", T0, "", &line),
        about("00000002", T0 + 1, "", &words),
        about("00000003", T0 + 2, "", odd),
        about("00000004", T0 + 3, "", &"(a+)+$ ".repeat(1000)),
    ];
    let (bed, _) = searching(all, true);
    for (query, found) in [
        ("long".to_owned(), "1"),
        ("w1869f".to_owned(), "2"),
        ("w186*".to_owned(), "2"),
        ("colour".to_owned(), "3"),
        ("(a+)+$".to_owned(), "4"),
        (".*.*.*a".replace('.', "x"), ""),
        ("a".repeat(255), ""),
        ("a ".repeat(127), "4"),
    ] {
        assert_eq!(find(&bed, &query), found, "{query}");
    }
    for number in 0..2000 {
        let _ = bed.tree.resolve_path(&format!("search/q{number}"));
    }
}

#[test]
fn without_search_there_is_no_folder() {
    let bed = bed(vec![store(letters())]);
    assert!(!bed.names("").contains(&"search".to_owned()));
    assert_eq!(bed.errno("search"), libc::ENOENT);
}

/// The name of a message whose time is outside the calendar opens as it is listed.
#[test]
fn a_hit_of_a_time_outside_the_calendar_is_found_by_its_name() {
    let far = about("00000001", T0 * 1000, "Parser bug", "x\n");
    let (bed, _) = searching(vec![far, about("00000002", T0, "parser", "y\n")], true);
    let names = bed.names("search/parser");
    assert!(names.iter().any(|name| name.starts_with("99991231T")), "{names:?}");
    for name in &names {
        assert!(bed.tree.resolve_path(&format!("search/parser/{name}")).is_ok(), "{name}");
    }
}
