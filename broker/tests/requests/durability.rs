//! Durability modes (storage.md 10.2, S-33, S-34, S-36, T-19): what a producer's acknowledgement and a consumer's records
//! have waited for.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::config::topic::TopicConfig;
use broker::handlers::Outcome;
use broker::handlers::dispatch::Accepted;
use broker::partition::ask::{PartitionAsk, SetConfig};
use broker::shard::ShardId;
use protocol::error::ErrorCode;
use protocol::messages::*;
use storage::io::sim::{Crash, Fault, Latency, OpKind, Operation, SimDisk};
use storage::io::{DirOp, Runtime};

use crate::harness::*;

const SYNC_NANOS: u64 = 20_000_000;

/// A broker whose syncs take long, and a topic with this setting.
fn slow(setting: (&str, &str)) -> Broker {
    let broker = Broker::new(1);
    broker.create("t", 1, &[setting]);
    broker.world().run_until_idle();
    let inside = broker.world().clone();
    broker.run(async move { inside.dir(DirOp::Sync("/".into())).await }).unwrap();
    let latency = Latency { min_nanos: SYNC_NANOS, max_nanos: SYNC_NANOS };
    broker.world().disk().set_sync_latency(latency);
    broker
}

fn begin(client: &Client, acks: i16, value: &[u8]) -> Outcome<Accepted> {
    client.accept(client.request(9, &produce_request(acks, &[("t", 0, batch(&[value]))])))
}

fn end(client: &Client, outcome: Outcome<Accepted>) -> PartitionProduceResponse<'static> {
    let answer: ProduceResponse<'static> = read(9, client.finish(outcome));
    answer.responses.into_iter().next().unwrap().partition_responses.remove(0)
}

fn log_of(disk: &SimDisk) -> usize {
    disk.content("/data/t-0/00000000000000000000.log").map_or(0, |content| content.len())
}

#[test]
fn in_strict_mode_an_acknowledged_record_survives_a_power_cut_and_is_read_only_then() {
    for acks in [1, -1] {
        let broker = slow(("flush.messages", "1"));
        let client = broker.client();
        let began = broker.world().now();
        let outcome = begin(&client, acks, b"first");
        broker.world().advance_ms(5);
        let data = client.fetch_one("t", 0, 0);
        assert_eq!(
            (values(&data), data.high_watermark),
            (Vec::<Vec<u8>>::new(), 0),
            "written, and not durable"
        );
        assert_eq!(log_of(&broker.world().disk().crash(Crash::DropUnsynced)), 0);
        assert_eq!(end(&client, outcome).error_code, 0);
        assert!(broker.world().now().nanos_since(began) >= SYNC_NANOS);
        let live = log_of(broker.world().disk());
        assert!(live > 0 && log_of(&broker.world().disk().crash(Crash::DropUnsynced)) == live, "{live}");
        assert_eq!(values(&client.fetch_one("t", 0, 0)), [b"first"]);
    }
}

#[test]
fn one_sync_acknowledges_all_appends_that_were_written_before_it() {
    let broker = slow(("flush.messages", "1"));
    let client = broker.client();
    broker.world().disk().record_operations();
    let mut accepted = vec![begin(&client, 1, b"first")];
    broker.world().advance_ms(5);
    accepted.extend((0..50).map(|_| begin(&client, 1, b"later")));
    let began = broker.world().now();
    for outcome in accepted {
        assert_eq!(end(&client, outcome).error_code, 0);
    }
    assert!(broker.world().now().nanos_since(began) < 4 * SYNC_NANOS);
    let is_sync =
        |done: &Operation| done.kind == OpKind::SyncData && done.path.ends_with("00000000000000000000.log");
    let syncs = broker.world().disk().operations().iter().filter(|done| is_sync(done)).count();
    assert_eq!(syncs, 2, "the first append, and all others");
}

#[test]
fn a_failed_sync_acknowledges_nothing_and_takes_the_log_offline() {
    let broker = slow(("flush.messages", "1"));
    let client = broker.client();
    broker.world().disk().fail(Fault { path_contains: ".log", ..Fault::once(OpKind::SyncData) });
    let accepted: Vec<_> = [1, -1, 1].into_iter().map(|acks| begin(&client, acks, b"lost")).collect();
    for outcome in accepted {
        assert_eq!(end(&client, outcome).error_code, ErrorCode::KafkaStorageError.get());
    }
    let later = client.produce_one("t", 0, batch(&[b"later"]));
    assert_eq!(later.error_code, ErrorCode::KafkaStorageError.get(), "a sync is never tried again");
}

