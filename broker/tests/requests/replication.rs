//! A leader and its follower as far as one broker shows them: replication.md 15 (V-5, V-31, V-32, V-36, V-37, V-52, V-64,
//! V-73, V-77, V-86), controller.md 18 (21, 35). The follower is a client that fetches as one.

use std::path::Path;

use broker::handlers::RequestHandler;
use broker::partition::ask::{Become, BecomeError, PartitionAnswer, PartitionAsk, StopError, StopPartition};
use broker::shard::ShardId;
use bytes::BytesMut;
use protocol::error::ErrorCode;
use protocol::messages::fetch::FetchPartition;
use protocol::messages::*;
use protocol::records::batch::BatchView;
use protocol::records::builder::BatchBuilder;
use protocol::types::*;
use storage::config::LogConfig;
use storage::io::sim::Crash;
use storage::io::{DirOp, Queue, Runtime};
use storage::log::{Log, OpenOptions, TailBudget};
use storage::producer_state::{AppendOrigin, Verification};

use crate::harness::*;

const ID: TopicId = TopicId::new([1; 16]);

/// The state of `t-0` with two replicas.
fn state(leader: BrokerId, (leader_epoch, partition_epoch): (i32, i32), isr: &[BrokerId]) -> Become {
    let topic = replicated(&[]);
    Become {
        topic: topic.name,
        topic_id: topic.id,
        partition: 0,
        leader,
        leader_epoch: LeaderEpoch::new(leader_epoch),
        partition_epoch: PartitionEpoch::new(partition_epoch),
        replicas: vec![ME, OTHER],
        isr: isr.to_vec(),
        is_new: false,
        config: topic.config,
    }
}

fn replicated(overrides: &[(&str, &str)]) -> broker::metadata::image::TopicImage {
    topic("t", ID, (1, 1), overrides)
}

fn become_(broker: &Broker, state: Become) -> Result<(), BecomeError> {
    match broker.ask(ShardId::CONTROL, PartitionAsk::Become(vec![state])) {
        PartitionAnswer::Became(mut results) => results.remove(0),
        other => panic!("{other:?}"),
    }
}

/// A broker that leads `t-0` in epoch 0, in sync with its follower.
fn leading() -> Broker {
    let broker = Broker::new(1);
    become_(&broker, state(ME, (0, 0), &[ME, OTHER])).unwrap();
    broker.publish(replicated(&[]));
    broker
}

/// How somebody fetches `t-0`.
#[derive(Clone, Copy)]
struct Ask {
    offset: i64,
    /// -1 is a consumer.
    replica: i32,
    /// -1 says nothing.
    last_fetched_epoch: i32,
    current_leader_epoch: i32,
    max_wait_ms: i32,
}

const CONSUMER: Ask =
    Ask { offset: 0, replica: -1, last_fetched_epoch: -1, current_leader_epoch: -1, max_wait_ms: 0 };
const FOLLOWER: Ask = Ask { replica: 2, ..CONSUMER };

fn request_of(ask: Ask) -> FetchRequest<'static> {
    let mut topics = FetchTopics::default();
    let wanted = FetchPartition {
        last_fetched_epoch: ask.last_fetched_epoch,
        current_leader_epoch: ask.current_leader_epoch,
        ..part(0, ask.offset)
    };
    topics.push("t", TopicId::ZERO, [wanted]);
    let mut request = FetchRequest { topics, max_wait_ms: ask.max_wait_ms, ..fetch_request(&[]) };
    request.replica_id = ask.replica;
    request
}

fn fetch(client: &Client, ask: Ask) -> PartitionData<'static> {
    let mut answer = client.fetch(12, &request_of(ask));
    answer.responses.remove(0).partitions.remove(0)
}

fn produce(client: &Client, count: u8) {
    for value in 0..count {
        assert_eq!(client.produce(9, 1, vec![("t", 0, batch(&[&[value]]))])[0].error_code, 0);
    }
}

