//! Produce: protocol.md 5, statements 16 to 31, 39 to 42.

use broker::handlers::Answer;
use broker::metadata::image::PartitionImage;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::records::batch::{Attributes, BatchView, TimestampType};
use protocol::records::builder::BatchBuilder;
use protocol::records::compression::{Codec, Compression};
use protocol::types::*;

use crate::harness::*;

fn code(part: &PartitionProduceResponse<'static>) -> ErrorCode {
    ErrorCode::new(part.error_code).unwrap()
}

#[test]
fn a_produced_batch_is_fetched_as_it_was_sent() {
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 3, &[]);
        let client = broker.client();
        for partition in 0..3 {
            let part = client.produce_one("t", partition, batch(&[b"a", b"b"]));
            assert_eq!((code(&part), part.base_offset), (ErrorCode::None, 0));
            assert_eq!((part.log_append_time_ms, part.log_start_offset), (-1, 0));
            let part = client.produce_one("t", partition, batch(&[b"c"]));
            assert_eq!(part.base_offset, 2);
            let data = client.fetch_one("t", partition, 0);
            assert_eq!(values(&data), [b"a", b"b", b"c"]);
            assert_eq!((data.high_watermark, data.last_stable_offset, data.log_start_offset), (3, 3, 0));
        }
    }
}

#[test]
fn all_versions_and_acks_answer() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let mut offset = 0;
    for version in 3..=11 {
        for acks in [1, -1] {
            let parts =
                client.produce(version, acks, vec![("t", 0, batch(&[b"x"])), ("t", 1, batch(&[b"y"]))]);
            assert_eq!(
                parts.iter().map(|part| (part.index, part.base_offset)).collect::<Vec<_>>(),
                [(0, offset), (1, offset)]
            );
            offset += 1;
        }
    }
}

#[test]
fn pipelined_idempotent_produces_stay_in_order() {
    // 16, V-79
    for shards in SHARDS {
        for seed in 0..20 {
            let broker = Broker::start(seed, shards, Start::default());
            broker.create("t", 5, &[]);
            let client = broker.client();
            let mut accepted = Vec::new();
            for round in 0..5 {
                let parts: Vec<_> =
                    (0..5).map(|partition| ("t", partition, idempotent(5, 0, round * 2, 2))).collect();
                accepted.push(client.accept(client.request(9, &produce_request(-1, &parts))));
            }
            for (round, outcome) in accepted.into_iter().enumerate() {
                let answer: ProduceResponse<'static> = read(9, client.finish(outcome));
                for part in &answer.responses[0].partition_responses {
                    assert_eq!(
                        (code(part), part.base_offset),
                        (ErrorCode::None, i64::try_from(round).unwrap() * 2)
                    );
                }
            }
        }
    }
}

#[test]
fn a_duplicate_in_flight_waits_for_the_original() {
    // with acks=1 too, and with the same offset.
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let request =
        |partition| client.request(9, &produce_request(1, &[("t", partition, idempotent(5, 0, 0, 3))]));
    for partition in 0..2 {
        let first = client.accept(request(partition));
        let second = client.accept(request(partition));
        for outcome in [second, first] {
            let answer: ProduceResponse<'static> = read(9, client.finish(outcome));
            let part = &answer.responses[0].partition_responses[0];
            assert_eq!((code(part), part.base_offset), (ErrorCode::None, 0));
        }
        assert_eq!(client.fetch_one("t", partition, 0).high_watermark, 3);
    }
}

#[test]
fn acks_zero_is_silent_and_an_error_closes() {
    // 17, 18, 19, V-12
    let broker = Broker::new(2);
    broker.create("t", 1, &[]);
    let client = broker.client();
    let silent = client.send(9, &produce_request(0, &[("t", 0, batch(&[b"a"]))]));
    assert!(matches!(silent, Answer::Nothing), "{silent:?}");
    let dropped = client.accept(client.request(9, &produce_request(0, &[("t", 0, batch(&[b"b"]))])));
    drop(dropped);
    broker.world().run_until_idle();
    assert_eq!(values(&client.fetch_one("t", 0, 0)), [b"a", b"b"], "the client that went is served");
    for topic in ["t", "unknown"] {
        let broken = if topic == "t" { idempotent(1, 0, 0, 1) } else { batch(&[b"x"]) };
        let mut broken = broken;
        let last = broken.len() - 1;
        broken[last] ^= 1;
        let closed = client.send(9, &produce_request(0, &[(topic, 0, broken)]));
        assert!(matches!(closed, Answer::Close(_)), "{closed:?}");
    }
}

