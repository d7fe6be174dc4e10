//! The life of a mount, from the first check of the folder to the last byte written.
//!
//! 1. Everything that can be refused is refused before the kernel is asked.
//! 2. From the moment the mount exists, signals no longer kill: they end it in order.
//! 3. A mount ends by a signal or because somebody unmounted it. In both cases the mount goes first, so
//!    that nothing new arrives. Then the mailbox is closed, which makes all of it durable.
//! 4. Ending is bounded in time. Programs that use the mount then find it gone.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use msgfs::fuse::mountpoint;
use msgfs::fuse::{self, FuseMount};
use msgfs::mailbox::{Mailbox, MailboxOptions};
use msgfs::model::{display_path, sanitize_line, sanitize_text};
use msgfs::store::{Store, process};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGIO, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::access::{self, TreeServer};
use super::context::CommandContext;
use super::failure::{Failure, refuse};
use super::mount::{self, MountRequest, MountTarget};
use super::progress::WorkProgress;
use super::{daemon, logging, machine, output};

/// The times within which an unmounted and a detached mount must end. A detached mount is in use and ends when
/// its users let go, so it is hardly waited for.
const END_WITHIN: Duration = Duration::from_secs(3);
const DETACHED_WITHIN: Duration = Duration::from_millis(300);
/// The time for the whole shutdown, before the process simply exits.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// A report of a starting mount, for the process that waits for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MountEvent {
    /// The bytes indexed, and the bytes in all.
    Progress(u64, u64),
    /// Something a person should know.
    Notice(String),
    /// The mount answers; the text is for standard output.
    Ready(String),
    /// There is no mount, for this reason.
    Failed(String),
}

/// A receiver of a mount's reports. An error for [`MountEvent::Ready`] means that nobody listens any more.
pub(crate) type MountReporter<'a> = &'a mut (dyn FnMut(MountEvent) -> Result<(), Failure> + Send);

/// The reason why a mount ends.
#[derive(Debug, PartialEq, Eq)]
enum MountEndReason {
    Signal(i32),
    Unmounted,
}

/// Serves a mount on this terminal.
pub(crate) fn serve_in_foreground(order: &MountRequest) -> Result<(), Failure> {
    logging::log_to_stderr("info");
    let context = CommandContext::from_options(&order.options)?;
    context.create_state_folder()?;
    process::set_restart_arguments(Some(daemon::mount_arguments(order)));
    run(order, &context, &mut terminal_reporter())
}

/// Returns a reporter that shows a person the reports of a mount.
pub(crate) fn terminal_reporter() -> impl FnMut(MountEvent) -> Result<(), Failure> + Send {
    let mut progress = WorkProgress::new();
    move |event| {
        match event {
            MountEvent::Progress(done, total) => progress.update(done, total),
            MountEvent::Notice(text) => {
                progress.finish();
                output::print_notice(&text);
            }
            MountEvent::Ready(text) => {
                progress.finish();
                return output::print_data(&text);
            }
            MountEvent::Failed(text) => {
                progress.finish();
                return Err(Failure::Refused(text));
            }
        }
        Ok(())
    }
}

/// Mounts, serves until the end, and cleans up.
pub(crate) fn run(
    order: &MountRequest,
    context: &CommandContext,
    report: MountReporter<'_>,
) -> Result<(), Failure> {
    process::limit_heap_retention();
    if let Some(problem) = machine::find_fuse_problems(order.options.allow_other).into_iter().next()
    {
        return Err(Failure::refused(problem));
    }
    let target = mount::prepare_target(&order.dir, report)?;
    let outcome = serve_mailbox(order, context, &target, report);
    if outcome.is_err() {
        target.undo_preparation();
    }
    outcome
}