fn content(broker: &Broker, name: &str) -> Option<String> {
    let bytes = broker.world().disk().content(Path::new("/data").join(name));
    bytes.map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn v5_an_isr_that_falls_below_the_minimum_after_the_append_does_not_acknowledge_it() {
    let broker = Broker::new(1);
    let needs_two = replicated(&[("min.insync.replicas", "2")]);
    let in_state = |partition_epoch, isr: &[BrokerId]| {
        let config = needs_two.config.clone();
        become_(&broker, Become { config, ..state(ME, (0, partition_epoch), isr) }).unwrap();
    };
    in_state(0, &[ME, OTHER]);
    broker.publish(needs_two.clone());
    let client = broker.client();
    let request = ProduceRequest { timeout_ms: 500, ..produce_request(-1, &[("t", 0, batch(&[b"a"]))]) };
    let outcome = client.accept(client.request(9, &request));
    broker.world().run_until_idle();
    in_state(1, &[ME]);
    let answer: ProduceResponse<'static> = read(9, client.finish(outcome));
    let code = answer.responses[0].partition_responses[0].error_code;
    let expected = [ErrorCode::NotEnoughReplicasAfterAppend.get(), ErrorCode::RequestTimedOut.get()];
    assert!(expected.contains(&code), "{code}");
    assert_eq!(values(&fetch(&client, FOLLOWER)), [b"a"], "the record is in the log");
    let refused = client.produce_one("t", 0, batch(&[b"b"]));
    assert_eq!(refused.error_code, ErrorCode::NotEnoughReplicas.get());
}

#[test]
fn v31_the_epoch_of_a_leader_that_wrote_nothing_survives_a_power_cut() {
    let broker = Broker::new(1);
    let shard = broker.shards[0].clone();
    broker.run(async move {
        shard.dir(DirOp::CreateAll("/data".into())).await.unwrap();
        shard.dir(DirOp::Sync("/".into())).await.unwrap();
    });
    become_(&broker, state(ME, (0, 0), &[ME, OTHER])).unwrap();
    broker.publish(replicated(&[]));
    produce(&broker.client(), 3);
    become_(&broker, state(ME, (4, 4), &[ME, OTHER])).unwrap();
    become_(&broker, state(OTHER, (5, 5), &[ME, OTHER])).unwrap();
    assert_eq!(content(&broker, "t-0/leader-epoch-checkpoint").as_deref(), Some("0\n2\n0 0\n4 3\n"));
    broker.world().kill();
    let disk = broker.world().disk().crash(Crash::DropUnsynced);
    let after = Broker::start(8, 1, Start { disk, ..Start::default() });
    assert_eq!(content(&after, "t-0/leader-epoch-checkpoint").as_deref(), Some("0\n2\n0 0\n4 3\n"));
}

#[test]
fn v32_a_diverging_fetch_moves_neither_the_follower_nor_the_high_watermark() {
    let broker = leading();
    let client = broker.client();
    produce(&client, 10);
    fetch(&client, Ask { offset: 4, last_fetched_epoch: 0, ..FOLLOWER });
    assert_eq!(fetch(&client, CONSUMER).high_watermark, 4);
    become_(&broker, state(ME, (2, 2), &[ME, OTHER])).unwrap();
    produce(&client, 5);
    let data = fetch(&client, Ask { offset: 12, last_fetched_epoch: 0, ..FOLLOWER });
    assert_eq!((data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset), (0, 0, 10));
    assert!(values(&data).is_empty());
    assert_eq!(data.high_watermark, 4);
    assert_eq!(fetch(&client, CONSUMER).high_watermark, 4, "offset 12 of another history says nothing");
    let data = fetch(&client, Ask { offset: 10, last_fetched_epoch: 0, ..FOLLOWER });
    assert_eq!((data.diverging_epoch.epoch, values(&data).len()), (-1, 5));
    assert_eq!(fetch(&client, CONSUMER).high_watermark, 10, "what it has in common with us counts");
}

/// A fetch that waits, and what is done meanwhile; its answer, and for how long it waited.
fn fetch_while(broker: &Broker, ask: Ask, meanwhile: impl FnOnce()) -> (PartitionData<'static>, i64) {
    let client = broker.client();
    let (request, handlers) = (client.request(12, &request_of(ask)), broker.handlers[0].clone());
    let answered = std::rc::Rc::new(std::cell::RefCell::new(None));
    let slot = answered.clone();
    let task = broker.shards[0].spawn(Queue::Request, async move {
        let outcome = handlers.handle(request).await;
        slot.replace(Some(outcome));
    });
    broker.world().advance_ms(100);
    assert!(answered.borrow().is_none(), "the fetch waits");
    let before = broker.now_ms();
    meanwhile();
    while answered.borrow().is_none() {
        broker.world().advance_ms(1);
    }
    let waited = broker.now_ms() - before;
    drop(task);
    let mut answer: FetchResponse<'static> = read(12, client.finish(answered.take().unwrap()));
    (answer.responses.remove(0).partitions.remove(0), waited)
}

#[test]
fn v36_a_fetch_that_waits_in_an_epoch_ends_with_the_epoch() {
    for ask in [CONSUMER, FOLLOWER] {
        let broker = leading();
        produce(&broker.client(), 3);
        fetch(&broker.client(), Ask { offset: 3, ..FOLLOWER });
        let ask = Ask { offset: 3, current_leader_epoch: 0, max_wait_ms: 60_000, ..ask };
        let (data, waited) =
            fetch_while(&broker, ask, || become_(&broker, state(ME, (1, 1), &[ME, OTHER])).unwrap());
        assert_eq!(data.error_code, ErrorCode::FencedLeaderEpoch.get());
        assert!(waited < 50, "{waited}");
        let broker = leading();
        produce(&broker.client(), 3);
        fetch(&broker.client(), Ask { offset: 3, ..FOLLOWER });
        let (data, waited) =
            fetch_while(&broker, ask, || become_(&broker, state(OTHER, (1, 1), &[ME, OTHER])).unwrap());
        assert!([6, 74].contains(&data.error_code), "{}", data.error_code);
        assert!(waited < 50, "{waited}");
    }
}

#[test]
fn v37_below_the_log_start_it_is_out_of_range_and_not_a_divergence() {
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let (topic, client) = (broker.topic("t"), broker.client());
    broker.lead(&topic, 0, 3);
    produce(&client, 10);
    broker.lead(&topic, 0, 5);
    produce(&client, 5);
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 8 }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let _: DeleteRecordsResponse<'static> =
        client.call(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
    for (last_fetched_epoch, offset) in [(4, 7), (3, 7), (4, 0), (3, 0)] {
        let data = fetch(&client, Ask { offset, last_fetched_epoch, ..CONSUMER });
        assert_eq!(data.error_code, ErrorCode::OffsetOutOfRange.get(), "{last_fetched_epoch} {offset}");
        assert_eq!(data.diverging_epoch.epoch, -1);
    }
    let data = fetch(&client, Ask { offset: 9, last_fetched_epoch: 4, ..CONSUMER });
    assert_eq!((data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset), (0, 3, 10));
}

#[test]
fn v52_offsets_of_an_answer_are_not_later_than_its_records() {
    // KAFKA-7104: a log start beyond the offset that was asked for kills the follower that gets it.
    let mut moved = 0;
    for seed in 0..30 {
        let broker = Broker::start(seed, 2, Start::default());
        broker.create("t", 2, &[("segment.bytes", "400")]);
        let client = broker.client();
        for value in 0..30u8 {
            client.produce_one("t", 1, batch(&[&[value; 100]]));
        }
        // Old segments are read from the disk, which takes time in which the log goes on.
        broker.world().advance_ms(60_000);
        let partitions = vec![DeleteRecordsPartition { partition_index: 1, offset: 20 }];
        let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
        let delete = client.request(2, &DeleteRecordsRequest { topics, timeout_ms: 1000 });
        let append = client.request(9, &produce_request(-1, &[("t", 1, batch(&[b"later"]))]));
        let request = client.request(12, &fetch_request(&[("t", 1, 3)]));
        let handlers = broker.handlers[0].clone();
        let answer = broker.run(async move {
            let (fetched, _, appended) = futures_util::join!(
                handlers.handle(request),
                handlers.handle(delete),
                handlers.handle(append)
            );
            if let broker::handlers::Outcome::Accepted(accepted) = appended {
                accepted.await;
            }
            fetched
        });
        let mut answer: FetchResponse<'static> = read(12, client.finish(answer));
        let data = answer.responses.remove(0).partitions.remove(0);
        if data.error_code == ErrorCode::OffsetOutOfRange.get() {
            moved += 1;
            continue;
        }
        assert_eq!(data.error_code, 0);
        let first = batches(&data)[0].base_offset().get();
        let end = batches(&data).last().unwrap().last_offset().get() + 1;
        assert!(data.log_start_offset <= first, "seed {seed}: {} {first}", data.log_start_offset);
        assert!(data.high_watermark >= end, "seed {seed}: {} {end}", data.high_watermark);
    }
    assert!(moved < 30, "the fetch came first at least once");
}

#[test]
fn v64_the_high_watermarks_of_the_last_life_stay_on_disk_until_roles_are_taken() {
    let broker = Broker::start(3, 2, Start::default());
    let opened = crate::restart::open_dir(&broker);
    broker.create("t", 3, &[]);
    for _ in 0..4 {
        broker.client().produce_one("t", 1, batch(&[b"x"]));
    }
    assert!(broker.run(crate::restart::checkpoint_task(&broker, &opened).stop()).are_marked());
    let written = content(&broker, "replication-offset-checkpoint");
    assert_eq!(written.as_deref(), Some("0\n3\nt 0 0\nt 1 4\nt 2 0\n"));
    let disk = broker.world().disk().clone();
    drop((broker, opened));
    let again = Broker::start(4, 2, Start { disk, ..Start::default() });
    let opened = crate::restart::open_dir(&again);
    let task = crate::restart::checkpoint_task(&again, &opened);
    // The broker starts this task when its roles are taken. Were it earlier, nothing would be lost either.
    for _ in 0..40 {
        again.world().advance_ms(5_000);
        assert_eq!(content(&again, "replication-offset-checkpoint"), written, "nobody has a role yet");
    }
    assert!(again.run(task.stop()).are_marked());
    assert_eq!(content(&again, "replication-offset-checkpoint"), written);
}

#[test]
fn v73_a_follower_gives_consumers_nothing_above_the_high_watermark_and_sends_them_nowhere() {
    let broker = leading();
    let client = broker.client();
    produce(&client, 5);
    fetch(&client, Ask { offset: 2, ..FOLLOWER });
    assert_eq!(fetch(&client, CONSUMER).high_watermark, 2);
    become_(&broker, state(OTHER, (1, 1), &[ME, OTHER])).unwrap();
    let at = |offset| fetch(&client, Ask { offset, ..CONSUMER });
    assert_eq!(values(&at(0)).len(), 2);
    for offset in 2..=5 {
        let data = at(offset);
        assert_eq!((data.error_code, values(&data).len(), data.high_watermark), (0, 0, 2), "{offset}");
        assert_eq!(data.preferred_read_replica, -1);
    }
    assert_eq!(at(6).error_code, ErrorCode::OffsetOutOfRange.get());
}

const COORDINATOR: AppendOrigin = AppendOrigin::Coordinator(Verification::NotRequired);

fn transactional(id: i64) -> BytesMut {
    let mut builder = BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), 0);
    builder = builder.transactional();
    builder.push(TimestampMs::new(1_700_000_000_000), None, Some(&[u8::try_from(id).unwrap()]), &[]);
    builder.build().unwrap()
}

