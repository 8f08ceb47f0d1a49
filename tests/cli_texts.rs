//! The texts of the command line: help as it was, and `docs/cli.md` in step with the table of commands.

use std::fmt::Write as _;

use mcprelay::cli::{COMMANDS, help};

use super::support::TempDir;
use super::support::records::{example, run, snapshot};

#[test]
fn help_is_what_it_was() {
    let dir = TempDir::new("help");
    for spec in COMMANDS {
        let name =
            if spec.words.is_empty() { "help".to_owned() } else { format!("help-{}", spec.words.replace(' ', "-")) };
        let line = format!("{} --help", spec.words);
        let (code, out, err) = run(dir.path(), line.trim());
        assert_eq!((code, err.as_str(), out.as_str()), (0, "", help(spec.words).as_str()), "{line}");
        snapshot(&name, &out);
    }
}

#[test]
fn lists_of_stored_calls_and_verdicts_are_what_they_were() {
    let dir = example("texts");
    for (name, line) in [
        ("replay-list", "replay list"),
        ("replay-inspect", "replay inspect 01LETTER000000000000000020"),
        ("policy-test", "policy test --tool read_file"),
        ("validate", "validate"),
    ] {
        let (code, out, err) = run(dir.path(), line);
        assert_eq!((code, err.as_str()), (0, ""), "{line}");
        snapshot(name, &out);
    }
}

/// The lines of a command's options in `docs/cli.md`.
fn options(words: &str) -> String {
    let spec = COMMANDS.iter().find(|spec| spec.words == words).expect("a command");
    let mut table = String::from("| option | meaning |\n| --- | --- |\n");
    for option in spec.options {
        let value = option.value.map_or(String::new(), |value| format!(" <{value}>"));
        let _ = writeln!(table, "| `--{}{value}` | {} |", option.name, option.help.replace('|', "\\|"));
    }
    table.push_str("| `-h`, `--help` | Print the help. |\n");
    table
}

/// The examples of the page: the snapshot's name, the command, and the line they stand behind.
fn shown(page: &str) -> Vec<(String, String, String)> {
    let marks = page.lines().filter_map(|line| line.strip_prefix("<!-- shows ")?.strip_suffix(" -->"));
    let parts = marks.filter_map(|mark| Some((mark, mark.split_once(": ")?)));
    parts.map(|(mark, (name, line))| (name.to_owned(), line.to_owned(), format!("<!-- shows {mark} -->\n"))).collect()
}

/// The page has one section for each command, with its options and exit codes between marks. With
/// `MCPRELAY_UPDATE_SNAPSHOTS=1` what stands between the marks is written anew.
#[test]
fn the_page_of_the_command_line_is_in_step_with_the_program() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let page = std::fs::read_to_string(&path).expect("docs/cli.md can be read");
    let mut fresh = page.clone();
    for spec in COMMANDS.iter().filter(|spec| !spec.words.is_empty() && !mcprelay::cli::is_group(spec)) {
        let (begin, end) = (format!("<!-- {} -->\n", spec.words), format!("<!-- end of {} -->", spec.words));
        let at = page.find(&begin).unwrap_or_else(|| panic!("docs/cli.md has no {begin}"));
        assert!(page[..at].contains(&format!("\n### mcprelay {}\n", spec.words)), "no section on {}", spec.words);
        let mut text = format!("`mcprelay {} {}`", spec.words, spec.usage).replace(" `", "`");
        let _ = write!(text, "\n\n{}\n\n{}\n", spec.about, options(spec.words));
        let exits: Vec<String> = spec.exits.iter().map(|(code, meaning)| format!("{code} {meaning}")).collect();
        let _ = writeln!(text, "Exit codes: {}.", exits.join("; "));
        let start = fresh.find(&begin).expect("it was there") + begin.len();
        let stop = fresh[start..].find(&end).unwrap_or_else(|| panic!("docs/cli.md has no {end}")) + start;
        fresh.replace_range(start..stop, &text);
    }
    for (name, line, begin) in shown(&page) {
        let snapshot = path.with_file_name("../tests/snapshots").join(format!("{name}.txt"));
        let output = std::fs::read_to_string(&snapshot).unwrap_or_else(|_| panic!("{} is missing", snapshot.display()));
        let start = fresh.find(&begin).expect("it was there") + begin.len();
        let stop = start + fresh[start..].find(&format!("<!-- end of {name} -->")).expect("the example ends");
        fresh.replace_range(start..stop, &format!("\n```console\n$ {line}\n{}\n```\n\n", output.trim_end()));
    }
    if std::env::var_os("MCPRELAY_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &fresh).expect("written");
    } else {
        assert!(
            page == fresh,
            "docs/cli.md is not in step; MCPRELAY_UPDATE_SNAPSHOTS=1 mends what is between its marks"
        );
    }
}
