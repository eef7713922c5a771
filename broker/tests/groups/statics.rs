//! Static members (KIP-345; coordinators.md 2.5, 2.8; G-04 to G-09, G-19).

use super::harness::{
    HEARTBEAT, Identity, JOIN, Join, LEAVE, code, connect, describe, heartbeat, joining, leave, on_each, sync,
};

fn named<'a>(group: &'a str, member: &'a str, instance: &'a str) -> Join<'a> {
    Join { instance: Some(instance), ..joining(group, member) }
}

/// A static member that starts anew in a stable group: nobody is disturbed, and who it was before is fenced.
#[test]
fn a_static_member_returns_to_its_assignment() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        for version in [5, 8, JOIN] {
            let group = format!("static-{version}");
            let join = Join { version, ..named(&group, "", "mine") };
            let first = join.call(&mut client);
            assert_eq!((first.error, first.generation), (0, 1), "without a second trip: {first:?}");
            assert!(first.member.starts_with("mine-"), "{first:?}");
            let who = Identity { instance: Some("mine"), ..first.identity(&group) };
            assert_eq!(sync(&mut client, who, &[(&first.member, b"its")]), (0, b"its".to_vec()));
            let again = join.call(&mut client);
            assert_eq!((again.error, again.generation), (0, 1), "{again:?}");
            assert_ne!(again.member, first.member);
            if version >= 9 {
                assert!(again.is_leader() && again.skip_assignment, "{again:?}");
                let members: Vec<_> =
                    again.members.iter().map(|(id, name, _)| (&**id, name.as_deref())).collect();
                assert_eq!(members, [(&*again.member, Some("mine"))]);
            } else {
                assert_eq!((&again.leader, again.members.len()), (&first.member, 0));
            }
            let returned = Identity { instance: Some("mine"), ..again.identity(&group) };
            assert_eq!(sync(&mut client, returned, &[]), (0, b"its".to_vec()));
            assert_eq!(heartbeat(&mut client, HEARTBEAT, returned), 0);
            assert_eq!(heartbeat(&mut client, HEARTBEAT, who), code::FENCED_INSTANCE_ID);
            let nameless = Identity { instance: None, ..who };
            assert_eq!(heartbeat(&mut client, HEARTBEAT, nameless), code::UNKNOWN_MEMBER_ID);
            let fenced = Join { version, ..named(&group, &first.member, "mine") }.call(&mut client);
            assert_eq!(fenced.error, code::FENCED_INSTANCE_ID);
            let stranger = Join { version, ..named(&group, &again.member, "other") }.call(&mut client);
            assert_eq!(stranger.error, code::UNKNOWN_MEMBER_ID);
        }
    });
}

#[test]
fn a_static_member_is_removed_by_its_name() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let first = named("g", "", "mine").call(&mut client);
        let who = Identity { instance: Some("mine"), ..first.identity("g") };
        assert_eq!(sync(&mut client, who, &[]).0, 0);
        let described = describe(&mut client, 5, "g");
        assert_eq!(described.members[0].1.as_deref(), Some("mine"));
        assert_eq!(describe(&mut client, 3, "g").members[0].1, None, "version 3 has no place for the name");
        let wrong = leave(&mut client, LEAVE, "g", &[("somebody", Some("mine")), ("", Some("nobody"))]);
        assert_eq!(wrong, (0, vec![code::FENCED_INSTANCE_ID, code::UNKNOWN_MEMBER_ID]));
        for version in 3..=LEAVE {
            let gone = leave(&mut client, version, "g", &[("", Some("mine"))]);
            assert_eq!(gone, (0, vec![0]), "version {version}");
            let back = named("g", "", "mine").call(&mut client);
            assert_eq!(back.error, 0);
        }
    });
}

/// The id of a returned static member is written before it is told: it is known after `kill -9`.
#[test]
fn the_new_id_of_a_static_member_outlives_the_process() {
    on_each(&[], |broker| {
        let mut client = connect(broker);
        let first = named("g", "", "mine").call(&mut client);
        let who = Identity { instance: Some("mine"), ..first.identity("g") };
        assert_eq!(sync(&mut client, who, &[(&first.member, b"its")]).0, 0);
        let again = named("g", "", "mine").call(&mut client);
        broker.kill();
        broker.launch();
        super::harness::await_coordinators(broker);
        let mut client = connect(broker);
        let returned = Identity { instance: Some("mine"), ..again.identity("g") };
        assert_eq!(heartbeat(&mut client, HEARTBEAT, returned), 0);
        assert_eq!(heartbeat(&mut client, HEARTBEAT, who), code::FENCED_INSTANCE_ID);
        assert_eq!(sync(&mut client, returned, &[]), (0, b"its".to_vec()));
    });
}
