//! Kafka's messages, each declared once for all its versions under the names of Kafka's schemas. One struct serves
//! every version; a field outside a version takes its default. Numbers stay raw: handlers open and close newtypes.
//! A file per API family; called by the broker's handlers and by clients.

use crate::api::ApiKey;
use crate::codec::{Cursor, Layout, Wire, Writer};
use crate::error::DecodeError;

pub mod api_versions;
pub mod cluster;
pub mod configs;
pub mod fetch;
pub mod find_coordinator;
pub mod group_admin;
pub mod group_offsets;
pub mod groups;
pub mod incremental_alter_configs;
pub mod leaders;
pub mod metadata;
pub mod offset_for_leader_epoch;
pub mod offsets;
pub mod produce;
pub mod producers;
pub mod topics;

pub use api_versions::*;
pub use cluster::*;
pub use configs::*;
pub use fetch::*;
pub use find_coordinator::*;
pub use group_admin::*;
pub use group_offsets::*;
pub use groups::*;
// Their inner structs bear names that other APIs use too.
pub use incremental_alter_configs::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
pub use leaders::*;
pub use metadata::*;
pub use offset_for_leader_epoch::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
pub use offsets::*;
pub use produce::*;
pub use producers::*;
pub use topics::*;

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

    /// Tells every error code that a response carries in `version`, [`crate::error::ErrorCode::None`] too, and how often it
    /// does.
    fn each_error_code(&self, version: i16, mut tell: impl FnMut(i16, u64)) {
        self.error_codes(Layout::of(Self::KEY, version), &mut tell);
    }
}
