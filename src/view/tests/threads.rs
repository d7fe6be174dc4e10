//! Folders of threads whose ids carry labels, and of threads without messages.

use super::*;
use crate::store::EmptyThread;
use crate::view::folder_scope::FolderScope;
use crate::view::messages::MessagesKey;

fn in_thread(id: &str, thread: &str, secs: i64) -> Letter {
    let mut l = letter(id, secs, &[]);
    l.message.thread = Some(thread.to_owned());
    l
}

fn labelled(letters: Vec<Letter>) -> Memory {
    let mut memory = named("atsf", letters);
    memory.about.threads = crate::store::ThreadScheme::Labels;
    memory
}

fn empty(id: &str, secs: i64) -> EmptyThread {
    EmptyThread { id: id.into(), title: None, time: Timestamp::from_secs(secs) }
}

#[test]
fn a_label_tells_threads_of_one_id_apart() {
    let b = bed(vec![labelled(vec![
        in_thread("00000001aaaa", "t", T0),
        in_thread("00000002aaaa", "t\0my tree", T0 + 1),
        in_thread("00000003aaaa", "u\0tree", T0 + 2),
    ])]);
    let names = ["t", "t~my%20tree", "u~tree"];
    assert_eq!(b.names("threads"), names);
    assert_eq!(b.names("transcripts"), names.map(|n| format!("{n}.txt")));
    for (name, thread) in names.iter().zip(["t", "t", "u"]) {
        let files = b.names(&format!("threads/{name}"));
        assert_eq!(files.len(), 1, "{name}");
        let text = b.cat(&format!("threads/{name}/{}", files[0]));
        assert!(text.contains(&format!("Thread: {thread}\n")), "{text}");
        assert!(b.cat(&format!("transcripts/{name}.txt")).contains(&text));
        let attr = b.attr(&format!("threads/{name}"));
        assert_eq!(
            b.tree.node_by_inode(attr.ino),
            Some(b.tree.resolve_path(&format!("threads/{name}")).unwrap())
        );
    }
    for other in ["u", "t~tree", "t~my tree", "t~my%20tree~atsf", "t~", "~tree", "t%00my%20tree"] {
        assert_eq!(b.errno(&format!("threads/{other}")), libc::ENOENT, "{other}");
    }
}

#[test]
fn a_label_never_passes_for_the_name_of_a_store() {
    let mut plain = store(vec![in_thread("00000001aaaa", "t", T0)]);
    plain.about.name = "work".into();
    let b = bed(vec![
        plain,
        labelled(vec![
            in_thread("00000002aaaa", "t", T0 + 1),
            in_thread("00000003aaaa", "t\0work", T0 + 2),
        ]),
    ]);
    let mut names = b.names("threads");
    names.sort();
    assert_eq!(names, ["t~atsf", "t~work", "t~work~atsf"]);
    let of = |name: &str| b.names(&format!("threads/{name}")).pop().unwrap();
    assert!(of("t~work").contains("00000001") && of("t~atsf").contains("00000002"));
    assert!(of("t~work~atsf").contains("00000003"));
}

#[test]
fn a_label_that_is_too_long_is_cut_with_its_id() {
    let ids = ["a", "b"].map(|end| format!("{}\0{}{end}", "x".repeat(150), "y".repeat(150)));
    let b = bed(vec![labelled(vec![
        in_thread("00000001aaaa", &ids[0], T0),
        in_thread("00000002aaaa", &ids[1], T0 + 1),
    ])]);
    let names = b.names("threads");
    assert!(names.len() == 2 && names.iter().all(|n| n.len() == 200), "{names:?}");
    for (name, id) in names.iter().zip(["00000001", "00000002"]) {
        assert!(b.names(&format!("threads/{name}"))[0].contains(id));
    }
}

