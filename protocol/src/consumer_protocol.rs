//! What consumers put into the opaque metadata of their groups, as far as the broker has to understand it: the topics of a
//! subscription (coordinators.md 2.15). Knows neither assignments nor user data, which are between the clients. Called by
//! the broker's coordinator.
//!
//! ```text
//! subscription  version int16 | topics ARRAY(STRING) | user data BYTES? | what later versions add
//! ```

use crate::codec::Cursor;

/// Topics that one subscription names at most: far above what a record of the group could hold in an unchanged
/// `__consumer_offsets`.
const TOPICS_MAX: usize = 1 << 17;

/// The topics of a member's subscription, in its order, whatever its version: each begins with the fields of version 0
/// (KIP-429). `None` when the bytes do not, or there are too many: the caller then takes every topic for subscribed, as Kafka
/// does of what it cannot read.
pub fn subscribed_topics(metadata: &[u8]) -> Option<Vec<&str>> {
    let mut cursor = Cursor::new(metadata);
    cursor.i16().ok()?;
    let count = cursor.length(false).ok()??;
    if count > TOPICS_MAX {
        return None;
    }
    // A string has at least its length of two bytes.
    cursor.room_for(count, 2, size_of::<&str>()).ok()?;
    let mut topics = Vec::with_capacity(count);
    for _ in 0..count {
        topics.push(cursor.nullable_string(false).ok()??);
    }
    // A subscription that ends in its user data is none.
    cursor.nullable_bytes(false).ok()?;
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Topics `a` and `bc`, user data of one byte.
    const PREFIX: [u8; 16] = [0, 0, 0, 2, 0, 1, b'a', 0, 2, b'b', b'c', 0, 0, 0, 1, 7];

    fn subscription(version: i16, rest: &[u8]) -> Vec<u8> {
        [&version.to_be_bytes(), PREFIX.as_slice(), rest].concat()
    }

    /// G-21: versions 1 to 3 add owned partitions, a generation and a rack; nobody knows what 99 adds.
    #[test]
    fn topics_are_read_from_the_prefix_of_any_version() {
        let owned = [0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 4];
        let generation = [0, 0, 0, 9];
        let with_rack = [&owned[..], &generation, &[0, 1, b'r']].concat();
        let bytes = [
            subscription(0, &[]),
            subscription(1, &owned),
            subscription(2, &[&owned[..], &generation].concat()),
            subscription(3, &with_rack),
            subscription(99, &[0xff; 40]),
            subscription(-1, &[]),
        ];
        for bytes in bytes {
            assert_eq!(subscribed_topics(&bytes), Some(vec!["a", "bc"]), "{bytes:?}");
        }
    }

    #[test]
    fn user_data_may_be_null_and_topics_may_be_none() {
        assert_eq!(subscribed_topics(&[0, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Some(vec![]));
    }

    #[test]
    fn what_ends_within_the_prefix_is_no_subscription() {
        let bytes = subscription(0, &[]);
        for end in 0..bytes.len() {
            assert_eq!(subscribed_topics(&bytes[..end]), None, "{end} bytes");
        }
    }

    #[test]
    fn what_is_not_a_subscription_is_none_and_costs_nothing() {
        for hostile in [
            &[0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0][..],
            &[0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 1, 0, 1, 0xff, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff],
            b"not a subscription",
        ] {
            assert_eq!(subscribed_topics(hostile), None, "{hostile:?}");
        }
    }
}
