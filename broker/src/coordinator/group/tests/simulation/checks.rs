//! What must hold of groups after each step of the simulation, when all clients behave, and when all is over.

use protocol::consumer_offsets::{GroupValue, OffsetValue};

use super::*;
use crate::coordinator::group::Gauges;

impl Sim {
    /// Whoever is not answered waits where the machine knows of it.
    pub(super) fn check_waiting(&self) {
        let mut parked: BTreeSet<Waiter> = BTreeSet::new();
        for group in self.machine.groups.values() {
            for (_, member) in group.members.iter() {
                parked.extend(member.joining());
                parked.extend(member.sync);
            }
        }
        let writes = self.machine.core.writes.iter();
        parked.extend(
            writes.filter_map(|queued| queued.write.refusal(ErrorCode::None)).map(|(waiter, _)| waiter),
        );
        let jobs = self.machine.core.jobs.iter();
        parked.extend(jobs.filter_map(|job| job.refusal(ErrorCode::None)).map(|(waiter, _)| waiter));
        assert_eq!(parked, self.waiting.keys().copied().collect());
        assert_eq!(self.told, self.members());
        let appends: Vec<WriteId> = self.appends.iter().map(|(write, _)| *write).collect();
        let writes: Vec<WriteId> = self.machine.core.writes.iter().map(|queued| queued.id).collect();
        assert_eq!(appends, writes);
    }

    /// Takes what is told to who runs the broker.
    pub(super) fn hear(&mut self, News { group, what }: News) {
        match what {
            What::Joined { member, .. } => {
                assert!(self.told.insert((group, member)), "who joins was not there")
            }
            What::CameBack { member, before, .. } => {
                assert!(self.told.remove(&(group.clone(), before)), "who comes back was there");
                assert!(self.told.insert((group, member)), "under another id");
            }
            What::Gone { member, .. } => assert!(self.told.remove(&(group, member)), "who goes was there"),
            What::NoRoom => *self.reached.entry("no room").or_default() += 1,
            What::Rebalances { .. }
            | What::Began { .. }
            | What::Stable { .. }
            | What::Empty { .. }
            | What::Removed => {}
        }
    }

    /// All members.
    pub(super) fn members(&self) -> BTreeSet<(GroupId, MemberId)> {
        let groups = self.machine.groups.iter();
        groups
            .flat_map(|(id, group)| group.members.ids().into_iter().map(|member| (id.clone(), member)))
            .collect()
    }

    /// What was deleted is not there, but for what was committed since it was asked for.
    pub(super) fn check_deleted(&self, request: &GroupRequest, reply: &GroupReply, before: i64) {
        let deleted: Vec<(Option<&TopicName>, i32)> = match (request, reply) {
            (GroupRequest::OffsetDelete(delete), GroupReply::OffsetDelete(Ok(codes))) => {
                let partitions = delete.partitions.iter().zip(codes);
                let done = partitions.filter(|(_, code)| **code == ErrorCode::None);
                done.map(|((topic, partition), _)| (Some(topic), *partition)).collect()
            }
            (GroupRequest::Delete(_), GroupReply::Done(ErrorCode::None)) => vec![(None, 0)],
            _ => return,
        };
        for ((group, topic, partition), offset) in self.kept() {
            let is_deleted = |(of, at): &(Option<&TopicName>, i32)| {
                of.is_none_or(|of| of.get() == topic && *at == partition)
            };
            if group == **request.group() && deleted.iter().any(is_deleted) {
                assert!(offset > before, "{group} {topic}-{partition}: {offset} was deleted after {before}");
            }
        }
    }

    /// The offsets and generations that the log tells.
    pub(super) fn logged(&self) -> (BTreeMap<Place, i64>, BTreeMap<String, i32>) {
        let (mut offsets, mut generations) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in &self.log {
            match (RecordKey::decode(key).expect("a key"), value) {
                (RecordKey::Offset { group, topic, partition }, Some(value)) => {
                    let value = OffsetValue::decode(value).expect("a value");
                    offsets.insert((group.to_owned(), topic.to_owned(), partition), value.offset);
                }
                (RecordKey::Offset { group, topic, partition }, None) => {
                    offsets.remove(&(group.to_owned(), topic.to_owned(), partition));
                }
                (RecordKey::Group { group }, Some(value)) => {
                    let value = GroupValue::decode(value).expect("a value");
                    generations.insert(group.to_owned(), value.generation);
                }
                (RecordKey::Group { group }, None) => {
                    generations.remove(group);
                }
                (RecordKey::Unknown(version), _) => panic!("{version}"),
            }
        }
        (offsets, generations)
    }

    /// The offsets that the machine keeps; none is told of that is older than the deletion of its topic.
    pub(super) fn kept(&self) -> BTreeMap<Place, i64> {
        let mut kept = BTreeMap::new();
        for (id, group) in &self.machine.groups {
            for (key, committed) in group.offsets.from(None) {
                let topic = self.machine.core.topics.name(key.topic).get().to_owned();
                if !self.machine.core.is_of_gone_topic(key.topic, committed) {
                    let deleted = self.deleted.get(topic.as_str()).copied().unwrap_or(-1);
                    assert!(committed.offset.get() > deleted, "{topic} was deleted after commit {deleted}");
                }
                kept.insert((id.to_string(), topic, key.partition), committed.offset.get());
            }
        }
        kept
    }

