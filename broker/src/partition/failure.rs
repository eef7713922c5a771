//! A failed log dir as one shard sees it (S-36, storage.md 8.4): the first operation that fails takes every log of the dir
//! on this shard out of service in the same turn, and shard 0 is told, which tells the others. Sticky until a restart:
//! nothing is written in the dir any more; logs in other dirs are served on. Called by `replica`, `lifecycle`, `moves` and
//! `start::checkpoints`; the decision is `log_dirs`'.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use protocol::types::TopicPartition;
use storage::io::{Queue, Runtime};
use storage::names::LOCK;

use super::ask::{DirFailure, PartitionAnswer};
use super::service::PartitionService;
use crate::shard::Reply;

type Act = Rc<dyn Fn(&DirFailure)>;

/// Failed dirs, and who wants to know.
#[derive(Default)]
pub(super) struct Failures {
    failed: RefCell<BTreeSet<Arc<Path>>>,
    /// Not told yet; at most one per dir.
    news: RefCell<VecDeque<DirFailure>>,
    listener: RefCell<Option<Reply<PartitionAnswer>>>,
    /// Takes the dir's logs out of service; the owner of all partitions.
    acts: RefCell<Option<Act>>,
}

impl Failures {
    /// A log met a failure of its dir.
    pub(super) fn report(&self, failure: &DirFailure) {
        let acts = self.acts.borrow().clone();
        if let Some(acts) = acts {
            acts(failure);
        }
    }

    pub(super) fn is_failed(&self, dir: &Path) -> bool {
        self.failed.borrow().contains(dir)
    }

    /// Shard 0 asks for news: it is answered now or as soon as there is some.
    pub(super) fn listen(&self, reply: Reply<PartitionAnswer>) {
        let next = self.news.borrow_mut().pop_front();
        match next {
            Some(failure) => reply.send(PartitionAnswer::DirFailed(failure)),
            None => drop(self.listener.replace(Some(reply))),
        }
    }

    /// Notes the first failure of a dir.
    fn note(&self, failure: &DirFailure) {
        self.failed.borrow_mut().insert(failure.dir.clone());
        let listener = self.listener.take();
        match listener {
            Some(reply) => reply.send(PartitionAnswer::DirFailed(failure.clone())),
            None => self.news.borrow_mut().push_back(failure.clone()),
        }
    }

    /// Nobody will be told any more.
    pub(super) fn close(&self) {
        self.listener.take();
    }
}

impl<R: Runtime> PartitionService<R> {
    /// Acts on what logs report, as long as the service is there.
    pub(super) fn heed_failures(&self) {
        let inner = Rc::downgrade(&self.0);
        let act = move |failure: &DirFailure| {
            if let Some(inner) = inner.upgrade() {
                Self(inner).dir_failed(failure);
            }
        };
        self.0.hub.failures.acts.replace(Some(Rc::new(act)));
    }

    /// An operation in a log dir has failed, here or on another shard.
    pub(super) fn dir_failed(&self, failure: &DirFailure) {
        if self.0.hub.failures.is_failed(&failure.dir) {
            return;
        }
        let failure = &self.disavowed(failure);
        self.0.hub.failures.note(failure);
        self.0.lifecycle.table().set_offline(&failure.dir);
        self.0.lifecycle.loads.give_up(&failure.dir);
        for partition in self.all() {
            if partition.dir() != failure.dir {
                continue;
            }
            let log = partition.log();
            log.set_offline("operation in its log directory");
            // Its files are closed, and nothing is written on the way.
            self.spawn(Queue::Background, async move { log.abandon().await });
        }
        self.moves_fail(&failure.dir);
    }

    /// Takes a log dir out of service that has failed, maybe elsewhere, and tells which partitions went with it: when it is
    /// known of each, as the copy of one may be taking its place.
    pub(super) fn take_offline(&self, failure: DirFailure, reply: Reply<PartitionAnswer>) {
        self.dir_failed(&failure);
        let (service, swapping) = (self.clone(), self.swapping_with(&failure.dir));
        let answer = move || PartitionAnswer::OutOfService(service.held_in(&failure.dir));
        if swapping.is_empty() {
            reply.send(answer());
            return;
        }
        self.spawn(Queue::Control, async move {
            for partition in swapping {
                partition.swapped().await;
            }
            reply.send(answer());
        });
    }

    /// The partitions whose logs are in a log dir.
    pub(super) fn held_in(&self, dir: &Path) -> Vec<TopicPartition> {
        let held = self.all().into_iter().filter(|partition| *partition.dir() == *dir);
        held.map(|partition| partition.name.clone()).collect()
    }

    /// The next start has to check what it finds: a write that failed, or a sync, is told to nobody twice. Before anybody
    /// acts on the failure, and the process may end.
    fn disavowed(&self, failure: &DirFailure) -> DirFailure {
        let DirFailure { dir, cause } = failure.clone();
        let cause = match self.0.lifecycle.disavow(&dir) {
            Ok(()) => cause,
            Err(error) => format!(
                "{cause}; and {} cannot be emptied ({error}): remove it before the next start, which would not check the logs",
                dir.join(LOCK).display()
            )
            .into(),
        };
        DirFailure { dir, cause }
    }

    /// The same for an operation of this shard on a log dir.
    pub(crate) fn operation_failed(&self, dir: &Arc<Path>, error: &dyn std::error::Error) {
        self.dir_failed(&DirFailure { dir: dir.clone(), cause: error.to_string().into() });
    }
}
