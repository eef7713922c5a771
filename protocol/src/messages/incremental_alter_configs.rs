//! IncrementalAlterConfigs (44, KIP-339).

use crate::codec::Str;

message! {
    /// Asks to change some configs of resources.
    pub struct IncrementalAlterConfigsRequest<'a>(IncrementalAlterConfigs) {
        /// The resources.
        0+ resources: Vec<AlterConfigsResource<'a>>;
        /// Whether only to check.
        0+ validate_only: bool;
    }

    /// One resource to alter.
    pub struct AlterConfigsResource<'a> {
        /// 2: topic, 4: broker, 8: broker logger.
        0+ resource_type: i8;
        /// Name of the topic, id of the broker.
        0+ resource_name: Str<'a>;
        /// The changes.
        0+ configs: Vec<AlterableConfig<'a>>;
    }

    /// One change.
    pub struct AlterableConfig<'a> {
        /// Name of the config.
        0+ name: Str<'a>;
        /// 0: set, 1: delete, 2: append, 3: subtract.
        0+ config_operation: i8;
        /// Value of the config.
        0+ value: Option<Str<'a>>;
    }

    /// Answers [`IncrementalAlterConfigsRequest`].
    pub struct IncrementalAlterConfigsResponse<'a>(IncrementalAlterConfigs) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// The resources.
        0+ responses: Vec<AlterConfigsResourceResponse<'a>>;
    }

    /// What became of one resource.
    pub struct AlterConfigsResourceResponse<'a> {
        /// Error of the resource.
        0+ error_code: i16;
        /// Text to the error.
        0+ error_message: Option<Str<'a>> = None;
        /// Type of the resource.
        0+ resource_type: i8;
        /// Name of the resource.
        0+ resource_name: Str<'a>;
    }
}
