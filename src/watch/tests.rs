use std::time::Duration;

use super::watch_loop::{AGAIN, POLL};
use super::*;
use crate::model::Watch;
use crate::model::locks::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

const SOON: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_millis(300);

fn start(targets: Vec<WatchTarget>, how: Watch) -> Watcher {
    WatcherBuilder::new(how).start(targets).unwrap().0
}

/// Watches the folders of `dirs` for files named `a` and for folders.
fn watch(
    dirs: impl Fn() -> Vec<PathBuf> + Send + 'static,
    how: Watch,
) -> (Watcher, Receiver<FolderChanges>) {
    let (tx, rx) = channel();
    let target = WatchTarget {
        dirs: Box::new(dirs),
        is_relevant: Box::new(|folder, name| name == "a" || folder.join(name).is_dir()),
        on_close_only: false,
        on_change: Box::new(move |what| {
            let _ = tx.send(what.clone());
        }),
        is_failing: Box::new(|| false),
        due_time: Box::new(|| None),
    };
    (start(vec![target], how), rx)
}

fn watch_one(dir: &Path, how: Watch) -> (Watcher, Receiver<FolderChanges>) {
    let dir = dir.to_owned();
    watch(move || vec![dir.clone()], how)
}

/// The folder and all folders in it.
fn subfolders(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let mut out: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_dir()).collect();
    out.push(dir.to_owned());
    out
}

/// Waits until this path is reported.
#[track_caller]
fn expect(rx: &Receiver<FolderChanges>, path: &Path) {
    let deadline = Instant::now() + SOON;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match rx.recv_timeout(left).expect("the path was not told") {
            FolderChanges::Paths(paths) if paths.iter().any(|p| p == path) => return,
            _ => {}
        }
    }
}

#[track_caller]
fn expect_unknown(rx: &Receiver<FolderChanges>) {
    while rx.recv_timeout(SOON).expect("nothing was told") != FolderChanges::Unknown {}
}

/// Changes between the listing of a folder and the start are reported, unless the folder must be listed again.
#[test]
fn what_happens_in_a_folder_that_is_watched_ahead_is_told() {
    let base = tempfile::tempdir().unwrap();
    let [same, new, replaced] = ["same", "new", "replaced"].map(|name| base.path().join(name));
    for folder in [&same, &new, &replaced] {
        std::fs::create_dir(folder).unwrap();
    }
    let (tx, rx) = channel();
    let target = |dirs: Vec<PathBuf>| {
        let tx = tx.clone();
        WatchTarget {
            dirs: Box::new(move || dirs.clone()),
            is_relevant: Box::new(|_, name| name == "a"),
            on_close_only: false,
            on_change: Box::new(move |what| {
                let _ = tx.send(what.clone());
            }),
            is_failing: Box::new(|| false),
            due_time: Box::new(|| None),
        }
    };
    let ahead = WatcherBuilder::new(Watch::Auto);
    for folder in [&same, &replaced, &base.path().join("gone")] {
        ahead.watch_folder(folder);
    }
    std::fs::write(same.join("a"), "x").unwrap();
    std::fs::remove_dir(&replaced).unwrap();
    std::fs::create_dir(&replaced).unwrap();
    let targets = vec![
        target(vec![same.clone()]),
        target(vec![same.clone(), new.clone()]),
        target(vec![replaced.clone()]),
        target(vec![base.path().join("gone")]),
    ];
    let (_watcher, others) = ahead.start(targets).unwrap();
    assert_eq!(others, [1, 2, 3]);
    // Both targets that list the folder were called before the start was over.
    let told: Vec<FolderChanges> = rx.try_iter().collect();
    assert_eq!(
        told,
        [FolderChanges::Paths(vec![same.join("a")]), FolderChanges::Paths(vec![same.join("a")])]
    );
    ahead.watch_folder(&new);
    std::fs::write(new.join("a"), "x").unwrap();
    expect(&rx, &new.join("a"));
}

#[test]
fn where_nothing_can_be_watched_nothing_was_watched_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let target = WatchTarget {
        dirs: Box::new(move || vec![path.clone()]),
        is_relevant: Box::new(|_, _| true),
        on_close_only: false,
        on_change: Box::new(|_| {}),
        is_failing: Box::new(|| false),
        due_time: Box::new(|| None),
    };
    let ahead = WatcherBuilder::new(Watch::Poll);
    ahead.watch_folder(dir.path());
    assert_eq!(ahead.start(vec![target]).unwrap().1, [0]);
}

