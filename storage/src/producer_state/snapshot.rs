//! The file that keeps producers over a restart (storage.md 2.5).
//!
//! ```text
//!  0  2  version 1          |  0  8  producer id                | 26  8  timestamp
//!  2  4  CRC-32C of 6..end  |  8  2  producer epoch             | 34  4  coordinator epoch, -1 none
//!  6  4  number of entries  | 10  4  last sequence, -1 none     | 38  8  first offset of the open
//! 10     entries of 46      | 14  8  last offset, -1 none       |        transaction, -1 none
//!                           | 22  4  last offset - first offset |
//! ```
//! Only the last batch of each producer survives.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use smallvec::SmallVec;

use super::{ProducedBatch, ProducerState};

const VERSION: i16 = 1;
const HEADER_BYTES: usize = 10;
const CRC_FROM: usize = 6;
const ENTRY_BYTES: usize = 46;
/// Sequences count from 0 to 2^31-1 and then from 0 again.
const SEQUENCES: i64 = 1 << 31;

/// Why a snapshot is corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It is shorter than its fixed part.
    #[error("{0} bytes are too few")]
    TooShort(usize),
    /// It has another version.
    #[error("version {0} is not known")]
    UnknownVersion(i16),
    /// The stored CRC is not that of the content: torn, or written over a longer one.
    #[error("CRC {stored:#010x} is stored, {computed:#010x} computed")]
    BadCrc {
        /// What the file says.
        stored: u32,
        /// What its content gives.
        computed: u32,
    },
    /// The number of entries does not fit the size.
    #[error("{claimed} entries do not take {bytes} bytes")]
    WrongCount {
        /// What the file says.
        claimed: i32,
        /// Bytes behind the fixed part.
        bytes: usize,
    },
}

fn crc(content: &[u8]) -> u32 {
    protocol::records::crc::crc32c(content.get(CRC_FROM..).unwrap_or_default())
}

pub(super) fn print(producers: &BTreeMap<ProducerId, ProducerState>) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER_BYTES + producers.len() * ENTRY_BYTES);
    out.put_i16(VERSION);
    out.put_u32(0);
    // More than 2^31 producers do not fit into memory.
    out.put_i32(i32::try_from(producers.len()).unwrap_or(i32::MAX));
    for (id, state) in producers {
        let last = state.batches.last();
        let delta = last.map_or(0, |batch| batch.last_offset.since(batch.first_offset));
        out.put_i64(id.get());
        out.put_i16(state.epoch.get());
        out.put_i32(state.last_sequence());
        out.put_i64(last.map_or(Offset::NONE, |batch| batch.last_offset).get());
        out.put_i32(i32::try_from(delta).unwrap_or(i32::MAX));
        out.put_i64(state.last_timestamp.get());
        out.put_i32(state.coordinator_epoch);
        out.put_i64(state.txn_first_offset.unwrap_or(Offset::NONE).get());
    }
    let crc = crc(&out);
    if let Some(field) = out.get_mut(2..CRC_FROM) {
        field.copy_from_slice(&crc.to_be_bytes());
    }
    out.freeze()
}

/// The entries of a snapshot, which was found to be whole; read one at a time, as they are larger in memory.
pub(super) fn parse(
    content: &[u8],
) -> Result<impl Iterator<Item = (ProducerId, ProducerState)> + '_, SnapshotError> {
    let Some((mut header, entries)) = content.split_at_checked(HEADER_BYTES) else {
        return Err(SnapshotError::TooShort(content.len()));
    };
    let (version, stored, claimed) = (header.get_i16(), header.get_u32(), header.get_i32());
    if version != VERSION {
        return Err(SnapshotError::UnknownVersion(version));
    }
    let computed = crc(content);
    if stored != computed {
        return Err(SnapshotError::BadCrc { stored, computed });
    }
    let (raw, rest) = entries.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() || usize::try_from(claimed) != Ok(raw.len()) {
        return Err(SnapshotError::WrongCount { claimed, bytes: entries.len() });
    }
    Ok(raw.iter().map(entry))
}

fn entry(raw: &[u8; ENTRY_BYTES]) -> (ProducerId, ProducerState) {
    let mut fields = &raw[..];
    let id = ProducerId::new(fields.get_i64());
    let epoch = ProducerEpoch::new(fields.get_i16());
    let (last_sequence, last_offset, delta) = (fields.get_i32(), fields.get_i64(), fields.get_i32());
    let timestamp = TimestampMs::new(fields.get_i64());
    let coordinator_epoch = fields.get_i32();
    let txn_first_offset = Some(fields.get_i64()).filter(|offset| *offset >= 0).map(Offset::new);
    let mut batches = SmallVec::new();
    if last_offset >= 0 {
        batches.push(ProducedBatch {
            first_sequence: first_sequence(last_sequence, delta),
            last_sequence,
            first_offset: Offset::new(last_offset.saturating_sub(i64::from(delta))),
            last_offset: Offset::new(last_offset),
            timestamp,
        });
    }
    let state = ProducerState {
        epoch,
        batches,
        coordinator_epoch,
        last_timestamp: timestamp,
        seen: timestamp,
        txn_first_offset,
    };
    (id, state)
}

/// `last - delta` among sequences that wrap; -1 for a batch without sequences.
fn first_sequence(last: i32, delta: i32) -> i32 {
    if last < 0 {
        return -1;
    }
    let first = (i64::from(last) - i64::from(delta)).rem_euclid(SEQUENCES);
    i32::try_from(first).unwrap_or(-1)
}
