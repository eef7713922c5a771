//! Fetch: protocol.md 5, statements 50 to 57, 65, 66, 68; F09, F33, F35; V-36, V-38, V-73 to V-78, V-86.

use broker::metadata::image::PartitionImage;
use broker::metrics::names::Family;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::*;
use storage::io::Runtime;

use crate::harness::*;

fn records_len(data: &PartitionData<'static>) -> usize {
    data.records.len()
}

fn parts(answer: FetchResponse<'static>) -> Vec<PartitionData<'static>> {
    answer.responses.into_iter().flat_map(|topic| topic.partitions).collect()
}

/// Fetches, and says how many milliseconds of virtual time it took.
fn timed(broker: &Broker, client: &Client, request: &FetchRequest<'_>) -> (FetchResponse<'static>, i64) {
    let before = broker.now_ms();
    let answer = client.fetch(11, request);
    (answer, broker.now_ms() - before)
}

#[test]
fn every_version_answers_also_by_topic_id() {
    // F09
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    client.produce_one("t", 1, batch(&[b"a"]));
    for version in 4..=17 {
        let mut topics = FetchTopics::default();
        topics.push("t", broker.topic("t").id, [part(1, 0), part(0, 0)]);
        let request = FetchRequest { topics, ..fetch_request(&[]) };
        let answer = client.fetch(version, &request);
        assert_eq!(answer.error_code, 0);
        let data = parts(answer);
        assert_eq!(values(&data[0]), [b"a"], "version {version}");
        assert_eq!(records_len(&data[1]), 0);
    }
}

#[test]
fn a_fetch_inside_a_batch_gets_the_whole_batch() {
    // 50
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    client.produce_one("t", 0, batch(&[b"a", b"b", b"c"]));
    let data = client.fetch_one("t", 0, 1);
    assert_eq!(batches(&data)[0].base_offset(), Offset::ZERO);
    assert_eq!(values(&data).len(), 3);
}

#[test]
fn the_first_batch_comes_whole_whatever_the_limits() {
    // 51, 52, 53, F33, V-76, V-78
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 3, &[]);
        let client = broker.client();
        for partition in 1..3 {
            client.produce_one("t", partition, batch(&[&[1; 300]]));
            client.produce_one("t", partition, batch(&[&[2; 300]]));
        }
        let size = batch(&[&[1; 300]]).len();
        let limited = |partition_max: i32, max_bytes: i32| {
            let mut topics = FetchTopics::default();
            let limit = |partition| protocol::messages::fetch::FetchPartition {
                partition_max_bytes: partition_max,
                ..part(partition, 0)
            };
            topics.push("t", TopicId::ZERO, [limit(0), limit(1), limit(2)]);
            let request = FetchRequest { topics, max_bytes, ..fetch_request(&[]) };
            parts(client.fetch(11, &request)).iter().map(records_len).collect::<Vec<_>>()
        };
        let i = |bytes: usize| i32::try_from(bytes).unwrap();
        assert_eq!(limited(1, 1), [0, size, 0]);
        assert_eq!(limited(i(size), i(size) - 1), [0, size, 0]);
        assert_eq!(limited(1 << 20, i(size) + 10), [0, size + 10, 0], "cut at the limit, not at a batch");
        assert_eq!(limited(i(size), 1 << 20), [0, size, size]);
        assert_eq!(limited(i(size) - 1, 1 << 20), [0, size, 0], "later partitions respect their limit");
        assert_eq!(limited(1 << 20, i(size) * 3), [0, size * 2, size]);
        assert_eq!(limited(1 << 20, 1 << 20), [0, size * 2, size * 2]);
    }
}

#[test]
fn offsets_outside_the_log_are_refused_at_once() {
    // 54, 57
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    client.produce_one("t", 1, batch(&[b"a"]));
    for offset in [2, -1, i64::MAX] {
        let mut request = fetch_request(&[("t", 1, offset)]);
        request.max_wait_ms = 500;
        let (answer, took) = timed(&broker, &client, &request);
        let data = &answer.responses[0].partitions[0];
        assert_eq!(data.error_code, ErrorCode::OffsetOutOfRange.get());
        assert_eq!((data.high_watermark, data.last_stable_offset, data.log_start_offset), (-1, -1, -1));
        assert_eq!(records_len(data), 0);
        assert!(data.aborted_transactions.is_none());
        assert!(took < 10, "{took}");
    }
    let mut request = fetch_request(&[("t", 1, 1)]);
    request.max_wait_ms = 500;
    let (answer, took) = timed(&broker, &client, &request);
    assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    assert!((500..510).contains(&took), "{took}");
}

