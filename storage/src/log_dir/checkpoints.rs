//! Writes one checkpoint file: one write at a time, the latest content wins, everybody who waited for an older one is
//! answered with it (S-8). The write runs in a task of its own, so that a caller that goes away leaves no half of a
//! replacement behind which the next one would race.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use futures_channel::oneshot;

use crate::checkpoint::replace_file;
use crate::io::{Queue, Runtime, heals};

/// Why a checkpoint was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointWriteError {
    /// The disk is full, or the system had no descriptor or memory; the file has its old content, and the caller tries again.
    #[error("{0}")]
    Full(Rc<str>),
    /// What the operating system says of which file: the caller takes the dir offline.
    #[error("{0}")]
    Failed(Rc<str>),
    /// The dir has failed.
    #[error("the log dir is offline")]
    Offline,
    /// The dir was closed before the write ended.
    #[error("the log dir was closed")]
    Closed,
}

type Waiter = oneshot::Sender<Result<(), CheckpointWriteError>>;

#[derive(Default)]
struct State {
    is_running: bool,
    pending: Option<Bytes>,
    waiters: Vec<Waiter>,
}

pub(super) struct CheckpointWriter<R: Runtime> {
    runtime: R,
    path: PathBuf,
    state: Rc<RefCell<State>>,
    /// Dropped with the writer, which stops it. Not in `state`: the task holds that.
    task: RefCell<Option<R::Task>>,
}

impl<R: Runtime> CheckpointWriter<R> {
    pub(super) fn new(runtime: R, path: PathBuf) -> Self {
        Self { runtime, path, state: Rc::default(), task: RefCell::new(None) }
    }

    pub(super) async fn write(&self, content: Bytes) -> Result<(), CheckpointWriteError> {
        let (waiter, written) = oneshot::channel();
        let must_start = {
            let mut state = self.state.borrow_mut();
            state.pending = Some(content);
            state.waiters.push(waiter);
            !std::mem::replace(&mut state.is_running, true)
        };
        if must_start {
            let task = run(self.runtime.clone(), self.path.clone(), Rc::clone(&self.state));
            let old = self.task.replace(Some(self.runtime.spawn(Queue::Background, task)));
            drop(old);
        }
        written.await.unwrap_or(Err(CheckpointWriteError::Closed))
    }
}

async fn run<R: Runtime>(runtime: R, path: PathBuf, state: Rc<RefCell<State>>) {
    loop {
        let (content, waiters) = {
            let mut state = state.borrow_mut();
            let Some(content) = state.pending.take() else {
                state.is_running = false;
                return;
            };
            (content, std::mem::take(&mut state.waiters))
        };
        let done = replace_file(&runtime, &path, content).await;
        let done = done.map_err(|error| {
            let text = error.to_string().into();
            if heals(&error) { CheckpointWriteError::Full(text) } else { CheckpointWriteError::Failed(text) }
        });
        for waiter in waiters {
            // Whoever went away does not need to know.
            let _ = waiter.send(done.clone());
        }
    }
}
