//! Makes batches: for tests, for load generators, for the batches a broker writes itself. Knows nothing of what a broker
//! accepts: it can make batches that [`super::validate`] refuses.

use bytes::BytesMut;

use crate::records::batch::{Attributes, BATCH_HEADER_BYTES, Header, LOG_OVERHEAD_BYTES, TimestampType};
use crate::records::compression::{CompressError, Compression, Compressor};
use crate::records::varint::{varlong_size, write_varint, write_varlong};
use crate::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

/// Why a batch could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The batch, one of its fields or the number of its records does not fit into Kafka's 32-bit lengths.
    #[error("the batch is too large for its format")]
    TooLarge,
    /// The records could not be compressed.
    #[error(transparent)]
    Compress(#[from] CompressError),
}

/// A header of a record to be written: key, and value or null.
pub type HeaderToWrite<'a> = (&'a [u8], Option<&'a [u8]>);

/// Collects records and makes one magic-2 batch of them. Defaults: offset 0, no leader epoch, no producer, CreateTime,
/// not compressed, not transactional. The first record's timestamp becomes the base timestamp.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    header: Header,
    compression: Compression,
    /// Room for the header, then the records.
    batch: Vec<u8>,
    /// Set by the caller instead of derived from the records.
    last_offset_delta: Option<i32>,
    max_timestamp: Option<TimestampMs>,
    /// A length did not fit; told by `build`.
    too_large: bool,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// A builder without records.
    pub fn new() -> Self {
        Self {
            header: Header {
                base_offset: Offset::ZERO,
                partition_leader_epoch: LeaderEpoch::NONE,
                attributes: Attributes::default(),
                last_offset_delta: -1,
                base_timestamp: TimestampMs::NONE,
                max_timestamp: TimestampMs::NONE,
                producer_id: ProducerId::NONE,
                producer_epoch: ProducerEpoch::NONE,
                base_sequence: -1,
                record_count: 0,
            },
            compression: Compression::None,
            batch: vec![0; BATCH_HEADER_BYTES],
            last_offset_delta: None,
            max_timestamp: None,
            too_large: false,
        }
    }

    /// Sets the base offset; producers leave 0.
    #[must_use]
    pub fn base_offset(mut self, base_offset: Offset) -> Self {
        self.header.base_offset = base_offset;
        self
    }
    /// Sets the partition leader epoch; producers leave -1.
    #[must_use]
    pub fn partition_leader_epoch(mut self, leader_epoch: LeaderEpoch) -> Self {
        self.header.partition_leader_epoch = leader_epoch;
        self
    }
    /// Makes it the batch of an idempotent producer.
    #[must_use]
    pub fn producer(mut self, id: ProducerId, epoch: ProducerEpoch, base_sequence: i32) -> Self {
        self.header.producer_id = id;
        self.header.producer_epoch = epoch;
        self.header.base_sequence = base_sequence;
        self
    }
    /// Sets the attribute bits, those of the codec aside.
    #[must_use]
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.header.attributes = attributes;
        self
    }
    /// Sets the timestamp type.
    #[must_use]
    pub fn timestamp_type(mut self, timestamp_type: TimestampType) -> Self {
        self.header.attributes = self.header.attributes.with_timestamp_type(timestamp_type);
        self
    }
    /// Compresses the records.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }
    /// Makes it transactional.
    #[must_use]
    pub fn transactional(mut self) -> Self {
        self.header.attributes = self.header.attributes.transactional();
        self
    }
    /// Makes it a control batch.
    #[must_use]
    pub fn control(mut self) -> Self {
        self.header.attributes = self.header.attributes.control();
        self
    }
    /// Overrides the last offset delta, as compaction leaves it when it removes the last records.
    #[must_use]
    pub fn last_offset_delta(mut self, delta: i32) -> Self {
        self.last_offset_delta = Some(delta);
        self
    }
    /// Overrides the maximum timestamp, which else is that of the records.
    #[must_use]
    pub fn max_timestamp(mut self, max_timestamp: TimestampMs) -> Self {
        self.max_timestamp = Some(max_timestamp);
        self
    }

    /// Appends a record at the next offset.
    pub fn push(
        &mut self,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderToWrite<'_>],
    ) -> &mut Self {
        self.push_at(self.header.last_offset_delta.saturating_add(1), timestamp, key, value, headers)
    }

    /// Appends a record at a chosen offset delta, as compaction leaves gaps.
    pub fn push_at(
        &mut self,
        offset_delta: i32,
        timestamp: TimestampMs,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[HeaderToWrite<'_>],
    ) -> &mut Self {
        if self.header.record_count == 0 {
            self.header.base_timestamp = timestamp;
        }
        self.header.record_count = self.header.record_count.saturating_add(1);
        self.header.last_offset_delta = offset_delta;
        self.header.max_timestamp = self.header.max_timestamp.max(timestamp);
        let timestamp_delta = timestamp.get().wrapping_sub(self.header.base_timestamp.get());
        let written = write_record(&mut self.batch, timestamp_delta, offset_delta, (key, value), headers);
        self.too_large |= written.is_none();
        self
    }

    /// Bytes of the batch so far, before compression.
    pub fn size_in_bytes(&self) -> usize {
        self.batch.len()
    }
    /// Number of records so far.
    pub fn record_count(&self) -> i32 {
        self.header.record_count
    }

    /// Makes the batch.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(self) -> Result<BytesMut, BuildError> {
        self.begin()?.finish()
    }

    /// Begins to make the batch.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn begin(mut self) -> Result<Making, BuildError> {
        if self.too_large {
            return Err(BuildError::TooLarge);
        }
        self.header.attributes = self.header.attributes.with_codec(self.compression.codec());
        self.header.last_offset_delta = self.last_offset_delta.unwrap_or(self.header.last_offset_delta);
        self.header.max_timestamp = self.max_timestamp.unwrap_or(self.header.max_timestamp);
        let (batch, position) = (self.batch, BATCH_HEADER_BYTES);
        let compressor = if self.compression == Compression::None {
            None
        } else {
            let size = batch.len() - BATCH_HEADER_BYTES;
            Some(Compressor::new(self.compression, vec![0; BATCH_HEADER_BYTES], Some(size))?)
        };
        Ok(Making { header: self.header, batch, position, compressor })
    }
}

