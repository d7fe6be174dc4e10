//! File systems that do not answer. A program that asks one waits in the kernel, where no signal reaches it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo,
    MountOption, ReplyAttr, ReplyEntry, ReplyStatfs, Request, Session,
};

use crate::common::fixtures::three;
use crate::common::proc::{Running, run_for};
use crate::common::{Bed, Out, binary, detach, quote, soon};

/// A time longer than any command here may take on a busy machine, and shorter than for ever.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A question that was taken and not answered. Dropping it answers with an error.
enum Kept {
    Entry(#[expect(dead_code, reason = "held until it is dropped")] ReplyEntry),
    Numbers(#[expect(dead_code, reason = "held until it is dropped")] ReplyStatfs),
}

/// The questions, until one is answered.
type Questions = Arc<Mutex<Option<Vec<Kept>>>>;

/// A file system that takes every question and answers only the one for its own folder.
struct Silent(Questions);

impl Silent {
    fn keep(&self, kept: Kept) {
        if let Some(all) = self.0.lock().unwrap().as_mut() {
            all.push(kept);
        }
    }
}

impl Filesystem for Silent {
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let now = SystemTime::now();
        let attr = FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: 512,
            flags: 0,
        };
        reply.attr(&Duration::ZERO, &attr);
    }

    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: fuser::ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &std::ffi::OsStr, reply: ReplyEntry) {
        self.keep(Kept::Entry(reply));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.keep(Kept::Numbers(reply));
    }
}

/// Such a file system, mounted. When it ends, every waiting program gets an answer.
struct SilentMount {
    dir: PathBuf,
    questions: Questions,
    session: Option<BackgroundSession>,
}

impl SilentMount {
    fn at(dir: PathBuf, source: &str) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let questions = Arc::new(Mutex::new(Some(Vec::new())));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(source.to_owned())];
        let session = Session::new(Silent(Arc::clone(&questions)), &dir, &config).unwrap();
        Self { dir, questions, session: Some(session.spawn().unwrap()) }
    }

    /// Returns the number of waiting questions.
    fn waiting(&self) -> usize {
        self.questions.lock().unwrap().as_ref().map_or(0, Vec::len)
    }
}

impl Drop for SilentMount {
    fn drop(&mut self) {
        drop(self.questions.lock().unwrap().take());
        detach(&self.dir);
        drop(self.session.take());
    }
}

fn ends(command: Command, input: Option<&[u8]>) -> Out {
    run_for(command, input, ENDS_WITHIN)
}

/// S590: a mount that takes a question and does not answer keeps no command from ending. `doctor` reports it, and
/// so do `mount` and `umount` for paths below it.
#[test]
fn s590_a_silent_mount_is_told() {
    let bed = Bed::new();
    let silent = SilentMount::at(bed.path("silent"), "msgfs");
    let told = |args: &[&str]| {
        let mut command = bed.msgfs(args);
        command.args(["--me", "bar"]);
        let out = ends(command, None);
        assert_eq!(out.code(), Some(1), "{args:?}: {out:?}");
        assert!(out.said().contains("does not answer"), "{args:?}: {out:?}");
        out.said()
    };
    let dir = silent.dir.to_str().unwrap().to_owned();
    let said = told(&["doctor"]);
    assert!(said.contains(&format!("msgfs umount --lazy {dir}")), "{said}");
    assert!(silent.waiting() > 0, "nobody asked");
    told(&["doctor", "--json"]);
    told(&["mount", &dir]);
    told(&["mount", &format!("{dir}/below")]);
    told(&["umount", &dir]);
    told(&["umount", &format!("{dir}/below")]);
    let out = ends(bed.msgfs(["umount", "--lazy", &dir]), None);
    assert!(out.ok() && out.stderr.contains("is detached"), "{out:?}");
    let mut command = bed.msgfs(["doctor"]);
    command.args(["--me", "bar"]);
    let said = ends(command, None).said();
    assert!(!said.contains(&dir), "{said}");
}

/// S590: the same holds for a stopped msgfs. It goes on afterwards as if nothing had happened.
#[test]
fn s590_a_stopped_msgfs() {
    let bed = Bed::new();
    let recs = three(&bed);
    let m = bed.mount("bar");
    m.stop();
    let dir = m.dir.to_str().unwrap();
    for (args, code) in [
        (&["doctor"][..], 1),
        (&["status"], 0),
        (&["ls", "inbox"], 0),
        (&["mount", dir], 1),
        (&["umount", dir], 1),
    ] {
        let mut command = bed.msgfs(args);
        command.args(["--me", "bar"]);
        let out = ends(command, None);
        assert_eq!(out.code(), Some(code), "{args:?}: {out:?}");
        if code == 1 {
            assert!(out.said().contains("does not answer"), "{args:?}: {out:?}");
        }
    }
    m.go_on();
    assert_eq!(m.ls("inbox"), [recs[0].name(0), recs[1].name(0), recs[2].name(0)]);
}

