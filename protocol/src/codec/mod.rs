//! Kafka's primitive encodings: [`Cursor`] reads them from a borrowed frame, [`Writer`] writes them, `Wire` joins
//! both for one type, and the macro `message!` builds messages from their declarations. Knows no message; called by
//! [`crate::messages`] and [`crate::api`]. The rules C1 to C10 are those of protocol.md 0.

mod cursor;
#[cfg(feature = "sample")]
mod sample;
#[macro_use]
mod schema;
mod shared;
#[cfg(test)]
mod tests;
mod wire;
mod writer;

pub use cursor::{ALLOCATION_BYTES_FREE, ALLOCATION_PER_FRAME_BYTE, Cursor};
#[cfg(feature = "sample")]
pub use sample::{Sample, Sampler};
pub use shared::{ListWriter, SharedBlob, SharedList, WrittenElements, WrittenList};
pub use wire::{Blob, Layout, Nullable, Str, Wire};
pub use writer::{STRING_BYTES_MAX, Segment, Segments, Writer, short_text};
