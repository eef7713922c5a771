//! The newest batches of a log, in memory (A-8, chapter 4): tail reads and positions near the end cost no I/O. Large
//! batches are held where they came, small ones in one buffer that grows until it is read or large.
//! Bounded per log by the caller and per shard by a [`TailBudget`], oldest first. Knows no file; what it does not hold is
//! read from the page cache.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use bytes::{Bytes, BytesMut};
use protocol::types::{MonoTime, Offset};

use super::header::{self, Header};

/// Small writes are gathered up to this size: what a reader walks through to find one of their batches.
pub(super) const GATHER_BYTES_MAX: usize = 16 << 10;

/// Append buffers that wait to be used again; each at most as large as what is gathered.
const SPARE_BUFFERS_MAX: usize = 16;

/// The memory that all tails of a shard share. Cheap to clone by `Rc`.
pub struct TailBudget {
    limit: usize,
    used: Cell<usize>,
    /// Every chunk in the order of arrival; entries of chunks that have gone by themselves are skipped.
    order: RefCell<VecDeque<(Weak<Tail>, u64)>>,
    spare: RefCell<Vec<BytesMut>>,
}

impl TailBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self { limit, used: Cell::new(0), order: RefCell::default(), spare: RefCell::default() })
    }

    /// Bytes held by all tails.
    pub fn used_bytes(&self) -> usize {
        self.used.get()
    }

    /// Lets go of what arrived before `before`, so that a shard whose partitions are idle holds nothing.
    pub fn evict_older(&self, before: MonoTime) {
        loop {
            let front = self.order.borrow().front().cloned();
            let Some((tail, id)) = front else {
                self.spare.take();
                return;
            };
            if let Some(tail) = tail.upgrade() {
                match tail.age_of(id) {
                    Some(at) if at >= before => return,
                    _ => tail.drop_front(id),
                }
            }
            self.order.borrow_mut().pop_front();
        }
    }

    /// An empty append buffer, which comes back with [`Tail::push`].
    fn lend(&self) -> BytesMut {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    fn take_back(&self, mut buffer: BytesMut) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS_MAX && buffer.capacity() <= GATHER_BYTES_MAX {
            buffer.clear();
            spare.push(buffer);
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

/// The bytes of one write, or of several small ones.
struct Chunk {
    id: u64,
    at: MonoTime,
    segment: Offset,
    position: u64,
    base_offset: Offset,
    next_offset: Offset,
    /// Empty while the chunk still grows.
    bytes: Bytes,
    len: usize,
    charged: usize,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.position.saturating_add(u64::try_from(self.len).unwrap_or(u64::MAX))
    }
}

/// What a new chunk holds.
enum Contents {
    Fixed(Bytes),
    Growing(BytesMut),
}

/// What arrives: one write.
pub(crate) struct NewChunk {
    pub(crate) at: MonoTime,
    pub(crate) segment: Offset,
    pub(crate) position: u64,
    pub(crate) base_offset: Offset,
    pub(crate) next_offset: Offset,
}

/// The newest batches of one log.
pub(crate) struct Tail {
    limit: usize,
    budget: Rc<TailBudget>,
    used: Cell<usize>,
    next_id: Cell<u64>,
    chunks: RefCell<VecDeque<Chunk>>,
    /// The bytes of the last chunk while it grows; empty when it does not.
    growing: RefCell<BytesMut>,
}

impl Tail {
    pub(crate) fn new(limit: usize, budget: Rc<TailBudget>) -> Rc<Self> {
        Rc::new(Self {
            limit,
            budget,
            used: Cell::new(0),
            next_id: Cell::new(0),
            chunks: RefCell::default(),
            growing: RefCell::default(),
        })
    }

    /// A buffer with what is to be written and then pushed, to which more may be added before.
    pub(crate) fn buffer(&self, bytes: &[u8]) -> BytesMut {
        if bytes.len() >= GATHER_BYTES_MAX {
            return BytesMut::from(bytes);
        }
        let mut buffer = self.budget.lend();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes what was written; older bytes go when it becomes too much.
    pub(crate) fn push(self: &Rc<Self>, new: NewChunk, bytes: BytesMut) {
        if bytes.len() >= GATHER_BYTES_MAX {
            return self.add(new, bytes);
        }
        if !self.gather(&new, &bytes) {
            // Only what is in it: the buffer may be far larger.
            self.add(new, BytesMut::from(&*bytes));
        }
        self.budget.take_back(bytes);
    }

    /// Whether a chunk of so much memory would be kept.
    pub(crate) fn takes(&self, memory: usize) -> bool {
        memory <= self.limit && memory <= self.budget.limit
    }

    /// Takes a large batch that was written, by reference: it keeps `memory` bytes alive.
    pub(crate) fn hold(self: &Rc<Self>, new: NewChunk, bytes: Bytes, memory: usize) {
        self.insert(new, bytes.len(), memory, Contents::Fixed(bytes));
    }

    fn add(self: &Rc<Self>, new: NewChunk, bytes: BytesMut) {
        self.insert(new, bytes.len(), bytes.capacity(), Contents::Growing(bytes));
    }

    fn insert(self: &Rc<Self>, new: NewChunk, len: usize, charged: usize, contents: Contents) {
        self.seal();
        if !self.takes(charged) {
            // What is not contiguous is of no use.
            return self.clear();
        }
        let id = self.next_id.get();
        self.next_id.set(id.wrapping_add(1));
        self.charge(charged);
        let NewChunk { at, segment, position, base_offset, next_offset } = new;
        let bytes = match contents {
            Contents::Fixed(bytes) => bytes,
            Contents::Growing(bytes) => {
                self.growing.replace(bytes);
                Bytes::new()
            }
        };
        let chunk = Chunk { id, at, segment, position, base_offset, next_offset, bytes, len, charged };
        self.chunks.borrow_mut().push_back(chunk);
        self.budget.order.borrow_mut().push_back((Rc::downgrade(self), id));
        self.make_room();
    }

    /// Adds a small write to the last chunk, if that still grows and this is what comes behind it.
    fn gather(&self, new: &NewChunk, bytes: &[u8]) -> bool {
        let mut growing = self.growing.borrow_mut();
        let mut chunks = self.chunks.borrow_mut();
        let Some(last) = chunks.back_mut().filter(|_| !growing.is_empty()) else { return false };
        let is_next = last.segment == new.segment && last.end() == new.position;
        // Chunks go as a whole: a small tail is not one of them.
        let bytes_max = GATHER_BYTES_MAX.min(self.limit.min(self.budget.limit) / 4);
        if !is_next || growing.len().saturating_add(bytes.len()) > bytes_max {
            return false;
        }
        growing.extend_from_slice(bytes);
        last.len = growing.len();
        last.next_offset = new.next_offset;
        let more = growing.capacity().saturating_sub(last.charged);
        last.charged = last.charged.saturating_add(more);
        drop((growing, chunks));
        if more > 0 {
            self.charge(more);
            self.make_room();
        }
        true
    }

    /// Ends the growth of the last chunk: from now on its bytes can be handed out.
    fn seal(&self) {
        let bytes = self.growing.take();
        if let Some(last) = self.chunks.borrow_mut().back_mut().filter(|_| !bytes.is_empty()) {
            last.bytes = bytes.freeze();
        }
    }

    fn make_room(&self) {
        while self.used.get() > self.limit {
            self.pop_front();
        }
        self.budget.make_room();
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        while self.pop_front() {}
        self.chunks.take();
        self.growing.take();
    }

    /// Forgets what it holds of segments up to this one: their batches lie elsewhere now.
    pub(crate) fn forget_up_to(&self, segment: Offset) {
        while self.chunks.borrow().front().is_some_and(|chunk| chunk.segment <= segment) {
            self.pop_front();
        }
    }

    /// The batch that holds `offset`, or the first above it, in the chunk that covers it.
    pub(crate) fn locate(&self, offset: Offset) -> Option<(Offset, Header)> {
        let chunks = self.chunks.borrow();
        let at = chunks.partition_point(|chunk| chunk.next_offset <= offset);
        let chunk = chunks.get(at).filter(|chunk| chunk.base_offset <= offset)?;
        let growing = self.growing.borrow();
        let bytes = if chunk.bytes.is_empty() { &**growing } else { &*chunk.bytes };
        let mut position = 0;
        loop {
            let rest = bytes.get(position..)?;
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
        self.seal();
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
        if chunk.bytes.is_empty() {
            // The last one, which still grew.
            self.growing.take();
        }
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

#[cfg(test)]
mod tests {
    use protocol::records::builder::BatchBuilder;
    use protocol::types::TimestampMs;

    use super::*;

    /// Writes of one record each, as a log would tell of them.
    struct Writes {
        tail: Rc<Tail>,
        segment: Offset,
        position: u64,
        next: i64,
        all: Vec<u8>,
    }

    impl Writes {
        fn new(tail: &Rc<Tail>) -> Self {
            Self { tail: tail.clone(), segment: Offset::ZERO, position: 0, next: 0, all: Vec::new() }
        }

        fn write(&mut self, value_bytes: usize) {
            let mut builder = BatchBuilder::new();
            builder.push(TimestampMs::new(1), None, Some(&vec![7; value_bytes]), &[]);
            let mut batch = builder.build().unwrap();
            let base_offset = Offset::new(self.next);
            protocol::records::batch::set_base_offset(&mut batch, base_offset);
            self.next += 1;
            let (segment, position, next_offset) = (self.segment, self.position, Offset::new(self.next));
            let new = NewChunk { at: MonoTime::new(1), segment, position, base_offset, next_offset };
            self.tail.push(new, self.tail.buffer(&batch));
            self.position += u64::try_from(batch.len()).unwrap();
            self.all.extend_from_slice(&batch);
        }

        fn read(&self) -> Vec<Bytes> {
            let mut pieces = Vec::new();
            let from = self.tail.covered_from(self.segment).unwrap();
            self.tail.pieces(self.segment, from, self.position, |bytes| pieces.push(bytes));
            let from = self.all.len() - usize::try_from(self.position - from).unwrap();
            assert_eq!(pieces.concat(), self.all[from..]);
            pieces
        }
    }

    #[test]
    fn small_writes_share_a_buffer_until_they_are_read() {
        let budget = TailBudget::new(1 << 20);
        let tail = Tail::new(1 << 20, budget.clone());
        let mut writes = Writes::new(&tail);
        for _ in 0..20 {
            writes.write(100);
        }
        assert_eq!((tail.chunks.borrow().len(), budget.order.borrow().len()), (1, 1));
        for at in 0..20 {
            let (_, found) = tail.locate(Offset::new(at)).unwrap();
            assert_eq!(found.base_offset, Offset::new(at), "also without a read before");
        }
        assert!(tail.locate(Offset::new(20)).is_none());
        assert_eq!(writes.read().len(), 1);
        let read = writes.read();
        for _ in 0..3 {
            writes.write(100);
        }
        assert_eq!(writes.read().len(), 2, "what was handed out does not change");
        assert_eq!(read.concat(), writes.all[..read[0].len()]);
        assert!(tail.locate(Offset::new(22)).is_some() && tail.locate(Offset::new(3)).is_some());
    }

    #[test]
    fn a_shared_buffer_ends_with_its_size_and_with_its_segment() {
        let tail = Tail::new(1 << 20, TailBudget::new(1 << 20));
        let mut writes = Writes::new(&tail);
        for _ in 0..40 {
            writes.write(1000);
        }
        writes.write(GATHER_BYTES_MAX);
        writes.write(1000);
        let lens: Vec<_> = writes.read().iter().map(Bytes::len).collect();
        assert!(lens.len() == 5 && lens[..3].iter().all(|len| *len <= GATHER_BYTES_MAX), "{lens:?}");
        (writes.segment, writes.position) = (Offset::new(writes.next), 0);
        writes.all.clear();
        writes.write(1000);
        assert_eq!(writes.read().len(), 1);
    }

    #[test]
    fn what_is_evicted_while_it_grows_is_gone_and_no_longer_charged() {
        let budget = TailBudget::new(5000);
        let tail = Tail::new(3000, budget.clone());
        let mut writes = Writes::new(&tail);
        for _ in 0..200 {
            writes.write(100);
            assert!(budget.used_bytes() <= 3000);
            let held: usize = tail.chunks.borrow().iter().map(|chunk| chunk.charged).sum();
            assert_eq!(budget.used_bytes(), held);
        }
        assert!(!budget.spare.borrow().is_empty());
        budget.evict_older(MonoTime::new(u64::MAX));
        assert_eq!(budget.used_bytes(), 0);
        assert!(tail.growing.borrow().capacity() == 0 && budget.spare.borrow().is_empty());
        assert!(tail.locate(Offset::new(199)).is_none());
        writes.write(100);
        assert_eq!(writes.read().len(), 1);
    }
}
