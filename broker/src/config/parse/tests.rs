//! What each source is read as, what each fault says, and that nothing panics.

use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;

use super::*;

/// Secrets of tests.
struct Vault(BTreeMap<&'static str, &'static str>);

impl Secrets for Vault {
    fn file(&self, path: &str) -> io::Result<String> {
        self.0.get(path).map(|text| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|text| (*text).to_owned())
    }
}

fn vault() -> Vault {
    Vault(BTreeMap::from([("/run/secret", "hunter2\n"), ("SECRET", "hunter3")]))
}

fn merged(sources: &Sources) -> (Settings, Vec<String>, Vec<String>) {
    let (settings, faults, warnings) = merge(sources, &vault());
    let texts = |count: usize, text: &dyn Fn(usize) -> String| (0..count).map(text).collect::<Vec<_>>();
    let faults_text = texts(faults.len(), &|i| faults[i].to_string());
    let warnings_text = texts(warnings.len(), &|i| warnings[i].to_string());
    (settings, faults_text, warnings_text)
}

fn toml(text: &str) -> (Settings, Vec<String>, Vec<String>) {
    merged(&Sources { file: Some((Format::Toml, text.to_owned())), ..Sources::default() })
}

fn properties(text: &str) -> (Settings, Vec<String>, Vec<String>) {
    merged(&Sources { file: Some((Format::Properties, text.to_owned())), ..Sources::default() })
}

fn values(settings: &Settings) -> Vec<(&str, &str)> {
    settings.iter().map(|(name, setting)| (name, setting.text.as_str())).collect()
}

#[test]
fn toml_keys_have_underscores_or_quotes_and_native_types() {
    let (settings, faults, warnings) = toml(
        "[general]\nbroker_id = 1_0\nauto_create_topics_enable = false\n[log]\n\"log.retention.hours\" = 0x18\n\
         log_cleanup_policy = [\"delete\", \"compact\"]\n[listeners]\nlisteners = [\"A://:1\", \"B://:2\"]\n\
         [listener.a]\nmax_connections = 7\n[runtime]\ncores = [1]\nstorage_cache_fraction = 0.1\n",
    );
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(warnings, Vec::<String>::new());
    let expected = [
        ("auto.create.topics.enable", "false"),
        ("broker.id", "10"),
        ("cores", "[1]"),
        ("listener.name.a.max.connections", "7"),
        ("listeners", "A://:1,B://:2"),
        ("log.cleanup.policy", "delete,compact"),
        ("log.retention.hours", "24"),
        ("storage.cache.fraction", "0.1"),
    ];
    assert_eq!(values(&settings), expected);
}

/// S-34 of security-admin.md.
#[test]
fn a_bare_dotted_key_is_refused_with_a_hint() {
    let hint = |key: &str, line: usize| {
        format!(
            "line {line}: write {} or \"{key}\": a bare key with dots means nested tables in TOML",
            key.replace('.', "_")
        )
    };
    assert_eq!(toml("broker.id = 1\n").1, [hint("broker.id", 1)]);
    assert_eq!(toml("[listeners]\nmax.connections = 5\n").1, [hint("max.connections", 2)]);
    // A table and a value at once: the parser gives up, the hint stays.
    let collision = toml("[listeners]\nmax.connections = 5\nmax.connections.per.ip = 2\n").1;
    assert_eq!(collision, [hint("max.connections.per.ip", 3)]);
    // The first part of the name is a section.
    assert_eq!(toml("log.dir = \"/d\"\n").1, [hint("log.dir", 1)]);
}

/// S-34 of security-admin.md.
#[test]
fn the_same_key_in_two_spellings_or_sections_is_an_error() {
    let twice = "line 4: log.retention.hours was already set at line 2";
    assert_eq!(toml("[log]\nlog_retention_hours = 1\n\n\"log.retention.hours\" = 2\n").1, [twice]);
    assert_eq!(toml("[log]\nlog_retention_hours = 1\n[general]\nlog_retention_hours = 2\n").1, [twice]);
    assert_eq!(toml("[log]\nlog_dir = \"a\"\nlog_dir = \"b\"\n").1, ["line 3: duplicate key"]);
}

