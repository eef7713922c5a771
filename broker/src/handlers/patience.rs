//! Whether the waits that a client has asked for may go on. A fetch may ask for weeks; it waits no longer when its client
//! has gone, or has stopped to send, when the broker stops, or when others need the memory of its request: it is then
//! answered with what is there. `net` says that it is over, handlers that wait listen. Does not end work, only waiting.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The patience of one client. Clones share it.
#[derive(Clone, Default)]
pub struct Patience(Rc<Inner>);

#[derive(Default)]
struct Inner {
    /// For good.
    is_over: Cell<bool>,
    /// For the request at hand.
    is_cut: Cell<bool>,
    /// The request at hand holds nothing that others could use.
    is_light: Cell<bool>,
    /// One at most: a connection's requests wait one at a time.
    waiting: RefCell<Option<Waker>>,
}

impl Patience {
    /// Ends the wait at hand, and each that would come.
    pub fn end(&self) {
        self.0.is_over.set(true);
        self.wake();
    }

    /// Ends the wait at hand, for the sake of the memory that its request holds.
    pub fn cut(&self) {
        if !self.0.is_light.get() {
            self.0.is_cut.set(true);
            self.wake();
        }
    }

    /// The request at hand has given back its memory: nothing is gained by a cut.
    pub fn lighten(&self) {
        self.0.is_light.set(true);
    }

    /// The next request begins: a cut was for the one before it.
    pub fn renew(&self) {
        self.0.is_cut.set(false);
        self.0.is_light.set(false);
    }

    /// Whether nothing is waited for any more.
    pub fn is_over(&self) -> bool {
        self.0.is_over.get() || self.0.is_cut.get()
    }

    fn wake(&self) {
        let waiting = self.0.waiting.take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Waits until the patience is over. Dropping the future leaves nothing behind.
    pub fn over(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|context| {
            if self.is_over() {
                return Poll::Ready(());
            }
            let mut waiting = self.0.waiting.borrow_mut();
            if !waiting.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waiting = Some(context.waker().clone());
            }
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_holds_memory_is_cut() {
        let patience = Patience::default();
        patience.lighten();
        patience.cut();
        assert!(!patience.is_over());
        patience.renew();
        patience.cut();
        assert!(patience.is_over());
        patience.renew();
        patience.lighten();
        patience.end();
        assert!(patience.is_over(), "an end is an end");
    }
}
