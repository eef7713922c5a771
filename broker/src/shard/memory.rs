//! The budget for bytes of requests on one shard: charged as they arrive, never as they are claimed, and given
//! back when the bytes are gone: with the request, or, for record batches, when the log has written them. A [`Charge`]
//! travels with its bytes, also to another shard. Over the budget nobody reads on, but for one frame that has begun: it
//! can always finish. Who waits is let on in the order of waiting, one after the other.
//!
//! A part of the budget is for small frames: large ones do not take it, and a small one does not wait behind them while it
//! has room there. What both may take goes to who waits the longest. Knows no sockets; `net` asks before each read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;

/// Of the budget, the part that large frames do not take.
const RESERVE_DIVISOR: usize = 4;

/// So many small frames at least fit into that part.
const SMALL_FRAMES_MIN: usize = 8;

/// No frame above this is small: what producers send at most by default (`max.request.size`), and what is around it.
const SMALL_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// How a frame counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// It may take the part that is kept for its like.
    Small,
    /// It may not.
    Large,
}

impl Size {
    const ALL: [Self; 2] = [Self::Small, Self::Large];
}

/// Whose bytes are in the way of those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Those of large frames: they have used up their part.
    OfLarge,
    /// All.
    OfAll,
}

impl Pressure {
    /// Whether it helps to give back what a frame of this size has.
    pub fn is_of(self, size: Size) -> bool {
        self == Self::OfAll || size == Size::Large
    }
}

/// How a budget is divided.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes_max: usize,
    /// Only for small frames.
    reserve: usize,
    small_frame_max: usize,
}

impl Limits {
    fn new(bytes_max: usize) -> Self {
        let reserve = bytes_max / RESERVE_DIVISOR;
        Self { bytes_max, reserve, small_frame_max: SMALL_BYTES_MAX.min(reserve / SMALL_FRAMES_MIN) }
    }

    /// What large frames take together.
    fn large_max(&self) -> usize {
        self.bytes_max.saturating_sub(self.reserve)
    }

    fn size_of(&self, frame_bytes: usize) -> Size {
        if frame_bytes <= self.small_frame_max { Size::Small } else { Size::Large }
    }
}

/// What is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    small: usize,
    large: usize,
}

impl Used {
    fn all(self) -> usize {
        self.small.saturating_add(self.large)
    }

    /// Whether a frame of this size may read on without waiting behind those of the other.
    fn has_own_room(self, size: Size, limits: &Limits) -> bool {
        size == Size::Small && self.small < limits.reserve
    }

    /// Whether there is room for one of this size that has waited the longest. Where large frames have used up their
    /// part and there is room, small ones have room of their own: so nobody waits behind one that has to.
    fn has_room(self, size: Size, limits: &Limits) -> bool {
        let has_part = size == Size::Small || self.large < limits.large_max();
        has_part && self.all() < limits.bytes_max
    }
}

/// What frames of one size have.
#[derive(Default)]
struct Class {
    used: AtomicUsize,
    /// Whether a charge goes beyond the budget.
    exceeded: AtomicBool,
    /// The first of those who wait. Woken when there may be room for it, and when the one charge beyond it ends.
    front: AtomicWaker,
}

/// What other shards may touch: counters, and the wakers of those who wait first.
struct Ledger {
    limits: Limits,
    small: Class,
    large: Class,
    /// Whether anybody waits.
    is_waited_for: AtomicBool,
}

