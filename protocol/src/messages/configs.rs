//! DescribeConfigs (32) and AlterConfigs (33). IncrementalAlterConfigs, whose structs have the same names, has a
//! module of its own.

use crate::codec::{SharedList, Str};

message! {
    /// Asks for the configs of resources.
    pub struct DescribeConfigsRequest<'a>(DescribeConfigs) {
        /// The resources.
        0+ resources: Vec<DescribeConfigsResource<'a>>;
        /// Whether to tell where each value would else come from.
        1+ include_synonyms: bool;
        /// Whether to tell the documentation.
        3+ include_documentation: bool;
    }

    /// One resource to describe.
    pub struct DescribeConfigsResource<'a> {
        /// 2: topic, 4: broker, 8: broker logger.
        0+ resource_type: i8;
        /// Name of the topic, id of the broker.
        0+ resource_name: Str<'a>;
        /// The configs wanted; null: all.
        0+ configuration_keys: Option<Vec<Str<'a>>>;
    }

    /// Answers [`DescribeConfigsRequest`].
    pub struct DescribeConfigsResponse<'a>(DescribeConfigs) {
        /// Delay put on the client, in milliseconds.
        0+ throttle_time_ms: i32;
        /// The resources.
        0+ results: Vec<DescribeConfigsResult<'a>>;
    }

    /// The configs of one resource.
    pub struct DescribeConfigsResult<'a> {
        /// Error of the resource.
        0+ error_code: i16;
        /// Text to the error.
        0+ error_message: Option<Str<'a>> = None;
        /// Type of the resource.
        0+ resource_type: i8;
        /// Name of the resource.
        0+ resource_name: Str<'a>;
        /// The configs.
        0+ configs: SharedList<DescribeConfigsResourceResult<'a>>;
    }

    /// One config.
    pub struct DescribeConfigsResourceResult<'a> {
        /// Name of the config.
        0+ name: Str<'a>;
        /// Value of the config; null when it is secret or not set.
        0+ value: Option<Str<'a>>;
        /// Whether clients cannot change it.
        0+ read_only: bool;
        /// Whether the value is the default.
        0-0 is_default: bool, ignorable;
        /// Where the value comes from.
        1+ config_source: i8 = -1, ignorable;
        /// Whether the value is secret.
        0+ is_sensitive: bool;
        /// Where the value could come from, strongest first.
        1+ synonyms: Vec<DescribeConfigsSynonym<'a>>, ignorable;
        /// Type of the value.
        3+ config_type: i8, ignorable;
        /// Documentation of the config.
        3+ documentation: Option<Str<'a>> = None, ignorable;
    }

    /// One place that sets a config.
    pub struct DescribeConfigsSynonym<'a> {
        /// Name of the config there.
        1+ name: Str<'a>;
        /// Value there.
        1+ value: Option<Str<'a>>;
        /// The place.
        1+ source: i8;
    }

    /// Asks to replace all configs of resources.
    pub struct AlterConfigsRequest<'a>(AlterConfigs) {
        /// The resources.
        0+ resources: Vec<AlterConfigsResource<'a>>;
        /// Whether only to check.
        0+ validate_only: bool;
    }

    /// One resource to alter.
    pub struct AlterConfigsResource<'a> {
        /// 2: topic, 4: broker.
        0+ resource_type: i8;
        /// Name of the topic, id of the broker.
        0+ resource_name: Str<'a>;
        /// All configs that it shall have.
        0+ configs: Vec<AlterableConfig<'a>>;
    }

    /// One config to set.
    pub struct AlterableConfig<'a> {
        /// Name of the config.
        0+ name: Str<'a>;
        /// Value of the config.
        0+ value: Option<Str<'a>>;
    }

    /// Answers [`AlterConfigsRequest`].
    pub struct AlterConfigsResponse<'a>(AlterConfigs) {
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
