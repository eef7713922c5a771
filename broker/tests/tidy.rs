//! Style as a test (style.md 3.1, 3.5, 3.8): layering, who may name the runtime, file sizes, file heads, unsafe, and a
//! code map and a table of APIs that cannot drift. Reads the sources as text; knows nothing of what they do.
#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "reads the source tree")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::api::SERVED;

/// Modules of `broker`, lowest layer first. A module may import from its own module and from lower layers only.
const BROKER_LAYERS: &[&[&str]] = &[
    &["config", "metrics", "shard", "sidecar"],
    &["metadata", "store", "security"],
    &["partition", "fetch_session", "controller"],
    &["admin", "coordinator", "replication"],
    &["handlers"],
    &["net"],
    &["start"],
    &["cli"],
];

/// Files that may name an I/O runtime or a metadata client, as path prefixes.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("glommio::", &["broker/src/shard/", "broker/src/net/", "storage/src/io/"]),
    ("tokio::", &[]),
    ("zookeeper_client", &["broker/src/store/zookeeper"]),
    ("spawns_core::", &["broker/src/store/zookeeper"]),
    ("async_io::", &["broker/src/store/zookeeper"]),
    ("redb::", &["broker/src/store/embedded"]),
];

/// Files with `unsafe`; each block carries a `// SAFETY:` line (clippy checks that).
const MAY_BE_UNSAFE: &[&str] = &[
    "bench-harness/src/commands/ceiling/ring.rs",
    "broker/src/shard/resident.rs",
    "broker/src/shard/start.rs",
    "broker/src/shard/tcp.rs",
    "storage/src/io/glommio.rs",
    "storage/src/lock.rs",
    "storage/src/lock/voucher.rs",
];

/// Files above 1,000 lines; may only shrink.
const MAY_BE_HUGE: &[&str] = &[];

struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/tests_")
    }

    fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workspace root").to_path_buf()
}

fn collect(dir: &Path, into: &mut Vec<Source>) {
    let mut entries: Vec<_> =
        fs::read_dir(dir).expect("readable directory").map(|e| e.expect("entry").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') && name != "node_modules" {
                collect(&path, into);
            }
        } else if name.ends_with(".rs") {
            let relative =
                path.strip_prefix(root()).expect("inside the workspace").to_string_lossy().into_owned();
            into.push(Source { path: relative, text: fs::read_to_string(&path).expect("UTF-8 source") });
        }
    }
}

fn sources() -> Vec<Source> {
    let mut all = Vec::new();
    for crate_dir in ["protocol", "storage", "broker", "bench-harness"] {
        collect(&root().join(crate_dir), &mut all);
    }
    assert!(all.len() > 20, "the source tree was not found");
    all
}

fn fail_if_any(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

/// The module of `broker` that a path belongs to, if it is one of the layered ones.
fn broker_module(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("broker/src/")?;
    let name = rest.split('/').next()?;
    Some(name.strip_suffix(".rs").unwrap_or(name))
}

fn layer_of(module: &str) -> Option<usize> {
    BROKER_LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn broker_calls_go_down_and_never_up() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.is_test()) {
        let Some(own) = broker_module(&source.path).filter(|m| !matches!(*m, "lib" | "main")) else {
            continue;
        };
        let own_layer = layer_of(own);
        if own_layer.is_none() {
            faults.push(format!("{}: module {own} has no layer", source.path));
        }
        for (line, used) in imported(&source.text) {
            if used == own {
                continue;
            }
            if let (Some(own_layer), Some(used_layer)) = (own_layer, layer_of(used))
                && used_layer >= own_layer
            {
                faults.push(format!("{}:{line}: {own} uses {used}", source.path));
            }
        }
        for line in escapes(&source.path, &source.text) {
            faults.push(format!("{}:{line}: super leaves {own}; write crate", source.path));
        }
    }
    fail_if_any("a lower or equal layer is imported from above (style 3.1)", &faults);
}

/// A line without what a comment says.
fn code_of(line: &str) -> &str {
    if line.trim_start().starts_with("//") { "" } else { line }
}

