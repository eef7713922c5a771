//! Writes a message into one growing buffer, around bytes that stay where they are (C9). Owns the buffer; knows no
//! message and not who holds those bytes.

use bytes::{BufMut, Bytes, BytesMut};

/// Bytes of the longest string that the 16-bit length can carry, and that Kafka accepts in the compact one.
pub const STRING_BYTES_MAX: usize = 0x7fff;

/// Shared bytes up to this size are copied: cheaper than one more piece to send.
const COPY_BYTES_MAX: usize = 512;

/// Collects what is written.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: BytesMut,
    /// Where in `buffer` bytes belong that lie elsewhere, in order.
    gaps: Vec<(usize, Gap)>,
    gap_bytes: usize,
    /// The first thing that the version has no bytes for.
    misfit: Option<&'static str>,
}

/// Bytes that lie elsewhere.
#[derive(Debug)]
enum Gap {
    /// So many bytes that the caller holds.
    Foreign(usize),
    /// Bytes that stand in several places.
    Shared(Bytes),
}

/// A part of what was written with gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// These bytes.
    Bytes(Bytes),
    /// So many bytes that the caller holds; never zero.
    Foreign(usize),
}

/// What was written, in order; sent one after the other the segments are the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    /// The segments; `Foreign` ones come in the order in which they were written.
    pub segments: Vec<Segment>,
    /// Bytes of all segments together, foreign ones included.
    pub bytes: usize,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer that holds `bytes` before it grows.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(bytes), ..Self::default() }
    }

    /// Bytes written so far, foreign ones included.
    pub fn len(&self) -> usize {
        self.buffer.len() + self.gap_bytes
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that the message says what its version cannot: what was written instead says something else, and must not
    /// be sent.
    pub fn note_misfit(&mut self, what: &'static str) {
        self.misfit.get_or_insert(what);
    }

    /// What the message says that its version cannot, if anything: a bug of whoever made it.
    pub fn misfit(&self) -> Option<&'static str> {
        self.misfit
    }

    /// Appends bytes as they are.
    pub fn put(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// Notes that `bytes` bytes of the caller's belong here.
    pub fn put_foreign(&mut self, bytes: usize) {
        if bytes > 0 {
            self.gaps.push((self.buffer.len(), Gap::Foreign(bytes)));
            self.gap_bytes += bytes;
        }
    }

    /// Appends bytes that stand in several places. Large ones are not copied.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            return self.put(bytes);
        }
        self.gap_bytes += bytes.len();
        self.gaps.push((self.buffer.len(), Gap::Shared(bytes.clone())));
    }

    /// An unsigned integer in base 128, in its shortest form.
    pub fn unsigned_varint(&mut self, mut value: u32) {
        loop {
            let [.., low] = value.to_be_bytes();
            value >>= 7;
            if value == 0 {
                return self.buffer.put_u8(low & 0x7f);
            }
            self.buffer.put_u8(low | 0x80);
        }
    }

    /// The length of bytes or of an array; `None` is null.
    ///
    /// # Panics
    /// Beyond 2^31 - 1, which no frame can hold.
    pub fn length(&mut self, length: Option<usize>, flexible: bool) {
        let length = length.map(|length| {
            assert!(i32::try_from(length).is_ok(), "a length of {length} fits no frame");
            i32::try_from(length).unwrap_or(i32::MAX)
        });
        if flexible {
            self.unsigned_varint(length.map_or(0, |length| length.unsigned_abs() + 1));
        } else {
            self.buffer.put_i32(length.unwrap_or(-1));
        }
    }

    /// A string, or null. Kafka's strings have at most 32767 bytes: a longer one is a misfit. See [`short_text`] for
    /// those that may be cut.
    pub fn nullable_string(&mut self, text: Option<&str>, flexible: bool) {
        let text = text.map(|text| {
            if text.len() > STRING_BYTES_MAX {
                self.note_misfit("a string of more than 32767 bytes");
            }
            cut(text)
        });
        if flexible {
            self.length(text.map(str::len), true);
        } else {
            self.buffer.put_i16(text.map_or(-1, |text| i16::try_from(text.len()).unwrap_or(i16::MAX)));
        }
        self.put(text.unwrap_or_default().as_bytes());
    }

    /// Bytes, or null.
    pub fn nullable_bytes(&mut self, bytes: Option<&[u8]>, flexible: bool) {
        self.length(bytes.map(<[u8]>::len), flexible);
        self.put(bytes.unwrap_or_default());
    }

    /// One tagged field: its tag, its size, and what `content` writes.
    pub fn tagged_field(&mut self, tag: u32, content: impl FnOnce(&mut Self)) {
        let mut inner = Self::new();
        content(&mut inner);
        self.misfit = self.misfit.or(inner.misfit.take());
        self.unsigned_varint(tag);
        let inner = inner.into_bytes();
        self.unsigned_varint(u32::try_from(inner.len()).unwrap_or(u32::MAX));
        self.put(&inner);
    }

    /// What does not fit, and what was written, for a part of a message that is to stand in others.
    pub(super) fn into_parts(self) -> (Option<&'static str>, BytesMut) {
        assert!(self.gaps.is_empty(), "a part of a message has all its bytes");
        (self.misfit, self.buffer)
    }

    /// What was written, when all of it is here.
    ///
    /// # Panics
    /// When there are foreign or shared bytes: those need [`Writer::into_segments`]. On a misfit, in debug builds: who can live
    /// with one looks for it first.
    pub fn into_bytes(self) -> BytesMut {
        debug_assert_eq!(self.misfit, None, "the message fits its version");
        assert!(self.gaps.is_empty(), "a message around bytes that lie elsewhere is taken as segments");
        self.buffer
    }

    /// What was written, cut where foreign bytes go. Copies nothing.
    ///
    /// # Panics
    /// On a misfit, as [`Writer::into_bytes`].
    pub fn into_segments(self) -> Segments {
        debug_assert_eq!(self.misfit, None, "the message fits its version");
        let bytes = self.len();
        let mut segments = Vec::with_capacity(2 * self.gaps.len() + 1);
        let mut rest = self.buffer;
        let mut cut_at = 0;
        for (position, gap) in self.gaps {
            if position > cut_at {
                segments.push(Segment::Bytes(rest.split_to(position - cut_at).freeze()));
                cut_at = position;
            }
            segments.push(match gap {
                Gap::Foreign(bytes) => Segment::Foreign(bytes),
                Gap::Shared(bytes) => Segment::Bytes(bytes),
            });
        }
        if !rest.is_empty() {
            segments.push(Segment::Bytes(rest.freeze()));
        }
        Segments { segments, bytes }
    }

    /// What was written with its size in four bytes in front: a whole frame, for clients.
    ///
    /// # Panics
    /// As [`Writer::into_bytes`].
    pub fn into_frame(self) -> BytesMut {
        let body = self.into_bytes();
        let mut frame = BytesMut::with_capacity(body.len() + 4);
        frame.put_i32(i32::try_from(body.len()).unwrap_or(i32::MAX));
        frame.extend_from_slice(&body);
        frame
    }
}

/// A text for people, cut to what a string can hold: it may repeat a name that is as long as names can be.
pub fn short_text(mut text: String) -> String {
    text.truncate(cut(&text).len());
    text
}

/// `text` up to the longest length that a string may have.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}