fn marker(id: i64, is_commit: bool) -> BytesMut {
    let mut builder = BatchBuilder::new().producer(ProducerId::new(id), ProducerEpoch::new(0), -1);
    builder = builder.transactional().control();
    let key = [0, 0, 0, u8::from(is_commit)];
    builder.push(TimestampMs::new(1_700_000_000_000), Some(&key), Some(&[0, 0, 0, 0, 0, 1]), &[]);
    builder.build().unwrap()
}

/// Writes the log of `t-0` as another broker would have done.
fn write_log(broker: &Broker, id: Option<TopicId>, batches: Vec<(BytesMut, AppendOrigin)>) {
    let shard = broker.shards[0].clone();
    broker.run(async move {
        let partition = TopicPartition::new(TopicName::new("t"), 0);
        let options =
            OpenOptions { topic_id: id, ..OpenOptions::new(LogConfig::default(), TailBudget::new(1 << 20)) };
        let log = Log::open(shard, Path::new("/data/t-0"), partition, options).await.unwrap();
        let (epoch, now) = (LeaderEpoch::new(0), TimestampMs::new(1));
        for (batch, origin) in batches {
            let info = BatchView::parse(&batch).unwrap().info();
            if log.must_prepare(&info, epoch, now) {
                log.prepare(&info, origin, epoch, now).await.unwrap();
            }
            log.append(batch, &info, origin, epoch, now).unwrap();
        }
        log.until_written(log.log_end_offset()).await.unwrap();
        log.close().await.unwrap();
    });
}

