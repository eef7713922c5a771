//! What a leader accepts from a producer (protocol.md 3.3 checks 4 to 8 and 13 to 18, and 4.5), and what it rewrites:
//! maximum timestamp, timestamp type, CRC, codec. An acceptable batch whose codec is kept stays in its buffer, patched
//! in place. Knows no log: base offset and leader epoch are patched by the log at the append, duplicates and sequences
//! are its producer state's, `segment.bytes` is the log's. Called by the produce path.
//!
//! Large compressed batches take long to decompress and longer to recompress, so [`Validation`] goes in steps that the
//! owner of a partition interleaves with its turns; [`validate_produced`] does all at once.

use bytes::{Bytes, BytesMut};

use crate::records::batch::{
    Attributes, BATCH_HEADER_BYTES, BatchError, BatchInfo, BatchView, Header, LOG_OVERHEAD_BYTES, MAGIC_V2,
    Prefix, TimestampType, set_max_timestamp_and_type,
};
use crate::records::compression::{Codec, Compression, Compressor, Decompressor};
use crate::records::record::RecordError;
use crate::records::refusal::{ProduceError, RecordFault, RecordFaultKind, RecordFaults};
use crate::records::scan::{RecordMeta, RecordScanner};
use crate::types::{Offset, TimestampMs};

/// The first version of Produce that may carry zstd (KIP-110).
const ZSTD_VERSION_MIN: i16 = 7;

/// What the rules of a topic, and of the request's version, ask of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidationRules {
    /// Version of the Produce request, 3 or above.
    pub request_version: i16,
    /// `max.message.bytes`: the largest batch, header included, as sent and as recompressed.
    pub max_message_bytes: usize,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: how far a CreateTime timestamp may lie behind the broker's clock.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: how far it may lie ahead.
    pub timestamp_after_max_ms: i64,
    /// Whether records may lack a key.
    pub keys: KeyRule,
    /// `compression.type`, with the level of its codec.
    pub compression: CompressionRule,
}

/// Whether records may lack a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRule {
    /// They may.
    Optional,
    /// The topic is compacted (`cleanup.policy` contains `compact`).
    Required,
}

/// What codec a batch is stored with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionRule {
    /// `producer`: the one it came with.
    Producer,
    /// This one. A batch that came with the same codec is kept as it is, whatever its level.
    Recompress(Compression),
}

/// A batch that may be appended.
#[derive(Debug)]
pub struct Validated {
    /// Exactly one batch; offset 0 and the client's leader epoch still in it.
    pub batch: BytesMut,
    /// Its header.
    pub info: BatchInfo,
    /// What the Produce answer says: the append time on LogAppendTime topics, else -1 (fault F22).
    pub log_append_time: TimestampMs,
    /// Whether the records were compressed anew, so that `batch` is not the buffer that came in.
    pub recompressed: bool,
}

/// Whether a [`Validation`] is over.
#[derive(Debug)]
pub enum Progress {
    /// There is more to do.
    More,
    /// The verdict. The steps are over.
    Done(Result<Validated, ProduceError>),
}

/// Checks 4 to 8: the shape of what a Produce request (version 3 or above) carries for one partition. Cheap: reads no
/// record and no CRC. Answers the one batch; bytes behind it are a partial batch, to be cut off. For the handler, which
/// must look at producer and transaction before it asks the owner of the partition.
///
/// # Errors
/// The first check that fails.
pub fn check_shape(records: &[u8], request_version: i16) -> Result<BatchView<'_>, ProduceError> {
    let prefix = Prefix::parse(records).map_err(|error| match error {
        BatchError::Truncated { .. } => ProduceError::NoBatch,
        BatchError::BadLength(length) => ProduceError::BadLength(length),
        BatchError::BadMagic(magic) => ProduceError::BadMagic(magic),
    })?;
    if !(0..=MAGIC_V2).contains(&prefix.magic) {
        return Err(ProduceError::BadMagic(prefix.magic));
    }
    if records.len() < prefix.size_in_bytes {
        return Err(ProduceError::NoBatch);
    }
    if prefix.magic != MAGIC_V2 {
        return Err(ProduceError::OldMagic(prefix.magic));
    }
    let view = BatchView::parse(records).map_err(|error| match error {
        BatchError::Truncated { .. } => ProduceError::NoBatch,
        BatchError::BadLength(length) => ProduceError::BadLength(length),
        BatchError::BadMagic(magic) => ProduceError::BadMagic(magic),
    })?;
    let attributes = view.attributes();
    match attributes.codec() {
        None => return Err(ProduceError::UnknownCodec(attributes.codec_id())),
        Some(Codec::Zstd) if request_version < ZSTD_VERSION_MIN => {
            return Err(ProduceError::ZstdTooEarly { request_version });
        }
        Some(_) => {}
    }
    check_tail(records.get(view.size_in_bytes()..).unwrap_or_default())?;
    Ok(view)
}

