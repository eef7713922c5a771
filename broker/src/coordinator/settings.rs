//! What coordinators need to know of the configuration. Made at the start; `service` keeps it.

use protocol::records::compression::Compression;

use super::group::GroupSettings;
use crate::config::broker::GroupsConfig;

/// What coordinators need to know of the configuration.
#[derive(Clone, Debug)]
pub struct GroupServiceSettings {
    /// What the machines need.
    pub groups: GroupSettings,
    /// Bytes that the groups of the shard may take. What is in the log is loaded all the same.
    pub memory_bytes: usize,
    /// `offsets.load.buffer.size`.
    pub load_buffer_bytes: usize,
    /// `offsets.commit.timeout.ms`.
    pub commit_timeout_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub expiry_interval_ms: i64,
    /// `offsets.topic.compression.codec`.
    pub compression: Compression,
}

impl GroupServiceSettings {
    /// As configured, with the shard's part of the memory.
    pub fn new(config: &GroupsConfig, memory_bytes: usize) -> Self {
        Self {
            memory_bytes,
            groups: GroupSettings {
                min_session_timeout_ms: config.min_session_timeout_ms,
                max_session_timeout_ms: config.max_session_timeout_ms,
                initial_rebalance_delay_ms: config.initial_rebalance_delay_ms,
                max_size: config.members_max,
                offset_metadata_max_bytes: config.offset_metadata_max,
                offsets_retention_ms: config.offsets_retention_ms,
            },
            load_buffer_bytes: usize::try_from(config.load_buffer_bytes).unwrap_or(usize::MAX),
            commit_timeout_ms: config.offsets_commit_timeout_ms,
            expiry_interval_ms: config.offsets_retention_check_interval_ms,
            compression: Compression::default_level(config.topic_codec),
        }
    }
}
