//! The metadata store of tests and simulations: the same tree over a [`SimDisk`] that outlives its process, can hold
//! writes back, and can stop taking them at a chosen one, as a crash would.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;

use super::StoreError;
use super::local::{Committer, Job, LocalStore, Shared};
use super::tree::Tree;

#[derive(Default)]
struct Disk {
    records: RefCell<BTreeMap<String, Bytes>>,
    zxid: Cell<i64>,
    commits: Cell<u64>,
    writes_left: Cell<Option<u64>>,
    held: RefCell<Option<VecDeque<Job>>>,
    lost: RefCell<Vec<Job>>,
}

/// What survives a simulated process. Clones share it.
#[derive(Clone, Default)]
pub struct SimDisk(Rc<Disk>);

/// A store on a simulated disk.
pub type SimStore = LocalStore<SimDisk>;

impl Committer for SimDisk {
    fn submit(&self, job: Job) {
        let held = &mut *self.0.held.borrow_mut();
        match held {
            Some(queue) => queue.push_back(job),
            None => self.write(job),
        }
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a process on the disk: its tree without any ephemeral node, and a first session.
    ///
    /// # Panics
    /// When the disk holds what the tree cannot read.
    pub fn start(&self, wall_ms: impl Fn() -> i64 + 'static) -> SimStore {
        self.0.writes_left.set(None);
        self.0.lost.borrow_mut().clear();
        let records = self.0.records.borrow().clone();
        let tree = match Tree::load(self.0.zxid.get(), records) {
            Ok(tree) => tree,
            Err(error) => panic!("simulated disk: {error}"),
        };
        LocalStore::first(&Shared::new(tree, self.clone(), Box::new(wall_ms)))
    }

    /// Number of jobs with changes that were written so far.
    pub fn commits(&self) -> u64 {
        self.0.commits.get()
    }

    /// The process dies after so many more writes: later ones are lost, and their callers never hear of them.
    pub fn crash_after(&self, writes: u64) {
        self.0.writes_left.set(Some(writes));
    }

    /// Whether a write was lost to the crash that was asked for.
    pub fn has_crashed(&self) -> bool {
        self.0.writes_left.get() == Some(0) && !self.0.lost.borrow().is_empty()
    }

    /// Keeps back what is submitted, as a slow disk does.
    pub fn hold(&self) {
        self.0.held.borrow_mut().get_or_insert_default();
    }

    /// Writes what was held back and stops holding; answers how many jobs that were.
    pub fn release(&self) -> usize {
        let jobs = self.0.held.borrow_mut().take().unwrap_or_default();
        let count = jobs.len();
        jobs.into_iter().for_each(|job| self.write(job));
        count
    }

    fn write(&self, job: Job) {
        let Some(changes) = &job.changes else {
            if self.has_crashed() {
                self.0.lost.borrow_mut().push(job)
            } else {
                job.finish()
            }
            return;
        };
        match self.0.writes_left.get() {
            Some(0) => return self.0.lost.borrow_mut().push(job),
            Some(left) => self.0.writes_left.set(Some(left - 1)),
            None => {}
        }
        for (path, record) in &changes.records {
            match record {
                Some(record) => self.0.records.borrow_mut().insert(path.clone(), record.clone()),
                None => self.0.records.borrow_mut().remove(path),
            };
        }
        self.0.zxid.set(changes.zxid);
        self.0.commits.set(self.0.commits.get() + 1);
        job.finish();
    }
}

impl SimStore {
    /// Another session on the same tree, as another broker has.
    #[must_use]
    pub fn connect(&self) -> Self {
        self.connect_another()
    }

    /// Expires the session of this handle, as an ensemble does with a client it has not heard from.
    pub fn expire(&self) -> impl Future<Output = Result<(), StoreError>> + 'static {
        self.end_session(true)
    }
}
