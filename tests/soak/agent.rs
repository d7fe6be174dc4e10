//! The acts of a person, who writes in the ways of programs and editors, reads and answers.

use std::fs;
use std::io::Write as _;
use std::os::fd::IntoRawFd as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::dice::Dice;
use crate::common::proc::try_run;
use crate::ledger::{Soak, count, locked, tokens};
use crate::people::{KINDS, Kind, PEOPLE, ZED, before, draft, next};

/// A limit for a program; one that takes longer hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn live(soak: &Soak, me: usize) {
    let mut dice = soak.dice(me as u64);
    while !soak.over() {
        match dice.below(10) {
            0..5 => {
                let kind = *dice.of(&KINDS);
                send(soak, me, kind, &mut dice);
            }
            5..9 => read(soak, me, &mut dice),
            _ => look_around(soak, me),
        }
        soak.pause(100 + dice.below(500));
    }
}

fn send(soak: &Soak, me: usize, kind: Kind, dice: &mut Dice) {
    let to = match kind {
        Kind::Atsf | Kind::Ssot if dice.below(2) == 0 => next(me),
        Kind::Atsf | Kind::Ssot => before(me),
        _ => (me + 1 + dice.below(PEOPLE.len() as u64 - 1) as usize) % PEOPLE.len(),
    };
    let token = soak.token(kind, Some(me), to);
    let filler = " and so on".repeat(dice.below(30) as usize);
    let (path, text) = draft(kind, me, to, &format!("{token}{filler}"));
    give(soak, me, &token, &path, &text, dice);
}

/// Writes a draft in one of several ways and notes whether it was accepted.
fn give(soak: &Soak, me: usize, token: &str, path: &str, text: &str, dice: &mut Dice) {
    let life = soak.life(me);
    let file = soak.stores.dir(me).join(path);
    let (way, done) = match dice.below(20) {
        0 => ("by vim", vim(soak, me, &file, text)),
        1..7 => ("by a rename", beside(&file, text)),
        _ => ("at once", write(&file, text)),
    };
    match done {
        Ok(()) => {
            // Errors of programs count while nobody disturbs the mount.
            soak.accepted(token, life);
        }
        Err(e) if soak.was_up_since(me, life) => {
            let note = fs::read_to_string(file.with_extension("error")).unwrap_or_default();
            let sent = soak.sent(token);
            soak.wrong(format!("{}: {path} {way} was refused: {e} {note} {sent:?}", PEOPLE[me]));
        }
        Err(_) => {}
    }
}

/// Writes and closes a file, and returns the result of the close.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let mut f = fs::File::create(file)?;
    let half = text.len() / 2;
    f.write_all(&text.as_bytes()[..half])?;
    f.write_all(&text.as_bytes()[half..])?;
    // SAFETY: nobody else has the descriptor any more.
    let refused = unsafe { libc::close(f.into_raw_fd()) } != 0;
    if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Saves a file in one step, as editors do.
fn beside(file: &Path, text: &str) -> std::io::Result<()> {
    let mut private = file.as_os_str().to_owned();
    private.push(".tmp");
    write(Path::new(&private), text)?;
    fs::rename(&private, file)
}

fn vim(soak: &Soak, me: usize, file: &Path, text: &str) -> std::io::Result<()> {
    let life = soak.life(me);
    let draft = soak.stores.bed.path("cwd").join(format!("draft-{}", PEOPLE[me]));
    fs::write(&draft, text)?;
    let mut c = soak.stores.command(me, "vim");
    c.args(["-es", "-N", "-u", "NONE", "-i", "NONE", "-n", "-c"]);
    c.arg(format!("0read {}", draft.display())).args(["-c", "wq"]).arg(file);
    // Its warnings about a file that is sent and gone do not matter.
    let out = try_run(c, None, LIMIT)?;
    count(&soak.counts.edited);
    if out.status.is_some() && soak.was_up_since(me, life) {
        return Ok(());
    }
    Err(std::io::Error::other(format!("disturbed: {out:?}")))
}

