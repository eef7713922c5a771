//! Batches that are built before the run: at the moment of sending only stamps, keys, timestamps and the CRC change, in
//! place. Owns the bytes of batches that are not on their way; knows no connection. The producer takes from it.

use anyhow::{Context, Result};
use protocol::records::batch::{BATCH_HEADER_BYTES, BatchView};
use protocol::records::builder::BatchBuilder;
use protocol::records::crc::crc32c;
use protocol::records::record::Record;
use protocol::types::TimestampMs;

use crate::content::{Stamp, VALUE_BYTES_MIN, payload, value};

/// Where the fields stand that change (protocol.md 4.1); the CRC covers everything from the attributes on.
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const BASE_TIMESTAMP: usize = 27;
const MAX_TIMESTAMP: usize = 35;

/// Bytes of a key.
const KEY_BYTES: usize = 8;

/// What the batches of a run have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a value, at least [`VALUE_BYTES_MIN`].
    pub record_bytes: usize,
    /// Number of keys; 0: records have none.
    pub keys: u64,
}

/// What a batch gets at the moment of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Of the first record.
    pub stamp: Stamp,
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// Key of the first record, and how far the next record's key is from it.
    pub key: (u64, u64),
}

/// Places in one record.
#[derive(Clone, Copy, Debug)]
struct Fields {
    key: Option<usize>,
    value: usize,
    payload_crc: u32,
}

/// One batch.
#[derive(Clone, Debug)]
pub struct Prepared {
    bytes: Vec<u8>,
    records: Vec<Fields>,
    keys: u64,
}

impl Prepared {
    /// A batch of `count` records with payloads of its own.
    ///
    /// # Errors
    /// A batch that does not fit Kafka's format.
    pub fn new(shape: Shape, count: u64, seed: u64) -> Result<Self> {
        let mut builder = BatchBuilder::new();
        let mut payload_crcs = Vec::new();
        for i in 0..count {
            let number = seed.wrapping_mul(count).wrapping_add(i);
            let value = value(Stamp { run: 0, partition: 0, number }, shape.record_bytes);
            let payload = payload(number, shape.record_bytes.saturating_sub(VALUE_BYTES_MIN));
            payload_crcs.push(crc32c(&payload));
            let key = (shape.keys > 0).then_some([0; KEY_BYTES]);
            builder.push(
                TimestampMs::new(0),
                key.as_ref().map(<[u8; KEY_BYTES]>::as_slice),
                Some(&value),
                &[],
            );
        }
        let bytes = builder.build()?.to_vec();
        let mut rest = bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default();
        let mut records = Vec::with_capacity(payload_crcs.len());
        for payload_crc in payload_crcs {
            let (record, after) = Record::parse(rest)?;
            let place = |field: &[u8]| field.as_ptr().addr() - bytes.as_ptr().addr();
            let value = record.value.map(place).context("a value")?;
            records.push(Fields { key: record.key.map(place), value, payload_crc });
            rest = after;
        }
        Ok(Self { bytes, records, keys: shape.keys })
    }

    /// The batch as it goes out.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Records in it.
    pub fn count(&self) -> u64 {
        u64::try_from(self.records.len()).unwrap_or(u64::MAX)
    }

    /// Makes the batch the one that is sent now.
    pub fn stamp(&mut self, sending: &Sending) {
        let ((mut next, step), keys) = (sending.key, self.keys);
        self.stamp_with(sending.stamp, sending.now_ms, |_| {
            let key = next;
            next = next.wrapping_add(step) % keys;
            key
        });
    }

    /// The same, where `key` tells the key of each record by its number.
    pub fn stamp_with(&mut self, mut stamp: Stamp, now_ms: i64, mut key: impl FnMut(u64) -> u64) {
        put(&mut self.bytes, BASE_TIMESTAMP, &now_ms.to_be_bytes());
        put(&mut self.bytes, MAX_TIMESTAMP, &now_ms.to_be_bytes());
        for fields in &self.records {
            put(&mut self.bytes, fields.value, &stamp.bytes(fields.payload_crc));
            if let Some(at) = fields.key {
                put(&mut self.bytes, at, &key(stamp.number).to_be_bytes());
            }
            stamp.number = stamp.number.wrapping_add(1);
        }
        let crc = crc32c(self.bytes.get(ATTRIBUTES..).unwrap_or_default());
        put(&mut self.bytes, CRC, &crc.to_be_bytes());
        debug_assert!(BatchView::parse(&self.bytes).is_ok_and(|batch| batch.crc_is_valid()));
    }
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len())) {
        place.copy_from_slice(field);
    }
}