#[test]
fn unknown_acks_are_refused_for_every_valid_partition() {
    // 20
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let parts = broker.client().produce(9, 2, vec![("t", 0, batch(&[b"a"])), ("u", 0, batch(&[b"a"]))]);
    assert_eq!(code(&parts[0]), ErrorCode::InvalidRequiredAcks);
    assert_eq!(code(&parts[1]), ErrorCode::UnknownTopicOrPartition);
    assert_eq!((parts[0].base_offset, parts[0].log_start_offset), (-1, -1));
}

#[test]
fn malformed_records_are_refused_alone() {
    // 21, 22, 24, 25, 27, 28
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let good = || batch(&[b"good"]);
    let patched = |at: usize, byte: u8| {
        let mut bytes = good();
        bytes[at] = byte;
        bytes
    };
    let mut two = good();
    two.extend_from_slice(&good());
    let flipped = {
        let mut bytes = good();
        let last = bytes.len() - 1;
        bytes[last] ^= 0x10;
        bytes
    };
    let mut deltas = BatchBuilder::new().last_offset_delta(4);
    deltas.push(TimestampMs::new(1), None, None, &[]).push(TimestampMs::new(1), None, None, &[]);
    let mut control = BatchBuilder::new().control();
    control.push(TimestampMs::new(1), Some(&[0, 0, 0, 1]), Some(&[0; 6]), &[]);
    let cases = [
        (ErrorCode::InvalidRecord, bytes::BytesMut::new()),
        (ErrorCode::InvalidRecord, bytes::BytesMut::from(&good()[..60])),
        (ErrorCode::InvalidRecord, patched(16, 1)),
        (ErrorCode::CorruptMessage, patched(16, 3)),
        (ErrorCode::InvalidRecord, two),
        (ErrorCode::CorruptMessage, flipped),
        (ErrorCode::InvalidRecord, patched(7, 5)),
        (ErrorCode::InvalidRecord, deltas.build().unwrap()),
        (ErrorCode::InvalidRecord, control.build().unwrap()),
    ];
    for (round, (expected, bytes)) in cases.into_iter().enumerate() {
        let parts = client.produce(9, -1, vec![("t", 0, bytes), ("t", 1, good())]);
        assert_eq!(code(&parts[0]), expected, "case {round}");
        assert_eq!((parts[0].base_offset, &parts[0].error_message), (-1, &None), "no text without records");
        assert_eq!((code(&parts[1]), parts[1].base_offset), (ErrorCode::None, i64::try_from(round).unwrap()));
        assert_eq!(client.fetch_one("t", 0, 0).high_watermark, 0, "nothing of case {round} was appended");
    }
    // 25: the leader epoch lies outside the checksum, and is ours to set.
    let part = client.produce_one("t", 0, patched(15, 77));
    assert_eq!(code(&part), ErrorCode::None);
    assert_eq!(batches(&client.fetch_one("t", 0, 0))[0].partition_leader_epoch(), LeaderEpoch::new(0));
}

#[test]
fn zstd_needs_version_seven() {
    // 23
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    let zstd = || {
        let mut builder = BatchBuilder::new().compression(Compression::default_level(Codec::Zstd));
        builder.push(TimestampMs::new(1), None, Some(b"v"), &[]);
        builder.build().unwrap()
    };
    let part = client.produce(6, -1, vec![("t", 0, zstd())]).remove(0);
    assert_eq!(code(&part), ErrorCode::UnsupportedCompressionType);
    let part = client.produce(7, -1, vec![("t", 0, zstd())]).remove(0);
    assert_eq!(code(&part), ErrorCode::None);
}

#[test]
fn max_message_bytes_counts_the_whole_batch() {
    // 26, F25
    let broker = Broker::new(1);
    let size = batch(&[&[7; 500]]).len();
    broker.create("t", 1, &[("max.message.bytes", &size.to_string())]);
    let client = broker.client();
    assert_eq!(code(&client.produce_one("t", 0, batch(&[&[7; 500]]))), ErrorCode::None);
    let part = client.produce_one("t", 0, batch(&[&[7; 501]]));
    assert_eq!((code(&part), part.base_offset, part.log_start_offset), (ErrorCode::MessageTooLarge, -1, -1));
    broker.set_config("t", &[]);
    assert_eq!(code(&client.produce_one("t", 0, batch(&[&[7; 501]]))), ErrorCode::None);
}

