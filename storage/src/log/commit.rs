//! Durability modes (storage.md 10.2): when an append is safe, and the syncs that make it so. In strict mode every write is
//! followed by a commit, one at a time for each log, which releases all that was written before it began (S-34). A topic's
//! `flush.messages` and `flush.ms` ask for a flush that no append waits for. Decides nothing of what is released: that is
//! [`group`]; knows no acknowledgement: the partition hears of [`LogEvent::Durable`].

pub(super) mod group;

use std::io;
use std::rc::Rc;

use protocol::types::{MonoTime, Offset};

use self::group::Commit;
use super::segment::Segment;
use super::{Log, LogEvent};
use crate::config::Durability;
use crate::io::{DirOp, File, Queue, Runtime};

impl<R: Runtime> Log<R> {
    /// Everything below survives a power cut.
    pub fn synced_offset(&self) -> Offset {
        self.commits.borrow().synced()
    }

    /// Everything below may be acknowledged, by the durability mode.
    pub fn safe_offset(&self) -> Offset {
        match self.durability() {
            Durability::Relaxed => self.log_end_offset.get(),
            Durability::Kafka => self.written_offset.get(),
            Durability::Strict => self.synced_offset(),
        }
    }

    /// When an append counts as safe.
    pub fn durability(&self) -> Durability {
        self.config.borrow().durability
    }

    /// Sees to what the configuration asks for when something was written, or when it has changed.
    pub(super) fn after_write(&self) {
        let (durability, flush_messages, flush_ms) = {
            let config = self.config.borrow();
            (config.durability, config.flush_messages, config.flush_ms)
        };
        let (written, recovery_point) = (self.written_offset.get(), self.recovery_point.get());
        if durability == Durability::Strict {
            self.commit();
        } else if written.since(recovery_point) >= flush_messages {
            self.flush_in_background(written);
        }
        if flush_ms < i64::MAX && recovery_point < written {
            self.flush_by(self.runtime.now().plus_ms(flush_ms));
        }
    }

    /// Makes what is written durable, with whatever else is written until the sync begins.
    fn commit(&self) {
        if self.synced_offset() >= self.written_offset.get() || self.commit_running.replace(true) {
            return;
        }
        let Some(log) = self.me.upgrade() else { return };
        let task = self.runtime.spawn(Queue::Request, async move { log.commit_written().await });
        self.commit_task.replace(Some(task));
    }

    async fn commit_written(self: Rc<Self>) {
        while self.durability() == Durability::Strict && self.check_readable().is_ok() {
            let delay_ms = self.config().sync_delay_ms_max;
            if delay_ms > 0 && self.synced_offset() < self.written_offset.get() {
                self.runtime.sleep_until(self.runtime.now().plus_ms(delay_ms)).await;
                if self.check_readable().is_err() {
                    break;
                }
            }
            let (written, base) = (self.written_offset.get(), self.active().base_offset);
            let Some(commit) = self.commits.borrow_mut().begin(written, base) else { break };
            // A file that could not be opened was not synced: that may be tried again.
            let sync = async || self.sync(&commit).await;
            if let Err(error) = self.to_its_end("sync of a segment", sync).await {
                // Never tried again: what the kernel has dropped would be taken for durable (S-36).
                self.broken("sync of a segment", &error);
                break;
            }
            // Another sync may have failed meanwhile, which told of the loss in this one's place.
            if self.check_readable().is_err() {
                break;
            }
            let durable = self.commits.borrow_mut().succeeded();
            if let Some(durable) = durable {
                self.tell(LogEvent::Durable(durable));
            }
        }
        self.commit_running.set(false);
    }

    /// Oldest first; the directory last. None of it is acknowledged before all of it is done: a segment without the end of
    /// the one before it would be cut off by the next start.
    async fn sync(&self, commit: &Commit) -> io::Result<()> {
        for segment in self.segments_between(commit.from, commit.to) {
            let synced = match segment.file(&self.runtime).await {
                Ok(file) => self.timed(file.sync_data()).await,
                Err(error) => Err(error),
            };
            match synced {
                Err(error) if segment.removed.get() && error.kind() == io::ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
        if commit.names {
            self.runtime.dir(DirOp::Sync(self.dir.to_path_buf())).await?;
        }
        Ok(())
    }

    fn segments_between(&self, from: Offset, to: Offset) -> Vec<Rc<Segment<R>>> {
        let segments = self.segments.borrow();
        let first = segments.range(..=from).next_back().map_or(from, |(base, _)| *base);
        segments.range(first..to).map(|(_, segment)| segment.clone()).collect()
    }

    /// Tells how long the sync of a segment took.
    pub(super) async fn timed(&self, sync: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let began = self.runtime.now();
        let synced = sync.await;
        self.tell(LogEvent::Synced { nanos: self.runtime.now().nanos_since(began) });
        synced
    }

    /// Flushes what is written at this time, unless that is done before. A log that waits for its time is not kept by that.
    fn flush_by(&self, due: MonoTime) {
        if self.flush_due.get().is_some_and(|before| before <= due) {
            return;
        }
        self.flush_due.set(Some(due));
        let (me, runtime) = (self.me.clone(), self.runtime.clone());
        let task = self.runtime.spawn(Queue::Background, async move {
            runtime.sleep_until(due).await;
            if let Some(log) = me.upgrade() {
                log.flush_due.set(None);
                log.flush_in_background(log.written_offset.get());
            }
        });
        self.flush_timer.replace(Some(task));
    }
}
