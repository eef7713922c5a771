//! Partitions that stop, and directories that go (storage.md 7.3): their names first, durably, what is in them later. Part of
//! the changes that `lifecycle` runs one after the other; `moves` lets go of directories too.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use protocol::types::{MonoTime, TopicPartition};
use storage::io::{DirOp, Queue, Runtime, heals, is_full};
use storage::{log_dir, names};

use super::ask::{PartitionKey, StopError, StopPartition};
use super::moves::machine::End;
use super::service::PartitionService;

impl<R: Runtime> PartitionService<R> {
    /// Stops partitions; directories of those that go are renamed before the answer, and removed later.
    pub(super) async fn stop_all(&self, asks: Vec<StopPartition>) -> Vec<Result<(), StopError>> {
        let width = self.0.settings.concurrent_loads_max.max(1);
        stream::iter(asks).map(|ask| self.stop_one(ask)).buffered(width).collect().await
    }

    async fn stop_one(&self, ask: StopPartition) -> Result<(), StopError> {
        let key = PartitionKey { topic_id: ask.topic_id, partition: ask.partition };
        let name = TopicPartition::new(ask.topic, ask.partition);
        if self.is_out_of_service(key) {
            return Err(StopError::Storage);
        }
        let lifecycle = &self.0.lifecycle;
        if let Some(current) = lifecycle.epoch_to_come(key)
            && let Some(asked) = ask.leader_epoch.filter(|asked| *asked < current)
        {
            return Err(StopError::FencedLeaderEpoch { asked, current });
        }
        if let Some(load) = lifecycle.loads.get(key) {
            self.stop_load(&load).await;
        }
        let unserved = lifecycle.unserved.borrow_mut().remove(&key);
        if !ask.delete
            && let Some(Some(_)) = unserved
        {
            // It stays, and was not recovered.
            lifecycle.note_unloaded(None);
        }
        if let Some(partition) = self.held(key) {
            let current = partition.leader_epoch();
            if let Some(asked) = ask.leader_epoch.filter(|asked| *asked < current) {
                return Err(StopError::FencedLeaderEpoch { asked, current });
            }
            self.end_move(key, if ask.delete { End::Remove } else { End::Keep }).await;
        }
        let mut home = None;
        if let Some(partition) = self.held(key) {
            home = Some(partition.dir());
            self.0.partitions.borrow_mut().remove(&key);
            partition.stop();
            partition.tell_stop(ask.leader_epoch);
            if ask.delete {
                partition.log().abandon().await;
            } else if let Err(error) = partition.log().close().await {
                tracing::error!(partition = %name, %error, "log was not closed cleanly");
            }
        }
        if !ask.delete {
            return Ok(());
        }
        // A directory of that name may be another incarnation's by now.
        if lifecycle.is_to_come(&name) || self.all().iter().any(|partition| partition.name == name) {
            return Ok(());
        }
        self.delete_partition(&name, home).await
    }

    /// Whether nothing can be done with a partition: its log dir has failed.
    fn is_out_of_service(&self, key: PartitionKey) -> bool {
        let lifecycle = &self.0.lifecycle;
        match self.held(key) {
            Some(partition) => self.0.hub.failures.is_failed(&partition.dir()),
            None => {
                let table = lifecycle.table();
                let is_refused = lifecycle.unserved.borrow().get(&key).is_some_and(Option::is_none);
                table.live().next().is_none() || (is_refused && table.has_offline())
            }
        }
    }

    async fn delete_partition(
        &self,
        name: &TopicPartition,
        home: Option<Arc<Path>>,
    ) -> Result<(), StopError> {
        let lifecycle = &self.0.lifecycle;
        self.delete_left(name).await.map_err(|_| StopError::Storage)?;
        lifecycle.loaded.borrow_mut().insert(name.clone());
        let chosen = lifecycle.choices.give_up(name);
        let home = match home {
            Some(home) => Some(home),
            None => self.find_home(name).await,
        };
        match (home, chosen) {
            (Some(home), _) => self.delete_dir(&home, &home.join(names::partition_dir(name)), name).await,
            (None, Some(chosen)) => {
                lifecycle.table().uncount(&chosen);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Lets a directory of a partition go for good: it is renamed, so that nobody takes it for a log any more, and removed
    /// later. Whether there was one.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) async fn let_go(
        &self,
        home: &Arc<Path>,
        dir: &Path,
        name: &TopicPartition,
    ) -> io::Result<bool> {
        match log_dir::rename_away(self.runtime(), home, dir, name).await {
            Ok(None) => return Ok(false),
            Ok(Some(doomed)) => self.remove_later(home.clone(), name.clone(), doomed),
            // Even the longer name may find no room: what frees it goes at once.
            Err(error) if is_full(&error) => {
                tracing::warn!(partition = %name, %error, "deleted at once");
                self.runtime().dir(DirOp::RemoveAll(dir.to_owned())).await?;
                // Else it could be there again after a power cut, beside the log of that name elsewhere.
                self.runtime().dir(DirOp::Sync(home.to_path_buf())).await?;
            }
            Err(error) => return Err(error),
        }
        self.0.lifecycle.table().uncount(home);
        Ok(true)
    }

    /// The same; what cannot be let go of is told.
    pub(super) async fn delete_dir(
        &self,
        home: &Arc<Path>,
        dir: &Path,
        name: &TopicPartition,
    ) -> Result<(), StopError> {
        let gone = self.let_go(home, dir, name).await;
        gone.map(drop).map_err(|error| self.not_deleted(home, name, &error))
    }

    fn not_deleted(&self, home: &Arc<Path>, name: &TopicPartition, error: &io::Error) -> StopError {
        tracing::error!(partition = %name, %error, "directory could not be deleted");
        if !heals(error) {
            self.operation_failed(home, error);
        }
        StopError::Storage
    }

    /// Removes a directory that was renamed away, after `log.segment.delete.delay.ms`.
    pub(super) fn remove_later(&self, home: Arc<Path>, name: TopicPartition, doomed: PathBuf) {
        let (inner, runtime) = (Rc::downgrade(&self.0), self.runtime().clone());
        let at: MonoTime = runtime.now().plus_ms(self.0.settings.file_delete_delay_ms);
        self.spawn(Queue::Background, async move {
            runtime.sleep_until(at).await;
            // The next start finds what stays by its name, and removes it.
            if inner.upgrade().is_none_or(|inner| inner.hub.failures.is_failed(&home)) {
                return;
            }
            if let (Err(error), Some(inner)) = (runtime.dir(DirOp::RemoveAll(doomed)).await, inner.upgrade())
            {
                Self(inner).not_deleted(&home, &name, &error);
            }
        });
    }
}