#[test]
fn a_batch_larger_than_a_segment_is_refused() {
    let broker = Broker::new(1);
    broker.create("t", 1, &[("segment.bytes", "200")]);
    let part = broker.client().produce_one("t", 0, batch(&[&[7; 500]]));
    assert_eq!((code(&part), part.log_start_offset), (ErrorCode::RecordListTooLarge, -1));
}

#[test]
fn compacted_topics_name_the_records_without_key() {
    // 29
    let broker = Broker::new(1);
    broker.create("t", 1, &[("cleanup.policy", "compact")]);
    let client = broker.client();
    let keyless = || {
        let mut builder = BatchBuilder::new();
        for key in [Some(&b"a"[..]), Some(b"b"), None] {
            builder.push(TimestampMs::new(1), key, Some(b"v"), &[]);
        }
        builder.build().unwrap()
    };
    let part = client.produce(8, -1, vec![("t", 0, keyless())]).remove(0);
    assert_eq!((code(&part), part.base_offset, part.log_start_offset), (ErrorCode::InvalidRecord, -1, 0));
    assert_eq!(part.record_errors.len(), 1);
    assert_eq!(part.record_errors[0].batch_index, 2);
    assert!(part.record_errors[0].batch_index_error_message.is_some() && part.error_message.is_some());
    let part = client.produce(7, -1, vec![("t", 0, keyless())]).remove(0);
    assert_eq!((code(&part), part.record_errors.len()), (ErrorCode::InvalidRecord, 0));
    assert_eq!(client.fetch_one("t", 0, 0).high_watermark, 0);
}

#[test]
fn timestamps_outside_the_window_are_refused() {
    // 30
    let broker = Broker::new(1);
    broker.create("t", 1, &[("message.timestamp.before.max.ms", "1000")]);
    let now = broker.now_ms();
    let client = broker.client();
    let part = client.produce_one("t", 0, batch_at(now - 5000, &[b"old"]));
    assert_eq!((code(&part), part.record_errors.len()), (ErrorCode::InvalidTimestamp, 1));
    assert_eq!(code(&client.produce_one("t", 0, batch_at(now, &[b"new"]))), ErrorCode::None);
}

