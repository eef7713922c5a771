//! From sockets to requests and back: frames in, answers out in the order of the requests. Knows no message beyond the
//! header of a request, and no partition; calls `handlers` with one request at a time.
//!
//! Reading order: [`connection`] (one client), `frames` (frames in), [`pipeline`] (order of its answers), `output` (frames
//! out), [`connections`] (all clients of a shard: idle close, pressure, drain), [`listener`] and [`admission`] (where
//! clients come from), `moves` (to which shard they go on). The budget for requests is `shard::memory`.

pub mod admission;
pub mod connection;
pub mod connections;
mod frames;
pub mod listener;
mod moves;
mod output;
pub mod pipeline;
#[cfg(test)]
mod tests;

/// What connections are allowed; from the broker's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// `socket.request.max.bytes`: a larger frame closes the connection before its body is read.
    pub request_bytes_max: usize,
    /// `connections.max.idle.ms`: a connection without socket activity is closed, also while a request of it waits.
    pub idle_ms_max: i64,
    /// Bytes of requests that a shard holds from their arrival until they are written, before it stops to read.
    pub memory_bytes_max: usize,
    /// Produce requests of one connection that are accepted and not answered.
    pub in_flight_max: usize,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            request_bytes_max: 104_857_600,
            idle_ms_max: 600_000,
            memory_bytes_max: 128 << 20,
            in_flight_max: 64,
        }
    }
}
