//! Bytes that are in memory once, however often or wherever a message has them. Lists that stand in one message many
//! times: a client may name one thing a hundred thousand times in a small frame, and is to be answered as often; what the
//! list comes to is written once, and all places share its bytes. And bytes that clients give each other. Knows no message.

use std::borrow::Cow;
use std::ops::Deref;

use bytes::{Bytes, BytesMut};

use super::{Blob, Cursor, Layout, Nullable, Wire, Writer};
use crate::error::DecodeError;

/// A list of a message. Decoded it is always its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedList<T> {
    /// The elements.
    Elements(Vec<T>),
    /// What the elements come to in one version.
    Written(WrittenElements),
}

/// Elements as they are written in one version, without their number in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenElements {
    layout: Layout,
    count: usize,
    bytes: Bytes,
    misfit: Option<&'static str>,
    /// Error codes that the elements carry, each with how many do.
    errors: Vec<(i16, u64)>,
}

/// A list that was written once, to stand in many places as a whole or in part. Error codes of its elements are not told.
#[derive(Clone, Debug)]
pub struct WrittenList {
    all: WrittenElements,
    /// Where each element ends in the bytes.
    ends: Vec<usize>,
}

impl<T> SharedList<T> {
    /// The elements of a list that was decoded; none of one that was written.
    pub fn elements(&self) -> &[T] {
        match self {
            Self::Elements(elements) => elements,
            Self::Written(_) => &[],
        }
    }
}

impl<T> From<Vec<T>> for SharedList<T> {
    fn from(elements: Vec<T>) -> Self {
        Self::Elements(elements)
    }
}

impl WrittenList {
    /// Writes elements as a message of this layout has them.
    pub fn new<'a, T: Wire<'a>>(elements: impl IntoIterator<Item = T>, layout: Layout) -> Self {
        let mut writer = Writer::new();
        let mut ends = Vec::new();
        for element in elements {
            element.write(&mut writer, layout);
            ends.push(writer.len());
        }
        let (misfit, bytes) = writer.into_parts();
        Self {
            all: WrittenElements {
                layout,
                count: ends.len(),
                bytes: bytes.freeze(),
                misfit,
                errors: Vec::new(),
            },
            ends,
        }
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.all.bytes.len()
    }

    /// The whole list. Copies nothing.
    pub fn all<T>(&self) -> SharedList<T> {
        SharedList::Written(self.all.clone())
    }

    /// The elements at these places, in the order given; a place that does not exist is left out.
    pub fn some<T>(&self, places: impl IntoIterator<Item = usize>) -> SharedList<T> {
        let (mut bytes, mut count) = (BytesMut::new(), 0);
        for place in places {
            let Some(&end) = self.ends.get(place) else { continue };
            let start = place.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
            bytes.extend_from_slice(self.all.bytes.get(start..end).unwrap_or_default());
            count += 1;
        }
        let WrittenElements { layout, misfit, .. } = self.all;
        let (bytes, errors) = (bytes.freeze(), Vec::new());
        SharedList::Written(WrittenElements { layout, count, bytes, misfit, errors })
    }
}

/// A list that is written element by element, so that whoever has many of them can let others have their turn meanwhile.
#[derive(Debug)]
pub struct ListWriter {
    layout: Layout,
    writer: Writer,
    count: usize,
    errors: Vec<(i16, u64)>,
}

impl ListWriter {
    /// A list of a message of this layout; empty yet.
    pub fn new(layout: Layout) -> Self {
        Self { layout, writer: Writer::new(), count: 0, errors: Vec::new() }
    }

    /// Writes the next element.
    pub fn push<'a, T: Wire<'a>>(&mut self, element: &T) {
        element.write(&mut self.writer, self.layout);
        self.count += 1;
        let errors = &mut self.errors;
        element.error_codes(self.layout, &mut |code, times| match errors
            .iter_mut()
            .find(|(known, _)| *known == code)
        {
            Some((_, sum)) => *sum += times,
            None => errors.push((code, times)),
        });
    }