#[test]
fn a_key_in_the_wrong_section_is_allowed_with_a_warning() {
    let (settings, faults, warnings) = toml("[log]\nbroker_id = 1\n");
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(warnings, ["line 2: broker.id stands in [log]; it belongs in [general]"]);
    assert_eq!(values(&settings), [("broker.id", "1")]);
    assert_eq!(toml("broker_id = 1\n").2, Vec::<String>::new(), "no section at all is fine");
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    assert_eq!(
        toml("[log]\nlog_retention_hour = 1\n").1,
        ["line 2: there is no key log.retention.hour; did you mean log.retention.hours?"]
    );
    assert_eq!(properties("xyzzy=1\n").1, ["line 1: there is no key xyzzy"]);
    assert_eq!(toml("[logs]\nlog_dir = \"x\"\n").1.len(), 1);
    assert!(
        toml("[logs]\nlog_dir = \"x\"\n").1[0]
            .starts_with("line 1: there is no section [logs]; the sections are")
    );
}

#[test]
fn a_value_of_the_wrong_type_or_range_says_so_with_its_place() {
    assert_eq!(
        toml("[log]\nlog_segment_bytes = 13\nlog_dir = 1979-05-27\n").1,
        [
            "line 3: log.dir cannot be a datetime",
            "line 2: invalid value `13` for log.segment.bytes: Value must be at least 14",
        ]
    );
    assert_eq!(
        toml("log_cleanup_policy = [\"a,b\"]\n").1,
        ["line 1: an item of log.cleanup.policy has a comma in it, which separates items"]
    );
    assert_eq!(toml("broker_id = { a = 1 }\n").1, ["line 1: broker.id cannot be a table"]);
    assert_eq!(toml("broker_id = \n").1.len(), 1);
}

#[test]
fn secrets_come_from_files_and_the_environment_and_are_never_shown() {
    let text = "[security]\npassword_encoder_secret = { file = \"/run/secret\" }\n\
                password_encoder_old_secret = { env = \"SECRET\" }\nssl_key_password = \"hunter4\"\n\
                ssl_keystore_password = { file = \"/none\" }\nauthorizer_class_name = { env = \"SECRET\" }\n";
    let (settings, faults, _) = toml(text);
    assert_eq!(settings.set_value("password.encoder.secret"), Some("hunter2"));
    assert_eq!(settings.set_value("password.encoder.old.secret"), Some("hunter3"));
    assert_eq!(
        faults,
        [
            "line 5: the secret of ssl.keystore.password cannot be read: entity not found",
            "line 6: authorizer.class.name cannot be a table",
            "line 4: ssl.key.password cannot be set to the given secret: TLS is not built yet",
        ]
    );
    assert!(!format!("{settings:?}").contains("hunter"));
}

