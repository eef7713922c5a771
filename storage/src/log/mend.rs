//! Lookups by the offset index that do not believe it blindly: no checksum covers an index, and one that leads behind the batch
//! it tells of would hide records. Such an entry is found where a lookup lands, and the index is built anew from the log;
//! that of the active segment, which grows meanwhile, begins anew. Called by whoever looks for an offset in a segment.
//!
//! To build one reads a whole segment. One builder does it for each, in a task of its own, which lets the others of the shard
//! have their turn: whoever looks for something in the segment waits for it, and who goes away meanwhile leaves it to the next.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use protocol::types::Offset;

use super::segment::{Located, Segment};
use super::{Log, unless_it_heals};
use crate::index::offset::OffsetPosition;
use crate::io::{Queue, Runtime};

/// An index that was built from the log leads to its batches; one whose file changes under us is not built for ever.
const TRIES_MAX: u32 = 4;

/// How a build ended, for all who waited for it.
type Built = Result<(), Arc<io::Error>>;

/// Indexes that have to be built anew, by the base offset of their segment.
pub(super) struct Builds<R: Runtime> {
    wanted: RefCell<BTreeMap<Offset, Build>>,
    /// Those that have ended too, until the next of the same segment: a task cannot drop itself.
    tasks: RefCell<BTreeMap<Offset, R::Task>>,
}

#[derive(Default)]
struct Build {
    /// Else the last one failed, and the next who asks begins another.
    is_running: bool,
    waiting: Vec<oneshot::Sender<Built>>,
}

impl<R: Runtime> Builds<R> {
    pub(super) fn new() -> Self {
        Self { wanted: RefCell::default(), tasks: RefCell::default() }
    }

    /// Nobody wants the indexes of a segment as they would be; who waits for them looks again.
    pub(super) fn stop(&self, base_offset: Offset) {
        let task = self.tasks.borrow_mut().remove(&base_offset);
        let build = self.wanted.borrow_mut().remove(&base_offset);
        drop((task, build));
    }

    /// The same of all: the log ends.
    pub(super) fn stop_all(&self) {
        let (tasks, wanted) = (self.tasks.take(), self.wanted.take());
        drop((tasks, wanted));
    }

    fn is_wanted(&self, base_offset: Offset) -> bool {
        self.wanted.borrow().contains_key(&base_offset)
    }

    /// Waits for a build; answers whether it has to be started.
    fn join(&self, base_offset: Offset) -> (bool, oneshot::Receiver<Built>) {
        let (sender, built) = oneshot::channel();
        let mut wanted = self.wanted.borrow_mut();
        let build = wanted.entry(base_offset).or_default();
        build.waiting.push(sender);
        (!std::mem::replace(&mut build.is_running, true), built)
    }

    fn ended(&self, base_offset: Offset, built: &Built) {
        let waiting = {
            let mut wanted = self.wanted.borrow_mut();
            let Some(build) = wanted.get_mut(&base_offset) else { return };
            build.is_running = false;
            let waiting = std::mem::take(&mut build.waiting);
            if built.is_ok() {
                wanted.remove(&base_offset);
            }
            waiting
        };
        for waiting in waiting {
            // Whoever waited may have gone.
            let _ = waiting.send(built.clone());
        }
    }
}

impl<R: Runtime> Log<R> {
    /// The first batch that ends at or above `offset` in what lies before `end`.
    pub(super) async fn locate_in(
        &self,
        segment: &Segment<R>,
        offset: Offset,
        end: u64,
    ) -> io::Result<Located> {
        for _ in 0..TRIES_MAX {
            self.load_indexes(segment).await?;
            match segment.locate(&self.runtime, offset, end).await? {
                Ok(located) => return Ok(located),
                Err(entry) if Box::pin(self.mend_index(segment, &entry)).await? => {}
                Err(entry) => return Ok(Located::Bad(entry.position)),
            }
        }
        Ok(Located::Bad(0))
    }

    /// Where to begin looking for `offset`: at or before the batch that holds it.
    pub(super) async fn floor_in(&self, segment: &Segment<R>, offset: Offset) -> io::Result<u64> {
        for _ in 0..TRIES_MAX {
            self.load_indexes(segment).await?;
            match segment.check_floor(&self.runtime, offset).await? {
                Ok(position) => return Ok(position),
                Err(entry) if Box::pin(self.mend_index(segment, &entry)).await? => {}
                Err(entry) => return Ok(entry.position),
            }
        }
        Ok(0)
    }