/// Fetches idle partitions, and produces after `after` ms; the answer, and how long it took.
fn fetch_then_produce(
    broker: &Broker,
    request: &FetchRequest<'_>,
    (after, topic, partition): (i64, &str, i32),
) -> (FetchResponse<'static>, i64) {
    let (client, producer) = (broker.client(), broker.client());
    let fetch = client.request(11, request);
    let produce = producer.request(9, &produce_request(-1, &[(topic, partition, batch(&[b"new"]))]));
    let handlers = broker.handlers[0].clone();
    let shard = broker.shards[0].clone();
    let before = broker.now_ms();
    let (answer, took) = broker.run(async move {
        use broker::handlers::{Outcome, RequestHandler};
        let fetched = async {
            let outcome = handlers.handle(fetch).await;
            (outcome, shard.wall_ms() - before)
        };
        let produced = async {
            shard.sleep_until(shard.now().plus_ms(after)).await;
            match handlers.handle(produce).await {
                Outcome::Accepted(accepted) => accepted.await,
                Outcome::Done(answer) => answer,
            }
        };
        let ((outcome, took), _) = futures_util::join!(fetched, produced);
        let Outcome::Done(answer) = outcome else { panic!("a fetch is done when handled") };
        (answer, took)
    });
    (read(11, answer), took)
}

#[test]
fn an_idle_fetch_waits_and_a_produce_ends_it() {
    // 55, F35, V-15
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 5, &[]);
        let client = broker.client();
        let all: Vec<_> = (0..5).map(|partition| ("t", partition, 0)).collect();
        let mut request = fetch_request(&all);
        request.max_wait_ms = 800;
        let (_, took) = timed(&broker, &client, &request);
        assert!((800..810).contains(&took), "{took}");
        request.max_wait_ms = 8000;
        for partition in 0..5 {
            let mut request = request.clone();
            request.topics = fetch_request(&(0..5).map(|p| ("t", p, 0)).collect::<Vec<_>>()).topics;
            let fresh = Broker::new(shards);
            fresh.create("t", 5, &[]);
            let (answer, took) = fetch_then_produce(&fresh, &request, (300, "t", partition));
            assert!((300..310).contains(&took), "{took}");
            let data = parts(answer);
            let filled: Vec<_> =
                data.iter().filter(|data| records_len(data) > 0).map(|d| d.partition_index).collect();
            assert_eq!(filled, [partition]);
        }
    }
}

#[test]
fn a_fetch_waits_for_min_bytes_over_several_owners() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        client.produce_one("t", 0, batch(&[b"new"]));
        let size = i32::try_from(batch(&[b"new"]).len()).unwrap();
        let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]);
        request.max_wait_ms = 1000;
        request.min_bytes = size * 2;
        let (answer, took) = fetch_then_produce(&broker, &request, (200, "t", 1));
        assert!((200..210).contains(&took), "{took}");
        assert!(parts(answer).iter().all(|data| records_len(data) > 0));
        request.min_bytes = size * 5;
        let (answer, took) = fetch_then_produce(&broker, &request, (200, "t", 1));
        assert!((1000..1010).contains(&took), "{took}");
        assert!(parts(answer).iter().all(|data| records_len(data) > 0), "what is there comes in the end");
    }
}

