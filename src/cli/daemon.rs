//! The background half of `msgfs mount`.
//!
//! The front half starts this program again, with a pipe as standard output, and waits for its events. So
//! nothing is forked while threads exist, and the current folder can still determine me. The back half leaves
//! the session and closes the descriptors that it inherited. It keeps only standard error until the mount
//! answers, so that even a crash can be seen.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use msgfs::store::process;

use super::context::CommandContext;
use super::failure::{Failure, refuse};
use super::logging;
use super::mount::MountRequest;
use super::serve::{self, MountEvent};

/// The shortest time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);

/// Starts the back half and waits until the mount answers or fails.
pub(crate) fn start(order: &MountRequest) -> Result<(), Failure> {
    let started = Command::new("/proc/self/exe")
        .arg0("msgfs")
        .args(mount_arguments(order))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|e| Failure::from_io("cannot start in the background", &e))?;
    let mut show = serve::terminal_reporter();
    let pipe = child.stdout.take().map(BufReader::new);
    if let Some(outcome) = pipe.and_then(|pipe| follow_events(pipe, &mut show)) {
        if let MountEvent::Failed(_) = outcome {
            // Wait for its end, so that a next attempt meets no lock.
            let _ = child.wait();
        }
        return show(outcome);
    }
    drop(show);
    let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let log = CommandContext::from_options(&order.options)
        .map(|c| format!("; see {}", c.paths.state.join("log").display()));
    refuse!("msgfs ended before the mount answered ({status}){}", log.unwrap_or_default())
}

/// Shows the progress and the notices of the back half until it lets go of the pipe. Returns its last word about the
/// mount, if it gave one.
///
/// A mount that is ready may meet a damaged index at once, and starts again. It reports to this pipe once more if it
/// has not let go of it yet. So the pipe is read to its end: without a reader the second start would be given up.
fn follow_events(
    pipe: impl BufRead,
    show: &mut impl FnMut(MountEvent) -> Result<(), Failure>,
) -> Option<MountEvent> {
    let mut outcome = None;
    for line in pipe.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(event @ (MountEvent::Ready(_) | MountEvent::Failed(_))) => outcome = Some(event),
            // Only an outcome can fail to be shown.
            Ok(event) => drop(show(event)),
            Err(_) => {}
        }
    }
    outcome
}

/// Returns the command line of the half that serves.
pub(crate) fn mount_arguments(order: &MountRequest) -> Vec<std::ffi::OsString> {
    let how = if order.foreground { "--foreground" } else { "--as-daemon" };
    let mut arguments = vec!["mount".into(), how.into()];
    if let Some(me) = &order.options.me {
        arguments.push(format!("--me={me}").into());
    }
    if let Some(config) = &order.options.config {
        arguments.extend(["--config".into(), config.into()]);
    }
    if order.options.read_only {
        arguments.push("--read-only".into());
    }
    if order.options.allow_other {
        arguments.push("--allow-other".into());
    }
    arguments.extend(["--".into(), order.dir.clone().into()]);
    arguments
}

/// The pipe to the front half.
pub(crate) struct ParentPipe {
    /// The pipe, until the mount answers.
    front: Option<File>,
    log: Option<File>,
    /// The time of the last report of progress.
    last_progress: Option<Instant>,
}

/// Leaves the session and closes all inherited descriptors but standard error. It must be called before this
/// process opens anything or starts a thread.
pub(crate) fn detach_session() -> io::Result<ParentPipe> {
    // SAFETY: this process has opened nothing yet, so nothing in it owns a descriptor from 3 up. They are
    // leftovers of the process that started us, whose pipes must not be held open. A system call is used,
    // because musl has no function for it.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    // A process that was started, not forked, leads no group. An error means that we lead a session already,
    // which is what we want.
    let _ = rustix::process::setsid();
    // A program started as /proc/self/exe would show up as `exe` in ps(1).
    let _ = rustix::thread::set_name(c"msgfs");
    let to = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(ParentPipe { front: Some(File::from(to)), log: None, last_progress: None })
}

/// Serves a mount until it ends.
pub(crate) fn serve_detached(order: MountRequest, mut pipe: ParentPipe) -> Result<(), Failure> {
    let outcome = CommandContext::from_options(&order.options).and_then(|context| {
        pipe.open_log(&context)?;
        process::set_restart_arguments(Some(mount_arguments(&order)));
        process::set_restart_stdout(
            pipe.front.as_ref().and_then(|to| to.try_clone().ok()).map(Into::into),
        );
        serve::run(&order, &context, &mut |event| pipe.handle_event(event))
    });
    if let Err(failure) = &outcome {
        let _ = pipe.handle_event(MountEvent::Failed(failure.to_string()));
        return Err(Failure::AlreadyReported);
    }
    Ok(())
}

