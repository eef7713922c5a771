//! Files that left the log wait as `.deleted` until `file.delete.delay.ms` has passed (storage.md 7.3). A stop before that
//! leaves them to the next start, which removes them. Knows only paths.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use protocol::types::MonoTime;

use super::Log;
use crate::io::{DirOp, Queue, Runtime};
use crate::names::SegmentFileState;

/// The files of one log that wait for their removal.
pub(super) struct Remover<R: Runtime> {
    runtime: R,
    log: Weak<Log<R>>,
    queue: RefCell<VecDeque<(MonoTime, PathBuf)>>,
    running: Cell<bool>,
    task: RefCell<Option<R::Task>>,
}

impl<R: Runtime> Remover<R> {
    pub(super) fn new(runtime: R, log: Weak<Log<R>>) -> Rc<Self> {
        let (queue, running, task) = (RefCell::default(), Cell::new(false), RefCell::new(None));
        Rc::new(Self { runtime, log, queue, running, task })
    }

    /// Renames a file away and removes it later; a missing file is fine.
    pub(super) async fn remove(self: &Rc<Self>, path: &Path, delay_ms: i64) -> io::Result<()> {
        let mut name = path.as_os_str().to_owned();
        name.push(SegmentFileState::Deleted.suffix());
        let to = PathBuf::from(name);
        match self.runtime.dir(DirOp::Rename { from: path.to_owned(), to: to.clone() }).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        self.queue.borrow_mut().push_back((self.runtime.now().plus_ms(delay_ms), to));
        if !self.running.replace(true) {
            let remover = Rc::downgrade(self);
            let task = self.runtime.spawn(Queue::Background, async move {
                while let Some(here) = remover.upgrade() {
                    let Some((at, path)) = here.next() else { break };
                    let runtime = here.runtime.clone();
                    drop(here);
                    runtime.sleep_until(at).await;
                    if let Err(error) = runtime.dir(DirOp::Unlink(path)).await {
                        let Some(log) = remover.upgrade().and_then(|here| here.log.upgrade()) else { break };
                        log.failed("removal of a deleted file", &error);
                    }
                }
            });
            self.task.replace(Some(task));
        }
        Ok(())
    }

    fn next(&self) -> Option<(MonoTime, PathBuf)> {
        let next = self.queue.borrow_mut().pop_front();
        self.running.set(next.is_some());
        next
    }
}
