//! The newest batches of a log, in memory, by reference to its append buffers (A-8, chapter 4): tail reads and positions
//! near the end cost no I/O. Bounded per log by the caller and per shard by a [`TailBudget`], oldest first. Knows no
//! file; what it does not hold is read from the page cache.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use protocol::types::{MonoTime, Offset};

use super::header::{self, Header};

/// The memory that all tails of a shard share. Cheap to clone by `Rc`.
pub struct TailBudget {
    limit: usize,
    used: Cell<usize>,
    /// Every chunk in the order of arrival; entries of chunks that have gone by themselves are skipped.
    order: RefCell<VecDeque<(Weak<Tail>, u64)>>,
}

impl TailBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self { limit, used: Cell::new(0), order: RefCell::default() })
    }

    /// Bytes held by all tails.
    pub fn used_bytes(&self) -> usize {
        self.used.get()
    }

    /// Lets go of what arrived before `before`, so that a shard whose partitions are idle holds nothing.
    pub fn evict_older(&self, before: MonoTime) {
        loop {
            let front = self.order.borrow().front().cloned();
            let Some((tail, id)) = front else { return };
            if let Some(tail) = tail.upgrade() {
                match tail.age_of(id) {
                    Some(at) if at >= before => return,
                    _ => tail.drop_front(id),
                }
            }
            self.order.borrow_mut().pop_front();
        }
    }

    fn make_room(&self) {
        while self.used.get() > self.limit {
            let front = self.order.borrow_mut().pop_front();
            let Some((tail, id)) = front else { return };
            if let Some(tail) = tail.upgrade() {
                tail.drop_front(id);
            }
        }
        self.forget_stale();
    }

    /// Chunks that left by themselves leave an entry behind; when these are the most, the order is written anew.
    fn forget_stale(&self) {
        let len = self.order.borrow().len();
        if len < 64 || len < self.order.borrow().capacity() {
            return;
        }
        self.order.borrow_mut().retain(|(tail, id)| tail.upgrade().is_some_and(|t| t.age_of(*id).is_some()));
    }
}

/// The bytes of one write.
struct Chunk {
    id: u64,
    at: MonoTime,
    segment: Offset,
    position: u64,
    base_offset: Offset,
    next_offset: Offset,
    bytes: Bytes,
    charged: usize,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.position.saturating_add(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }
}

/// What arrives: one append buffer.
pub(crate) struct NewChunk {
    pub(crate) at: MonoTime,
    pub(crate) segment: Offset,
    pub(crate) position: u64,
    pub(crate) base_offset: Offset,
    pub(crate) next_offset: Offset,
    pub(crate) bytes: Bytes,
    /// Bytes of memory that the buffer takes.
    pub(crate) charged: usize,
}

/// The newest batches of one log.
pub(crate) struct Tail {
    limit: usize,
    budget: Rc<TailBudget>,
    used: Cell<usize>,
    next_id: Cell<u64>,
    chunks: RefCell<VecDeque<Chunk>>,
}

impl Tail {
    pub(crate) fn new(limit: usize, budget: Rc<TailBudget>) -> Rc<Self> {
        Rc::new(Self { limit, budget, used: Cell::new(0), next_id: Cell::new(0), chunks: RefCell::default() })
    }

    /// Takes a buffer; older ones go when it becomes too much.
    pub(crate) fn push(self: &Rc<Self>, new: NewChunk) {
        if new.charged > self.limit || new.charged > self.budget.limit {
            // What is not contiguous is of no use.
            return self.clear();
        }
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        self.charge(new.charged);
        let NewChunk { at, segment, position, base_offset, next_offset, bytes, charged } = new;
        let chunk = Chunk { id, at, segment, position, base_offset, next_offset, bytes, charged };
        self.chunks.borrow_mut().push_back(chunk);
        while self.used.get() > self.limit {
            self.pop_front();
        }
        self.budget.order.borrow_mut().push_back((Rc::downgrade(self), id));
        self.budget.make_room();
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        while self.pop_front() {}
        self.chunks.take();
    }

    /// The batch that holds `offset`, or the first above it, in the chunk that covers it.
    pub(crate) fn locate(&self, offset: Offset) -> Option<(Offset, Header)> {
        let chunks = self.chunks.borrow();
        let at = chunks.partition_point(|chunk| chunk.next_offset <= offset);
        let chunk = chunks.get(at).filter(|chunk| chunk.base_offset <= offset)?;
        let mut position = 0;
        loop {
            let rest = chunk.bytes.get(position..)?;
            let found =
                header::parse(rest, chunk.position.saturating_add(u64::try_from(position).ok()?)).ok()?;
            if found.last_offset >= offset {
                return Some((chunk.segment, found));
            }
            position = position.checked_add(usize::try_from(found.size).ok()?)?;
        }
    }

    /// First byte of a segment that is held, if any is.
    pub(crate) fn covered_from(&self, segment: Offset) -> Option<u64> {
        let chunks = self.chunks.borrow();
        chunks.iter().find(|chunk| chunk.segment == segment).map(|chunk| chunk.position)
    }

    /// Hands out `from..to` of a segment, which lies within what is held, piece by piece.
    pub(crate) fn pieces(&self, segment: Offset, from: u64, to: u64, mut out: impl FnMut(Bytes)) {
        let chunks = self.chunks.borrow();
        let before =
            |chunk: &Chunk| chunk.segment < segment || (chunk.segment == segment && chunk.end() <= from);
        let first = chunks.partition_point(before);
        let within = |chunk: &&Chunk| chunk.segment == segment && chunk.position < to;
        for chunk in chunks.iter().skip(first).take_while(within) {
            let start = usize::try_from(from.saturating_sub(chunk.position)).unwrap_or(0);
            let end = usize::try_from(to.min(chunk.end()).saturating_sub(chunk.position)).unwrap_or(0);
            out(chunk.bytes.slice(start..end));
        }
    }

    fn charge(&self, bytes: usize) {
        self.used.set(self.used.get().saturating_add(bytes));
        self.budget.used.set(self.budget.used.get().saturating_add(bytes));
    }

    fn discharge(&self, bytes: usize) {
        self.used.set(self.used.get().saturating_sub(bytes));
        self.budget.used.set(self.budget.used.get().saturating_sub(bytes));
    }

    fn pop_front(&self) -> bool {
        let Some(chunk) = self.chunks.borrow_mut().pop_front() else { return false };
        self.discharge(chunk.charged);
        true
    }

    fn drop_front(&self, id: u64) {
        if self.chunks.borrow().front().is_some_and(|chunk| chunk.id == id) {
            self.pop_front();
            if self.chunks.borrow().is_empty() {
                self.chunks.take();
            }
        }
    }

    fn age_of(&self, id: u64) -> Option<MonoTime> {
        let chunks = self.chunks.borrow();
        chunks.binary_search_by_key(&id, |chunk| chunk.id).ok().and_then(|at| chunks.get(at)).map(|c| c.at)
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.clear();
    }
}