#[test]
fn an_unknown_topic_does_not_end_the_waiting_of_the_rest() {
    // 56
    let broker = Broker::new(2);
    broker.create("t", 1, &[]);
    let client = broker.client();
    let mut request = fetch_request(&[("t", 0, 0), ("unknown", 0, 0), ("t", 7, 0)]);
    request.max_wait_ms = 500;
    let (answer, took) = timed(&broker, &client, &request);
    assert!((500..510).contains(&took), "{took}");
    let codes: Vec<_> = parts(answer).iter().map(|data| data.error_code).collect();
    assert_eq!(codes, [0, 3, 3]);
    let mut request = fetch_request(&[("unknown", 0, 0)]);
    request.max_wait_ms = 500;
    assert!(timed(&broker, &client, &request).1 < 5, "nothing is left to wait for");
    let mut topics = FetchTopics::default();
    topics.push("", TopicId::new([8; 16]), [part(0, 0)]);
    let answer = client.fetch(13, &FetchRequest { topics, ..fetch_request(&[]) });
    assert_eq!(parts(answer)[0].error_code, ErrorCode::UnknownTopicId.get());
}

#[test]
fn parked_fetches_cost_nothing() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]);
    request.max_wait_ms = 3_600_000;
    let before = broker.world().polls();
    let (_, took) = timed(&broker, &client, &request);
    assert!(took >= 3_600_000);
    let polls = broker.world().polls() - before;
    assert!(polls < 1000, "an hour took {polls} polls");
}

#[test]
fn a_deleted_partition_ends_the_wait() {
    // V-15, V-36 (d)
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]);
        request.max_wait_ms = 60_000;
        let fetch = client.request(11, &request);
        let handlers = broker.handlers[0].clone();
        let slot = std::rc::Rc::new(std::cell::RefCell::new(None));
        let seen = slot.clone();
        let task = broker.shards[0].spawn(storage::io::Queue::Request, async move {
            use broker::handlers::RequestHandler;
            let outcome = handlers.handle(fetch).await;
            seen.replace(Some(outcome));
        });
        broker.world().advance_ms(100);
        assert!(slot.borrow().is_none());
        let before = broker.now_ms();
        broker.delete("t");
        broker.world().advance_ms(5);
        let outcome = slot.take().expect("the fetch was answered");
        assert!(broker.now_ms() - before < 50);
        let answer: FetchResponse<'static> = read(11, client.finish(outcome));
        assert!(parts(answer).iter().any(|data| data.error_code == ErrorCode::NotLeaderOrFollower.get()));
        drop(task);
    }
}

#[test]
fn a_client_that_goes_leaves_no_wait_behind_for_long() {
    // V-86
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        let mut request = fetch_request(&[("t", 0, 0), ("t", 1, 0)]);
        request.max_wait_ms = 60_000;
        for _ in 0..3 {
            let (fetch, handlers) = (client.request(11, &request), broker.handlers[0].clone());
            let task = broker.shards[0].spawn(storage::io::Queue::Request, async move {
                use broker::handlers::RequestHandler;
                handlers.handle(fetch).await;
            });
            broker.world().advance_ms(10);
            drop(task);
        }
        client.produce_one("t", 0, batch(&[b"a"]));
        assert_eq!(values(&client.fetch_one("t", 0, 0)), [b"a"]);
    }
}

#[test]
fn leader_epochs_are_judged() {
    // 65, V-38
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let topic = broker.topic("t");
    broker.lead(&topic, 1, 3);
    let client = broker.client();
    let code = |epoch| {
        let mut topics = FetchTopics::default();
        let asked = protocol::messages::fetch::FetchPartition { current_leader_epoch: epoch, ..part(1, 0) };
        topics.push("t", TopicId::ZERO, [asked]);
        let request = FetchRequest { topics, ..fetch_request(&[]) };
        parts(client.fetch(11, &request))[0].error_code
    };
    assert_eq!(code(2), ErrorCode::FencedLeaderEpoch.get());
    assert_eq!(code(4), ErrorCode::UnknownLeaderEpoch.get());
    assert_eq!((code(3), code(-1)), (0, 0));
}

