//! Which batches and records stay (storage.md 7.5, KIP-534, field faults F32, F42, F43). Pure: the map, the transactions and the
//! producers come from the caller, who also writes what was decided.

use std::collections::BTreeMap;

use protocol::records::batch::BatchInfo;
use protocol::types::{Offset, ProducerEpoch, ProducerId, TimestampMs};

use super::OffsetMap;
use super::transactions::{CleanedTransactions, Control};

/// What the log knows last of a live producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastOfProducer {
    /// Offset of its last record; none if only a marker is known.
    pub(crate) data_offset: Option<Offset>,
    pub(crate) epoch: ProducerEpoch,
}

/// What holds for a whole pass.
pub(crate) struct PassRules<'a> {
    pub(crate) map: &'a OffsetMap,
    pub(crate) now: TimestampMs,
    pub(crate) delete_retention_ms: i64,
    pub(crate) first_uncleanable: Offset,
    pub(crate) producers: &'a BTreeMap<ProducerId, LastOfProducer>,
}

/// What becomes of a batch, before its records are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchRule {
    /// None of its records stays.
    drops_records: bool,
    /// Without records it stays as a header.
    keeps_header: bool,
    is_control: bool,
    is_marker_of_nothing: bool,
    /// From when on its tombstones may go.
    horizon: Option<TimestampMs>,
    old_tombstones_stay: bool,
    is_old_format: bool,
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes.
    Drop,
    /// It stays as it is.
    Keep,
    /// Its records go, its header stays.
    Empty,
    /// It is written again with the records that stay, and with a delete horizon if there was none.
    Rewrite {
        /// The delete horizon to be set.
        horizon: Option<TimestampMs>,
    },
}

/// What was seen of the records of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kept: u64,
    pub(crate) dropped: u64,
    pub(crate) has_tombstone: bool,
}

impl PassRules<'_> {
    /// The rule for a batch of the current format, met in the order of the log.
    pub(crate) fn on_batch(
        &self,
        info: &BatchInfo,
        control: Option<Control>,
        transactions: &mut CleanedTransactions,
    ) -> BatchRule {
        let can_go = match control {
            Some(control) => transactions.on_control(info, control),
            None => transactions.on_data(info),
        };
        let horizon = info.attributes.has_delete_horizon().then_some(info.base_timestamp);
        let is_control = control.is_some();
        let drops_records = can_go && (!is_control || horizon.is_some_and(|horizon| horizon <= self.now));
        BatchRule {
            drops_records,
            // The batch at the end tells where the log ends when all else is gone (KAFKA-17076).
            keeps_header: self.is_last_of_producer(info) || info.next_offset() == self.first_uncleanable,
            is_control,
            is_marker_of_nothing: can_go && is_control,
            horizon,
            old_tombstones_stay: false,
            is_old_format: false,
        }
    }

    /// The rule for a message, or a wrapper of messages, of magic 0 or 1.
    pub(crate) const fn on_old_message(&self, tombstones_stay: bool) -> BatchRule {
        BatchRule {
            drops_records: false,
            keeps_header: false,
            is_control: false,
            is_marker_of_nothing: false,
            horizon: None,
            old_tombstones_stay: tombstones_stay,
            is_old_format: true,
        }
    }

    /// Whether a record stays, noted in `seen`.
    pub(crate) fn keeps(
        &self,
        rule: &BatchRule,
        offset: Offset,
        (key, has_value): (Option<&[u8]>, bool),
        seen: &mut Seen,
    ) -> bool {
        let keeps = if rule.drops_records {
            false
        } else if rule.is_control || self.map.latest_offset().is_none_or(|latest| offset > latest) {
            true
        } else {
            key.is_some_and(|key| self.is_latest(key, offset)) && (has_value || self.keeps_tombstone(rule))
        };
        if keeps {
            seen.kept = seen.kept.saturating_add(1);
            seen.has_tombstone |= !has_value;
        } else {
            seen.dropped = seen.dropped.saturating_add(1);
        }
        keeps
    }

    fn is_latest(&self, key: &[u8], offset: Offset) -> bool {
        self.map.get(key).is_none_or(|latest| offset >= latest)
    }

    fn keeps_tombstone(&self, rule: &BatchRule) -> bool {
        if rule.is_old_format {
            rule.old_tombstones_stay
        } else {
            rule.horizon.is_none_or(|horizon| self.now < horizon)
        }
    }

    /// What the records of a batch come to.
    pub(crate) fn fate(&self, rule: &BatchRule, seen: &Seen) -> Fate {
        if seen.kept == 0 {
            return if rule.keeps_header { Fate::Empty } else { Fate::Drop };
        }
        let needs_horizon = rule.horizon.is_none()
            && !rule.is_old_format
            && (seen.has_tombstone || rule.is_marker_of_nothing);
        let horizon =
            needs_horizon.then(|| TimestampMs::new(self.now.get().saturating_add(self.delete_retention_ms)));
        if seen.dropped == 0 && horizon.is_none() { Fate::Keep } else { Fate::Rewrite { horizon } }
    }

    /// Whether a batch holds what is known last of a live producer: its sequence, or only its epoch.
    fn is_last_of_producer(&self, info: &BatchInfo) -> bool {
        if !info.has_producer_id() {
            return false;
        }
        self.producers.get(&info.producer_id).is_some_and(|last| match last.data_offset {
            Some(offset) => info.last_offset == offset,
            None => info.attributes.is_control() && info.producer_epoch == last.epoch,
        })
    }
}

