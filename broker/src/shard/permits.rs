//! So many at a time, in the order of those who came: asks in flight to a shard, copies of logs. Of one shard, without locks;
//! knows nothing of what is permitted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use futures_channel::oneshot;

/// How many more there may be, and who waits.
pub(crate) struct Permits {
    free: Cell<usize>,
    closed: Cell<bool>,
    waiting: RefCell<VecDeque<oneshot::Sender<Permit>>>,
    /// For permits that are handed over.
    itself: Weak<Permits>,
}

impl Permits {
    pub(crate) fn new(free: usize) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            free: Cell::new(free),
            closed: Cell::new(false),
            waiting: RefCell::default(),
            itself: itself.clone(),
        })
    }

    /// A permit, unless others wait for one.
    pub(crate) fn take(&self) -> Option<Permit> {
        let free = self.free.get().checked_sub(1)?;
        self.free.set(free);
        Some(Permit { of: self.itself.upgrade() })
    }

    /// A permit in its turn. Whoever drops the receiver waits no more, and a permit that he was just given goes to the next;
    /// canceled once there are no more.
    pub(crate) fn wait(&self) -> oneshot::Receiver<Permit> {
        let (sender, receiver) = oneshot::channel();
        if let Some(permit) = self.take() {
            // The receiver is here.
            let _ = sender.send(permit);
        } else if !self.closed.get() {
            self.waiting.borrow_mut().push_back(sender);
        }
        receiver
    }

    /// Hands a permit to who has waited longest, else makes it free.
    pub(crate) fn release(&self) {
        loop {
            let Some(next) = self.waiting.borrow_mut().pop_front() else { break };
            match next.send(Permit { of: self.itself.upgrade() }) {
                Ok(()) => return,
                // Gave up waiting.
                Err(permit) => permit.keep(),
            }
        }
        self.free.set(self.free.get().saturating_add(1));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Whoever waits, or will, waits in vain.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }
}

/// The right to one more; gives itself back when dropped.
pub(crate) struct Permit {
    of: Option<Rc<Permits>>,
}

impl Permit {
    /// Ends the permit without giving it back.
    pub(crate) fn keep(mut self) {
        self.of = None;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(permits) = self.of.take() {
            permits.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_go_to_those_who_wait_in_their_order_and_past_those_who_gave_up() {
        let permits = Permits::new(1);
        let first = permits.wait().try_recv().unwrap().unwrap();
        assert!(permits.take().is_none());
        let (gone, mut second, mut third) = (permits.wait(), permits.wait(), permits.wait());
        drop(gone);
        drop(first);
        let given = second.try_recv().unwrap().expect("the next one");
        assert!(third.try_recv().unwrap().is_none());
        drop(given);
        // Given, and not taken any more.
        drop(third);
        let again = permits.take().expect("it came back");
        let mut late = permits.wait();
        permits.close();
        assert!(late.try_recv().is_err());
        drop(again);
    }
}
