//! The saved snapshot of the index: damage in it, and the cost of damage.

use std::fs;
use std::path::PathBuf;

use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, binary, mounted, run, soon};

fn snapshot(bed: &Bed) -> PathBuf {
    bed.path("cache/msgfs/bar/index")
}

/// Puts other bytes in the place of the snapshot.
fn replace(bed: &Bed, bytes: &[u8]) {
    fs::remove_file(snapshot(bed)).unwrap();
    fs::write(snapshot(bed), bytes).unwrap();
}

fn everything(m: &Mount) -> String {
    m.ok("ls -R inbox sent threads && cat archive/*/*.txt")
}

/// S610: the mount shows the content of the stores, whatever part of the snapshot is damaged, cut or of another
/// version.
#[test]
fn s610_damaged_snapshots_are_not_used() {
    let bed = Bed::new();
    for n in 0..40 {
        let from = ["foo", "zed", "bar"][n % 3];
        samp::append(
            &bed.store,
            from,
            "bar",
            &format!("t{}", n % 7),
            &format!("text {n}"),
            T0 + n as i64,
        );
    }
    let m = bed.mount("bar");
    let right = everything(&m);
    m.umount();
    let good = fs::read(snapshot(&bed)).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let places = (0..12).map(|n| flipped(good.len() * n / 12));
    let cuts = [0, 10, good.len() / 2, good.len() - 1].map(|len| good[..len].to_vec());
    let older = [b"msgfs-index-0011", &good[16..]].concat();
    for bytes in places.chain(cuts).chain([older]) {
        replace(&bed, &bytes);
        let m = bed.mount("bar");
        assert_eq!(everything(&m), right);
        m.umount();
    }
}

/// S611: damage in a large snapshot that is noticed late costs one new mount, which reads the stores.
#[test]
fn s611_damage_that_is_met_late() {
    const N: usize = 60_000;
    let bed = Bed::new();
    let rec = |n| samp::Rec::new("foo", "bar", &format!("thread {n}"), "text", T0 + n as i64);
    let lines: String = (0..N).map(|n| rec(n).line()).collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), lines);
    let m = bed.mount("bar");
    let right = m.ok("ls inbox");
    assert_eq!(right.lines().count(), N);
    m.umount();
    let mut bytes = fs::read(snapshot(&bed)).unwrap();
    assert!(bytes.len() > 5 << 20, "{}", bytes.len());
    // The messages themselves come first, after a head.
    let at = bytes.len() / 4;
    bytes[at] ^= 1;
    replace(&bed, &bytes);
    let m = Mount::guard(&bed, &bed.path("mnt-bar"), "bar");
    let mut mount = bed.msgfs(["mount", "--me", "bar"]);
    mount.arg(&m.dir);
    assert!(run(mount, None).ok());
    // The damage may be noticed at once. Then this is a moment without a mount.
    let out = m.sh("ls inbox");
    assert!(!out.ok() || out.stdout == right, "nothing wrong is shown");
    soon("it is mounted anew", || mounted(&m.dir) && m.sh("ls inbox").ok());
    assert_eq!(m.ok("ls inbox"), right);
    assert_eq!(
        m.ok("ls inbox | tail -n 2 | sed s,^,inbox/, | xargs grep -h ^text"),
        "text\ntext\n"
    );
    let log = fs::read_to_string(bed.state("bar").join("log")).unwrap();
    assert!(log.contains("the index on disk is damaged"), "{log}");
    m.umount();
    // There is damage everywhere in the large tables, also in those of hashes. Mail that came meanwhile makes
    // msgfs notice it before the mount answers.
    let damage = || {
        let mut bytes = fs::read(snapshot(&bed)).unwrap();
        let large = bytes.len() / 8..bytes.len() * 3 / 4;
        bytes[large].iter_mut().step_by(4 << 10).for_each(|byte| *byte ^= 1);
        replace(&bed, &bytes);
    };
    damage();
    samp::append_raw(&samp::log(&bed.store, "foo"), rec(N).line());
    let m = bed.mount("bar");
    assert_eq!(m.ok("ls inbox").lines().count(), N + 1);
    m.umount();
    // A hook prints nothing and does not fail. A command says what to do, and after that it works.
    let told =
        br#"{"session_id":"s1","cwd":"/p","hook_event_name":"UserPromptSubmit","prompt":"x"}"#;
    let mut hook = bed.command(binary());
    hook.args(["hook", "run", "prompt", "--for", "codex", "--me", "bar"]);
    damage();
    let out = run(hook, Some(told));
    assert!(out.ok() && out.said().is_empty(), "{out:?}");
    assert!(!snapshot(&bed).exists(), "the hook has met the damage");
    bed.mount("bar").umount();
    damage();
    let first = bed.msgfs_out(&["--me", "bar", "ls", "inbox"]);
    assert!(
        first.status.is_some_and(|s| s.code() == Some(1))
            && first.stderr.contains("run this again"),
        "{first:?}"
    );
    let again = bed.msgfs_out(&["--me", "bar", "ls", "inbox"]);
    assert_eq!(again.stdout.lines().count(), N + 1);
}

/// S611: a write into the snapshot while it is mapped is noticed before anything wrong is shown, also in a small one.
#[test]
fn s611_damage_while_mounted() {
    for (count, page) in [(50, 0), (50, 1), (3000, 3)] {
        let bed = Bed::new();
        let rec = |n| samp::Rec::new("foo", "bar", &format!("t{n}"), "text", T0 + n as i64);
        let lines: String = (0..count).map(|n| rec(n).line()).collect();
        samp::append_raw(&samp::log(&bed.store, "foo"), lines);
        bed.mount("bar").umount();
        let m = bed.mount("bar");
        let right = m.ok("ls inbox");
        assert_eq!(right.lines().count(), count);
        let zero = "dd if=/dev/zero of=\"$XDG_CACHE_HOME/msgfs/bar/index\" bs=4096 count=1 conv=notrunc status=none";
        m.ok(&format!("{zero} seek={page}"));
        let out = m.sh("ls inbox");
        assert!(!out.ok() || out.stdout == right, "nothing wrong is shown: {out:?}");
        soon("it is mounted anew", || mounted(&m.dir) && m.sh("ls inbox").ok());
        assert_eq!(m.ok("ls inbox"), right);
        assert_eq!(m.ok("cat archive/*/*.txt | grep -c ^text").trim(), count.to_string());
    }
}
