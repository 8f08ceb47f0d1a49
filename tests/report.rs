//! `mcprelay report` on real files, in every form it has.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use mcprelay::record::{CallEvent, Executed, FailureClass};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::support::records::{command, document, event, example, failed, program, run, snapshot, store, told};
use super::support::{TempDir, mcprelay};

/// The time of the example's calls.
const WINDOW: &str = "--since 2100-01-01T00:00:00Z --until 2100-01-01T02:00:00Z";

fn text(dir: &TempDir, options: &str) -> String {
    let (code, out, err) = run(dir.path(), &format!("report {WINDOW} {options}"));
    assert_eq!((code, err.as_str()), (0, ""), "{options}");
    out
}

#[test]
fn the_text_form_is_what_it_was() {
    let dir = example("report-text");
    snapshot("report", &text(&dir, ""));
    snapshot("report-by-class", &text(&dir, "--group-by class,decision --no-header"));
    snapshot("report-csv", &text(&dir, "--csv"));
    let (code, out, err) =
        told(&command(dir.path(), &format!("report {WINDOW}")).env("COLUMNS", "72").output().expect("ran"));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.lines().all(|line| line.chars().count() <= 72), "{out}");
    snapshot("report-72-columns", &out);
    let empty = TempDir::new("report-empty");
    snapshot("report-empty", &text(&empty, ""));
    assert!(!empty.join(".mcprelay").exists(), "looking makes nothing");
}

#[test]
fn the_sums_are_those_of_the_calls() {
    let dir = example("report-json");
    let report = document(dir.path(), &format!("report --json {WINDOW}"));
    let totals = &report["totals"];
    for (name, value) in [
        ("calls", json!(27)),
        ("allowed", json!(22)),
        ("denied", json!(1)),
        ("failed", json!(3)),
        ("cancelled", json!(1)),
        ("retried", json!(4)),
        ("replayed", json!(1)),
        ("error_rate", json!(3.0 / 27.0)),
        // Neither the denied, nor the cancelled, nor the one that was never sent.
        ("executed", json!(24)),
        // 100 to 121, 125 and 126: the 12th, the 23rd and the 24th.
        ("latency_p50_ms", json!(111)),
        ("latency_p95_ms", json!(125)),
        ("latency_p99_ms", json!(126)),
        ("request_bytes", json!(5_400)),
        ("response_bytes", json!(27_000)),
        ("errors", json!([{"class": "timeout", "count": 2}, {"class": "transport", "count": 1}])),
    ] {
        assert_eq!(totals[name], value, "{name}");
    }
    assert_eq!(report["latency_error_max"], json!(0));
    let rows: Vec<(&Value, &Value, &Value)> = report["groups"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (&row["caller"], &row["tool"], &row["calls"]))
        .collect();
    assert_eq!(
        rows,
        [
            (&json!("local"), &json!("read_file"), &json!(22)),
            (&json!("local"), &json!("write_file"), &json!(3)),
            (&json!("ci"), &json!("git_log"), &json!(1)),
            (&json!("local"), &json!("delete_file"), &json!(1)),
        ]
    );
    let queue = &report["queue"];
    assert_eq!((&queue["depth"], &queue["arrivals"], &queue["oldest_age_s"]), (&json!(2), &json!(2), &json!(0)));
    assert_eq!((&queue["arrivals_per_hour"], &queue["oldest_at"]), (&json!(1), &json!("2100-01-01T00:00:20.000Z")));
    assert_eq!(queue["by_status"]["pending"], json!(2));
    assert_eq!(queue["by_status"].as_object().map(serde_json::Map::len), Some(7));
    assert_eq!(queue["by_tool_and_class"][0]["class"], json!("timeout"));
}