#[test]
fn a_thread_without_messages_is_a_folder_that_can_be_written() {
    let s = labelled(vec![in_thread("00000001aaaa", "full", T0)]);
    s.folder.lock().empty = vec![empty("bare", T0 + 50), empty("bare\0tree", 7)];
    let b = bed(vec![s]);
    assert_eq!(b.names("threads"), ["bare", "bare~tree", "full"]);
    assert_eq!(b.names("transcripts"), ["full.txt"], "there is nothing to read in the others");
    assert_eq!(b.errno("transcripts/bare.txt"), libc::ENOENT);
    assert_eq!(b.names("threads/bare"), [""; 0]);
    let attr = b.attr("threads/bare");
    assert!(attr.is_dir && attr.time == Timestamp::from_secs(T0 + 50));
    assert_eq!(b.attr("threads/bare~tree").time, Timestamp::from_secs(7));
    assert_eq!(b.attr("threads").time, Timestamp::from_secs(T0 + 50));
    assert_eq!(b.attr("transcripts").time, Timestamp::from_secs(T0));
    // The draft must name its recipient here; then it only fails because this store signs nothing.
    let e = b.write("threads/bare", "new", "hi\n", false).unwrap_err();
    assert_eq!(e.errno(), libc::EDESTADDRREQ, "{e}");
    let e = b.write("threads/bare", "new", "To: bob@x\n\nhi\n", false).unwrap_err();
    assert_eq!(e.errno(), libc::ENOKEY, "{e}");
    // The next process gives the same number.
    let again = tree(&b.dir, &b.stores, true);
    assert_eq!(again.inode_number(&again.resolve_path("threads/bare").unwrap()), attr.ino);
    assert_eq!(
        again.stat_node(&again.resolve_path("threads/bare").unwrap()).unwrap().time,
        attr.time
    );
}

#[test]
fn a_thread_without_messages_goes_when_it_is_not_reported_and_gets_a_transcript_with_its_first() {
    let s = labelled(Vec::new());
    s.folder.lock().empty = vec![empty("a", 5), empty("b", 6)];
    let b = bed(vec![s]);
    let threads = ["a", "b"].map(|id| {
        let tables = b.tree.index().read();
        tables.threads.find_thread(&tables.messages, 0, id).unwrap()
    });
    b.stores[0].folder.lock().push(in_thread("00000001aaaa", "b", T0));
    b.stores[0].folder.lock().empty.clear();
    b.tree.index().refresh_store(0, true).unwrap();
    assert_eq!(
        (b.names("threads"), b.names("transcripts")),
        (vec!["b".into()], vec!["b.txt".into()])
    );
    assert_eq!(b.errno("threads/a"), libc::ENOENT);
    let stale = b
        .tree
        .stale_inodes(&IndexChanges { empty_threads: threads.to_vec(), ..IndexChanges::default() });
    for expected in [
        MessagesKey::Threads.into(),
        FolderScope::Thread(threads[0]).into(),
        FolderScope::Thread(threads[1]).into(),
        transcript::transcript_node(threads[0]),
    ] {
        assert!(stale.contains(&b.tree.inode_number(&expected)), "{expected:?} missing");
    }
}

/// Returns two ids whose names are cut to the same bytes and whose hashes begin alike.
fn alike() -> [String; 2] {
    ["739", "3062"].map(|n| format!("{}-{n:0>18}", "x".repeat(190)))
}

#[test]
fn two_threads_with_equal_beginnings_have_names_that_no_arrival_changes() {
    let [first, second] = alike();
    let mut b = bed(vec![store(vec![in_thread("00000001aaaa", &first, T0)])]);
    let name = b.names("threads").remove(0);
    // The later one claims to be older.
    b.stores[0].folder.lock().push(in_thread("00000002aaaa", &second, T0 - 9));
    b.tree.index().refresh_store(0, true).unwrap();
    for round in ["while it runs", "with a snapshot", "without one"] {
        let names = b.names("threads");
        assert_eq!(names.len(), 2, "{round}");
        let other = names.iter().find(|n| **n != name).unwrap();
        assert_eq!((names.contains(&name), name.len(), other.len()), (true, 200, 200), "{round}");
        for (name, id) in [(&name, "00000001"), (other, "00000002")] {
            assert!(b.names(&format!("threads/{name}"))[0].contains(id), "{round}");
            assert!(b.cat(&format!("transcripts/{name}.txt")).contains(id), "{round}");
        }
        b.tree.index().close();
        if round == "with a snapshot" {
            std::fs::remove_file(b.dir.path().join("snapshot")).unwrap();
        }
        b.tree = tree(&b.dir, &b.stores, false);
    }
}

