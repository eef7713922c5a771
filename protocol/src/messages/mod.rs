//! Kafka's messages, each declared once for all its versions under the names of Kafka's schemas. One struct serves
//! every version; a field outside a version takes its default. Numbers stay raw: handlers open and close newtypes.
//! A file per API family; called by the broker's handlers and by clients.

use crate::api::ApiKey;
use crate::codec::{Cursor, Layout, Wire, Writer};
use crate::error::DecodeError;

pub mod api_versions;
pub mod metadata;

pub use api_versions::*;
pub use metadata::*;

/// A request or a response: the body of a frame, behind its header.
pub trait Message<'a>: Wire<'a> {
    /// The API that it belongs to.
    const KEY: ApiKey;

    /// Reads the body in `version`, which the caller found to be served. Bytes behind it are left (C8).
    ///
    /// # Errors
    /// Any of [`DecodeError`]: the connection is to be closed without an answer (C7).
    fn decode(cursor: &mut Cursor<'a>, version: i16) -> Result<Self, DecodeError> {
        Self::read(cursor, Layout::of(Self::KEY, version))
    }

    /// Writes the body in `version`. A field that the version cannot carry must be at its default, unless Kafka
    /// says that it may be dropped (C10): asserted in debug builds, dropped in release builds.
    fn encode(&self, writer: &mut Writer, version: i16) {
        self.write(writer, Layout::of(Self::KEY, version));
    }
}
