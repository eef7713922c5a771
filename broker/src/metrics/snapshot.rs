//! What crosses from a shard to whoever scrapes: values under names, and a row per partition. Owns its data.

use std::sync::Arc;

use protocol::types::TopicName;

use super::histogram::Counts;
use super::names::Family;

/// Labels of a value, in the order of the text.
pub type Labels = Vec<(&'static str, Arc<str>)>;

/// A value. All values of one family and one set of labels are of one variant; those of several shards are added,
/// or the greatest counts ([`Family::is_greatest`]).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(i64),
    /// A fraction.
    Real(f64),
    /// Times, counted in microseconds, told in milliseconds.
    Times(Counts),
    /// Sizes in bytes.
    Sizes(Counts),
}

/// A value under a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name.
    pub family: Family,
    /// Its labels.
    pub labels: Labels,
    /// The value.
    pub value: Value,
}

/// A replica, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    /// The topic.
    pub topic: TopicName,
    /// Index of the partition.
    pub partition: i32,
    /// Bytes of the log.
    pub size: u64,
    /// First offset.
    pub log_start_offset: i64,
    /// Offset behind the last record.
    pub log_end_offset: i64,
    /// Segments.
    pub segments: usize,
    /// Whether the log has failed.
    pub is_offline: bool,
    /// Replicas in sync, replicas and `min.insync.replicas`, if this broker leads.
    pub led: Option<Led>,
    /// Records between the last stable offset and the high watermark.
    pub last_stable_offset_lag: i64,
}

/// What a leader knows of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Led {
    /// In sync.
    pub isr: usize,
    /// In all.
    pub replicas: usize,
    /// `min.insync.replicas`, or all replicas when there are fewer.
    pub min_isr: usize,
}

/// Everything that one shard tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardSnapshot {
    /// Values.
    pub samples: Vec<Sample>,
    /// Replicas.
    pub partitions: Vec<PartitionRow>,
}

impl ShardSnapshot {
    /// Adds a value.
    pub fn push(&mut self, family: Family, labels: Labels, value: Value) {
        self.samples.push(Sample { family, labels, value });
    }

    /// Adds a whole number without labels.
    pub fn whole(&mut self, family: Family, value: usize) {
        self.push(family, Vec::new(), whole(value));
    }

    /// Adds a counter.
    pub fn count(&mut self, family: Family, labels: &Labels, value: u64) {
        self.push(family, labels.clone(), Value::Whole(i64::try_from(value).unwrap_or(i64::MAX)));
    }
}

/// A size as a value.
pub fn whole(value: usize) -> Value {
    Value::Whole(i64::try_from(value).unwrap_or(i64::MAX))
}
