//! The transactions that a walk over a log meets, from its aborted ones and its markers (storage.md 7.5): which batch is of an
//! aborted one, whose marker has no data left, which aborted ones still need an entry in the index. Pure.

use std::collections::{BTreeMap, BTreeSet};

use protocol::records::batch::BatchInfo;
use protocol::types::{Offset, ProducerId};

use crate::index::txn::AbortedTxn;
use crate::producer_state::TxnOutcome;

/// What a control batch is to a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// It ends a transaction.
    End(TxnOutcome),
    /// Compaction has emptied it before.
    Emptied,
    /// It is of another kind, or cannot be read: it stays.
    Other,
}

/// State of one walk from low to high offsets.
#[derive(Debug, Default)]
pub(crate) struct CleanedTransactions {
    /// Aborted ones that begin further on, by first and last offset: those that span segments are told of twice.
    ahead: BTreeMap<(Offset, Offset), AbortedTxn>,
    /// Aborted ones that have begun, and whether any of their data was met.
    aborted: BTreeMap<ProducerId, (AbortedTxn, bool)>,
    /// Producers with data that is not known to be aborted, behind which no marker was met yet.
    committed: BTreeSet<ProducerId>,
    /// Aborted ones whose data was met: in the order of their markers.
    kept: Vec<AbortedTxn>,
}

impl CleanedTransactions {
    /// Tells of aborted transactions with data in what is walked next.
    pub(crate) fn add_aborted(&mut self, transactions: impl IntoIterator<Item = AbortedTxn>) {
        self.ahead.extend(transactions.into_iter().map(|txn| ((txn.first_offset, txn.last_offset), txn)));
    }

    /// Takes in a batch that is no control batch; answers whether it is of an aborted transaction.
    pub(crate) fn on_data(&mut self, info: &BatchInfo) -> bool {
        self.begin_up_to(info.last_offset);
        if !info.attributes.is_transactional() {
            return false;
        }
        match self.aborted.get_mut(&info.producer_id) {
            Some((_, has_data)) => {
                *has_data = true;
                true
            }
            None => {
                self.committed.insert(info.producer_id);
                false
            }
        }
    }

    /// Takes in a control batch; answers whether no data of its transaction is left.
    pub(crate) fn on_control(&mut self, info: &BatchInfo, control: Control) -> bool {
        self.begin_up_to(info.last_offset);
        match control {
            Control::Emptied => true,
            Control::Other => false,
            Control::End(TxnOutcome::Commit) => !self.committed.remove(&info.producer_id),
            Control::End(TxnOutcome::Abort) => match self.aborted.remove(&info.producer_id) {
                Some((txn, true)) => {
                    self.kept.push(txn);
                    false
                }
                Some((_, false)) | None => true,
            },
        }
    }

    /// Entries for the transaction index of what was walked since the last call.
    pub(crate) fn take_kept(&mut self) -> Vec<AbortedTxn> {
        std::mem::take(&mut self.kept)
    }

    fn begin_up_to(&mut self, offset: Offset) {
        while let Some(entry) = self.ahead.first_entry().filter(|entry| entry.key().0 <= offset) {
            let txn = entry.remove();
            self.aborted.entry(txn.producer_id).or_insert((txn, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::records::batch::BatchView;
    use protocol::records::builder::BatchBuilder;
    use protocol::types::{ProducerEpoch, TimestampMs};

    use super::*;

    fn info(producer: i64, offset: i64, is_control: bool) -> BatchInfo {
        let mut builder = BatchBuilder::new()
            .base_offset(Offset::new(offset))
            .producer(ProducerId::new(producer), ProducerEpoch::new(0), 0)
            .transactional();
        if is_control {
            builder = builder.control();
        }
        builder.push(TimestampMs::new(1), Some(b"k"), Some(b"v"), &[]);
        BatchView::parse(&builder.build().unwrap()).unwrap().info()
    }

    fn txn(producer: i64, first: i64, last: i64) -> AbortedTxn {
        AbortedTxn {
            producer_id: ProducerId::new(producer),
            first_offset: Offset::new(first),
            last_offset: Offset::new(last),
            last_stable_offset: Offset::new(last + 1),
        }
    }

    const ABORT: Control = Control::End(TxnOutcome::Abort);
    const COMMIT: Control = Control::End(TxnOutcome::Commit);

    #[test]
    fn data_of_an_aborted_transaction_is_known_and_its_marker_stays_while_there_is_any() {
        let mut txns = CleanedTransactions::default();
        txns.add_aborted([txn(1, 0, 2)]);
        assert!(txns.on_data(&info(1, 0, false)));
        assert!(!txns.on_data(&info(2, 1, false)), "of another producer");
        assert!(!txns.on_control(&info(1, 2, true), ABORT));
        assert_eq!(txns.take_kept(), [txn(1, 0, 2)]);
        assert!(!txns.on_data(&info(1, 3, false)), "the next transaction of the same producer");
    }

    #[test]
    fn a_marker_without_data_can_go_and_needs_no_entry() {
        let mut txns = CleanedTransactions::default();
        txns.add_aborted([txn(1, 0, 2)]);
        assert!(txns.on_control(&info(1, 2, true), ABORT));
        assert!(txns.take_kept().is_empty());
        assert!(txns.on_control(&info(3, 4, true), COMMIT));
        assert!(txns.on_control(&info(3, 5, true), Control::Emptied));
        assert!(!txns.on_control(&info(3, 6, true), Control::Other));
    }

    #[test]
    fn a_commit_marker_stays_while_there_is_data_before_it() {
        let mut txns = CleanedTransactions::default();
        assert!(!txns.on_data(&info(1, 0, false)));
        assert!(!txns.on_control(&info(1, 1, true), COMMIT));
        assert!(txns.on_control(&info(1, 2, true), COMMIT), "nothing since the one before");
    }

    #[test]
    fn a_transaction_over_two_segments_is_one_though_both_tell_of_it() {
        let mut txns = CleanedTransactions::default();
        txns.add_aborted([txn(1, 0, 12)]);
        assert!(txns.on_data(&info(1, 0, false)));
        txns.add_aborted([txn(1, 0, 12)]);
        assert!(txns.on_data(&info(1, 10, false)));
        assert!(!txns.on_control(&info(1, 12, true), ABORT));
        assert_eq!(txns.take_kept(), [txn(1, 0, 12)]);
        assert!(!txns.on_data(&info(1, 13, false)));
    }
}
