//! The bed of one test: a fresh folder with its own HOME, XDG folders and store, real mounts in it, and guards.
//! The guards take everything down again, also when the test panics or the mount hangs.

pub(crate) mod agz;
pub(crate) mod amp;
pub(crate) mod atsf_reader;
pub(crate) mod dice;
pub(crate) mod fixtures;
pub(crate) mod proc;
pub(crate) mod samp;
pub(crate) mod shown;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) use proc::{Out, run, run_for};

/// The time that a mount may live before its connection to the kernel is aborted.
const LIMIT: Duration = Duration::from_secs(300);

/// The time that something may take on a busy machine, although it should take milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of the program under test; `MSGFS_TEST_BIN` names another one.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("MSGFS_TEST_BIN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_msgfs")), PathBuf::from)
}

/// Waits until `done` holds. Panics with `what` if it does not hold within `limit`.
#[track_caller]
pub(crate) fn wait_for(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Calls [`wait_for`] for something asynchronous, which takes milliseconds, and much longer on a busy machine.
#[track_caller]
pub(crate) fn soon(what: &str, done: impl FnMut() -> bool) {
    wait_for(PATIENCE, what, done);
}

/// A fresh set of folders.
pub(crate) struct Bed {
    root: tempfile::TempDir,
    /// The SAMP store.
    pub(crate) store: PathBuf,
    /// Extra environment variables for everything that is started from this bed.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// The time that its mounts may live.
    pub(crate) limit: Duration,
}

impl Bed {
    /// Makes the folders. Panics if this machine cannot mount.
    #[track_caller]
    pub(crate) fn new() -> Self {
        assert!(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse is missing: these tests need FUSE (modprobe fuse, or docker run --device /dev/fuse)"
        );
        let root = tempfile::Builder::new().prefix("msgfs-it-").tempdir().expect("tempdir");
        let bed = Self { store: root.path().join("store"), root, env: Vec::new(), limit: LIMIT };
        for d in ["home", "state", "cache", "config", "data", "run", "store", "cwd"] {
            fs::create_dir(bed.path(d)).expect("mkdir");
        }
        fs::set_permissions(bed.path("run"), fs::Permissions::from_mode(0o700)).expect("chmod");
        bed
    }

    /// Returns a path inside the bed.
    pub(crate) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.path().join(below)
    }

    /// Writes the configuration file.
    pub(crate) fn config(&self, text: &str) {
        fs::create_dir_all(self.path("config/msgfs")).expect("mkdir");
        fs::write(self.path("config/msgfs/config.toml"), text).expect("config");
    }

    /// Returns the state folder of `me`.
    pub(crate) fn state(&self, me: &str) -> PathBuf {
        self.path("state/msgfs").join(me)
    }

    /// Returns a command in this bed's environment. The time zone is far from UTC, so that nothing can mistake
    /// local days for UTC days.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = Command::new(program);
        c.current_dir(self.path("cwd"))
            .env("HOME", self.path("home"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("AGENT_MESSAGE_DIR", &self.store)
            .env("TZ", "<+14>-14")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("MSGFS_ME")
            .env_remove("AGENTAZALL_CONFIG")
            .env_remove("AGENTAZALL_ROOT")
            .env_remove("AGENTAZALL_AGENT")
            .env_remove("AMP_DIR")
            .env_remove("AMP_PROVIDER_DOMAIN")
            .env_remove("AM_ROOT")
            .env_remove("MAILDIR")
            .env_remove("RUST_LOG")
            .env_remove("NOTIFY_SOCKET");
        for (k, v) in &self.env {
            c.env(k, v);
        }
        c
    }

    /// Returns a `msgfs` command in this bed's environment.
    pub(crate) fn msgfs<S: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut c = self.command(binary());
        c.args(args);
        c
    }

    /// Runs `msgfs ARGS` to its end.
    #[track_caller]
    pub(crate) fn msgfs_out(&self, args: &[&str]) -> Out {
        run(self.msgfs(args), None)
    }

    /// Mounts for `me` on `<bed>/mnt-<me>`.
    #[track_caller]
    pub(crate) fn mount(&self, me: &str) -> Mount {
        self.mount_at(&self.path(format!("mnt-{me}")), me, &[])
    }

    /// Mounts for `me` on `dir` with further arguments.
    #[track_caller]
    pub(crate) fn mount_at(&self, dir: &Path, me: &str, extra: &[&str]) -> Mount {
        let mut c = self.msgfs(["mount"]);
        c.arg(dir).args(["--me", me]).args(extra);
        self.mount_by(c, dir, me)
    }

    /// Mounts by a process that is root without the right to ignore permissions, as in a container.
    pub(crate) fn mount_without_override(&self, me: &str) -> Mount {
        let mut c = self.command("setpriv");
        c.args([
            "--bounding-set=-dac_override,-dac_read_search",
            "--inh-caps=-dac_override,-dac_read_search",
        ]);
        c.arg(binary()).arg("mount").arg(self.path("m")).args(["--me", me]);
        self.mount_by(c, &self.path("m"), me)
    }

    /// Runs a mount command that should mount `dir` for `me`, and guards the result.
    #[track_caller]
    pub(crate) fn mount_by(&self, command: Command, dir: &Path, me: &str) -> Mount {
        let mut mount = Mount::guard(self, dir, me);
        let out = run_for(command, None, PATIENCE);
        assert!(out.ok(), "msgfs mount failed: {out:?}");
        mount.said = format!("{}{}", out.stdout, out.stderr);
        assert!(mounted(dir), "msgfs mount returned 0 but {} is not mounted", dir.display());
        mount.pid = lock_pid(&mount.lock);
        mount
    }

    /// Mounts for `me`, writes messages to `to`, and kills the mount in the middle. In each further round it kills the
    /// mount later. Returns the messages whose writers were told that they are sent.
    #[track_caller]
    pub(crate) fn killed_while_sending(&self, me: &str, to: &str, round: u64) -> Vec<String> {
        let m = self.mount(me);
        let mut c = self.command("bash");
        let one = format!("echo \"letter {round}-$i\"");
        let all = format!("{one} | tee outbox/{to} >/dev/null && {one} || exit");
        c.args(["-c", &format!("for i in $(seq 50); do {all}; done")]).current_dir(&m.dir);
        let writer = proc::Running::start(c, None).expect("start");
        std::thread::sleep(Duration::from_millis(40 + 37 * round));
        m.kill9();
        writer.finish(PATIENCE).expect("wait").stdout.lines().map(str::to_owned).collect()
    }

    /// Runs a shell script in the bed's `cwd`, outside any mount.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> Out {
        let mut c = self.command("bash");
        c.args(["-c", script]);
        run(c, None)
    }
}

