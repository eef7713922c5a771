//! The messages of a wrapper as a whole, and how one of them is written by itself: what compaction needs when a wrapper
//! loses some. The wrapper's own codec is not used again: it would take the faulty LZ4 header of magic 0 (KAFKA-3160).

use super::{LegacyError, MessageView};
use crate::records::batch::TimestampType;
use crate::records::crc;
use crate::types::{Offset, TimestampMs};

/// The messages of one wrapper, decompressed: at most what [`decompressed_bytes_max`] allows.
///
/// [`decompressed_bytes_max`]: crate::records::compression::decompressed_bytes_max
#[derive(Debug)]
pub struct Unpacked {
    run: Vec<u8>,
    magic: i8,
    /// What the offsets of the messages count from.
    base: Offset,
    /// The one timestamp of all messages.
    append_time: Option<TimestampMs>,
}

/// One message of a wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerMessage<'a> {
    /// Its offset in the log.
    pub offset: Offset,
    /// Its timestamp; -1 in magic 0.
    pub timestamp: TimestampMs,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
}

impl Unpacked {
    /// Decompresses a wrapper.
    ///
    /// # Errors
    /// See [`LegacyError`].
    pub fn of(wrapper: &MessageView<'_>) -> Result<Self, LegacyError> {
        let value = wrapper.value()?.ok_or(LegacyError::EmptyWrapper)?;
        let mut source = wrapper.source(value.len())?;
        let mut run = Vec::new();
        loop {
            let chunk = source.next_chunk(value)?;
            if chunk.is_empty() {
                break;
            }
            run.extend_from_slice(chunk);
        }
        let append_time = wrapper.attributes().timestamp_type() == TimestampType::LogAppendTime;
        let append_time = append_time.then(|| wrapper.max_timestamp());
        let mut unpacked = Self { run, magic: wrapper.magic(), base: Offset::ZERO, append_time };
        if unpacked.magic == 1 {
            let last = unpacked.last()?.ok_or(LegacyError::EmptyWrapper)?;
            let base = wrapper.last_offset().since(last);
            // Some versions of librdkafka left 0 in the wrapper: then the inner offsets are all there is.
            unpacked.base = Offset::new(base.max(0));
        }
        Ok(unpacked)
    }

    fn last(&self) -> Result<Option<Offset>, LegacyError> {
        let mut last = None;
        for message in self.messages() {
            last = Some(message?.offset);
        }
        Ok(last)
    }

    /// The messages in their order, up to the first malformed one. A partial message at the end is passed over.
    pub fn messages(&self) -> impl Iterator<Item = Result<InnerMessage<'_>, LegacyError>> {
        let mut rest = self.run.as_slice();
        std::iter::from_fn(move || {
            let inner = match MessageView::parse(rest) {
                Ok(inner) => inner,
                Err(crate::records::batch::BatchError::Truncated { .. }) => return None,
                Err(error) => {
                    rest = &[];
                    return Some(Err(LegacyError::Inner(error)));
                }
            };
            rest = rest.get(inner.size_in_bytes()..).unwrap_or_default();
            Some(self.message(&inner))
        })
    }

    fn message<'a>(&self, inner: &MessageView<'a>) -> Result<InnerMessage<'a>, LegacyError> {
        if inner.magic() != self.magic {
            return Err(LegacyError::Inner(crate::records::batch::BatchError::BadMagic(inner.magic())));
        }
        if inner.is_compressed() {
            return Err(LegacyError::Nested);
        }
        let (key, value) = inner.fields()?;
        let offset = self.base.plus(inner.last_offset().get());
        let timestamp = self.append_time.unwrap_or_else(|| inner.max_timestamp());
        Ok(InnerMessage { offset, timestamp, key, value })
    }

    /// Writes a message of this wrapper by itself, in the wrapper's format; `None`, with nothing written, if it does not
    /// fit one.
    pub fn write(&self, message: &InnerMessage<'_>, out: &mut Vec<u8>) -> Option<()> {
        let attributes = if self.append_time.is_some() { 0x08 } else { 0 };
        let mut body = vec![self.magic.cast_unsigned(), attributes];
        if self.magic == 1 {
            body.extend_from_slice(&message.timestamp.get().to_be_bytes());
        }
        for field in [message.key, message.value] {
            let len = field.map_or(Ok(-1), |field| i32::try_from(field.len())).ok()?;
            body.extend_from_slice(&len.to_be_bytes());
            body.extend_from_slice(field.unwrap_or_default());
        }
        let size = i32::try_from(body.len().checked_add(4)?).ok()?;
        out.extend_from_slice(&message.offset.get().to_be_bytes());
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&crc::crc32(&body).to_be_bytes());
        out.extend_from_slice(&body);
        Some(())
    }
}
