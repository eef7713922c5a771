//! What is counted reaches the text, summed over shards, in a form that Prometheus reads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use futures_util::StreamExt;
use protocol::api::{ApiKey, SERVED};
use protocol::error::ErrorCode;
use protocol::types::{MonoTime, TopicName};

use super::ShardMetrics;
use super::names::{Family, Kind};
use super::registry::{Answered, Handled};
use super::scrape::{ScrapeError, Scraper};
use super::snapshot::{Led, PartitionRow, ShardSnapshot, Value};
use super::state::{LogDirState, Progress};
use super::text::{self, Values};

fn row(topic: &str, partition: i32) -> PartitionRow {
    PartitionRow {
        topic: TopicName::new(topic),
        partition,
        size: 10,
        log_start_offset: 1,
        log_end_offset: 5,
        segments: 2,
        is_offline: false,
        led: Some(Led { isr: 1, replicas: 2, min_isr: 1 }),
        last_stable_offset_lag: 0,
    }
}

/// Scrapes shards that answer with these.
fn scrape(shards: Vec<ShardSnapshot>) -> String {
    let count = u16::try_from(shards.len()).unwrap();
    let (mut scraper, seats) =
        Scraper::new(count, Progress::new(count), vec![LogDirState::new("/data".into())]);
    let answering: Vec<_> = (0..)
        .zip(seats.into_iter().zip(shards))
        .map(|(shard, (mut seat, snapshot))| {
            thread::spawn(move || {
                let ask = futures_executor(seat.next());
                ask.unwrap().reply.send((shard, snapshot)).unwrap();
            })
        })
        .collect();
    let text = scraper.scrape().unwrap();
    answering.into_iter().for_each(|thread| thread.join().unwrap());
    text
}

/// Blocks a test's thread on a future.
fn futures_executor<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

fn value_of<'a>(text: &'a str, series: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

#[test]
fn names_and_helps_are_fit_for_the_format() {
    let names: BTreeSet<_> = Family::ALL.iter().map(|family| family.name()).collect();
    assert_eq!(names.len(), Family::ALL.len(), "no name twice");
    for family in Family::ALL {
        let name = family.name();
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        let is_counter = family.kind() == Kind::Counter;
        assert!(is_counter || !name.ends_with("_total"), "{name}");
        // Kafka calls the counts of its coordinators so.
        let is_count =
            name.starts_with("kafka_server_group_coordinator_metrics_") && name.ends_with("_count");
        assert!(!is_counter || name.ends_with("_total") || is_count, "{name}");
        assert!(family.help().ends_with('.') && !family.help().contains(['\\', '\n']), "{name}");
    }
}

#[test]
fn every_served_api_and_every_error_code_has_a_cell() {
    let metrics = ShardMetrics::default();
    let at = MonoTime::new(0);
    let answered = Answered { known: at, turn: at, written: at, bytes: 1 };
    for api in SERVED {
        let request = Handled {
            key: api.key,
            version: api.max,
            bytes: 1,
            by_follower: false,
            received: at,
            began: at,
            handled: at,
            parked_nanos: 0,
        };
        metrics.answered(&request, &answered);
    }
    for code in ErrorCode::ALL {
        metrics.error(ApiKey::Metadata, code.get(), 1);
    }
    metrics.error(ApiKey::Metadata, i16::MIN, 1);
    let mut out = ShardSnapshot::default();
    metrics.tell(0, &mut out);
    let count = |family| out.samples.iter().filter(|sample| sample.family == family).count();
    assert_eq!(count(Family::ApiRequests), SERVED.len() + 1, "Fetch is told under two names");
    assert_eq!(count(Family::ApiErrors), ErrorCode::ALL.len());
}

