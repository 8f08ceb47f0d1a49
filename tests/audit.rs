//! `mcprelay audit …` on real files, and on files that somebody was at.

use mcprelay::record::AuditKind;
use rusqlite::Connection;

use super::support::TempDir;
use super::support::records::{audit, command, document, example, program, run, snapshot, store, told};

/// A history of seven denials.
fn trail(name: &str) -> TempDir {
    let dir = TempDir::new(name);
    let rows = (1..=7).map(|n| audit(n, AuditKind::Denied, &format!("tool_{n}"), None)).collect();
    store(dir.path(), Vec::new(), rows, Vec::new());
    dir
}

fn edit(dir: &TempDir, sql: &str) {
    Connection::open(dir.join(".mcprelay/history.db")).expect("opened").execute_batch(sql).expect("edited");
}

/// What `audit verify` says, without the directory's name.
fn verify(dir: &TempDir, options: &str) -> (i32, String) {
    let (code, out, err) = run(dir.path(), &format!("audit verify {options}"));
    assert_eq!(err, "");
    (code, out)
}

fn head(dir: &TempDir) -> String {
    let (code, out, _) = run(dir.path(), "audit head");
    assert_eq!(code, 0);
    out.trim_end().to_owned()
}

#[test]
fn the_list_is_newest_first_and_every_filter_narrows_it() {
    let dir = example("audit-list");
    let (code, out, err) = run(dir.path(), "audit list");
    assert_eq!((code, err.as_str()), (0, ""));
    snapshot("audit-list", &out);
    let (_, bare, _) = run(dir.path(), "audit list --no-header");
    assert_eq!(bare.lines().count() + 1, out.lines().count());
    assert!(!bare.contains("CALLER") && !out.contains("hidden"), "{out}");
    for (options, count) in [
        ("", 4),
        ("--kind captured", 2),
        ("--kind denied", 1),
        ("--tool write_file", 3),
        ("--tool write", 0),
        ("--caller local", 4),
        ("--caller ci", 0),
        ("--correlation-id c-23", 1),
        ("--record 01LETTER000000000000000020", 2),
        ("--record 01LETTER000000000000000020 --kind replayed", 1),
        ("--since 2100-01-01T00:00:30Z", 3),
        ("--since 2100-01-01T01:00:30+01:00 --until 2099-12-31T23:00:30-01:00", 1),
        ("--until 2h", 0),
        ("--limit 3", 3),
    ] {
        let rows = document(dir.path(), &format!("audit list --json {options}"));
        let rows = rows.as_array().expect("a list");
        assert_eq!(rows.len(), count, "{options}");
        assert!(rows.is_sorted_by(|a, b| a["seq"].as_i64() > b["seq"].as_i64()), "{options}");
    }
}

