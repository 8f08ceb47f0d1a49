//! Checks that the source keeps the module rules of `docs/architecture.md`: who may import whom, which modules touch
//! nothing, how each file begins, how long it may be.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What each module may import of ours, as paths below the crate; a module stands for everything in it.
/// Modules stand in reading order: each imports only what stands above it, save the few parts named with `::`.
const IMPORTS: &[(&str, &[&str])] = &[
    // Know nothing of ours.
    ("clock", &[]),
    ("exit", &[]),
    ("suggest", &[]),
    ("glob", &[]),
    // Decide and describe.
    ("breaker", &["clock"]),
    ("budget", &["clock"]),
    ("wire", &["clock"]),
    ("identity", &["wire"]),
    ("policy", &["clock", "wire", "glob", "suggest"]),
    ("retry", &["clock", "wire", "glob", "breaker", "budget"]),
    ("restart", &["clock", "retry"]),
    ("faults", &["glob", "retry"]),
    ("record", &["clock", "wire"]),
    ("metrics", &["clock", "wire"]),
    // The engine.
    (
        "dispatcher",
        &[
            "clock", "wire", "identity", "policy", "retry", "record", "metrics", "exit", "breaker", "budget",
            "restart", "faults",
        ],
    ),
    // Touch the world. Every thread of the crate starts at `ports::spawn`.
    ("ports", &["clock", "wire", "record", "dispatcher::event"]),
    ("random", &[]),
    ("store", &["clock", "wire", "record", "dispatcher::event", "ports::spawn", "random"]),
    // What the user wrote, as settings that the modules declare for themselves.
    (
        "config",
        &[
            "glob",
            "suggest",
            "identity",
            "policy",
            "retry",
            "dispatcher",
            "ports",
            "wire",
            "breaker",
            "budget",
            "restart",
            "faults",
        ],
    ),
    // Join the parts.
    ("session", &["clock", "wire", "record", "exit", "dispatcher::event", "ports"]),
    (
        "runtime",
        &[
            "clock",
            "wire",
            "identity",
            "policy",
            "retry",
            "record",
            "metrics",
            "exit",
            "dispatcher",
            "ports",
            "store",
            "config",
            "session",
        ],
    ),
    // What a user types.
    ("cli", &["clock", "config", "record", "suggest"]),
    (
        "commands",
        &[
            "clock",
            "wire",
            "identity",
            "policy",
            "retry",
            "record",
            "metrics",
            "exit",
            "suggest",
            "dispatcher",
            "ports",
            "store",
            "config",
            "session",
            "runtime",
            "cli",
            "glob",
            "random",
        ],
    ),
    ("fuzzing", &["wire", "policy", "retry", "dispatcher", "clock"]),
];

/// Modules that touch nothing: no clock, file, process, thread, channel or database.
const PURE: &[&str] = &[
    "exit",
    "suggest",
    "glob",
    "wire",
    "identity",
    "policy",
    "retry",
    "record",
    "metrics",
    "dispatcher",
    "breaker",
    "budget",
    "restart",
    "faults",
];

/// What touches the world.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process::Command",
    "std::process::Child",
    "std::thread",
    "std::env",
    "std::sync::mpsc",
    "std::time::Instant",
    "SystemTime",
    "crossbeam_channel",
    "rusqlite",
    "rustix",
    "signal_hook",
    "getrandom",
];

/// Modules that read frames, which is done by the one walker in `wire`: another parser could read them otherwise.
const ONE_PARSER: &[&str] = &["wire", "policy", "identity", "dispatcher", "ports", "runtime"];

/// A longer file is hard to hold in one's head.
const LINES_MAX: usize = 700;

/// Longer ones, each with its reason.
const LONG: &[(&str, &str)] = &[
    ("src/cli.rs", "one table of commands with their help, and the parser that follows it"),
    ("src/config/settings.rs", "one function for each section of the file"),
    ("src/dispatcher/call.rs", "one state machine: the life of a call"),
    ("src/dispatcher/sim.rs", "the stand-in world of the engine's tests, one method for each thing that can happen"),
    ("src/dispatcher/upstream.rs", "one state machine: what upstreams send, and their lives"),
    ("src/ports/http/conversation.rs", "one state machine: what is sent to a remote server when"),
    ("src/store/tests.rs", "the store's tests, which share their helpers"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below `folder`, by its path from the root, with its text.
fn files(folder: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("node_modules") && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.insert(name, std::fs::read_to_string(&path).expect("text"));
            }
        }
    }
    found
}