impl ParentPipe {
    /// Logs to a file in the state folder from now on.
    fn open_log(&mut self, context: &CommandContext) -> Result<(), Failure> {
        context.create_state_folder()?;
        let path = context.paths.state.join("log");
        let log = logging::log_to_file(&path, "info").or_else(|e| {
            let shown = context.display_path(&path);
            let _ = self.handle_event(MountEvent::Notice(format!(
                "warning: there is no log: {shown}: {e}"
            )));
            OpenOptions::new().append(true).open("/dev/null")
        });
        self.log = Some(log.map_err(|e| Failure::from_io(path.display(), &e))?);
        Ok(())
    }

    fn handle_event(&mut self, event: MountEvent) -> Result<(), Failure> {
        match &event {
            MountEvent::Progress(..) => {
                if self.last_progress.is_some_and(|told| told.elapsed() < PROGRESS_EVERY) {
                    return Ok(());
                }
                self.last_progress = Some(Instant::now());
            }
            MountEvent::Notice(text) => tracing::info!("{text}"),
            MountEvent::Ready(_) => {
                // No relative names are used from here on. The folder we were started in must stay removable.
                let _ = rustix::process::chdir("/");
                // A program that reads the terminal to the end must not wait for us.
                if let Some(log) = self.log.take() {
                    rustix::stdio::dup2_stderr(log).map_err(|e| {
                        Failure::from_io("cannot let go of the terminal", &e.into())
                    })?;
                }
            }
            MountEvent::Failed(text) => tracing::error!("{text}"),
        }
        match (self.send_event(&event), &event) {
            (Ok(()), MountEvent::Ready(_)) => {
                self.front = None;
                process::set_restart_stdout(None);
            }
            (Err(_), MountEvent::Ready(_)) => {
                return Err(Failure::refused("nobody waits for this mount any more"));
            }
            (Err(_), MountEvent::Progress(..)) => {
                // The person has given up (Ctrl-C), and nothing is mounted yet.
                tracing::info!("nobody waits for this mount any more");
                std::process::exit(1);
            }
            _ => {}
        }
        Ok(())
    }

    fn send_event(&mut self, event: &MountEvent) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.front.as_mut().map_or(Ok(()), |to| to.write_all(&line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::mailbox::MailboxOptions;

    #[test]
    fn an_order_survives_the_command_line() {
        let options = MailboxOptions {
            me: Some("-odd".to_owned()),
            config: Some("/a b/c.toml".into()),
            read_only: true,
            allow_other: true,
            current_mount: None,
            mountpoint: None,
            carry: false,
            once: false,
            may_index: false,
        };
        let arguments =
            mount_arguments(&MountRequest { options, dir: "/-x".into(), foreground: false });
        let expected =
            "mount,--as-daemon,--me=-odd,--config,/a b/c.toml,--read-only,--allow-other,--,/-x";
        assert_eq!(arguments, expected.split(',').collect::<Vec<_>>());
    }

    #[test]
    fn a_mount_that_starts_again_is_followed_to_its_end() {
        let ready = |text: &str| MountEvent::Ready(text.to_owned());
        let events =
            [MountEvent::Progress(1, 2), ready("a"), MountEvent::Progress(3, 4), ready("b")];
        let line = |event: &MountEvent| serde_json::to_string(event).unwrap() + "\n";
        let follow = |events: &[MountEvent]| {
            let pipe: String = events.iter().map(line).collect();
            let mut shown = Vec::new();
            let outcome = follow_events(pipe.as_bytes(), &mut |event| {
                shown.push(line(&event));
                Ok(())
            });
            (outcome, shown.concat())
        };
        let (outcome, shown) = follow(&events);
        assert!(matches!(outcome, Some(MountEvent::Ready(text)) if text == "b"));
        assert_eq!(shown, line(&events[0]) + &line(&events[2]));
        let failed = [ready("a"), MountEvent::Failed("c".to_owned())];
        assert!(matches!(follow(&failed).0, Some(MountEvent::Failed(text)) if text == "c"));
        assert!(follow(&events[..1]).0.is_none());
    }
}
