//! Threads beside a shard that wait for disks: whatever blocks is done there, in lanes. A lane is one place, a log dir or a
//! device, and one kind of work, so that a slow disk holds up only what is on it, and long work (the removal of a log) no
//! short one (the read of another). Threads are started when they are needed, stay, and end with the shard. Knows no
//! operation; called by [`super::GlommioRuntime`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc;

use futures_channel::{mpsc as wakeful, oneshot};
use futures_util::StreamExt;

use crate::names::PartitionDirName;

/// More lanes than a broker with a dozen log dirs has: what comes beyond them goes to glommio's own pool.
const LANES_MAX: usize = 128;

/// So much nicer than its shard is a thread that gives way: it gets a tenth of what a shard gets that wants the same core.
const GIVES_WAY_NICE: libc::c_int = 10;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Makes something durable.
    Sync,
    /// Closes a descriptor: the last one of an unlinked file frees its blocks, which takes milliseconds.
    Close,
    /// Opens, lists, renames, cuts.
    Names,
    /// Removes what may be large.
    Removal,
    /// Asks for pages.
    Ahead,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Sync => "odradek-sync",
            Self::Close => "odradek-close",
            Self::Names => "odradek-names",
            Self::Removal => "odradek-remove",
            Self::Ahead => "odradek-ahead",
        }
    }

    /// At most so many of one shard at a time in one place; a disk gains nothing from more syncs (glommio.md 5).
    const fn threads_max(self) -> usize {
        match self {
            Self::Sync => 8,
            Self::Names | Self::Ahead => 2,
            Self::Close | Self::Removal => 1,
        }
    }

    /// A sync writes what its shard has written, and goes on where the shard is.
    const fn stays_on_its_core(self) -> bool {
        matches!(self, Self::Sync)
    }

    /// Long work that nobody at the tail of a log waits for. Where it shares a core with a shard, the shard goes first.
    const fn gives_way(self) -> bool {
        matches!(self, Self::Close | Self::Removal | Self::Ahead)
    }
}

/// Whose work it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// What is in a directory: a log dir, for everything in its partitions.
    Dir(Box<Path>),
    /// What is on a device.
    Device(u64),
}

impl Place {
    /// The place of a file.
    pub(super) fn of_file(path: &Path) -> Self {
        Self::of_dir(path.parent().unwrap_or(path))
    }

    /// The place of a directory: that of a partition is in its log dir.
    pub(super) fn of_dir(path: &Path) -> Self {
        let dir = if is_partition(path) { path.parent().unwrap_or(path) } else { path };
        Self::Dir(dir.into())
    }

    /// The place of what may be either.
    pub(super) fn of_entry(path: &Path) -> Self {
        if is_partition(path) { Self::of_dir(path) } else { Self::of_file(path) }
    }
}

fn is_partition(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| PartitionDirName::parse(name).is_ok())
}

type Outcome = Box<dyn Any + Send>;

struct Job {
    id: u64,
    work: Box<dyn FnOnce() -> Outcome + Send>,
}

type Done = (u64, Outcome);

/// Who waits for a job, and of how many its thread is one.
struct Waiting {
    busy: Rc<Cell<usize>>,
    sender: oneshot::Sender<Outcome>,
}

/// A thread that takes work.
#[derive(Clone)]
pub(super) struct Worker {
    jobs: mpsc::Sender<Job>,
    /// Jobs that were given to it and are not done.
    busy: Rc<Cell<usize>>,
}

/// See the head of this file.
pub(super) struct Workers {
    lanes: RefCell<BTreeMap<(Place, Kind), Vec<Worker>>>,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    next: Cell<u64>,
    done: wakeful::UnboundedSender<Done>,
    /// One task of this shard takes all results, so that threads never hold wakers of tasks that come and go
    /// (glommio.md 2).
    receiver: RefCell<Option<glommio::Task<()>>>,
    /// Lets the thread that calls it leave the shard's core.
    unbind: fn(),
}

impl Workers {
    /// No thread yet; of the executor that polls the caller.
    pub(super) fn new(unbind: fn()) -> Rc<Self> {
        let (done, mut results) = wakeful::unbounded::<Done>();
        let workers = Rc::new(Self {
            lanes: RefCell::default(),
            waiting: RefCell::default(),
            next: Cell::new(0),
            done,
            receiver: RefCell::default(),
            unbind,
        });
        let weak = Rc::downgrade(&workers);
        let task = glommio::spawn_local(async move {
            while let Some((id, outcome)) = results.next().await {
                let Some(workers) = weak.upgrade() else { return };
                workers.complete(id, outcome);
            }
        });
        *workers.receiver.borrow_mut() = Some(task);
        workers
    }

