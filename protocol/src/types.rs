//! The newtypes of Kafka's vocabulary. Each is built by `new` and opened by `get`; there is no `From` and no
//! `Deref`, so that an offset cannot become an epoch by accident. Knows no message and no file format.

use std::fmt;
use std::sync::Arc;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($raw);
        impl $name {
            /// Wraps the raw value.
            pub const fn new(raw: $raw) -> Self {
                Self(raw)
            }
            /// The raw value.
            pub const fn get(self) -> $raw {
                self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

newtype!(
    /// Position of a record in a partition, counted in records. `-1` on the wire means "none".
    Offset(i64)
);
newtype!(
    /// Generation of a partition's leadership, given by the controller; `-1` means "none" (KIP-101, KIP-320).
    LeaderEpoch(i32)
);
newtype!(
    /// Version of a partition's leader-and-ISR state; in ZooKeeper mode the data version of its state znode.
    PartitionEpoch(i32)
);
newtype!(
    /// Generation of the cluster's controller (`/controller_epoch`).
    ControllerEpoch(i32)
);
newtype!(
    /// Registration of a broker; in ZooKeeper mode the czxid of `/brokers/ids/<id>` (KIP-380).
    BrokerEpoch(i64)
);
newtype!(
    /// Id of a broker; `-1` means "none".
    BrokerId(i32)
);
newtype!(
    /// Id of a producer (KIP-98); `-1` means "none".
    ProducerId(i64)
);
newtype!(
    /// Generation of a producer id (KIP-98); `-1` means "none".
    ProducerEpoch(i16)
);
newtype!(
    /// Milliseconds since 1970-01-01 UTC, as record timestamps carry them; `-1` means "none".
    TimestampMs(i64)
);
newtype!(
    /// Nanoseconds on a clock that never goes back; only differences have a meaning, and only within a process.
    MonoTime(u64)
);

impl Offset {
    /// No offset.
    pub const NONE: Self = Self(-1);
    /// The first offset of a log.
    pub const ZERO: Self = Self(0);
    /// This offset moved by `records`; saturates instead of wrapping.
    #[must_use]
    pub const fn plus(self, records: i64) -> Self {
        Self(self.0.saturating_add(records))
    }
    /// Records from `earlier` to `self`.
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl LeaderEpoch {
    /// No leader epoch; in requests "do not check".
    pub const NONE: Self = Self(-1);
}

impl BrokerId {
    /// No broker.
    pub const NONE: Self = Self(-1);
}

impl ProducerId {
    /// Not an idempotent producer.
    pub const NONE: Self = Self(-1);
}

impl ProducerEpoch {
    /// Not an idempotent producer.
    pub const NONE: Self = Self(-1);
}

impl TimestampMs {
    /// No timestamp.
    pub const NONE: Self = Self(-1);
}

impl MonoTime {
    /// This time moved later by `nanos`; saturates.
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
    /// This time moved later by `ms`; saturates, and a negative `ms` does not move it.
    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        let ms = if ms < 0 { 0 } else { ms.unsigned_abs() };
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }
    /// Nanoseconds from `earlier` to `self`, zero if `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Unique id of a topic (KIP-516): 16 bytes, all zero means "none". Printed as unpadded base64url, as Kafka does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopicId([u8; 16]);

impl TopicId {
    /// No topic id.
    pub const ZERO: Self = Self([0; 16]);
    /// Wraps 16 bytes in network order.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
    /// The 16 bytes in network order.
    pub const fn get(self) -> [u8; 16] {
        self.0
    }
    /// Whether this is "none".
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
    /// Reads the 22-character base64url form; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        use base64::Engine;
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use base64::Engine;
        f.write_str(&base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

/// Topic that holds consumer groups and their committed offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";

/// Topic that holds the state of transactions.
pub const TRANSACTION_STATE: &str = "__transaction_state";

/// Name of a topic. Cheap to clone, safe to send between shards; says nothing about legality (see [`TopicName::is_legal`]).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Wraps a name as it came, legal or not.
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }
    /// The name.
    pub fn get(&self) -> &str {
        &self.0
    }
    /// Kafka's rule: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`.
    pub fn is_legal(name: &str) -> bool {
        (1..=249).contains(&name.len())
            && name != "."
            && name != ".."
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    }
    /// Whether Kafka treats the topic as internal: clients may not produce to it.
    pub fn is_internal(&self) -> bool {
        matches!(self.get(), CONSUMER_OFFSETS | TRANSACTION_STATE)
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// One partition of one topic, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicName,
    /// Index of the partition, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: TopicName, partition: i32) -> Self {
        Self { topic, partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_id_prints_and_parses_as_kafka_does() {
        let id = TopicId::new([0x66, 0x4d, 0x61, 0x5b, 0x76, 0x69, 0x43, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(id.to_string().len(), 22);
        assert_eq!(TopicId::parse(&id.to_string()), Some(id));
        assert_eq!(TopicId::parse("short"), None);
    }

    #[test]
    fn topic_names_follow_kafkas_pattern() {
        for good in ["a", "A.b_c-9", &"x".repeat(249)] {
            assert!(TopicName::is_legal(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", &"x".repeat(250)] {
            assert!(!TopicName::is_legal(bad), "{bad}");
        }
    }

    #[test]
    fn times_saturate() {
        assert_eq!(MonoTime::new(u64::MAX).plus_ms(5), MonoTime::new(u64::MAX));
        assert_eq!(MonoTime::new(7).plus_ms(-5), MonoTime::new(7));
        assert_eq!(MonoTime::new(7).nanos_since(MonoTime::new(9)), 0);
    }
}