    /// Sees to it that the indexes of a segment are in memory, and complete: they are read, and built anew from the log where
    /// the files are of no use. Not for who keeps flushes out, which the builder waits for.
    pub(super) async fn load_indexes(&self, segment: &Segment<R>) -> io::Result<()> {
        if segment.has_indexes() && !self.builds.is_wanted(segment.base_offset) {
            return Ok(());
        }
        // What is rare has its place on the heap.
        Box::pin(self.bring_in_indexes(segment)).await
    }

    async fn bring_in_indexes(&self, segment: &Segment<R>) -> io::Result<()> {
        let base_offset = segment.base_offset;
        if self.builds.is_wanted(base_offset) {
            self.build(segment).await?;
        }
        if let Err(damage) = segment.read_in_indexes(&self.runtime, &self.config()).await? {
            if !self.builds.is_wanted(base_offset) {
                tracing::warn!(partition = %self.partition, %base_offset, %damage, "building the indexes of a segment anew");
            }
            self.build(segment).await?;
        }
        Ok(())
    }

    /// Answers `false`, with nothing changed, if the entry is right: then it is the log that is damaged there.
    async fn mend_index(&self, segment: &Segment<R>, entry: &OffsetPosition) -> io::Result<bool> {
        // One looks at a time: it may take a while, and changes what the next one sees.
        let _mending = self.mending.enter().await;
        if segment.removed.get() || !segment.has_offset(entry) {
            // Its files may be those of another one, or somebody else was faster.
            return Ok(true);
        }
        if segment.is_led_to(&self.runtime, entry).await? {
            return Ok(false);
        }
        if segment.removed.get() || !segment.drop_offsets_with(entry) {
            return Ok(true);
        }
        let (base_offset, offset, position) = (segment.base_offset, entry.offset, entry.position);
        tracing::warn!(partition = %self.partition, %base_offset, %offset, position,
            "an entry of the offset index does not lead to its batch: the index is built anew");
        if base_offset != self.active().base_offset {
            drop(self.start_build(segment));
        }
        Ok(true)
    }

    /// Builds the indexes of a segment anew, or waits for who does. The segment is not the active one.
    async fn build(&self, segment: &Segment<R>) -> io::Result<()> {
        let Some(built) = self.start_build(segment) else { return segment.check_present() };
        match built.await {
            Ok(built) => built.map_err(|error| io::Error::new(error.kind(), error)),
            // It was cut, and is looked at again; or the log has ended.
            Err(oneshot::Canceled) if self.check_readable().is_ok() => Ok(()),
            Err(oneshot::Canceled) => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    /// What tells how the build ends that is under way from now on; `None` if the segment has left the log.
    fn start_build(&self, segment: &Segment<R>) -> Option<oneshot::Receiver<Built>> {
        let base_offset = segment.base_offset;
        let here = self.segments.borrow().get(&base_offset).cloned();
        let here = here.filter(|here| std::ptr::eq(Rc::as_ptr(here), segment))?;
        let log = self.me.upgrade()?;
        let (is_new, built) = self.builds.join(base_offset);
        if is_new {
            let task = self.runtime.spawn(Queue::Background, async move {
                let built = log.build_indexes(&here).await;
                log.builds.ended(base_offset, &log.judge_build(&here, built));
            });
            let before = self.builds.tasks.borrow_mut().insert(base_offset, task);
            drop(before);
        }
        Some(built)
    }

    /// What those are told who wait for a build. Also where nobody waits any more a failing disk takes the log offline.
    fn judge_build(&self, segment: &Segment<R>, built: io::Result<()>) -> Built {
        match built {
            // Another segment may have its base offset by now, and is looked at again.
            _ if segment.removed.get() => Ok(()),
            Err(error) if self.check_readable().is_ok() => {
                self.failed("build of an index", &error);
                Err(Arc::new(error))
            }
            built => built.map_err(Arc::new),
        }
    }

    async fn build_indexes(&self, segment: &Segment<R>) -> io::Result<()> {
        let check = || match self.check_readable() {
            Ok(()) => segment.check_present(),
            Err(_) => Err(io::ErrorKind::Interrupted.into()),
        };
        let built = segment.rebuild_indexes(&self.runtime, &self.config(), check).await?;
        // Whoever cuts the segment keeps us out meanwhile, and ends this.
        let _flushing = self.flushing.enter().await;
        check()?;
        segment.set_indexes(built);
        unless_it_heals(segment.flush_indexes(&self.runtime).await)
    }
}
