//! What only shard 0 runs: the boot, the registration, the controller and the checkpoint files; from its start to its
//! stop.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{Either, select};
use protocol::types::TopicPartition;
use storage::io::{Queue, Runtime};
use storage::lock::DirLock;

use super::boot::{Boot, BootError, Booted, boot, vouch};
use super::checkpoints::{CheckpointIntervals, CheckpointTask};
use super::shard::{Go, Plan, Services};
use crate::controller::driver::Driver;
use crate::controller::machine::Settings;
use crate::metadata::image::Image;
use crate::partition::log_dirs::DirWatch;
use crate::partition::log_dirs::machine::Halt;
use crate::replication::config_changes;
use crate::replication::receiver::{LocalBroker, LocalBrokerParts};
use crate::shard::NEVER;
use crate::shard::glommio::GlommioShard;
use crate::shard::stop::Stopping;
use crate::store::MetadataStore;
use crate::store::chosen::{ChosenStore, Opened};
use crate::store::znodes::BrokerNode;

/// What shard 0 holds between its boot and its wiring.
pub struct Control {
    pub(super) store: ChosenStore,
    booted: Booted<GlommioShard>,
    serve: Vec<oneshot::Sender<()>>,
}

/// What shard 0 keeps running.
pub struct Running {
    store: ChosenStore,
    lock: Arc<DirLock>,
    checkpoints: CheckpointTask<GlommioShard>,
    watch: DirWatch<GlommioShard>,
    /// The controller, and the follower of configuration changes.
    tasks: [<GlommioShard as Runtime>::Task; 2],
}

impl Control {
    /// Boots, and tells the other shards what to start from.
    ///
    /// # Errors
    /// See [`BootError`].
    pub async fn boot(
        runtime: &GlommioShard,
        plan: &Plan,
        metadata: Opened,
        tell: Vec<oneshot::Sender<Go>>,
    ) -> Result<(Boot, Self), BootError> {
        let clock = runtime.clone();
        let store = metadata.start(move || clock.wall_ms());
        let node = BrokerNode::new(&plan.endpoints, plan.config.identity.rack.as_deref(), runtime.wall_ms());
        let booted = boot(runtime, &store, plan, node).await?;
        let mut serve = Vec::new();
        for shard in tell {
            let (sender, receiver) = oneshot::channel();
            serve.push(sender);
            // A shard that ended already is not there to be told.
            let _ = shard.send(Go { boot: booted.boot.clone(), serve: receiver });
        }
        Ok((booted.boot.clone(), Self { store, booted, serve }))
    }

