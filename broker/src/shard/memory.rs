//! The budget for bytes of requests on one shard: charged as they arrive, never as they are claimed, and given
//! back when the bytes are gone: with the request, or, for record batches, when the log has written them. A [`Charge`]
//! travels with its bytes, also to another shard. Over the budget nobody reads on, but for one frame that has begun: it
//! can always finish. Who waits is let on in the order of waiting, one after the other. Knows no sockets; `net` asks
//! before each read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;

/// What other shards may touch: counters, and the waker of whoever waits first.
struct Ledger {
    bytes_max: usize,
    used: AtomicUsize,
    /// Whether a charge goes beyond the budget.
    exceeded: AtomicBool,
    /// The first of those who wait. Woken when `used` falls below the budget, and when the one charge beyond it ends.
    front: AtomicWaker,
}

impl Ledger {
    fn has_room(&self) -> bool {
        self.used.load(Ordering::SeqCst) < self.bytes_max
    }

    fn take(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::SeqCst);
    }

    fn give_back(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        // Nobody waits while there is room, so that only this crossing needs to wake.
        if before >= self.bytes_max && before.saturating_sub(bytes) < self.bytes_max {
            self.front.wake();
        }
    }
}

/// The budget of a shard.
pub struct Memory {
    ledger: Arc<Ledger>,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    next: Cell<u64>,
}

/// One who waits.
struct Waiting {
    waker: Waker,
    /// Part of the frame is here: it may go beyond the budget when nobody else does.
    has_begun: bool,
}

impl Memory {
    /// A budget of so many bytes.
    pub fn new(bytes_max: usize) -> Rc<Self> {
        let ledger = Ledger {
            bytes_max,
            used: AtomicUsize::new(0),
            exceeded: AtomicBool::new(false),
            front: AtomicWaker::new(),
        };
        Rc::new(Self { ledger: Arc::new(ledger), waiting: RefCell::default(), next: Cell::new(0) })
    }

    /// Bytes that are charged now.
    pub fn used(&self) -> usize {
        self.ledger.used.load(Ordering::SeqCst)
    }

