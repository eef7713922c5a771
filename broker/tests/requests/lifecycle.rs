//! What an owner does with states that are old or of another incarnation: V-13, V-61, V-62.

use broker::partition::ask::{Become, BecomeError, PartitionAnswer, PartitionAsk, StopError, StopPartition};
use broker::shard::ShardId;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::sim::Crash;

use crate::harness::*;

fn state(id: u8, (leader_epoch, partition_epoch): (i32, i32), isr: &[BrokerId]) -> Become {
    let topic = topic("t", TopicId::new([id; 16]), (1, 1), &[]);
    Become {
        topic: topic.name,
        topic_id: topic.id,
        partition: 0,
        leader: ME,
        leader_epoch: LeaderEpoch::new(leader_epoch),
        partition_epoch: PartitionEpoch::new(partition_epoch),
        replicas: vec![ME, OTHER],
        isr: isr.to_vec(),
        is_new: false,
        config: topic.config,
    }
}

fn become_(broker: &Broker, state: Become) -> Result<(), BecomeError> {
    match broker.ask(ShardId::CONTROL, PartitionAsk::Become(vec![state])) {
        PartitionAnswer::Became(mut results) => results.remove(0),
        other => panic!("{other:?}"),
    }
}

fn list(client: &Client, version: i16, replica_id: i32, timestamp: i64) -> (i16, i64) {
    let partitions = vec![ListOffsetsPartition { timestamp, ..ListOffsetsPartition::default() }];
    let topics = vec![ListOffsetsTopic { name: "t".into(), partitions }];
    let request = ListOffsetsRequest { replica_id, isolation_level: 0, topics };
    let answer: ListOffsetsResponse<'static> = client.call(version, &request);
    let found = &answer.topics[0].partitions[0];
    (found.error_code, found.offset)
}

#[test]
fn older_states_and_stops_change_nothing() {
    // V-61
    let broker = Broker::new(1);
    assert_eq!(become_(&broker, state(1, (3, 7), &[ME])), Ok(()));
    let stale = BecomeError::StaleEpoch { asked: PartitionEpoch::new(6), current: PartitionEpoch::new(7) };
    assert_eq!(become_(&broker, state(1, (3, 6), &[ME])), Err(stale));
    assert_eq!(become_(&broker, state(1, (3, 7), &[ME])), Ok(()), "the same again is fine");
    broker.publish(topic("t", TopicId::new([1; 16]), (1, 1), &[]));
    let stop = |leader_epoch: Option<i32>| {
        let stop = StopPartition {
            topic: TopicName::new("t"),
            topic_id: TopicId::new([1; 16]),
            partition: 0,
            leader_epoch: leader_epoch.map(LeaderEpoch::new),
            delete: true,
        };
        match broker.ask(ShardId::CONTROL, PartitionAsk::Stop(vec![stop])) {
            PartitionAnswer::Stopped(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    };
    let fenced = StopError::FencedLeaderEpoch { asked: LeaderEpoch::new(2), current: LeaderEpoch::new(3) };
    assert_eq!(stop(Some(2)), Err(fenced));
    assert_eq!(broker.client().produce_one("t", 0, batch(&[b"a"])).error_code, 0);
    assert_eq!(stop(None), Ok(()));
    assert_eq!(stop(None), Ok(()), "what is gone is stopped");
    let refused = broker.client().produce_one("t", 0, batch(&[b"a"]));
    assert_eq!(refused.error_code, ErrorCode::NotLeaderOrFollower.get());
}

#[test]
fn a_log_of_another_incarnation_is_not_opened() {
    // V-62; controller.md 18, 36
    let broker = Broker::new(1);
    broker.create_as("t", TopicId::new([1; 16]), 1, &[]);
    broker.client().produce_one("t", 0, batch(&[b"a"]));
    broker.world().kill();
    let disk = broker.world().disk().crash(Crash::KeepAll);
    let broker = Broker::start(8, 1, Start { disk, ..Start::default() });
    let found = TopicId::new([1; 16]);
    assert_eq!(become_(&broker, state(2, (0, 0), &[ME])), Err(BecomeError::InconsistentTopicId { found }));
}

#[test]
fn a_new_leader_does_not_tell_an_end_that_may_fall() {
    // V-13
    let broker = Broker::new(1);
    become_(&broker, state(1, (0, 0), &[ME, OTHER])).unwrap();
    broker.publish(topic("t", TopicId::new([1; 16]), (1, 1), &[]));
    let client = broker.client();
    client.produce(9, 1, vec![("t", 0, batch_at(5, &[b"a"]))]);
    become_(&broker, state(1, (1, 1), &[ME, OTHER])).unwrap();
    let (unknown, old) = (ErrorCode::OffsetNotAvailable.get(), ErrorCode::LeaderNotAvailable.get());
    assert_eq!(list(&client, 5, -1, -1), (unknown, -1));
    assert_eq!(list(&client, 4, -1, -1), (old, -1));
    assert_eq!(list(&client, 5, -1, 5), (unknown, -1), "nothing is found below the high watermark");
    assert_eq!(list(&client, 5, -1, -2), (0, 0), "the start is known");
    assert_eq!(list(&client, 5, 2, -1), (0, 1), "a replica is told the log end");
    let mut follower = fetch_request(&[("t", 0, 1)]);
    follower.replica_id = 2;
    client.fetch(11, &follower);
    assert_eq!(list(&client, 5, -1, -1), (0, 1), "the follower has caught up");
}

#[test]
fn an_idle_shard_lets_its_newest_batches_go() {
    // what readers at the tail share is memory only while it is new.
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    assert_eq!(client.produce_one("t", 0, batch(&[&[7; 1000]])).error_code, 0);
    assert!(broker.tails[0].used_bytes() > 1000);
    broker.world().advance_ms(60_000);
    assert_eq!(broker.tails[0].used_bytes(), 0);
    assert_eq!(values(&client.fetch_one("t", 0, 0)).len(), 1, "it is read from the file");
}
