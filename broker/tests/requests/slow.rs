//! A disk whose operations take 100 ms holds up only what is on it: on one shard, and whatever the partitions there do.

use broker::handlers::RequestHandler;
use storage::io::{Queue, Runtime};

use crate::harness::*;

/// What a client waits at most for a partition that is not on the slow disk; an operation there takes five times as long.
const LIMIT_MS: i64 = 20;

const SMALL: &[(&str, &str)] = &[("segment.bytes", "2000")];

/// Small segments, so that rolls, flushes and reads of old segments are among what takes long.
fn value() -> Vec<u8> {
    vec![b'v'; 300]
}

#[test]
fn a_partition_on_a_slow_disk_holds_up_no_other_of_its_shard() {
    let broker = Broker::new(1);
    for name in ["slow", "fast"] {
        broker.create(name, 1, SMALL);
        for _ in 0..20 {
            assert_eq!(broker.client().produce_one(name, 0, batch(&[&value()])).error_code, 0);
        }
    }
    broker.world().disk().set_slow(Some(("/slow-0/", 100_000_000)));
    let client = broker.client();
    let (mut longest, mut tasks) = (0, Vec::new());
    for round in 0..40 {
        // Not waited for: they stand in the queue of their partition, roll it, and read what is in no memory.
        let produce = produce_request(-1, &[("slow", 0, batch(&[&value()]))]);
        let fetch = fetch_request(&[("slow", 0, round % 20)]);
        for request in [client.request(9, &produce), client.request(11, &fetch)] {
            let handlers = broker.handlers[0].clone();
            tasks.push(
                broker.world().spawn(Queue::Request, async move { drop(handlers.handle(request).await) }),
            );
        }
        let began = broker.now_ms();
        assert_eq!(client.produce_one("fast", 0, batch(&[&value()])).error_code, 0);
        let read = client.fetch_one("fast", 0, round % 20);
        assert_eq!((read.error_code, values(&read).is_empty()), (0, false));
        longest = longest.max(broker.now_ms() - began);
        // The flushes of a minute, of both, are among it.
        if round % 10 == 9 {
            broker.world().advance_ms(61_000);
        }
    }
    assert!(longest <= LIMIT_MS, "{longest} ms");
    broker.world().disk().set_slow(None);
    broker.world().advance_ms(60_000);
    let end = client.fetch_one("slow", 0, 0).high_watermark;
    assert!(end > 20, "what was asked of the slow one was done at last: {end}");
    drop(tasks);
}