#[test]
fn log_append_time_is_told_and_stored() {
    // 31, F22
    let broker = Broker::new(1);
    broker.create("t", 1, &[("message.timestamp.type", "LogAppendTime")]);
    let client = broker.client();
    let before = broker.now_ms();
    let part = client.produce_one("t", 0, batch_at(5, &[b"a"]));
    assert!(part.log_append_time_ms >= before);
    let data = client.fetch_one("t", 0, 0);
    let view = batches(&data)[0];
    assert_eq!(view.attributes().timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(view.max_timestamp().get(), part.log_append_time_ms);
    assert!(view.crc_is_valid());
}

#[test]
fn topics_with_a_codec_recompress_also_when_it_takes_many_turns() {
    let broker = Broker::new(2);
    broker.create("t", 2, &[("compression.type", "gzip")]);
    let client = broker.client();
    let big = vec![b'x'; 900_000];
    for partition in 0..2 {
        let request = |batch| client.request(9, &produce_request(-1, &[("t", partition, batch)]));
        let first = client.accept(request(batch(&[&big])));
        let second = client.accept(request(batch(&[b"behind"])));
        for (outcome, offset) in [(first, 0), (second, 1)] {
            let answer: ProduceResponse<'static> = read(9, client.finish(outcome));
            let part = &answer.responses[0].partition_responses[0];
            assert_eq!((code(part), part.base_offset), (ErrorCode::None, offset), "V-79: nothing overtakes");
        }
        let data = client.fetch_one("t", partition, 0);
        assert!(
            batches(&data)
                .iter()
                .all(|view| view.attributes().codec() == Some(Codec::Gzip) && view.crc_is_valid())
        );
    }
}

#[test]
fn too_few_in_sync_replicas_refuse_acks_all_only() {
    // 39: the only replica of this broker can be short of a minimum of its own making only with more replicas.
    let broker = Broker::new(1);
    let mut topic = topic("t", TopicId::new([3; 16]), (1, 1), &[("min.insync.replicas", "2")]);
    topic.partitions[0].replicas = vec![ME, OTHER];
    let ask = broker::partition::ask::Become {
        topic: topic.name.clone(),
        topic_id: topic.id,
        partition: 0,
        leader: ME,
        leader_epoch: LeaderEpoch::new(0),
        partition_epoch: PartitionEpoch::new(0),
        replicas: vec![ME, OTHER],
        isr: vec![ME],
        is_new: true,
        config: topic.config.clone(),
    };
    broker.ask(broker::shard::ShardId::CONTROL, broker::partition::ask::PartitionAsk::Become(vec![ask]));
    broker.publish(topic);
    let client = broker.client();
    let part = client.produce_one("t", 0, batch(&[b"a"]));
    assert_eq!((code(&part), part.base_offset, part.log_start_offset), (ErrorCode::NotEnoughReplicas, -1, 0));
    let part = client.produce(9, 1, vec![("t", 0, batch(&[b"a"]))]).remove(0);
    assert_eq!((code(&part), part.base_offset), (ErrorCode::None, 0));
    let data = client.fetch_one("t", 0, 0);
    assert_eq!((data.high_watermark, values(&data).len()), (0, 0), "V-3: invisible below the minimum");
}

#[test]
fn a_follower_that_hangs_times_the_request_out() {
    // 40, V-11
    let broker = Broker::new(1);
    let mut hanging = topic("t", TopicId::new([3; 16]), (1, 1), &[]);
    hanging.partitions[0].isr = vec![ME, OTHER];
    let ask = broker::partition::ask::Become {
        topic: hanging.name.clone(),
        topic_id: hanging.id,
        partition: 0,
        leader: ME,
        leader_epoch: LeaderEpoch::new(0),
        partition_epoch: PartitionEpoch::new(0),
        replicas: vec![ME, OTHER],
        isr: vec![ME, OTHER],
        is_new: true,
        config: hanging.config.clone(),
    };
    broker.ask(broker::shard::ShardId::CONTROL, broker::partition::ask::PartitionAsk::Become(vec![ask]));
    broker.publish(hanging);
    broker.create("fine", 2, &[]);
    let client = broker.client();
    let parts = [("t", 0, batch(&[b"a"])), ("fine", 0, batch(&[b"b"])), ("fine", 1, batch(&[b"c"]))];
    let hasty = ProduceRequest { timeout_ms: 0, ..produce_request(-1, &[("t", 0, batch(&[b"0"]))]) };
    let answer: ProduceResponse<'static> = client.call(9, &hasty);
    assert_eq!(code(&answer.responses[0].partition_responses[0]), ErrorCode::RequestTimedOut);
    let request = ProduceRequest { timeout_ms: 500, ..produce_request(-1, &parts) };
    let before = broker.now_ms();
    let answer: ProduceResponse<'static> = client.call(9, &request);
    assert!((500..520).contains(&(broker.now_ms() - before)));
    assert_eq!(code(&answer.responses[0].partition_responses[0]), ErrorCode::RequestTimedOut);
    let fine = &answer.responses[1].partition_responses;
    assert!(fine.iter().all(|part| code(part) == ErrorCode::None && part.base_offset == 0));
    let mut replica = fetch_request(&[("t", 0, 0)]);
    replica.replica_id = 2;
    let mut fetched = client.fetch(11, &replica);
    assert_eq!(
        values(&fetched.responses.remove(0).partitions.remove(0)),
        [b"0", b"a"],
        "the records are in the log"
    );
}

#[test]
fn a_timeout_of_the_client_does_not_judge_this_brokers_own_write() {
    // Kafka's wait begins when the leader has the batch.
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 2, &[]);
        let client = broker.client();
        let mut end = 0;
        for timeout_ms in [0, 1, -1] {
            for acks in [-1, 1] {
                let parts = [("t", 0, batch(&[b"a"])), ("t", 1, batch(&[b"b"]))];
                let request = ProduceRequest { timeout_ms, ..produce_request(acks, &parts) };
                let answer: ProduceResponse<'static> = client.call(9, &request);
                for part in &answer.responses[0].partition_responses {
                    assert_eq!((code(part), part.base_offset), (ErrorCode::None, end), "{timeout_ms} {acks}");
                }
                end += 1;
            }
        }
    }
}

#[test]
fn a_produce_to_a_non_leader_names_the_leader_from_version_ten() {
    // 41, V-66
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let mut moved = broker.topic("t");
    broker.become_(&moved, 1, 4, OTHER);
    let old = moved.partitions[1].clone();
    moved.partitions[1] = PartitionImage { leader: OTHER, leader_epoch: LeaderEpoch::new(4), ..old };
    broker.publish(moved);
    let client = broker.client();
    for version in [9, 10] {
        let answer: ProduceResponse<'static> =
            client.call(version, &produce_request(-1, &[("t", 1, batch(&[b"a"]))]));
        let part = &answer.responses[0].partition_responses[0];
        assert_eq!(code(part), ErrorCode::NotLeaderOrFollower);
        let hint =
            (part.current_leader.leader_id, part.current_leader.leader_epoch, answer.node_endpoints.len());
        assert_eq!(hint, if version == 9 { (-1, -1, 0) } else { (2, 4, 1) });
    }
}