fn serve_mailbox(
    order: &MountRequest,
    context: &CommandContext,
    target: &MountTarget,
    report: MountReporter<'_>,
) -> Result<(), Failure> {
    // This check comes before the mailbox is opened, which creates folders. It is repeated with the stores that
    // were really opened.
    mount::refuse_recursion(&target.dir, &context.paths, &context.store_folders()?)?;
    let mountpoint = Some(target.dir.clone());
    let options = MailboxOptions { mountpoint, carry: true, ..order.options.clone() };
    let mut progress = |done, total| {
        let _ = report(MountEvent::Progress(done, total));
    };
    let place =
        (!options.read_only).then(|| access::request_takeover(&context.paths.state)).flatten();
    let mailbox = Mailbox::open(&options, &mut progress)?;
    drop(place);
    let me = Some(mailbox.me().name.clone());
    let again = MountRequest {
        options: MailboxOptions { me, ..order.options.clone() },
        dir: target.dir.clone(),
        foreground: order.foreground,
    };
    process::set_restart_arguments(Some(daemon::mount_arguments(&again)));
    for warning in mailbox.warnings() {
        report(MountEvent::Notice(format!("warning: {}", sanitize_text(&warning))))?;
    }
    let server = (!options.read_only).then(|| {
        // The mount itself works without it.
        TreeServer::start(&context.paths.state, mailbox.tree(), None).inspect_err(
            |error| tracing::warn!(%error, "commands that do not see the mount cannot be served"),
        )
    });
    let outcome = mount_and_wait(order, context, target, &mailbox, report);
    drop(server);
    mailbox.close();
    tracing::info!("closed");
    outcome
}

fn mount_and_wait(
    order: &MountRequest,
    context: &CommandContext,
    target: &MountTarget,
    mailbox: &Mailbox,
    report: MountReporter<'_>,
) -> Result<(), Failure> {
    let stores: Vec<_> =
        mailbox.stores().iter().map(|s| (s.name().to_owned(), s.dir().to_owned())).collect();
    mount::refuse_recursion(&target.dir, &context.paths, &stores)?;
    let (stop, stopped) = unbounded();
    watch_signals(stop.clone())?;
    let MailboxOptions { allow_other, read_only, .. } = order.options;
    let options = fuse::MountOptions { allow_other, read_only };
    let folder = mount::lock_target(target)?;
    let mounted = fuse::mount_tree(Arc::clone(mailbox.tree()), &target.dir, &options)
        .map_err(|e| Failure::refused(format!("cannot mount: {e}")))?;
    drop(folder);
    let mounted = Arc::new(mounted);
    note_device(mailbox, mounted.device());
    let answers = require_visible(&target.dir)
        .and_then(|()| report(MountEvent::Ready(describe_mount(&target.dir, mailbox, read_only))));
    watch_mount_end(Arc::clone(&mounted), stop)?;
    if answers.is_ok() {
        tracing::info!(mountpoint = %target.dir.display(), me = %mailbox.me().name, "mounted");
        let _ = sd_notify::notify(&[NotifyState::Ready]);
    }
    // The channel is open as long as the watching threads hold its other end.
    let why = if answers.is_ok() { stopped.recv().ok() } else { None };
    tracing::info!(?why, "stopping");
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    limit_shutdown_time();
    note_device(mailbox, None);
    end_mount(&target.dir, mounted, why.as_ref(), &stopped);
    answers
}

/// Notes the device of the mount. Without it, commands use the socket.
fn note_device(mailbox: &Mailbox, device: Option<&str>) {
    if let Err(error) = mailbox.note_device(device) {
        tracing::warn!(%error, "commands do not know this mount");
    }
}

