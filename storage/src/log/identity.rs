//! Whose directory it is: `partition.metadata` (S-10). Written when the log is opened for a topic that has an id, so before
//! its first record.

use std::path::Path;

use protocol::types::TopicId;

use super::LoadError;
use crate::io::Runtime;
use crate::partition_metadata::{self, ReadTopicIdError};

/// Compares the topic id of the directory with the one asked for; writes it where there is none yet. Never overwrites:
/// another id is another topic's data.
pub(super) async fn settle<R: Runtime>(
    runtime: &R,
    dir: &Path,
    asked: Option<TopicId>,
) -> Result<Option<TopicId>, LoadError> {
    let found = match partition_metadata::read(runtime, dir).await {
        Ok(found) => found,
        Err(ReadTopicIdError::Malformed(damage)) => {
            return Err(LoadError::MalformedMetadata(damage));
        }
        Err(ReadTopicIdError::Io(source)) => {
            return Err(LoadError::Io { during: "read of partition.metadata", source });
        }
    };
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
