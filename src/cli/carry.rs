//! `msgfs carry`: runs links without a mount.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};
use msgfs::config::{self, LockError, StateLock};
use msgfs::link::{self, carrier_worker};
use msgfs::mailbox::{Mailbox, MailboxOpenError, MailboxOptions};
use msgfs::model::sanitize_text;
use msgfs::store::process;
use rustix::io::FdFlags;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::access::{self, TreeServer};
use super::context::CommandContext;
use super::failure::Failure;
use super::{GlobalOptions, logging, output};

/// Carry mail to and from other machines while this command runs
///
/// A mount does the same by itself. This command is for machines and containers without a mount.
/// Their agents use `msgfs ls`, `cat` and `write`, also while this command runs. When a mount for the
/// same name starts, the mount carries the mail until it ends.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs carry --all\n  systemd-run --user msgfs carry --all",
    arg_required_else_help = true
)]
pub(crate) struct Args {
    /// Carry for all links, until a signal ends the command
    #[arg(long)]
    all: bool,
    /// The connection of a mount that comes before this process
    #[arg(long, hide = true, requires = "all", value_name = "FD")]
    before: Option<RawFd>,
    /// The folder of one link, whose exchanges are made until its daemon hangs up
    #[arg(hide = true, conflicts_with = "all")]
    link: Option<PathBuf>,
}

impl Args {
    /// Returns true for the command that carries for all links, and false for the hidden one that makes the
    /// exchanges of one link.
    pub(crate) fn should_carry_all(&self) -> bool {
        self.all
    }
}

/// Runs `msgfs carry`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    match &args.link {
        Some(folder) => carrier_worker::run_carrier_process(folder, &link::open_engine)
            .map_err(|e| Failure::from_io("the exchange cannot be made", &e)),
        None => carry_all_links(global, args.before),
    }
}

/// An event that ends the carrying.
enum CarryEvent {
    /// A signal asks the command to end.
    End,
    /// A mount asks to take over.
    Takeover(UnixStream),
}

fn carry_all_links(global: &GlobalOptions, before: Option<RawFd>) -> Result<(), Failure> {
    logging::log_to_stderr("info");
    let context = CommandContext::find(global)?;
    context.create_state_folder()?;
    let state = &context.paths.state;
    let _only = StateLock::acquire_to_carry(state).map_err(MailboxOpenError::Lock)?;
    if let Some(mount) = before {
        await_mount(mount)?;
    }
    let options = MailboxOptions { carry: true, ..global.mailbox_options() };
    process::set_restart_arguments(Some(restart_arguments(None)));
    let mailbox = open_when_free(&context, &options, state)?;
    for warning in mailbox.warnings() {
        output::print_notice(&format!("warning: {}", sanitize_text(&warning)));
    }
    let boards = mailbox.links().list_open_boards();
    // The links of a missing store may come with it, and a person may mend the file of a link.
    let may_come = mailbox.has_missing_store() || !mailbox.links().left_out_files().is_empty();
    if boards.is_empty() && !may_come {
        mailbox.close();
        return Err(no_link_failure());
    }
    for board in boards {
        output::print_notice(&format!("carrying: {}, {}", board.name(), board.health().engine));
    }
    let events = watch_end_signals()?;
    let (places, asked) = unbounded();
    let mut server = TreeServer::start(state, mailbox.tree(), Some(places))
        .map_err(|e| Failure::from_io("commands cannot be served", &e))?;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let event = crossbeam_channel::select! {
        recv(events) -> _ => CarryEvent::End,
        recv(asked) -> place => place.map_or(CarryEvent::End, CarryEvent::Takeover),
    };
    server.stop();
    match event {
        CarryEvent::End => {
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            mailbox.close();
            Ok(())
        }
        CarryEvent::Takeover(mount) => yield_to_mount(mailbox, mount, &events),
    }
}

/// Watches for signals that ask for the end.
fn watch_end_signals() -> Result<Receiver<()>, Failure> {
    let failed = |e| Failure::from_io("cannot watch for signals", &e);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let (told, events) = unbounded();
    let watch = move || {
        signals.forever().for_each(|_| {
            let _ = told.send(());
        });
    };
    thread::Builder::new().name("msgfs-signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok(events)
}

/// Returns the failure of a command that has nothing to carry.
fn no_link_failure() -> Failure {
    Failure::refused(
        "there is no link; see `msgfs init --help`, and docs/links for what each kind needs",
    )
}

/// Returns true if no process that acts for me can have a link.
fn has_no_link(context: &CommandContext) -> bool {
    context.config.links.iter().all(|link| link.off) && context.config.linked_stores().is_empty()
}

/// Opens the mailbox once nobody else acts for me. A signal kills the process meanwhile, because there is
/// nothing to close.
///
/// # Errors
/// Fails if a mount acts for me and there is no link.
fn open_when_free(
    context: &CommandContext,
    options: &MailboxOptions,
    state: &Path,
) -> Result<Mailbox, Failure> {
    loop {
        match Mailbox::open(options, &mut |_, _| {}) {
            Err(MailboxOpenError::Lock(LockError::Held(holder))) => {
                if holder.mountpoint.is_some() {
                    if has_no_link(context) {
                        return Err(no_link_failure());
                    }
                    output::print_notice(&format!("{holder}, carries meanwhile"));
                    let _ = sd_notify::notify(&[NotifyState::Ready]);
                }
                config::wait_until_free(state).map_err(MailboxOpenError::Lock)?;
            }
            opened => return Ok(opened?),
        }
    }
}

/// Lets a mount take over from this process, and waits until it ends. The process restarts for that, so that
/// the lock is free only when no part of it can still write.
fn yield_to_mount(
    mailbox: Mailbox,
    mount: UnixStream,
    events: &Receiver<()>,
) -> Result<(), Failure> {
    output::print_notice(
        "a mount carries the mail from now on; this command goes on when the mount ends",
    );
    let _lock = mailbox.close();
    if events.try_recv().is_ok() {
        return Ok(());
    }
    // A mount that has ended meanwhile is not waited for.
    let told = access::grant_takeover(&mount).is_ok()
        && rustix::io::fcntl_setfd(&mount, FdFlags::empty()).is_ok();
    process::set_restart_arguments(Some(restart_arguments(told.then(|| mount.into_raw_fd()))));
    process::restart_process()
}

/// Returns the command line of this process, without the mount that took over before, or with another.
fn restart_arguments(mount: Option<RawFd>) -> Vec<OsString> {
    let is_mount = |argument: &OsString| argument.as_encoded_bytes().starts_with(b"--before=");
    let own = std::env::args_os().skip(1).filter(|argument| !is_mount(argument));
    own.chain(mount.map(|mount| format!("--before={mount}").into())).collect()
}

/// Waits until the mount that took over from this process has the state folder, or has ended.
fn await_mount(mount: RawFd) -> Result<(), Failure> {
    let unknown = || Failure::refused("--before is for msgfs itself");
    // SAFETY: only the inherited descriptor can have this number in this process. The process has opened a lock
    // file only, whose number is another one as long as the inherited one is open. A number that is not open,
    // or is no socket, is refused by the call.
    let stream = unsafe { UnixStream::from_raw_fd(mount) };
    rustix::io::fcntl_setfd(&stream, FdFlags::CLOEXEC).map_err(|_| unknown())?;
    let _ = (&stream).read_to_end(&mut Vec::new());
    Ok(())
}
