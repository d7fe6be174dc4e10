//! The background half of `msgfs mount`.
//!
//! The front half starts this program again, with a pipe as standard output, and waits for what
//! comes through it. So nothing is forked while threads exist, and the folder a person is in can
//! still say who they are. The back half leaves the session, closes what it inherited, and keeps
//! only standard error until the mount answers, so that even a crash has somewhere to be seen.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::context::Context;
use super::failure::Failure;
use super::mount::Order;
use super::progress::Progress;
use super::serve::{self, Report};
use super::{logging, output};

/// A progress bar need not move more often.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// What the back half tells the front half, one JSON value a line.
#[derive(Debug, Serialize, Deserialize)]
enum Event {
    /// Bytes indexed, of how many.
    Progress(u64, u64),
    /// Something a person should know.
    Notice(String),
    /// The mount answers; the text is for standard output.
    Ready(String),
    /// There is no mount, for this reason.
    Failed(String),
}

/// Starts the back half and waits until the mount answers or it is known why not.
pub(crate) fn start(order: &Order) -> Result<(), Failure> {
    let started = Command::new("/proc/self/exe")
        .arg0("msgfs")
        .args(arguments(order))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|e| Failure::io("cannot start in the background", &e))?;
    let mut progress = Progress::new();
    let pipe = child.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines());
    for line in pipe.map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Event::Progress(done, total)) => progress.update(done, total),
            Ok(Event::Notice(text)) => {
                progress.finish();
                output::say(&text);
            }
            Ok(Event::Ready(text)) => {
                progress.finish();
                return output::data(&text);
            }
            Ok(Event::Failed(text)) => {
                progress.finish();
                // Wait for its end, so that a next attempt meets no lock.
                let _ = child.wait();
                return Err(Failure::Refused(text));
            }
            Err(_) => {}
        }
    }
    progress.finish();
    let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let log = Context::find(&order.global)
        .map(|c| format!("; see {}", c.paths.state.join("log").display()));
    Err(Failure::refused(format!(
        "msgfs ended before the mount answered ({status}){}",
        log.unwrap_or_default()
    )))
}

/// The command line of the back half.
fn arguments(order: &Order) -> Vec<std::ffi::OsString> {
    let mut arguments = vec!["mount".into(), "--as-daemon".into()];
    if let Some(me) = &order.global.me {
        arguments.push(format!("--me={me}").into());
    }
    if let Some(config) = &order.global.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    if order.read_only {
        arguments.push("--read-only".into());
    }
    if order.allow_other {
        arguments.push("--allow-other".into());
    }
    arguments.extend(["--".into(), order.dir.clone().into()]);
    arguments
}

/// The way back to the front half.
pub(crate) struct Pipe {
    /// Until the mount answers.
    to: Option<File>,
    log: Option<File>,
    /// When progress was last told.
    told: Option<Instant>,
}

/// Leaves the session and everything inherited but standard error. To be called before this
/// process opens anything or starts a thread.
pub(crate) fn detach() -> io::Result<Pipe> {
    // SAFETY: this process has opened nothing yet, so no descriptor from 3 up is owned by
    // anything in it; they are leftovers of whoever started us, whose pipes must not be held open.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    // A process that was started, not forked, leads no group; an error means that we lead a
    // session already, which is what is wanted.
    let _ = rustix::process::setsid();
    // Started as /proc/self/exe, we would show up as `exe` in ps(1).
    let _ = rustix::thread::set_name(c"msgfs");
    let to = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(Pipe { to: Some(File::from(to)), log: None, told: None })
}

/// Serves a mount until it ends.
pub(crate) fn serve(order: Order, mut pipe: Pipe) -> Result<(), Failure> {
    let outcome = Context::find(&order.global).and_then(|context| {
        pipe.log_to(&context)?;
        serve::run(&order, &context, &mut pipe, || {
            // Relative names are done with; the folder we were started in must stay removable.
            let _ = rustix::process::chdir("/");
        })
    });
    if let Err(failure) = &outcome {
        tracing::error!("{failure}");
        let _ = pipe.tell(&Event::Failed(failure.to_string()));
        return Err(Failure::Said);
    }
    Ok(())
}

impl Pipe {
    /// From now on, what is logged goes to a file in the state folder.
    fn log_to(&mut self, context: &Context) -> Result<(), Failure> {
        context.make_state()?;
        let path = context.paths.state.join("log");
        let log = logging::to_file(&path, "info").or_else(|e| {
            let shown = context.shown(&path);
            self.notice(&format!("warning: there is no log: {shown}: {e}"));
            OpenOptions::new().append(true).open("/dev/null")
        });
        self.log = Some(log.map_err(|e| Failure::io(path.display(), &e))?);
        Ok(())
    }

    fn tell(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.to.as_mut().map_or(Ok(()), |to| to.write_all(&line))
    }
}

impl Report for Pipe {
    fn progress(&mut self, done: u64, total: u64) {
        if self.told.is_some_and(|told| told.elapsed() < PROGRESS_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        if self.tell(&Event::Progress(done, total)).is_err() {
            // The person has given up (Ctrl-C), and nothing is mounted yet.
            tracing::info!("nobody waits for this mount any more");
            std::process::exit(1);
        }
    }

    fn notice(&mut self, text: &str) {
        tracing::info!("{text}");
        let _ = self.tell(&Event::Notice(text.to_owned()));
    }

    fn ready(&mut self, text: &str) -> Result<(), Failure> {
        // First let go of the terminal: whoever reads it to the end must not wait for us.
        if let Some(log) = self.log.take() {
            rustix::stdio::dup2_stderr(log)
                .map_err(|e| Failure::io("cannot let go of the terminal", &e.into()))?;
        }
        let told = self.tell(&Event::Ready(text.to_owned()));
        told.map_err(|_| Failure::refused("nobody waits for this mount any more"))?;
        self.to = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Global;
    use super::*;

    #[test]
    fn an_order_survives_the_command_line() {
        let order = Order {
            global: Global { me: Some("-odd".to_owned()), config: Some("/a b/c.toml".into()) },
            dir: "/-x".into(),
            read_only: true,
            allow_other: true,
        };
        let arguments: Vec<_> =
            arguments(&order).into_iter().map(|a| a.into_string().unwrap()).collect();
        assert_eq!(
            arguments,
            [
                "mount",
                "--as-daemon",
                "--me=-odd",
                "--config",
                "/a b/c.toml",
                "--read-only",
                "--allow-other",
                "--",
                "/-x"
            ]
        );
    }
}
