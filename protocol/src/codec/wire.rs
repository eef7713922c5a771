//! How one type reads and writes itself: the primitives of protocol.md 2.5. Structs are done by `message!`.

use std::borrow::Cow;

use super::{Cursor, Writer};
use crate::api::ApiKey;
use crate::error::DecodeError;
use crate::types::TopicId;

/// A string of a message: borrowed from the frame when decoded, either when built.
pub type Str<'a> = Cow<'a, str>;

/// Bytes of a message that mean nothing to the broker: borrowed from the frame when decoded, either when built.
pub type Blob<'a> = Cow<'a, [u8]>;

/// What decides about the bytes of a message: its version, and whether that version has compact lengths and tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Version of the message.
    pub version: i16,
    /// Whether the version is a flexible one (KIP-482).
    pub flexible: bool,
}

impl Layout {
    /// The layout of requests and responses of `key` in `version`.
    pub const fn of(key: ApiKey, version: i16) -> Self {
        Self { version, flexible: key.is_flexible(version) }
    }
}

/// A type that stands in messages. The default is Kafka's: empty, zero, false; a nullable type starts out not null.
pub trait Wire<'a>: Sized + PartialEq {
    /// The value where a message does not carry the field.
    fn initial() -> Self;

    /// The least bytes that a value takes.
    fn bytes_min(layout: Layout) -> usize;

    /// Reads a value.
    ///
    /// # Errors
    /// Any of [`DecodeError`]; the cursor is then of no use any more.
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError>;

    /// Writes the value.
    fn write(&self, writer: &mut Writer, layout: Layout);

    /// [`Wire::read`] in versions in which a nullable type may not be null.
    ///
    /// # Errors
    /// As [`Wire::read`].
    fn read_not_null(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        Self::read(cursor, layout)
    }

    /// [`Wire::write`] in versions in which a nullable type may not be null: null there is a bug of the caller, and
    /// is written as the default in release builds (C10).
    fn write_not_null(&self, writer: &mut Writer, layout: Layout) {
        self.write(writer, layout);
    }

    /// Tells every field `error_code` that the version carries, also when it says that there is no error: the code, and how
    /// many fields in a row have it.
    fn error_codes(&self, _layout: Layout, _tell: &mut impl FnMut(i16, u64)) {}
}

/// A type that can be null. `Option` of it is [`Wire`].
pub trait Nullable<'a>: Wire<'a> {
    /// Reads a value or null.
    ///
    /// # Errors
    /// As [`Wire::read`].
    fn read_nullable(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Option<Self>, DecodeError>;

    /// Writes a value or null.
    fn write_nullable(value: Option<&Self>, writer: &mut Writer, layout: Layout);
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl<'a> Wire<'a> for $type {
            fn initial() -> Self {
                0
            }
            fn bytes_min(_: Layout) -> usize {
                size_of::<Self>()
            }
            fn read(cursor: &mut Cursor<'a>, _: Layout) -> Result<Self, DecodeError> {
                cursor.array().map(Self::from_be_bytes)
            }
            fn write(&self, writer: &mut Writer, _: Layout) {
                writer.put(&self.to_be_bytes());
            }
        }
    )*};
}

integers! { i8 i16 i32 i64 }

impl<'a> Wire<'a> for bool {
    fn initial() -> Self {
        false
    }
    fn bytes_min(_: Layout) -> usize {
        1
    }
    fn read(cursor: &mut Cursor<'a>, _: Layout) -> Result<Self, DecodeError> {
        cursor.array().map(|[byte]| byte != 0)
    }
    fn write(&self, writer: &mut Writer, _: Layout) {
        writer.put(&[u8::from(*self)]);
    }
}

impl<'a> Wire<'a> for TopicId {
    fn initial() -> Self {
        Self::ZERO
    }
    fn bytes_min(_: Layout) -> usize {
        size_of::<Self>()
    }
    fn read(cursor: &mut Cursor<'a>, _: Layout) -> Result<Self, DecodeError> {
        cursor.array().map(Self::new)
    }
    fn write(&self, writer: &mut Writer, _: Layout) {
        writer.put(&self.get());
    }
}

