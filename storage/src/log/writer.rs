//! What brings appended bytes to the file: all appends of one turn are one write, up to a bound beyond which they
//! are several, so that no buffer grows with what a turn holds; one write is in flight per log, `written` is a contiguous
//! prefix, a short write is continued. Knows no batch. A log without unwritten bytes holds no buffer and no task.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use futures_channel::oneshot;
use protocol::types::Offset;
use smallvec::{SmallVec, smallvec};

use super::segment::Segment;
use super::tail::{GATHER_BYTES_MAX, NewChunk};
use super::{Log, LogError, LogEvent, Status};
use crate::io::{File, Queue, Runtime, WRITE_NOW_BYTES_MAX, heals};

/// Appends are gathered up to what a file writes without a wait, which is large enough that a write costs what its bytes
/// cost. A larger batch is a write of its own.
const WRITE_BYTES_MAX: usize = WRITE_NOW_BYTES_MAX;

/// A batch to be appended, in memory that nobody else changes.
#[derive(Debug)]
pub struct BatchBuffer {
    /// Exactly one batch.
    pub bytes: BytesMut,
    /// Bytes of memory that are there as long as `bytes` are: those of the whole frame that they were cut from. A large
    /// batch that is most of it is written from here and kept as the log's tail; others are copied.
    pub memory: usize,
}

impl BatchBuffer {
    /// Bytes of memory that are taken until the batch is written.
    pub fn kept_bytes(&self) -> usize {
        if self.stays() { self.memory.max(self.bytes.len()) } else { self.bytes.len() }
    }

    /// Whether the batch may stay where it is: it is large, and keeps little else alive.
    fn stays(&self) -> bool {
        let len = self.bytes.len();
        len >= GATHER_BYTES_MAX && self.memory <= len.saturating_add(len / 2)
    }
}

/// A batch in a buffer of its own.
impl From<BytesMut> for BatchBuffer {
    fn from(bytes: BytesMut) -> Self {
        let memory = bytes.capacity();
        Self { bytes, memory }
    }
}

/// Appended bytes on their way to one segment, in one write.
struct Pending<R: Runtime> {
    segment: Rc<Segment<R>>,
    position: u64,
    len: usize,
    pieces: SmallVec<[Piece; 1]>,
}

/// Batches that lie together in memory.
struct Piece {
    base_offset: Offset,
    next_offset: Offset,
    bytes: PieceBytes,
}

enum PieceBytes {
    /// Copies of small batches, to which more may be added.
    Gathered(BytesMut),
    /// One large batch where it came, and the memory that it keeps alive.
    Held(Bytes, usize),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            PieceBytes::Gathered(bytes) => bytes,
            PieceBytes::Held(bytes, _) => bytes,
        }
    }
}

impl<R: Runtime> Pending<R> {
    fn next_offset(&self) -> Offset {
        self.pieces.last().map_or(Offset::ZERO, |piece| piece.next_offset)
    }

    /// All bytes in one piece: a copy if there are several, or few.
    fn joined(&mut self) -> Bytes {
        if let [Piece { bytes: piece, .. }] = self.pieces.as_mut_slice()
            && let PieceBytes::Gathered(gathered) = piece
            && gathered.len() >= GATHER_BYTES_MAX
        {
            let memory = gathered.capacity();
            *piece = PieceBytes::Held(std::mem::take(gathered).freeze(), memory);
        }
        match self.pieces.as_slice() {
            [Piece { bytes: PieceBytes::Held(bytes, _), .. }] => bytes.clone(),
            pieces => {
                let mut all = Vec::with_capacity(self.len);
                for piece in pieces {
                    all.extend_from_slice(piece.bytes());
                }
                all.into()
            }
        }
    }
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

