//! Record values that prove themselves: each is derived from its partition and number, so that a reader finds every
//! lost, repeated, reordered or changed record without being told what was sent.

use protocol::records::batch::{BatchIter, BatchView};
use protocol::records::builder::{BatchBuilder, BuildError};
use protocol::types::TimestampMs;

/// The smallest value that carries its number.
pub const VALUE_BYTES_MIN: usize = 16;

/// The value of record `number` of `partition`: both, then bytes of a generator seeded with them.
pub fn value(partition: i32, number: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes.max(VALUE_BYTES_MIN));
    value.extend_from_slice(&number.to_be_bytes());
    value.extend_from_slice(&i64::from(partition).to_be_bytes());
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(partition.unsigned_abs());
    while value.len() < bytes {
        // Half of the bytes are random, so that compression has something to do.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        value.extend_from_slice(&(state >> 32).to_be_bytes());
    }
    value.truncate(bytes.max(VALUE_BYTES_MIN));
    value
}

/// The number that a value carries, if it is whole and of this partition.
pub fn number_of(partition: i32, found: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(*found.first_chunk()?);
    (found == value(partition, number, found.len())).then_some(number)
}

/// A batch of records `first .. first + count`.
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
        let value = value(partition, first.wrapping_add(i), bytes);
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
        if !batch.crc_is_valid() {
            return Err(Wrong::Batch(next));
        }
        let mut records = protocol::records::reader::Records::of(&batch).map_err(|_| Wrong::Batch(next))?;
        while let Some(found) = records.next_record().map_err(|_| Wrong::Batch(next))? {
            let offset = batch.base_offset().plus(i64::from(found.offset_delta)).get();
            if offset < from {
                continue;
            }
            let number =
                found.value.and_then(|value| number_of(partition, value)).ok_or(Wrong::Record(offset))?;
            record(offset, number);
        }
        next = batch.next_offset().get().max(next);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_number_and_no_other_is_believed() {
        let sent = value(3, 17, 100);
        assert_eq!(sent.len(), 100);
        assert_eq!(number_of(3, &sent), Some(17));
        assert_eq!(number_of(4, &sent), None);
        let mut changed = sent;
        changed[60] ^= 1;
        assert_eq!(number_of(3, &changed), None);
    }

    #[test]
    fn a_batch_is_checked_record_by_record() {
        let sent = batch(1, 5, 3, 40, TimestampMs::new(1)).expect("batch");
        let mut seen = Vec::new();
        assert_eq!(check(1, 1, &sent, |offset, number| seen.push((offset, number))), Ok(3));
        assert_eq!(seen, [(1, 6), (2, 7)]);
    }
}