#[test]
fn v77_read_committed_ends_before_open_data_and_names_the_aborted_of_its_range_only() {
    let broker = Broker::new(1);
    let client_of = AppendOrigin::Client(Verification::NotRequired);
    // 1: offset 0, aborted at 3. 2: offset 1, committed at 4. 3: offset 2, aborted at 6. 5: plain. 4: open from 7.
    write_log(
        &broker,
        Some(ID),
        vec![
            (transactional(1), client_of),
            (transactional(2), client_of),
            (transactional(3), client_of),
            (marker(1, false), COORDINATOR),
            (marker(2, true), COORDINATOR),
            (batch(&[b"plain"]), client_of),
            (marker(3, false), COORDINATOR),
            (transactional(4), client_of),
            (batch(&[b"after"]), client_of),
        ],
    );
    // Where a range ends is looked up in the index, as Kafka does it: with every batch in it, it ends at a batch.
    let fine = replicated(&[("index.interval.bytes", "1")]);
    become_(&broker, Become { config: fine.config.clone(), ..state(ME, (0, 0), &[ME, OTHER]) }).unwrap();
    broker.publish(fine);
    let client = broker.client();
    let committed = |offset: i64, max_bytes: i32| {
        let mut request = request_of(Ask { offset, ..CONSUMER });
        (request.isolation_level, request.max_bytes) = (1, max_bytes);
        let data = client.fetch(12, &request).responses.remove(0).partitions.remove(0);
        let aborted = data.aborted_transactions.clone().unwrap();
        let aborted: Vec<_> = aborted.iter().map(|txn| (txn.producer_id, txn.first_offset)).collect();
        let end = batches(&data).last().map_or(offset, |last| last.last_offset().get() + 1);
        assert!(data.last_stable_offset <= data.high_watermark);
        (data.high_watermark, data.last_stable_offset, end, aborted)
    };
    // As the follower fetches, the high watermark moves through every state of the history.
    for (high_watermark, last_stable, names) in [
        (0, 0, vec![]),
        (2, 0, vec![]),
        (4, 1, vec![(1, 0)]),
        (5, 2, vec![(1, 0)]),
        (6, 2, vec![(1, 0)]),
        (7, 7, vec![(1, 0), (3, 2)]),
        (9, 7, vec![(1, 0), (3, 2)]),
    ] {
        fetch(&client, Ask { offset: high_watermark, ..FOLLOWER });
        assert_eq!(
            committed(0, 1 << 20),
            (high_watermark, last_stable, last_stable, names),
            "at high watermark {high_watermark}"
        );
        let everything = fetch(&client, CONSUMER);
        assert_eq!(batches(&everything).len(), usize::try_from(high_watermark).unwrap());
        assert!(everything.aborted_transactions.is_none());
    }
    assert_eq!(committed(4, 1 << 20).3, [(3, 2)], "the other one ended before offset 4");
    assert_eq!(committed(7, 1 << 20).3, []);
    assert_eq!(committed(0, 1).2, 1, "one batch");
    assert_eq!(committed(0, 1).3, [(1, 0)], "of the range that is returned");
    assert_eq!(committed(5, 1).3, [(3, 2)]);
}