    /// Whether somebody waits for room.
    pub fn is_under_pressure(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// A charge of nothing yet.
    pub fn charge(&self) -> Charge {
        Charge { ledger: self.ledger.clone(), bytes: 0, beyond: None }
    }

    /// A place among those who wait, not taken yet.
    pub fn place(self: &Rc<Self>) -> Place {
        Place { memory: self.clone(), ticket: None }
    }

    fn is_front(&self, ticket: Option<u64>) -> bool {
        self.waiting.borrow().first_key_value().map(|(first, _)| *first) == ticket
    }

    /// Lets the first of those who wait look for itself: only who has looked stands where others wake it.
    fn wake_front(&self) {
        let waker = self.waiting.borrow().values().next().map(|waiting| waiting.waker.clone());
        match waker {
            Some(waker) => waker.wake(),
            // The waker of who stood there last ends on its own shard.
            None => drop(self.ledger.front.take()),
        }
    }

    /// Room beyond the budget is for a frame that has begun, which need not be the first.
    fn wake_begun(&self) {
        if self.ledger.exceeded.load(Ordering::SeqCst) {
            return;
        }
        let waiting = self.waiting.borrow();
        let waker = waiting.values().find(|waiting| waiting.has_begun).map(|waiting| waiting.waker.clone());
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The right of one frame to go beyond the budget, until the last charge that has it is gone.
struct Beyond(Arc<Ledger>);

impl Drop for Beyond {
    fn drop(&mut self) {
        self.0.exceeded.store(false, Ordering::SeqCst);
        self.0.front.wake();
    }
}

/// Bytes that are charged until this is dropped, on whichever shard.
pub struct Charge {
    ledger: Arc<Ledger>,
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
        self.ledger.take(bytes);
    }

    /// Takes the charge of the first `bytes` out of this one, with the right to exceed the budget if it has it.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        Self { ledger: self.ledger.clone(), bytes, beyond: self.beyond.take() }
    }

    /// One more charge, of bytes that were copied out of what this one stands for. With it lives the right to exceed
    /// the budget: else the next frame would have it while the copies of this one are still there.
    #[must_use]
    pub fn copied(&self, bytes: usize) -> Self {
        self.ledger.take(bytes);
        Self { ledger: self.ledger.clone(), bytes, beyond: self.beyond.clone() }
    }

    /// Takes the right to go beyond the budget, if part of the frame is here and nobody else has it.
    fn exceed(&mut self) -> bool {
        if self.beyond.is_none() && self.bytes > 0 && !self.ledger.exceeded.swap(true, Ordering::SeqCst) {
            self.beyond = Some(Arc::new(Beyond(self.ledger.clone())));
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
        self.ledger.give_back(self.bytes);
    }
}

/// A place among those who wait for room; dropped, it is given up.
pub struct Place {
    memory: Rc<Memory>,
    /// None while nobody waits here.
    ticket: Option<u64>,
}

impl Place {
    /// Whether the next bytes of the frame that `charge` is for may be read. A frame that has begun may go beyond the
    /// budget if no other one does. To be asked again before each read: the answer holds for this poll.
    pub fn poll(&mut self, charge: &mut Charge, context: &Context<'_>) -> Poll<()> {
        let memory = self.memory.clone();
        if self.may_go_on(charge) {
            self.leave();
            return Poll::Ready(());
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            let ticket = memory.next.get();
            memory.next.set(ticket.saturating_add(1));
            ticket
        });
        let waiting = Waiting { waker: context.waker().clone(), has_begun: charge.bytes > 0 };
        memory.waiting.borrow_mut().insert(ticket, waiting);
        if memory.is_front(Some(ticket)) {
            memory.ledger.front.register(context.waker());
            // Room that came before the waker stood there has woken nobody.
            if self.may_go_on(charge) {
                self.leave();
                return Poll::Ready(());
            }
            memory.wake_begun();
        }
        Poll::Pending
    }

    fn may_go_on(&self, charge: &mut Charge) -> bool {
        let memory = &self.memory;
        if charge.beyond.is_some() {
            return true;
        }
        if memory.ledger.has_room() {
            // Who comes later than others waits behind them.
            return memory.is_front(self.ticket) || !memory.is_under_pressure();
        }
        charge.exceed()
    }

    /// Gives the place up: whoever is next may look.
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let was_front = self.memory.is_front(Some(ticket));
        self.memory.waiting.borrow_mut().remove(&ticket);
        if was_front {
            self.memory.wake_front();
        } else {
            // It may have been woken for a frame that has begun, and takes that with it.
            self.memory.wake_begun();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One who reads from a client.
    struct Reader {
        place: Place,
        charge: Charge,
        wakes: Arc<Count>,
    }

    impl Reader {
        fn new(memory: &Rc<Memory>, bytes: usize) -> Self {
            let mut charge = memory.charge();
            charge.add(bytes);
            Self { place: memory.place(), charge, wakes: Arc::default() }
        }

        fn may_read(&mut self) -> bool {
            let waker = Waker::from(self.wakes.clone());
            self.place.poll(&mut self.charge, &Context::from_waker(&waker)).is_ready()
        }

        /// Whether it was woken since the last time.
        fn is_woken(&self) -> bool {
            self.wakes.0.swap(0, Ordering::SeqCst) > 0
        }
    }

    fn full(memory: &Rc<Memory>) -> Charge {
        let mut charge = memory.charge();
        charge.add(100);
        charge
    }

    #[test]
    fn those_who_wait_go_on_in_the_order_in_which_they_came() {
        let memory = Memory::new(100);
        let held = full(&memory);
        let mut readers: Vec<_> = (0..4).map(|_| Reader::new(&memory, 0)).collect();
        assert!(readers.iter_mut().all(|reader| !reader.may_read()));
        let mut late = Reader::new(&memory, 0);
        drop(held);
        assert!(!late.may_read(), "there is room, but others came before");
        for reader in readers.iter_mut().chain([&mut late]) {
            assert!(reader.is_woken() && reader.may_read());
        }
        assert!(!memory.is_under_pressure());
    }

    #[test]
    fn who_takes_all_the_room_leaves_the_next_to_wait() {
        let memory = Memory::new(100);
        let held = full(&memory);
        let mut readers: Vec<_> = (0..3).map(|_| Reader::new(&memory, 0)).collect();
        assert!(readers.iter_mut().all(|reader| !reader.may_read()));
        drop(held);
        assert!(readers[0].may_read());
        let held = full(&memory);
        assert!(readers[1].is_woken() && !readers[1].may_read());
        // It gives up: the next one must learn of room all the same.
        drop(readers.remove(1));
        assert!(readers[1].is_woken() && !readers[1].may_read());
        drop(held);
        assert!(readers[1].is_woken() && readers[1].may_read());
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn one_frame_that_has_begun_goes_beyond_the_budget_until_its_copies_are_gone() {
        let memory = Memory::new(100);
        let held = full(&memory);
        let (mut fresh, mut first, mut second) =
            (Reader::new(&memory, 0), Reader::new(&memory, 10), Reader::new(&memory, 10));
        assert!(!fresh.may_read() && first.may_read() && !second.may_read());
        let frame = first.charge.split(10);
        let copy = frame.copied(10);
        drop(frame);
        assert!(!second.may_read());
        drop(copy);
        // The one that waits first may not go beyond, and lets the one pass that may.
        assert!(fresh.is_woken() && !fresh.may_read());
        assert!(second.is_woken() && second.may_read());
        drop(held);
        assert!(fresh.is_woken() && fresh.may_read());
    }

    #[test]
    fn charges_that_end_on_other_threads_wake_who_waits() {
        let memory = Memory::new(100);
        for _ in 0..200 {
            let charges: Vec<_> = (0..2)
                .map(|_| {
                    let mut charge = memory.charge();
                    charge.add(60);
                    charge
                })
                .collect();
            let mut reader = Reader::new(&memory, 0);
            let threads: Vec<_> =
                charges.into_iter().map(|charge| std::thread::spawn(move || drop(charge))).collect();
            let went_on = reader.may_read();
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(went_on || reader.is_woken());
            assert!(went_on || reader.may_read());
        }
        assert_eq!(memory.used(), 0);
    }
}