/// A batch whose records are being compressed. That takes some milliseconds for each MiB: whoever must not stop for so long
/// does it part by part.
pub struct Making {
    header: Header,
    /// Room for the header, then the records as they are.
    batch: Vec<u8>,
    /// Where in it the next part begins.
    position: usize,
    /// None without a codec.
    compressor: Option<Compressor>,
}

impl Making {
    /// Compresses so many more bytes of the records, but one at least; whether there are more.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn go_on(&mut self, bytes: usize) -> Result<bool, BuildError> {
        let Some(compressor) = &mut self.compressor else { return Ok(false) };
        let left = self.batch.get(self.position..).unwrap_or_default();
        let part = left.get(..bytes.max(1)).unwrap_or(left);
        compressor.write(part)?;
        self.position += part.len();
        Ok(self.position < self.batch.len())
    }

    /// The batch; compresses what is left.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn finish(mut self) -> Result<BytesMut, BuildError> {
        while self.go_on(usize::MAX)? {}
        let mut batch = match self.compressor {
            Some(compressor) => compressor.finish()?,
            None => self.batch,
        };
        let length = i32::try_from(batch.len() - LOG_OVERHEAD_BYTES).map_err(|_| BuildError::TooLarge)?;
        self.header.write(&mut batch, length);
        Ok(BytesMut::from(bytes::Bytes::from(batch)))
    }
}

/// Appends one record; `None`, with garbage appended, if a length does not fit.
fn write_record(
    out: &mut Vec<u8>,
    timestamp_delta: i64,
    offset_delta: i32,
    (key, value): (Option<&[u8]>, Option<&[u8]>),
    headers: &[HeaderToWrite<'_>],
) -> Option<()> {
    let count = i32::try_from(headers.len()).ok()?;
    let mut size = 1 + varlong_size(timestamp_delta) + varlong_size(i64::from(offset_delta));
    size += bytes_size(key)? + bytes_size(value)? + varlong_size(i64::from(count));
    for (key, value) in headers {
        size += bytes_size(Some(key))? + bytes_size(*value)?;
    }
    write_varint(out, i32::try_from(size).ok()?);
    out.push(0);
    write_varlong(out, timestamp_delta);
    write_varint(out, offset_delta);
    write_bytes(out, key)?;
    write_bytes(out, value)?;
    write_varint(out, count);
    for (key, value) in headers {
        write_bytes(out, Some(key))?;
        write_bytes(out, *value)?;
    }
    Some(())
}

fn bytes_size(bytes: Option<&[u8]>) -> Option<usize> {
    match bytes {
        None => Some(1),
        Some(bytes) => Some(varlong_size(i64::from(i32::try_from(bytes.len()).ok()?)) + bytes.len()),
    }
}

fn write_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) -> Option<()> {
    match bytes {
        None => write_varint(out, -1),
        Some(bytes) => {
            write_varint(out, i32::try_from(bytes.len()).ok()?);
            out.extend_from_slice(bytes);
        }
    }
    Some(())
}
