//! Failing log dirs: each shard reports the first failure of a dir that it meets, shard 0 decides ([`machine`]), and every
//! shard takes the dir out of service. This is the driver on shard 0; a shard's side is `failure`, and what all see of the
//! dirs the [`table`]. Knows no controller: whoever starts it is told what went out of service (storage.md 8.4).

pub mod machine;
pub mod table;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use storage::io::Queue;
use storage::log_dir::LogDir;

use self::machine::{Action, Halt, LogDirs};
use super::ask::{DirFailure, OutOfService, PartitionAnswer, PartitionAsk};
use super::service::PartitionService;
use crate::shard::{NEVER, ShardId, ShardRuntime, Shards};

/// Watches the log dirs until it is dropped. Started before any log is opened, dropped before a clean stop: a log that
/// fails while it is closed costs its dir the mark of a clean stop, not the stop (storage.md 8.3).
pub struct DirWatch<R: ShardRuntime> {
    _listeners: Vec<R::Task>,
}

/// What the listeners share.
struct Watch<R: ShardRuntime> {
    owners: Shards<R, PartitionService<R>>,
    shards: u16,
    decides: RefCell<LogDirs>,
    dirs: BTreeMap<Arc<Path>, Rc<LogDir<R>>>,
    halt: Box<dyn Fn(&Halt)>,
    tell: Box<dyn Fn(OutOfService)>,
}

impl<R: ShardRuntime> DirWatch<R> {
    /// Starts to listen to every shard. `halt` ends the process; where it cannot, in simulations, it returns. `tell` hears of
    /// each dir that is out of service on all shards.
    pub fn start(
        runtime: &R,
        owners: Shards<R, PartitionService<R>>,
        dirs: BTreeMap<Arc<Path>, Rc<LogDir<R>>>,
        metadata: Option<Arc<Path>>,
        halt: impl Fn(&Halt) + 'static,
        tell: impl Fn(OutOfService) + 'static,
    ) -> Self {
        let decides = RefCell::new(LogDirs::new(dirs.keys().cloned(), metadata));
        let shards = runtime.shard_count();
        let watch =
            Rc::new(Watch { owners, shards, decides, dirs, halt: Box::new(halt), tell: Box::new(tell) });
        let listen = |shard| runtime.spawn(Queue::Control, watch.clone().listen(ShardId::new(shard)));
        Self { _listeners: (0..shards).map(listen).collect() }
    }
}

impl<R: ShardRuntime> Watch<R> {
    async fn listen(self: Rc<Self>, shard: ShardId) {
        // Ends with the shard, which then has no dir in service.
        while let Ok(answer) = self.owners.ask(shard, NEVER, PartitionAsk::DirFailure).await {
            if let PartitionAnswer::DirFailed(failure) = answer {
                self.failed(failure).await;
            }
        }
    }

    async fn failed(&self, failure: DirFailure) {
        let mut actions = Vec::new();
        self.decides.borrow_mut().failed(failure, &mut actions);
        for action in actions {
            match action {
                Action::Halt(why) => (self.halt)(&why),
                Action::TakeOffline(failure) => self.take_offline(failure).await,
            }
        }
    }

    async fn take_offline(&self, failure: DirFailure) {
        tracing::error!(dir = %failure.dir.display(), cause = &*failure.cause, "log directory is offline until a restart");
        if let Some(dir) = self.dirs.get(&failure.dir) {
            dir.set_offline();
        }
        let tell =
            |shard| self.owners.ask(ShardId::new(shard), NEVER, PartitionAsk::DirOffline(failure.clone()));
        let mut partitions = Vec::new();
        for answer in join_all((0..self.shards).map(tell)).await {
            // A shard that has ended serves nothing.
            if let Ok(PartitionAnswer::OutOfService(of_shard)) = answer {
                partitions.extend(of_shard);
            }
        }
        (self.tell)(OutOfService { failure, partitions });
    }
}
