//! The asks of one shard that wait for their answers, by number. No allocation per ask once it has grown. Called by
//! [`super::ask`] only.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

enum State<A> {
    Free,
    Waiting(Option<Waker>),
    Done(Option<A>),
    /// Nobody waits any more; the answer is still to come.
    Abandoned,
}

struct Entry<A> {
    /// Counted up each time the entry is used again, so that a number never means two asks.
    generation: u32,
    /// Whether the answer comes from another shard.
    remote: bool,
    state: State<A>,
}

struct Entries<A> {
    entries: Vec<Entry<A>>,
    free: Vec<usize>,
    closed: bool,
}

pub(super) struct Table<A>(RefCell<Entries<A>>);

impl<A> Default for Table<A> {
    fn default() -> Self {
        Self(RefCell::new(Entries { entries: Vec::new(), free: Vec::new(), closed: false }))
    }
}

impl<A> Entries<A> {
    fn get(&mut self, id: u64) -> Option<&mut Entry<A>> {
        let index = usize::try_from(id & u64::from(u32::MAX)).ok()?;
        self.entries.get_mut(index).filter(|entry| u64::from(entry.generation) == id >> 32)
    }

    fn free(&mut self, id: u64) -> State<A> {
        let Some(entry) = self.get(id) else { return State::Free };
        entry.generation = entry.generation.wrapping_add(1);
        let state = std::mem::replace(&mut entry.state, State::Free);
        if let Ok(index) = usize::try_from(id & u64::from(u32::MAX)) {
            self.free.push(index);
        }
        state
    }
}

impl<A> Table<A> {
    /// Opens an entry that waits.
    pub(super) fn open(&self, remote: bool) -> u64 {
        let mut entries = self.0.borrow_mut();
        let state = if remote && entries.closed { State::Done(None) } else { State::Waiting(None) };
        let index = match entries.free.pop() {
            Some(index) => index,
            None => {
                entries.entries.push(Entry { generation: 0, remote, state: State::Free });
                entries.entries.len().saturating_sub(1)
            }
        };
        let Some(entry) = entries.entries.get_mut(index) else { return u64::MAX };
        entry.remote = remote;
        entry.state = state;
        let low = u64::try_from(index).unwrap_or(u64::MAX);
        (u64::from(entry.generation) << 32) | low
    }

    /// Brings the answer; one for an unknown number is dropped.
    pub(super) fn complete(&self, id: u64, answer: Option<A>) {
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.get(id) else { return };
        let waker = match &mut entry.state {
            State::Waiting(waker) => {
                let waker = waker.take();
                entry.state = State::Done(answer);
                waker
            }
            State::Abandoned => {
                entries.free(id);
                drop(entries);
                // What an answer does when it is dropped may come back here.
                drop(answer);
                return;
            }
            State::Free | State::Done(_) => return,
        };
        drop(entries);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the answer and closes the entry.
    pub(super) fn poll(&self, id: u64, context: &mut Context<'_>) -> Poll<Option<A>> {
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.get(id) else { return Poll::Ready(None) };
        if let State::Waiting(waker) = &mut entry.state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match entries.free(id) {
            State::Done(answer) => Poll::Ready(answer),
            _ => Poll::Ready(None),
        }
    }

    /// Nobody waits any more.
    pub(super) fn abandon(&self, id: u64) {
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.get(id) else { return };
        if let State::Waiting(_) = entry.state {
            entry.state = State::Abandoned;
            return;
        }
        let state = entries.free(id);
        drop(entries);
        drop(state);
    }

    /// No answer comes from other shards any more.
    pub(super) fn close(&self) {
        let mut wakers = Vec::new();
        let mut entries = self.0.borrow_mut();
        entries.closed = true;
        for entry in entries.entries.iter_mut().filter(|entry| entry.remote) {
            if let State::Waiting(waker) = &mut entry.state {
                wakers.extend(waker.take());
                entry.state = State::Done(None);
            }
        }
        drop(entries);
        for waker in wakers {
            waker.wake();
        }
    }
}
