//! Threads beside a shard that wait for disks: whatever blocks is done there, in [`super::lanes`]. A lane is one place, a log
//! dir or a device, and one kind of work, so that a slow disk holds up only what is on it, and long work (the removal of a
//! log) no short one (the read of another). Threads are started when they are needed, and end when they are not any more for a
//! while, or with the shard; the process has no more than [`Limits`] says. Knows no operation; called by
//! [`super::GlommioRuntime`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures_channel::{mpsc as wakeful, oneshot};
use futures_util::StreamExt;

use protocol::types::MonoTime;

use super::lanes::{Key, Lanes, Next};
use super::monotonic_nanos;
use crate::names::PartitionDirName;

/// What bounds the threads.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// So many there are in the process at most.
    pub threads_max: usize,
    /// From so many on a lane gets no second one.
    pub more_threads_max: usize,
    /// After so long a thread without work ends.
    pub idle_ms_max: u64,
}

impl Limits {
    /// Each lane of 16 shards and 6 log dirs can have a thread, whoever syncs much. A burst of syncs comes again before its
    /// threads have gone, or not for long.
    pub(super) const DEFAULT: Self = Self { threads_max: 512, more_threads_max: 256, idle_ms_max: 10_000 };
}

/// Threads that there are.
static THREADS: Counted = Counted(AtomicUsize::new(0));

/// Counts what there may be only so many of.
struct Counted(AtomicUsize);

impl Counted {
    /// One more; `None` where there are so many already.
    fn take(&'static self, max: usize) -> Option<Counting> {
        let more = |count: usize| (count < max).then(|| count.saturating_add(1));
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Counting(self))
    }
}

