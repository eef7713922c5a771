//! DescribeGroups, ListGroups and DeleteGroups (coordinators.md 2.12, 2.13; O-09, O-16).

use bench_harness::client::Client;
use protocol::messages::*;

use super::harness::{
    COMMIT, Described, SUBSCRIPTION, code, commit, connect, describe, fetched, joining, leave, on_each,
    stable, sync,
};

/// READ, DELETE and DESCRIBE.
const OPERATIONS: i32 = 328;

#[test]
fn a_group_is_described_in_each_of_its_states() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let member = joining("g", "").admitted(&mut client);
        for version in 0..=5 {
            let operations = if version >= 3 { OPERATIONS } else { i32::MIN };
            let dead = Described {
                error: 0,
                state: "Dead".to_owned(),
                protocol_type: String::new(),
                protocol: String::new(),
                operations,
                members: Vec::new(),
            };
            assert_eq!(describe(&mut client, version, "unknown"), dead, "version {version}");
            let group = describe(&mut client, version, "g");
            assert_eq!(
                (&*group.state, &*group.protocol_type, &*group.protocol),
                ("CompletingRebalance", "consumer", "")
            );
            let of_client = ["odradek-bench".to_owned(), "/127.0.0.1".to_owned()];
            let nothing = [Vec::new(), Vec::new()];
            assert_eq!(group.members, [(member.member.clone(), None, of_client, nothing)]);
        }
        assert_eq!(sync(&mut client, member.identity("g"), &[(&member.member, b"its")]).0, 0);
        let group = describe(&mut client, 5, "g");
        assert_eq!((&*group.state, &*group.protocol), ("Stable", "range"));
        assert_eq!(group.members[0].3, [SUBSCRIPTION.to_vec(), b"its".to_vec()]);
        leave(&mut client, 3, "g", &[(&member.member, None)]);
        let group = describe(&mut client, 5, "g");
        assert_eq!((&*group.state, &*group.protocol_type, group.members.len()), ("Empty", "consumer", 0));
    });
}

/// Ids, types, states and kinds, sorted.
fn list(client: &mut Client, version: i16, states: &[&str], types: &[&str]) -> Vec<[String; 4]> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned().into()).collect();
    let request = ListGroupsRequest { states_filter: names(states), types_filter: names(types) };
    let reply = client.call(version, &request).expect("list");
    let answer: ListGroupsResponse<'_> = reply.message().expect("answer");
    assert_eq!(answer.error_code, 0);
    let group = |group: &ListedGroup<'_>| {
        [&group.group_id, &group.protocol_type, &group.group_state, &group.group_type]
            .map(|text| text.to_string())
    };
    let mut groups: Vec<_> = answer.groups.elements().iter().map(group).collect();
    groups.sort();
    groups
}

#[test]
fn groups_are_listed_by_state_and_type() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        stable(&mut client, "members");
        assert_eq!(commit(&mut client, COMMIT, "offsets", 0, 1), 0);
        let row =
            |group: &str, kind: &str, state: &str, of: &str| [group, kind, state, of].map(str::to_owned);
        for version in 0..=5 {
            let told = |state: &'static str| if version >= 4 { state } else { "" };
            let of = if version >= 5 { "classic" } else { "" };
            let all = [row("members", "consumer", told("Stable"), of), row("offsets", "", told("Empty"), of)];
            assert_eq!(list(&mut client, version, &[], &[]), all, "version {version}");
        }
        let found = |client: &mut Client, states: &[&str], types: &[&str]| -> Vec<String> {
            let groups = list(client, 5, states, types);
            groups.into_iter().map(|[group, ..]| group).collect()
        };
        for (states, types, groups) in [
            (&["stable"][..], &[][..], &["members"][..]),
            (&["EMPTY", "nonsense"], &[], &["offsets"]),
            (&["nonsense"], &[], &[]),
            (&["Empty", "Stable"], &["Classic"], &["members", "offsets"]),
            (&[], &["consumer"], &[]),
            (&[], &["consumer", "CLASSIC"], &["members", "offsets"]),
            (&["PreparingRebalance"], &["classic"], &[]),
        ] {
            assert_eq!(found(&mut client, states, types), groups, "{states:?} {types:?}");
        }
    });
}

/// Each group once, in order, with its error.
fn delete(client: &mut Client, version: i16, groups: &[&str]) -> Vec<(String, i16)> {
    let names = groups.iter().map(|group| (*group).to_owned().into()).collect();
    let reply = client.call(version, &DeleteGroupsRequest { groups_names: names }).expect("delete");
    let answer: DeleteGroupsResponse<'_> = reply.message().expect("answer");
    answer.results.iter().map(|result| (result.group_id.to_string(), result.error_code)).collect()
}

#[test]
fn empty_groups_are_deleted_with_their_offsets() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        stable(&mut client, "members");
        for version in 0..=2 {
            for group in ["offsets", ""] {
                assert_eq!(commit(&mut client, COMMIT, group, 0, 1), 0);
            }
            let told = delete(&mut client, version, &["unknown", "offsets", "members", "offsets", ""]);
            let wanted = [
                ("unknown", code::GROUP_ID_NOT_FOUND),
                ("offsets", 0),
                ("members", code::NON_EMPTY_GROUP),
                ("", 0),
            ];
            assert_eq!(told, wanted.map(|(group, error)| (group.to_owned(), error)), "version {version}");
            assert_eq!(describe(&mut client, 5, "offsets").state, "Dead");
            assert_eq!(fetched(&mut client, 8, "offsets", None), (0, vec![]));
        }
        let ids: Vec<_> = list(&mut client, 5, &[], &[]).into_iter().map(|[group, ..]| group).collect();
        assert_eq!(ids, ["members"]);
    });
}

#[test]
fn one_group_that_is_named_often_is_asked_once() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let member = joining("g", "").admitted(&mut client);
        let large = vec![7; 100_000];
        assert_eq!(sync(&mut client, member.identity("g"), &[(&member.member, &large)]).0, 0);
        let request =
            DescribeGroupsRequest { groups: vec!["g".into(); 100_000], include_authorized_operations: false };
        let reply = client.call(5, &request).expect("describe");
        let answer: DescribeGroupsResponse<'_> = reply.message().expect("answer");
        assert_eq!(answer.groups.len(), 100_000);
        let told = answer.groups.iter().filter(|group| group.error_code == 0).count();
        // 64 MiB of repetitions, of a hundred kilobytes each.
        assert!((500..700).contains(&told), "{told}");
        assert_eq!(answer.groups[99_999].error_code, 42);
    });
}
