//! `mcprelay replay run --dry-run`: what would be sent, and what speaks against it; nothing is called.

use std::io::Write;

use super::context::Context;
use super::guards::Refusal;
use super::plan::Plan;
use super::pool::Pool;
use super::schema;
use crate::commands::text::{one_line, written};
use crate::exit::ExitStatus;
use crate::record::Executed;
use crate::record::json_out::{array, object, string};
use crate::record::redact::MARKER;
use crate::record::shell::command_line;
use crate::record::stored::Record;
use crate::retry::Effects;
use crate::wire::json::Json;

/// Complaints of the schema that a message names.
const COMPLAINTS_MAX: usize = 5;

/// One dry run. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    id: String,
    tool: String,
    class: String,
    executed: Executed,
    server: String,
    /// JSON text.
    arguments: String,
    /// The arguments are the sealed original.
    unsealed: bool,
    /// `None` if the server was not reached.
    tools: Option<usize>,
    present: Option<bool>,
    /// Words of the tool's schema that were not looked at.
    unchecked: Vec<String>,
    pub(super) against: Vec<Refusal>,
    hint: Option<&'static str>,
}

impl Tried {
    /// Asks the server for its tools and looks whether the call still fits.
    pub(super) fn new(
        context: &Context,
        record: &Record,
        plan: &Plan,
        mut against: Vec<Refusal>,
        pool: &mut Pool,
    ) -> Tried {
        let (mut tools, mut present, mut unchecked) = (None, None, Vec::new());
        match plan.server.as_ref().map(|server| pool.tools(server)) {
            Err(refusal) => against.push(refusal.clone()),
            Ok(Err(error)) => against.push(Refusal::new("unreachable", error)),
            Ok(Ok(list)) => {
                let tool = list.tools.iter().find(|tool| tool.name == record.tool);
                (tools, present) = (Some(list.tools.len()), Some(tool.is_some()));
                match tool {
                    None => {
                        let cut = list.cut.as_ref().map(|cut| format!(" (the list may lack some: {cut})"));
                        let text = format!("the server has no tool {:?}{}", record.tool, cut.unwrap_or_default());
                        against.push(Refusal::new("tool_missing", text));
                    }
                    Some(tool) => {
                        let found = complaints(&tool.json, plan.arguments.as_deref().unwrap_or(b"{}"));
                        unchecked = found.unchecked;
                        against.extend(misfit(context, plan, &found.problems));
                    }
                }
            }
        }
        let (redactor, masked) = (&context.redactor, &plan.masked);
        let arguments = plan.arguments.as_deref().map(|text| redactor.redact_json_with(text, masked));
        let server = match &context.options.server {
            Some(argv) => {
                let argv: Vec<String> = argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
                command_line(&redactor.redact_argv(&argv))
            }
            None => record.command(),
        };
        let effects = context.settings.reliability.for_tool(&record.tool).effects;
        Tried {
            id: record.id.clone(),
            tool: record.tool.clone(),
            class: format!("{} after {} attempts", record.class, record.attempts),
            executed: record.executed,
            server,
            arguments: arguments.map_or("null".to_owned(), |text| String::from_utf8_lossy(&text).into_owned()),
            unsealed: plan.unsealed,
            tools,
            present,
            unchecked,
            against,
            hint: (effects == Some(Effects::Read))
                .then_some("the tool only reads (effects: read); replaying it changes nothing"),
        }
    }

    /// `{id, dry_run, tool, server, tool_present, arguments, original, refusals, unchecked, hint}`.
    pub(super) fn to_json(&self) -> String {
        object(|out| {
            out.text("id", &self.id).plain("dry_run", true).text("tool", &self.tool).text("server", &self.server);
            match self.present {
                Some(present) => out.plain("tool_present", present),
                None => out.null("tool_present"),
            };
            out.raw("arguments", &self.arguments).plain("original", self.unsealed);
            let refusals = self
                .against
                .iter()
                .map(|refusal| object(|out| _ = out.text("kind", refusal.kind).text("message", &refusal.message)));
            out.raw("refusals", &array(refusals));
            out.raw("unchecked", &array(self.unchecked.iter().map(|word| string(word))));
            match self.hint {
                Some(hint) => out.text("hint", hint),
                None => out.null("hint"),
            };
        })
    }

    fn to_text(&self) -> String {
        let line = |label: &str, value: &str| format!("{label:<12} {}\n", one_line(value));
        let mut text = [
            line("record:", &self.id),
            line("tool:", &self.tool),
            line("class:", &self.class),
            line("executed:", self.executed.as_str()),
            line("server:", &self.server),
            line("arguments:", &self.arguments),
        ]
        .concat();
        if self.unsealed {
            text += &line("original:", "the sealed arguments would be sent; they are shown redacted");
        }
        text += &line("dry-run:", "no tools/call was made; the record is as it was");
        if let (Some(true), Some(count)) = (self.present, self.tools) {
            text += &line("tool check:", &format!("present, one of {count}"));
        }
        if !self.unchecked.is_empty() {
            text += &line("unchecked:", &format!("{} of the tool's schema", self.unchecked.join(", ")));
        }
        text += &self.against.iter().map(|refusal| line("refused:", &refusal.message)).collect::<String>();
        text + &self.hint.map(|hint| line("hint:", hint)).unwrap_or_default()
    }
}

/// What the tool's schema, part of its entry in the list, says of the arguments.
fn complaints(tool: &[u8], arguments: &[u8]) -> schema::Checked {
    let schema = Json::parse(tool).ok().and_then(|tool| tool.member("inputSchema"));
    match (schema, Json::parse(arguments)) {
        (Some(schema), Ok(arguments)) => schema::check(schema, arguments, Some(MARKER)),
        _ => schema::Checked::default(),
    }
}

/// The server will very likely refuse the call, so the real run would fail.
fn misfit(context: &Context, plan: &Plan, problems: &[String]) -> Option<Refusal> {
    let more = problems.len().saturating_sub(COMPLAINTS_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let named = problems.iter().take(COMPLAINTS_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    let text = format!("the arguments do not fit the tool's schema any more: {named}{more}");
    // A schema may repeat what stands in the arguments.
    let text = context.redactor.redact_text(&text, &plan.masked);
    (!problems.is_empty()).then(|| Refusal::new("schema", text))
}

/// Prints it; the exit status is that of the real run.
pub(super) fn print(tried: &Tried, json: bool, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    for refusal in &tried.against {
        let _ = writeln!(err, "mcprelay: would be refused: {}: {}", tried.id, one_line(&refusal.message));
    }
    let text = if json { tried.to_json() + "\n" } else { tried.to_text() };
    let status = if tried.against.is_empty() { ExitStatus::Success } else { ExitStatus::Failure };
    match written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err) {
        ExitStatus::Success => status,
        failed => failed,
    }
}
