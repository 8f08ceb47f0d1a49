//! What the scriptable server was told on its command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The help text of `testpeer server`.
pub(crate) const HELP: &str = "\
usage: testpeer server [options]

  --era legacy|modern|both   which protocol era it speaks (default both)
  --name NAME                serverInfo.name (default testpeer)
  --log FILE                 append what happens: PID, tab, the line received; or PID, tab, #start #eof #term #answered ID
  --tools TEXT               the JSON array that tools/list gives, verbatim
  --page-size N              tools/list in pages of N
  --repeat-cursor            tools/list gives the same nextCursor for ever
  --empty-cursor             the first page's nextCursor is the empty string

 misbehaviour
  --silent-discover          never answers server/discover
  --exit-on-discover         exits 1 on server/discover
  --discover-error CODE      answers server/discover with this error
  --crash-starts N --state FILE   the first N starts exit 1 at once, counted in FILE
  --crash-on-start CODE      exits with CODE before it reads anything, with a line on stderr
  --exit-on-initialize CODE  exits with CODE instead of answering initialize
  --slow-start MS            reads nothing for MS
  --never-read               reads nothing at all
  --ignore-eof               stays when stdin ends
  --ignore-term              stays on SIGTERM
  --close-stdout-after N     closes stdout after N answers and stays
  --close-stdout-on-call     closes stdout instead of answering a tools/call, and stays
  --exit-after N             exits 0 right after N answers
  --no-final-newline         with --exit-after: the last answer has no newline
  --noise                    prints log lines and JSON that is no message on stdout around every frame
  --crlf                     ends frames with CR LF
  --byte-by-byte             writes one byte per write
  --chunk N                  writes N bytes per write
  --stderr-flood BYTES       writes BYTES to stderr before every answer
  --noise-while-reading      writes as many bytes of noise to stdout as it reads, before it goes on
  --batch-answers            answers a batch with one array instead of one by one
";

/// Which protocol era the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
    Both,
}

/// The options, parsed.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) era: Era,
    pub(crate) name: String,
    pub(crate) log: Option<PathBuf>,
    pub(crate) tools: Option<String>,
    pub(crate) page_size: Option<usize>,
    pub(crate) repeat_cursor: bool,
    pub(crate) empty_cursor: bool,
    pub(crate) silent_discover: bool,
    pub(crate) exit_on_discover: bool,
    pub(crate) discover_error: Option<i64>,
    pub(crate) crash_starts: usize,
    pub(crate) state: Option<PathBuf>,
    pub(crate) crash_on_start: Option<u8>,
    pub(crate) exit_on_initialize: Option<u8>,
    pub(crate) slow_start: Duration,
    pub(crate) never_read: bool,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_term: bool,
    pub(crate) close_stdout_after: Option<usize>,
    pub(crate) close_stdout_on_call: bool,
    pub(crate) exit_after: Option<usize>,
    pub(crate) no_final_newline: bool,
    pub(crate) noise: bool,
    pub(crate) crlf: bool,
    pub(crate) chunk: Option<usize>,
    pub(crate) stderr_flood: usize,
    pub(crate) noise_while_reading: bool,
    pub(crate) batch_answers: bool,
}

/// Reads the options; `None` if help was asked for.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Option<Settings>, Box<dyn std::error::Error + Send + Sync>> {
    use lexopt::Arg::Long;
    let mut settings = Settings {
        era: Era::Both,
        name: "testpeer".into(),
        log: None,
        tools: None,
        page_size: None,
        repeat_cursor: false,
        empty_cursor: false,
        silent_discover: false,
        exit_on_discover: false,
        discover_error: None,
        crash_starts: 0,
        state: None,
        crash_on_start: None,
        exit_on_initialize: None,
        slow_start: Duration::ZERO,
        never_read: false,
        ignore_eof: false,
        ignore_term: false,
        close_stdout_after: None,
        close_stdout_on_call: false,
        exit_after: None,
        no_final_newline: false,
        noise: false,
        crlf: false,
        chunk: None,
        stderr_flood: 0,
        noise_while_reading: false,
        batch_answers: false,
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("help") => return Ok(None),
            Long("era") => {
                settings.era = match &*parser.value()?.to_string_lossy() {
                    "legacy" => Era::Legacy,
                    "modern" => Era::Modern,
                    "both" => Era::Both,
                    other => return Err(format!("--era {other}: legacy, modern or both").into()),
                }
            }
            Long("name") => settings.name = text(&mut parser)?,
            Long("log") => settings.log = Some(parser.value()?.into()),
            Long("tools") => settings.tools = Some(text(&mut parser)?),
            Long("page-size") => settings.page_size = Some(number(&mut parser)?),
            Long("repeat-cursor") => settings.repeat_cursor = true,
            Long("empty-cursor") => settings.empty_cursor = true,
            Long("silent-discover") => settings.silent_discover = true,
            Long("exit-on-discover") => settings.exit_on_discover = true,
            Long("discover-error") => settings.discover_error = Some(number(&mut parser)?),
            Long("crash-starts") => settings.crash_starts = number(&mut parser)?,
            Long("state") => settings.state = Some(parser.value()?.into()),
            Long("crash-on-start") => settings.crash_on_start = Some(number(&mut parser)?),
            Long("exit-on-initialize") => settings.exit_on_initialize = Some(number(&mut parser)?),
            Long("slow-start") => settings.slow_start = Duration::from_millis(number(&mut parser)?),
            Long("never-read") => settings.never_read = true,
            Long("ignore-eof") => settings.ignore_eof = true,
            Long("ignore-term") => settings.ignore_term = true,
            Long("close-stdout-after") => settings.close_stdout_after = Some(number(&mut parser)?),
            Long("close-stdout-on-call") => settings.close_stdout_on_call = true,
            Long("exit-after") => settings.exit_after = Some(number(&mut parser)?),
            Long("no-final-newline") => settings.no_final_newline = true,
            Long("noise") => settings.noise = true,
            Long("crlf") => settings.crlf = true,
            Long("byte-by-byte") => settings.chunk = Some(1),
            Long("chunk") => settings.chunk = Some(number(&mut parser)?),
            Long("stderr-flood") => settings.stderr_flood = number(&mut parser)?,
            Long("noise-while-reading") => settings.noise_while_reading = true,
            Long("batch-answers") => settings.batch_answers = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(settings))
}

fn text(parser: &mut lexopt::Parser) -> Result<String, lexopt::Error> {
    Ok(parser.value()?.to_string_lossy().into_owned())
}

fn number<T: std::str::FromStr>(parser: &mut lexopt::Parser) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    let value = text(parser)?;
    value.parse().map_err(|_| format!("{value} is not a number in range").into())
}
