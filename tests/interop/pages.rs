//! The README and the pages in `docs/` print what really happens.
//!
//! Each page that has sessions is one test: its blocks of commands run in one shell, in a home of its own, as a new
//! user would type them. The output of a command must look as the page says: the same words, and for times, dates, ids
//! and keys something of the same form. A line `...` in a page stands for any lines.
//!
//! - A block marked `console` has commands behind `$ `, each followed by its output.
//! - A block marked `sh` is run as it stands and must succeed.
//! - A block marked `sh terminal` is typed into another terminal, which runs beside the page.
//! - A block marked `toml` is a configuration that msgfs accepts.
//! - A block whose mark ends with `example` is not run as a part of its page.
//!
//! There is no other block.
//!
//! With `MSGFS_TEST_BLESS=1` the test writes a page anew with the present output of its commands.
//!
//! The chapters of `docs/EXAMPLES.md` are run one by one, each on a [`Stage`] of its own: see `examples.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::{Bed, PATIENCE, binary, mounted, run, soon};
use crate::peer;

/// The home that the pages show.
const HOME: &str = "/home/anna";
/// The folder of the programs in the pages.
const TOOLS: &str = "/usr/local/bin";
/// The longest time that one command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// A lock for running a page and writing it anew, so that two tests do not write one page at the same time.
static BLESS: Mutex<()> = Mutex::new(());

/// A machine on which a page is typed.
pub(crate) struct Stage {
    pub(crate) bed: Bed,
    /// Texts of the page, each with the text that stands for it here.
    pub(crate) names: Vec<(&'static str, String)>,
}

impl Stage {
    /// Makes a stage with the programs that every page may use.
    pub(crate) fn new() -> Self {
        let bed = Bed::new();
        let tools = bed.path("tools");
        fs::create_dir_all(&tools).expect("mkdir");
        let home = bed.path("home").canonicalize().expect("home");
        let shown = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let names = vec![(HOME, shown(&home)), (TOOLS, shown(&tools))];
        let stage = Self { bed, names };
        stage.link("msgfs", &binary());
        stage.link("agentazall", &peer::program("agentazall"));
        stage
    }

    /// Links to a program from the PATH.
    pub(crate) fn link(&self, name: &str, program: &Path) {
        std::os::unix::fs::symlink(program, self.bed.path("tools").join(name)).expect("link");
    }

    /// Returns a command of the page with the names of this machine.
    fn typed(&self, command: &str) -> String {
        self.names.iter().fold(command.to_owned(), |c, (page, here)| c.replace(page, here))
    }

    /// Returns a line that was printed here with the names of the page.
    fn printed(&self, line: &str) -> String {
        self.names.iter().fold(line.to_owned(), |l, (page, here)| l.replace(here, page))
    }