impl BatchRule {
    /// Whether it is settled that nothing of the batch stays.
    pub(crate) const fn is_dropped(&self) -> bool {
        self.drops_records && !self.keeps_header
    }
}

#[cfg(test)]
mod tests {
    use protocol::records::batch::BatchView;
    use protocol::records::builder::BatchBuilder;

    use super::*;
    use crate::compaction::offset_map::SLOT_BYTES;
    use crate::index::txn::AbortedTxn;
    use crate::producer_state::TxnOutcome;

    const NOW: TimestampMs = TimestampMs::new(1_000_000);
    const RETENTION_MS: i64 = 5000;
    const END: Offset = Offset::new(1000);

    struct World {
        map: OffsetMap,
        producers: BTreeMap<ProducerId, LastOfProducer>,
        transactions: CleanedTransactions,
    }

    impl World {
        /// A map with the last offsets of some keys, in which everything up to 100 was looked at.
        fn new(keys: &[(&str, i64)]) -> Self {
            let mut map = OffsetMap::new(1000 * SLOT_BYTES, 0.9, u64::MAX);
            for (key, offset) in keys {
                assert!(map.put(key.as_bytes(), Offset::new(*offset)));
            }
            map.set_latest_offset(Offset::new(100));
            Self { map, producers: BTreeMap::new(), transactions: CleanedTransactions::default() }
        }

        fn rules(&self) -> PassRules<'_> {
            PassRules {
                map: &self.map,
                now: NOW,
                delete_retention_ms: RETENTION_MS,
                first_uncleanable: END,
                producers: &self.producers,
            }
        }

        fn rule(&mut self, info: &BatchInfo, control: Option<Control>) -> BatchRule {
            let mut transactions = std::mem::take(&mut self.transactions);
            let rule = self.rules().on_batch(info, control, &mut transactions);
            self.transactions = transactions;
            rule
        }