#[test]
fn a_diverging_epoch_is_told_without_records() {
    // 66, V-32, V-37
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let topic = broker.topic("t");
    let client = broker.client();
    broker.lead(&topic, 0, 3);
    for _ in 0..10 {
        client.produce_one("t", 0, batch(&[b"x"]));
    }
    broker.lead(&topic, 0, 5);
    for _ in 0..5 {
        client.produce_one("t", 0, batch(&[b"y"]));
    }
    let fetch = |last_fetched_epoch, offset| {
        let mut topics = FetchTopics::default();
        let asked = protocol::messages::fetch::FetchPartition { last_fetched_epoch, ..part(0, offset) };
        topics.push("t", TopicId::ZERO, [asked]);
        let request = FetchRequest { topics, ..fetch_request(&[]) };
        parts(client.fetch(12, &request)).remove(0)
    };
    let data = fetch(3, 12);
    assert_eq!((data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset), (0, 3, 10));
    assert_eq!(records_len(&data), 0);
    let data = fetch(3, 10);
    assert_eq!((data.diverging_epoch.epoch, values(&data).len()), (-1, 5));
    assert_eq!(fetch(9, 12).error_code, ErrorCode::OffsetOutOfRange.get(), "an epoch nobody knows");
}

#[test]
fn a_follower_serves_consumers_from_version_eleven() {
    // 68, V-73
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    client.produce_one("t", 0, batch(&[b"a"]));
    let mut moved = broker.topic("t");
    broker.become_(&moved, 0, 1, OTHER);
    let old = moved.partitions[0].clone();
    moved.partitions[0] = PartitionImage { leader: OTHER, leader_epoch: LeaderEpoch::new(1), ..old };
    broker.publish(moved);
    let request = fetch_request(&[("t", 0, 0)]);
    let answer = client.fetch(10, &request);
    assert_eq!(parts(answer)[0].error_code, ErrorCode::NotLeaderOrFollower.get());
    assert_eq!(values(&parts(client.fetch(11, &request))[0]), [b"a"]);
    let mut topics = FetchTopics::default();
    topics.push("", broker.topic("t").id, [part(0, 0)]);
    let replica = ReplicaState { replica_id: 3, replica_epoch: 1 };
    let answer = client.fetch(16, &FetchRequest { topics, replica_state: replica, ..fetch_request(&[]) });
    assert_eq!((answer.node_endpoints.len(), answer.node_endpoints[0].node_id), (1, 2));
    let data = &answer.responses[0].partitions[0];
    assert_eq!((data.error_code, data.current_leader.leader_id, data.current_leader.leader_epoch), (6, 2, 1));
}

#[test]
fn read_committed_has_an_aborted_list_and_read_uncommitted_none() {
    // 58, as far as there are no transactions
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    client.produce_one("t", 0, batch(&[b"a"]));
    let mut request = fetch_request(&[("t", 0, 0)]);
    assert!(parts(client.fetch(11, &request))[0].aborted_transactions.is_none());
    request.isolation_level = 1;
    assert_eq!(parts(client.fetch(11, &request))[0].aborted_transactions, Some(Vec::new()));
}

#[test]
fn zstd_topics_are_not_for_old_consumers() {
    let broker = Broker::new(1);
    broker.create("t", 1, &[("compression.type", "zstd")]);
    let client = broker.client();
    client.produce_one("t", 0, batch(&[b"a"]));
    let request = fetch_request(&[("t", 0, 0)]);
    assert_eq!(parts(client.fetch(9, &request))[0].error_code, ErrorCode::UnsupportedCompressionType.get());
    assert_eq!(parts(client.fetch(10, &request))[0].error_code, 0);
}

#[test]
fn many_segments_are_read_one_after_the_other() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[("segment.bytes", "400")]);
    let client = broker.client();
    for round in 0..30u8 {
        client.produce_one("t", 1, batch(&[&[round; 100]]));
    }
    let (mut offset, mut seen) = (0, Vec::new());
    while offset < 30 {
        let data = client.fetch_one("t", 1, offset);
        let got = values(&data);
        assert!(!got.is_empty());
        offset += i64::try_from(got.len()).unwrap();
        seen.extend(got.into_iter().map(|value| value[0]));
    }
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
}