    /// Returns the home folders of this machine and of the machines that it reaches.
    fn homes(&self) -> Vec<PathBuf> {
        let others = fs::read_dir(self.bed.path("machines")).into_iter().flatten().flatten();
        others.map(|entry| entry.path()).chain([self.bed.path("home")]).collect()
    }
}

/// A shell for the commands of a page.
struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    fn start(stage: &Stage) -> Self {
        let (bed, tools) = (&stage.bed, stage.bed.path("tools"));
        let path = std::env::var("PATH").expect("PATH");
        let mut command = bed.command("bash");
        command.args(["--norc", "--noprofile"]).current_dir(bed.path("home"));
        command.env("PATH", format!("{}:{path}", tools.display())).env("TZ", "UTC");
        for unset in ["AGENT_MESSAGE_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
            command.env_remove(unset);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Its process group includes every program that a page starts in the background.
        command.process_group(0);
        let mut child = command.spawn().expect("bash");
        let (sender, lines) = channel();
        let output = child.stdout.take().expect("stdout");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take().expect("stdin");
        Self { child, input, lines }
    }

    /// Runs one command to its end and returns its output and its status.
    #[track_caller]
    fn run(&mut self, command: &str) -> (Vec<String>, i32) {
        let script = format!("{{ {command}\n}} 2>&1 </dev/null; printf '\\n\\001%d\\n' $?\n");
        self.input.write_all(script.as_bytes()).expect("the shell takes it");
        let mut printed = Vec::new();
        loop {
            let line = self.lines.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|e| panic!("{command}: {e}; so far {printed:#?}"));
            if let Some(status) = line.strip_prefix('\u{1}') {
                // This is the line end before the status.
                if printed.last().is_some_and(String::is_empty) {
                    printed.pop();
                }
                return (printed, status.parse().expect("status"));
            }
            // bash puts its name and the line number first.
            let line = line
                .strip_prefix("bash: line ")
                .and_then(|l| l.split_once(": "))
                .map_or_else(|| line.clone(), |(_, said)| format!("bash: {said}"));
            printed.push(line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// One command of a page and its output in the page.
struct Step {
    command: String,
    printed: Vec<String>,
    line: usize,
}

/// Returns the fenced blocks: the mark of each, and its lines with the number of the first.
fn blocks(page: &str) -> Vec<(String, usize, Vec<&str>)> {
    let mut out: Vec<(String, usize, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for (n, line) in (1..).zip(page.lines()) {
        match line.trim_start().strip_prefix("```") {
            Some(mark) if !inside => {
                out.push((mark.trim().to_owned(), n + 1, Vec::new()));
                inside = true;
            }
            Some(_) => inside = false,
            None if inside => out.last_mut().expect("a block").2.push(line),
            None => {}
        }
    }
    assert!(!inside, "a block has no end");
    out
}

/// Returns the word that ends a here-document of a command.
fn here_end(command: &str) -> Option<&str> {
    let (_, after) = command.split_once("<<")?;
    Some(after.split_whitespace().next()?.trim_matches('\''))
}

/// Returns the commands of a `console` block.
fn steps(first: usize, lines: &[&str]) -> Vec<Step> {
    let mut out: Vec<Step> = Vec::new();
    let mut rest = (first..).zip(lines);
    while let Some((line, text)) = rest.next() {
        let Some(command) = text.strip_prefix("$ ") else {
            let step = out.last_mut().unwrap_or_else(|| panic!("line {line}: no command is above"));
            step.printed.push((*text).to_owned());
            continue;
        };
        let mut command = command.to_owned();
        if let Some(end) = here_end(&command).map(str::to_owned) {
            for (_, more) in rest.by_ref() {
                command.push('\n');
                command.push_str(more);
                if *more == end {
                    break;
                }
            }
        }
        out.push(Step { command, printed: Vec::new(), line });
    }
    out
}

/// Returns true if a word is different at every run.
fn varies(word: &str) -> bool {
    const NAMES: [&str; 19] = [
        "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Jan", "Feb", "Mar", "Apr", "May", "Jun",
        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let digits = |w: &str| w.len() > 1 && w.bytes().all(|b| b.is_ascii_digit());
    let hex = |w: &str| {
        w.len() >= 8 && w.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let stamp = word
        .split_once('T')
        .is_some_and(|(day, time)| digits(day) && digits(time.trim_end_matches('Z')));
    let zulu = word.strip_suffix('Z').is_some_and(digits)
        || word.split_once('T').is_some_and(|(a, b)| digits(a) && digits(b));
    let process = word.strip_prefix("pid").is_some_and(digits);
    digits(word) || hex(word) || stamp || zulu || process || NAMES.contains(&word)
}

/// Splits a line into words and the text between them; every second piece is a word.
fn words(line: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = line;
    let mut word = false;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_alphanumeric() != word).unwrap_or(rest.len());
        let (piece, more) = rest.split_at(end);
        out.push(piece);
        (rest, word) = (more, !word);
    }
    out
}

/// The ids and dates of the page, each with its value in this run.
#[derive(Default)]
struct Meant(BTreeMap<String, String>);

impl Meant {
    /// Returns true if a line looks as the page says, and then notes its ids and dates.
    fn fits(&mut self, page: &str, real: &str) -> bool {
        let (ours, theirs) = (words(page.trim_end()), words(real.trim_end()));
        let alike = |(a, b): (&&str, &&str)| a == b || (varies(a) && varies(b));
        if ours.len() != theirs.len() || !ours.iter().zip(&theirs).all(alike) {
            return false;
        }
        for (a, b) in ours.iter().zip(&theirs).filter(|(a, b)| a != b && a.len() >= 8) {
            self.0.entry((*a).to_owned()).or_insert_with(|| (*b).to_owned());
            // The folder of a day is named after the stamps in it.
            if let (Some(day), Some(now)) = (day_of(a), day_of(b)) {
                self.0.entry(day).or_insert(now);
            }
        }
        // The parts of a date are too short to be told from other numbers.
        for (a, b) in ours.windows(5).zip(theirs.windows(5)) {
            let day = |w: &[&str]| {
                w[1] == "-"
                    && w[3] == "-"
                    && w[0].len() == 4
                    && varies(w[0])
                    && varies(w[2])
                    && varies(w[4])
            };
            if day(a) && day(b) {
                self.0.entry(a.concat()).or_insert_with(|| b.concat());
            }
        }
        true
    }

    /// Returns a command of the page with the ids and dates of this run.
    fn apply(&self, command: &str) -> String {
        self.0.iter().fold(command.to_owned(), |c, (page, real)| c.replace(page, real))
    }
}

/// Returns the day of a stamp such as `20261123T134209`, as folders are named.
fn day_of(stamp: &str) -> Option<String> {
    let (day, _) = stamp.split_once('T')?;
    let is_day = day.len() == 8 && day.bytes().all(|b| b.is_ascii_digit());
    is_day.then(|| format!("{}-{}-{}", &day[..4], &day[4..6], &day[6..]))
}

/// Returns true if the output looks as the page says.
fn same(meant: &mut Meant, page: &[String], real: &[String]) -> bool {
    match (page.split_first(), real.split_first()) {
        (None, None) => true,
        (Some((line, more)), _) if line == "..." => {
            (0..=real.len()).any(|skip| same(meant, more, &real[skip..]))
        }
        (Some((line, more)), Some((first, rest))) => {
            meant.fits(line, first) && same(meant, more, rest)
        }
        _ => false,
    }
}

/// Returns true if a command only reads, so that it can be repeated until a message has arrived.
fn only_looks(command: &str) -> bool {
    let after = |start: &str| command.strip_prefix(start).and_then(|c| c.split_once(' '));
    let command = match (after("ssh "), after("msgfs --me ")) {
        (Some((_, there)), _) => there.to_owned(),
        (_, Some((_, msgfs))) => format!("msgfs {msgfs}"),
        _ => command.to_owned(),
    };
    let looks = [
        "ls ",
        "find ",
        "grep ",
        "curl -s 'imaps:",
        "msgfs status",
        "msgfs ls",
        "msgfs link",
        "msgfs hook status",
        "git -C ",
    ];
    looks.iter().any(|start| command.starts_with(start)) || command.ends_with("status.txt")
}

/// Returns the numbers of a page's lines that are in a chapter.
fn lines_of(page: &str, chapter: &str) -> std::ops::Range<usize> {
    let is_head = |line: &str| line.strip_prefix("## ").map(str::to_owned);
    let mut heads = (1..).zip(page.lines()).filter_map(|(n, line)| Some((n, is_head(line)?)));
    let (first, _) = heads.by_ref().find(|(_, head)| head == chapter).expect("chapter");
    first..heads.next().map_or(usize::MAX, |(n, _)| n)
}

/// Runs a page, or one chapter of it, and returns the differences.
pub(crate) fn wrong(name: &str, chapter: Option<&str>, stage: &Stage) -> Vec<String> {
    let is_blessed = std::env::var_os("MSGFS_TEST_BLESS").is_some();
    // The test does not wait long for a page that it will write anew.
    let patience = if is_blessed { Duration::from_secs(10) } else { PATIENCE };
    let _held = is_blessed.then(|| BLESS.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let page = fs::read_to_string(&place).expect("page");
    let typed_lines = chapter.map_or(0..usize::MAX, |chapter| lines_of(&page, chapter));
    let bed = &stage.bed;
    let (mut shell, mut meant, mut out) = (Shell::start(stage), Meant::default(), Vec::new());
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    // Blocks are replaced from the last to the first, so that earlier line numbers stay right.
    let mut blessed: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for (mark, first, block) in blocks(&page) {
        if !typed_lines.contains(&first) {
            continue;
        }
        match mark.as_str() {
            "console" => {
                for step in steps(first, &block) {
                    let meaning = meant.apply(&step.command);
                    let command = stage.typed(&meaning);
                    let began = Instant::now();
                    let printed = loop {
                        let (printed, _) = shell.run(&command);
                        let printed: Vec<String> =
                            printed.iter().map(|line| stage.printed(line)).collect();
                        let fits = same(&mut meant, &step.printed, &printed);
                        if fits || !only_looks(&command) || began.elapsed() > patience {
                            if !fits {
                                out.push(format!(
                                    "{name}:{}: $ {}\n--- the page\n{}\n--- now\n{}\n",
                                    step.line,
                                    step.command,
                                    step.printed.join("\n"),
                                    printed.join("\n")
                                ));
                            }
                            break printed;
                        }
                        std::thread::sleep(Duration::from_millis(100));
                    };
                    let said = step.command.lines().count() + step.printed.len();
                    let now = format!("$ {meaning}");
                    let elided = step.printed.iter().any(|line| line == "...");
                    let printed = if elided { step.printed } else { printed };
                    let now = now.lines().map(str::to_owned).chain(printed).collect();
                    blessed.push((step.line - 1, said, now));
                }
            }
            "sh" | "sh terminal" => {
                let mut command = stage.typed(&meant.apply(&block.join("\n")));
                if mark == "sh terminal" {
                    command =
                        format!("( cd\n{command}\n) > ~/../terminal-{first} 2>&1 < /dev/null &");
                }
                let (printed, status) = shell.run(&command);
                if status != 0 {
                    out.push(format!("{name}:{first}: status {status}\n{}", printed.join("\n")));
                }
            }
            "toml" => {
                let config = bed.path("page.toml");
                fs::write(&config, block.join("\n")).expect("config");
                let said =
                    run(bed.msgfs([Path::new("--config"), &config, Path::new("status")]), None);
                if said.code() == Some(2) || said.stderr.contains("page.toml") {
                    out.push(format!("{name}:{first}: {}", said.said()));
                }
            }
            _ => {}
        }
    }
    drop(shell);
    end(stage);
    if is_blessed && !out.is_empty() {
        for (start, len, printed) in blessed.into_iter().rev() {
            lines.splice(start..start + len, printed);
        }
        fs::write(
            &place,
            lines.iter().fold(String::new(), |mut all, line| {
                let _ = writeln!(all, "{line}");
                all
            }),
        )
        .expect("page");
    }
    out
}

/// Ends the mounts that a page leaves.
fn end(stage: &Stage) {
    let entries = stage.homes().into_iter().flat_map(|home| fs::read_dir(home).expect("home"));
    let mounts = entries.map(|e| e.expect("entry").path());
    for dir in mounts.filter(|dir| mounted(dir)).collect::<Vec<PathBuf>>() {
        // A program that has just been killed may still have a file of the mount open.
        soon(&format!("{} is unmounted", dir.display()), || {
            run(stage.bed.msgfs([Path::new("umount"), &dir]), None).ok()
        });
    }
}

fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![root.join("README.md")];
    for folder in ["docs", "mount-scripts", "benches"] {
        pages_in(&root.join(folder), &mut found);
    }
    let below = |page: &PathBuf| page.strip_prefix(root).expect("below the root").to_owned();
    let mut out: Vec<String> =
        found.iter().map(|page| below(page).to_str().expect("UTF-8").to_owned()).collect();
    out.sort();
    out
}

fn pages_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            pages_in(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Returns true if a block with this mark is run or says that it is not.
fn is_accounted_for(mark: &str) -> bool {
    ["console", "sh", "sh terminal", "toml"].contains(&mark)
        || mark.split(' ').next_back() == Some("example")
}

#[test]
fn every_block_is_run_or_is_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for name in pages() {
        let page = fs::read_to_string(root.join(&name)).expect("page");
        let left = blocks(&page).into_iter().filter(|(mark, ..)| !is_accounted_for(mark));
        wrong.extend(left.map(|(mark, line, _)| format!("{name}:{line}: ```{mark}")));
    }
    assert!(wrong.is_empty(), "neither run nor marked as an example:\n{}", wrong.join("\n"));
    for mark in ["", "text", "json", "examples", "bash", "sh examples", "console terminal"] {
        assert!(!is_accounted_for(mark), "{mark}");
    }
}

/// The commands of the page for `git send-email`, typed into a repository with a few commits.
#[test]
fn a_series_is_sent_as_the_page_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/MAIL-PROGRAMS.md");
    let page = fs::read_to_string(page).expect("page");
    let block = blocks(&page).into_iter().map(|(_, _, lines)| lines.join("\n"));
    let block = block.into_iter().find(|block| block.contains("git send-email")).expect("block");
    let stage = Stage::new();
    let mut shell = Shell::start(&stage);
    let mut typed = |command: &str| {
        let (printed, status) = shell.run(command);
        assert_eq!(status, 0, "{command}\n{}", printed.join("\n"));
        printed.join("\n")
    };
    typed(
        "mkdir repo .config .config/msgfs; echo 'me = \"bar\"' > .config/msgfs/config.toml; cd repo; \
         git init -q; git config user.name Ann; git config user.email ann@example.org; \
         for n in 0 1 2 3; do echo $n > f; git add f; git commit -q -m \"change $n\"; done",
    );
    // The option --annotate opens this editor.
    let edits = [("SUBJECT", "series"), ("BLURB", "all")]
        .map(|(what, text)| format!("-e 's/[*]* {what} HERE [*]*/{text}/'"))
        .join(" ");
    typed(&format!(
        "printf '%s\\n' '#!/bin/sh' \"sed -i {edits} \\\"\\$@\\\"\" > ../edit; chmod +x ../edit; \
         export GIT_EDITOR=$HOME/edit"
    ));
    typed(&block);
    let inbox = typed("msgfs --me bob inbox");
    for subject in ["[PATCH 0/3] series", "[PATCH 1/3] change 1", "[PATCH 3/3] change 3"] {
        assert!(inbox.contains(subject), "{subject}: {inbox}");
    }
    // The page says why the shorter address is not in it.
    let (printed, _) = shell.run("git send-email --to=bob@samp -1");
    assert!(printed.join("\n").contains("unable to extract a valid address"), "{printed:?}");
}

#[test]
fn the_pages_print_what_happens() {
    let only = std::env::var("MSGFS_TEST_PAGE").unwrap_or_default();
    let mut pages = pages();
    pages.retain(|page| page.contains(&only) && page != crate::examples::PAGE);
    let wrong: Vec<String> =
        pages.iter().flat_map(|page| wrong(page, None, &Stage::new())).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_picture_is_that_of_the_tables() {
    let mut command = std::process::Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/plot")).arg("--check");
    let said = run(command, None);
    assert!(said.ok(), "{said:?}");
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    assert!(readme.expect("README").lines().count() <= 150);
}

#[test]
fn lines_are_compared_by_their_form() {
    let mut meant = Meant::default();
    let page = "20261121T234837.000Z-alice-f66bacd8.txt of 2026-11-21";
    assert!(meant.fits(page, "20270101T000000.123Z-alice-0123abcd.txt of 2027-01-01"));
    assert!(!meant.fits(page, "20270101T000000.123Z-bob-0123abcd.txt of 2027-01-01"));
    assert_eq!(meant.apply("cat sent/2026-11-21/f66bacd8.txt"), "cat sent/2027-01-01/0123abcd.txt");
    let lines = |all: &[&str]| all.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
    assert!(same(&mut meant, &lines(&["a", "...", "z"]), &lines(&["a", "b", "c", "z"])));
    assert!(!same(&mut meant, &lines(&["a", "..."]), &lines(&["b"])));
    assert!(!same(&mut meant, &lines(&["a"]), &lines(&["a", "b"])));
}