    fn has_more(&self) -> bool {
        !self.pending.borrow().is_empty()
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
    /// Sees to it that a batch is written. Small ones are copied together, which is the one copy of A-8; a large one is
    /// written from where it is.
    pub(super) fn enqueue(
        &self,
        segment: &Rc<Segment<R>>,
        batch: BatchBuffer,
        base_offset: Offset,
        next_offset: Offset,
    ) {
        let len = batch.bytes.len();
        // What the tail would not take is of more use there as a copy.
        let stays = batch.stays() && self.tail.takes(batch.memory);
        let mut pending = self.writer.pending.borrow_mut();
        let fits = |last: &&mut Pending<R>| last.len.saturating_add(len) <= WRITE_BYTES_MAX;
        match pending.last_mut().filter(fits) {
            Some(last) => {
                last.len = last.len.saturating_add(len);
                match last.pieces.last_mut() {
                    Some(Piece { bytes: PieceBytes::Gathered(gathered), next_offset: next, .. })
                        if !stays =>
                    {
                        gathered.extend_from_slice(&batch.bytes);
                        *next = next_offset;
                    }
                    _ => last.pieces.push(self.piece(batch, stays, base_offset, next_offset)),
                }
            }
            None => {
                let (position, segment) = (segment.size.get(), segment.clone());
                let pieces = smallvec![self.piece(batch, stays, base_offset, next_offset)];
                pending.push(Pending { segment, position, len, pieces });
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

    fn piece(&self, batch: BatchBuffer, stays: bool, base_offset: Offset, next_offset: Offset) -> Piece {
        let bytes = if stays {
            PieceBytes::Held(batch.bytes.freeze(), batch.memory)
        } else {
            PieceBytes::Gathered(self.tail.buffer(&batch.bytes))
        };
        Piece { base_offset, next_offset, bytes }
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
                    self.after_write();
                }
                Ok(_) => {}
                Err(error) if heals(&error) => Box::pin(self.cut_back(&error)).await,
                Err(error) => {
                    self.failed("write", &error);
                }
            }
            if self.writer.has_more() {
                // Others have their turn between two writes of one log.
                Box::pin(self.runtime.turn()).await;
            }
        }
        self.writer.running.set(false);
        self.writer.idle.take();
    }

    /// Makes a write as a whole without a wait, if the file can.
    fn write_now(&self, pending: Pending<R>) -> Result<Offset, Unwritten<R>> {
        let file = pending.segment.open_file();
        let slices: SmallVec<[IoSlice<'_>; 4]> =
            pending.pieces.iter().map(|piece| IoSlice::new(piece.bytes())).collect();
        let written = file.and_then(|file| file.write_now(&slices, pending.position));
        drop(slices);
        match written {
            Some(Ok(done)) if done >= pending.len => Ok(self.keep(pending)),
            Some(done) => Err(Unwritten { pending, done }),
            None => Err(Unwritten { pending, done: Ok(0) }),
        }
    }

    /// Makes a write from what is done of it on.
    async fn write_rest(&self, mut pending: Pending<R>, done: io::Result<usize>) -> io::Result<Offset> {
        let mut done = done?;
        let file = pending.segment.file(&self.runtime).await?;
        let all = pending.joined();
        while done < all.len() {
            let at = pending.position.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            let rest = all.slice(done..);
            let count = file.write_at(rest, at).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done = done.saturating_add(count);
        }
        Ok(self.keep(pending))
    }

    /// Keeps what was written as the log's tail; everything below the answer is written.
    fn keep(&self, pending: Pending<R>) -> Offset {
        let next = pending.next_offset();
        let Pending { segment, mut position, len, pieces } = pending;
        if self.check_changeable().is_ok() && !segment.removed.get() {
            segment.written.set(position.saturating_add(u64::try_from(len).unwrap_or(u64::MAX)));
            let (at, segment) = (self.runtime.now(), segment.base_offset);
            for piece in pieces {
                let len = u64::try_from(piece.bytes().len()).unwrap_or(u64::MAX);
                let Piece { base_offset, next_offset, bytes } = piece;
                let chunk = NewChunk { at, segment, position, base_offset, next_offset };
                match bytes {
                    PieceBytes::Gathered(bytes) => self.tail.push(chunk, bytes),
                    PieceBytes::Held(bytes, memory) => self.tail.hold(chunk, bytes, memory),
                }
                position = position.saturating_add(len);
            }
        }
        next
    }

    /// Meets a full disk (S-32), or one that the kernel had no memory for: the log ends where its written prefix does. The first part has no await, so that nobody
    /// sees a log that is half cut back; files and producers follow while appends are refused.
    async fn cut_back(&self, error: &io::Error) {
        if self.check_changeable().is_err() {
            return;
        }
        let written = self.written_offset.get();
        self.status.set(Status::Full { cutting: true, since: self.runtime.now() });
        tracing::warn!(partition = %self.partition, log_end_offset = %written, %error, "no room for what was appended, log cut back");
        let segment = self.active();
        segment.size.set(segment.written.get());
        segment.with(|all| all.truncate_to(written));
        self.epochs.borrow_mut().truncate_from_end(written);
        self.log_end_offset.set(written);
        self.tail.clear();
        self.writer.abandon(LogError::Full);
        self.tell(LogEvent::CutBack(written));
        match self.to_its_end("cut back", async || self.restore_after_cut(&segment).await).await {
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