/// S981: a command that acts for a name whose msgfs is stopped says so within seconds, names the process and the
/// command that lets it go on, and does nothing. A command that only looks says so, too, and reads the stores.
#[test]
fn s981_a_command_names_the_stopped_msgfs() {
    let bed = Bed::new();
    let recs = three(&bed);
    let m = bed.mount("bar");
    m.stop();
    let acts: [(&[&str], Option<i32>); 4] = [
        (&["inbox"], Some(1)),
        (&["send", "foo", "hi"], Some(1)),
        (&["mark", "--all"], Some(1)),
        (&["status"], Some(0)),
    ];
    for (args, code) in acts {
        let began = Instant::now();
        let mut command = bed.msgfs(args);
        command.args(["--me", "bar"]);
        let out = ends(command, None);
        assert!(began.elapsed() < Duration::from_secs(30), "{args:?}: {:?}", began.elapsed());
        assert_eq!(out.code(), code, "{args:?}: {out:?}");
        let dir = m.dir.display();
        for part in [
            format!("the mount of bar does not answer, because it is stopped (process {}", m.pid()),
            format!("kill -CONT {}", m.pid()),
            format!("msgfs umount --lazy {dir}"),
        ] {
            assert!(out.stderr.contains(&part), "{args:?}: {out:?}");
        }
        assert_eq!(out.stdout.contains("unread: 3"), code == Some(0), "{args:?}: {out:?}");
    }
    m.go_on();
    assert_eq!(m.ls("inbox"), [recs[0].name(0), recs[1].name(0), recs[2].name(0)]);
    assert!(m.ls("outbox").is_empty() && m.ls("sent").is_empty());
}

/// S1229: `msgfs ask` ends with code 3 when its time is over, also if the mount is stopped while it waits. The message
/// stays sent.
#[test]
fn s1229_stopped_while_a_question_waits() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let said = bed.path("said");
    let mut command = bed.command("bash");
    let ask = "ask foo --new --timeout 5 --me bar 'which port?'";
    let script = format!("exec {} {ask} 2> {}", quote(&binary()), quote(&said));
    command.args(["-c", &script]);
    let one = Running::start(command, None).unwrap();
    let notices = || fs::read_to_string(&said).unwrap_or_default();
    soon("it is sent", || notices().contains("sent to foo"));
    m.stop();
    let began = Instant::now();
    let out = one.finish(ENDS_WITHIN).unwrap();
    m.go_on();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!((out.code(), out.stdout.as_str()), (Some(3), ""), "{}", notices());
    assert!(notices().contains("the message"), "{}", notices());
    assert_eq!(m.ls("sent").len(), 1);
}

/// S591: a folder that does not answer stops no program that only has it as working directory, and no program that
/// has a store there beside others.
#[test]
fn s591_a_silent_folder() {
    let bed = Bed::new();
    three(&bed);
    let silent = SilentMount::at(bed.path("silent"), "other");
    // If me is known, the folder is not asked for it. Otherwise the error says that it cannot be found out.
    let here = |args: &[&str]| {
        let mut command = bed.msgfs(args);
        command.current_dir(&silent.dir);
        ends(command, None)
    };
    let out = here(&["--me", "bar", "ls", "inbox"]);
    assert!(out.ok() && out.stdout.lines().count() == 3, "{out:?}");
    for args in [&["ls", "inbox"][..], &["doctor"]] {
        let out = here(args);
        assert_eq!(out.code(), Some(1), "{out:?}");
        let said = out.said();
        assert!(said.contains("does not answer") && said.contains("--me NAME"), "{said}");
    }
    // A hook asks the folder, too.
    let mut hook = bed.msgfs(["hook", "run", "prompt", "--for", "claude-code"]);
    hook.env("CLAUDE_PROJECT_DIR", &silent.dir);
    let told = format!(r#"{{"session_id":"1","cwd":{:?}}}"#, silent.dir);
    let out = ends(hook, Some(told.as_bytes()));
    assert!(out.ok() && out.said().is_empty(), "{out:?}");

    let store = silent.dir.join("queue");
    let found = bed.path("store");
    bed.config(&format!(
        "me = \"bar\"\n[[store]]\nname = \"far\"\nkind = \"amq\"\ndir = {store:?}\n\
         [[store]]\nname = \"near\"\nkind = \"samp\"\ndir = {found:?}\n"
    ));
    let out = ends(bed.msgfs(["ls", "inbox"]), None);
    assert!(out.ok() && out.stdout.lines().count() == 3, "{out:?}");
    assert!(out.stderr.contains("the store far is left out"), "{out:?}");
    assert!(out.stderr.contains("does not answer"), "{out:?}");
    let out = ends(bed.msgfs(["doctor"]), None);
    assert!(out.code() == Some(1) && out.stdout.contains("the store far:"), "{out:?}");
    assert!(out.stdout.contains("does not answer"), "{out:?}");
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox").len(), 3);
}