impl Drop for Bed {
    /// Detaches mounts that a failed test left. Otherwise the folders could not be removed.
    fn drop(&mut self) {
        let Ok(root) = self.root.path().canonicalize() else { return };
        let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return };
        for place in table.lines().filter_map(|l| l.split(' ').nth(4)) {
            if Path::new(place).starts_with(&root) {
                detach(Path::new(place));
            }
        }
    }
}

/// Returns the pid in a state folder's lock file.
fn lock_pid(lock: &Path) -> Option<i32> {
    let text = fs::read_to_string(lock).ok()?;
    let v: serde_json::Value = serde_json::from_str(&text).ok()?;
    v.get("pid")?.as_i64()?.try_into().ok()
}

/// Returns the line of `/proc/self/mountinfo` for a mount point. The kernel's table touches no file system, so
/// this cannot hang.
fn mountinfo(dir: &Path) -> Option<String> {
    let parent = dir.parent().and_then(|p| p.canonicalize().ok())?;
    let place = parent.join(dir.file_name()?);
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let wanted = place.to_str()?;
    table.lines().rev().find(|l| l.split(' ').nth(4) == Some(wanted)).map(str::to_owned)
}

/// Returns true if something is mounted on `dir`.
pub(crate) fn mounted(dir: &Path) -> bool {
    mountinfo(dir).is_some()
}

/// Aborts the FUSE connection of a mount point. Every request ends with an error, also one in uninterruptible
/// sleep.
fn abort_connection(dir: &Path) {
    let Some(minor) =
        mountinfo(dir).and_then(|l| l.split(' ').nth(2)?.split(':').nth(1).map(str::to_owned))
    else {
        return;
    };
    let control = Path::new("/sys/fs/fuse/connections");
    if !control.join(&minor).exists() {
        let _ = Command::new("mount").args(["-t", "fusectl", "none"]).arg(control).status();
    }
    if fs::write(control.join(&minor).join("abort"), "1").is_err() {
        let _ = Command::new("fusermount3").arg("-uz").arg(dir).status();
    }
}