#[test]
fn leadership_that_goes_fails_appends_that_wait() {
    // V-66
    let broker = Broker::new(1);
    let waiting = topic("t", TopicId::new([3; 16]), (1, 1), &[]);
    let state = |leader, leader_epoch: i32| broker::partition::ask::Become {
        topic: waiting.name.clone(),
        topic_id: waiting.id,
        partition: 0,
        leader,
        leader_epoch: LeaderEpoch::new(leader_epoch),
        partition_epoch: PartitionEpoch::new(leader_epoch),
        replicas: vec![ME, OTHER],
        isr: vec![ME, OTHER],
        is_new: true,
        config: waiting.config.clone(),
    };
    let become_ = |leader, epoch| {
        let ask = broker::partition::ask::PartitionAsk::Become(vec![state(leader, epoch)]);
        broker.ask(broker::shard::ShardId::CONTROL, ask);
    };
    become_(ME, 0);
    broker.publish(waiting.clone());
    let client = broker.client();
    let outcome = client.accept(client.request(9, &produce_request(-1, &[("t", 0, batch(&[b"a"]))])));
    broker.world().run_until_idle();
    let before = broker.now_ms();
    become_(OTHER, 1);
    let answer: ProduceResponse<'static> = read(9, client.finish(outcome));
    assert_eq!(code(&answer.responses[0].partition_responses[0]), ErrorCode::NotLeaderOrFollower);
    assert!(broker.now_ms() - before < 100);
}

#[test]
fn internal_topics_are_the_admins() {
    // 42
    let broker = Broker::new(1);
    broker.create("__consumer_offsets", 1, &[]);
    let parts =
        |client: &Client| client.produce(9, -1, vec![("__consumer_offsets", 0, batch(&[b"a"]))]).remove(0);
    assert_eq!(code(&parts(&broker.client_on(0, "x"))), ErrorCode::InvalidTopicException);
    assert_eq!(code(&parts(&broker.client_on(0, "__admin_client"))), ErrorCode::None);
}

#[test]
fn transactional_batches_need_a_transactional_id() {
    let broker = Broker::new(1);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let transactional = |producer| {
        let mut builder = BatchBuilder::new().producer(ProducerId::new(producer), ProducerEpoch::new(0), 0);
        builder = builder.transactional();
        builder.push(TimestampMs::new(1), None, Some(b"v"), &[]);
        builder.build().unwrap()
    };
    let parts = client.produce(9, -1, vec![("t", 0, batch(&[b"plain"])), ("t", 1, transactional(1))]);
    assert!(parts.iter().all(|part| code(part) == ErrorCode::TransactionalIdAuthorizationFailed));
    let mut request = produce_request(-1, &[("t", 0, transactional(1)), ("t", 1, transactional(2))]);
    request.transactional_id = Some("id".into());
    let answer: ProduceResponse<'static> = client.call(9, &request);
    assert!(
        answer.responses[0]
            .partition_responses
            .iter()
            .all(|part| code(part) == ErrorCode::InvalidProducerIdMapping)
    );
    let mut request = produce_request(-1, &[("t", 0, transactional(1))]);
    request.transactional_id = Some("id".into());
    let answer: ProduceResponse<'static> = client.call(9, &request);
    assert_eq!(code(&answer.responses[0].partition_responses[0]), ErrorCode::InvalidTxnState);
}

#[test]
fn headers_nulls_and_attributes_pass_untouched() {
    // 90, F27
    let broker = Broker::new(1);
    broker.create("t", 1, &[]);
    let client = broker.client();
    let headers: Vec<(&[u8], Option<&[u8]>)> =
        (0..500).map(|i| (&b"same"[..], (i % 2 == 0).then_some(&b""[..]))).collect();
    let mut builder = BatchBuilder::new();
    builder.push(TimestampMs::new(-1), None, None, &headers);
    let sent = builder.build().unwrap();
    assert_eq!(code(&client.produce_one("t", 0, sent.clone())), ErrorCode::None);
    let data = client.fetch_one("t", 0, 0);
    assert_eq!(batches(&data)[0].payload(), BatchView::parse(&sent).unwrap().payload());
    assert_eq!(batches(&data)[0].attributes(), Attributes::default());
}