/// Bytes that each part of a fetch got, on a broker of so many shards with these batches in its partitions.
fn served(
    shards: u16,
    batches: &[Vec<usize>],
    asked: &[(usize, i32)],
    (min_bytes, max_bytes): (i32, i32),
) -> (Vec<(i32, usize)>, bool) {
    let broker = Broker::new(shards);
    broker.create("t", i32::try_from(batches.len()).unwrap(), &[]);
    let client = broker.client();
    for (partition, sizes) in batches.iter().enumerate() {
        for size in sizes {
            client.produce_one("t", i32::try_from(partition).unwrap(), batch(&[&vec![1; *size]]));
        }
    }
    let mut topics = FetchTopics::default();
    let parts = asked.iter().map(|(partition, max)| protocol::messages::fetch::FetchPartition {
        partition_max_bytes: *max,
        ..part(i32::try_from(*partition).unwrap(), 0)
    });
    topics.push("t", TopicId::ZERO, parts.collect::<Vec<_>>());
    let limited = FetchRequest { topics, min_bytes, max_bytes, max_wait_ms: 50, ..fetch_request(&[]) };
    let (answer, took) = timed(&broker, &client, &limited);
    let parts = self::parts(answer);
    // All of it once more: what was counted and not handed out goes off by then.
    let all: Vec<_> =
        asked.iter().map(|(partition, _)| ("t", i32::try_from(*partition).unwrap(), 0)).collect();
    let all = self::parts(client.fetch(11, &FetchRequest { max_wait_ms: 0, ..fetch_request(&all) }));
    let handed_out: usize = parts.iter().chain(&all).map(records_len).sum();
    assert_eq!(broker.counted(Family::BytesOut), i64::try_from(handed_out).unwrap(), "on {shards}");
    (parts.iter().map(|data| (data.partition_index, records_len(data))).collect(), took >= 50)
}

/// Limits of one part: often none at all, or less than any batch.
fn part_max() -> impl proptest::strategy::Strategy<Value = i32> {
    proptest::prop_oneof![1 => proptest::strategy::Just(0), 1 => 1i32..50, 4 => 50i32..1500]
}

#[test]
fn a_first_batch_beyond_its_limit_counts_whole_towards_min_bytes() {
    // Kafka counts what it has read.
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        let large = batch(&[&[7; 5000]]);
        let size = large.len();
        client.produce_one("t", 0, large);
        for (partition_max_bytes, min_bytes, waits) in
            [(100, 5000, false), (0, 5000, false), (0, 1, false), (100, 6000, true), (0, 6000, true)]
        {
            let mut topics = FetchTopics::default();
            let asked = [1, 0].map(|partition| protocol::messages::fetch::FetchPartition {
                partition_max_bytes,
                ..part(partition, 0)
            });
            topics.push("t", TopicId::ZERO, asked);
            let request = FetchRequest { topics, min_bytes, max_wait_ms: 400, ..fetch_request(&[]) };
            let (answer, took) = timed(&broker, &client, &request);
            let got: usize = parts(answer).iter().map(records_len).sum();
            assert_eq!(got, size, "{partition_max_bytes} {min_bytes} on {shards}");
            assert_eq!(took >= 400, waits, "{partition_max_bytes} {min_bytes} on {shards}: {took} ms");
        }
    }
}

