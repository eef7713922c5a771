//! Record values that prove themselves: each carries its run, its number in its partition, and a check over both, its
//! partition and its payload, so that a reader finds every lost, repeated, reordered or changed record without being
//! told what was sent. Knows no connection; prepared batches and every reader use it.
//!
//! ```text
//! 0     4        12      16
//! run   |number  |check  |payload, half of it random
//! u32   |u64     |u32    |
//! ```

use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::{BatchBuilder, BuildError};
use protocol::records::crc::crc32c;
use protocol::types::TimestampMs;

/// The smallest value: a stamp without a payload.
pub const VALUE_BYTES_MIN: usize = 16;

/// What names a record: a run, a partition, a number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Drawn anew by each run.
    pub run: u32,
    /// Partition that the record was sent to; not written, but checked.
    pub partition: i32,
    /// Counts from 0 in each partition of a run.
    pub number: u64,
}

impl Stamp {
    /// The bytes in front of a payload with this CRC-32C.
    pub fn bytes(&self, payload_crc: u32) -> [u8; VALUE_BYTES_MIN] {
        let mut bytes = [0; VALUE_BYTES_MIN];
        let (run, rest) = bytes.split_at_mut(4);
        let (number, check) = rest.split_at_mut(8);
        run.copy_from_slice(&self.run.to_be_bytes());
        number.copy_from_slice(&self.number.to_be_bytes());
        check.copy_from_slice(&self.check(payload_crc).to_be_bytes());
        bytes
    }

    /// Two rounds of a multiplicative mixer: a change of any of the four inputs changes the check.
    fn check(&self, payload_crc: u32) -> u32 {
        let place = (u64::from(self.run) << 32) | u64::from(self.partition.cast_unsigned());
        let mixed = mix(mix(place) ^ self.number) ^ u64::from(payload_crc);
        let [a, b, c, d, ..] = mix(mixed).to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// What a value of `partition` carries, if it is whole and was sent there.
    pub fn read(partition: i32, value: &[u8]) -> Option<Self> {
        let (stamp, payload) = value.split_first_chunk::<VALUE_BYTES_MIN>()?;
        let (run, rest) = stamp.split_first_chunk()?;
        let number = rest.first_chunk()?;
        let found = Self { run: u32::from_be_bytes(*run), partition, number: u64::from_be_bytes(*number) };
        (found.bytes(crc32c(payload)) == *stamp).then_some(found)
    }
}

/// A mixer of all bits: what differs in one bit differs in half of them.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A payload of which half the bytes are random, so that a codec would halve it.
pub fn payload(seed: u64, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(bytes + 16);
    let mut state = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    while payload.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        payload.extend_from_slice(&mix(state).to_be_bytes());
        payload.extend_from_slice(b"odradek.");
    }
    payload.truncate(bytes);
    payload
}

/// The value of a record, `bytes` long.
pub fn value(stamp: Stamp, bytes: usize) -> Vec<u8> {
    let payload = payload(stamp.number, bytes.saturating_sub(VALUE_BYTES_MIN));
    let mut value = stamp.bytes(crc32c(&payload)).to_vec();
    value.extend_from_slice(&payload);
    value
}

/// A batch of the records `first .. first + count` of run 0.
///
/// # Errors
/// See [`BuildError`].
pub fn batch(
    partition: i32,
    first: u64,
    count: u32,
    bytes: usize,
    now: TimestampMs,
) -> Result<Vec<u8>, BuildError> {
    let mut builder = BatchBuilder::new();
    for i in 0..u64::from(count) {
        let value = value(Stamp { run: 0, partition, number: first.wrapping_add(i) }, bytes);
        builder.push(now, None, Some(&value), &[]);
    }
    Ok(builder.build()?.to_vec())
}

/// Why records that were read are not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// A batch is damaged.
    #[error("a damaged batch at or after offset {0}")]
    Batch(i64),
    /// A record is not what its number says.
    #[error("a changed record at offset {0}")]
    Record(i64),
}

/// Calls `record` with offset, stamp and bytes of the value of each record of one batch from offset `from` on.
///
/// # Errors
/// The first damage found.
pub fn check_batch(
    partition: i32,
    from: i64,
    batch: &BatchView<'_>,
    mut record: impl FnMut(i64, Stamp, usize),
) -> Result<(), Wrong> {
    if !batch.crc_is_valid() {
        return Err(Wrong::Batch(from));
    }
    let damaged = |_| Wrong::Batch(from);
    let mut records = protocol::records::reader::Records::of(batch).map_err(damaged)?;
    while let Some(found) = records.next_record().map_err(damaged)? {
        let offset = batch.base_offset().plus(i64::from(found.offset_delta)).get();
        if offset >= from {
            let value = found.value.unwrap_or_default();
            let stamp = Stamp::read(partition, value).ok_or(Wrong::Record(offset))?;
            record(offset, stamp, value.len());
        }
    }
    Ok(())
}

/// Calls `record` with offset and number of each record from `from` on; returns the next offset to read.
///
/// # Errors
/// The first damage found.
pub fn check(
    partition: i32,
    from: i64,
    fetched: &[u8],
    mut record: impl FnMut(i64, u64),
) -> Result<i64, Wrong> {
    let mut next = from;
    for batch in BatchIter::new(fetched) {
        let batch: BatchView<'_> = batch.map_err(|_| Wrong::Batch(next))?;
        check_batch(partition, next, &batch, |offset, stamp, _| record(offset, stamp.number))?;
        next = batch.next_offset().get().max(next);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_stamp_and_no_other_is_believed() {
        let stamp = Stamp { run: 9, partition: 3, number: 17 };
        let sent = value(stamp, 100);
        assert_eq!(sent.len(), 100);
        assert_eq!(Stamp::read(3, &sent), Some(stamp));
        assert_eq!(Stamp::read(4, &sent), None);
        for at in 0..sent.len() {
            let mut changed = sent.clone();
            changed[at] ^= 1;
            assert_eq!(Stamp::read(3, &changed), None, "a change at {at}");
            assert_eq!(Stamp::read(3, &sent[..at]), None, "cut at {at}");
        }
        assert_eq!(value(stamp, 0).len(), VALUE_BYTES_MIN);
    }

    #[test]
    fn half_of_a_payload_is_random() {
        let sent = payload(5, 4096);
        let fixed = sent.chunks(8).filter(|chunk| chunk == b"odradek.").count();
        assert_eq!((sent.len(), fixed), (4096, 256));
        assert_ne!(sent, payload(6, 4096));
    }

    #[test]
    fn a_batch_is_checked_record_by_record() {
        let sent = batch(1, 5, 3, 40, TimestampMs::new(1)).expect("batch");
        let mut seen = Vec::new();
        assert_eq!(check(1, 1, &sent, |offset, number| seen.push((offset, number))), Ok(3));
        assert_eq!(seen, [(1, 6), (2, 7)]);
        assert_eq!(check(2, 0, &sent, |_, _| {}), Err(Wrong::Record(0)));
        let mut changed = sent;
        changed[100] ^= 1;
        assert_eq!(check(1, 0, &changed, |_, _| {}), Err(Wrong::Batch(0)));
    }
}
