//! What compaction makes of a batch (storage.md 7.5): the same batch with fewer records, or with none. Offsets, sequences,
//! producer, epoch, codec and timestamp type stay; the count, the greatest timestamp and, for a delete horizon (KIP-534),
//! the base timestamp change. Decides nothing: the caller says which records stay.

use crate::records::batch::{
    Attributes, BATCH_HEADER_BYTES, BatchView, Header, LOG_OVERHEAD_BYTES, TimestampType,
};
use crate::records::builder::BuildError;
use crate::records::compression::{Compression, Compressor};
use crate::records::reader::ReadError;
use crate::records::record::Record;
use crate::records::varint::{varlong_size, write_varint, write_varlong};
use crate::types::TimestampMs;

/// Why a batch was not written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// Its records cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// They cannot be written.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Writes a batch with the records that stay, one at a time: a compressed batch is never in memory as a whole.
pub struct BatchRewrite {
    header: Header,
    append_time: bool,
    original_base: TimestampMs,
    /// Known from the first record on, or from the start where it is the delete horizon.
    base_timestamp: Option<TimestampMs>,
    records: Compressor,
    record: Vec<u8>,
}

impl BatchRewrite {
    /// Begins with the header of `original`. `delete_horizon` is set for the first time; one that is there stays.
    ///
    /// # Errors
    /// A codec that is not known; a lack of memory.
    pub fn new(original: &BatchView<'_>, delete_horizon: Option<TimestampMs>) -> Result<Self, RewriteError> {
        let mut header = Header::of(original);
        let attributes = header.attributes;
        let codec = attributes.codec().ok_or(ReadError::UnknownCodec(attributes.codec_id()))?;
        let append_time = attributes.timestamp_type() == TimestampType::LogAppendTime;
        let original_base = header.base_timestamp;
        let mut base_timestamp = attributes.has_delete_horizon().then_some(original_base);
        header.attributes = attributes.known();
        if let Some(horizon) = delete_horizon.filter(|_| base_timestamp.is_none()) {
            header.attributes = header.attributes.delete_horizon();
            base_timestamp = Some(horizon);
        }
        header.record_count = 0;
        if !append_time {
            header.max_timestamp = TimestampMs::NONE;
        }
        let compression = Compression::default_level(codec);
        let records =
            Compressor::new(compression, vec![0; BATCH_HEADER_BYTES], None).map_err(BuildError::from)?;
        Ok(Self { header, append_time, original_base, base_timestamp, records, record: Vec::new() })
    }

    /// Takes a record of the original, in its order.
    ///
    /// # Errors
    /// See [`RewriteError`].
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), RewriteError> {
        let timestamp = TimestampMs::new(self.original_base.get().wrapping_add(record.timestamp_delta));
        let base = *self.base_timestamp.get_or_insert(timestamp);
        if !self.append_time {
            self.header.max_timestamp = self.header.max_timestamp.max(timestamp);
        }
        self.header.record_count = self.header.record_count.checked_add(1).ok_or(BuildError::TooLarge)?;
        self.record.clear();
        let delta = timestamp.get().wrapping_sub(base.get());
        put_record(&mut self.record, record, delta).ok_or(BuildError::TooLarge)?;
        self.records.write(&self.record).map_err(BuildError::from)?;
        Ok(())
    }

    /// Makes the batch; at least one record was pushed.
    ///
    /// # Errors
    /// It does not fit its format.
    pub fn finish(mut self) -> Result<Vec<u8>, RewriteError> {
        self.header.base_timestamp = self.base_timestamp.unwrap_or(TimestampMs::NONE);
        let batch = self.records.finish().map_err(BuildError::from)?;
        Ok(write_header(&self.header, batch)?)
    }
}

