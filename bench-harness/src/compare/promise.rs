//! What a record has waited for when it is acknowledged, where a contrast asks its topics for it. THE list of what two sides
//! may promise: what is not in it cannot be asked, so that no comparison favours who promises less.

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::report::KAFKA;
use super::servers::Broker;

/// With it a topic acknowledges a record when the disk has it, on both sides.
const STRICT: &str = "flush.messages=1";

/// What the topics of a contrast promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promises {
    /// What the settings of the brokers do, which is the same on both sides.
    #[default]
    Settings,
    /// The disk has it, on both sides.
    Disk,
    /// On our side the disk has it, on Kafka's the page cache: the only sides that differ, of scenario `durability`.
    OursDisk,
}

impl Promises {
    fn setting(self, is_kafka: bool) -> Option<&'static str> {
        match self {
            Self::Settings => None,
            Self::Disk => Some(STRICT),
            Self::OursDisk => (!is_kafka).then_some(STRICT),
        }
    }

    /// A load on a topic that keeps it, which the load creates.
    pub fn ask(self, job: Job, broker: &Broker) -> Job {
        match self.setting(broker.name().starts_with(KAFKA)) {
            Some(setting) => job.with("--topic-config", setting),
            None => job,
        }
    }

    /// What a report says of it, where the settings do not.
    pub fn sentence(self) -> Option<&'static str> {
        match self {
            Self::Settings => None,
            Self::Disk => {
                Some("acknowledged when the disk has it, both sides (topics have `flush.messages=1`)")
            }
            Self::OursDisk => Some(
                "**the sides promise different things**: ours acknowledges when the disk has it (topics have \
                 `flush.messages=1`), Kafka when the page cache has it (its default)",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_side_ever_promises_more_than_the_other() {
        for promises in [Promises::Settings, Promises::Disk, Promises::OursDisk] {
            let (ours, theirs) = (promises.setting(false), promises.setting(true));
            assert!(ours == theirs || (promises == Promises::OursDisk && theirs.is_none()), "{promises:?}");
            let is_said = promises.sentence().is_some_and(|said| said.contains("different things"));
            assert_eq!(is_said, ours != theirs, "{promises:?}");
        }
    }
}
