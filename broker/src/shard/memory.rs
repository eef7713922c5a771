//! The budget for bytes of requests on one shard: charged as they arrive, never as they are claimed, and given
//! back when the request is done. Over the budget nobody reads on, but for one frame that has begun: it can always
//! finish. Knows no sockets; `connection` asks before each read.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The budget of a shard.
pub struct Memory {
    bytes_max: usize,
    used: Cell<usize>,
    /// Whether a charge goes beyond the budget.
    exceeded: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    /// How often all who waited were woken.
    wakes: Cell<u64>,
    waiting_count: Cell<usize>,
}

impl Memory {
    /// A budget of so many bytes.
    pub fn new(bytes_max: usize) -> Rc<Self> {
        Rc::new(Self {
            bytes_max,
            used: Cell::new(0),
            exceeded: Cell::new(false),
            waiting: RefCell::default(),
            wakes: Cell::new(0),
            waiting_count: Cell::new(0),
        })
    }

    /// Bytes that are charged now.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Whether somebody waits for room.
    pub fn is_under_pressure(&self) -> bool {
        self.waiting_count.get() > 0
    }

    /// A charge of nothing yet.
    pub fn charge(self: &Rc<Self>) -> Charge {
        Charge { memory: self.clone(), bytes: 0, exceeds: false }
    }

    fn wake_all(&self) {
        self.wakes.set(self.wakes.get().saturating_add(1));
        for waker in self.waiting.take() {
            waker.wake();
        }
    }
}

/// Bytes that are charged until this is dropped.
pub struct Charge {
    memory: Rc<Memory>,
    bytes: usize,
    /// This is the one charge that goes beyond the budget.
    exceeds: bool,
}

impl Charge {
    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Waits until more bytes may arrive. A frame that has begun may go beyond the budget if no other one does.
    pub fn room(&mut self) -> impl Future<Output = ()> + '_ {
        let mut counted = None;
        let mut registered = None;
        poll_fn(move |context| {
            let memory = &self.memory;
            if memory.used.get() < memory.bytes_max || self.exceeds {
                return Poll::Ready(());
            }
            if self.bytes > 0 && !memory.exceeded.replace(true) {
                self.exceeds = true;
                return Poll::Ready(());
            }
            counted.get_or_insert_with(|| Waiting::new(memory.clone()));
            // Once per wake, however often the task is polled for other reasons.
            if registered.replace(memory.wakes.get()) != Some(memory.wakes.get()) {
                memory.waiting.borrow_mut().push(context.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Adds bytes that have arrived.
    pub fn add(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.memory.used.set(self.memory.used.get().saturating_add(bytes));
    }

    /// Takes the charge of the first `bytes` out of this one, with the right to exceed the budget if it has it.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        let exceeds = std::mem::take(&mut self.exceeds);
        Self { memory: self.memory.clone(), bytes, exceeds }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.used.set(self.memory.used.get().saturating_sub(self.bytes));
        if self.exceeds {
            self.memory.exceeded.set(false);
        }
        if self.exceeds || self.memory.used.get() < self.memory.bytes_max {
            self.memory.wake_all();
        }
    }
}

/// Counts one who waits.
struct Waiting(Rc<Memory>);

impl Waiting {
    fn new(memory: Rc<Memory>) -> Self {
        memory.waiting_count.set(memory.waiting_count.get().saturating_add(1));
        Self(memory)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting_count.set(self.0.waiting_count.get().saturating_sub(1));
    }
}