#[test]
fn every_filter_holds_for_calls_replays_and_the_queue_alike() {
    let dir = example("report-filters");
    for (options, calls, retried, replayed, depth) in [
        ("--tool write_*", 3, 3, 1, 2),
        ("--tool *_file", 26, 4, 1, 2),
        ("--tool read_file", 22, 1, 0, 0),
        ("--caller ci", 1, 0, 0, 0),
        ("--caller local --server files", 26, 4, 1, 2),
        ("--server git", 1, 0, 0, 0),
        ("--server nowhere", 0, 0, 0, 0),
        ("--tool ????????_file", 0, 0, 0, 0),
    ] {
        let report = document(dir.path(), &format!("report --json {WINDOW} {options}"));
        let found = ["calls", "retried", "replayed"].map(|name| report["totals"][name].as_u64());
        assert_eq!(found, [calls, retried, replayed].map(Some), "{options}");
        assert_eq!(report["queue"]["depth"].as_u64(), Some(depth), "{options}");
    }
    let by_server = document(dir.path(), &format!("report --json {WINDOW} --group-by server"));
    assert_eq!(by_server["groups"][0]["replayed"], json!(1), "a replay stands in the row of its server");
    // Both ends are included, whatever their offset.
    for (since, until, calls) in [
        ("2100-01-01T00:00:03Z", "2100-01-01T00:00:05Z", 3),
        ("2100-01-01T05:30:03+05:30", "2099-12-31T19:00:05-05:00", 3),
        ("2100-01-01T00:00:03.001Z", "2100-01-01T00:00:04.999Z", 1),
    ] {
        let report = document(dir.path(), &format!("report --json --since {since} --until {until}"));
        assert_eq!(report["totals"]["calls"], json!(calls), "{since} {until}");
    }
    assert_eq!(document(dir.path(), "report --json")["totals"]["calls"], json!(0), "the last day is the default");
}

#[test]
fn bad_options_are_usage_errors_that_name_the_value() {
    let dir = TempDir::new("report-usage");
    for (options, named) in [
        ("--since yesterday", "yesterday"),
        ("--since 2100-02-30T00:00:00Z", "2100-02-30"),
        ("--until 2100-01-01", "2100-01-01"),
        ("--since 2100-01-01T00:00:00Z", "lies after"),
        ("--json --csv", "--csv"),
        ("--group-by tool,colour", "colour"),
        ("--html", "--html"),
    ] {
        let (code, out, err) = run(dir.path(), &format!("report {options}"));
        assert!(code == 2 && out.is_empty() && err.contains(named), "{options}: {err}");
    }
}

#[test]
fn a_file_that_cannot_be_read_or_written_is_named() {
    let dir = example("report-faults");
    for (options, named) in
        [("--html no/such/page.html", "no/such/page.html"), ("--openmetrics .", "it is a directory")]
    {
        let (code, out, err) = run(dir.path(), &format!("report {options}"));
        assert!(code == 1 && out.is_empty() && err.contains(named), "{options}: {err}");
    }
    for (file, name) in [("history.db", "history"), ("queue.db", "queue")] {
        let dir = example("report-newer");
        let conn = Connection::open(dir.join(".mcprelay").join(file)).expect("opened");
        conn.execute_batch("PRAGMA user_version = 99").expect("set");
        drop(conn);
        let (code, out, err) = run(dir.path(), "report --json");
        assert!(code == 1 && err.contains(file) && err.contains("newer mcprelay"), "{name}: {err}");
        let json: Value = serde_json::from_str(&out).expect("one document");
        assert_eq!(json["error"]["kind"], "store");
    }
}

#[test]
fn files_are_written_whole_with_their_modes_and_nothing_is_printed_beside_them() {
    let dir = example("report-files");
    assert_eq!(text(&dir, "--html page.html --openmetrics metrics.prom"), "");
    let mode = |name: &str| dir.join(name).metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!(mode("page.html"), 0o600);
    assert_eq!(mode("metrics.prom") & 0o600, 0o600);
    let metrics = std::fs::read_to_string(dir.join("metrics.prom")).expect("read");
    assert!(metrics.contains("mcprelay_queue_depth 2\n") && metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(
        metrics
            .contains("mcprelay_calls{caller=\"local\",server=\"files\",tool=\"write_file\",outcome=\"failed\"} 3\n")
    );
    // One document beside the file, if it is asked for.
    assert_eq!(document(dir.path(), &format!("report {WINDOW} --html page.html --json"))["totals"]["calls"], json!(27));
    let names: Vec<String> = std::fs::read_dir(dir.path())
        .expect("read")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name != ".mcprelay")
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// A history of many events, written past the store, which would take its time.
fn many(dir: &TempDir, events: u32) {
    store(dir.path(), Vec::new(), Vec::new(), vec![event(0, "tool_0")]);
    let conn = Connection::open(dir.join(".mcprelay/history.db")).expect("opened");
    conn.execute_batch("PRAGMA synchronous = OFF").expect("set");
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {events} - 1)
        INSERT INTO call_events SELECT {} + i * 3, printf('01MANY%020d', i), 'caller_' || (i % 5), 'server_' || (i % 3),
            'tool_' || (i % 40), CASE WHEN i % 17 = 0 THEN 'failed' ELSE 'allowed' END,
            CASE WHEN i % 17 = 0 THEN 'timeout' END, CASE WHEN i % 17 = 0 THEN 'maybe' END,
            (i * 7919) % 30000, 100, 1000, 1, 'stdio', 'c', NULL FROM n",
        super::support::records::THEN
    );
    conn.execute_batch(&sql).expect("inserted");
}

