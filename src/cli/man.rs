//! `msgfs man`: the manual page, made from the definition of the commands.

use std::io;

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use super::Cli;
use super::failure::Failure;
use super::output;

/// Print the manual page of all commands
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs man | man -l -\n  \
    msgfs man > ~/.local/share/man/man1/msgfs.1")]
pub(crate) struct Args {}

/// Runs `msgfs man`.
pub(crate) fn run(_args: &Args) -> Result<(), Failure> {
    let page = render_page().map_err(|e| Failure::from_io("cannot write the manual page", &e))?;
    output::print_data(&page)
}

fn render_page() -> io::Result<String> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone()).title("msgfs").manual("User Commands");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    render_synopsis(&command, "SH", &mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    render_examples(&command, "SH", &mut page)?;
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        render_subcommand(sub, &format!("msgfs {}", sub.get_name()), &mut page)?;
    }
    render_fixed_sections(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Renders one command as a section with subsections for its parts. Its own commands follow it.
fn render_subcommand(command: &clap::Command, name: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut heading = Roff::new();
    heading.control("SH", [name.to_uppercase().as_str()]);
    heading.to_writer(page)?;
    // Options of every command are described once, at the top of the page.
    let own = command.clone().mut_args(|arg| {
        let general = arg.is_global_set() || matches!(arg.get_id().as_str(), "help" | "version");
        let hidden = general || arg.is_hide_set();
        arg.hide(hidden)
    });
    render_synopsis(&own, "SS", page)?;
    let man = Man::new(own);
    let mut parts = Vec::new();
    man.render_description_section(&mut parts)?;
    if command.get_arguments().any(|arg| !arg.is_global_set() && arg.get_id() != "help") {
        man.render_options_section(&mut parts)?;
    }
    page.extend(String::from_utf8_lossy(&parts).lines().flat_map(|line| {
        let line = line.replacen(".SH ", ".SS ", 1) + "\n";
        line.into_bytes()
    }));
    render_examples(command, "SS", page)?;
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        render_subcommand(sub, &format!("{name} {}", sub.get_name()), page)?;
    }
    Ok(())
}

/// Renders the call of a command: its options with their values, then its other arguments.
fn render_synopsis(command: &clap::Command, level: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut words = vec![bold(command.get_bin_name().unwrap_or(command.get_name()))];
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        if arg.get_id() == "help" || arg.get_id() == "version" {
            continue;
        }
        let takes = arg.get_action().takes_values();
        let names = arg.get_value_names().unwrap_or_default();
        let names = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let many = arg.get_num_args().is_some_and(|n| n.max_values() > 1)
            || matches!(arg.get_action(), clap::ArgAction::Append);
        let (open, close) = if arg.is_required_set() { ("", "") } else { ("[", "]") };
        let long = arg.get_long().map(|long| format!("--{long}"));
        let option = long.or_else(|| Some(format!("-{}", arg.get_short()?)));
        words.push(roman(format!(" {open}")));
        words.extend(option.as_ref().map(|option| bold(option.as_str())));
        if takes {
            words.push(roman(if option.is_some() { " " } else { "" }));
            words.push(italic(names));
        }
        words.push(roman(format!("{close}{}", if many { "..." } else { "" })));
    }
    if command.has_subcommands() {
        words.extend([roman(" "), italic("COMMAND")]);
    }
    let mut roff = Roff::new();
    roff.control(level, ["SYNOPSIS"]).text(words);
    roff.to_writer(page)
}

/// Renders the examples of a command as typed, without filling.
fn render_examples(command: &clap::Command, level: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let Some(help) = command.get_after_help() else { return Ok(()) };
    let help = help.to_string();
    let mut roff = Roff::new();
    roff.control(level, ["EXAMPLES"]).control("nf", []);
    for line in help.lines().skip(1) {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
    roff.to_writer(page)
}

/// The sections that no option describes: headings, and below each its terms with their texts.
const FIXED: &str = "\
EXIT STATUS
  0: Done.
  1: Refused or failed. Standard error has the reason.
  2: The command line is wrong.
ENVIRONMENT
  MSGFS_ME: The name to act for, if there is no --me.
  MSGFS_LOG: The level of the log: warn, info, debug, or a filter for each module.
  AGENT_MESSAGE_DIR: The folder of the default SAMP store.
FILES
  ~/.config/msgfs/config.toml: The configuration. `msgfs init` writes one.
  ~/.local/state/msgfs/NAME/: Marks, keyring, signing key, spool and log.
  ~/.cache/msgfs/NAME/: A copy of the index. You can delete it and lose nothing.
";

fn render_fixed_sections(page: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    for line in FIXED.lines() {
        match line.trim_start().split_once(": ") {
            Some((term, text)) => roff.control("TP", []).text([roman(term)]).text([roman(text)]),
            None => roff.control("SH", [line]),
        };
    }
    roff.to_writer(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_section_and_examples() {
        let page = render_page().unwrap();
        for command in Cli::command().get_subcommands() {
            let heading = format!("MSGFS {}", command.get_name().to_uppercase());
            assert!(page.contains(&heading), "{heading}");
        }
        assert!(page.contains("MSGFS KEY TRUST"));
        assert!(page.contains("msgfs umount \\-\\-lazy"), "examples are kept as typed");
        assert!(page.contains("EXIT STATUS"));
        assert!(!page.contains("as\\-daemon"), "what is hidden in the help is hidden here");
    }
}
