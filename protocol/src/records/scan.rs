//! Walks records that arrive in pieces, in bounded memory: keys, values and headers are stepped over, not kept. The
//! validator feeds it what a decompressor yields (C14); lookups by time do too. A record that lies within one piece is
//! read by [`super::record`]; only one that crosses a border takes the byte-wise path here, and both agree
//! (`pieces_do_not_matter`).

use crate::records::record::{Record, RecordError};
use crate::records::varint::{VarintError, read_varint};

/// What a walk tells of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordMeta {
    /// Milliseconds after the batch's base timestamp; may be negative.
    pub timestamp_delta: i64,
    /// Records after the batch's base offset.
    pub offset_delta: i32,
    /// Whether the key is not null.
    pub has_key: bool,
    /// Whether the value is not null.
    pub has_value: bool,
}

impl From<Record<'_>> for RecordMeta {
    fn from(record: Record<'_>) -> Self {
        Self {
            timestamp_delta: record.timestamp_delta,
            offset_delta: record.offset_delta,
            has_key: record.key.is_some(),
            has_value: record.value.is_some(),
        }
    }
}

/// The field that is read next; `skip` bytes come before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Length,
    Attributes,
    TimestampDelta,
    OffsetDelta,
    KeyLength,
    ValueLength,
    HeaderCount,
    HeaderKeyLength,
    HeaderValueLength,
    End,
}

/// A push parser of records.
#[derive(Clone, Debug)]
pub struct RecordScanner {
    next: Field,
    /// Bytes to step over before `next`.
    skip: usize,
    /// Bytes of the record that no field has claimed yet.
    left: usize,
    headers_left: i32,
    /// The integer being read: bits so far, and how many.
    integer: u64,
    shift: u32,
    meta: RecordMeta,
}

impl Default for RecordScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl RecordScanner {
    /// A scanner before the first record.
    pub const fn new() -> Self {
        let meta = RecordMeta { timestamp_delta: 0, offset_delta: 0, has_key: false, has_value: false };
        Self { next: Field::Length, skip: 0, left: 0, headers_left: 0, integer: 0, shift: 0, meta }
    }

