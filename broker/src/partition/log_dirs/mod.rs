//! Failing log dirs: each shard reports the first failure of a dir that it meets, shard 0 decides ([`machine`]), and every
//! shard takes the dir out of service. This is the driver on shard 0; a shard's side is `failure`. Knows no partition and
//! no controller: with a second log dir the latter has to be told (storage.md 8.4), with one the process ends first.

pub mod machine;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join_all;
use storage::io::Queue;
use storage::log_dir::LogDir;

use self::machine::{Action, Halt, LogDirs};
use super::ask::{DirFailure, PartitionAnswer, PartitionAsk};
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
}

impl<R: ShardRuntime> DirWatch<R> {
    /// Starts to listen to every shard. `halt` ends the process; where it cannot, in simulations, it returns.
    pub fn start(
        runtime: &R,
        owners: Shards<R, PartitionService<R>>,
        dirs: BTreeMap<Arc<Path>, Rc<LogDir<R>>>,
        metadata: Option<Arc<Path>>,
        halt: impl Fn(&Halt) + 'static,
    ) -> Self {
        let decides = RefCell::new(LogDirs::new(dirs.keys().cloned(), metadata));
        let shards = runtime.shard_count();
        let watch = Rc::new(Watch { owners, shards, decides, dirs, halt: Box::new(halt) });
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
        // A shard that has ended serves nothing.
        let _ = join_all((0..self.shards).map(tell)).await;
    }
}
