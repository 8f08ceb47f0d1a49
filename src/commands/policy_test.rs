//! `mcprelay policy test`: what the policy would say of a call.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use super::records;
use super::text::{one_line, written};
use crate::cli::PolicyTestArgs;
use crate::exit::ExitStatus;
use crate::policy::{Policy, Verdict};
use crate::wire::inspect::inspect;
use crate::wire::json::{Json, JsonError};

/// The call that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// The caller's identity.
    pub caller: &'a str,
    /// The JSON text of the arguments, of any type; `None` is a call without arguments.
    pub arguments: Option<&'a [u8]>,
}

/// Why there is no verdict.
#[derive(Debug)]
pub enum Failure {
    /// The question is wrong: a usage error, exit 2.
    Usage(String),
    /// The verdict could not be written.
    Output(io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) => f.write_str(message),
            Failure::Output(error) => write!(f, "cannot write the verdict: {error}"),
        }
    }
}

/// The command: a call given on the command line, or a stored one with its arguments as they are stored and, unless
/// `--caller` says otherwise, its caller.
pub fn command(args: &PolicyTestArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let caller = args.caller.as_deref();
    let result = match (&args.id, &args.tool) {
        (Some(id), _) => match records::find(&records::queue_place(&settings), id) {
            Ok(found) => {
                let record = found.record;
                let caller = caller.unwrap_or(&record.caller.identity);
                let arguments = record.arguments.as_deref().map(str::as_bytes);
                let question = Question { tool: &record.tool, caller, arguments };
                run(&settings.policy, &question, args.json, out)
            }
            Err(error) => return super::replay::fail(args.json, error.kind(), &error.to_string(), out, err),
        },
        (None, tool) => {
            let tool = tool.as_deref().unwrap_or_default();
            let question = Question { tool, caller: caller.unwrap_or("local"), arguments: Some(args.args.as_bytes()) };
            run(&settings.policy, &question, args.json, out)
        }
    };
    match result {
        Ok(()) => ExitStatus::Success,
        Err(Failure::Output(error)) => written(Err(error), err),
        Err(failure) => {
            // With standard error closed there is nobody left to tell.
            let _ = writeln!(err, "mcprelay: {failure}\nmcprelay: see mcprelay policy test --help");
            ExitStatus::Usage
        }
    }
}