    /// Walks the next piece of the records; calls `visit` at the end of each record, and ends early with its error.
    ///
    /// # Errors
    /// [`RecordError`] for malformed records, or what `visit` answered; do not feed on after one.
    pub fn feed<E: From<RecordError>>(
        &mut self,
        piece: &[u8],
        mut visit: impl FnMut(RecordMeta) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = piece;
        while !rest.is_empty() {
            if self.is_between_records()
                && let Some((record, after)) = whole_record(rest)?
            {
                visit(RecordMeta::from(record))?;
                rest = after;
                continue;
            }
            let (meta, after) = self.crawl(rest)?;
            if let Some(meta) = meta {
                visit(meta)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Whether what was fed ends with a whole record.
    pub const fn is_between_records(&self) -> bool {
        matches!(self.next, Field::Length) && self.shift == 0
    }

    /// Goes on until a record or the piece ends.
    fn crawl<'p>(&mut self, mut rest: &'p [u8]) -> Result<(Option<RecordMeta>, &'p [u8]), RecordError> {
        loop {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = rest.get(skipped..).unwrap_or_default();
            if self.skip > 0 {
                return Ok((None, rest));
            }
            if self.next == Field::End {
                if self.left > 0 {
                    return Err(RecordError::BytesLeft(self.left));
                }
                self.next = Field::Length;
                return Ok((Some(self.meta), rest));
            }
            let [byte, after @ ..] = rest else { return Ok((None, rest)) };
            rest = after;
            if self.next != Field::Length {
                self.left = self.left.checked_sub(1).ok_or(RecordError::Truncated)?;
            }
            self.take_byte(*byte)?;
            // A field that cannot begin any more is missing; found here, not when a byte that is not its own arrives.
            if self.left == 0 && self.skip == 0 && !matches!(self.next, Field::Length | Field::End) {
                return Err(RecordError::Truncated);
            }
        }
    }

    fn take_byte(&mut self, byte: u8) -> Result<(), RecordError> {
        match self.next {
            Field::Attributes => self.next = Field::TimestampDelta,
            Field::TimestampDelta => {
                if let Some(value) = self.take_integer(byte, 63, 0x01)? {
                    self.meta.timestamp_delta = value;
                    self.next = Field::OffsetDelta;
                }
            }
            _ => {
                if let Some(value) = self.take_integer(byte, 28, 0x0f)? {
                    // The limit on the last byte keeps it within 32 bits.
                    self.take_field(i32::try_from(value).map_err(|_| RecordError::BadVarint)?)?;
                }
            }
        }
        Ok(())
    }

    /// One more byte of an integer whose last byte has shift `last` and at most the bits `mask`; the value at its end.
    fn take_integer(&mut self, byte: u8, last: u32, mask: u8) -> Result<Option<i64>, RecordError> {
        if self.shift == last && byte > mask {
            return Err(RecordError::BadVarint);
        }
        self.integer |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        if byte >= 0x80 {
            return Ok(None);
        }
        let value = (self.integer >> 1).cast_signed() ^ -((self.integer & 1).cast_signed());
        self.integer = 0;
        self.shift = 0;
        Ok(Some(value))
    }

    fn take_field(&mut self, value: i32) -> Result<(), RecordError> {
        match self.next {
            Field::Length => {
                self.left = usize::try_from(value).map_err(|_| RecordError::BadLength(value))?;
                self.next = Field::Attributes;
            }
            Field::OffsetDelta => {
                self.meta.offset_delta = value;
                self.next = Field::KeyLength;
            }
            Field::KeyLength => {
                self.meta.has_key = self.step_over(value)?;
                self.next = Field::ValueLength;
            }
            Field::ValueLength => {
                self.meta.has_value = self.step_over(value)?;
                self.next = Field::HeaderCount;
            }
            Field::HeaderCount => {
                if value < 0 {
                    return Err(RecordError::BadLength(value));
                }
                self.headers_left = value;
                self.next = if value == 0 { Field::End } else { Field::HeaderKeyLength };
            }
            Field::HeaderKeyLength => {
                if !self.step_over(value)? {
                    return Err(RecordError::BadLength(value));
                }
                self.next = Field::HeaderValueLength;
            }
            Field::HeaderValueLength => {
                self.step_over(value)?;
                self.headers_left -= 1;
                self.next = if self.headers_left == 0 { Field::End } else { Field::HeaderKeyLength };
            }
            Field::Attributes | Field::TimestampDelta | Field::End => {}
        }
        Ok(())
    }

    /// Claims the bytes of a value of length `length`; whether it is not null.
    fn step_over(&mut self, length: i32) -> Result<bool, RecordError> {
        if length == -1 {
            return Ok(false);
        }
        let length = usize::try_from(length).map_err(|_| RecordError::BadLength(length))?;
        self.left = self.left.checked_sub(length).ok_or(RecordError::Truncated)?;
        self.skip = length;
        Ok(true)
    }
}

/// The record that `bytes` begin with, if it ends within them.
#[inline]
fn whole_record(bytes: &[u8]) -> Result<Option<(Record<'_>, &[u8])>, RecordError> {
    let (length, rest) = match read_varint(bytes) {
        Ok(read) => read,
        Err(VarintError::Truncated) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let length = usize::try_from(length).map_err(|_| RecordError::BadLength(length))?;
    match rest.split_at_checked(length) {
        Some((body, after)) => Ok(Some((Record::parse_body(body)?, after))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::records::batch::BATCH_HEADER_BYTES;
    use crate::records::builder::BatchBuilder;
    use crate::types::TimestampMs;

    fn scan(pieces: &[&[u8]]) -> (Vec<RecordMeta>, Result<bool, RecordError>) {
        let mut scanner = RecordScanner::new();
        let mut seen = Vec::new();
        for piece in pieces {
            let fed = scanner.feed(piece, |meta| {
                seen.push(meta);
                Ok::<(), RecordError>(())
            });
            if let Err(error) = fed {
                return (seen, Err(error));
            }
        }
        (seen, Ok(scanner.is_between_records()))
    }

    fn sample() -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        let long = [7; 200];
        builder.push(TimestampMs::new(1 << 40), Some(&long), None, &[]);
        builder.push(TimestampMs::new(5), None, Some(&[]), &[(b"h", Some(&long)), (b"", None)]);
        builder.push(TimestampMs::new(-1), Some(&[]), Some(&long), &[(b"", Some(b""))]);
        builder.build().unwrap()[BATCH_HEADER_BYTES..].to_vec()
    }

    #[test]
    fn a_cut_at_any_byte_does_not_matter() {
        let bytes = sample();
        let whole = scan(&[&bytes]);
        assert_eq!(whole.0.len(), 3);
        assert_eq!(whole.1, Ok(true));
        assert_eq!((whole.0[1].has_key, whole.0[1].has_value, whole.0[1].offset_delta), (false, true, 1));
        for cut in 0..bytes.len() {
            assert_eq!(scan(&[&bytes[..cut], &bytes[cut..]]), whole, "{cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(scan(&single), whole);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            mut bytes in Just(sample()),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            size in 1..50_usize,
        ) {
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let ones: Vec<&[u8]> = bytes.chunks(1).collect();
            let (seen, end) = scan(&pieces);
            prop_assert_eq!((&seen, &end), (&scan(&ones).0, &scan(&ones).1));
            // Against the reader of whole records, which has all bytes at hand.
            let read: Result<Vec<RecordMeta>, RecordError> =
                crate::records::record::RecordIter::new(&bytes).map(|r| r.map(RecordMeta::from)).collect();
            match (read, end) {
                (Ok(read), end) => {
                    prop_assert_eq!(read, seen);
                    prop_assert_eq!(end, Ok(true));
                }
                (Err(RecordError::Truncated), end) => prop_assert_ne!(end, Ok(true)),
                (Err(error), end) => prop_assert_eq!(end, Err(error)),
            }
        }

        #[test]
        fn any_bytes_are_walked_alike(bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1..9_usize) {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            prop_assert_eq!(scan(&pieces), scan(&[&bytes]));
        }
    }
}