#[test]
fn label_values_are_escaped() {
    let mut values = Values::new();
    let labels = vec![("topic", Arc::from("a\\b\"c\nd"))];
    values.insert((Family::BytesIn, labels), Value::Whole(7));
    let text = text::write(&values, None);
    assert!(text.contains("bytesin_total{topic=\"a\\\\b\\\"c\\nd\"} 7\n"), "{text}");
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn shards_are_added_up() {
    let shard = |records: u64, partition: i32| {
        let metrics = ShardMetrics::default();
        let topic = metrics.topic(&TopicName::new("t"));
        topic.produce_requested();
        topic.appended(records, 100);
        metrics.log_flush.record_nanos(2_000_000);
        let mut out = ShardSnapshot::default();
        metrics.tell(0, &mut out);
        metrics.tell_topics(None, 10, &mut 10, &mut out);
        out.partitions.push(row("t", partition));
        out
    };
    let text = scrape(vec![shard(3, 1), shard(4, 0)]);
    for (series, value) in [
        ("kafka_server_brokertopicmetrics_messagesin_total", "7"),
        ("kafka_server_brokertopicmetrics_messagesin_total{topic=\"t\"}", "7"),
        ("kafka_server_brokertopicmetrics_bytesin_total", "200"),
        ("kafka_server_replicamanager_partitioncount", "2"),
        ("kafka_server_replicamanager_underreplicatedpartitions", "2"),
        ("kafka_server_replicamanager_atminisrpartitioncount", "2"),
        ("kafka_log_log_logendoffset{topic=\"t\",partition=\"1\"}", "5"),
        ("kafka_cluster_partition_underreplicated{topic=\"t\",partition=\"0\"}", "1"),
        ("kafka_log_logflushstats_logflushrateandtimems_count", "2"),
        ("kafka_log_logflushstats_logflushrateandtimems_sum", "4"),
        ("kafka_log_logmanager_logdirectoryoffline{logDirectory=\"/data\"}", "0"),
        ("kafka_server_kafkaserver_brokerstate", "1"),
    ] {
        assert_eq!(value_of(&text, series), Some(value), "{series} in\n{text}");
    }
    let series: Vec<_> =
        text.lines().filter(|l| !l.starts_with('#')).map(|l| l.rsplit_once(' ').unwrap().0).collect();
    assert_eq!(series.iter().collect::<BTreeSet<_>>().len(), series.len(), "no series twice");
    let types = text.lines().filter(|line| line.starts_with("# TYPE ")).collect::<Vec<_>>();
    assert_eq!(types.iter().collect::<BTreeSet<_>>().len(), types.len(), "each family once");
}

#[test]
fn a_topic_vanishes_and_the_sums_stay() {
    let metrics = ShardMetrics::default();
    let topic = metrics.topic(&TopicName::new("t"));
    topic.appended(3, 30);
    let tell = || {
        let mut out = ShardSnapshot::default();
        metrics.tell(0, &mut out);
        metrics.tell_topics(None, 10, &mut 10, &mut out);
        out.samples
            .into_iter()
            .filter(|s| s.family == Family::MessagesIn)
            .map(|s| (s.labels.len(), s.value))
            .collect::<Vec<_>>()
    };
    assert_eq!(tell(), [(0, Value::Whole(3)), (1, Value::Whole(3))]);
    drop(topic);
    assert_eq!(tell(), [(0, Value::Whole(3))]);
}

#[test]
fn topics_are_told_a_few_at_a_time_and_each_once() {
    let metrics = ShardMetrics::default();
    let name = |index: usize| TopicName::new(&format!("t{index}"));
    let mut topics: Vec<_> = (0..9).map(|index| metrics.topic(&name(index))).collect();
    drop(topics.remove(4));
    let (mut out, mut left, mut last, mut steps) = (ShardSnapshot::default(), 7, None, 0);
    loop {
        last = metrics.tell_topics(last.as_ref(), 2, &mut left, &mut out);
        if last.is_none() {
            break;
        }
        steps += 1;
    }
    assert_eq!((steps, left), (5, 0));
    let told: Vec<_> = out
        .samples
        .iter()
        .filter(|sample| sample.family == Family::MessagesIn)
        .map(|sample| sample.labels[0].1.to_string())
        .collect();
    assert_eq!(told, ["t0", "t1", "t2", "t3", "t5", "t6", "t7"]);
}

#[test]
fn times_of_a_request_add_up_as_kafka_splits_them() {
    let metrics = ShardMetrics::default();
    let ms = |ms| MonoTime::new(0).plus_ms(ms);
    let request = Handled {
        key: ApiKey::Fetch,
        version: 12,
        bytes: 80,
        by_follower: false,
        received: ms(0),
        began: ms(1),
        handled: ms(11),
        parked_nanos: 8_000_000,
    };
    metrics.answered(&request, &Answered { known: ms(11), turn: ms(15), written: ms(31), bytes: 500 });
    let mut out = ShardSnapshot::default();
    metrics.tell(0, &mut out);
    let text = scrape(vec![out]);
    for name in ["Fetch", "FetchConsumer"] {
        for (part, sum) in [
            ("totaltimems", 31),
            ("requestqueuetimems", 1),
            ("localtimems", 2),
            ("remotetimems", 8),
            ("responsequeuetimems", 4),
            ("responsesendtimems", 16),
        ] {
            let series = format!("kafka_network_requestmetrics_{part}_sum{{request=\"{name}\"}}");
            assert_eq!(value_of(&text, &series), Some(&*sum.to_string()), "{series}");
        }
    }
    assert_eq!(
        value_of(&text, "kafka_network_requestmetrics_requests_total{request=\"Fetch\",version=\"12\"}"),
        Some("1")
    );
    assert!(
        value_of(&text, "kafka_network_requestmetrics_totaltimems{request=\"Fetch\",quantile=\"0.999\"}")
            .is_some()
    );
}

#[test]
fn quantiles_of_a_window_and_sums_of_everything() {
    let metrics = ShardMetrics::default();
    let values = || {
        let mut out = ShardSnapshot::default();
        metrics.tell(0, &mut out);
        out.samples.into_iter().map(|s| ((s.family, s.labels), s.value)).collect::<Values>()
    };
    metrics.log_flush.record_nanos(1_000_000);
    let before = values();
    metrics.log_flush.record_nanos(64_000_000);
    let text = text::write(&values(), Some(&before));
    let name = "kafka_log_logflushstats_logflushrateandtimems";
    let median: f64 = value_of(&text, &format!("{name}{{quantile=\"0.50\"}}")).unwrap().parse().unwrap();
    assert!((63.0..66.0).contains(&median), "the one of a millisecond is not in the window: {median}");
    assert_eq!(value_of(&text, &format!("{name}_sum")), Some("65"));
    assert_eq!(value_of(&text, &format!("{name}_count")), Some("2"));
    let text = text::write(&before, Some(&before));
    assert_eq!(value_of(&text, &format!("{name}{{quantile=\"0.99\"}}")), Some("NaN"));
}

#[test]
fn a_shard_that_has_ended_fails_the_scrape() {
    let (mut scraper, seats) = Scraper::new(2, Progress::new(2), vec![LogDirState::new("/data".into())]);
    drop(seats);
    assert_eq!(scraper.scrape(), Err(ScrapeError::Stopped(0)));
}