impl Ledger {
    fn class(&self, size: Size) -> &Class {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    fn used(&self) -> Used {
        Used { small: self.small.used.load(Ordering::SeqCst), large: self.large.used.load(Ordering::SeqCst) }
    }

    fn take(&self, size: Size, bytes: usize) {
        self.class(size).used.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Who begins to wait looks once more behind saying so: either it sees what is given back here, or is seen here.
    fn give_back(&self, size: Size, bytes: usize) {
        self.class(size).used.fetch_sub(bytes, Ordering::SeqCst);
        if !self.is_waited_for.load(Ordering::SeqCst) {
            return;
        }
        let used = self.used();
        for size in Size::ALL {
            if used.has_own_room(size, &self.limits) || used.has_room(size, &self.limits) {
                self.class(size).front.wake();
            }
        }
    }
}

/// Those who wait with a frame of one size, by their tickets.
type Line = RefCell<BTreeMap<u64, Waiting>>;

/// The budget of a shard.
pub struct Memory {
    ledger: Arc<Ledger>,
    small: Line,
    large: Line,
    /// Tickets are given out in order, for both.
    next: Cell<u64>,
}

/// One who waits.
struct Waiting {
    waker: Waker,
    /// Part of the frame is here: it may go beyond the budget when no other one of its size does.
    has_begun: bool,
}

impl Memory {
    /// A budget of so many bytes.
    pub fn new(bytes_max: usize) -> Rc<Self> {
        Self::with(Limits::new(bytes_max))
    }

    fn with(limits: Limits) -> Rc<Self> {
        let (small, large) = (Class::default(), Class::default());
        let ledger = Ledger { limits, small, large, is_waited_for: AtomicBool::new(false) };
        let (small, large) = (Line::default(), Line::default());
        Rc::new(Self { ledger: Arc::new(ledger), small, large, next: Cell::new(0) })
    }

    fn line(&self, size: Size) -> &Line {
        match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        }
    }

    /// Bytes that are charged now.
    pub fn used(&self) -> usize {
        self.ledger.used().all()
    }

    /// Whose bytes are in the way of those who wait for room; `None` if nobody does.
    pub fn pressure(&self) -> Option<Pressure> {
        if !self.is_under_pressure() {
            return None;
        }
        let is_of_large =
            self.small.borrow().is_empty() && self.ledger.used().large >= self.ledger.limits.large_max();
        Some(if is_of_large { Pressure::OfLarge } else { Pressure::OfAll })
    }

    /// Whether somebody waits for room.
    pub fn is_under_pressure(&self) -> bool {
        Size::ALL.into_iter().any(|size| !self.line(size).borrow().is_empty())
    }

    /// How a frame of so many bytes counts.
    pub fn size_of(&self, frame_bytes: usize) -> Size {
        self.ledger.limits.size_of(frame_bytes)
    }

    /// A charge of nothing yet.
    pub fn charge(&self) -> Charge {
        Charge { ledger: self.ledger.clone(), size: Size::Small, bytes: 0, beyond: None }
    }

    /// A place among those who wait with a frame of this size, not taken yet.
    pub fn place(self: &Rc<Self>, size: Size) -> Place {
        Place { memory: self.clone(), size, ticket: None }
    }

    /// Who has waited the longest.
    fn front(&self) -> Option<u64> {
        Size::ALL.into_iter().filter_map(|size| self.front_of(size)).min()
    }

    /// Who has waited the longest with a frame of this size.
    fn front_of(&self, size: Size) -> Option<u64> {
        self.line(size).borrow().first_key_value().map(|(ticket, _)| *ticket)
    }

    /// Lets the first of those who wait look for itself: only who has looked stands where others wake it.
    fn wake_front(&self, size: Size) {
        let waker = self.line(size).borrow().values().next().map(|first| first.waker.clone());
        match waker {
            Some(waker) => waker.wake(),
            // The waker of who stood there last ends on its own shard.
            None => drop(self.ledger.class(size).front.take()),
        }
    }

    /// Room beyond the budget is for a frame that has begun, which need not be the first.
    fn wake_begun(&self, size: Size) {
        if self.ledger.class(size).exceeded.load(Ordering::SeqCst) {
            return;
        }
        let line = self.line(size).borrow();
        let waker = line.values().find(|waiting| waiting.has_begun).map(|begun| begun.waker.clone());
        drop(line);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The right of one frame of a size to go beyond the budget, until the last charge that has it is gone.
struct Beyond(Arc<Ledger>, Size);

impl Drop for Beyond {
    fn drop(&mut self) {
        let class = self.0.class(self.1);
        class.exceeded.store(false, Ordering::SeqCst);
        class.front.wake();
    }
}

/// Bytes that are charged until this is dropped, on whichever shard.
pub struct Charge {
    ledger: Arc<Ledger>,
    size: Size,
    bytes: usize,
    beyond: Option<Arc<Beyond>>,
}

impl Charge {
    /// A charge of nothing on a budget of its own, for a request that did not arrive from a client.
    pub fn none() -> Self {
        Memory::new(usize::MAX).charge()
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes that have arrived.
    pub fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.ledger.take(self.size, bytes);
    }

    /// Takes the charge of a frame, the first `bytes`, out of this one, with the right to exceed the budget if it has it.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        let (ledger, beyond) = (self.ledger.clone(), self.beyond.take());
        let mut frame = Self { ledger, size: self.size, bytes, beyond };
        // The client's frames were of another size until now.
        frame.count_as(self.ledger.limits.size_of(bytes));
        frame
    }

    /// One more charge, of bytes that were copied out of what this one stands for. With it lives the right to exceed
    /// the budget: else the next frame would have it while the copies of this one are still there.
    #[must_use]
    pub fn copied(&self, bytes: usize) -> Self {
        self.ledger.take(self.size, bytes);
        Self { ledger: self.ledger.clone(), size: self.size, bytes, beyond: self.beyond.clone() }
    }

    /// From now on counted as of this size.
    fn count_as(&mut self, size: Size) {
        let before = std::mem::replace(&mut self.size, size);
        if before != size {
            self.ledger.take(size, self.bytes);
            self.ledger.give_back(before, self.bytes);
        }
    }

    /// Takes the right to go beyond the budget, if part of the frame is here and no other one of its size has it.
    fn exceed(&mut self, size: Size) -> bool {
        if self.beyond.is_none()
            && self.bytes > 0
            && !self.ledger.class(size).exceeded.swap(true, Ordering::SeqCst)
        {
            self.beyond = Some(Arc::new(Beyond(self.ledger.clone(), size)));
        }
        self.beyond.is_some()
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({})", self.bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.give_back(self.size, self.bytes);
    }
}

/// A place among those who wait for room; dropped, it is given up.
pub struct Place {
    memory: Rc<Memory>,
    size: Size,
    /// None while nobody waits here.
    ticket: Option<u64>,
}

impl Place {
    /// Whether the next bytes of the frame that `charge` is for may be read; then it counts as of this place's size. A
    /// frame that has begun may go beyond the budget if no other one of its size does. To be asked again before each
    /// read: the answer holds for this poll.
    pub fn poll(&mut self, charge: &mut Charge, context: &Context<'_>) -> Poll<()> {
        if self.may_go_on(charge) {
            return self.go_on(charge);
        }
        let (memory, size) = (self.memory.clone(), self.size);
        let ticket = *self.ticket.get_or_insert_with(|| {
            let ticket = memory.next.get();
            memory.next.set(ticket.saturating_add(1));
            ticket
        });
        let waiting = Waiting { waker: context.waker().clone(), has_begun: charge.bytes > 0 };
        memory.line(size).borrow_mut().insert(ticket, waiting);
        if memory.front_of(size) == Some(ticket) {
            memory.ledger.is_waited_for.store(true, Ordering::SeqCst);
            memory.ledger.class(size).front.register(context.waker());
            // Room that came before the waker stood there has woken nobody.
            if self.may_go_on(charge) {
                return self.go_on(charge);
            }
            memory.wake_begun(size);
        }
        Poll::Pending
    }

    fn go_on(&mut self, charge: &mut Charge) -> Poll<()> {
        self.leave();
        charge.count_as(self.size);
        Poll::Ready(())
    }

    fn may_go_on(&self, charge: &mut Charge) -> bool {
        let (memory, size) = (&self.memory, self.size);
        if charge.beyond.as_ref().is_some_and(|beyond| beyond.1 != size) {
            // It has turned out to be of another size, whose one right this is not.
            charge.beyond = None;
        }
        if charge.beyond.is_some() {
            return true;
        }
        let (used, limits) = (memory.ledger.used(), &memory.ledger.limits);
        // Who comes later than others waits behind them.
        let is_first = |front: Option<u64>| front.is_none() || front == self.ticket;
        if used.has_own_room(size, limits) {
            return is_first(memory.front_of(size));
        }
        if used.has_room(size, limits) {
            return is_first(memory.front());
        }
        charge.exceed(size)
    }

    /// Gives the place up: whoever is next may look.
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let (memory, size) = (&self.memory, self.size);
        let (was_first, was_first_of_all) =
            (memory.front_of(size) == Some(ticket), memory.front() == Some(ticket));
        memory.line(size).borrow_mut().remove(&ticket);
        memory.ledger.is_waited_for.store(memory.is_under_pressure(), Ordering::SeqCst);
        if was_first_of_all {
            Size::ALL.into_iter().for_each(|size| memory.wake_front(size));
        } else if was_first {
            memory.wake_front(size);
        } else {
            // It may have been woken for a frame that has begun, and takes that with it.
            memory.wake_begun(size);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests;