/// Writes the verdict on `question`: five lines of text, or with `json` one line with one object. Both `allow` and
/// `deny` are a success; nothing is started, sent or stored.
///
/// # Errors
///
/// See [`Failure`].
pub fn run(policy: &Policy, question: &Question<'_>, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let arguments = question.arguments.map(read_arguments).transpose()?;
    let verdict = policy.decide(question.tool, question.caller, arguments);
    let text = if json { render_json(question, &verdict) } else { render_text(question, &verdict) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// The arguments, read as strictly as the relay reads a call.
fn read_arguments(text: &[u8]) -> Result<Json<'_>, Failure> {
    let not_json =
        |error: JsonError| Failure::Usage(format!("--args is not valid JSON: {} at byte {}", error.what, error.at));
    let inspection = inspect(text).map_err(not_json)?;
    if let Some(repeated) = inspection.repeated_shallow.or(inspection.repeated_deep) {
        let name = repeated.name;
        return Err(Failure::Usage(format!("--args has the member {name:?} twice: such a call is refused unjudged")));
    }
    Json::parse(text).map_err(not_json)
}

/// The five lines.
fn render_text(question: &Question<'_>, verdict: &Verdict) -> String {
    let rule = verdict.rule.map_or_else(|| "none, default policy".to_owned(), |number| format!("#{number}"));
    let line = |label: &str, value: &str| format!("{label:<9} {}\n", one_line(value));
    [
        line("tool:", question.tool),
        line("caller:", question.caller),
        line("decision:", verdict.action.as_str()),
        line("rule:", &rule),
        line("reason:", &verdict.reason),
    ]
    .concat()
}

/// One object on one line, its members in the order of the text form.
fn render_json(question: &Question<'_>, verdict: &Verdict) -> String {
    #[derive(Serialize)]
    struct Answer<'a> {
        tool: &'a str,
        caller: &'a str,
        decision: &'a str,
        rule: Option<usize>,
        reason: &'a str,
    }
    let answer = Answer {
        tool: question.tool,
        caller: question.caller,
        decision: verdict.action.as_str(),
        rule: verdict.rule,
        reason: &verdict.reason,
    };
    serde_json::to_string(&answer).expect("strings and a number always have a JSON form") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Action, RuleSource};

    fn policy() -> Policy {
        let rule = RuleSource {
            tool: "delete_*".to_owned(),
            caller: None,
            action: Action::Deny,
            args: vec![("path".to_owned(), vec![("prefix".to_owned(), "/etc".into())])],
        };
        Policy::compile(Action::Allow, vec![rule]).expect("the rule is valid")
    }

    fn ask(tool: &str, arguments: Option<&str>, json: bool) -> Result<String, String> {
        let question = Question { tool, caller: "local", arguments: arguments.map(str::as_bytes) };
        let mut out = Vec::new();
        run(&policy(), &question, json, &mut out).map_err(|failure| failure.to_string())?;
        Ok(String::from_utf8(out).expect("the output is text"))
    }

    #[test]
    fn the_text_form_has_five_aligned_lines() {
        assert_eq!(
            ask("delete_file", Some(r#"{"path":"/etc/passwd"}"#), false).as_deref(),
            Ok("tool:     delete_file\n\
                caller:   local\n\
                decision: deny\n\
                rule:     #1\n\
                reason:   rule #1 (tool \"delete_*\") denies the call\n")
        );
        assert_eq!(
            ask("read_file", Some("{}"), false).as_deref(),
            Ok("tool:     read_file\n\
                caller:   local\n\
                decision: allow\n\
                rule:     none, default policy\n\
                reason:   no rule matches; policy.default is allow\n")
        );
    }

    #[test]
    fn the_reason_tells_what_could_not_be_judged() {
        let answer = ask("delete_file", Some(r#"{"path":["/etc/passwd"]}"#), false).expect("the question is valid");
        let reason =
            "rule #1 (tool \"delete_*\") denies the call; args.path by prefix cannot be judged: it is not a string\n";
        assert!(answer.ends_with(reason), "{answer}");
    }

    #[test]
    fn the_json_form_is_one_line_with_a_number_or_null() {
        assert_eq!(
            ask("delete_file", Some(r#"{"path":"/etc/passwd"}"#), true).as_deref(),
            Ok("{\"tool\":\"delete_file\",\"caller\":\"local\",\"decision\":\"deny\",\"rule\":1,\
                \"reason\":\"rule #1 (tool \\\"delete_*\\\") denies the call\"}\n")
        );
        let answer = ask("read\n\"file\"", None, true).expect("the question is valid");
        let answer: serde_json::Value = serde_json::from_str(&answer).expect("the answer is JSON");
        assert_eq!(answer["tool"], "read\n\"file\"");
        assert_eq!(answer["rule"], serde_json::Value::Null);
    }

    #[test]
    fn any_json_value_is_accepted_as_arguments_and_nothing_else() {
        for arguments in ["{}", "[1]", "null", "\"text\"", "-0.0e9", " {} ", r#""\ud800""#] {
            assert!(ask("delete_file", Some(arguments), true).is_ok(), "{arguments}");
        }
        for arguments in ["", "{", "{} {}", "path=/etc", "{'path':1}", "[01]", "NaN"] {
            let error = ask("delete_file", Some(arguments), true).expect_err(arguments);
            assert!(error.starts_with("--args is not valid JSON: ") && error.contains(" at byte "), "{error}");
        }
    }

    #[test]
    fn jsn_3_repeated_members_are_not_judged_on_one_reading() {
        for arguments in [r#"{"path":"/ok","path":"/etc"}"#, r#"{"a":[{"x":1,"\u0078":2}]}"#] {
            let error = ask("delete_file", Some(arguments), true).expect_err(arguments);
            assert!(error.contains("twice: such a call is refused"), "{error}");
        }
    }

    #[test]
    fn a_name_with_control_characters_stays_on_its_line() {
        let answer = ask("delete_\u{1b}[2J\ndecision: allow", Some(r#"{"path":"/etc"}"#), false).expect("valid");
        assert_eq!(answer.lines().count(), 5);
        assert!(answer.starts_with("tool:     delete_\\u{1b}[2J\\ndecision: allow\n"), "{answer}");
    }

    #[test]
    fn output_that_cannot_be_written_is_an_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let question = Question { tool: "t", caller: "local", arguments: None };
        let failure = run(&policy(), &question, false, &mut Closed).expect_err("nothing can be written");
        assert!(matches!(failure, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe));
    }

    /// The fenced blocks of a Markdown page: language and text.
    fn blocks(page: &str) -> Vec<(&str, &str)> {
        let fenced = page.split("\n```").skip(1).step_by(2);
        fenced.filter_map(|block| block.split_once('\n')).collect()
    }

    /// The policy of a configuration block.
    fn policy_of(yaml: &str) -> Policy {
        let config: serde_json::Value = serde_yaml::from_str(yaml).expect("the block is YAML");
        let action = |value: &serde_json::Value| match value.as_str() {
            Some("deny") => Action::Deny,
            Some("allow") | None => Action::Allow,
            Some(other) => panic!("{other} is not an action"),
        };
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let members = |value: &serde_json::Value| value.as_object().cloned().unwrap_or_default();
        let policy = &config["policy"];
        let rules = policy["rules"].as_array().expect("the block has rules").iter().map(|rule| RuleSource {
            tool: text(&rule["tool"]).expect("a rule has a tool"),
            caller: text(&rule["caller"]),
            action: action(&rule["action"]),
            args: members(&rule["args"])
                .iter()
                .map(|(path, m)| (path.clone(), members(m).into_iter().collect()))
                .collect(),
        });
        Policy::compile(action(&policy["default"]), rules.collect()).expect("the block's rules are valid")
    }

    /// The words of a command line, with single quotes only.
    fn words(line: &str) -> Vec<&str> {
        let parts = line.split('\'').enumerate();
        parts.flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }).collect()
    }

    #[test]
    fn the_examples_of_the_policy_page_are_true() {
        let mut policy = None;
        let mut answers = 0;
        for (language, block) in blocks(include_str!("../../docs/policy.md")) {
            if language == "yaml" {
                policy = Some(policy_of(block));
                continue;
            }
            assert_eq!(language, "console");
            let policy = policy.as_ref().expect("a configuration comes before its questions");
            for example in block.split("$ mcprelay policy test ").skip(1) {
                let (command, expected) = example.split_once('\n').expect("an answer follows");
                let words = words(command);
                let value = |flag| words.iter().position(|word| *word == flag).map(|at| words[at + 1]);
                let question = Question {
                    tool: value("--tool").expect("a tool is asked about"),
                    caller: value("--caller").unwrap_or("local"),
                    arguments: Some(value("--args").unwrap_or("{}").as_bytes()),
                };
                let mut out = Vec::new();
                run(policy, &question, false, &mut out).expect("the question is valid");
                assert_eq!(String::from_utf8_lossy(&out).trim_end(), expected.trim_end(), "{command}");
                answers += 1;
            }
        }
        assert_eq!(answers, 7, "an example is not found any more");
    }
}