#[test]
fn what_a_fetch_over_two_shards_is_given_is_read_and_counted_once() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let (here, there) = (batch(&[&[1; 3000]]), batch(&[&[2; 500]]));
    let sizes = [here.len(), there.len()];
    client.produce_one("t", 0, here);
    client.produce_one("t", 1, there);
    // More than half of it is on one shard, so that the limit of the whole might be broken.
    let fetched = |max_bytes| {
        let request = FetchRequest { max_bytes, ..fetch_request(&[("t", 0, 0), ("t", 1, 0)]) };
        let (counted, messages) = (broker.counted(Family::BytesOut), broker.shards[0].messages());
        let got: Vec<_> = parts(client.fetch(11, &request)).iter().map(records_len).collect();
        (got, broker.counted(Family::BytesOut) - counted, broker.shards[0].messages() - messages)
    };
    let both = i64::try_from(sizes[0] + sizes[1]).unwrap();
    assert_eq!(fetched(4000), (sizes.to_vec(), both, 2), "the other shard is asked once");
    // Only the first fits: the other's was counted and is not handed out, which the next count makes good.
    let (got, counted, _) = fetched(i32::try_from(sizes[0]).unwrap());
    assert_eq!(got, [sizes[0], 0]);
    let (got, counted_next, _) = fetched(4000);
    assert_eq!(got, sizes);
    assert_eq!(counted + counted_next, both + i64::try_from(sizes[0]).unwrap());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    /// V-78: the number of shards shows nowhere in an answer, neither in its order, nor in its limits, nor in its waiting.
    #[test]
    fn an_answer_is_the_same_on_any_number_of_shards(
        batches in proptest::collection::vec(proptest::collection::vec(1usize..400, 0..4), 1..7),
        asked in proptest::collection::vec((0usize..7, part_max()), 1..8),
        max_bytes in 0i32..4000,
        min_bytes in proptest::prop_oneof![0i32..2, 2..3000],
    ) {
        let asked: Vec<_> = asked.into_iter().map(|(place, max)| (place % batches.len(), max)).collect();
        let one = served(1, &batches, &asked, (min_bytes, max_bytes));
        for shards in [2, 3, 5] {
            proptest::prop_assert_eq!(&served(shards, &batches, &asked, (min_bytes, max_bytes)), &one);
        }
        let total: usize = one.0.iter().map(|(_, bytes)| *bytes).sum();
        let largest = batches.iter().flatten().map(|size| batch(&[&vec![1; *size]]).len()).max().unwrap_or(0);
        proptest::prop_assert!(total <= largest.max(usize::try_from(max_bytes).unwrap()));
    }
}

#[test]
fn partitions_of_two_shards_that_alternate_are_asked_for_together() {
    const PARTITIONS: i32 = 200;
    let broker = Broker::new(2);
    broker.create("t", PARTITIONS, &[]);
    let client = broker.client();
    let at_end: Vec<_> = (0..PARTITIONS).map(|partition| ("t", partition, 0)).collect();
    // Together they could give more than the whole fetch may: 200 times 1 MiB.
    let polls = |parts: &[(&str, i32, i64)]| {
        let before = broker.world().polls();
        let answer = client.fetch(12, &FetchRequest { max_wait_ms: 0, ..fetch_request(parts) });
        let answered: usize = answer.responses.iter().map(|topic| topic.partitions.len()).sum();
        assert_eq!(answered, parts.len());
        broker.world().polls() - before
    };
    let (few, many) = (polls(&at_end[..4]), polls(&at_end));
    assert!(many <= 4 * few, "{few} polls for 4 partitions, {many} for {PARTITIONS}");
}

#[test]
fn a_fetch_sends_an_owner_one_message_if_there_is_something_and_two_if_it_waits() {
    let broker = Broker::new(2);
    broker.create("t", 4, &[]);
    let client = broker.client();
    let from = |offsets: [i64; 4]| {
        let parts: Vec<_> = (0..).zip(offsets).map(|(partition, offset)| ("t", partition, offset)).collect();
        FetchRequest { max_wait_ms: 500, ..fetch_request(&parts) }
    };
    let sent = |act: &dyn Fn()| {
        let before = broker.shards[0].messages();
        act();
        broker.shards[0].messages() - before
    };
    let fetch = |offsets| sent(&|| drop(client.fetch(12, &from(offsets))));
    fetch([0; 4]);
    assert_eq!(fetch([0; 4]), 4, "the other shard is asked before the wait and after it, and answers");
    // Partitions 0 and 2 are here, 1 and 3 are there.
    let meanwhile = |offsets, partition| {
        sent(&|| drop(fetch_then_produce(&broker, &from(offsets), (200, "t", partition))))
    };
    assert_eq!(meanwhile([0; 4], 0), 2, "news of this shard are not asked for there");
    assert_eq!(fetch([0; 4]), 2);
    client.produce_one("t", 3, batch(&[b"a"]));
    assert_eq!(fetch([1, 0, 0, 0]), 2, "data there alone");
    assert_eq!(fetch([0; 4]), 2, "data here and there");
    assert_eq!(
        meanwhile([1, 0, 0, 1], 1),
        8,
        "two asks and a produce, the wake and the ask for the next one"
    );
}