/// The module path of a source file: `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`, `src/lib.rs` is empty.
fn module_of(file: &str) -> Vec<&str> {
    let inner = file.trim_start_matches("src/").trim_end_matches(".rs");
    inner.split('/').filter(|part| !["mod", "lib", "main"].contains(part)).collect()
}

/// Files that only tests have; they may import what they need.
fn is_for_tests(file: &str) -> bool {
    module_of(file).iter().any(|part| *part == "tests" || *part == "sim" || part.starts_with("test_"))
}

/// A file's code without comments and without its tests, which stand last.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        let opens_tests = lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        if line == "#[cfg(test)]" && opens_tests {
            break;
        }
        if !bare.starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The paths below the crate that the code of a module names, by `crate::` or by `super::`, braces taken apart.
fn imports(code: &str, module: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let preceded = code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$');
        if !preceded {
            expand("", &code[at + "crate::".len()..], &mut found);
        }
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let mut rest = &code[at..];
        let mut level = module.len();
        while let Some(inner) = rest.strip_prefix("super::") {
            rest = inner;
            level = level.saturating_sub(1);
        }
        // What stays below the module's own top is no import.
        if level == 0 && !module.is_empty() {
            expand("", rest, &mut found);
        }
    }
    found
}

/// Takes one use tree apart: `a::{b, c::D}` is `a::b` and `a::c::D`. Gives what stands behind it.
fn expand<'a>(before: &str, text: &'a str, found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if let Some(behind) = rest.strip_prefix('}') {
                return behind;
            }
            let left = expand(before, rest, found);
            assert!(left.len() < rest.len(), "cannot read the imports at {rest:.60}");
            // A new name (`as x`) is none of our concern.
            rest = left.trim_start();
            if let Some(renamed) = rest.strip_prefix("as ") {
                rest = renamed.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
            }
        }
    }
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*')).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if before.is_empty() { name.to_owned() } else { format!("{before}::{name}") };
    match rest.strip_prefix("::") {
        Some(inner) if !inner.starts_with('<') => expand(&path, inner, found),
        _ => {
            found.push(path);
            rest
        }
    }
}

fn is_within(path: &str, allowed: &str) -> bool {
    path == allowed || path.strip_prefix(allowed).is_some_and(|rest| rest.starts_with("::"))
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n  {}", problems.join("\n  "));
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for (file, text) in files("src") {
        let module = module_of(&file);
        let Some(top) = module.first() else { continue };
        let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| name == top) else {
            problems.push(format!("{file}: the module {top} is not in the table of tests/tidy.rs"));
            continue;
        };
        if is_for_tests(&file) {
            continue;
        }
        for path in imports(&code_of(&text), &module) {
            seen += 1;
            let own = is_within(&path, top);
            if !own && !allowed.iter().any(|allowed| is_within(&path, allowed)) {
                problems.push(format!("{file} imports {path}, which {top} may not"));
            }
        }
    }
    assert!(seen > 100, "only {seen} imports were found: the search is broken");
    assert_none(&problems);
}

#[test]
fn the_table_has_no_cycle_and_no_module_that_does_not_exist() {
    let exists = |name: &str| root().join(format!("src/{name}.rs")).exists() || root().join("src").join(name).is_dir();
    for (number, (module, allowed)) in IMPORTS.iter().enumerate() {
        assert!(exists(module), "the table names {module}, which does not exist");
        for name in allowed.iter().filter(|name| !name.contains("::")) {
            let place = IMPORTS.iter().position(|(other, _)| other == name);
            assert!(place.is_some_and(|place| place < number), "{module} may import {name}, which stands below it");
        }
    }
}

#[test]
fn modules_that_decide_touch_nothing() {
    let mut problems = Vec::new();
    for (file, text) in files("src") {
        let module = module_of(&file);
        let top = module.first().copied().unwrap_or_default();
        let code = code_of(&text);
        if is_for_tests(&file) {
            continue;
        }
        if PURE.contains(&top) {
            let touched = IMPURE.iter().filter(|what| code.contains(**what));
            problems.extend(touched.map(|what| format!("{file} uses {what}")));
        }
        let reads =
            ["serde_json::from_", "serde_json::{from_", "serde_json::Deserializer", "serde_json::StreamDeserializer"];
        if ONE_PARSER.contains(&top) && reads.iter().any(|reader| code.contains(reader)) {
            problems.push(format!("{file} reads by serde_json: frames are read by wire::json alone"));
        }
    }
    assert_none(&problems);
}

