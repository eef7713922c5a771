//! Partitions of a session that have nothing to tell are passed over. The answers are those of a broker that looks at each
//! partition each time: a model of KIP-227 over full fetches says what they must be.

use std::collections::BTreeMap;

use broker::partition::ask::{DeleteRecordsAsk, PartitionAnswer, PartitionAsk, PartitionKey};
use broker::shard::NEVER;
use proptest::collection::vec;
use proptest::strategy::{Just, Strategy};
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::Runtime;

use crate::harness::*;

const PARTITIONS: i32 = 6;

/// What happens between two fetches.
#[derive(Clone, Copy, Debug)]
enum Event {
    Produced {
        partition: i32,
        bytes: usize,
    },
    /// The client wants what comes behind the end, or from the start, the same again, or what does not exist.
    Next(i32),
    First(i32),
    Same(i32),
    Beyond(i32),
    Forgotten(i32),
    RecordsDeleted(i32),
    EpochBegun(i32),
    /// Deleted, and created again under its name.
    Replaced,
}

/// Events, and the fetch after them.
#[derive(Clone, Debug)]
struct Step {
    events: Vec<Event>,
    version: i16,
    isolation_level: i8,
    max_bytes: i32,
}

fn event() -> impl Strategy<Value = Event> {
    let of = |event: fn(i32) -> Event| (0..PARTITIONS).prop_map(event);
    proptest::prop_oneof![
        6 => (0..PARTITIONS, 1usize..300).prop_map(|(partition, bytes)| Event::Produced { partition, bytes }),
        6 => of(Event::Next),
        1 => of(Event::First),
        1 => of(Event::Same),
        1 => of(Event::Beyond),
        1 => of(Event::Forgotten),
        1 => of(Event::RecordsDeleted),
        1 => of(Event::EpochBegun),
        1 => Just(Event::Replaced),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let max_bytes = proptest::prop_oneof![3 => Just(1 << 20), 1 => 0..600i32];
    let isolation = proptest::prop_oneof![4 => Just(0i8), 1 => Just(1i8)];
    let version = proptest::prop_oneof![4 => Just(11i16), 1 => Just(10i16)];
    (vec(event(), 0..4), version, isolation, max_bytes).prop_map(
        |(events, version, isolation_level, max_bytes)| Step { events, version, isolation_level, max_bytes },
    )
}

/// What an answer says of one partition: index, error, high watermark, last stable and log start offset, bytes.
type Said = (i32, i16, i64, i64, i64, usize);

fn said(answer: &FetchResponse<'static>) -> Vec<Said> {
    let parts = answer.responses.iter().flat_map(|topic| &topic.partitions);
    parts
        .map(|data| {
            let PartitionData { partition_index, error_code, high_watermark, last_stable_offset, .. } = *data;
            let bytes = data.records.len();
            (partition_index, error_code, high_watermark, last_stable_offset, data.log_start_offset, bytes)
        })
        .collect()
}

/// A session as Kafka keeps it, and the broker that it is with.
struct Model {
    broker: Broker,
    client: Client,
    /// In the order of service: partition and offset wanted; high watermark and log start offset told.
    order: Vec<(i32, i64)>,
    told: BTreeMap<i32, (i64, i64)>,
    /// Wishes that the next fetch tells, and partitions it forgets.
    wanted: Vec<(i32, i64)>,
    forgotten: Vec<i32>,
    ends: BTreeMap<i32, i64>,
    epochs: BTreeMap<i32, i32>,
    topics: u8,
    session: (i32, i32),
}

impl Model {
    fn new(shards: u16) -> Self {
        let broker = Broker::new(shards);
        broker.create_as("t", TopicId::new([1; 16]), PARTITIONS, &[]);
        let client = broker.client();
        let order: Vec<_> = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
        let parts: Vec<_> = order.iter().map(|(partition, offset)| ("t", *partition, *offset)).collect();
        let opened = client.fetch(11, &FetchRequest { session_epoch: 0, ..fetch_request(&parts) });
        let told = said(&opened).iter().map(|said| (said.0, (said.2, said.4))).collect();
        let session = (opened.session_id, 1);
        let (wanted, forgotten) = (Vec::new(), Vec::new());
        let (ends, epochs) = (BTreeMap::new(), BTreeMap::new());
        Self { broker, client, order, told, wanted, forgotten, ends, epochs, topics: 1, session }
    }

    fn end(&self, partition: i32) -> i64 {
        self.ends.get(&partition).copied().unwrap_or(0)
    }

    fn want(&mut self, partition: i32, offset: i64) {
        self.forgotten.retain(|forgotten| *forgotten != partition);
        self.wanted.retain(|(wanted, _)| *wanted != partition);
        self.wanted.push((partition, offset));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Produced { partition, bytes } => {
                self.client.produce_one("t", partition, batch(&[&vec![7; bytes]]));
                *self.ends.entry(partition).or_default() += 1;
            }
            Event::Next(partition) => self.want(partition, self.end(partition)),
            Event::First(partition) => self.want(partition, 0),
            Event::Same(partition) => {
                let known = self.order.iter().find(|(known, _)| *known == partition).copied();
                self.want(partition, known.map_or(0, |(_, offset)| offset));
            }
            Event::Beyond(partition) => self.want(partition, self.end(partition) + 5),
            Event::Forgotten(partition) => {
                // One stays, so that the session does.
                if partition > 0 {
                    self.wanted.retain(|(wanted, _)| *wanted != partition);
                    self.forgotten.push(partition);
                }
            }
            Event::RecordsDeleted(partition) => {
                let topic = self.broker.topic("t");
                let owner = topic.partitions[usize::try_from(partition).unwrap()].owner.unwrap();
                let key = PartitionKey { topic_id: topic.id, partition };
                let parts = vec![(key, Offset::new(self.end(partition)))];
                let answer = self
                    .broker
                    .ask(owner, PartitionAsk::DeleteRecords(DeleteRecordsAsk { deadline: NEVER, parts }));
                assert!(matches!(answer, PartitionAnswer::RecordsDeleted(deleted) if deleted[0].is_ok()));
            }
            Event::EpochBegun(partition) => {
                let epoch = self.epochs.entry(partition).or_default();
                *epoch += 1;
                self.broker.lead(&self.broker.topic("t"), partition, *epoch);
            }
            Event::Replaced => {
                self.broker.delete("t");
                self.topics += 1;
                self.broker.create_as("t", TopicId::new([self.topics; 16]), PARTITIONS, &[]);
                self.ends.clear();
                self.epochs.clear();
            }
        }
    }

    /// Fetches all in the order of the session, without one: what is there.
    fn all(&self, step: &Step) -> Vec<Said> {
        let parts: Vec<_> = self.order.iter().map(|(partition, offset)| ("t", *partition, *offset)).collect();
        let request = FetchRequest {
            isolation_level: step.isolation_level,
            max_bytes: step.max_bytes,
            ..fetch_request(&parts)
        };
        said(&self.client.fetch(step.version, &request))
    }

    /// What the session's answer must say of what is there.
    fn expected(&mut self, all: Vec<Said>) -> Vec<Said> {
        let mut expected = Vec::new();
        for found in all {
            let (partition, error, high_watermark, _, log_start_offset, bytes) = found;
            let told = self.told.insert(partition, (high_watermark, log_start_offset));
            if error != 0 {
                self.told.insert(partition, (-1, -1));
            }
            if told != Some((high_watermark, log_start_offset)) || error != 0 || bytes > 0 {
                expected.push(found);
            }
            if bytes > 0 {
                let at = self.order.iter().position(|(known, _)| *known == partition).unwrap();
                let served = self.order.remove(at);
                self.order.push(served);
            }
        }
        expected
    }

    fn run(&mut self, step: &Step) {
        for event in &step.events {
            self.happen(*event);
        }
        let (wanted, forgotten) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.forgotten));
        for (partition, offset) in &wanted {
            match self.order.iter_mut().find(|(known, _)| known == partition) {
                Some(known) => known.1 = *offset,
                None => self.order.push((*partition, *offset)),
            }
        }
        for partition in &forgotten {
            self.order.retain(|(known, _)| known != partition);
            self.told.remove(partition);
        }
        let expected = {
            let all = self.all(step);
            self.expected(all)
        };
        let parts: Vec<_> = wanted.iter().map(|(partition, offset)| ("t", *partition, *offset)).collect();
        let forgotten = ForgottenTopic { topic: "t".into(), topic_id: TopicId::ZERO, partitions: forgotten };
        let request = FetchRequest {
            session_id: self.session.0,
            session_epoch: self.session.1,
            isolation_level: step.isolation_level,
            max_bytes: step.max_bytes,
            forgotten_topics_data: vec![forgotten],
            ..fetch_request(&parts)
        };
        let answer = self.client.fetch(step.version, &request);
        assert_eq!((answer.error_code, answer.session_id), (0, self.session.0));
        assert_eq!(said(&answer), expected);
        self.session.1 += 1;
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
    #[test]
    fn a_session_answers_as_if_each_partition_were_looked_at_each_time(
        shards in proptest::sample::select(SHARDS.to_vec()),
        steps in vec(step(), 1..14),
    ) {
        let mut model = Model::new(shards);
        for step in &steps {
            model.run(step);
        }
    }
}