/// The modules that a text names right after `crate::`, alone or in braces, each with its line.
fn imported(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, root) in text.match_indices("crate::") {
        let (before, rest) = (&text[..at], &text[at + root.len()..]);
        let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
        if code_of(text.lines().nth(line - 1).unwrap_or_default()).is_empty() {
            continue;
        }
        found.extend(first_names(rest).into_iter().map(|used| (line, used)));
    }
    found
}

/// The first name of a path, or of each path of a list in braces.
fn first_names(path: &str) -> Vec<&str> {
    let name = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let Some(list) = path.strip_prefix('{') else { return vec![&path[..name(path)]] };
    let (mut depth, mut names, mut is_start) = (0, Vec::new(), true);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            c if is_start && c.is_alphanumeric() => {
                names.push(&list[at..at + name(&list[at..])]);
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

/// Lines where a chain of `super::` reaches the root of the crate: what follows would not be seen as an import.
fn escapes(path: &str, text: &str) -> Vec<usize> {
    let module = path.trim_start_matches("broker/src/").trim_end_matches(".rs").trim_end_matches("/mod");
    let mut depth = module.split('/').count();
    let mut inline: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = code_of(line);
        let indent = line.len() - line.trim_start().len();
        // As rustfmt writes it, a module's last brace stands below its first letter.
        if inline.last() == Some(&indent) && line.trim_start().starts_with('}') {
            inline.pop();
            depth -= 1;
        }
        let longest = code.split("super::").skip(1).fold((0, 0), |(longest, run), rest| {
            let run = run + 1;
            (longest.max(run), if rest.is_empty() { run } else { 0 })
        });
        if longest.0 >= depth {
            found.push(index + 1);
        }
        let words: Vec<&str> = code.split_whitespace().skip_while(|word| word.starts_with("pub")).collect();
        if matches!(words.as_slice(), ["mod", _, "{"]) {
            inline.push(indent);
            depth += 1;
        }
    }
    found
}

#[test]
fn imports_are_seen_in_every_form() {
    let text = "use crate::net::limits;\n// crate::cli\nuse crate::{\n    handlers::{self, errors},\n    store, start::x,\n};\n\
                pub(in crate::admin) fn f() { crate::shard::g() }\n";
    let found = imported(text);
    let expected = [(1, "net"), (3, "handlers"), (3, "store"), (3, "start"), (7, "admin"), (7, "shard")];
    assert_eq!(found, expected);
    let text = "use super::a;\nuse super::super::b;\nmod tests {\n    use super::super::c;\n    use super::super::super::d;\n}\n\
                use super::{e, f};\nsuper::super::g();\n";
    assert_eq!(escapes("broker/src/net/limits.rs", text), [2, 5, 8]);
    assert_eq!(escapes("broker/src/net/mod.rs", "use super::handlers;\n"), [1]);
    assert_eq!(escapes("broker/src/cli.rs", "use super::start;\n"), [1]);
}

#[test]
fn crates_depend_in_one_direction() {
    let mut faults = Vec::new();
    for source in sources() {
        for (index, line) in source.code_lines() {
            let in_crate = |name: &str| source.path.starts_with(&format!("{name}/src"));
            let wrong = (in_crate("protocol")
                && (line.contains("storage::") && line.contains("use storage")))
                || (in_crate("storage")
                    && (line.contains("protocol::messages") || line.contains("protocol::api")))
                || (in_crate("bench-harness")
                    && (line.contains("use storage") || line.contains("use broker")));
            if wrong {
                faults.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    fail_if_any("crates depend as broker -> storage -> protocol, bench-harness -> protocol", &faults);
}

#[test]
fn runtimes_and_clients_are_named_in_one_place() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.path.contains("/tests/")) {
        for (index, line) in source.code_lines() {
            for (name, places) in MAY_NAME {
                let named = line.match_indices(name).any(|(at, _)| {
                    let before = line.get(..at).unwrap_or_default();
                    !before.ends_with("::") && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                });
                if named && !places.iter().any(|place| source.path.starts_with(place)) {
                    faults.push(format!("{}:{}: names {name}", source.path, index + 1));
                }
            }
        }
    }
    fail_if_any("the runtime, tokio, ZooKeeper's client and redb are each named in one place (A-4)", &faults);
}

#[test]
fn files_are_small_and_say_what_they_own() {
    let mut faults = Vec::new();
    for source in &sources() {
        let lines = source.text.lines().count();
        if !source.text.starts_with("//!") && !source.path.ends_with("tests.rs") {
            faults.push(format!("{}: does not open with //!", source.path));
        }
        if lines > 1000 && !MAY_BE_HUGE.contains(&source.path.as_str()) {
            faults.push(format!("{}: {lines} lines", source.path));
        }
        let head: String = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
        if lines > 800 && !source.is_test() && !head.contains("lines") {
            faults.push(format!("{}: {lines} lines, and its head does not say why", source.path));
        }
    }
    for huge in MAY_BE_HUGE {
        let still = sources().iter().any(|s| s.path == *huge && s.text.lines().count() > 1000);
        if !still {
            faults.push(format!("{huge}: no longer above 1,000 lines, take it off the list"));
        }
    }
    fail_if_any("file sizes and heads (style 3.8)", &faults);
}

#[test]
fn unsafe_is_kept_to_listed_files() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.is_test()) {
        let uses = source.code_lines().any(|(_, line)| {
            line.contains("unsafe {") || line.contains("unsafe impl") || line.contains("unsafe fn")
        });
        if uses && !MAY_BE_UNSAFE.contains(&source.path.as_str()) {
            faults.push(source.path.clone());
        }
    }
    fail_if_any("unsafe outside the listed files (style 3.5)", &faults);
}

