//! `msgfs reply`: answer the newest message to me.

use std::collections::BTreeSet;

use super::access::{self, Access, Purpose};
use super::failure::{Failure, refuse};
use super::message;
use super::{Global, output};

/// `20260424T174203` of a message's name: its second. The digits behind it only count.
const SECOND: usize = 15;
/// `20260424T174203.000Z-` of a message's name.
const STAMP: usize = 21;

/// Answer the newest message to me
///
/// The answer goes to its sender and into its thread. If several people wrote in the newest
/// second nothing is sent and their messages are named; answer one with
/// `msgfs write archive/DAY/MESSAGE.reply`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs reply 'looks good to me'\n  msgfs reply < answer.txt")]
pub(crate) struct Args {
    /// The text; `-` or nothing means standard input
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let text = message::not_empty(message::text(&args.text)?)?;
    // An empty first line: what follows is no header, whatever it looks like (docs/SEMANTICS.md, S45).
    let draft = [b"\n", text.as_slice()].concat();
    let (sender, name) = access::with(global, Purpose::ACT, |tree| {
        let (day, newest) = newest(tree)?;
        let stem = newest.strip_suffix(".txt").unwrap_or(&newest);
        tree.write(&format!("archive/{day}/{stem}.reply"), &draft)?;
        Ok((sender(&newest).to_owned(), newest))
    })?;
    output::say(&format!("replied to {sender} ({name})"));
    Ok(())
}

/// The day folder and name of the newest message to me.
fn newest(tree: &dyn Access) -> Result<(String, String), Failure> {
    let days = tree.ls("archive")?;
    for day in days.iter().rev().filter(|entry| entry.is_dir) {
        let listed = tree.ls(&format!("archive/{}", day.name))?;
        let names: Vec<&str> = listed
            .iter()
            .filter(|entry| !entry.is_dir && entry.name.strip_suffix(".txt").is_some())
            .map(|entry| entry.name.as_str())
            .collect();
        if !names.is_empty() {
            return pick(&names, &day.name).map(|name| (day.name.clone(), name.to_owned()));
        }
    }
    Err(Failure::refused("there is no message to answer yet"))
}

/// The newest of a day's messages (sorted by name), unless people tie for it.
fn pick<'a>(names: &[&'a str], day: &str) -> Result<&'a str, Failure> {
    let Some(last) = names.last() else {
        return Err(Failure::refused("there is no message to answer yet"));
    };
    let second = last.get(..SECOND);
    let tied: Vec<&str> =
        names.iter().rev().copied().take_while(|name| name.get(..SECOND) == second).collect();
    let senders: BTreeSet<&str> = tied.iter().map(|name| sender(name)).collect();
    if senders.len() < 2 {
        return Ok(last);
    }
    let choices: Vec<String> = tied
        .iter()
        .rev()
        .map(|name| {
            let stem = name.strip_suffix(".txt").unwrap_or(name);
            format!("  msgfs write archive/{day}/{stem}.reply   ({})", sender(name))
        })
        .collect();
    let senders: Vec<&str> = senders.into_iter().collect();
    refuse!(
        "nothing was sent: {} wrote in the same second, so there is no newest message; answer one \
         of them with\n{}",
        senders.join(" and "),
        choices.join("\n")
    )
}

/// The writer in a message's name `<time>-<from>-<id>.txt`; an id contains no hyphen.
fn sender(name: &str) -> &str {
    let rest = name.get(STAMP..).unwrap_or(name);
    rest.rsplit_once('-').map_or(rest, |(from, _)| from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: &str = "2026-04-24";

    #[test]
    fn the_newest_is_answered() {
        let names = [
            "20260424T174202.000Z-carol-11111111.txt",
            "20260424T174203.000Z-a-b-22222222.txt",
            "20260424T174203.001Z-a-b-33333333.txt",
        ];
        assert_eq!(pick(&names, DAY).unwrap(), names[2]);
        assert_eq!(sender(names[2]), "a-b");
    }

    #[test]
    fn a_tie_between_people_is_refused_whatever_the_digits_say() {
        let names = [
            "20260424T174203.000Z-bob-11111111.txt",
            "20260424T174203.000Z-carol-22222222.txt",
            "20260424T174203.001Z-bob-33333333.txt",
        ];
        let text = pick(&names, DAY).unwrap_err().to_string();
        assert!(text.contains("bob and carol"), "{text}");
        assert!(text.contains("archive/2026-04-24/20260424T174203.000Z-carol-22222222.reply"));
    }

    #[test]
    fn odd_names_do_no_harm() {
        for name in ["", "x", "20260424T174203.000Z-", "é20260424T174203.000Z-bob"] {
            sender(name);
            assert_eq!(pick(&[name], DAY).unwrap(), name);
        }
    }
}