/// A mounted tree, which is taken down when it is dropped.
pub(crate) struct Mount {
    /// The mount point.
    pub(crate) dir: PathBuf,
    /// The output of `msgfs mount`.
    pub(crate) said: String,
    lock: PathBuf,
    pid: Option<i32>,
    umount: Option<Command>,
    bed_cwd: PathBuf,
    template: Vec<(OsString, Option<OsString>)>,
    finished: Arc<AtomicBool>,
    timed_out: Arc<AtomicBool>,
}

impl Mount {
    /// Sets up the guard and the watchdog before anything is mounted.
    pub(crate) fn guard(bed: &Bed, dir: &Path, me: &str) -> Self {
        let finished = Arc::new(AtomicBool::new(false));
        let timed_out = Arc::new(AtomicBool::new(false));
        let (f, t, d) = (finished.clone(), timed_out.clone(), dir.to_owned());
        let limit = std::env::var("MSGFS_TEST_LIMIT")
            .ok()
            .and_then(|s| s.parse().ok())
            .map_or(bed.limit, Duration::from_secs);
        std::thread::spawn(move || {
            let start = Instant::now();
            while !f.load(Ordering::SeqCst) {
                if start.elapsed() > limit {
                    t.store(true, Ordering::SeqCst);
                    abort_connection(&d);
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let mut umount = bed.msgfs(["umount", "--lazy"]);
        umount.arg(dir);
        let template = bed
            .command("true")
            .get_envs()
            .map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned)))
            .collect();
        Self {
            dir: dir.to_owned(),
            said: String::new(),
            lock: bed.state(me).join("lock"),
            pid: None,
            umount: Some(umount),
            bed_cwd: bed.path("cwd"),
            template,
            finished,
            timed_out,
        }
    }

    /// Returns a path inside the mount.
    pub(crate) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.dir.join(below)
    }

    /// Returns the daemon's process id.
    #[track_caller]
    pub(crate) fn pid(&self) -> i32 {
        self.pid.or_else(|| lock_pid(&self.lock)).expect("the lock file names the daemon's pid")
    }

    fn command(&self, program: &str) -> Command {
        let mut c = Command::new(program);
        for (k, v) in &self.template {
            match v {
                Some(v) => c.env(k, v),
                None => c.env_remove(k),
            };
        }
        c.current_dir(&self.bed_cwd);
        c
    }