    /// Starts the controller, waits until this broker's partitions are known to every shard, and lets clients come. Logs
    /// are being opened by then, each is served when it is ready. A stop meanwhile ends the wait: a shard that did
    /// not start never gets to know anything.
    ///
    /// # Errors
    /// See [`BootError`].
    pub async fn start(
        self,
        runtime: &GlommioShard,
        plan: &Plan,
        services: &Services,
        stopping: &Stopping,
    ) -> Result<Running, BootError> {
        let Self { store, booted, serve } = self;
        let id = booted.boot.broker_id;
        let watch = watch_dirs(runtime, plan, services, &booted);
        let (owners, dir) = (services.partitions.clone(), (booted.dir, booted.found));
        let checkpoints = CheckpointTask::start(runtime, owners, dir, intervals(plan));
        let files = checkpoints.files();
        let (lock, is_sound) = (plan.lock.clone(), booted.boot.clean || plan.lock.is_vouched());
        if !is_sound {
            // From here on as soon as the last of the logs that were there is recovered.
            let lock = lock.clone();
            checkpoints.when_all_are_open(runtime, move || vouch(&lock));
        }
        let local = LocalBroker::start(
            runtime,
            LocalBrokerParts {
                store: store.clone(),
                partitions: services.partitions.clone(),
                publisher: services.publisher.clone(),
                config: services.config.clone(),
                id,
                broker_epoch: booted.broker_epoch,
                on_deleted: Box::new(move |partitions| Box::pin(files.clone().forget(partitions))),
            },
        );
        let settings = Settings {
            id,
            delete_topic_enable: plan.config.topics.delete_topic_enable,
            unclean_leader_election_enable: plan.config.topic_defaults.unclean_leader_election_enable,
        };
        let driver = Driver::new(runtime, store.fork(), local.link(id), settings, booted.node);
        let mut driver = driver.counting(&services.wiring.metrics);
        // Set once: there is one driver.
        let _ = services.controller.set(driver.view());
        driver.elect().await;
        let controller = runtime.spawn(Queue::Control, driver.run());
        let (clock, told) = (runtime.clone(), local.clone());
        let follow = config_changes::follow(
            store.fork(),
            move || clock.wall_ms(),
            move |topic| told.topic_config_changed(topic),
        );
        let config_changes = runtime.spawn(Queue::Control, follow);
        let is_known = async {
            local.settled().await;
            services.publisher.until(NEVER, |image| (image.controller == id).then_some(())).await
        };
        match select(pin!(is_known), pin!(stopping.requested())).await {
            Either::Left((known, _)) => {
                known.ok_or(BootError::ShardStopped)?;
                plan.progress.controller_known();
                tell_of_strangers(&services.publisher.current(), &checkpoints.unopened());
            }
            Either::Right(_) => {}
        }
        for shard in serve {
            // A shard that ended already needs no word.
            let _ = shard.send(());
        }
        Ok(Running { store, lock, checkpoints, watch, tasks: [controller, config_changes] })
    }
}

/// From here on a failed log dir ends the process; before it, the start refuses.
fn watch_dirs(
    runtime: &GlommioShard,
    plan: &Plan,
    services: &Services,
    booted: &Booted<GlommioShard>,
) -> DirWatch<GlommioShard> {
    let dir = &booted.boot.log_dir;
    let metadata = std::path::absolute(&plan.config.storage.metadata_file);
    let is_embedded = plan.config.zookeeper.is_none();
    let holds_metadata = is_embedded && metadata.is_ok_and(|file| file.parent() == Some(&**dir));
    let dirs = [(dir.clone(), booted.dir.clone())].into();
    let halt = |why: &Halt| super::halt(why);
    DirWatch::start(runtime, services.partitions.clone(), dirs, holds_metadata.then(|| dir.clone()), halt)
}

fn intervals(plan: &Plan) -> CheckpointIntervals {
    let storage = &plan.config.storage;
    CheckpointIntervals {
        high_watermark_ms: storage.replica_high_watermark_checkpoint_interval_ms,
        recovery_point_ms: storage.log_flush_offset_checkpoint_interval_ms,
        log_start_ms: storage.log_flush_start_offset_checkpoint_interval_ms,
    }
}

/// Directories that no topic of the metadata store has: they are kept, and not served. One line tells whoever lost the
/// store, or has started on a directory of Kafka's.
fn tell_of_strangers(image: &Image, found: &BTreeSet<TopicPartition>) {
    let mut strangers = found.iter().filter(|partition| image.owner(partition).is_none());
    if let Some(first) = strangers.next() {
        let count = strangers.count().saturating_add(1);
        tracing::warn!(count, %first, "directories of partitions that the metadata store does not know are kept, not served");
    }
}

impl Running {
    /// No more decisions, then the logs, then the store (storage.md 8.3).
    pub async fn stop(self) {
        let Self { store, lock, checkpoints, watch, tasks } = self;
        drop((tasks, watch));
        let stopped = checkpoints.stop().await;
        if let Err(error) = &stopped {
            tracing::error!(%error, "clean stop not marked: the next start recovers");
        }
        // The mark says it now. Without one, for whatever reason but a failure, the logs are still in order.
        let says_nothing_more = stopped.unwrap_or_else(|error| !error.is_full());
        if says_nothing_more && let Err(error) = lock.disavow() {
            tracing::error!(%error, "the lock file cannot be emptied");
        }
        if let Err(error) = store.close().await {
            tracing::warn!(%error, "metadata store not closed");
        }
    }
}
