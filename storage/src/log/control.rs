//! How the owner of many logs steers the opening of one: stops it between two slices of work, sees how much was checked,
//! and lets a log that turns out to have much to check wait until the others are served. Knows no queue: the owner
//! decides who goes on.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;

use futures_channel::oneshot;

/// Called once when there is much to check, with what lets the log go on: sent or dropped, it does.
type OnLong = Box<dyn FnOnce(oneshot::Sender<()>)>;

/// The opening of one log. Clones steer the same; the default neither waits nor stops.
#[derive(Clone, Default)]
pub struct LoadControl(Rc<State>);

#[derive(Default)]
struct State {
    is_stopped: Cell<bool>,
    checked_bytes: Cell<u64>,
    /// Bytes from which a log counts as long, and whom to tell.
    long: RefCell<Option<(u64, OnLong)>>,
}

impl LoadControl {
    /// A log of which more than `bytes` have to be checked tells so, and waits.
    pub fn waiting_at(bytes: u64, on_long: impl FnOnce(oneshot::Sender<()>) + 'static) -> Self {
        Self(Rc::new(State { long: RefCell::new(Some((bytes, Box::new(on_long)))), ..State::default() }))
    }

    /// Ends the opening with [`super::LoadError::Stopped`], soon. One that comes to its end before succeeds.
    pub fn stop(&self) {
        self.0.is_stopped.set(true);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.get()
    }

    /// Bytes of batches whose checksums were computed so far.
    pub fn checked_bytes(&self) -> u64 {
        self.0.checked_bytes.get()
    }

    /// The log is open, and the control without effect.
    pub(super) fn end(&self) {
        self.0.is_stopped.set(false);
        drop(self.0.long.take());
    }

    /// Fails once the opening was stopped.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.is_stopped() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    /// A slice was checked; what to wait for before the next one, if anything.
    pub(super) fn checked(&self, bytes: u64) -> io::Result<Option<oneshot::Receiver<()>>> {
        self.check()?;
        let checked = self.checked_bytes().saturating_add(bytes);
        self.0.checked_bytes.set(checked);
        let mut long = self.0.long.borrow_mut();
        if long.as_ref().is_none_or(|(limit, _)| checked <= *limit) {
            return Ok(None);
        }
        let told = long.take();
        drop(long);
        Ok(told.map(|(_, on_long)| {
            let (resume, resumed) = oneshot::channel();
            on_long(resume);
            resumed
        }))
    }
}

impl fmt::Debug for LoadControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = &self.0;
        f.debug_struct("LoadControl")
            .field("is_stopped", &state.is_stopped.get())
            .field("checked_bytes", &state.checked_bytes.get())
            .finish_non_exhaustive()
    }
}