impl<'a> Wire<'a> for Str<'a> {
    fn initial() -> Self {
        Cow::Borrowed("")
    }
    fn bytes_min(layout: Layout) -> usize {
        if layout.flexible { 1 } else { 2 }
    }
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        Self::read_nullable(cursor, layout)?.ok_or(DecodeError::BadLength(-1))
    }
    fn write(&self, writer: &mut Writer, layout: Layout) {
        writer.nullable_string(Some(self), layout.flexible);
    }
}

impl<'a> Nullable<'a> for Str<'a> {
    fn read_nullable(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Option<Self>, DecodeError> {
        Ok(cursor.nullable_string(layout.flexible)?.map(Cow::Borrowed))
    }
    fn write_nullable(value: Option<&Self>, writer: &mut Writer, layout: Layout) {
        writer.nullable_string(value.map(AsRef::as_ref), layout.flexible);
    }
}

impl<'a> Wire<'a> for Blob<'a> {
    fn initial() -> Self {
        Cow::Borrowed(&[])
    }
    fn bytes_min(layout: Layout) -> usize {
        if layout.flexible { 1 } else { 4 }
    }
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        cursor.nullable_bytes(layout.flexible)?.map(Cow::Borrowed).ok_or(DecodeError::BadLength(-1))
    }
    fn write(&self, writer: &mut Writer, layout: Layout) {
        writer.nullable_bytes(Some(self), layout.flexible);
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    fn initial() -> Self {
        Self::new()
    }
    fn bytes_min(layout: Layout) -> usize {
        if layout.flexible { 1 } else { 4 }
    }
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        Self::read_nullable(cursor, layout)?.ok_or(DecodeError::BadLength(-1))
    }
    fn write(&self, writer: &mut Writer, layout: Layout) {
        Self::write_nullable(Some(self), writer, layout);
    }
    fn error_codes(&self, layout: Layout, tell: &mut impl FnMut(i16, u64)) {
        for element in self {
            element.error_codes(layout, tell);
        }
    }
}

impl<'a, T: Wire<'a>> Nullable<'a> for Vec<T> {
    fn read_nullable(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Option<Self>, DecodeError> {
        let Some(count) = cursor.length(layout.flexible)? else { return Ok(None) };
        // The exact size, and no growing: a doubling vector would hold up to three times as much at its peak.
        cursor.room_for(count, T::bytes_min(layout), size_of::<T>())?;
        let mut elements = Self::with_capacity(count);
        for _ in 0..count {
            elements.push(T::read(cursor, layout)?);
        }
        Ok(Some(elements))
    }
    fn write_nullable(value: Option<&Self>, writer: &mut Writer, layout: Layout) {
        writer.length(value.map(Vec::len), layout.flexible);
        for element in value.into_iter().flatten() {
            element.write(writer, layout);
        }
    }
}

impl<'a, T: Nullable<'a>> Wire<'a> for Option<T> {
    fn initial() -> Self {
        Some(T::initial())
    }
    fn bytes_min(_: Layout) -> usize {
        1
    }
    fn read(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        T::read_nullable(cursor, layout)
    }
    fn write(&self, writer: &mut Writer, layout: Layout) {
        T::write_nullable(self.as_ref(), writer, layout);
    }
    fn read_not_null(cursor: &mut Cursor<'a>, layout: Layout) -> Result<Self, DecodeError> {
        T::read(cursor, layout).map(Some)
    }
    fn write_not_null(&self, writer: &mut Writer, layout: Layout) {
        if self.is_none() {
            writer.note_misfit("null where the version has none");
        }
        self.as_ref().unwrap_or(&T::initial()).write(writer, layout);
    }
    fn error_codes(&self, layout: Layout, tell: &mut impl FnMut(i16, u64)) {
        if let Some(value) = self {
            value.error_codes(layout, tell);
        }
    }
}
