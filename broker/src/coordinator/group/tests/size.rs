//! What the machine costs when there is much of everything.

use super::super::offsets::{Committed, Key};
use super::super::state::Group;
use super::*;

/// 300 MiB is what a coordinator of 100,000 groups and 1,000,000 offsets may take. `broker/tests/scale.rs` measures it;
/// here it is reckoned, with every node of every tree as empty as it may be.
#[test]
fn a_million_offsets_of_a_hundred_thousand_groups_fit_in_300_mebibytes() {
    const ALLOCATION: usize = 16;
    let node = |entry: usize| 11 * entry + 16 + ALLOCATION;
    let (offsets, groups, topics) = (1_000_000, 100_000, 10_000);
    // At least five of eleven places of a node are taken, but for a root: ten offsets are two nodes at worst, and a root.
    let of_offsets = offsets / 5 * node(size_of::<Key>() + size_of::<Committed>()) + groups * 12 * 8;
    let id = 60 + ALLOCATION;
    let of_group = size_of::<Group>() + ALLOCATION + id + node(size_of::<GroupId>() + 8) / 5;
    let of_topic = 60 + ALLOCATION + (node(32) + node(40)) / 5;
    let bytes = of_offsets + groups * of_group + topics * of_topic;
    assert!(bytes < 300 << 20, "{bytes}");
}

/// A frame of a hundred megabytes may bring it.
#[test]
fn what_members_bring_is_not_copied_on_its_way_to_the_leader_and_into_the_record() {
    let mut machine =
        Groups::new(GroupSettings { initial_rebalance_delay_ms: 0, ..GroupSettings::default() });
    let wall = TimestampMs::new(START_MS);
    let now = Now { mono: MonoTime::new(0), wall, random: 1, room: Room::UNBOUNDED };
    let mut out = Vec::new();
    let (metadata, assignment) = (Bytes::from(vec![1; 100_000]), Bytes::from(vec![2; 100_000]));
    let protocols = vec![(Arc::from("range"), metadata.clone())];
    machine.step(now, asked(0, GroupRequest::Join(Join { protocols, ..join("") })), &mut out);
    let Some(Effect::Reply { reply: GroupReply::Join(joined), .. }) = out.pop() else { panic!("{out:?}") };
    assert_eq!(joined.members[0].metadata.as_ptr(), metadata.as_ptr());
    let assignments = vec![(joined.member.clone(), assignment.clone())];
    let sync = Sync { assignments, ..sync(&joined.member, 1, &[]) };
    machine.step(now, asked(1, GroupRequest::Sync(sync)), &mut out);
    let Some(Effect::Append { records, .. }) = out.pop() else { panic!("{out:?}") };
    let value = records[0].1.as_ref().expect("the group");
    let is_brought = |piece: &&Bytes| [&metadata, &assignment].iter().any(|of| of.as_ptr() == piece.as_ptr());
    let (brought, written): (Vec<_>, Vec<_>) = value.pieces().iter().partition(is_brought);
    assert_eq!(brought.len(), 2);
    assert!(written.iter().map(|piece| piece.len()).sum::<usize>() < 1_000);
}

fn asked(waiter: u64, request: GroupRequest) -> Event {
    Event::Request { waiter: Waiter(waiter), request, gone: BTreeSet::new() }
}

/// Each join among a thousand is looked up, not walked over; so is each heartbeat.
#[test]
fn a_thousand_members_join_sync_and_beat() {
    let mut machine = Groups::new(GroupSettings::default());
    let (mut ms, mut waiter, mut out) = (0_i64, 0, Vec::new());
    let mut step = |machine: &mut Groups, ms: i64, event: Event, out: &mut Vec<Effect>| {
        waiter += 1;
        let (mono, wall) = (MonoTime::new(0).plus_ms(ms), TimestampMs::new(START_MS + ms));
        machine.step(Now { mono, wall, random: waiter, room: Room::UNBOUNDED }, event, out);
        out.retain(|effect| !matches!(effect, Effect::Tell(_)));
    };
    let metadata = Bytes::from(vec![0; 1_000]);
    for number in 0..1_000 {
        let protocols = vec![(Arc::from("range"), metadata.clone()), (Arc::from("sticky"), metadata.clone())];
        let request = GroupRequest::Join(Join { protocols, ..join("") });
        step(&mut machine, ms, asked(number, request), &mut out);
    }
    assert!(out.is_empty(), "all wait for the first phase to end");
    while machine.gauges().completing_rebalance == 0 {
        ms += 3_000;
        step(&mut machine, ms, Event::Timer, &mut out);
    }
    let mut ids = Vec::new();
    for effect in out.drain(..) {
        let Effect::Reply { reply: GroupReply::Join(reply), .. } = effect else { panic!("{effect:?}") };
        assert_eq!(reply.members.len(), if reply.member == reply.leader { 1_000 } else { 0 });
        ids.push((reply.member == reply.leader, reply.member));
    }
    ids.sort_by_key(|(leads, _)| *leads);
    let given: Vec<(&MemberId, &str)> = ids.iter().map(|(_, id)| (id, "part")).collect();
    for (number, (leads, id)) in ids.iter().enumerate() {
        let request = GroupRequest::Sync(sync(id, 1, if *leads { &given } else { &[] }));
        step(&mut machine, ms, asked(number as u64, request), &mut out);
    }
    let Some(Effect::Append { write, .. }) = out.pop() else { panic!("the assignment") };
    step(&mut machine, ms, Event::Written { write, outcome: Ok(Offset::ZERO) }, &mut out);
    assert_eq!((out.len(), machine.gauges().stable), (1_000, 1));
    for round in 0..20 {
        out.clear();
        for (_, id) in &ids {
            let request = GroupRequest::Heartbeat(Heartbeat { who: who(id, 1) });
            step(&mut machine, ms, asked(0, request), &mut out);
        }
        assert_eq!(out.len(), 1_000, "round {round}");
        ms += 3_000;
        while machine.next_timer().is_some_and(|at| at <= MonoTime::new(0).plus_ms(ms)) {
            step(&mut machine, ms, Event::Timer, &mut out);
        }
    }
    assert_eq!(machine.gauges().stable, 1);
    assert!(machine.core.timers.len() <= 1_001, "one for each member and one to sync");
}