    /// Bytes of the elements so far.
    pub fn bytes(&self) -> usize {
        self.writer.len()
    }

    /// The list.
    pub fn finish<T>(self) -> SharedList<T> {
        let (misfit, bytes) = self.writer.into_parts();
        SharedList::Written(WrittenElements {
            layout: self.layout,
            count: self.count,
            bytes: bytes.freeze(),
            misfit,
            errors: self.errors,
        })
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for SharedList<T> {
    fn initial() -> Self {
        Self::Elements(Vec::new())
    }
    fn bytes_min(layout: Layout) -> usize {
        Vec::<T>::bytes_min(layout)
    }
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        Vec::read(cursor, layout).map(Self::Elements)
    }
    fn write(&self, writer: &mut Writer, layout: Layout) {
        match self {
            Self::Elements(elements) => Vec::write_nullable(Some(elements), writer, layout),
            Self::Written(written) => {
                if written.layout != layout {
                    writer.note_misfit("a list that was written for another version");
                }
                if let Some(what) = written.misfit {
                    writer.note_misfit(what);
                }
                writer.length(Some(written.count), layout.flexible);
                writer.put_shared(&written.bytes);
            }
        }
    }
    fn error_codes(&self, layout: Layout, tell: &mut impl FnMut(i16, u64)) {
        match self {
            Self::Elements(elements) => elements.error_codes(layout, tell),
            Self::Written(written) => written.errors.iter().for_each(|(code, times)| tell(*code, *times)),
        }
    }
}

impl<'a, T: Wire<'a>> Nullable<'a> for SharedList<T> {
    fn read_nullable(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Option<Self>, DecodeError> {
        Ok(Vec::read_nullable(cursor, layout)?.map(Self::Elements))
    }
    fn write_nullable(value: Option<&Self>, writer: &mut Writer, layout: Layout) {
        match value {
            Some(list) => list.write(writer, layout),
            None => Vec::<T>::write_nullable(None, writer, layout),
        }
    }
}

/// Bytes that mean nothing to the broker, as [`Blob`]: what one client has sent, in the answer to another. However large
/// they are, writing them copies little.
#[derive(Clone, Debug)]
pub enum SharedBlob<'a> {
    /// Somebody else's, as decoded ones are.
    Borrowed(Blob<'a>),
    /// Held together with others.
    Shared(Bytes),
}

impl Deref for SharedBlob<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for SharedBlob<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SharedBlob<'_> {}

impl<'a> From<&'a [u8]> for SharedBlob<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Borrowed(Cow::Borrowed(bytes))
    }
}

impl From<Bytes> for SharedBlob<'_> {
    fn from(bytes: Bytes) -> Self {
        Self::Shared(bytes)
    }
}

impl<'a> Wire<'a> for SharedBlob<'a> {
    fn initial() -> Self {
        Self::Borrowed(Blob::initial())
    }
    fn bytes_min(layout: Layout) -> usize {
        Blob::bytes_min(layout)
    }
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        Blob::read(cursor, layout).map(Self::Borrowed)
    }
    fn write(&self, writer: &mut Writer, layout: Layout) {
        match self {
            Self::Borrowed(bytes) => bytes.write(writer, layout),
            Self::Shared(bytes) => {
                writer.length(Some(bytes.len()), layout.flexible);
                writer.put_shared(bytes);
            }
        }
    }
}

#[cfg(feature = "sample")]
impl super::Sample for SharedBlob<'_> {
    fn sample(sampler: &mut super::Sampler, layout: Layout) -> Self {
        Self::Borrowed(Blob::sample(sampler, layout))
    }
}

#[cfg(feature = "sample")]
impl<T: super::Sample> super::Sample for SharedList<T> {
    fn sample(sampler: &mut super::Sampler, layout: Layout) -> Self {
        Self::Elements(Vec::sample(sampler, layout))
    }
}