#[test]
fn v86_a_client_that_goes_is_forgotten_by_all_owners_with_the_next_fetch() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 4, &[]);
        let client = broker.client();
        let parts: Vec<_> = (0..4).map(|partition| ("t", partition, 0)).collect();
        let waiting = || broker.services.iter().map(|service| service.waiting_fetches()).sum::<usize>();
        let mut request = fetch_request(&parts);
        request.max_wait_ms = 60_000;
        for _ in 0..50 {
            let (fetch, handlers) = (client.request(11, &request), broker.handlers[0].clone());
            let task = broker.shards[0].spawn(Queue::Request, async move {
                handlers.handle(fetch).await;
            });
            broker.world().advance_ms(10);
            assert!(waiting() >= 1);
            drop(task);
        }
        let owners = usize::from(shards.min(4));
        assert!(waiting() <= owners, "each fetch ends what the one before it left: {}", waiting());
        for partition in 0..4 {
            assert_eq!(client.produce_one("t", partition, batch(&[b"a"])).error_code, 0);
        }
        assert_eq!(client.fetch(11, &fetch_request(&parts)).responses.len(), 1);
        assert_eq!(waiting(), 0, "on {shards} shards");
    }
}

fn stop(broker: &Broker, topic_id: TopicId, leader_epoch: Option<i32>) -> Result<(), StopError> {
    let stop = StopPartition {
        topic: TopicName::new("t"),
        topic_id,
        partition: 0,
        leader_epoch: leader_epoch.map(LeaderEpoch::new),
        delete: true,
    };
    match broker.ask(ShardId::CONTROL, PartitionAsk::Stop(vec![stop])) {
        PartitionAnswer::Stopped(mut results) => results.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn statement_21_a_late_stop_with_deletion_deletes_nothing_of_a_newer_epoch() {
    let broker = leading();
    become_(&broker, state(ME, (5, 5), &[ME])).unwrap();
    let client = broker.client();
    produce(&client, 3);
    for late in [0, 4] {
        assert!(matches!(stop(&broker, ID, Some(late)), Err(StopError::FencedLeaderEpoch { .. })));
    }
    broker.world().advance_ms(120_000);
    assert_eq!(values(&client.fetch_one("t", 0, 0)).len(), 3);
    assert_eq!(client.produce_one("t", 0, batch(&[b"on"])).base_offset, 3);
    assert!(content(&broker, "t-0/partition.metadata").is_some());
    // Also when it is meant for a topic of that name that is gone: the name has a log of another incarnation now.
    assert_eq!(stop(&broker, TopicId::new([7; 16]), None), Ok(()));
    broker.world().advance_ms(120_000);
    assert_eq!(values(&client.fetch_one("t", 0, 0)).len(), 4);
}

#[test]
fn statement_35_a_log_without_a_topic_id_takes_the_one_it_is_given() {
    let broker = Broker::new(1);
    write_log(&broker, None, vec![(batch(&[b"old"]), AppendOrigin::Client(Verification::NotRequired))]);
    assert_eq!(content(&broker, "t-0/partition.metadata"), None);
    // The leader epoch that it had before the upgrade.
    become_(&broker, state(ME, (0, 0), &[ME])).unwrap();
    broker.publish(replicated(&[]));
    let expected = format!("version: 0\ntopic_id: {ID}");
    assert_eq!(content(&broker, "t-0/partition.metadata").as_deref(), Some(expected.as_str()));
    let client = broker.client();
    let mut topics = FetchTopics::default();
    topics.push("", ID, [part(0, 0)]);
    let answer = client.fetch(13, &FetchRequest { topics, ..fetch_request(&[]) });
    assert_eq!(values(&answer.responses[0].partitions[0]), [b"old"]);
    assert_eq!(client.produce_one("t", 0, batch(&[b"new"])).base_offset, 1);
    broker.world().kill();
    let disk = broker.world().disk().crash(Crash::KeepAll);
    let broker = Broker::start(8, 1, Start { disk, ..Start::default() });
    let other = Become { topic_id: TopicId::new([2; 16]), ..state(ME, (0, 0), &[ME]) };
    assert_eq!(become_(&broker, other), Err(BecomeError::InconsistentTopicId { found: ID }));
}