/// Reads or removes some unread messages, and answers some of these.
fn read(soak: &Soak, me: usize, dice: &mut Dice) {
    let side = &soak.sides[me];
    for _ in 0..=dice.below(4) {
        let Some(names) = inbox(soak, me) else { return };
        if names.is_empty() {
            return;
        }
        let name = dice.of(&names);
        locked(&side.tried).insert(name.clone());
        let life = soak.life(me);
        let file = soak.stores.dir(me).join("inbox").join(name);
        let mut text = String::new();
        let certain = if dice.below(3) == 0 {
            fs::remove_file(&file).is_ok()
        } else {
            let mut c = soak.stores.command(me, "cat");
            c.arg(&file);
            let Ok(out) = try_run(c, None, LIMIT) else { return };
            text.clone_from(&out.stdout);
            // `cat` does not report the result of the close if the mount died under it.
            let certain = out.ok() && soak.was_up_since(me, life);
            if !out.ok() && soak.was_up_since(me, life) {
                soak.wrong(format!("{}: cat {}: {out:?}", PEOPLE[me], file.display()));
            }
            certain
        };
        if certain {
            count(&soak.counts.marks);
            locked(&side.read).insert(name.clone());
        }
        if !text.is_empty() && dice.below(3) == 0 {
            answer(soak, me, name, &text, dice);
        }
    }
}

/// Returns the names in `inbox/`, as another program sees them; `None` if the mount was not up.
pub(crate) fn inbox(soak: &Soak, me: usize) -> Option<Vec<String>> {
    let life = soak.life(me);
    let mut c = soak.stores.command(me, "ls");
    c.arg("-1").arg(soak.stores.dir(me).join("inbox"));
    let out = try_run(c, None, LIMIT).ok()?;
    if !soak.was_up_since(me, life) {
        return None;
    }
    if !out.ok() {
        soak.wrong(format!("{}: ls inbox: {out:?}", PEOPLE[me]));
        return None;
    }
    Some(out.stdout.lines().filter(|n| is_message(n)).map(str::to_owned).collect())
}

pub(crate) fn is_message(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == "txt")
}

fn answer(soak: &Soak, me: usize, name: &str, text: &str, dice: &mut Dice) {
    let Some((_, body)) = text.split_once("\n\n") else { return };
    let Some(asked) = tokens(body).first().and_then(|t| soak.sent(t)) else { return };
    let to = match (asked.kind, asked.from) {
        (Kind::Atsf | Kind::Ssot, _) => return,
        (_, Some(from)) => from,
        (Kind::Samp, None) => ZED,
        // The stranger has no such mailbox.
        (_, None) => return,
    };
    let token = soak.token(asked.kind, Some(me), to);
    let day = format!("{}-{}-{}", &name[..4], &name[4..6], &name[6..8]);
    let path = format!("archive/{day}/{}.reply", name.trim_end_matches(".txt"));
    count(&soak.counts.replies);
    give(soak, me, &token, &path, &format!("{token}\n"), dice);
}

/// Reads the files that scripts and people read now and then.
fn look_around(soak: &Soak, me: usize) {
    let life = soak.life(me);
    let dir = soak.stores.dir(me);
    for file in ["status.txt", "agents.txt", "sent.txt", "README.txt"] {
        match fs::read_to_string(dir.join(file)) {
            Ok(text) => {
                // Of a body these files show only the first line, and only while the message is unread.
                soak.counts.facts.fetch_add(u64::from(!text.is_empty()), Ordering::Relaxed);
            }
            Err(e) if soak.was_up_since(me, life) => {
                soak.wrong(format!("{}: {file}: {e}", PEOPLE[me]));
            }
            Err(_) => return,
        }
    }
    let mut c = soak.stores.command(me, "bash");
    c.args(["-c", "ls \"$M/.maildir/new\" \"$M/.maildir/cur\" \"$M/threads\" | wc -l; grep -rc tok- \"$M/transcripts\" | wc -l"]);
    let _ = try_run(c, None, LIMIT);
}