/// Behind the batch there may be part of another one, but not a whole one.
fn check_tail(tail: &[u8]) -> Result<(), ProduceError> {
    match Prefix::parse(tail) {
        Ok(prefix) if !(0..=MAGIC_V2).contains(&prefix.magic) => Err(ProduceError::BadMagic(prefix.magic)),
        Ok(prefix) if prefix.size_in_bytes <= tail.len() => Err(ProduceError::SeveralBatches),
        Ok(_) | Err(BatchError::Truncated { .. }) => Ok(()),
        Err(BatchError::BadLength(length)) => Err(ProduceError::BadLength(length)),
        Err(BatchError::BadMagic(magic)) => Err(ProduceError::BadMagic(magic)),
    }
}

/// Validates at once what a Produce request carries for one partition.
///
/// # Errors
/// The first check that fails; nothing may be appended then.
pub fn validate_produced(
    records: BytesMut,
    rules: &ValidationRules,
    now: TimestampMs,
) -> Result<Validated, ProduceError> {
    let mut validation = Validation::new(records, rules, now)?;
    loop {
        if let Progress::Done(verdict) = validation.step(usize::MAX) {
            return verdict;
        }
    }
}

/// A validation under way. Dropping it forgets the batch.
pub struct Validation {
    /// Exactly the batch.
    batch: BytesMut,
    source: Decompressor,
    scanner: RecordScanner,
    checks: RecordChecks,
    recompression: Option<Recompression>,
    rules: ValidationRules,
    now: TimestampMs,
}

/// The batch being written with another codec.
struct Recompression {
    compression: Compression,
    /// `None` once the output is too large: the records behind are still checked, because their faults come first.
    output: Option<Compressor>,
    size_in_bytes: usize,
}

impl Validation {
    /// Does checks 4 to 8 and 13 to 16: everything but the records. Costs one pass over the batch, for its CRC.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn new(
        mut records: BytesMut,
        rules: &ValidationRules,
        now: TimestampMs,
    ) -> Result<Self, ProduceError> {
        let view = check_shape(&records, rules.request_version)?;
        check_batch(&view, rules)?;
        let attributes = view.attributes();
        let codec = attributes.codec().ok_or(ProduceError::UnknownCodec(attributes.codec_id()))?;
        let payload = view.payload().len();
        let recompression = match rules.compression {
            CompressionRule::Recompress(compression) if compression.codec() != codec => {
                let known_size = (codec == Codec::None).then_some(payload);
                let header = vec![0; BATCH_HEADER_BYTES];
                let output = Some(Compressor::new(compression, header, known_size)?);
                Some(Recompression { compression, output, size_in_bytes: 0 })
            }
            CompressionRule::Recompress(_) | CompressionRule::Producer => None,
        };
        let validation = Self {
            source: Decompressor::new(codec, payload)?,
            scanner: RecordScanner::new(),
            checks: RecordChecks::new(&view, rules, now),
            recompression,
            rules: *rules,
            now,
            batch: BytesMut::new(),
        };
        records.truncate(view.size_in_bytes());
        Ok(Self { batch: records, ..validation })
    }

    /// Checks, and recompresses if need be, about `budget_bytes` of decompressed records: at least one piece (64 KiB, or
    /// one block of the codec), and at most one piece more than the budget.
    ///
    /// After `Done` there is nothing to step.
    pub fn step(&mut self, budget_bytes: usize) -> Progress {
        let mut left = budget_bytes;
        loop {
            match self.advance() {
                Err(error) => return Progress::Done(Err(error)),
                Ok(0) => return Progress::Done(self.finish()),
                Ok(walked) if walked >= left => return Progress::More,
                Ok(walked) => left -= walked,
            }
        }
    }

    /// One piece; its size, 0 at the end.
    fn advance(&mut self) -> Result<usize, ProduceError> {
        let payload = self.batch.get(BATCH_HEADER_BYTES..).unwrap_or_default();
        let chunk = self.source.next_chunk(payload)?;
        let checks = &mut self.checks;
        self.scanner.feed(chunk, |meta| checks.record(meta))?;
        if let Some(recompression) = &mut self.recompression {
            recompression.write(chunk, self.rules.max_message_bytes)?;
        }
        Ok(chunk.len())
    }

    fn finish(&mut self) -> Result<Validated, ProduceError> {
        self.checks.end(&self.scanner)?;
        let mut batch = std::mem::take(&mut self.batch);
        let (max_timestamp, log_append_time) = match self.rules.timestamp_type {
            TimestampType::CreateTime => (self.checks.max_timestamp, TimestampMs::NONE),
            TimestampType::LogAppendTime => (self.now, self.now),
        };
        let recompressed = self.recompression.is_some();
        if let Some(recompression) = self.recompression.take() {
            let compression = recompression.compression;
            let output = recompression.finish(self.rules.max_message_bytes)?;
            batch = rewrite_header(&batch, output, compression, max_timestamp, self.rules.timestamp_type)?;
        } else {
            set_max_timestamp_and_type(&mut batch, max_timestamp, self.rules.timestamp_type);
        }
        let info = BatchInfo::parse_header(&batch).map_err(|_| ProduceError::NoBatch)?;
        Ok(Validated { batch, info, log_append_time, recompressed })
    }
}

