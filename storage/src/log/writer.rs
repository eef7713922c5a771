//! What brings appended bytes to the file: all appends of one turn are one write, up to a bound beyond which they
//! are several, so that no buffer grows with what a turn holds; one write is in flight per log, `written` is a contiguous
//! prefix, a short write is continued. Knows no batch. A log without unwritten bytes holds no buffer and no task.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use futures_channel::oneshot;
use protocol::types::Offset;
use smallvec::SmallVec;

use super::segment::Segment;
use super::tail::NewChunk;
use super::{Log, LogError, LogEvent, Status};
use crate::io::{File, Queue, Runtime, is_full};

/// Appends are gathered up to this size: large enough that a write costs what its bytes cost, small enough that growing
/// to it, and the copy that a write makes, do not matter. A larger batch is a write of its own.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Appended bytes on their way to one segment, in one write.
struct Pending<R: Runtime> {
    segment: Rc<Segment<R>>,
    position: u64,
    base_offset: Offset,
    next_offset: Offset,
    bytes: BytesMut,
}

/// A buffer of which nothing, or not all, could be written without a wait.
struct Unwritten<R: Runtime> {
    pending: Pending<R>,
    done: io::Result<usize>,
}

struct Waiter {
    offset: Offset,
    done: oneshot::Sender<Result<(), LogError>>,
}

/// The writer's state.
pub(super) struct Writer<R: Runtime> {
    /// In order; mostly one.
    pending: RefCell<SmallVec<[Pending<R>; 1]>>,
    running: Cell<bool>,
    task: RefCell<Option<R::Task>>,
    waiters: RefCell<Vec<Waiter>>,
    idle: RefCell<Vec<oneshot::Sender<()>>>,
}

impl<R: Runtime> Writer<R> {
    pub(super) fn new() -> Self {
        Self {
            pending: RefCell::default(),
            running: Cell::new(false),
            task: RefCell::new(None),
            waiters: RefCell::default(),
            idle: RefCell::default(),
        }
    }

    /// Forgets what was not written and answers everybody who waits for it.
    pub(super) fn abandon(&self, error: LogError) {
        self.pending.take();
        for waiter in self.waiters.take() {
            // Whoever waited may have gone.
            let _ = waiter.done.send(Err(error));
        }
    }

    fn next(&self) -> Option<Pending<R>> {
        let mut pending = self.pending.borrow_mut();
        if pending.len() > 1 {
            return Some(pending.remove(0));
        }
        std::mem::take(&mut *pending).pop()
    }

    fn release(&self, written: Offset) {
        let mut waiters = self.waiters.borrow_mut();
        for waiter in waiters.extract_if(.., |waiter| waiter.offset <= written) {
            let _ = waiter.done.send(Ok(()));
        }
        if waiters.is_empty() {
            *waiters = Vec::new();
        }
    }
}

impl<R: Runtime> Log<R> {
    /// Copies a batch into the append buffer and sees to it that it is written: the one copy of A-8.
    pub(super) fn enqueue(
        &self,
        segment: &Rc<Segment<R>>,
        batch: &[u8],
        base_offset: Offset,
        next_offset: Offset,
    ) {
        let mut pending = self.writer.pending.borrow_mut();
        let fits = |last: &&mut Pending<R>| last.bytes.len().saturating_add(batch.len()) <= WRITE_BYTES_MAX;
        match pending.last_mut().filter(fits) {
            Some(last) => {
                last.bytes.extend_from_slice(batch);
                last.next_offset = next_offset;
            }
            None => {
                let position = segment.size.get();
                let segment = segment.clone();
                let bytes = self.tail.buffer(batch);
                pending.push(Pending { segment, position, base_offset, next_offset, bytes });
            }
        }
        drop(pending);
        if self.writer.running.replace(true) {
            return;
        }
        let Some(log) = self.me.upgrade() else { return };
        let task = self.runtime.spawn(Queue::Request, async move { log.write_pending().await });
        self.writer.task.replace(Some(task));
    }

    /// Waits until everything below `offset` is written. Registers at once, so that a log which is cut back and filled
    /// again before the first poll cannot be mistaken. Dropping the future only stops the waiting.
    ///
    /// # Errors
    /// Why it will not be written.
    pub fn until_written(&self, offset: Offset) -> impl Future<Output = Result<(), LogError>> + use<R> {
        let (done, answer) = oneshot::channel();
        let decided = if offset <= self.written_offset.get() {
            Some(Ok(()))
        } else if offset > self.log_end_offset.get() {
            // It was cut away, or never appended.
            Some(Err(self.check_changeable().err().unwrap_or(LogError::Full)))
        } else {
            self.check_changeable().err().map(Err)
        };
        if decided.is_none() {
            self.writer.waiters.borrow_mut().push(Waiter { offset, done });
        }
        async move {
            match decided {
                Some(decided) => decided,
                None => answer.await.unwrap_or(Err(LogError::Closed)),
            }
        }
    }

