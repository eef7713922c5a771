//! Owns tasks that nobody waits for, until they have ended or the owner goes: dropping a task cancels it, so each needs
//! somebody to keep it (style 3.6).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use storage::io::{Queue, Runtime};

/// Running tasks of one owner.
pub struct TaskSet<R: Runtime> {
    runtime: R,
    next: Cell<u64>,
    running: RefCell<BTreeMap<u64, R::Task>>,
    ended: Rc<RefCell<Vec<u64>>>,
}

impl<R: Runtime> TaskSet<R> {
    /// No tasks.
    pub fn new(runtime: R) -> Self {
        Self { runtime, next: Cell::new(0), running: RefCell::default(), ended: Rc::default() }
    }

    /// Starts a task; those that have ended are let go on the way.
    pub fn spawn(&self, queue: Queue, task: impl Future<Output = ()> + 'static) {
        let id = self.next.replace(self.next.get().wrapping_add(1));
        let ended = self.ended.clone();
        let handle = self.runtime.spawn(queue, async move {
            task.await;
            ended.borrow_mut().push(id);
        });
        let gone: Vec<_> = {
            let mut running = self.running.borrow_mut();
            running.insert(id, handle);
            self.ended.borrow_mut().drain(..).filter_map(|id| running.remove(&id)).collect()
        };
        drop(gone);
    }
}