/// Runs the report with an address space of 64 MiB.
fn within_64_mib(dir: &TempDir, options: &str) -> Value {
    let line = format!("ulimit -v 65536 && exec {} report --json {options}", mcprelay().display());
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", &line]).current_dir(dir.path()).env("HOME", dir.path()).output().expect("ran");
    let (code, out, err) = told(&output);
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).expect("one document")
}

#[test]
#[cfg(target_os = "linux")]
fn many_events_are_reported_in_little_memory() {
    let dir = TempDir::new("report-many");
    many(&dir, 250_000);
    let report = within_64_mib(&dir, "--since 2100-01-01T00:00:00Z --until 2101-01-01T00:00:00Z --html page.html");
    assert_eq!(report["totals"]["calls"], json!(250_000));
    assert_eq!(report["groups"].as_array().map(Vec::len), Some(121));
    assert_eq!(report["latency_error_max"], json!(0));
    // The latencies go round all values below 30,000 evenly.
    assert!(report["totals"]["latency_p50_ms"].as_u64().is_some_and(|p50| p50.abs_diff(15_000) < 100));
}

/// Ten million, which takes minutes to write: run by hand with --ignored, on a release build.
#[test]
#[ignore = "takes minutes"]
#[cfg(target_os = "linux")]
fn ten_million_events_are_reported_in_little_memory() {
    let dir = TempDir::new("report-ten-million");
    many(&dir, 10_000_000);
    let report = within_64_mib(&dir, "--since 2100-01-01T00:00:00Z --until 2101-01-01T00:00:00Z");
    assert_eq!(report["totals"]["calls"], json!(10_000_000));
}

