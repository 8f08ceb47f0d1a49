//! `mcprelay completions`: scripts for shells, made from the table of commands.

use std::fmt::Write as _;

use crate::cli::{COMMANDS, CommandSpec, Opt, ServerPart, Shell};

/// The script for a shell.
#[must_use]
pub fn script(shell: Shell) -> String {
    match shell {
        Shell::Bash => bash(),
        Shell::Zsh => zsh(),
        Shell::Fish => fish(),
    }
}

/// What can follow these words: the next words of longer commands, with what they do.
pub(crate) fn words_after(words: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for spec in COMMANDS.iter().filter(|spec| !spec.words.is_empty()) {
        let rest = match words {
            "" => Some(spec.words),
            words => spec.words.strip_prefix(words).and_then(|rest| rest.strip_prefix(' ')),
        };
        let Some(rest) = rest else { continue };
        let (word, last) = rest.split_once(' ').map_or((rest, true), |(word, _)| (word, false));
        match found.iter_mut().find(|(known, _)| *known == word) {
            Some(entry) if last => entry.1 = spec.about,
            Some(_) => {}
            None => found.push((word, spec.about)),
        }
    }
    if words == "completions" {
        found.extend([("bash", "For bash."), ("zsh", "For zsh."), ("fish", "For fish.")]);
    }
    found
}

/// Whether an option's value is the name of a file.
fn takes_file(option: &Opt) -> bool {
    matches!(option.value, Some("path" | "file"))
}

/// The words that an option takes, if its help begins with a list of them: `transport, timeout or tool_error.`
fn values(option: &Opt) -> Vec<&'static str> {
    if !matches!(option.value, Some("word" | "words")) {
        return Vec::new();
    }
    let list = option.help.split(';').next().unwrap_or_default().trim_end_matches('.');
    list.split([',', ' ']).filter(|word| !word.is_empty() && *word != "or").collect()
}

fn options(spec: &CommandSpec) -> impl Iterator<Item = &Opt> {
    spec.options.iter()
}

/// Options that begin `run` may also stand first, without the word.
fn options_of(words: &str) -> Vec<&'static Opt> {
    let words = if words.is_empty() { "run" } else { words };
    COMMANDS.iter().filter(|spec| spec.words == words).flat_map(|spec| spec.options.iter()).collect()
}

fn bash() -> String {
    let mut out = String::from(
        "# bash completion for mcprelay; source it, or save it as mcprelay in a directory of bash-completion.\n\
         _mcprelay() {\n\
         \x20   local current=${COMP_WORDS[COMP_CWORD]} words= i\n\
         \x20   COMPREPLY=()\n\
         \x20   for ((i = 1; i < COMP_CWORD; i++)); do\n\
         \x20       case ${COMP_WORDS[i]} in\n\
         \x20           --) return ;;\n\
         \x20           -*) ;;\n\
         \x20           *) case \"$words ${COMP_WORDS[i]}\" in\n",
    );
    let known: Vec<&str> = COMMANDS.iter().map(|spec| spec.words).filter(|words| !words.is_empty()).collect();
    let patterns: Vec<String> = known.iter().map(|words| format!("' {words}'")).collect();
    let _ = writeln!(out, "                {}) words=\"$words ${{COMP_WORDS[i]}}\" ;;", patterns.join("|"));
    out.push_str("            esac ;;\n        esac\n    done\n");
    // A value of the option before.
    out.push_str("    case \"$words:${COMP_WORDS[COMP_CWORD - 1]}\" in\n");
    for spec in COMMANDS {
        for option in options(spec).filter(|option| option.value.is_some()) {
            let reply = if takes_file(option) {
                "compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$current\"))".to_owned()
            } else if values(option).is_empty() {
                // Nothing is known of it, so nothing is offered.
                ":".to_owned()
            } else {
                format!("COMPREPLY=($(compgen -W '{}' -- \"$current\"))", values(option).join(" "))
            };
            let _ = writeln!(out, "        ' {}:--{}') {reply}; return ;;", spec.words, option.name);
            if spec.words == "run" {
                let _ = writeln!(out, "        ':--{}') {reply}; return ;;", option.name);
            }
        }
    }
    out.push_str("    esac\n    case \"$words\" in\n");
    for spec in COMMANDS {
        let mut offered: Vec<String> = words_after(spec.words).iter().map(|(word, _)| (*word).to_owned()).collect();
        offered.extend(options_of(spec.words).iter().map(|option| format!("--{}", option.name)));
        offered.push("--help".to_owned());
        if spec.words.is_empty() {
            offered.push("--version".to_owned());
        }
        if spec.server != ServerPart::None {
            offered.push("--".to_owned());
        }
        let space = if spec.words.is_empty() { "" } else { " " };
        let pattern = format!("'{space}{}'", spec.words);
        let _ =
            writeln!(out, "        {pattern}) COMPREPLY=($(compgen -W '{}' -- \"$current\")) ;;", offered.join(" "));
    }
    out.push_str("    esac\n}\ncomplete -F _mcprelay mcprelay\n");
    out
}

/// `text` inside single quotes of any of the shells.
fn quoted(text: &str) -> String {
    text.replace('\'', "'\\''")
}

