//! What waits on a partition's owner (Kafka's purgatories, replication.md 6), as tables that know no clock and no log.
//!
//! [`produce`]: acknowledgements that wait for `written` or the high watermark. [`fetch`]: fetches that wait for bytes.

pub mod fetch;
pub mod produce;