/// What a browser makes of the page: a script, which only this test puts into a copy, writes down what it measures.
fn measured(chromium: &Path, dir: &TempDir, page: &str, dark: bool) -> Value {
    const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\"";
    assert!(page.contains(POLICY));
    let script = "<script>
        const colour = (e, p) => getComputedStyle(document.querySelector(e))[p];
        const boxes = [...document.querySelectorAll('svg.chart')].map(e => e.getBoundingClientRect());
        const shapes = [...document.querySelectorAll('svg.chart .bar, svg.chart path.line')].map(e => e.getBBox());
        document.body.innerHTML = '<pre id=\"measured\">' + JSON.stringify({
            page: colour('body', 'backgroundColor'), text: colour('body', 'color'), bar: colour('.bar.failed', 'fill'),
            charts: boxes.map(b => [b.width, b.height]),
            outside: boxes.filter(b => b.left < 0 || b.right > innerWidth).length,
            shapes: shapes.length, empty: shapes.filter(b => b.width + b.height === 0).length,
            wide: document.documentElement.scrollWidth > innerWidth,
            titles: [...document.querySelectorAll('svg[role=img]')].map(e =>
                e.getAttribute('aria-labelledby').split(' ').map(id => document.getElementById(id).textContent.length)),
            scripts: document.scripts.length,
        }) + '</pre>';
        </script></body>";
    let copy = page.replace(POLICY, "<meta name=\"was-policy\"").replace("</body>", script);
    let file = dir.join(if dark { "dark.html" } else { "light.html" });
    std::fs::write(&file, copy).expect("written");
    let mut browser = Command::new(chromium);
    browser.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-component-update",
        "--disable-background-networking",
        "--disable-sync",
        "--window-size=1280,900",
        "--dump-dom",
    ]);
    // 0 is dark, 1 is light.
    browser.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
    browser.arg(format!("--user-data-dir={}", dir.join("profile").display())).arg(format!("file://{}", file.display()));
    let output = browser.env("HOME", dir.path()).output().expect("it starts");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = dom.split("<pre id=\"measured\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let found = found.unwrap_or_else(|| panic!("{dom}\n{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(found).expect("JSON")
}

#[test]
fn a_browser_shows_the_page_in_light_and_dark() {
    let Some(chromium) = program(&["chromium", "chromium-browser", "google-chrome"], "the page in a browser") else {
        return;
    };
    let dir = TempDir::new("report-browser");
    let mut events: Vec<CallEvent> = (0..120).map(|n| event(n * 60, "read_file")).collect();
    events.extend((0..12).map(|n| failed(n * 550 + 7, "write_file", FailureClass::Timeout, Executed::Maybe)));
    // A name that would be a script.
    events.push(event(7_000, "<script>document.title='broken out'</script><img src=x onerror=alert(1)>"));
    store(dir.path(), Vec::new(), Vec::new(), events);
    assert_eq!(text(&dir, "--html page.html"), "");
    let page = std::fs::read_to_string(dir.join("page.html")).expect("read");
    let (light, dark) = (measured(&chromium, &dir, &page, false), measured(&chromium, &dir, &page, true));
    for seen in [&light, &dark] {
        assert_eq!(seen["charts"].as_array().map(Vec::len), Some(3), "{seen}");
        for size in seen["charts"].as_array().expect("charts") {
            assert!(size[0].as_f64() > Some(600.0) && size[1].as_f64() > Some(150.0), "{seen}");
        }
        assert_eq!(
            (&seen["outside"], &seen["wide"], &seen["scripts"]),
            (&json!(0), &json!(false), &json!(1)),
            "{seen}"
        );
        assert!(seen["shapes"].as_u64() > Some(60) && seen["empty"] == json!(0), "{seen}");
        let told = seen["titles"].as_array().expect("titles");
        let long = |lengths: &Value| lengths[0].as_u64() > Some(3) && lengths[1].as_u64() > Some(40);
        assert!(told.len() == 3 && told.iter().all(long), "{seen}");
    }
    let brightness = |colour: &Value| {
        let colour = colour.as_str().expect("a colour").trim_start_matches("rgb(").trim_end_matches(')');
        colour.split(", ").map(|part| part.parse::<u32>().expect("a number")).sum::<u32>()
    };
    assert!(brightness(&light["page"]) > 700 && brightness(&light["text"]) < 150, "{light}");
    assert!(brightness(&dark["page"]) < 150 && brightness(&dark["text"]) > 600, "{dark}");
    assert_ne!(light["bar"], dark["bar"]);
}

/// Runs a line of shell on a terminal of its own and gives what stands on it.
fn on_a_terminal(dir: &TempDir, setup: &str, line: &str) -> Option<String> {
    let script = program(&["script"], "a real terminal")?;
    let line = format!("stty cols 70 rows 24 && {setup} {} {line}", mcprelay().display());
    let mut terminal = Command::new(script);
    terminal.args(["-q", "-e", "-c", &line, "/dev/null"]).current_dir(dir.path());
    terminal.env("HOME", dir.path()).env("TERM", "xterm").env_remove("NO_COLOR").env_remove("COLUMNS");
    let output = terminal.stdin(std::process::Stdio::null()).output().expect("it starts");
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{seen}");
    Some(seen.replace('\r', ""))
}

#[test]
fn on_a_terminal_tables_fit_and_have_colours_unless_the_user_wants_none() {
    let dir = example("report-terminal");
    let line = format!("report {WINDOW}");
    let Some(seen) = on_a_terminal(&dir, "env", &line) else { return };
    assert!(seen.contains("\u{1b}[1m") && seen.contains("\u{1b}[31m3"), "{seen:?}");
    let plain = on_a_terminal(&dir, "env NO_COLOR=1", &line).expect("it was there before");
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let lines: Vec<&str> = plain.lines().filter(|line| !line.starts_with("mcprelay: warning: ")).collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 70), "{plain}");
    assert!(plain.contains("no space for"), "{plain}");
    assert!(!on_a_terminal(&dir, "env TERM=dumb", &line).expect("there").contains('\u{1b}'));
}
