//! What only shard 0 runs: the boot, the registration, the controller and the checkpoint files; from its start to its
//! stop.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{Either, select};
use protocol::types::TopicPartition;
use storage::io::{Queue, Runtime};
use storage::lock::DirLock;

use super::boot::{Boot, BootError, Booted, boot, vouch};
use super::checkpoints::{CheckpointIntervals, CheckpointTask};
use super::dirs::{OpenedDir, metadata_dir};
use super::shard::{Go, Plan, Services};
use crate::controller::driver::Driver;
use crate::controller::machine::Settings;
use crate::metadata::image::Image;
use crate::partition::ask::OutOfService;
use crate::partition::log_dirs::DirWatch;
use crate::partition::log_dirs::machine::Halt;
use crate::replication::config_changes;
use crate::replication::dir_events;
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
    /// Of the log dirs that are open, in the order of the checkpoints.
    locks: Vec<Arc<DirLock>>,
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
        tell_when_ready(plan, &booted.boot);
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
        let watched: Rc<OnceCell<LocalBroker<GlommioShard>>> = Rc::default();
        let tell = dir_events::teller(runtime, store.clone(), id, watched.clone());
        let watch = watch_dirs(runtime, plan, services, &booted.dirs, tell);
        let locks: Vec<_> = booted.dirs.iter().map(|dir| dir.lock.clone()).collect();
        let sound: Vec<_> =
            booted.dirs.iter().map(|dir| dir.dir.was_clean() || dir.lock.is_vouched()).collect();
        let paths: Vec<_> = booted.dirs.iter().map(|dir| dir.dir.path().to_owned()).collect();
        let dirs = booted.dirs.into_iter().map(|dir| (dir.dir, dir.found)).collect();
        let checkpoints = CheckpointTask::start(runtime, services.partitions.clone(), dirs, intervals(plan));
        let files = checkpoints.files();
        for ((path, lock), _) in paths.iter().zip(&locks).zip(sound).filter(|(_, is_sound)| !is_sound) {
            // From here on as soon as the last of the logs that were there is recovered.
            let lock = lock.clone();
            checkpoints.when_all_are_open(runtime, path, move || vouch(&lock));
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
        // Set once: there is one.
        let _ = watched.set(local.clone());
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
        Ok(Running { store, locks, checkpoints, watch, tasks: [controller, config_changes] })
    }
}

/// One line when clients are served and all logs are open.
fn tell_when_ready(plan: &Plan, boot: &Boot) {
    let (id, cluster, listening) = (boot.broker_id, boot.image.cluster_id.clone(), plan.listening.clone());
    let began = plan.began;
    plan.progress.when_ready(move || {
        let took_ms = super::now().duration_since(began).as_millis();
        tracing::info!(broker_id = %id, cluster_id = &*cluster, listeners = &*listening, took_ms, "ready");
    });
}

/// From here on a log dir that fails is taken out of service, and the last one ends the process.
fn watch_dirs(
    runtime: &GlommioShard,
    plan: &Plan,
    services: &Services,
    opened: &[OpenedDir<GlommioShard>],
    tell: impl Fn(OutOfService) + 'static,
) -> DirWatch<GlommioShard> {
    let dirs = opened.iter().map(|dir| (dir.dir.path().into(), dir.dir.clone())).collect();
    let metadata = metadata_dir(&plan.config).map(Into::into);
    let halt = |why: &Halt| super::halt(why);
    DirWatch::start(runtime, services.partitions.clone(), dirs, metadata, halt, tell)
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
        let Self { store, locks, checkpoints, watch, tasks } = self;
        drop((tasks, watch));
        for ((dir, stopped), lock) in checkpoints.stop().await.dirs.into_iter().zip(locks) {
            let dir = dir.display();
            if let Err(error) = &stopped {
                tracing::error!(%dir, %error, "clean stop not marked: the next start recovers");
            }
            // The mark says it now. Without one, for whatever reason but a failure, the logs are still in order.
            let says_nothing_more = stopped.unwrap_or_else(|error| !error.heals());
            if says_nothing_more && let Err(error) = lock.disavow() {
                tracing::error!(%dir, %error, "the lock file cannot be emptied");
            }
        }
        if let Err(error) = store.close().await {
            tracing::warn!(%error, "metadata store not closed");
        }
    }
}