fn zsh() -> String {
    let mut out = String::from(
        "#compdef mcprelay\n\
         # zsh completion for mcprelay; save it as _mcprelay in a directory of $fpath.\n\
         _mcprelay() {\n\
         \x20   local words_so_far= i word\n\
         \x20   for ((i = 2; i < CURRENT; i++)); do\n\
         \x20       word=${words[i]}\n\
         \x20       case $word in\n\
         \x20           --) _normal; return ;;\n\
         \x20           -*) ;;\n\
         \x20           *) case \"$words_so_far $word\" in\n",
    );
    let known: Vec<&str> = COMMANDS.iter().map(|spec| spec.words).filter(|words| !words.is_empty()).collect();
    let patterns: Vec<String> = known.iter().map(|words| format!("' {words}'")).collect();
    let _ = writeln!(out, "                {}) words_so_far=\"$words_so_far $word\" ;;", patterns.join("|"));
    out.push_str("            esac ;;\n        esac\n    done\n    local -a offered\n");
    out.push_str("    case \"$words_so_far:${words[CURRENT - 1]}\" in\n");
    for spec in COMMANDS {
        for option in options(spec).filter(|option| option.value.is_some()) {
            let reply = match values(option) {
                _ if takes_file(option) => "_files".to_owned(),
                values if values.is_empty() => "_message 'a value'".to_owned(),
                values => format!("compadd {}", values.join(" ")),
            };
            let _ = writeln!(out, "        ' {}:--{}') {reply}; return ;;", spec.words, option.name);
            if spec.words == "run" {
                let _ = writeln!(out, "        ':--{}') {reply}; return ;;", option.name);
            }
        }
    }
    out.push_str("    esac\n    case \"$words_so_far\" in\n");
    // A colon parts a word from its description.
    let item = |word: &str, about: &str| format!("'{}:{}'", word, quoted(&about.replace(':', "\\:")));
    for spec in COMMANDS {
        let words = words_after(spec.words).into_iter().map(|(word, about)| item(word, about));
        let options = options_of(spec.words).into_iter().map(|option| item(&format!("--{}", option.name), option.help));
        let offered: Vec<String> = words.chain(options).chain([item("--help", "Print this help.")]).collect();
        let space = if spec.words.is_empty() { "" } else { " " };
        let _ = writeln!(out, "        '{space}{}') offered=({}) ;;", spec.words, offered.join(" "));
    }
    out.push_str("    esac\n    _describe mcprelay offered\n}\n_mcprelay \"$@\"\n");
    out
}

fn fish() -> String {
    let mut out = String::from(
        "# fish completion for mcprelay; save it as ~/.config/fish/completions/mcprelay.fish.\n\
         function __mcprelay_at\n\
         \x20   set -l seen\n\
         \x20   for word in (commandline -opc)[2..]\n\
         \x20       test \"$word\" = --; and return 1\n\
         \x20       string match -q -- '-*' $word; or set -a seen $word\n\
         \x20   end\n\
         \x20   set -l wanted (string split -n ' ' -- $argv[1])\n\
         \x20   set -l count (count $wanted)\n\
         \x20   test $count -eq 0; and test (count $seen) -eq 0; and return 0\n\
         \x20   test $count -gt 0; and test \"$seen[1..$count]\" = \"$argv[1]\"\n\
         end\n\
         complete -c mcprelay -f\n",
    );
    for spec in COMMANDS {
        let at = format!("-n '__mcprelay_at \"{}\"'", spec.words);
        for (word, about) in words_after(spec.words) {
            let _ = writeln!(out, "complete -c mcprelay {at} -a {word} -d '{}'", fish_quoted(about));
        }
        for option in options_of(spec.words) {
            let value = match (option.value, values(option)) {
                (None, _) => String::new(),
                (Some(_), _) if takes_file(option) => " -r -F".to_owned(),
                (Some(_), values) if values.is_empty() => " -x".to_owned(),
                (Some(_), values) => format!(" -x -a '{}'", values.join(" ")),
            };
            let about = fish_quoted(option.help);
            let _ = writeln!(out, "complete -c mcprelay {at} -l {}{value} -d '{about}'", option.name);
        }
        let _ = writeln!(out, "complete -c mcprelay {at} -s h -l help -d 'Print this help.'");
    }
    out
}

fn fish_quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_on_to_their_subcommands() {
        let words = |after: &str| words_after(after).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(words("audit"), ["list", "verify", "head"]);
        assert_eq!(words("completions"), ["bash", "zsh", "fish"]);
        assert!(words("").contains(&"report") && !words("").contains(&"list"));
        assert_eq!(words("").iter().filter(|word| **word == "replay").count(), 1);
        assert_eq!(words("audit list"), [""; 0]);
    }

    #[test]
    fn every_option_of_every_command_is_in_every_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for option in COMMANDS.iter().flat_map(|spec| spec.options) {
                let spelled =
                    if shell == Shell::Fish { format!("-l {}", option.name) } else { format!("--{}", option.name) };
                assert!(script.contains(&spelled), "{shell:?}: {spelled}");
            }
        }
    }

    #[test]
    fn options_with_listed_words_offer_them() {
        let option = |words: &str, name: &str| {
            let spec = COMMANDS.iter().find(|spec| spec.words == words).expect("a command");
            values(spec.options.iter().find(|option| option.name == name).expect("an option"))
        };
        assert_eq!(option("audit list", "kind")[..3], ["captured", "denied", "replayed"]);
        assert_eq!(option("replay run", "status"), ["pending", "failed_replay", "replaying", "parked", "settled"]);
        assert_eq!(option("replay list", "status"), crate::cli::STATUSES);
        assert_eq!(option("audit list", "tool"), [""; 0]);
    }
}