#[test]
fn what_waits_for_a_sync_is_acknowledged_when_the_mode_asks_for_none_any_more() {
    let broker = slow(("flush.messages", "1"));
    let client = broker.client();
    let outcome = begin(&client, 1, b"first");
    broker.world().advance_ms(5);
    let began = broker.world().now();
    broker.set_config("t", &[("flush.messages", "100")]);
    assert_eq!(end(&client, outcome).error_code, 0);
    assert!(broker.world().now().nanos_since(began) < SYNC_NANOS / 2);
    broker.set_config("t", &[("flush.messages", "1")]);
    let began = broker.world().now();
    assert_eq!(client.produce_one("t", 0, batch(&[b"second"])).error_code, 0);
    assert!(broker.world().now().nanos_since(began) >= SYNC_NANOS);
}

#[test]
fn flush_by_count_and_by_time_makes_records_durable_and_keeps_nobody_waiting() {
    for (setting, wait_ms) in [(("flush.messages", "3"), 200), (("flush.ms", "300"), 600)] {
        let broker = slow(setting);
        let client = broker.client();
        let began = broker.world().now();
        for _ in 0..3 {
            assert_eq!(client.produce_one("t", 0, batch(&[b"value"])).error_code, 0);
        }
        assert!(broker.world().now().nanos_since(began) < SYNC_NANOS / 2, "{setting:?}");
        assert_eq!(log_of(&broker.world().disk().crash(Crash::DropUnsynced)), 0, "{setting:?}");
        broker.world().advance_ms(wait_ms);
        let live = log_of(broker.world().disk());
        assert_eq!(log_of(&broker.world().disk().crash(Crash::DropUnsynced)), live, "{setting:?}");
    }
}

#[test]
fn who_shares_the_shard_with_a_topic_that_waits_for_its_sync_does_not_wait() {
    let broker = slow(("flush.messages", "1"));
    broker.create("other", 50, &[]);
    broker.world().run_until_idle();
    let client = broker.client();
    let outcome = begin(&client, 1, b"slow");
    broker.world().advance_ms(1);
    let began = broker.world().now();
    for partition in 0..50 {
        assert_eq!(client.produce_one("other", partition, batch(&[b"value"])).error_code, 0);
        assert_eq!(values(&client.fetch_one("other", partition, 0)), [b"value"]);
    }
    assert!(values(&client.fetch_one("t", 0, 0)).is_empty(), "its sync is not over");
    assert_eq!(end(&client, outcome).error_code, 0);
    assert!(broker.world().now().nanos_since(began) >= SYNC_NANOS / 2);
}

#[test]
fn in_relaxed_mode_a_record_is_acknowledged_in_memory_and_read_when_it_is_written() {
    for acks in [1, -1] {
        let broker = slow(("flush.messages", "100"));
        let topic = broker.topic("t");
        let relaxed = configured(&[("storage.durability.mode", "relaxed")]);
        let config = Arc::new(TopicConfig::effective(&BTreeMap::new(), &relaxed));
        broker.ask(ShardId::new(0), PartitionAsk::SetConfig(SetConfig { topic_id: topic.id, config }));
        let client = broker.client();
        assert_eq!(client.produce_one("t", 0, batch(&[b"first"])).error_code, 0);
        broker.world().run_until_idle();
        broker.world().disk().set_latency(Latency { min_nanos: SYNC_NANOS, max_nanos: SYNC_NANOS });
        let began = broker.world().now();
        let outcome = begin(&client, acks, b"second");
        assert_eq!(end(&client, outcome).error_code, 0);
        assert!(broker.world().now().nanos_since(began) < SYNC_NANOS / 2, "nothing was written yet");
        let data = client.fetch_one("t", 0, 1);
        assert_eq!((values(&data), data.high_watermark), (Vec::<Vec<u8>>::new(), 2));
        broker.world().advance_ms(50);
        assert_eq!(values(&client.fetch_one("t", 0, 1)), [b"second"]);
    }
}

#[test]
fn a_topic_without_settings_waits_for_no_sync() {
    let broker = slow(("retention.ms", "1000"));
    let client = broker.client();
    let began = broker.world().now();
    assert_eq!(client.produce_one("t", 0, batch(&[b"value"])).error_code, 0);
    assert!(broker.world().now().nanos_since(began) < SYNC_NANOS / 2);
}
