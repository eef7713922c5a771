//! `.kafka_cleanshutdown`: its presence says that the last stop of a log dir was clean (storage.md 1.4). When it is
//! written and removed is [`crate::log_dir`]'s to decide (S-6, S-7).

use protocol::types::BrokerEpoch;
use serde::Deserialize;

/// In ZooKeeper mode the marker carries no epoch.
pub const NO_EPOCH: BrokerEpoch = BrokerEpoch::new(-1);

#[derive(Deserialize)]
struct Content {
    #[serde(rename = "brokerEpoch")]
    broker_epoch: i64,
}

/// The content that Kafka writes since 3.7.
pub fn print(broker_epoch: BrokerEpoch) -> String {
    format!("{{\"version\":0,\"brokerEpoch\":{broker_epoch}}}")
}

/// The epoch in a marker; `None` if the content is empty (Kafka up to 3.6) or unreadable. The stop was clean either way.
pub fn parse(content: &[u8]) -> Option<BrokerEpoch> {
    serde_json::from_slice::<Content>(content).ok().map(|content| BrokerEpoch::new(content.broker_epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_kafkas_bytes() {
        assert_eq!(print(NO_EPOCH), r#"{"version":0,"brokerEpoch":-1}"#);
        assert_eq!(parse(print(BrokerEpoch::new(i64::MAX)).as_bytes()), Some(BrokerEpoch::new(i64::MAX)));
    }

    #[test]
    fn unknown_fields_are_ignored_and_unreadable_content_is_an_unknown_epoch() {
        assert_eq!(parse(br#"{"brokerEpoch": 7, "more": [1, {}]}"#), Some(BrokerEpoch::new(7)));
        for unreadable in
            [&b""[..], b"{", b"{}", b"\xff", br#"{"brokerEpoch":null}"#, br#"{"brokerEpoch":1e99}"#]
        {
            assert_eq!(parse(unreadable), None);
        }
    }
}
