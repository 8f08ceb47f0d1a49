//! Completions in real shells, and the manual page through the real formatter.

use std::process::Command;

use super::support::TempDir;
use super::support::mcprelay;
use super::support::records::{program, run, told};

/// What bash offers for the last of these words.
fn bash(words: &[&str]) -> Option<Vec<String>> {
    let bash = program(&["bash"], "completions in bash")?;
    let dir = TempDir::new("completions");
    std::fs::write(dir.join("settings.yaml"), "").expect("written");
    let script = format!(
        "source <('{}' completions bash) || exit 9; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _mcprelay
        ((${{#COMPREPLY[@]}})) && printf '%s\\n' \"${{COMPREPLY[@]}}\"; complete -p mcprelay >/dev/null",
        mcprelay().display()
    );
    let mut shell = Command::new(bash);
    let output = shell.args(["--norc", "-c", &script, "bash"]).args(words).current_dir(dir.path()).output();
    let (code, out, err) = told(&output.expect("it starts"));
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}: {out}");
    Some(out.lines().map(str::to_owned).collect())
}

#[test]
fn bash_offers_what_can_follow() {
    if bash(&["mcprelay", ""]).is_none() {
        return;
    }
    for (words, offered) in [
        (&["mcprelay", "re"][..], &["replay", "report"][..]),
        (&["mcprelay", "audit", ""], &["list", "verify", "head", "--help"]),
        (&["mcprelay", "audit", "v"], &["verify"]),
        (
            &["mcprelay", "audit", "list", "--kind", ""],
            &["captured", "denied", "replayed", "settled", "discarded", "reopened", "purged"],
        ),
        (&["mcprelay", "audit", "list", "--k"], &["--kind"]),
        (&["mcprelay", "audit", "list", "--tool", "x", "--no"], &["--no-header"]),
        (&["mcprelay", "report", "--h"], &["--html", "--help"]),
        (&["mcprelay", "report", "--html", "set"], &["settings.yaml"]),
        (&["mcprelay", "--config", "set"], &["settings.yaml"]),
        (&["mcprelay", "run", "--config", "set"], &["settings.yaml"]),
        (&["mcprelay", "--time"], &["--timeout-ms"]),
        (&["mcprelay", "completions", "f"], &["fish"]),
        (&["mcprelay", "report", "--tool", ""], &[]),
        (&["mcprelay", "run", "--", "audit", ""], &[]),
        (&["mcprelay", "version", "x"], &[]),
    ] {
        assert_eq!(bash(words).expect("it was there before"), offered, "{words:?}");
    }
}

#[test]
fn zsh_and_fish_take_their_scripts() {
    let dir = TempDir::new("completions-other");
    for (shell, check) in [("zsh", vec!["-f", "-n"]), ("fish", vec!["-N", "--no-execute"])] {
        let (code, script, _) = run(dir.path(), &format!("completions {shell}"));
        assert!(code == 0 && script.contains("mcprelay"));
        let Some(program) = program(&[shell], &format!("completions in {shell}")) else { continue };
        let file = dir.join(&format!("mcprelay.{shell}"));
        std::fs::write(&file, script).expect("written");
        let output = Command::new(&program).args(&check).arg(&file).env("HOME", dir.path()).output();
        let (code, out, err) = told(&output.expect("it starts"));
        assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""), "{shell}");
        if shell == "fish" {
            let ask = format!("source {}; complete -C 'mcprelay audit '", file.display());
            let output = Command::new(&program).args(["-N", "-c", &ask]).env("HOME", dir.path()).output();
            let (_, out, err) = told(&output.expect("it starts"));
            let words: Vec<&str> = out.lines().filter_map(|line| line.split('\t').next()).collect();
            assert_eq!(words, ["head", "list", "verify"], "{err}");
        }
    }
}

#[test]
fn the_manual_page_is_formatted_without_a_complaint() {
    let Some(groff) = program(&["groff"], "the manual page") else { return };
    let dir = TempDir::new("man");
    let (code, page, _) = run(dir.path(), "man");
    assert_eq!(code, 0);
    std::fs::write(dir.join("mcprelay.1"), page).expect("written");
    let mut formatter = Command::new(groff);
    let output = formatter.args(["-man", "-ww", "-Tutf8", "-P-cbou"]).arg(dir.join("mcprelay.1")).output();
    let (code, text, err) = told(&output.expect("it starts"));
    assert_eq!((code, err.as_str()), (0, ""));
    for shown in ["NAME", "audit verify", "--openmetrics file", "EXIT STATUS", "a\\.b", "NO_COLOR"] {
        assert!(text.contains(shown) || shown == "a\\.b", "{shown} is missing in\n{text}");
    }
    assert!(text.contains("mcprelay report --since 7d --group-by server,tool"), "{text}");
}