#[test]
fn a_draft_never_takes_the_place_of_a_message() {
    let b = bed(vec![store(vec![letter("00000001aaaa", T0, &[("f", "x")])])]);
    let thread = "threads/00000001aaaa";
    b.write(thread, "x.tmp", "text", false).unwrap();
    let long = ["txt", "d"].map(|ending| format!("{STEM}.{ending}"));
    let short = ["00000001", "00000001aaaa", "00000001.txt"].map(str::to_owned);
    for name in long.into_iter().chain(short) {
        let e = b.rename(thread, "x.tmp", &name).unwrap_err();
        assert_eq!(e.errno(), libc::EPERM, "{name}: {e}");
        assert_eq!(b.cat(&format!("{thread}/x.tmp")), "text", "the draft stays");
    }
}

#[test]
fn threads_are_as_new_as_a_message_between_others_in_one_of_mine() {
    let between_others = |id: &str, thread: &str, secs: i64| {
        let mut letter = in_thread(id, thread, secs);
        letter.message.to = vec!["carol".to_owned()];
        letter
    };
    let b = bed(vec![store(vec![
        in_thread("00000001aaaa", "mine", T0),
        between_others("00000002aaaa", "mine", T0 + 9),
        between_others("00000003aaaa", "theirs", T0 + 20),
    ])]);
    assert_eq!((b.names("threads"), b.names("threads/mine").len()), (vec!["mine".to_owned()], 2));
    for folder in ["threads/mine", "threads", "transcripts"] {
        assert_eq!(b.attr(folder).time, Timestamp::from_secs(T0 + 9), "{folder}");
    }
}

/// `threads/` is as new as the newest message of a shown thread, also between others, whatever comes and goes. More
/// messages than one block has do not change that.
#[test]
fn the_time_of_threads_follows_each_arrival() {
    let sent = |id: usize, thread: &str, secs: i64, to: &str| {
        let mut letter = in_thread(&format!("{id:08}aaaa"), thread, T0 + secs);
        letter.message.to = vec![to.into()];
        letter
    };
    let b = bed(vec![store((0..5000).map(|n| sent(n, "mine", n as i64 % 7, "me")).collect())]);
    let time_after = |change: &dyn Fn(&mut Folder)| {
        change(&mut b.stores[0].folder.lock());
        b.tree.index().refresh_store(0, true).unwrap();
        assert_eq!(b.attr("threads").time, b.attr("transcripts").time);
        b.attr("threads").time.secs() - T0
    };
    assert_eq!(time_after(&|_| {}), 6);
    // A thread of others is not shown; a message of others in a shown thread counts.
    assert_eq!(time_after(&|f| f.push(sent(5000, "theirs", 50, "carol"))), 6);
    assert_eq!(time_after(&|f| f.push(sent(5001, "mine", 40, "carol"))), 40);
    assert_eq!(time_after(&|f| f.push(sent(5002, "mine", 30, "me"))), 40);
    // Now the thread of others is shown.
    assert_eq!(time_after(&|f| f.push(sent(5003, "theirs", 1, "me"))), 50);
    let later = |letter: &mut Letter| letter.message.time = Timestamp::from_secs(T0 + 60);
    assert_eq!(time_after(&|f| f.change(5001, later)), 60);
    assert_eq!(time_after(&|f| f.remove(5001)), 50);
    assert_eq!(time_after(&|f| f.remove(5000)), 30);
}
