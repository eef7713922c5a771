//! The transaction index: aborted transactions whose marker lies in the segment (storage.md 2.4).
//!
//! ```text
//!  0  2  version 0                 Kafka looks at the first byte only
//!  2  8  producer id
//! 10  8  first offset of the transaction
//! 18  8  offset of the abort marker          strictly increasing
//! 26  8  last stable offset at that time
//! ```
//! The file exists only once there is an entry.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::types::{Offset, ProducerId};

use super::table::{self, Table, entries_of};
use super::{IndexAppendError, IndexError, IndexWrite};

/// Size of an entry.
pub const ENTRY_BYTES: usize = 34;

/// An aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTxn {
    /// Who wrote it.
    pub producer_id: ProducerId,
    /// Offset of its first record; may lie in an earlier segment.
    pub first_offset: Offset,
    /// Offset of its abort marker.
    pub last_offset: Offset,
    /// Last stable offset as if this transaction were already gone.
    pub last_stable_offset: Offset,
}

/// Aborted transactions that a read has to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedTxns {
    /// The transactions, in the order of their markers.
    pub transactions: Vec<AbortedTxn>,
    /// Whether no later segment can hold another one.
    pub is_complete: bool,
}

/// The transaction index of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnIndex {
    table: Table<AbortedTxn>,
}

impl TxnIndex {
    /// An empty index.
    pub const fn new() -> Self {
        Self { table: Table::new() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What makes the file unusable, so that the segment has to be recovered.
    pub fn parse(base: Offset, content: &[u8]) -> Result<Self, IndexError> {
        let read = |number, last: Option<&AbortedTxn>, entry: &[u8; ENTRY_BYTES]| {
            let mut fields = &entry[..];
            match fields.get_u16().to_be_bytes() {
                [0, _] => {}
                [version, _] => return Err(IndexError::UnknownVersion { entry: number, version }),
            }
            let txn = AbortedTxn {
                producer_id: ProducerId::new(fields.get_i64()),
                first_offset: Offset::new(fields.get_i64()),
                last_offset: Offset::new(fields.get_i64()),
                last_stable_offset: Offset::new(fields.get_i64()),
            };
            if txn.last_offset < base {
                return Err(IndexError::OutOfRange(number));
            }
            if last.is_some_and(|last| txn.last_offset <= last.last_offset) {
                return Err(IndexError::OutOfOrder(number));
            }
            Ok(txn)
        };
        Ok(Self { table: Table::read(entries_of(content)?, read)? })
    }

    /// The entries, in the order of their markers.
    pub fn entries(&self) -> &[AbortedTxn] {
        self.table.entries()
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Size of the file once everything is written.
    pub fn size_bytes(&self) -> u64 {
        self.table.size_bytes()
    }

    /// Adds a transaction whose abort marker was just written.
    ///
    /// # Errors
    /// `OutOfOrder` if its marker is not behind the last one.
    pub fn append(&mut self, txn: AbortedTxn) -> Result<(), IndexAppendError> {
        if self.table.last().is_some_and(|last| txn.last_offset <= last.last_offset) {
            return Err(IndexAppendError::OutOfOrder);
        }
        self.table.push(txn);
        Ok(())
    }

    /// Transactions with records in `[from, upper)` as far as this segment tells; the caller goes on with the next
    /// segment until the answer is complete.
    pub fn collect(&self, from: Offset, upper: Offset) -> CollectedTxns {
        let mut transactions = Vec::new();
        for txn in self.table.entries() {
            if txn.last_offset >= from && txn.first_offset < upper {
                transactions.push(*txn);
            }
            if txn.last_stable_offset >= upper {
                return CollectedTxns { transactions, is_complete: true };
            }
        }
        CollectedTxns { transactions, is_complete: false }
    }

    /// Drops transactions whose marker is at or above `offset`. The caller cuts the file to [`Self::size_bytes`].
    pub fn truncate_to(&mut self, offset: Offset) {
        self.table.keep_while(|txn| txn.last_offset < offset);
    }

    /// Entries that are not in the file yet; `None` if there are none.
    pub fn unwritten(&self) -> Option<IndexWrite> {
        self.table.unwritten()
    }

    /// Notes that the file holds every entry below `size_bytes`.
    pub fn mark_written(&mut self, size_bytes: u64) {
        self.table.mark_written(size_bytes);
    }

    /// The whole file.
    pub fn to_bytes(&self) -> Bytes {
        self.table.to_bytes()
    }
}

impl table::Entry for AbortedTxn {
    const BYTES: usize = ENTRY_BYTES;

    fn put(&self, out: &mut BytesMut) {
        out.put_i16(0);
        out.put_i64(self.producer_id.get());
        out.put_i64(self.first_offset.get());
        out.put_i64(self.last_offset.get());
        out.put_i64(self.last_stable_offset.get());
    }
}