#[test]
fn changes_of_names_that_matter_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (_watcher, rx) = watch_one(dir.path(), Watch::Auto);
    std::fs::write(dir.path().join("b"), "x").unwrap();
    assert_eq!(rx.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout));
    std::fs::write(dir.path().join("a"), "x").unwrap();
    assert_eq!(rx.recv_timeout(SOON), Ok(FolderChanges::Paths(vec![dir.path().join("a")])));
}

#[test]
fn a_folder_that_is_replaced_is_watched_again() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("d");
    std::fs::create_dir(&dir).unwrap();
    let (_watcher, rx) = watch_one(&dir, Watch::Auto);
    std::fs::remove_dir(&dir).unwrap();
    expect_unknown(&rx);
    std::fs::create_dir(&dir).unwrap();
    // The folder is found at once or by polling, and is watched from then on.
    rx.recv_timeout(SOON).unwrap();
    std::fs::write(dir.join("a"), "x").unwrap();
    expect(&rx, &dir.join("a"));
}

#[test]
fn polling_looks_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (watcher, rx) = watch_one(dir.path(), Watch::Poll);
    expect_unknown(&rx);
    expect_unknown(&rx);
    drop(watcher);
}

#[test]
fn a_folder_that_does_not_exist_is_told_of_when_it_appears_and_not_before() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("later");
    let (_watcher, rx) = watch_one(&dir, Watch::Auto);
    assert_eq!(rx.recv_timeout(POLL * 3), Err(RecvTimeoutError::Timeout));
    std::fs::create_dir(&dir).unwrap();
    expect_unknown(&rx);
    std::fs::write(dir.join("a"), "x").unwrap();
    expect(&rx, &dir.join("a"));
}

#[test]
fn new_folders_get_a_watch_and_what_was_in_them_before_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().to_owned();
    let (_watcher, rx) = watch(move || subfolders(&base), Watch::Auto);
    let new = dir.path().join("day");
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("early"), "x").unwrap();
    // It is reported once because it came, and once because it is watched now.
    expect(&rx, &new);
    expect(&rx, &new);
    std::fs::write(new.join("a"), "x").unwrap();
    expect(&rx, &new.join("a"));
    std::fs::rename(&new, dir.path().join("moved")).unwrap();
    // The folder is reported before it has its new watch, and after.
    let file = dir.path().join("moved/a");
    let deadline = Instant::now() + SOON;
    let mut told = false;
    while !told {
        assert!(Instant::now() < deadline, "the moved folder is not watched");
        std::fs::write(&file, "x").unwrap();
        while let Ok(what) = rx.recv_timeout(Duration::from_millis(50)) {
            told |= what == FolderChanges::Paths(vec![file.clone()]);
        }
    }
}

#[test]
fn folders_that_are_listed_no_longer_are_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    std::fs::create_dir(&one).unwrap();
    std::fs::create_dir(&two).unwrap();
    let both = Arc::new(AtomicBool::new(true));
    let (ask, paths) = (Arc::clone(&both), (one.clone(), two.clone()));
    let list = move || {
        let mut out = vec![paths.0.clone()];
        out.extend(ask.load(Ordering::Relaxed).then(|| paths.1.clone()));
        out
    };
    let (watcher, rx) = watch(list, Watch::Auto);
    std::fs::write(two.join("a"), "x").unwrap();
    expect(&rx, &two.join("a"));
    both.store(false, Ordering::Relaxed);
    std::fs::write(one.join("a"), "x").unwrap();
    expect(&rx, &one.join("a"));
    std::thread::sleep(QUIET);
    while rx.try_recv().is_ok() {}
    std::fs::write(two.join("a"), "y").unwrap();
    assert_eq!(rx.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout));
    both.store(true, Ordering::Relaxed);
    watcher.waker().refresh_folders();
    expect(&rx, &two);
}

#[test]
fn thousands_of_folders_are_watched() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..3000 {
        std::fs::create_dir(dir.path().join(n.to_string())).unwrap();
    }
    let base = dir.path().to_owned();
    let (_watcher, rx) = watch(move || subfolders(&base), Watch::Auto);
    for n in [0, 1234, 2999] {
        let file = dir.path().join(n.to_string()).join("a");
        std::fs::write(&file, "x").unwrap();
        expect(&rx, &file);
    }
}