impl Recompression {
    fn write(&mut self, records: &[u8], max_message_bytes: usize) -> Result<(), ProduceError> {
        let Some(output) = &mut self.output else { return Ok(()) };
        output.write(records)?;
        self.size_in_bytes = output.output_len();
        if self.size_in_bytes > max_message_bytes {
            self.output = None;
        }
        Ok(())
    }

    fn finish(self, max_message_bytes: usize) -> Result<Vec<u8>, ProduceError> {
        let too_large = |size_in_bytes| ProduceError::TooLarge { size_in_bytes, max_message_bytes };
        let output = self.output.ok_or(too_large(self.size_in_bytes))?.finish()?;
        if output.len() > max_message_bytes { Err(too_large(output.len())) } else { Ok(output) }
    }
}

/// Puts the header of `batch` over the recompressed records, as Kafka's rebuild does: bits without a meaning and the
/// delete horizon are dropped.
fn rewrite_header(
    batch: &[u8],
    mut output: Vec<u8>,
    compression: Compression,
    max_timestamp: TimestampMs,
    timestamp_type: TimestampType,
) -> Result<BytesMut, ProduceError> {
    let view = BatchView::parse(batch).map_err(|_| ProduceError::NoBatch)?;
    let mut header = Header::of(&view);
    let sent = header.attributes;
    header.attributes =
        Attributes::default().with_codec(compression.codec()).with_timestamp_type(timestamp_type);
    if sent.is_transactional() {
        header.attributes = header.attributes.transactional();
    }
    header.max_timestamp = max_timestamp;
    let length = output.len().saturating_sub(LOG_OVERHEAD_BYTES);
    let length = i32::try_from(length).map_err(|_| ProduceError::TooLarge {
        size_in_bytes: output.len(),
        max_message_bytes: output.len(),
    })?;
    header.write(&mut output, length);
    // A vector nobody else holds becomes a `BytesMut` without a copy.
    Ok(BytesMut::from(Bytes::from(output)))
}

