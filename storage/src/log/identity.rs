//! Whose directory it is: `partition.metadata` (S-10). Written when the log is opened for a topic that has an id, so before
//! its first record.

use std::path::Path;

use protocol::types::TopicId;

use super::LoadError;
use crate::io::Runtime;
use crate::partition_metadata::{self, ReadTopicIdError};

/// The topic id of the directory, if it has one.
pub(super) async fn read<R: Runtime>(runtime: &R, dir: &Path) -> Result<Option<TopicId>, LoadError> {
    partition_metadata::read(runtime, dir).await.map_err(|error| match error {
        ReadTopicIdError::Malformed(damage) => LoadError::MalformedMetadata(damage),
        ReadTopicIdError::Io(source) => LoadError::Io { during: "read of partition.metadata", source },
    })
}

/// Compares the topic id of the directory with the one asked for; writes it where there is none yet. Never overwrites:
/// another id is another topic's data.
pub(super) async fn settle<R: Runtime>(
    runtime: &R,
    dir: &Path,
    found: Option<TopicId>,
    asked: Option<TopicId>,
) -> Result<Option<TopicId>, LoadError> {
    match (found, asked) {
        (Some(found), Some(expected)) if found != expected => {
            Err(LoadError::InconsistentTopicId { found, expected })
        }
        (Some(found), _) => Ok(Some(found)),
        (None, Some(asked)) if !asked.is_zero() => {
            let written = partition_metadata::write(runtime, dir, asked).await;
            written.map_err(|source| LoadError::Io { during: "write of partition.metadata", source })?;
            Ok(Some(asked))
        }
        (None, _) => Ok(None),
    }
}