    /// Waits until nothing is on its way to a file and no cut-back is under way.
    pub(super) async fn until_idle(&self) {
        while self.writer.running.get() {
            let (wake, woken) = oneshot::channel();
            self.writer.idle.borrow_mut().push(wake);
            let _ = woken.await;
        }
    }

    /// The writer's task. Small, because each turn with appends starts one: what is rare has its place on the heap.
    async fn write_pending(self: Rc<Self>) {
        loop {
            let Some(pending) = self.writer.next() else { break };
            let segment = pending.segment.clone();
            let written = match self.write_now(pending) {
                Ok(written) => Ok(written),
                Err(Unwritten { pending, done }) => Box::pin(self.write_rest(pending, done)).await,
            };
            match written {
                Ok(written) if !segment.removed.get() && self.check_changeable().is_ok() => {
                    self.written_offset.set(written);
                    self.writer.release(written);
                    self.tell(LogEvent::Written(written));
                }
                Ok(_) => {}
                Err(error) if is_full(&error) => Box::pin(self.cut_back()).await,
                Err(error) => {
                    self.failed("write", &error);
                }
            }
        }
        self.writer.running.set(false);
        self.writer.idle.take();
    }

    /// Writes a buffer as a whole without a wait, if the file can.
    fn write_now(&self, pending: Pending<R>) -> Result<Offset, Unwritten<R>> {
        let file = pending.segment.open_file();
        let written = file.and_then(|file| file.write_now(&pending.bytes, pending.position));
        match written {
            Some(Ok(done)) if done >= pending.bytes.len() => Ok(self.keep(pending)),
            Some(done) => Err(Unwritten { pending, done }),
            None => Err(Unwritten { pending, done: Ok(0) }),
        }
    }

    /// Writes a buffer from what is done of it on.
    async fn write_rest(&self, mut pending: Pending<R>, done: io::Result<usize>) -> io::Result<Offset> {
        let mut done = done?;
        let file = pending.segment.file(&self.runtime).await?;
        let all = std::mem::take(&mut pending.bytes).freeze();
        while done < all.len() {
            let at = pending.position.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            let rest = all.slice(done..);
            let count = file.write_at(rest, at).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done = done.saturating_add(count);
        }
        pending.bytes = all.into();
        Ok(self.keep(pending))
    }

    /// Keeps a buffer that was written as the log's tail; everything below the answer is written.
    fn keep(&self, pending: Pending<R>) -> Offset {
        let Pending { segment, position, base_offset, next_offset, bytes } = pending;
        if self.check_changeable().is_ok() && !segment.removed.get() {
            segment.written.set(position.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX)));
            let (at, segment) = (self.runtime.now(), segment.base_offset);
            self.tail.push(NewChunk { at, segment, position, base_offset, next_offset }, bytes);
        }
        next_offset
    }

    /// Meets a full disk (S-32): the log ends where its written prefix does. The first part has no await, so that nobody
    /// sees a log that is half cut back; files and producers follow while appends are refused.
    async fn cut_back(&self) {
        if self.check_changeable().is_err() {
            return;
        }
        let written = self.written_offset.get();
        self.status.set(Status::Full { cutting: true, since: self.runtime.now() });
        tracing::warn!(partition = %self.partition, log_end_offset = %written, "disk is full, log cut back");
        let segment = self.active();
        segment.size.set(segment.written.get());
        segment.with(|all| all.truncate_to(written));
        self.epochs.borrow_mut().truncate_from_end(written);
        self.log_end_offset.set(written);
        self.tail.clear();
        self.writer.abandon(LogError::Full);
        self.tell(LogEvent::CutBack(written));
        match self.restore_after_cut(&segment).await {
            Ok(()) => {
                if let Status::Full { .. } = self.status.get() {
                    self.status.set(Status::Full { cutting: false, since: self.runtime.now() });
                }
            }
            // Even a full disk lets files be cut and read: what refuses that has failed.
            Err(error) => {
                self.broken("cut back", &error);
            }
        }
    }

    async fn restore_after_cut(&self, segment: &Rc<Segment<R>>) -> io::Result<()> {
        let _flushing = self.flushing.enter().await;
        let file = segment.file(&self.runtime).await?;
        file.truncate(segment.size.get()).await?;
        segment.cut_index_files(&self.runtime).await?;
        segment.scan_tail(&self.runtime, segment.size.get()).await?;
        if segment.size.get() == 0 {
            segment.first_timestamp.set(None);
        }
        self.rebuild_producers().await
    }
}
