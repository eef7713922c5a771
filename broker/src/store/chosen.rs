//! The metadata store that the configuration chose: embedded, or on ZooKeeper. Adds nothing to either; made by the
//! broker's start and by the command line, so that nothing above the store has to know which one it is.

use std::future::Future;

use bytes::Bytes;
use futures_util::future::Either;

use super::embedded::{EmbeddedFile, EmbeddedStore};
use super::zookeeper::{ZookeeperLink, ZookeeperStore};
use super::{
    CreateMode, Expected, FencedError, MetadataStore, MultiError, NodeData, Op, OpDone, Session, Stat,
    StoreError, StoreEvent,
};

/// A store that is open, on its way to the shard that will own it.
pub enum Opened {
    /// The embedded store.
    Embedded(EmbeddedFile),
    /// On ZooKeeper.
    Zookeeper(ZookeeperLink),
}

impl Opened {
    /// Makes the store on this thread. `wall_ms` is the embedded store's clock: ZooKeeper has its own.
    pub fn start(self, wall_ms: impl Fn() -> i64 + 'static) -> ChosenStore {
        match self {
            Self::Embedded(file) => ChosenStore::Embedded(file.start(wall_ms)),
            Self::Zookeeper(link) => ChosenStore::Zookeeper(link.start()),
        }
    }
}

/// A handle on the store that was chosen.
#[derive(Clone)]
pub enum ChosenStore {
    /// The embedded store.
    Embedded(EmbeddedStore),
    /// On ZooKeeper.
    Zookeeper(ZookeeperStore),
}

/// Asks whichever it is.
macro_rules! either {
    ($self:expr, $store:ident => $request:expr) => {
        match $self {
            ChosenStore::Embedded($store) => Either::Left($request),
            ChosenStore::Zookeeper($store) => Either::Right($request),
        }
    };
}

impl MetadataStore for ChosenStore {
    fn tells_null(&self) -> bool {
        match self {
            Self::Embedded(store) => store.tells_null(),
            Self::Zookeeper(store) => store.tells_null(),
        }
    }

    fn create(
        &self,
        path: &str,
        data: Option<Bytes>,
        mode: CreateMode,
    ) -> impl Future<Output = Result<(String, Stat), StoreError>> + use<> + 'static {
        either!(self, store => store.create(path, data, mode))
    }

    fn get(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<NodeData, StoreError>> + use<> + 'static {
        either!(self, store => store.get(path, watch))
    }

    fn exists(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<Option<Stat>, StoreError>> + use<> + 'static {
        either!(self, store => store.exists(path, watch))
    }

    fn children(
        &self,
        path: &str,
        watch: bool,
    ) -> impl Future<Output = Result<(Vec<String>, Stat), StoreError>> + use<> + 'static {
        either!(self, store => store.children(path, watch))
    }

    fn set(
        &self,
        path: &str,
        data: Option<Bytes>,
        expected: Expected,
    ) -> impl Future<Output = Result<Stat, StoreError>> + use<> + 'static {
        either!(self, store => store.set(path, data, expected))
    }

    fn delete(
        &self,
        path: &str,
        expected: Expected,
    ) -> impl Future<Output = Result<(), StoreError>> + use<> + 'static {
        either!(self, store => store.delete(path, expected))
    }

    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<OpDone>, MultiError>> + use<> + 'static {
        either!(self, store => store.multi(ops))
    }

    fn fenced(
        &self,
        epoch_version: i32,
        ops: Vec<Op>,
    ) -> impl Future<Output = Vec<Result<OpDone, FencedError>>> + use<> + 'static {
        either!(self, store => store.fenced(epoch_version, ops))
    }

    async fn next_event(&self) -> Option<StoreEvent> {
        match self {
            Self::Embedded(store) => store.next_event().await,
            Self::Zookeeper(store) => store.next_event().await,
        }
    }

    fn session(&self) -> Session {
        match self {
            Self::Embedded(store) => store.session(),
            Self::Zookeeper(store) => store.session(),
        }
    }

    fn fork(&self) -> Self {
        match self {
            Self::Embedded(store) => Self::Embedded(store.fork()),
            Self::Zookeeper(store) => Self::Zookeeper(store.fork()),
        }
    }

    fn reopen(&self) -> impl Future<Output = Result<Session, StoreError>> + use<> + 'static {
        either!(self, store => store.reopen())
    }

    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + use<> + 'static {
        either!(self, store => store.close())
    }
}