fn session(id: i32, epoch: i32) -> FetchRequest<'static> {
    FetchRequest { session_id: id, session_epoch: epoch, max_wait_ms: 60_000, ..fetch_request(&[]) }
}

/// Opens a session of all partitions that has been told all there is.
fn told_all(broker: &Broker) -> i32 {
    let client = broker.client();
    let all: Vec<_> = (0..PARTITIONS).map(|partition| ("t", partition, 0)).collect();
    let id = client.fetch(11, &FetchRequest { session_epoch: 0, ..fetch_request(&all) }).session_id;
    let nothing = client.fetch(11, &FetchRequest { max_wait_ms: 0, ..session(id, 1) });
    assert_eq!(said(&nothing), vec![]);
    id
}

/// Fetches, and meanwhile does something; the answer.
fn while_waiting(
    broker: &Broker,
    request: &FetchRequest<'_>,
    act: impl FnOnce(&Broker),
) -> FetchResponse<'static> {
    use broker::handlers::RequestHandler;
    let client = broker.client();
    let fetch = client.request(11, request);
    let handlers = broker.handlers[0].clone();
    let slot = std::rc::Rc::new(std::cell::RefCell::new(None));
    let seen = slot.clone();
    let task = broker.shards[0].spawn(storage::io::Queue::Request, async move {
        let outcome = handlers.handle(fetch).await;
        seen.replace(Some(outcome));
    });
    broker.world().advance_ms(100);
    assert!(slot.borrow().is_none(), "there is nothing to tell");
    act(broker);
    broker.world().advance_ms(100);
    let outcome = slot.take().expect("the fetch was answered");
    drop(task);
    read(11, client.finish(outcome))
}

