//! Tells the controller of a log dir that has failed (storage.md 8.4, zookeeper.md 8): first this broker's own receiver of
//! the controller's requests, which then lets the owners answer what it would refuse as known; then the controller, by a node
//! in the metadata store that names this broker, until it is written. The controller asks for the roles of all replicas
//! here, and learns of those that are out of service by the answer.

use std::cell::OnceCell;
use std::rc::Rc;

use protocol::types::BrokerId;
use storage::io::Queue;

use super::receiver::LocalBroker;
use crate::partition::ask::OutOfService;
use crate::shard::ShardRuntime;
use crate::shard::tasks::TaskSet;
use crate::store::{CreateMode, MetadataStore, StoreError, znodes};

/// How soon a node that could not be written is tried again.
const RETRY_MS: i64 = 1000;

/// What is to be called with what went out of service. `local` is set when the receiver is there: before, no role was taken.
pub fn teller<R: ShardRuntime, S: MetadataStore + 'static>(
    runtime: &R,
    store: S,
    id: BrokerId,
    local: Rc<OnceCell<LocalBroker<R>>>,
) -> impl Fn(OutOfService) + 'static {
    let (runtime, tasks, store) = (runtime.clone(), TaskSet::new(runtime.clone()), Rc::new(store));
    move |gone| {
        let (runtime, store, local) = (runtime.clone(), store.clone(), local.get().cloned());
        tasks.spawn(Queue::Control, async move {
            if let Some(local) = local {
                local.out_of_service(gone.partitions);
                local.settled().await;
            }
            loop {
                let data = Some(znodes::print_log_dir_event(id));
                let node = store.create(znodes::LOG_DIR_EVENT, data, CreateMode::PersistentSequential).await;
                match node {
                    Ok(_) => return,
                    Err(error @ (StoreError::BadPath | StoreError::NoNode | StoreError::TooLarge)) => {
                        tracing::error!(%error, "the controller cannot be told of a log directory that has failed");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the controller is not told yet of a log directory that has failed");
                    }
                }
                runtime.sleep_until(runtime.now().plus_ms(RETRY_MS)).await;
            }
        });
    }
}