        fn keeps(&self, rule: &BatchRule, offset: i64, key: Option<&str>, has_value: bool) -> bool {
            let record = (key.map(str::as_bytes), has_value);
            self.rules().keeps(rule, Offset::new(offset), record, &mut Seen::default())
        }
    }

    fn batch(offset: i64) -> BatchBuilder {
        let mut builder = BatchBuilder::new().base_offset(Offset::new(offset));
        builder.push(TimestampMs::new(1), Some(b"k"), Some(b"v"), &[]);
        builder
    }

    fn info(builder: BatchBuilder) -> BatchInfo {
        BatchView::parse(&builder.build().unwrap()).unwrap().info()
    }

    fn of_producer(offset: i64, producer: i64) -> BatchBuilder {
        batch(offset).producer(ProducerId::new(producer), ProducerEpoch::new(2), 0)
    }

    /// With the horizon that `ahead` of now gives.
    fn with_horizon(mut info: BatchInfo, ahead: i64) -> BatchInfo {
        info.attributes = info.attributes.delete_horizon();
        info.base_timestamp = TimestampMs::new(NOW.get() + ahead);
        info
    }

    const COMMIT: Option<Control> = Some(Control::End(TxnOutcome::Commit));

    #[test]
    fn of_each_key_the_last_record_stays_and_what_the_map_has_not_seen() {
        let mut world = World::new(&[("a", 50)]);
        let rule = world.rule(&info(batch(10)), None);
        assert!(!world.keeps(&rule, 10, Some("a"), true));
        assert!(world.keeps(&rule, 50, Some("a"), true));
        assert!(world.keeps(&rule, 60, Some("b"), true), "a key that is not in the map has no later record");
        assert!(!world.keeps(&rule, 60, None, true), "no key");
        assert!(world.keeps(&rule, 101, Some("a"), true) && world.keeps(&rule, 101, None, true));
    }

    #[test]
    fn a_tombstone_stays_until_its_horizon_which_is_set_when_it_is_met_first() {
        let mut world = World::new(&[("a", 50)]);
        let fresh = world.rule(&info(batch(50)), None);
        assert!(world.keeps(&fresh, 50, Some("a"), false));
        let seen = Seen { kept: 1, dropped: 0, has_tombstone: true };
        let horizon = Some(TimestampMs::new(NOW.get() + RETENTION_MS));
        assert_eq!(world.rules().fate(&fresh, &seen), Fate::Rewrite { horizon });
        let later = world.rule(&with_horizon(info(batch(50)), 1), None);
        assert!(world.keeps(&later, 50, Some("a"), false));
        assert_eq!(world.rules().fate(&later, &seen), Fate::Keep, "the horizon is not moved");
        let over = world.rule(&with_horizon(info(batch(50)), 0), None);
        assert!(!world.keeps(&over, 50, Some("a"), false) && world.keeps(&over, 50, Some("a"), true));
    }

    #[test]
    fn an_old_tombstone_goes_by_the_age_of_its_segment() {
        let world = World::new(&[("a", 50)]);
        for stays in [true, false] {
            let rule = world.rules().on_old_message(stays);
            assert_eq!(world.keeps(&rule, 50, Some("a"), false), stays);
            let seen = Seen { kept: 1, dropped: 0, has_tombstone: true };
            assert_eq!(world.rules().fate(&rule, &seen), Fate::Keep, "no horizon in the old formats");
        }
    }

    #[test]
    fn data_of_an_aborted_transaction_goes_whatever_the_map_says() {
        let mut world = World::new(&[]);
        world.transactions.add_aborted([AbortedTxn {
            producer_id: ProducerId::new(1),
            first_offset: Offset::new(10),
            last_offset: Offset::new(20),
            last_stable_offset: Offset::new(21),
        }]);
        let rule = world.rule(&info(of_producer(10, 1).transactional()), None);
        assert!(rule.is_dropped() && !world.keeps(&rule, 200, Some("a"), true));
    }

    #[test]
    fn a_marker_whose_data_is_gone_gets_a_horizon_first_and_goes_after_it() {
        let mut world = World::new(&[]);
        let marker = || info(of_producer(20, 1).transactional().control());
        let seen = Seen { kept: 1, ..Seen::default() };
        let first = world.rule(&marker(), COMMIT);
        assert!(world.keeps(&first, 20, Some("k"), true));
        let horizon = Some(TimestampMs::new(NOW.get() + RETENTION_MS));
        assert_eq!(world.rules().fate(&first, &seen), Fate::Rewrite { horizon });
        let waiting = world.rule(&with_horizon(marker(), 1), COMMIT);
        assert_eq!((waiting.is_dropped(), world.rules().fate(&waiting, &seen)), (false, Fate::Keep));
        assert!(world.rule(&with_horizon(marker(), 0), COMMIT).is_dropped());
        // With data before it the marker stays, its horizon notwithstanding (F42).
        world.rule(&info(of_producer(19, 1).transactional()), None);
        let needed = world.rule(&with_horizon(marker(), 0), COMMIT);
        assert!(!needed.is_dropped() && world.keeps(&needed, 20, Some("k"), true));
    }

    #[test]
    fn the_last_batch_of_a_live_producer_stays_as_a_header() {
        let mut world = World::new(&[("k", 50)]);
        let last = LastOfProducer { data_offset: Some(Offset::new(30)), epoch: ProducerEpoch::new(2) };
        world.producers.insert(ProducerId::new(1), last);
        let none = Seen { dropped: 1, ..Seen::default() };
        let of_last = world.rule(&info(of_producer(30, 1)), None);
        assert_eq!(world.rules().fate(&of_last, &none), Fate::Empty);
        let before = world.rule(&info(of_producer(29, 1)), None);
        assert_eq!(world.rules().fate(&before, &none), Fate::Drop);
        let other = world.rule(&info(of_producer(30, 7)), None);
        assert_eq!(world.rules().fate(&other, &none), Fate::Drop, "it has expired");
    }

    #[test]
    fn the_marker_of_a_producer_without_data_stays_for_its_epoch() {
        let mut world = World::new(&[]);
        let last = LastOfProducer { data_offset: None, epoch: ProducerEpoch::new(2) };
        world.producers.insert(ProducerId::new(1), last);
        let marker = with_horizon(info(of_producer(30, 1).transactional().control()), -1);
        let rule = world.rule(&marker, COMMIT);
        assert!(!rule.is_dropped());
        assert_eq!(world.rules().fate(&rule, &Seen { dropped: 1, ..Seen::default() }), Fate::Empty);
    }

    #[test]
    fn the_batch_before_the_first_uncleanable_offset_stays_as_a_header() {
        let mut world = World::new(&[]);
        let none = Seen { dropped: 1, ..Seen::default() };
        let rule = world.rule(&info(batch(END.get() - 1)), None);
        assert_eq!(world.rules().fate(&rule, &none), Fate::Empty);
    }

    #[test]
    fn a_batch_is_written_again_only_if_it_changes() {
        let mut world = World::new(&[]);
        let rule = world.rule(&info(batch(1)), None);
        let fate = |kept, dropped| world.rules().fate(&rule, &Seen { kept, dropped, has_tombstone: false });
        assert_eq!(fate(2, 0), Fate::Keep);
        assert_eq!(fate(1, 1), Fate::Rewrite { horizon: None });
        assert_eq!(fate(0, 2), Fate::Drop);
        assert_eq!(fate(0, 0), Fate::Drop, "emptied before");
    }
}