/// The header of a batch whose records are all gone, which keeps what is known of its producer and its offsets.
///
/// # Errors
/// None that a batch can cause.
pub fn emptied(original: &BatchView<'_>) -> Result<Vec<u8>, RewriteError> {
    let mut header = Header::of(original);
    let attributes = header.attributes;
    let mut kept = Attributes::default().with_timestamp_type(attributes.timestamp_type());
    if attributes.is_transactional() {
        kept = kept.transactional();
    }
    if attributes.is_control() {
        kept = kept.control();
    }
    header.attributes = kept;
    header.base_timestamp = TimestampMs::NONE;
    header.record_count = 0;
    Ok(write_header(&header, vec![0; BATCH_HEADER_BYTES])?)
}

fn write_header(header: &Header, mut batch: Vec<u8>) -> Result<Vec<u8>, BuildError> {
    let length = batch.len().saturating_sub(LOG_OVERHEAD_BYTES);
    let length = i32::try_from(length).map_err(|_| BuildError::TooLarge)?;
    header.write(&mut batch, length);
    Ok(batch)
}

/// Writes a record with another timestamp delta; `None` if a length does not fit.
fn put_record(out: &mut Vec<u8>, record: &Record<'_>, timestamp_delta: i64) -> Option<()> {
    let headers = record.headers.raw();
    let mut size = 1 + varlong_size(timestamp_delta) + varlong_size(i64::from(record.offset_delta));
    size += bytes_size(record.key)? + bytes_size(record.value)?;
    size += varlong_size(i64::from(record.headers.len())) + headers.len();
    write_varint(out, i32::try_from(size).ok()?);
    out.extend_from_slice(&record.attributes.to_be_bytes());
    write_varlong(out, timestamp_delta);
    write_varint(out, record.offset_delta);
    for bytes in [record.key, record.value] {
        match bytes {
            None => write_varint(out, -1),
            Some(bytes) => {
                write_varint(out, i32::try_from(bytes.len()).ok()?);
                out.extend_from_slice(bytes);
            }
        }
    }
    write_varint(out, record.headers.len());
    out.extend_from_slice(headers);
    Some(())
}