#[test]
fn two_targets_may_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (tx, rx) = channel();
    let target = |name: &'static str| {
        let (dir, tx) = (dir.path().to_owned(), tx.clone());
        WatchTarget {
            dirs: Box::new(move || vec![dir.clone()]),
            is_relevant: Box::new(move |_, changed| changed == name),
            on_close_only: false,
            on_change: Box::new(move |_| {
                let _ = tx.send(name);
            }),
            is_failing: Box::new(|| false),
            due_time: Box::new(|| None),
        }
    };
    let _watcher = start(vec![target("a"), target("b")], Watch::Auto);
    std::fs::write(dir.path().join("b"), "x").unwrap();
    assert_eq!(rx.recv_timeout(SOON), Ok("b"));
    std::fs::write(dir.path().join("a"), "x").unwrap();
    while rx.recv_timeout(SOON).unwrap() != "a" {}
}

#[test]
fn a_folder_whose_files_are_held_open_is_followed_by_its_path() {
    let base = tempfile::tempdir().unwrap();
    let above = base.path().join("above");
    let dir = above.join("d");
    let file = dir.join("a");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(&file, "x").unwrap();
    let (_watcher, rx) = watch_one(&dir, Watch::Auto);
    let mut held = Vec::new();
    let mut followed = |make: &dyn Fn()| {
        held.push(std::fs::File::open(&file).unwrap());
        make();
        // A write before the new watch is reported as unknown, a later one by name.
        let deadline = Instant::now() + SOON;
        loop {
            assert!(Instant::now() < deadline, "the new folder is not watched");
            std::fs::write(&file, "x").unwrap();
            match rx.recv_timeout(Duration::from_millis(50)) {
                Ok(FolderChanges::Paths(paths)) if paths.contains(&file) => break,
                _ => {}
            }
        }
        while rx.recv_timeout(QUIET).is_ok() {}
    };
    let elsewhere = base.path().join("elsewhere");
    followed(&|| {
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
    });
    followed(&|| {
        std::fs::rename(&above, &elsewhere).unwrap();
        std::thread::sleep(QUIET);
        std::fs::rename(&elsewhere, &above).unwrap();
    });
    followed(&|| {
        std::fs::rename(&above, &elsewhere).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::remove_dir_all(&elsewhere).unwrap();
    });
    followed(&|| {
        std::fs::rename(&dir, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &dir).unwrap();
    });
}

#[test]
fn what_could_not_be_read_is_told_again_ever_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let (tx, rx) = channel();
    let failing = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&failing);
    let target = WatchTarget {
        dirs: Box::new(move || vec![path.clone()]),
        is_relevant: Box::new(|_, _| true),
        on_close_only: false,
        on_change: Box::new(move |what| {
            let _ = tx.send((what.clone(), Instant::now()));
        }),
        is_failing: Box::new(move || fails.load(Ordering::Relaxed)),
        due_time: Box::new(|| None),
    };
    let watcher = start(vec![target], Watch::Auto);
    watcher.waker().refresh_folders();
    let told = |_| rx.recv_timeout(SOON * 6).expect("it is not told again");
    let (times, whats): (Vec<_>, Vec<_>) = (0..2).map(told).map(|(what, at)| (at, what)).unzip();
    assert_eq!(whats, [FolderChanges::Unknown, FolderChanges::Unknown]);
    assert!(times[1] - times[0] >= AGAIN[0] * 2);
    failing.store(false, Ordering::Relaxed);
    std::fs::write(dir.path().join("a"), "x").unwrap();
    while rx.recv_timeout(SOON).expect("nothing is told").0 == FolderChanges::Unknown {}
    while rx.recv_timeout(Duration::from_secs(5)).is_ok() {}
}

#[test]
fn what_is_due_is_told_without_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let (tx, rx) = channel();
    let due = Arc::new(Mutex::new(Some(Instant::now() + QUIET)));
    let (asked, done) = (Arc::clone(&due), Arc::clone(&due));
    let target = WatchTarget {
        dirs: Box::new(move || vec![path.clone()]),
        is_relevant: Box::new(|_, _| true),
        on_close_only: false,
        on_change: Box::new(move |what| {
            let due = done.lock().take();
            let _ = tx.send((what.clone(), due.is_some_and(|due| due <= Instant::now())));
        }),
        is_failing: Box::new(|| false),
        due_time: Box::new(move || *asked.lock()),
    };
    let watcher = start(vec![target], Watch::Auto);
    watcher.waker().refresh_folders();
    assert_eq!(rx.recv_timeout(SOON), Ok((FolderChanges::Paths(Vec::new()), true)));
    assert_eq!(rx.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout));
}