/// Counts as one until it is dropped.
struct Counting(&'static Counted);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

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

    /// At most so many of one shard at a time in one place.
    ///
    /// Syncs of many files at once are what the kernel makes one commit of its journal of, and one flush of the disk's
    /// cache: in strict mode each log waits for its own, and hundreds do at a time. One call for all of them would not do.
    /// `syncfs` waits for whatever others have written to the file system, and its error is of no file: all logs of the dir
    /// would have to be taken for lost. One thread that syncs file after file pays for each flush anew.
    pub(super) const fn threads_max(self) -> usize {
        match self {
            Self::Sync => 32,
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

/// Which thread has done which job.
struct Done {
    thread: u64,
    job: u64,
    outcome: Outcome,
}

/// A thread that takes jobs; it ends when nobody can give it one.
type Thread = mpsc::Sender<Job>;

/// What a thread asks of the system for itself.
#[derive(Clone, Copy)]
pub(super) struct Placing {
    /// Leaves the shard's core.
    pub unbind: fn(),
    /// Lets the shard go first where both want the same core.
    pub give_way: fn(),
}

/// See the head of this file.
pub(super) struct Workers {
    lanes: RefCell<Lanes<Thread, Job>>,
    /// Who waits for a job.
    waiting: RefCell<BTreeMap<u64, oneshot::Sender<Outcome>>>,
    next: Cell<u64>,
    done: wakeful::UnboundedSender<Done>,
    /// One task of this shard takes all results, so that threads never hold wakers of tasks that come and go
    /// (glommio.md 2).
    receiver: RefCell<Option<glommio::Task<()>>>,
    /// Work that nobody waits for and no thread could be had for: another task has the executor's own threads do it.
    left: wakeful::UnboundedSender<Job>,
    leftovers: RefCell<Option<glommio::Task<()>>>,
    /// Ends idle threads, as long as there are some.
    ender: RefCell<Option<glommio::Task<()>>>,
    is_ending: Cell<bool>,
    limits: Limits,
    placing: Placing,
    /// It was said that lanes are shared.
    is_told: Cell<bool>,
}

impl Workers {
    /// No thread yet; of the executor that polls the caller.
    pub(super) fn new(placing: Placing, limits: Limits) -> Rc<Self> {
        let (done, mut results) = wakeful::unbounded::<Done>();
        let (left, mut leftovers) = wakeful::unbounded::<Job>();
        let workers = Rc::new(Self {
            lanes: RefCell::new(Lanes::new()),
            waiting: RefCell::default(),
            next: Cell::new(0),
            done,
            receiver: RefCell::default(),
            left,
            leftovers: RefCell::default(),
            ender: RefCell::default(),
            is_ending: Cell::new(false),
            limits,
            placing,
            is_told: Cell::new(false),
        });
        let weak = Rc::downgrade(&workers);
        let task = glommio::spawn_local(async move {
            while let Some(done) = results.next().await {
                let Some(workers) = weak.upgrade() else { return };
                workers.complete(done);
            }
        });
        *workers.receiver.borrow_mut() = Some(task);
        let task = glommio::spawn_local(async move {
            while let Some(job) = leftovers.next().await {
                drop(glommio::executor().spawn_blocking(job.work).await);
            }
        });
        *workers.leftovers.borrow_mut() = Some(task);
        workers
    }

    fn complete(self: &Rc<Self>, Done { thread, job, outcome }: Done) {
        let next = self.lanes.borrow_mut().done(thread, now());
        match next {
            Some((thread, job)) => send(&thread, job),
            None => self.end_idle_later(),
        }
        let waiting = self.waiting.borrow_mut().remove(&job);
        if let Some(waiting) = waiting {
            // Nobody may be waiting any more.
            let _ = waiting.send(outcome);
        }
    }

    /// Sees to it that threads without work end.
    fn end_idle_later(self: &Rc<Self>) {
        if self.is_ending.replace(true) {
            return;
        }
        let weak = Rc::downgrade(self);
        let idle_ms_max = self.limits.idle_ms_max;
        let task = glommio::spawn_local(async move {
            loop {
                // Some stay twice as long.
                glommio::timer::sleep(Duration::from_millis(idle_ms_max)).await;
                let Some(workers) = weak.upgrade() else { return };
                let before = now().get().saturating_sub(idle_ms_max.saturating_mul(1_000_000));
                if workers.lanes.borrow_mut().end_idle(MonoTime::new(before)).is_none() {
                    workers.is_ending.set(false);
                    return;
                }
            }
        });
        // The one before it has ended.
        *self.ender.borrow_mut() = Some(task);
    }

    /// Has a thread do something. It must not panic: its caller would wait for ever.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        place: Place,
        kind: Kind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        let job = self.job(work);
        let id = job.id;
        self.waiting.borrow_mut().insert(id, sender);
        let outcome = match self.give((place, kind), job) {
            Ok(()) => receiver.await,
            Err(job) => {
                self.waiting.borrow_mut().remove(&id);
                Ok(glommio::executor().spawn_blocking(job.work).await)
            }
        };
        match outcome.map(|outcome| outcome.downcast::<T>()) {
            Ok(Ok(outcome)) => *outcome,
            Ok(Err(_)) => unreachable!("a job answers what it was made to answer"),
            // The shard ends, and nobody goes on.
            Err(oneshot::Canceled) => std::future::pending().await,
        }
    }

    /// Has a thread do something that nobody waits for.
    pub(super) fn post(&self, place: Place, kind: Kind, work: impl FnOnce() + Send + 'static) {
        if let Err(job) = self.give((place, kind), self.job(work))
            && let Err(job) = self.left.unbounded_send(job)
        {
            // The shard ends, and its work is done.
            (job.into_inner().work)();
        }
    }

    fn job<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Job {
        Job { id: self.next_id(), work: Box::new(move || -> Outcome { Box::new(work()) }) }
    }

    /// Sees to it that a job is done in its lane, or in another one of the same place.
    ///
    /// # Errors
    /// No thread of that place is there, and none can be started.
    fn give(&self, key: Key, job: Job) -> Result<(), Job> {
        let taken = self.lanes.borrow_mut().take(&key, job);
        let job = match taken {
            Ok(Next::Start(job)) => match self.start(&key, job) {
                Ok(()) => return Ok(()),
                Err(job) => job,
            },
            Ok(next) => {
                give_next(next);
                return Ok(());
            }
            Err(job) => {
                self.tell(&key, "there are too many lanes");
                job
            }
        };
        let shared = self.lanes.borrow_mut().share(&key.0, job);
        shared.map(give_next)
    }

    /// Starts a thread for a job, which waits for another of its lane where that fails.
    ///
    /// # Errors
    /// There is no other.
    fn start(&self, key: &Key, job: Job) -> Result<(), Job> {
        let has_thread = self.lanes.borrow().has_thread(key);
        let Limits { threads_max, more_threads_max, .. } = self.limits;
        match self.spawn(key.1, if has_thread { more_threads_max } else { threads_max }) {
            Ok((id, thread)) => {
                send(&thread, job);
                self.lanes.borrow_mut().started(key, id, thread);
                Ok(())
            }
            Err(error) => {
                let waits = self.lanes.borrow_mut().not_started(key, job);
                if waits.is_err() {
                    self.tell(key, &format!("no thread can be started: {error}"));
                }
                waits
            }
        }
    }

    fn spawn(&self, kind: Kind, threads_max: usize) -> io::Result<(u64, Thread)> {
        let counting = THREADS.take(threads_max);
        let counting =
            counting.ok_or_else(|| io::Error::other("there are as many threads as there may be"))?;
        let id = self.next_id();
        let (jobs, receiver) = mpsc::channel::<Job>();
        let (done, placing) = (self.done.clone(), self.placing);
        let body = move || {
            let _counting = counting;
            if !kind.stays_on_its_core() {
                (placing.unbind)();
            }
            if kind.gives_way() {
                (placing.give_way)();
            }
            while let Ok(Job { id: job, work }) = receiver.recv() {
                let done_job = Done { thread: id, job, outcome: work() };
                if done.unbounded_send(done_job).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name(kind.name().to_owned()).spawn(body)?;
        Ok((id, jobs))
    }

    /// Says once that work is done by threads that are not its own, where it may wait for other work, or another disk.
    fn tell(&self, (place, kind): &Key, why: &str) {
        if !self.is_told.replace(true) {
            tracing::warn!(
                ?place,
                ?kind,
                why,
                "what waits for a disk shares threads, and may wait for something else"
            );
        }
    }

    fn next_id(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id.saturating_add(1));
        id
    }
}

fn now() -> MonoTime {
    MonoTime::new(monotonic_nanos())
}

fn give_next(next: Next<Thread, Job>) {
    match next {
        Next::Give(thread, job) => send(&thread, job),
        Next::Start(_) => unreachable!("whoever shares a lane starts no thread"),
        Next::Wait => {}
    }
}

fn send(thread: &Thread, job: Job) {
    // A thread lives as long as somebody can send it something.
    let _ = thread.send(job);
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

    #[test]
    fn no_more_are_counted_than_there_may_be() {
        static TEST: Counted = Counted(AtomicUsize::new(0));
        let (first, second) = (TEST.take(2), TEST.take(2));
        assert!(first.is_some() && second.is_some() && TEST.take(2).is_none());
        let third = TEST.take(3);
        assert!(third.is_some() && TEST.take(3).is_none());
        drop(first);
        assert!(TEST.take(2).is_none() && TEST.take(3).is_some());
    }
}
