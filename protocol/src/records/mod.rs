//! Record batches, from bytes and to bytes.
//!
//! Reading order: [`batch`] (header view, walk over batches, patches in place), [`record`] (records in place),
//! [`compression`] (codecs), [`scan`] (walking records that arrive in pieces), [`reader`] (records and lookups by time
//! whatever the codec), [`validate`] (what a leader accepts) and [`refusal`] (why not), [`builder`] (making batches),
//! [`rewrite`] (what compaction makes of them), [`crc`]; [`legacy`] (magic 0 and 1, on disk only).
//! Batches stay bytes from socket to disk to socket: nothing here owns a record. Called by the log, the produce path,
//! the fetch path and by clients of ours; knows no log, no offset that a leader would give, no clock.

pub mod batch;
pub mod builder;
pub mod compression;
pub mod crc;
pub mod legacy;
pub mod reader;
pub mod record;
pub mod refusal;
pub mod rewrite;
pub mod scan;
#[cfg(test)]
mod tests;
pub mod validate;
mod varint;
