//! ApiVersions (18): what the broker serves (protocol.md 3.1, KIP-35, KIP-511).

use crate::codec::Str;

message! {
    /// Asks which APIs the broker serves.
    pub struct ApiVersionsRequest<'a>(ApiVersions) {
        /// Name of the client's library.
        3+ client_software_name: Str<'a>, ignorable;
        /// Version of the client's library.
        3+ client_software_version: Str<'a>, ignorable;
    }

    /// Answers [`ApiVersionsRequest`].
    pub struct ApiVersionsResponse<'a>(ApiVersions) {
        /// Top-level error.
        0+ error_code: i16;
        /// The APIs served.
        0+ api_keys: Vec<ApiVersion>;
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Features that the broker knows (KIP-584). Below version 4 the caller leaves out those whose lowest level
        /// is 0 (KAFKA-17492).
        3+ supported_features: Vec<SupportedFeatureKey<'a>>, tag 0, ignorable;
        /// Version of the finalized features; -1: unknown.
        3+ finalized_features_epoch: i64 = -1, tag 1, ignorable;
        /// Features finalized in the cluster.
        3+ finalized_features: Vec<FinalizedFeatureKey<'a>>, tag 2, ignorable;
        /// Whether a KRaft controller is ready to take over from ZooKeeper.
        3+ zk_migration_ready: bool, tag 3, ignorable;
    }

    /// One API.
    pub struct ApiVersion {
        /// Number of the API.
        0+ api_key: i16;
        /// Lowest version served.
        0+ min_version: i16;
        /// Highest version served.
        0+ max_version: i16;
    }

    /// One feature that the broker knows.
    pub struct SupportedFeatureKey<'a> {
        /// Name of the feature.
        3+ name: Str<'a>;
        /// Lowest level.
        3+ min_version: i16;
        /// Highest level.
        3+ max_version: i16;
    }

    /// One finalized feature.
    pub struct FinalizedFeatureKey<'a> {
        /// Name of the feature.
        3+ name: Str<'a>;
        /// Highest level in the cluster.
        3+ max_version_level: i16;
        /// Lowest level in the cluster.
        3+ min_version_level: i16;
    }
}