#[test]
fn every_file_says_what_it_is_and_is_not_too_long() {
    let mut problems = Vec::new();
    let all: Vec<(String, String)> =
        ["src", "tests", "fuzz/fuzz_targets"].iter().flat_map(|folder| files(folder)).collect();
    assert!(all.len() > 80, "only {} files were found", all.len());
    for (file, text) in &all {
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("//! ") {
            problems.push(format!("{file} does not open with a //! sentence"));
        }
        let lines = text.lines().count();
        let reason = LONG.iter().any(|(name, _)| name == file);
        if lines > LINES_MAX && !reason {
            problems.push(format!("{file} has {lines} lines; split it, or give the reason in tests/tidy.rs"));
        }
        if lines <= LINES_MAX && reason {
            problems.push(format!("{file} has {lines} lines: take it off the list of long files in tests/tidy.rs"));
        }
    }
    for (name, _) in LONG {
        if !all.iter().any(|(file, _)| file == name) {
            problems.push(format!("the list of long files names {name}, which does not exist"));
        }
    }
    assert_none(&problems);
}

/// Licences that ask for no more than their own text. An expression with AND needs all of its parts here.
const LICENCES: &[&str] = &[
    // The list of certificate authorities in webpki-roots, which is data.
    "CDLA-Permissive-2.0",
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "Zlib",
    "Unlicense",
    "BSL-1.0",
    "Unicode-3.0",
    "ISC",
    "BSD-3-Clause",
];

#[test]
fn every_dependency_may_be_shipped() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 30, "only {} packages", packages.len());
    let mut problems = Vec::new();
    for package in packages {
        let expression = package["license"].as_str().unwrap_or("none").replace('/', " OR ");
        let fits = |part: &str| {
            let one = |licence: &str| LICENCES.contains(&licence.trim_matches(['(', ')', ' ']));
            part.trim_matches(['(', ')', ' ']).split(" OR ").any(one)
        };
        if !expression.split(" AND ").all(fits) {
            problems.push(format!("{} has the licence {expression}", package["name"]));
        }
    }
    assert_none(&problems);
}

/// What stands at top level besides dotfiles.
const TOP_LEVEL: &[&str] =
    &["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "docs", "fuzz", "scripts", "src", "target", "tests"];

#[test]
fn the_top_level_holds_what_was_agreed() {
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("readable") {
        let name = entry.expect("readable").file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()) {
            problems.push(format!("{name} stands at top level"));
        }
    }
    assert_none(&problems);
}

#[test]
fn imports_are_found_however_they_are_written() {
    let found = |code: &str, module: &[&str]| imports(code, module);
    assert_eq!(found("use crate::{a::b, c, d::{e, f::*}};", &["x"]), ["a::b", "c", "d::e", "d::f::*"]);
    assert_eq!(found("use crate::a::B as C; crate::d::e::<f>()", &["x"]), ["a::B", "d::e"]);
    assert_eq!(found("use crate::{a::B as C, d};", &["x"]), ["a::B", "d"]);
    assert_eq!(found("use super::a::b; use super::super::c;", &["x"]), ["a::b", "c"]);
    assert_eq!(found("use super::a; use super::super::b::{c, d};", &["x", "y"]), ["b::c", "b::d"]);
    assert_eq!(found("my_crate::a; $crate::b", &["x"]), Vec::<String>::new());
}

#[test]
fn tests_and_comments_are_no_code() {
    let text = "use a;\n// use b;\n    /// crate::c\n#[cfg(test)]\npub mod d;\nuse e;\n#[cfg(test)]\nmod tests {\n use f;\n}\n";
    assert_eq!(code_of(text), "use a;\n#[cfg(test)]\npub mod d;\nuse e;\n");
}

#[test]
fn every_link_of_the_documentation_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "docs/adr"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the folder is there");
        let files = entries.map(|entry| entry.expect("it can be listed").path());
        pages.extend(files.filter(|file| file.extension().is_some_and(|extension| extension == "md")));
    }
    let mut problems = Vec::new();
    let mut links = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("it can be read");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            links += 1;
            if !page.with_file_name(file).exists() {
                problems.push(format!("{} links to {link}, which does not exist", page.display()));
            }
        }
    }
    assert!(links > 5, "only {links} links found");
    assert_none(&problems);
}