/// Passes on signals that ask for the end, and ignores others that would kill.
fn watch_signals(stop: Sender<MountEndReason>) -> Result<(), Failure> {
    let failed = |e| Failure::from_io("cannot watch for signals", &e);
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGIO])
        .map_err(failed)?;
    let watch = move || {
        for signal in signals.forever() {
            let asks = matches!(signal, SIGTERM | SIGINT | SIGHUP);
            if asks && stop.send(MountEndReason::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("msgfs-signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok(())
}

/// Reports the end of the connection, whatever ended it.
fn watch_mount_end(mounted: Arc<FuseMount>, stop: Sender<MountEndReason>) -> Result<(), Failure> {
    let watch = move || {
        // The thread wakes once an hour and does nothing otherwise.
        while !mounted.wait_for_end(Duration::from_secs(3600)) {}
        drop(mounted);
        let _ = stop.send(MountEndReason::Unmounted);
    };
    let spawned = thread::Builder::new().name("msgfs-end".to_owned()).spawn(watch);
    spawned.map(|_| ()).map_err(|e| Failure::from_io("cannot watch the mount", &e))
}

/// Fails if the mount is not what its folder shows.
fn require_visible(dir: &Path) -> Result<(), Failure> {
    let mounts = mountpoint::read_mounts()
        .map_err(|e| Failure::from_io("cannot read the mount table", &e))?;
    let shown = dir.display();
    match mountpoint::find_mount(&mounts, dir) {
        Some(mount) if mount.is_ours() => Ok(()),
        Some(mount) => refuse!(
            "the mount table shows {} at {shown}; is another program mounting there?",
            mount.fstype
        ),
        None => refuse!("somebody unmounted {shown} while msgfs started"),
    }
}

/// Unmounts, unless the mount is already gone, and waits for the last requests.
fn end_mount(
    dir: &Path,
    mounted: Arc<FuseMount>,
    why: Option<&MountEndReason>,
    stopped: &Receiver<MountEndReason>,
) {
    if why != Some(&MountEndReason::Unmounted) {
        let taken = mounted.is_in_place().then(|| mountpoint::unmount_or_detach(dir));
        let within = match taken {
            Some(Ok(false)) => END_WITHIN,
            Some(Err(e)) => {
                tracing::warn!("{e}");
                DETACHED_WITHIN
            }
            Some(Ok(true)) | None => {
                tracing::warn!("the mount was in use; it is detached");
                DETACHED_WITHIN
            }
        };
        let deadline = Instant::now() + within;
        // Further signals change nothing.
        while let Ok(MountEndReason::Signal(_)) = stopped.recv_deadline(deadline) {}
    }
    // If somebody still uses a detached mount, a thread still waits on the other half of this handle. The end
    // of the process then ends the connection.
    if let Some(mounted) = Arc::into_inner(mounted)
        && let Err(e) = mounted.unmount(true)
    {
        tracing::debug!("after the end of the mount: {e}");
    }
}

/// Ends the process if ending takes too long.
fn limit_shutdown_time() {
    let watch = || {
        thread::sleep(STOP_WITHIN);
        tracing::error!("stopping took longer than {STOP_WITHIN:?}; giving up");
        std::process::exit(1);
    };
    // Without this thread the end is merely unbounded.
    let _ = thread::Builder::new().name("msgfs-limit".to_owned()).spawn(watch);
}

/// Returns the output of `msgfs mount`: the mount point, me and its source, the key, the unread count and the
/// stores.
fn describe_mount(dir: &Path, mailbox: &Mailbox, read_only: bool) -> String {
    let note = if read_only { " (read-only)" } else { "" };
    let key = mailbox.fingerprint().map_or_else(|| "none".to_owned(), |key| key.to_string());
    let mut text = format!(
        "mounted at {}{note}\nme: {} ({})\nkey: {key}\nunread: {}\n",
        display_path(dir),
        sanitize_line(&mailbox.me().name),
        mailbox.me().origin,
        mailbox.unread_count()
    );
    for store in mailbox.stores() {
        let me = describe_other_me(store.as_ref(), mailbox)
            .map(|me| format!(" ({me})"))
            .unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "store {}: {}{me}",
            sanitize_line(store.name()),
            display_path(store.dir())
        );
    }
    text
}

/// Returns a note with my address in a store, if it is not the name of me.
pub(crate) fn describe_other_me(store: &dyn Store, mailbox: &Mailbox) -> Option<String> {
    (store.me() != mailbox.me().name).then(|| format!("as {}", sanitize_line(store.me())))
}
