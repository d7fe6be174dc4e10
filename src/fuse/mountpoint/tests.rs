//! Tests of the mount table parser and of questions about paths.

use std::os::unix::ffi::OsStrExt;

use super::*;
use proptest::prelude::*;

const TABLE: &[u8] = br"22 28 0:21 / /proc rw,nosuid - proc proc rw
36 28 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue
80 28 0:50 / /home/a\040b/ma\134il rw,nosuid,nodev - fuse.msgfs msg\011fs rw,user_id=1000
81 28 0:51 / /stack rw - tmpfs tmpfs rw
82 81 0:52 / /stack ro - fuse.msgfs msgfs ro

short line
83 28 0:53 / relative rw - tmpfs t rw
85 28 0:54 / /by/root rw - fuse msgfs rw
86 28 0:55 / /other rw - fuse sshfs rw
84 28 0:53 / /no/separator rw shared:1 tmpfs t rw
";

#[test]
fn the_table_is_read_with_its_escapes_and_optional_fields() {
    let mounts = parse_mounts(TABLE);
    let paths: Vec<_> = mounts.iter().map(|m| m.mountpoint.to_str().unwrap()).collect();
    assert_eq!(
        paths,
        ["/proc", "/mnt2", r"/home/a b/ma\il", "/stack", "/stack", "/by/root", "/other"]
    );
    assert_eq!(mounts[1].fstype, "ext3");
    assert_eq!(mounts[2].source, "msg\tfs");
    assert_eq!(mounts[4].options, "ro");
}

#[test]
fn the_topmost_mount_counts() {
    let mounts = parse_mounts(TABLE);
    assert_eq!(find_mount(&mounts, Path::new("/stack")).unwrap().fstype, FSTYPE);
    assert_eq!(find_mount(&mounts, Path::new("/stac")), None);
    let ours: Vec<_> = list_our_mounts(&mounts).iter().map(|m| m.mountpoint.clone()).collect();
    assert_eq!(ours, [Path::new(r"/home/a b/ma\il"), Path::new("/stack"), Path::new("/by/root")]);
}

#[test]
fn a_covered_msgfs_is_not_listed() {
    let table = b"1 0 0:1 / /m rw - fuse.msgfs m rw\n2 0 0:2 / /m rw - tmpfs t rw\n";
    assert!(list_our_mounts(&parse_mounts(table)).is_empty());
}

#[test]
fn ordinary_folders_links_and_missing_paths_are_not_mounted() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
    for name in ["", "link", "loop", "missing", "missing/deeper"] {
        assert_eq!(mount_state(&dir.path().join(name)).unwrap(), MountState::NotMounted, "{name}");
    }
    let real = fs::canonicalize(dir.path()).unwrap();
    assert_eq!(resolve_mountpoint(&dir.path().join("link")).unwrap(), real);
    assert_eq!(resolve_mountpoint(&dir.path().join("missing")).unwrap(), real.join("missing"));
    assert!(resolve_mountpoint(&dir.path().join("loop")).is_err());
    assert!(resolve_mountpoint(&dir.path().join("missing/deeper")).is_err());
}

#[test]
fn another_file_system_is_named() {
    assert_eq!(mount_state(Path::new("/proc")).unwrap(), MountState::Foreign("proc".into()));
}

#[test]
fn what_answers_is_alive() {
    assert_eq!(probe_daemon(Path::new("/")), MountState::Alive);
}

#[test]
fn unmounting_what_is_no_mount_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(unmount_path(dir.path(), UnmountMode::IfIdle).is_err());
    assert!(dir.path().is_dir());
}

#[test]
fn containment_goes_by_components() {
    assert!(contains(Path::new("/a/b"), Path::new("/a/b")));
    assert!(contains(Path::new("/a/b"), Path::new("/a/b/c")));
    assert!(!contains(Path::new("/a/b"), Path::new("/a/bc")));
    assert!(!contains(Path::new("/a/b/c"), Path::new("/a/b")));
}

#[test]
fn words_survive_a_shell() {
    assert_eq!(shell_word(OsStr::new("/home/u/mail")), "/home/u/mail");
    assert_eq!(shell_word(OsStr::new("/a b/it's")), r"'/a b/it'\''s'");
    assert_eq!(shell_word(OsStr::new("")), "''");
}

/// Escapes a path as the kernel does (`seq_path` with `" \t\n\\#"`).
fn escape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for b in path {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => out.extend(format!("\\{b:03o}").bytes()),
            _ => out.push(*b),
        }
    }
    out
}

proptest! {
    #[test]
    fn any_table_is_parsed_without_panic(table in proptest::collection::vec(any::<u8>(), 0..400)) {
        for mount in parse_mounts(&table) {
            prop_assert!(mount.mountpoint.is_absolute());
        }
    }

    #[test]
    fn near_tables_are_parsed_without_panic(table in r"[0-9a/ \\\-\n]{0,200}") {
        parse_mounts(table.as_bytes());
    }

    #[test]
    fn any_path_round_trips(
        path in proptest::collection::vec(1u8..=255, 0..60),
        optional in proptest::collection::vec("[a-z]{1,8}:[0-9]{1,3}", 0..4),
    ) {
        let path = [b"/".as_slice(), &path].concat();
        let mut line = b"7 1 0:9 / ".to_vec();
        line.extend(escape(&path));
        let mut tags = String::new();
        for tag in &optional {
            tags.push(' ');
            tags.push_str(tag);
        }
        line.extend(format!(" rw{tags} - fuse.msgfs msgfs rw\n").bytes());
        let mounts = parse_mounts(&line);
        prop_assert_eq!(mounts.len(), 1);
        prop_assert_eq!(mounts[0].mountpoint.as_os_str().as_bytes(), path.as_slice());
        prop_assert_eq!(&mounts[0].fstype, FSTYPE);
    }
}
