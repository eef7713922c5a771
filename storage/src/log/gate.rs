//! One at a time, on one shard: what changes the files of a log passes through a gate. Knows nothing of logs.

use std::cell::{Cell, RefCell};

use futures_channel::oneshot;

/// Lets one holder through at a time; the others wait without order.
#[derive(Default)]
pub(crate) struct Gate {
    held: Cell<bool>,
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
}

/// The right to be inside; dropping it lets the next one in.
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Waits for the right to be inside. Dropping the future leaves the gate as it was.
    pub(crate) async fn enter(&self) -> Inside<'_> {
        while self.held.get() {
            let (wake, woken) = oneshot::channel();
            self.waiting.borrow_mut().push(wake);
            // An error means that the sender was dropped, which wakes as well.
            let _ = woken.await;
        }
        self.held.set(true);
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.held.set(false);
        // Everybody is woken and looks again: a waiter that was woken and then dropped must not keep the rest out.
        self.0.waiting.take();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_second_one_waits_for_the_first_and_a_dropped_waiter_blocks_nobody() {
        let gate = Gate::default();
        let first = gate.enter().now_or_never().expect("the gate is open");
        let mut dropped = Box::pin(gate.enter());
        let mut second = Box::pin(gate.enter());
        let mut context = Context::from_waker(Waker::noop());
        assert!(dropped.poll_unpin(&mut context).is_pending());
        assert!(second.poll_unpin(&mut context).is_pending());
        drop(first);
        drop(dropped);
        assert!(matches!(second.poll_unpin(&mut context), Poll::Ready(_)));
    }
}
