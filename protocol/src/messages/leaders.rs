//! What Produce and Fetch tell a client that asked the wrong broker (KIP-951).

use crate::codec::Str;

message! {
    /// Who leads a partition, as far as this broker knows.
    pub struct LeaderIdAndEpoch {
        /// Id of the leader; -1: not known.
        0+ leader_id: i32 = -1;
        /// Epoch of the leader; -1: not known.
        0+ leader_epoch: i32 = -1;
    }

    /// Where a leader listens.
    pub struct NodeEndpoint<'a> {
        /// Id of the broker.
        0+ node_id: i32;
        /// Host of the listener that the request came in on.
        0+ host: Str<'a>;
        /// Port of that listener.
        0+ port: i32;
        /// Rack of the broker.
        0+ rack: Option<Str<'a>> = None;
    }
}
