//! Removes partition directories that were renamed to `-delete`, each when its time has come. What is not removed
//! before a stop is found again at the next start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use protocol::types::MonoTime;

use crate::io::{DirOp, Queue, Runtime};

#[derive(Default)]
struct State {
    is_running: bool,
    /// By due time, then by arrival.
    due: BTreeMap<(MonoTime, u64), PathBuf>,
    arrivals: u64,
}

pub(super) struct Removals<R: Runtime> {
    runtime: R,
    state: Rc<RefCell<State>>,
    /// Dropped with the log dir, which stops it.
    task: RefCell<Option<R::Task>>,
}

impl<R: Runtime> Removals<R> {
    pub(super) fn new(runtime: R) -> Self {
        Self { runtime, state: Rc::default(), task: RefCell::new(None) }
    }

    pub(super) fn len(&self) -> usize {
        self.state.borrow().due.len()
    }

    pub(super) fn push(&self, path: PathBuf, delay_ms: i64) {
        let due = self.runtime.now().plus_ms(delay_ms);
        let must_start = {
            let mut state = self.state.borrow_mut();
            state.arrivals += 1;
            let arrival = state.arrivals;
            state.due.insert((due, arrival), path);
            !std::mem::replace(&mut state.is_running, true)
        };
        if must_start {
            let task = run(self.runtime.clone(), Rc::clone(&self.state));
            let old = self.task.replace(Some(self.runtime.spawn(Queue::Background, task)));
            drop(old);
        }
    }
}

/// A directory that is pushed with a shorter delay than the one before it waits for that one: the delay is the same for
/// all, unless it was just reconfigured.
async fn run<R: Runtime>(runtime: R, state: Rc<RefCell<State>>) {
    loop {
        let next = {
            let mut state = state.borrow_mut();
            let next = state.due.first_key_value().map(|((due, _), _)| *due);
            state.is_running = next.is_some();
            next
        };
        let Some(due) = next else { return };
        if due > runtime.now() {
            runtime.sleep_until(due).await;
        }
        let Some((_, path)) = state.borrow_mut().due.pop_first() else { continue };
        match runtime.dir(DirOp::RemoveAll(path.clone())).await {
            Ok(_) => tracing::info!(path = %path.display(), "removed a deleted partition"),
            // It does no harm where it is, and the next start tries again.
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove a deleted partition"),
        }
    }
}