#[test]
fn nothing_is_left_unfinished() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("for ", "now"),
        concat!("simpli", "fied"),
    ];
    let mut faults = Vec::new();
    for source in &sources() {
        for (index, line) in source.text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                faults.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    fail_if_any("words of unfinished work", &faults);
}

#[test]
fn no_test_is_ignored_or_sleeps_on_real_time_in_libraries() {
    let mut faults = Vec::new();
    for source in &sources() {
        for (index, line) in source.code_lines() {
            if line.contains(concat!("#[ig", "nore")) {
                faults.push(format!("{}:{}", source.path, index + 1));
            }
        }
    }
    fail_if_any("ignored tests", &faults);
}

#[test]
fn the_code_map_names_what_exists() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, section) = map.split_once("## Code map").expect("a section `## Code map`");
    let section = section.split_once("\n## ").map_or(section, |(own, _)| own);
    let named: BTreeSet<&str> =
        section.split('`').skip(1).step_by(2).filter(|t| t.contains("/src/")).collect();
    let mut faults = Vec::new();
    for path in &named {
        if !root().join(path).exists() {
            faults.push(format!("{path}: named in the code map, but not there"));
        }
    }
    for source in sources().iter().filter(|s| !s.is_test() && s.path.contains("/src/")) {
        let covered =
            named.iter().any(|n| *n == source.path || (n.ends_with('/') && source.path.starts_with(n)));
        if !covered {
            faults.push(format!("{}: not in the code map", source.path));
        }
    }
    fail_if_any("the code map of ARCHITECTURE.md", &faults);
}

#[test]
fn the_readme_tells_what_is_served() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let (_, section) = readme.split_once("## What it serves").expect("a section `## What it serves`");
    let section = section.split_once("\n## ").map_or(section, |(own, _)| own);
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells: Vec<&str> = rows.flat_map(|row| row.trim_matches('|').split('|').map(str::trim)).collect();
    let told: Vec<(&str, String)> = cells.chunks_exact(2).map(|pair| (pair[0], pair[1].to_owned())).collect();
    let versions = |min, max| if min == max { format!("{min}") } else { format!("{min}–{max}") };
    let served: Vec<(&str, String)> =
        SERVED.iter().map(|api| (api.key.name(), versions(api.min, api.max))).collect();
    assert_eq!(told, served, "the table of README.md is protocol::api::SERVED, row after row");
    for api in SERVED.iter().filter(|api| api.advertised_min != api.min) {
        let sentence = format!("ApiVersions tells {} from version {} on", api.key.name(), api.advertised_min);
        assert!(section.contains(&sentence), "README.md does not say: {sentence}");
    }
}