    /// Runs a bash script with the mount as working directory. The test process itself never touches `inbox/`,
    /// because msgfs looks at which process lists and reads.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> Out {
        let mut c = self.command("bash");
        c.args(["-c", &format!("cd {} || exit 99\n{script}", quote(&self.dir))]);
        let out = run(c, None);
        self.settle();
        out
    }

    /// Lists `sent/`. After this, every draft that was closed before is in the store. The kernel tells msgfs of
    /// the last close only after the program that closed has gone on.
    fn settle(&self) {
        for folder in ["sent".to_owned(), format!("sent/{}", samp::today())] {
            let _ = fs::read_dir(self.path(folder)).map(Iterator::count);
        }
    }

    /// Runs a script that must succeed, and returns its standard output.
    #[track_caller]
    pub(crate) fn ok(&self, script: &str) -> String {
        let out = self.sh(script);
        assert!(out.ok(), "{script}\n{out:?}");
        out.stdout
    }

    /// Runs Python with the mount as working directory. It must succeed.
    #[track_caller]
    pub(crate) fn py(&self, program: &str, args: &[&str]) -> String {
        let mut c = self.command("python3");
        c.arg("-c")
            .arg(format!("import os,sys\nos.chdir({:?})\n{program}", self.dir.to_str().unwrap()))
            .args(args);
        let out = run(c, None);
        self.settle();
        assert!(out.ok(), "{program}\n{out:?}");
        out.stdout
    }

    /// Returns the sorted names in a folder, as a separate `ls` sees them.
    #[track_caller]
    pub(crate) fn ls(&self, folder: &str) -> Vec<String> {
        let out = self.ok(&format!("LC_ALL=C ls -1A -- {}", quote(Path::new(folder))));
        out.lines().map(str::to_owned).collect()
    }

    /// Returns the bytes of a file, as a separate `cat` gets them.
    #[track_caller]
    pub(crate) fn cat(&self, file: &str) -> String {
        self.ok(&format!("cat -- {}", quote(Path::new(file))))
    }

    /// Returns what `status.txt` says of the last refusal.
    #[track_caller]
    pub(crate) fn last_refusal(&self) -> String {
        let status = self.cat("status.txt");
        let line = status.lines().find_map(|line| line.strip_prefix("last refusal: "));
        line.unwrap().to_owned()
    }

    /// Returns the bytes of a file outside `inbox/`, read directly.
    #[track_caller]
    pub(crate) fn bytes(&self, file: &str) -> Vec<u8> {
        assert!(!file.starts_with("inbox"), "read inbox/ from a process of its own");
        fs::read(self.path(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
    }

    /// Returns the bytes of any file without marking it: opens it with `O_NOFOLLOW`.
    #[track_caller]
    pub(crate) fn bytes_quietly(&self, file: &str) -> Vec<u8> {
        use std::io::Read as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut bytes = Vec::new();
        fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(self.path(file))
            .and_then(|mut f| f.read_to_end(&mut bytes))
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        bytes
    }

    /// Waits until `inbox/` lists exactly `names`.
    #[track_caller]
    pub(crate) fn inbox_becomes(&self, names: &[&str]) {
        let mut last = Vec::new();
        let start = Instant::now();
        loop {
            let now = self.ls("inbox");
            if now == names {
                return;
            }
            last.clone_from(&now);
            assert!(start.elapsed() < PATIENCE, "inbox stays {last:#?}, wanted {names:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asserts that `inbox/` lists `names` and still does a moment later. Marks are set asynchronously, so one
    /// listing would prove nothing.
    #[track_caller]
    pub(crate) fn inbox_stays(&self, names: &[&str]) {
        self.inbox_becomes(names);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(self.ls("inbox"), names, "inbox changed");
    }

    /// Waits until `file` exists.
    #[track_caller]
    pub(crate) fn appears(&self, file: &str) {
        soon(&format!("{file} appears"), || self.sh(&format!("test -e {file:?}")).ok());
    }

    /// Sends a signal to the daemon and waits until the process is gone.
    #[track_caller]
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("pid");
        let _ = rustix::process::kill_process(pid, signal);
        wait_for(PATIENCE, "the daemon ends", || !alive(pid));
    }

    /// Stops the daemon, and waits until all its threads stand. One that still takes a request would not answer it,
    /// and nobody could end the program that waits for that answer.
    #[track_caller]
    pub(crate) fn stop(&self) {
        self.send(rustix::process::Signal::STOP);
        wait_for(PATIENCE, "all threads stand", || {
            let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
            let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat"));
            threads
                .flat_map(stat)
                .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
        });
    }

    /// Lets a stopped daemon go on.
    #[track_caller]
    pub(crate) fn go_on(&self) {
        self.send(rustix::process::Signal::CONT);
    }

    #[track_caller]
    fn send(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("pid");
        rustix::process::kill_process(pid, signal).expect("the daemon runs");
    }

    /// Kills the daemon with `kill -9`. The next mount clears the dead mount.
    #[track_caller]
    pub(crate) fn kill9(mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.pid = None;
        self.umount = None;
        self.finished.store(true, Ordering::SeqCst);
    }

    /// Lets strace change the daemon's system calls of this name until the returned value is dropped.
    #[track_caller]
    pub(crate) fn meddle(&self, call: &str, how: &str) -> proc::Running {
        self.trace(call, how, Path::new("/dev/null"))
    }

    /// Changes the system calls as [`Mount::meddle`] does, and records them, each with the paths of its files.
    pub(crate) fn trace(&self, call: &str, how: &str, notes: &Path) -> proc::Running {
        let mut c = self.command("strace");
        c.args(["-f", "-qq", "-y", "-e", &format!("trace={call}"), "-o"]).arg(notes).arg("-e");
        c.arg(format!("inject={call}:{how}")).arg("-p").arg(self.pid().to_string());
        let tracer = proc::Running::start(c, None).expect("strace");
        self.wait_until_traced();
        tracer
    }

    /// Waits until strace is attached to every thread of the daemon, or has killed it already.
    #[track_caller]
    pub(crate) fn wait_until_traced(&self) {
        wait_for(Duration::from_secs(30), "strace is attached to every thread", || {
            let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid())) else {
                return true;
            };
            threads.flatten().all(|thread| {
                let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
                !status.lines().any(|l| l == "TracerPid:\t0")
            })
        });
    }

    /// Unmounts properly. Panics if that fails.
    #[track_caller]
    pub(crate) fn umount(mut self) {
        let ask = || {
            let mut c = self.command(binary().to_str().unwrap());
            c.arg("umount").arg(&self.dir);
            run_for(c, None, PATIENCE)
        };
        let mut out = ask();
        // A child that another test has just forked holds all descriptors of this process until it executes its
        // program. Its name is still that of the test's thread.
        let is_fork =
            |out: &Out| out.stderr.contains(" is in use by ") && out.stderr.contains("::");
        for _ in 0..100 {
            if !is_fork(&out) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            out = ask();
        }
        assert!(out.ok(), "msgfs umount failed: {out:?}");
        assert!(!mounted(&self.dir), "msgfs umount returned 0 but the mount is still there");
        self.umount = None;
        self.pid = None;
        self.finish();
    }

    /// Stops the watchdog. Panics if it had to act, or if msgfs panicked, as its locks do when they are taken out
    /// of order.
    #[track_caller]
    fn finish(&mut self) {
        self.finished.store(true, Ordering::SeqCst);
        let late = self.timed_out.load(Ordering::SeqCst);
        assert!(
            !late || std::thread::panicking(),
            "the test took too long; its connection to the kernel was aborted"
        );
        let log = fs::read_to_string(self.lock.with_file_name("log")).unwrap_or_default();
        let sound = !log.contains("panicked at");
        assert!(sound || std::thread::panicking(), "msgfs panicked:\n{log}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(umount) = self.umount.take() else {
            self.finish();
            return;
        };
        let pid =
            self.pid.or_else(|| lock_pid(&self.lock)).and_then(rustix::process::Pid::from_raw);
        if mounted(&self.dir) {
            let _ = proc::try_run(umount, None, Duration::from_secs(10));
        }
        detach(&self.dir);
        if let Some(pid) = pid.filter(|p| is_msgfs(*p)) {
            let start = Instant::now();
            while alive(pid) && start.elapsed() < Duration::from_secs(3) {
                std::thread::sleep(Duration::from_millis(10));
            }
            if alive(pid) && is_msgfs(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        self.finish();
    }
}

/// Returns true if a process runs. A zombie that nobody reaps does not run. A zombie with a thread that still waits
/// for the disk does: its files are open, and so is its mount.
pub(crate) fn alive(pid: rustix::process::Pid) -> bool {
    let dir = format!("/proc/{}", pid.as_raw_nonzero());
    let Ok(stat) = fs::read_to_string(format!("{dir}/stat")) else { return false };
    let has_ended = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']));
    !has_ended || fs::read_dir(format!("{dir}/task")).is_ok_and(|threads| threads.count() > 1)
}

/// Returns true if this process is still a msgfs. Pids are reused, and a test may end only processes that it
/// started.
fn is_msgfs(pid: rustix::process::Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
        .is_ok_and(|c| c.trim() == "msgfs")
}

/// Detaches a dead mount point that a test left on purpose.
pub(crate) fn detach(dir: &Path) {
    while mounted(dir) {
        if rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH).is_err() {
            let _ = Command::new("fusermount3").arg("-uz").arg(dir).status();
            return;
        }
    }
}

/// Quotes a path as one shell word.
pub(crate) fn quote(path: &Path) -> String {
    format!("'{}'", path.to_str().expect("UTF-8 path").replace('\'', r"'\''"))
}

/// Writes an executable script. Another program writes the file: a child that another test has just forked holds what
/// is open here, and the system executes no file that is open for writing.
#[track_caller]
pub(crate) fn write_script(path: &Path, text: &str) {
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path);
    let out = run(install, Some(text.as_bytes()));
    assert!(out.ok(), "{out:?}");
}

/// Panics if the test does not run as the superuser, instead of passing without having tested.
#[track_caller]
pub(crate) fn need_root() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root (mount, setpriv)");
}

/// Returns the number of bytes that a process has read so far.
pub fn bytes_read(process: i32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}