#[test]
fn a_row_in_json_has_all_there_is_and_its_hash_is_what_the_next_row_keeps() {
    let dir = example("audit-json");
    let rows = document(dir.path(), "audit list --json");
    let denied = rows.as_array().expect("a list").iter().find(|row| row["kind"] == "denied").expect("a denial");
    let names: Vec<&String> = denied.as_object().expect("an object").keys().collect();
    let mut expected = vec![
        "seq",
        "id",
        "at",
        "kind",
        "correlation_id",
        "record_id",
        "caller",
        "tool",
        "detail",
        "previous_hash",
        "hash",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(denied["at"], "2100-01-01T00:00:23.000Z");
    assert_eq!(denied["record_id"], serde_json::Value::Null);
    assert_eq!(denied["detail"], serde_json::json!({"reason": "rule #1", "token": "[REDACTED]"}));
    for pair in rows.as_array().expect("a list").windows(2) {
        assert_eq!(pair[0]["previous_hash"], pair[1]["hash"]);
    }
    let first = &rows.as_array().expect("a list")[3];
    assert_eq!(first["previous_hash"], "0".repeat(64));
    assert_eq!(head(&dir), format!("4:{}", rows[0]["hash"].as_str().expect("a text")));
}

#[test]
fn without_a_history_there_is_nothing_and_that_is_no_failure() {
    let dir = TempDir::new("audit-none");
    assert_eq!(document(dir.path(), "audit list --json"), serde_json::json!([]));
    assert_eq!(run(dir.path(), "audit list --no-header"), (0, String::new(), String::new()));
    assert_eq!(head(&dir), format!("0:{}", "0".repeat(64)));
    assert_eq!(verify(&dir, "").0, 0);
    assert!(!dir.join(".mcprelay").exists(), "looking makes nothing");
    // But an anchor of rows that were there is not held by nothing.
    let (code, out) = verify(&dir, &format!("--anchor 3:{}", "a".repeat(64)));
    assert!(code == 1 && out.contains("row 3 was removed since the anchor was taken"), "{out}");
}

#[test]
fn an_untouched_trail_holds_and_so_do_anchors_of_it_when_it_has_grown() {
    let dir = trail("audit-holds");
    let anchor = head(&dir);
    assert_eq!(verify(&dir, &format!("--anchor {anchor}")).0, 0);
    store(dir.path(), Vec::new(), vec![audit(8, AuditKind::Denied, "later", None)], Vec::new());
    let now = head(&dir);
    assert!(now.starts_with("8:") && anchor.starts_with("7:"));
    let (code, out) = verify(&dir, &format!("--anchor {anchor} --anchor {now}"));
    assert_eq!(code, 0, "{out}");
    snapshot("audit-verify", &out.replace(&dir.join("").display().to_string(), ""));
    let json = document(dir.path(), &format!("audit verify --json --anchor {anchor}"));
    assert_eq!(json["ok"], true);
    assert_eq!(json["files"][0]["rows"], 8);
    assert_eq!(json["files"][0]["head"], now);
    assert_eq!(json["files"][0]["breaks"], serde_json::json!([]));
    assert_eq!(json["anchors"][0]["anchor"], anchor);
}

#[test]
fn whatever_is_done_to_a_row_is_found_and_named() {
    for (sql, found) in [
        ("UPDATE audit SET caller = 'nobody' WHERE seq = 1", "row 1 was changed"),
        ("UPDATE audit SET caller = 'nobody' WHERE seq = 3", "row 3 was changed"),
        ("UPDATE audit SET detail = NULL WHERE seq = 4", "row 4 was changed"),
        ("UPDATE audit SET at = x'00' WHERE seq = 4", "row 4 was changed"),
        (
            "UPDATE audit SET tool_name = 'x' WHERE seq = 6",
            "row 6 is not what row 7 says of it: one of the two was changed",
        ),
        ("DELETE FROM audit WHERE seq = 1", "row 1 was removed"),
        ("DELETE FROM audit WHERE seq IN (3, 4)", "rows 3 to 4 were removed"),
        ("DELETE FROM audit WHERE seq = 7", "row 7 was removed"),
        ("DELETE FROM audit", "rows 1 to 7 were removed"),
        (
            "UPDATE audit SET seq = 99 WHERE seq = 3; UPDATE audit SET seq = 3 WHERE seq = 4;
             UPDATE audit SET seq = 4 WHERE seq = 99",
            "rows 3 to 4 were changed or put in another order",
        ),
        (
            "UPDATE audit SET seq = -seq; UPDATE audit SET seq = 8 + seq",
            "rows 1 to 6 were changed or put in another order",
        ),
    ] {
        let dir = trail("audit-broken");
        let anchor = head(&dir);
        edit(&dir, sql);
        let (code, out) = verify(&dir, "");
        assert_eq!(code, 1, "{sql}\n{out}");
        assert_eq!(out.lines().nth(1).map(str::trim), Some(found), "{sql}\n{out}");
        let (code, out, _) = run(dir.path(), "audit verify --json");
        let json: serde_json::Value = serde_json::from_str(&out).expect("one document");
        assert_eq!((code, &json["ok"], &json["files"][0]["breaks"][0]["message"]), (1, &false.into(), &found.into()));
        assert_eq!(verify(&dir, &format!("--anchor {anchor}")).0, 1);
    }
}

/// What the chain alone cannot show.
#[test]
fn an_anchor_proves_the_newest_row() {
    for (sql, found) in [
        ("UPDATE audit SET caller = 'nobody' WHERE seq = 7", "row 7 is not what it was when the anchor was taken"),
        (
            "DELETE FROM audit WHERE seq = 7; UPDATE sqlite_sequence SET seq = 6 WHERE name = 'audit'",
            "row 7 was removed since the anchor was taken",
        ),
        ("DELETE FROM audit; DELETE FROM sqlite_sequence", "row 7 was removed since the anchor was taken"),
    ] {
        let dir = trail("audit-tail");
        let anchor = head(&dir);
        edit(&dir, sql);
        assert_eq!(verify(&dir, "").0, 0, "{sql}: the chain alone holds");
        let (code, out) = verify(&dir, &format!("--anchor {anchor}"));
        assert!(code == 1 && out.contains(found), "{sql}\n{out}");
    }
}

#[test]
fn a_newer_file_another_program_s_and_a_damaged_one_are_refused_by_name() {
    for (sql, reason) in [
        ("PRAGMA user_version = 99", "written by a newer mcprelay (schema 99"),
        ("PRAGMA application_id = 7", "not a history of mcprelay"),
        ("DROP TABLE audit", "no such table"),
    ] {
        let dir = trail("audit-foreign");
        edit(&dir, sql);
        for line in ["audit list --json", "audit verify --json", "audit head --json"] {
            let (code, out, err) = run(dir.path(), line);
            assert!(code == 1 && err.contains("history.db") && err.contains(reason), "{line}: {err}");
            if reason != "no such table" || !line.contains("list") {
                let json: serde_json::Value = serde_json::from_str(&out).expect("one document");
                assert_eq!(json["error"]["kind"], "store", "{line}");
            }
        }
    }
}

#[test]
fn pip_4_a_reader_that_has_seen_enough_ends_the_command_quietly() {
    let Some(bash) = program(&["bash"], "a closed pipe") else { return };
    let dir = TempDir::new("audit-pipe");
    let rows = (1..=5_000).map(|n| audit(n, AuditKind::Denied, "a_tool", None)).collect();
    store(dir.path(), Vec::new(), rows, Vec::new());
    for options in ["", "--json"] {
        let mcprelay = super::support::mcprelay().display();
        let line = format!("{mcprelay} audit list --limit 5000 {options} | head -c 100; echo \"${{PIPESTATUS[0]}}\"");
        let mut shell = std::process::Command::new(&bash);
        let output = shell.args(["-c", &line]).current_dir(dir.path()).env("HOME", dir.path()).output().expect("bash");
        let (_, out, err) = told(&output);
        assert!(out.ends_with("0\n") && err.is_empty(), "{out}\n{err}");
    }
}

#[test]
fn sql_2_a_history_on_a_read_only_mount_can_be_read() {
    let Some(unshare) = program(&["unshare"], "a read-only mount") else { return };
    let dir = example("audit-read-only");
    let mcprelay = super::support::mcprelay().display();
    let script = format!(
        "mount --bind .mcprelay .mcprelay && mount -o remount,ro,bind .mcprelay && ! touch .mcprelay/x 2>/dev/null || exit 77
         {mcprelay} audit list --no-header && {mcprelay} audit verify && {mcprelay} report --since 2100-01-01T00:00:00Z --until 2101-01-01T00:00:00Z && {mcprelay} replay list"
    );
    let mut shell = std::process::Command::new(unshare);
    let output = shell.args(["-m", "sh", "-c", &script]).current_dir(dir.path()).env("HOME", dir.path()).output();
    let (code, out, err) = told(&output.expect("it starts"));
    if code == 77 || err.contains("unshare:") {
        super::support::process::say(&format!("*** SKIPPED: a read-only mount: not permitted here: {err}"));
        return;
    }
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("the chain holds") && out.contains("calls 27") && out.contains("01LETTER"), "{out}");
}

#[test]
fn two_files_are_two_trails() {
    let dir = trail("audit-two");
    let state = dir.join(".local/state/mcprelay");
    std::fs::create_dir_all(&state).expect("made");
    let other = trail("audit-two-other");
    std::fs::copy(other.join(".mcprelay/history.db"), state.join("history.db")).expect("copied");
    edit(&dir, "UPDATE audit SET caller = 'nobody' WHERE seq = 2");
    let json: serde_json::Value =
        serde_json::from_slice(&command(dir.path(), "audit verify --json").output().expect("ran").stdout)
            .expect("JSON");
    let breaks = |at: usize| json["files"][at]["breaks"].as_array().map(Vec::len);
    assert_eq!((json["ok"].as_bool(), breaks(0), breaks(1)), (Some(false), Some(1), Some(0)));
    assert_eq!(document(dir.path(), "audit list --json").as_array().map(Vec::len), Some(14));
    assert_eq!(document(dir.path(), "audit head --json")["heads"].as_array().map(Vec::len), Some(2));
}