#[test]
fn what_protects_or_leads_elsewhere_is_refused_and_its_default_is_not() {
    for (name, text) in [
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer"),
        ("super.users", "User:a"),
        ("ssl.keystore.location", "/k"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("listener.name.plaintext.ssl.client.auth", "required"),
        ("listener.name.a.plain.sasl.jaas.config", "x"),
        ("client.quota.callback.class", "X"),
        ("quota.window.num", "12"),
        ("create.topic.policy.class.name", "X"),
        ("alter.config.policy.class.name", "X"),
        ("zookeeper.set.acl", "true"),
        ("zookeeper.ssl.client.enable", "true"),
        ("storage.io.mode", "direct"),
        ("remote.log.storage.system.enable", "true"),
        ("process.roles", "broker,controller"),
        ("max.connection.creation.rate", "10"),
    ] {
        let sources = Sources { overrides: vec![format!("{name}={text}")], ..Sources::default() };
        let faults = merged(&sources).1;
        assert_eq!(faults.len(), 1, "{name}");
        assert!(faults[0].starts_with(&format!("--override: {name} cannot be set to")), "{faults:?}");
    }
    for key in keys::broker_keys().filter(|key| key.default.is_some() && key.kind != Kind::Password) {
        let sources = Sources {
            overrides: vec![format!("{}={}", key.name, key.default.unwrap())],
            ..Sources::default()
        };
        assert_eq!(merged(&sources).1, Vec::<String>::new(), "{}", key.name);
        assert_eq!(merged(&sources).2, Vec::<String>::new(), "{}", key.name);
    }
}

#[test]
fn what_has_no_effect_is_accepted_with_a_warning() {
    let sources = Sources { overrides: vec!["num.io.threads=16".to_owned()], ..Sources::default() };
    assert_eq!(
        merged(&sources).2,
        [
            "--override: num.io.threads is accepted and has no effect: the broker runs one thread per core; see cores"
        ]
    );
}

#[test]
fn properties_are_read_as_java_reads_them() {
    let text = "# comment\n! comment\n\n  broker.id = 7\nlog.dirs:/a\\\n    /b\nbroker.rack r\\u00e4ck\\t1 \n\
                listeners=PLAINTEXT\\://\\:9092\nnum.partitions\n";
    let (settings, faults, _) = properties(text);
    let expected = [
        ("broker.id", "7"),
        ("broker.rack", "räck\t1 "),
        ("listeners", "PLAINTEXT://:9092"),
        ("log.dirs", "/a/b"),
        ("num.partitions", ""),
    ];
    assert_eq!(values(&settings), expected);
    assert_eq!(faults, ["line 9: invalid value `` for num.partitions: Not a number of type INT"]);
    let (_, faults, warnings) = properties("a\\u00g0=1\nbroker.id=1\r\nbroker.id=2\r\n");
    assert_eq!(faults, ["line 1: \\u must be followed by four hexadecimal digits"]);
    assert_eq!(warnings, ["line 3: broker.id was already set at line 2; this one counts"]);
}

#[test]
fn the_environment_beats_the_file_and_the_command_line_beats_both() {
    let mut sources = Sources {
        file: Some((
            Format::Toml,
            "num_partitions = 1\ndefault_replication_factor = 1\nbroker_id = 1\n".to_owned(),
        )),
        environment: vec![
            ("ODRADEK_NUM_PARTITIONS".to_owned(), "2".to_owned()),
            ("ODRADEK_BROKER_ID".to_owned(), "2".to_owned()),
            ("ODRADEK_INTEROP".to_owned(), "require".to_owned()),
            ("ODRADEK_SOMETHING_ELSE_ENTIRELY".to_owned(), "1".to_owned()),
            ("PATH".to_owned(), "/bin".to_owned()),
        ],
        overrides: vec!["broker.id=3".to_owned(), "broker_id=4".to_owned()],
    };
    let (settings, faults, warnings) = merged(&sources);
    assert_eq!(
        values(&settings),
        [("broker.id", "4"), ("default.replication.factor", "1"), ("num.partitions", "2")]
    );
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(
        warnings,
        ["environment variable ODRADEK_SOMETHING_ELSE_ENTIRELY names no key and is ignored"]
    );
    sources.environment.push(("ODRADEK_LOG_DRIS".to_owned(), "/d".to_owned()));
    assert_eq!(
        merged(&sources).1,
        ["environment variable ODRADEK_LOG_DRIS: there is no key log.dris; did you mean log.dir?"]
    );
    sources.overrides.push("nonsense".to_owned());
    assert!(
        merged(&sources).1.contains(&"--override must be of the form key=value, not `nonsense`".to_owned())
    );
}

proptest! {
    #[test]
    fn no_text_panics_as_any_format(text in ".{0,300}") {
        toml(&text);
        properties(&text);
        merged(&Sources { overrides: vec![text], ..Sources::default() });
    }

    #[test]
    fn no_mutilated_file_panics(cut in 0usize..400, junk in prop::collection::vec(any::<u8>(), 0..8)) {
        let whole = "[general]\nbroker_id = 1\n[listener.a]\nmax.connections = 1\n\"a.b\" = [1, \"x\"]\n\
                     [security]\nssl_key_password = { file = \"/x\" }\n[log]\nlog_dirs = '''\n/a'''\n";
        let mut bytes = whole.as_bytes().to_vec();
        let at = cut.min(bytes.len());
        bytes.splice(at..at, junk);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        toml(&text);
        properties(&text);
    }

    #[test]
    fn what_java_escapes_comes_back(value in "[ -~äß€\t\n]{0,40}") {
        let mut escaped = String::new();
        for c in value.chars() {
            match c {
                '\t' => escaped.push_str("\\t"),
                '\n' => escaped.push_str("\\n"),
                ' ' | '=' | ':' | '#' | '!' | '\\' => { escaped.push('\\'); escaped.push(c); }
                c if c.is_ascii() => escaped.push(c),
                c => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            }
        }
        let (settings, _, _) = properties(&format!("broker.rack={escaped}"));
        prop_assert_eq!(settings.set_value("broker.rack"), Some(value.as_str()));
    }
}