/// Batches that wait to be sent. Taken in turn, so that payloads differ; few enough to stay in the processor's cache.
#[derive(Debug)]
pub struct Pool {
    shape: Shape,
    count: u64,
    free: std::collections::VecDeque<Prepared>,
    made: u64,
}

/// Bytes of batches that are kept: more leaves the cache of a core.
const POOL_BYTES: usize = 512 << 10;
/// Batches that are kept at most.
const POOL_BATCHES_MAX: usize = 64;

impl Pool {
    /// A pool of batches of `count` records.
    ///
    /// # Errors
    /// A batch that does not fit Kafka's format.
    pub fn new(shape: Shape, count: u64) -> Result<Self> {
        let first = Prepared::new(shape, count, 0)?;
        let batches = (POOL_BYTES / first.bytes.len().max(1)).clamp(2, POOL_BATCHES_MAX);
        let mut pool = Self { shape, count, free: [first].into(), made: 1 };
        while pool.free.len() < batches {
            let batch = pool.make(count)?;
            pool.free.push_back(batch);
        }
        Ok(pool)
    }

    fn make(&mut self, count: u64) -> Result<Prepared> {
        self.made += 1;
        Prepared::new(self.shape, count, self.made)
    }

    /// A batch of `count` records that nobody else holds.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn take(&mut self, count: u64) -> Result<Prepared> {
        match self.free.pop_front() {
            Some(batch) if count == self.count => Ok(batch),
            Some(batch) => {
                self.free.push_front(batch);
                self.make(count)
            }
            None => self.make(count),
        }
    }

    /// Gives a batch back.
    pub fn give(&mut self, batch: Prepared) {
        if batch.count() == self.count && self.free.len() < 4 * POOL_BATCHES_MAX {
            self.free.push_back(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::check_batch;

    fn sending(number: u64) -> Sending {
        Sending { stamp: Stamp { run: 7, partition: 3, number }, now_ms: 1234, key: (6, 4) }
    }

    #[test]
    fn a_stamped_batch_is_whole_and_tells_its_records() {
        let mut batch = Prepared::new(Shape { record_bytes: 100, keys: 0 }, 5, 1).expect("batch");
        for first in [0, 1000] {
            batch.stamp(&sending(first));
            let view = BatchView::parse(batch.bytes()).expect("whole");
            assert_eq!((view.base_timestamp().get(), view.max_timestamp().get()), (1234, 1234));
            let mut seen = Vec::new();
            check_batch(3, 0, &view, |_, stamp, _| seen.push((stamp.run, stamp.number))).expect("sound");
            assert_eq!(seen, (first..first + 5).map(|number| (7, number)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_go_round() {
        let mut batch = Prepared::new(Shape { record_bytes: 16, keys: 8 }, 3, 1).expect("batch");
        batch.stamp(&sending(0));
        let view = BatchView::parse(batch.bytes()).expect("whole");
        let mut records = protocol::records::reader::Records::of(&view).expect("records");
        let mut keys = Vec::new();
        while let Some(record) = records.next_record().expect("record") {
            keys.push(u64::from_be_bytes(record.key.expect("key").try_into().expect("eight bytes")));
        }
        assert_eq!(keys, [6, 2, 6]);
    }

    #[test]
    fn a_pool_gives_each_batch_to_one_holder() {
        let mut pool = Pool::new(Shape { record_bytes: 1024, keys: 0 }, 64).expect("pool");
        let kept = pool.free.len();
        assert!(kept >= 2 && kept * 64 * 1024 <= POOL_BYTES, "{kept}");
        let taken: Vec<_> = (0..kept + 3).map(|_| pool.take(64).expect("batch")).collect();
        assert!(taken.windows(2).all(|pair| pair[0].bytes() != pair[1].bytes()));
        let short = pool.take(3).expect("batch");
        assert_eq!(short.count(), 3);
        pool.give(short);
        assert_eq!(pool.free.len(), 0);
        taken.into_iter().for_each(|batch| pool.give(batch));
        assert_eq!(pool.free.len(), kept + 3);
    }
}