    fn complete(&self, id: u64, outcome: Outcome) {
        let Some(Waiting { busy, sender }) = self.waiting.borrow_mut().remove(&id) else { return };
        busy.set(busy.get().saturating_sub(1));
        // Nobody may be waiting any more.
        let _ = sender.send(outcome);
    }

    /// The thread of a lane with the fewest jobs; a new one while all have some. `None` where none can be started.
    pub(super) fn worker(&self, place: Place, kind: Kind) -> Option<Worker> {
        let mut lanes = self.lanes.borrow_mut();
        let key = (place, kind);
        if lanes.len() >= LANES_MAX && !lanes.contains_key(&key) {
            return None;
        }
        let lane = lanes.entry(key).or_default();
        let least = lane.iter().min_by_key(|worker| worker.busy.get()).cloned();
        let takes_more = |worker: &Worker| worker.busy.get() == 0 || lane.len() >= kind.threads_max();
        if let Some(worker) = least.clone().filter(takes_more) {
            return Some(worker);
        }
        match self.start(kind) {
            Ok(worker) => {
                lane.push(worker.clone());
                Some(worker)
            }
            // Fewer will do.
            Err(_) => least,
        }
    }

    fn start(&self, kind: Kind) -> std::io::Result<Worker> {
        let (jobs, receiver) = mpsc::channel::<Job>();
        let (done, unbind) = (self.done.clone(), self.unbind);
        let body = move || {
            if !kind.stays_on_its_core() {
                unbind();
            }
            if kind.gives_way() {
                // SAFETY: no memory is involved; on Linux it is the calling thread that becomes nicer. A system that refuses
                // leaves it as it is.
                unsafe { libc::nice(GIVES_WAY_NICE) };
            }
            while let Ok(Job { id, work }) = receiver.recv() {
                if done.unbounded_send((id, work())).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name(kind.name().to_owned()).spawn(body)?;
        Ok(Worker { jobs, busy: Rc::default() })
    }

    /// Has a thread do something. It must not panic: its caller would wait for ever.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        on: Worker,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        let id = self.next_id();
        on.busy.set(on.busy.get().saturating_add(1));
        self.waiting.borrow_mut().insert(id, Waiting { busy: on.busy, sender });
        post(&on.jobs, id, work);
        match receiver.await.map(|outcome| outcome.downcast::<T>()) {
            Ok(Ok(outcome)) => *outcome,
            Ok(Err(_)) => unreachable!("a job answers what it was made to answer"),
            // The shard ends, and nobody goes on.
            Err(oneshot::Canceled) => std::future::pending().await,
        }
    }

    /// Has a thread do something that nobody waits for.
    pub(super) fn post(&self, on: &Worker, work: impl FnOnce() + Send + 'static) {
        post(&on.jobs, self.next_id(), work);
    }

    fn next_id(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id.saturating_add(1));
        id
    }
}

fn post<T: Send + 'static>(jobs: &mpsc::Sender<Job>, id: u64, work: impl FnOnce() -> T + Send + 'static) {
    // A thread lives as long as somebody can send it something.
    let _ = jobs.send(Job { id, work: Box::new(move || -> Outcome { Box::new(work()) }) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_in_the_partitions_of_a_log_dir_is_in_one_place() {
        let of = |dir: &str| Place::Dir(Path::new(dir).into());
        for file in ["/d/logs/t-0/00000000000000000000.log", "/d/logs/a-b-17/x", "/d/logs/meta.properties"] {
            assert_eq!(Place::of_file(Path::new(file)), of("/d/logs"), "{file}");
        }
        let doomed = "/d/logs/t-0.0123456789abcdef0123456789abcdef-delete";
        for dir in ["/d/logs", "/d/logs/t-0", doomed] {
            assert_eq!(Place::of_dir(Path::new(dir)), of("/d/logs"), "{dir}");
        }
        for entry in ["/d/logs/t-0", "/d/logs/t-0/x.deleted", "/d/logs/x", doomed] {
            assert_eq!(Place::of_entry(Path::new(entry)), of("/d/logs"), "{entry}");
        }
        assert_eq!(Place::of_dir(Path::new("/")), of("/"));
    }
}