#[test]
fn what_moves_wakes_a_session_that_was_told_all() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", PARTITIONS, &[]);
        let id = told_all(&broker);
        let client = broker.client();
        for (partition, round) in (0..PARTITIONS).zip(0..) {
            let epoch = 2 + 2 * round;
            let answer = while_waiting(&broker, &session(id, epoch), |broker| {
                broker.client().produce_one("t", partition, batch(&[b"new"]));
            });
            let found: Vec<_> = said(&answer).iter().map(|said| (said.0, said.1, said.2)).collect();
            assert_eq!(found, [(partition, 0, 1)]);
            // The client moves behind it, and is told that there is no more.
            let behind = FetchRequest {
                session_id: id,
                session_epoch: epoch + 1,
                ..fetch_request(&[("t", partition, 1)])
            };
            assert_eq!(said(&client.fetch(11, &behind)), vec![]);
        }
    }
}

#[test]
fn a_topic_that_is_deleted_ends_the_wait_of_a_session_that_was_told_all() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", PARTITIONS, &[]);
        let id = told_all(&broker);
        let answer = while_waiting(&broker, &session(id, 2), |broker| broker.delete("t"));
        let said = said(&answer);
        assert!(said.iter().any(|said| said.1 == ErrorCode::NotLeaderOrFollower.get()), "{said:?}");
        let after = broker.client().fetch(11, &FetchRequest { max_wait_ms: 0, ..session(id, 3) });
        let codes: Vec<_> = self::said(&after).iter().map(|said| said.1).collect();
        assert_eq!(codes, vec![ErrorCode::UnknownTopicOrPartition.get(); 6]);
    }
}

#[test]
fn an_epoch_that_begins_fences_a_session_that_was_told_all() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", PARTITIONS, &[]);
        let client = broker.client();
        let mut topics = FetchTopics::default();
        let known = (0..PARTITIONS).map(|index| protocol::messages::fetch::FetchPartition {
            current_leader_epoch: 0,
            ..part(index, 0)
        });
        topics.push("t", TopicId::ZERO, known.collect::<Vec<_>>());
        let opening = FetchRequest { topics, session_epoch: 0, ..fetch_request(&[]) };
        let id = client.fetch(11, &opening).session_id;
        let answer = while_waiting(&broker, &session(id, 1), |broker| broker.lead(&broker.topic("t"), 3, 1));
        let said: Vec<_> = said(&answer).iter().map(|said| (said.0, said.1)).collect();
        assert_eq!(said, [(3, ErrorCode::FencedLeaderEpoch.get())]);
    }
}