    /// A coordinator that has only read the log keeps what it says.
    pub(super) fn compare_with_log(&self) {
        assert_eq!(self.kept(), self.logged().0);
        self.compare();
    }

    /// What was acknowledged is there, or something newer.
    pub(super) fn compare(&self) {
        let kept = self.kept();
        for (place, acknowledged) in &self.acknowledged {
            let found = kept.get(place).copied().unwrap_or(-1);
            assert!(found >= *acknowledged, "{place:?} has {found}, acknowledged is {acknowledged}");
        }
        self.compare_groups_with_log();
    }

    /// A stable group is as its last record says, unless one is being written.
    pub(super) fn compare_groups_with_log(&self) {
        let writes = || self.appends.iter().flat_map(|(_, records)| records);
        let of = |key: &Bytes| match RecordKey::decode(key).expect("a key") {
            RecordKey::Group { group } => Some(group.to_owned()),
            _ => None,
        };
        for (id, group) in &self.machine.groups {
            let id = Some(id.to_string());
            let is_written = !writes().any(|(key, _)| of(key) == id);
            if group.state != GroupState::Stable || !is_written || self.unclean.contains(&*group.id) {
                continue;
            }
            let record = self.log.iter().rev().find(|(key, _)| of(key) == id);
            let value = record.and_then(|(_, value)| value.as_ref()).expect("its record");
            let value = GroupValue::decode(value).expect("a value");
            assert_eq!(value.generation, group.generation);
            let told = value.members.iter().map(|member| (member.member_id, member.assignment));
            let kept = group.members.iter().map(|(id, member)| (&**id, &member.assignment[..]));
            assert_eq!(told.collect::<Vec<_>>(), kept.collect::<Vec<_>>());
        }
    }

    /// In a stable group everybody has its own part of one and the same request of a leader in this generation; who came
    /// back under a new id that of the old one.
    pub(super) fn check_assignments(&self) {
        for (id, group) in &self.machine.groups {
            if group.state != GroupState::Stable {
                continue;
            }
            let mut requests = BTreeSet::new();
            for (member, kept) in group.members.iter() {
                let part = std::str::from_utf8(&kept.assignment).expect("text");
                let words: Vec<&str> = part.split(' ').collect();
                let [generation, request, of] = words[..] else { panic!("{id}: {member} has {part:?}") };
                let name = kept.instance.as_ref().map(|instance| format!("{instance}-"));
                let is_its_own = of == &**member || name.is_some_and(|name| of.starts_with(&name));
                assert!(is_its_own, "{id}: {member} has {part:?}");
                assert_eq!(generation.parse::<i32>(), Ok(group.generation), "{id}: {part}");
                requests.insert(request);
            }
            assert_eq!(requests.len(), 1, "{id}: {requests:?}");
        }
    }

    /// From now on everybody does what it should, for each place in each group one, and the log takes everything: soon all
    /// have what their leader gave them, and nothing is waited for but them.
    pub(super) fn settle(&mut self) {
        const LIVE: std::ops::Range<usize> = 0..9;
        for _ in 0..60 {
            for number in LIVE {
                self.behave(number);
            }
            self.write_all();
            self.pass(2_000);
            self.write_all();
            self.check_assignments();
        }
        for client in &self.clients[LIVE] {
            let group = &self.machine.groups[client.group.as_str()];
            assert_eq!((group.state, group.members.len()), (GroupState::Stable, 3), "{client:?}");
            assert!(!client.must_join && !client.must_sync, "{client:?}");
            let member = group.members.get(&client.member).expect("a member");
            assert_eq!((group.generation, &member.assignment), (client.generation, &client.part));
        }
        assert_eq!(self.machine.core.timers.len(), LIVE.len(), "sessions");
    }

    fn behave(&mut self, number: usize) {
        if self.waiting.values().any(|(of, ..)| *of == number) {
            return;
        }
        let client = self.clients[number].clone();
        let request = match (client.must_join, client.must_sync) {
            (true, _) => self.join(&client),
            (false, true) => self.sync(&client),
            (false, false) => GroupRequest::Heartbeat(Heartbeat { who: client.who() }),
        };
        self.ask(number, request);
    }

    /// Nobody asks any more, all is written, all sessions and offsets end.
    pub(super) fn come_to_rest(&mut self) {
        self.write_all();
        for _ in 0..4 {
            self.pass(RETENTION_MS);
            self.step(Event::Expire);
            self.write_all();
        }
        assert!(self.waiting.is_empty(), "{:?}", self.waiting);
        assert_eq!(self.machine.gauges(), Gauges::default(), "{:#?}", self.machine);
        assert_eq!((self.machine.core.topics.len(), self.machine.core.timers.len()), (0, 0));
        assert!(self.machine.core.jobs.is_empty() && self.machine.next_timer().is_none());
        assert_eq!(self.requests, self.replies);
        // What failed and is in the log all the same may be there again for the next coordinator; the rest is gone.
        assert!(self.acknowledged.is_empty(), "{:?}", self.acknowledged);
    }
}