/// Checks 13 to 16: what the header must say, in Kafka's order.
fn check_batch(view: &BatchView<'_>, rules: &ValidationRules) -> Result<(), ProduceError> {
    let info = view.info();
    if info.base_offset != Offset::ZERO {
        return Err(ProduceError::BaseOffset(info.base_offset));
    }
    if info.size_in_bytes > rules.max_message_bytes {
        return Err(ProduceError::TooLarge {
            size_in_bytes: info.size_in_bytes,
            max_message_bytes: rules.max_message_bytes,
        });
    }
    if !view.crc_is_valid() {
        return Err(ProduceError::BadCrc { stated: view.crc() });
    }
    let last_offset_delta = view.last_offset_delta();
    if last_offset_delta < 0 {
        return Err(ProduceError::BadOffsetRange { last_offset_delta });
    }
    if info.record_count <= 0 || i64::from(info.record_count) != i64::from(last_offset_delta) + 1 {
        return Err(ProduceError::BadCount { record_count: info.record_count, last_offset_delta });
    }
    if info.attributes.is_control() {
        return Err(ProduceError::ControlBatch);
    }
    if info.has_producer_id() && info.base_sequence < 0 {
        return Err(ProduceError::NoSequence { producer_id: info.producer_id });
    }
    Ok(())
}

/// The rules that each record meets, and what the walk finds out. Small and flat: one call per record.
struct RecordChecks {
    keys: KeyRule,
    timestamp_type: TimestampType,
    timestamp_before_max_ms: i64,
    timestamp_after_max_ms: i64,
    now: i64,
    base_timestamp: i64,
    /// The client set the bit that only a broker may set; then every record has the batch's maximum timestamp.
    claimed_append_time: Option<i64>,
    record_count: i32,
    /// Records seen so far.
    index: i32,
    max_timestamp: TimestampMs,
    faults: RecordFaults,
}

impl RecordChecks {
    fn new(view: &BatchView<'_>, rules: &ValidationRules, now: TimestampMs) -> Self {
        let claimed = view.attributes().timestamp_type() == TimestampType::LogAppendTime;
        Self {
            keys: rules.keys,
            timestamp_type: rules.timestamp_type,
            timestamp_before_max_ms: rules.timestamp_before_max_ms,
            timestamp_after_max_ms: rules.timestamp_after_max_ms,
            now: now.get(),
            base_timestamp: view.base_timestamp().get(),
            claimed_append_time: claimed.then_some(view.max_timestamp().get()),
            record_count: view.record_count(),
            index: 0,
            max_timestamp: TimestampMs::NONE,
            faults: RecordFaults::default(),
        }
    }

    #[inline]
    fn record(&mut self, meta: RecordMeta) -> Result<(), ProduceError> {
        if self.index >= self.record_count {
            return Err(ProduceError::WrongRecordCount { stated: self.record_count });
        }
        if meta.offset_delta != self.index {
            return Err(ProduceError::BadOffsetDelta { index: self.index, offset_delta: meta.offset_delta });
        }
        let created = self.base_timestamp.wrapping_add(meta.timestamp_delta);
        let timestamp = self.claimed_append_time.unwrap_or(created);
        if let Some(kind) = self.fault(meta.has_key, timestamp) {
            self.faults.push(RecordFault { index: self.index, kind });
        }
        self.max_timestamp = self.max_timestamp.max(TimestampMs::new(timestamp));
        self.index += 1;
        Ok(())
    }

    #[inline]
    fn fault(&self, has_key: bool, timestamp: i64) -> Option<RecordFaultKind> {
        if self.keys == KeyRule::Required && !has_key {
            return Some(RecordFaultKind::NoKey);
        }
        if self.timestamp_type == TimestampType::CreateTime && timestamp != TimestampMs::NONE.get() {
            let behind = self.now.saturating_sub(timestamp);
            let ahead = timestamp.saturating_sub(self.now);
            let outside = behind > self.timestamp_before_max_ms || ahead > self.timestamp_after_max_ms;
            return outside.then_some(RecordFaultKind::TimestampOutOfRange(TimestampMs::new(timestamp)));
        }
        self.claimed_append_time.map(|_| RecordFaultKind::ClaimedLogAppendTime)
    }

    fn end(&mut self, scanner: &RecordScanner) -> Result<(), ProduceError> {
        if !scanner.is_between_records() {
            return Err(RecordError::Truncated.into());
        }
        if self.index != self.record_count {
            return Err(ProduceError::WrongRecordCount { stated: self.record_count });
        }
        let faults = std::mem::take(&mut self.faults);
        if faults.is_empty() { Ok(()) } else { Err(ProduceError::Records(faults)) }
    }
}

#[cfg(test)]
mod tests;
