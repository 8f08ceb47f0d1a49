//! `mcprelay man`: the manual page, made from the table of commands.

use std::fmt::Write as _;

use crate::cli::{COMMANDS, CommandSpec, is_group};

/// The page in the language of `man`.
#[must_use]
pub fn page() -> String {
    let mut out = String::new();
    let program = &COMMANDS[0];
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(out, ".TH MCPRELAY 1 \"\" \"mcprelay {version}\" \"User Commands\"");
    let _ = writeln!(out, ".SH NAME\nmcprelay \\- {}", text(lower_first(program.about).trim_end_matches('.')));
    out.push_str(".SH SYNOPSIS\n");
    let shown = || COMMANDS.iter().filter(|spec| !spec.words.is_empty() && !is_group(spec));
    for (n, spec) in shown().enumerate() {
        if n > 0 {
            out.push_str(".br\n");
        }
        let _ = writeln!(out, ".B mcprelay {}\n{}", text(spec.words), text(spec.usage));
    }
    let _ = writeln!(out, ".SH DESCRIPTION\n{}", text(program.about));
    let _ = writeln!(out, ".PP\n{}", text(program.detail));
    out.push_str(".SH COMMANDS\n");
    for spec in shown() {
        command(spec, &mut out);
    }
    out.push_str(".SH EXIT STATUS\n");
    exits(program, &mut out);
    out.push_str(
        ".SH FILES\n.TP\n.I ./mcprelay.config.yaml\nThe configuration, unless another is named.\n\
         .TP\n.I ./.mcprelay/queue.db\nStored calls.\n\
         .TP\n.I ./.mcprelay/history.db\nThe audit trail and the calls that reports sum up.\n\
         .SH ENVIRONMENT\n.TP\n.B NO_COLOR\nIf it is set and not empty, no colours are used.\n\
         .TP\n.B COLUMNS\nThe width that tables fit, instead of the terminal's.\n\
         .TP\n.B XDG_STATE_HOME\nWhere the databases go if their configured place cannot be made; ~/.local/state unless set.\n",
    );
    let _ = writeln!(out, ".SH EXAMPLES\n.nf\n{}\n.fi", text(program.example));
    out
}

fn command(spec: &CommandSpec, out: &mut String) {
    let _ = writeln!(out, ".SS \"mcprelay {}\"\n{}", text(spec.words), text(spec.about));
    if !spec.detail.is_empty() {
        let _ = writeln!(out, ".PP\n{}", text(spec.detail));
    }
    for option in spec.options {
        let value = option.value.map_or(String::new(), |value| format!(" \\fI{}\\fR", text(value)));
        let _ = writeln!(out, ".TP\n\\fB\\-\\-{}\\fR{value}\n{}", text(option.name), text(option.help));
    }
    out.push_str(".PP\nExit status:\n");
    exits(spec, out);
    let _ = writeln!(out, ".PP\nExample:\n.PP\n.nf\n    {}\n.fi", text(spec.example));
}

fn exits(spec: &CommandSpec, out: &mut String) {
    for (code, meaning) in spec.exits {
        let _ = writeln!(out, ".TP\n.B {code}\n{}", text(meaning));
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

/// Text that is nothing else to `man`: a dash that can be copied, a backslash, and no request at the start of a line.
fn text(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('…', "...");
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_a_request() {
        assert_eq!(text(".TH 'x' a-b \\n"), "\\&.TH \\(aqx\\(aq a\\-b \\en");
        for line in page().lines().filter(|line| line.starts_with(['.', '\''])) {
            let request = line.split(' ').next().unwrap_or_default();
            let known = [".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I", ".br", ".nf", ".fi"];
            assert!(known.contains(&request), "{line}");
        }
    }

    #[test]
    fn every_command_with_every_option_is_in_the_page() {
        let page = page();
        for spec in COMMANDS.iter().filter(|spec| !spec.words.is_empty() && !is_group(spec)) {
            let section = page.split(&format!(".SS \"mcprelay {}\"", text(spec.words))).nth(1).expect(spec.words);
            for option in spec.options {
                assert!(
                    section.contains(&format!("\\-\\-{}\\fR", text(option.name))),
                    "{} {}",
                    spec.words,
                    option.name
                );
            }
        }
    }
}