fn bytes_size(bytes: Option<&[u8]>) -> Option<usize> {
    match bytes {
        None => Some(1),
        Some(bytes) => Some(varlong_size(i64::from(i32::try_from(bytes.len()).ok()?)) + bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::builder::BatchBuilder;
    use crate::records::compression::Codec;
    use crate::records::reader::Records;
    use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId};

    const HEADERS: &[(&[u8], Option<&[u8]>)] = &[(b"h", None), (b"h", Some(b"x"))];

    fn original(codec: Codec) -> Vec<u8> {
        let mut builder = BatchBuilder::new()
            .base_offset(Offset::new(100))
            .partition_leader_epoch(LeaderEpoch::new(4))
            .producer(ProducerId::new(9), ProducerEpoch::new(2), 7)
            .transactional()
            .compression(Compression::default_level(codec));
        for at in 0..5_i32 {
            let key = [b'k', u8::try_from(at).unwrap()];
            let value = (at != 3).then_some(&b"value"[..]);
            builder.push(TimestampMs::new(1000 - i64::from(at)), Some(&key), value, HEADERS);
        }
        builder.build().unwrap().to_vec()
    }

    fn keep(bytes: &[u8], deltas: &[i32], horizon: Option<i64>) -> Vec<u8> {
        let view = BatchView::parse(bytes).unwrap();
        let mut rewrite = BatchRewrite::new(&view, horizon.map(TimestampMs::new)).unwrap();
        let mut records = Records::of(&view).unwrap();
        while let Some(record) = records.next_record().unwrap() {
            if deltas.contains(&record.offset_delta) {
                rewrite.push(&record).unwrap();
            }
        }
        rewrite.finish().unwrap()
    }

    /// Offset delta, timestamp, key, value, headers.
    type Seen = (i32, i64, Option<Vec<u8>>, Option<Vec<u8>>, i32);

    fn records(bytes: &[u8]) -> Vec<Seen> {
        let view = BatchView::parse(bytes).unwrap();
        let mut all = Records::of(&view).unwrap();
        let mut seen = Vec::new();
        while let Some(record) = all.next_record().unwrap() {
            let timestamp = view.base_timestamp().get() + record.timestamp_delta;
            let (key, value) = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
            seen.push((record.offset_delta, timestamp, key, value, record.headers.len()));
        }
        seen
    }

    #[test]
    fn the_records_that_stay_are_what_they_were_in_every_codec() {
        for codec in Codec::ALL {
            let bytes = original(codec);
            let kept = keep(&bytes, &[1, 3], None);
            let (before, after) = (BatchView::parse(&bytes).unwrap(), BatchView::parse(&kept).unwrap());
            assert!(after.crc_is_valid());
            let all = records(&bytes);
            assert_eq!(records(&kept), [all[1].clone(), all[3].clone()], "{codec:?}");
            let (info, then) = (after.info(), before.info());
            assert_eq!((info.base_offset, info.last_offset), (then.base_offset, then.last_offset));
            assert_eq!((info.base_sequence, info.last_sequence), (then.base_sequence, then.last_sequence));
            assert_eq!((info.producer_id, info.producer_epoch), (then.producer_id, then.producer_epoch));
            assert_eq!(info.partition_leader_epoch, then.partition_leader_epoch);
            assert_eq!((info.attributes, info.record_count), (then.attributes, 2));
            assert_eq!(info.max_timestamp, TimestampMs::new(999), "of what is left");
        }
    }

    #[test]
    fn a_delete_horizon_is_set_once_and_keeps_the_times() {
        let bytes = original(Codec::Zstd);
        let marked = keep(&bytes, &[0, 1, 2, 3, 4], Some(5000));
        let view = BatchView::parse(&marked).unwrap();
        assert!(view.attributes().has_delete_horizon() && view.crc_is_valid());
        assert_eq!(view.base_timestamp(), TimestampMs::new(5000));
        assert_eq!(records(&marked), records(&bytes));
        let again = keep(&marked, &[3, 4], Some(9000));
        let view = BatchView::parse(&again).unwrap();
        assert_eq!((view.base_timestamp(), view.record_count()), (TimestampMs::new(5000), 2));
        assert_eq!(records(&again), records(&bytes)[3..]);
    }

    #[test]
    fn a_batch_of_append_time_keeps_its_greatest_timestamp() {
        let mut bytes = original(Codec::None);
        crate::records::batch::set_max_timestamp_and_type(
            &mut bytes,
            TimestampMs::new(77_777),
            TimestampType::LogAppendTime,
        );
        let kept = keep(&bytes, &[2], None);
        assert_eq!(BatchView::parse(&kept).unwrap().max_timestamp(), TimestampMs::new(77_777));
    }

    #[test]
    fn an_emptied_batch_keeps_offsets_producer_and_time_and_has_no_codec_and_no_horizon() {
        let bytes = keep(&original(Codec::Gzip), &[0, 3], Some(5000));
        let empty = emptied(&BatchView::parse(&bytes).unwrap()).unwrap();
        let (before, after) = (BatchView::parse(&bytes).unwrap(), BatchView::parse(&empty).unwrap());
        assert!(after.crc_is_valid());
        assert_eq!((after.size_in_bytes(), after.record_count()), (BATCH_HEADER_BYTES, 0));
        let (info, then) = (after.info(), before.info());
        assert_eq!((info.base_offset, info.last_offset), (then.base_offset, then.last_offset));
        assert_eq!((info.base_sequence, info.last_sequence), (then.base_sequence, then.last_sequence));
        assert_eq!((info.max_timestamp, info.base_timestamp), (then.max_timestamp, TimestampMs::NONE));
        assert!(info.attributes.is_transactional() && !info.attributes.has_delete_horizon());
        assert_eq!(info.attributes.codec_id(), 0);
    }
}
