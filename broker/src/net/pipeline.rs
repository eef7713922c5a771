//! The answers of one connection in the order of its requests (F12). Produce requests stand here while they wait for
//! their answers; one task writes them. Everything else is answered when this is empty. Used by `connection` only.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

use crate::handlers::Answer;
use crate::metrics::registry::Handled;

/// A request that is handled, and not yet answered.
pub(super) enum Entry<P> {
    /// Its answer is known.
    Ready(Answer, Handled),
    /// Its answer comes later.
    Accepted(P, Handled),
}

pub(super) struct Pipeline<P> {
    entries: RefCell<VecDeque<Entry<P>>>,
    /// Entries that the writer has taken and is not done with.
    writing: Cell<usize>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

impl<P> Pipeline<P> {
    pub(super) fn new() -> Self {
        Self {
            entries: RefCell::default(),
            writing: Cell::new(0),
            reader: Cell::new(None),
            writer: Cell::new(None),
        }
    }

    /// Requests that are not answered.
    pub(super) fn len(&self) -> usize {
        self.entries.borrow().len().saturating_add(self.writing.get())
    }

    pub(super) fn push(&self, entry: Entry<P>) {
        self.entries.borrow_mut().push_back(entry);
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Waits, as the reader, until fewer than `count` requests are not answered.
    pub(super) fn below(&self, count: usize) -> impl Future<Output = ()> + '_ {
        poll_fn(move |context| {
            if self.len() < count {
                return Poll::Ready(());
            }
            self.reader.set(Some(context.waker().clone()));
            Poll::Pending
        })
    }

    /// Takes, as the writer, the next entry if there is one; `done` is to be called when it is answered.
    pub(super) fn take_next(&self) -> Option<Entry<P>> {
        let entry = self.entries.borrow_mut().pop_front()?;
        self.writing.set(self.writing.get().saturating_add(1));
        Some(entry)
    }

    /// The same, but waits for one.
    pub(super) fn next(&self) -> impl Future<Output = Entry<P>> + '_ {
        poll_fn(|context| match self.take_next() {
            Some(entry) => Poll::Ready(entry),
            None => {
                self.writer.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
    }

    /// So many of the taken entries are answered.
    pub(super) fn done(&self, count: usize) {
        self.writing.set(self.writing.get().saturating_sub(count));
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}
