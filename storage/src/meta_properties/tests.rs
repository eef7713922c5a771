use proptest::prelude::*;

use super::*;

const CLUSTER: &str = "oB5xmGRYQzWGyBCGHXYPfA";

fn meta(text: &str) -> MetaProperties {
    MetaProperties::parse(text.as_bytes()).unwrap()
}

fn identity(broker_id: i32, cluster_id: &str) -> Identity {
    Identity { broker_id: Some(BrokerId::new(broker_id)), cluster_id: Some(cluster_id.to_owned()) }
}

#[test]
fn a_file_of_a_kafka_in_zookeeper_mode_is_understood() {
    let text = format!("#\n#Sun Nov 29 17:00:00 UTC 2026\nversion=0\nbroker.id=1\ncluster.id={CLUSTER}\n");
    let expected = MetaProperties::new(Some(BrokerId::new(1)), Some(CLUSTER.to_owned()));
    assert_eq!(meta(&text), expected);
    assert_eq!(expected.to_text(), format!("#\nbroker.id=1\ncluster.id={CLUSTER}\nversion=0\n"));
}

#[test]
fn a_file_of_version_0_may_lack_everything() {
    let empty = MetaProperties::new(None, None);
    for text in ["", "version=0", "\n#x\n!y\n"] {
        assert_eq!(meta(text), empty);
        assert_eq!(meta(text).check(&identity(1, CLUSTER)), Ok(()));
    }
    let full = empty.completed(&identity(1, CLUSTER));
    assert_eq!((full.broker_id, full.cluster_id.as_deref()), (Some(BrokerId::new(1)), Some(CLUSTER)));
}

#[test]
fn a_file_of_version_1_is_read_but_not_ours() {
    let text = format!("version=1\nnode.id=3\ncluster.id={CLUSTER}\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEA\n");
    let kraft = meta(&text);
    assert_eq!((kraft.version, kraft.broker_id), (MetaPropertiesVersion::V1, Some(BrokerId::new(3))));
    assert!(kraft.directory_id.is_some());
    assert_eq!(kraft.check(&identity(3, CLUSTER)), Err(IdentityError::KraftDir));
    assert_eq!(meta(&kraft.to_text()), kraft);
}

#[test]
fn s4_unknown_keys_and_the_version_are_kept() {
    let found = meta("a\\ key = a\\tvalue \\u00e9\\ud83d\\ude00\nnode.id: 9\nbroker.id=1\n");
    assert_eq!(found.unknown.get("a key").map(String::as_str), Some("a\tvalue é😀"));
    assert_eq!(found.unknown.get("node.id").map(String::as_str), Some("9"));
    assert_eq!(meta(&found.to_text()), found);
    assert!(found.to_text().contains("a\\ key=a\\tvalue \\u00E9\\uD83D\\uDE00\n"), "{}", found.to_text());
}

#[test]
fn javas_syntax_is_understood() {
    let found = meta("  # not\n! not\nk1 v1\nk2:v2\r\nk3 = v\\\n   3\\\\\rk4\nk\\=5==x\nk6=a \nk7=last\\");
    let pairs: Vec<_> = found.unknown.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let expected =
        [("k1", "v1"), ("k2", "v2"), ("k3", "v3\\"), ("k4", ""), ("k6", "a "), ("k7", "last"), ("k=5", "=x")];
    assert_eq!(pairs, expected);
}

#[test]
fn malformed_files_say_why() {
    use MetaPropertiesError::{BadEscape, BadValue, Missing, TooManyKeys, UnknownVersion};
    let error = |text: &str| MetaProperties::parse(text.as_bytes()).unwrap_err();
    assert_eq!(error("version=2"), UnknownVersion("2".to_owned()));
    assert_eq!(error("broker.id=x"), BadValue { key: "broker.id", value: "x".to_owned() });
    assert_eq!(error("directory.id=x"), BadValue { key: "directory.id", value: "x".to_owned() });
    assert_eq!(error("version=1\ncluster.id=c"), Missing("node.id"));
    assert_eq!(error("version=1\nnode.id=1"), Missing("cluster.id"));
    let many: String = (0..300).map(|number| format!("k{number}=\n")).collect();
    assert_eq!(error(&many), TooManyKeys);
    assert_eq!(error("a=\\u12"), BadEscape);
    assert_eq!(error("a=\\u12x4"), BadEscape);
}

#[test]
fn s3_another_broker_or_cluster_is_told_apart() {
    let found = meta(&format!("broker.id=1\ncluster.id={CLUSTER}"));
    assert_eq!(found.check(&identity(1, CLUSTER)), Ok(()));
    assert_eq!(found.check(&Identity::default()), Ok(()));
    let error = found.check(&identity(2, CLUSTER)).unwrap_err();
    assert_eq!(error.to_string(), "the directory belongs to broker 1, this is broker 2");
    assert!(matches!(found.check(&identity(1, "other")), Err(IdentityError::OtherCluster { .. })));
}

#[test]
fn s3_dirs_of_one_broker_must_agree() {
    let one = meta("broker.id=1\ncluster.id=c\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEA");
    let check = |other: &MetaProperties| {
        let fresh = MetaProperties::new(None, None);
        check_agreement(&[(Path::new("/a"), &one), (Path::new("/f"), &fresh), (Path::new("/b"), other)])
    };
    assert_eq!(check(&meta("broker.id=1\ncluster.id=c\ndirectory.id=AQIDBAUGBwgJCgsMDQ4PEQ")), Ok(()));
    let different = |key| {
        Err(DisagreementError::Different { key, first: PathBuf::from("/a"), second: PathBuf::from("/b") })
    };
    assert_eq!(check(&meta("broker.id=2")), different("broker.id"));
    assert_eq!(check(&meta("cluster.id=d")), different("cluster.id"));
    assert!(matches!(check(&one), Err(DisagreementError::SameDirectoryId { .. })));
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(unknown in prop::collection::btree_map("[^\0]{1,8}", ".{0,12}", 0..5)) {
        let known = [VERSION, BROKER_ID, NODE_ID, CLUSTER_ID, DIRECTORY_ID];
        prop_assume!(unknown.keys().all(|key| !known.contains(&key.as_str())));
        let printed = MetaProperties { unknown, ..MetaProperties::new(Some(BrokerId::new(-1)), Some(" c".to_owned())) };
        prop_assert_eq!(MetaProperties::parse(printed.to_text().as_bytes()), Ok(printed));
    }
}
