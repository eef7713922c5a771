//! FindCoordinator (10): which broker looks after a group or a transactional id.

use crate::codec::{SharedList, Str};

message! {
    /// Asks for coordinators: one key up to version 3, several from version 4 on (KIP-699).
    pub struct FindCoordinatorRequest<'a>(FindCoordinator) {
        /// The key.
        0-3 key: Str<'a>;
        /// 0: group, 1: transactional id, 2: share group (version 6).
        1+ key_type: i8;
        /// The keys.
        4+ coordinator_keys: Vec<Str<'a>>;
    }

    /// Answers [`FindCoordinatorRequest`].
    pub struct FindCoordinatorResponse<'a>(FindCoordinator) {
        /// Delay put on the client, in milliseconds.
        1+ throttle_time_ms: i32, ignorable;
        /// Error of the one key.
        0-3 error_code: i16;
        /// Text to the error.
        1-3 error_message: Option<Str<'a>> = None, ignorable;
        /// Id of the coordinator.
        0-3 node_id: i32;
        /// Host of the coordinator.
        0-3 host: Str<'a>;
        /// Port of the coordinator.
        0-3 port: i32;
        /// A coordinator for each key.
        4+ coordinators: SharedList<Coordinator<'a>>;
    }

    /// The coordinator of one key.
    pub struct Coordinator<'a> {
        /// The key.
        4+ key: Str<'a>;
        /// Id of the coordinator.
        4+ node_id: i32;
        /// Host of the coordinator.
        4+ host: Str<'a>;
        /// Port of the coordinator.
        4+ port: i32;
        /// Error of the key.
        4+ error_code: i16;
        /// Text to the error.
        4+ error_message: Option<Str<'a>> = None, ignorable;
    }
}
