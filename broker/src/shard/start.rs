//! Starts the shards and ends them together: limits, the probe for io_uring, one executor per core, the ticker, and
//! the phases of a stop. Called by `lib.rs`, which says what a shard does. Knows nothing of what runs on it.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use protocol::types::MonoTime;
use storage::io::{Queue, Runtime};

use super::glommio::GlommioShard;
use super::pulse::Pulses;
use super::stop::{Stopper, Stopping};
use super::{ShardId, ShardRuntime};

/// Never below 10 ms: a shorter timer lets glommio park with tasks to run (glommio.md b1). Nothing relies on it for
/// latency, since whoever has more to do awaits the next turn.
const PREEMPT_TIMER: Duration = Duration::from_millis(50);

/// Registered with the kernel three times per shard. Only direct I/O uses it, and we do none.
const IO_MEMORY_BYTES: usize = 1 << 20;

/// Below this glommio refuses to start.
const MEMLOCK_BYTES_MIN: u64 = 512 << 10;

/// Logs that one shard opens or closes at the same time.
pub const CONCURRENT_LOADS: usize = 16;

/// The kernel finds the polls of idle connections in up to 256 buckets, as many as the ring's depth makes, and glommio has it
/// look for one at each park: with 512 there are 32, and beside 10,000 connections a quarter of the shard's time went into it.
const RING_DEPTH: usize = 4096;

/// glommio's own pool: has work where no thread can be started for a lane (`storage::io::glommio`).
const BLOCKING_THREADS: usize = 2;

/// The ticker of an active shard: the bound on a park with tasks to run (glommio.md b1).
const TICK_ACTIVE_MS: i64 = 20;

/// The ticker of an idle shard.
const TICK_IDLE_MS: i64 = 1000;

/// A tick that is later than this is counted.
const TICK_LATE_NANOS: u64 = 20_000_000;

/// A shard on which no more tasks ran between two ticks is idle.
const IDLE_TASKS: u64 = 4;

/// Shards that share a core wait for each other a time slice long, which is about 2.5 ms on Linux. So many shards still
/// come back within the tick of an active one.
const SHARDS_PER_CORE_MAX: usize = 8;

/// Which cores the shards run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// One shard for each core that this process may use.
    Auto,
    /// So many shards; they share cores when there are fewer.
    Count(u16),
    /// One shard on each of these.
    List(Vec<usize>),
}

/// How many shards there are, and where each runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// For each shard its core; none when the shards share the cores.
    pinned: Vec<Option<usize>>,
}

impl Layout {
    /// Lays the shards on the cores that this process may use.
    ///
    /// # Errors
    /// When a listed core is not among them, or there would be no shard, or too many.
    pub fn new<E>(cores: &Cores) -> Result<Self, StartError<E>> {
        let allowed = allowed_cores().map_err(StartError::Affinity)?;
        let pinned = match cores {
            Cores::Auto => allowed.iter().copied().map(Some).collect(),
            Cores::Count(count) if usize::from(*count) <= allowed.len() => {
                allowed.iter().copied().take(usize::from(*count)).map(Some).collect()
            }
            Cores::Count(count) => {
                let shards_max = allowed.len().saturating_mul(SHARDS_PER_CORE_MAX);
                if usize::from(*count) > shards_max {
                    return Err(StartError::TooManyShards {
                        count: *count,
                        cores: allowed.len(),
                        shards_max,
                    });
                }
                vec![None; usize::from(*count)]
            }
            Cores::List(list) => {
                if let Some(&core) = list.iter().find(|core| !allowed.contains(core)) {
                    return Err(StartError::Core { core });
                }
                list.iter().copied().map(Some).collect::<Vec<_>>()
            }
        };
        if pinned.is_empty() || u16::try_from(pinned.len()).is_err() {
            return Err(StartError::ShardCount { count: pinned.len() });
        }
        Ok(Self { pinned })
    }

    /// How many shards there are.
    pub fn shards(&self) -> u16 {
        u16::try_from(self.pinned.len()).unwrap_or(u16::MAX)
    }

    /// Whether there are more shards than cores.
    pub fn shares_cores(&self) -> bool {
        self.pinned.iter().any(Option::is_none)
    }
}

/// How the executors are made.
#[derive(Clone, Debug, Default)]
pub struct StartOptions {
    /// How long a shard polls before it parks: halves the latency between shards for 1.2 to 1.3 times the CPU at low
    /// load. Off by default.
    pub spin_before_park: Duration,
    /// Where the shards leave their signs of life.
    pub pulses: Pulses,
}

/// Why the shards did not start, or how they ended. All but `Shard` are faults of the environment: exit code 78.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    /// The kernel or a sandbox forbids io_uring.
    #[error(
        "io_uring is not available ({0}): it needs Linux 5.8 or newer, kernel.io_uring_disabled=0, and a sandbox \
         (seccomp profile of the container) that allows it"
    )]
    IoUring(#[source] io::Error),
    /// The limit on locked memory is too low.
    #[error(
        "the limit on locked memory (ulimit -l) is {bytes} bytes; io_uring needs {MEMLOCK_BYTES_MIN} at least"
    )]
    Memlock {
        /// The hard limit.
        bytes: u64,
    },
    /// Others of the same user have what the limit on locked memory allows.
    #[error(
        "the limit on locked memory (ulimit -l) is {bytes} bytes, and what this user's processes hold of it leaves no \
         room for io_uring"
    )]
    MemlockHeld {
        /// The hard limit.
        bytes: u64,
    },
    /// The limit on open files is too low.
    #[error(
        "{shards} shards need {needed} descriptors at least; the limit on open files (ulimit -n) is {limit}"
    )]
    Descriptors {
        /// How many shards there are to be.
        shards: u16,
        /// What they need.
        needed: u64,
        /// The hard limit.
        limit: u64,
    },
    /// No more threads can be started.
    #[error(
        "only {started} of the {needed} threads of {shards} shards can be started ({source}): ulimit -u, ulimit -v and \
         pids.max of the control group bound them"
    )]
    Threads {
        /// How many shards there are to be.
        shards: u16,
        /// What they need.
        needed: usize,
        /// How many there could be.
        started: usize,
        /// What the operating system says.
        source: io::Error,
    },
    /// More shards than the cores carry.
    #[error(
        "cores asks for {count} shards: this process may use {cores} cores, which carry {shards_max}, since each of \
         more would wait longer for its turn than its timers allow"
    )]
    TooManyShards {
        /// How many were asked for.
        count: u16,
        /// Cores that may be used.
        cores: usize,
        /// What they carry.
        shards_max: usize,
    },
    /// The kernel does not tell which cores may be used.
    #[error("which cores may be used is unknown: {0}")]
    Affinity(#[source] io::Error),
    /// A listed core does not exist or may not be used.
    #[error("core {core} does not exist, or this process may not run on it")]
    Core {
        /// Its number.
        core: usize,
    },
    /// No shard, or too many.
    #[error("{count} shards cannot be started")]
    ShardCount {
        /// How many were asked for.
        count: usize,
    },
    /// An executor could not be made or has died.
    #[error("shard {shard} did not start: {reason}")]
    Executor {
        /// Which.
        shard: u16,
        /// What glommio says.
        reason: glommio::GlommioError<()>,
    },
    /// What ran on a shard failed.
    #[error(transparent)]
    Shard(E),
}

/// Raises the limits on descriptors and locked memory as far as they go, and finds out whether io_uring may be used.
/// To be called once, before anything else: without io_uring glommio panics, with a wrong message. Returns how many
/// descriptors the process may have.
///
/// # Errors
/// What is missing.
pub fn prepare<E>() -> Result<u64, StartError<E>> {
    let descriptors = raise_limit(libc::RLIMIT_NOFILE);
    let memlock = raise_limit(libc::RLIMIT_MEMLOCK);
    if memlock < MEMLOCK_BYTES_MIN {
        return Err(StartError::Memlock { bytes: memlock });
    }
    match io_uring::IoUring::new(8) {
        Ok(_) => Ok(descriptors),
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            Err(StartError::MemlockHeld { bytes: memlock })
        }
        Err(error) => Err(StartError::IoUring(error)),
    }
}

/// Descriptors that a process with so many shards needs, each with so many listeners, before it serves anybody.
pub fn descriptors_needed(shards: u16, listeners: usize) -> u64 {
    // Standard streams, lock, metadata store, signals, and a few connections.
    const OWN: usize = 32;
    // Three rings and their waker, and per log that is being opened its file and one of its directory.
    const PER_SHARD: usize = 4 + 2 * CONCURRENT_LOADS;
    let per_shard = PER_SHARD.saturating_add(listeners);
    u64::try_from(per_shard.saturating_mul(usize::from(shards)).saturating_add(OWN)).unwrap_or(u64::MAX)
}

/// Finds out whether all threads can be started that so many shards need: glommio panics when one of its own cannot. They
/// live for a moment and touch memory, so that the limit on address space is met here too.
///
/// # Errors
/// How many could be started.
pub fn check_threads<E>(shards: u16) -> Result<(), StartError<E>> {
    // Signals, metadata writer, syncs, metrics; an executor and its pool. Other lanes do without.
    const OWN: usize = 6;
    let needed = (1 + BLOCKING_THREADS).saturating_mul(usize::from(shards)).saturating_add(OWN);
    let mut probes = Vec::with_capacity(needed);
    let mut failed = None;
    for started in 0..needed {
        let (hold, held) = mpsc::channel::<()>();
        let probe = move || {
            let touched = std::hint::black_box(vec![1_u8; 4096]);
            // Ends when the other end is dropped.
            let _ = held.recv();
            drop(touched);
        };
        match std::thread::Builder::new().name("probe".to_owned()).spawn(probe) {
            Ok(thread) => probes.push((hold, thread)),
            Err(source) => {
                failed = Some(StartError::Threads { shards, needed, started, source });
                break;
            }
        }
    }
    let (holds, threads): (Vec<_>, Vec<_>) = probes.into_iter().unzip();
    drop(holds);
    for thread in threads {
        // A probe does not panic.
        let _ = thread.join();
    }
    failed.map_or(Ok(()), Err)
}

/// Raises a soft limit to the hard one; returns what it then is.
fn raise_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is the kernel's structure and lives over the call.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
        // Unknown is no reason not to try.
        return u64::MAX;
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
    // SAFETY: as above.
    if unsafe { libc::setrlimit(resource, &raw const wanted) } == 0 { limit.rlim_max } else { limit.rlim_cur }
}

fn allowed_cores() -> io::Result<Vec<usize>> {
    // SAFETY: a set of cores is plain bits, and all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` has the size that is passed and lives over the call.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let bits = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..bits).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Runs `body` on every shard, with its part of what was made for all of them (seats of meshes above all), until all
/// bodies have returned. A body that fails stops the others.
///
/// A body sets its shard up, awaits [`Stopping::requested`], stops accepting and drains its connections, awaits
/// [`Stopping::meet`] (no shard asks another any more on behalf of clients), closes its logs, meets again, and returns.
/// It keeps its `Shards` until that last meeting: others may still ask it.
///
/// # Errors
/// The first failure of an executor or a body.
pub fn start<P, E, B, F>(
    options: &StartOptions,
    layout: &Layout,
    stopper: &Stopper,
    parts: Vec<P>,
    body: B,
) -> Result<(), StartError<E>>
where
    P: Send + 'static,
    E: Send + 'static,
    B: Fn(GlommioShard, P, Stopping) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), E>> + 'static,
{
    let count = layout.shards();
    let mut threads = Vec::new();
    let mut first_error = None;
    for ((index, core), part) in (0..count).zip(&layout.pinned).zip(parts) {
        let placement = core.map_or(Placement::Unbound, Placement::Fixed);
        let (body, stopping, pulses) = (body.clone(), stopper.clone(), options.pulses.clone());
        let spawned = LocalExecutorBuilder::new(placement)
            .name(&format!("shard-{index}"))
            .io_memory(IO_MEMORY_BYTES)
            .ring_depth(RING_DEPTH)
            .preempt_timer(PREEMPT_TIMER)
            .spin_before_park(options.spin_before_park)
            .blocking_thread_pool_placement(PoolPlacement::Unbound(BLOCKING_THREADS))
            .spawn(move || async move {
                let shard = GlommioShard::new(ShardId::new(index), count);
                run(shard, part, (Stopping::new(stopping, index), pulses), body).await
            });
        match spawned {
            Ok(thread) => threads.push((index, thread)),
            Err(reason) => {
                stopper.leave(index);
                stopper.request();
                first_error = Some(StartError::Executor { shard: index, reason });
                break;
            }
        }
    }
    for index in u16::try_from(threads.len()).unwrap_or(count)..count {
        stopper.leave(index);
    }
    for (shard, thread) in threads {
        let ended = match thread.join() {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => StartError::Shard(error),
            Err(reason) => {
                stopper.leave(shard);
                stopper.request();
                StartError::Executor { shard, reason }
            }
        };
        first_error.get_or_insert(ended);
    }
    first_error.map_or(Ok(()), Err)
}

async fn run<P, E, B, F>(
    shard: GlommioShard,
    part: P,
    (stopping, pulses): (Stopping, Pulses),
    body: B,
) -> Result<(), E>
where
    B: Fn(GlommioShard, P, Stopping) -> F,
    F: Future<Output = Result<(), E>>,
{
    // Any park may be one with tasks to run (glommio.md b1), the very first too: its timer stands before the first task does.
    let mut ticker = Box::pin(tick(shard.clone(), pulses.clone()));
    let _: Poll<()> = poll!(&mut ticker);
    let ticker = shard.spawn(Queue::Background, ticker);
    // The first timer of an executor takes 8 to 50 ms: nobody waits for this one.
    let first_timer = shard.spawn(Queue::Background, {
        let shard = shard.clone();
        async move { shard.turn().await }
    });
    let listener = shard.spawn(Queue::Control, stopping.listen());
    let result = body(shard.clone(), part, stopping.clone()).await;
    if result.is_err() {
        stopping.request_all();
    }
    // Others may still ask this shard, and its kernel operations still own their buffers.
    stopping.leave();
    stopping.all_left(&shard).await;
    drop((first_timer, ticker, listener));
    pulses.ended(shard.shard());
    shard.runtime().drain().await;
    result
}

/// CPU time of the calling thread so far, user and system.
pub fn cpu_of_thread() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is the kernel's structure and lives over the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Wakes the executor: often while it works, seldom while it does not.
async fn tick(shard: GlommioShard, pulses: Pulses) {
    let mut wait_ms = TICK_ACTIVE_MS;
    pulses.beat(shard.shard());
    loop {
        let due: MonoTime = shard.now().plus_ms(wait_ms);
        shard.sleep_until(due).await;
        pulses.beat(shard.shard());
        if shard.now().nanos_since(due) > TICK_LATE_NANOS {
            shard.count_late_wake();
            tracing::debug!(shard = shard.shard().get(), total = shard.late_wakes(), "woke late");
        }
        // Reading the executor's counts sets them to zero: nobody else may read them.
        let tasks = glommio::executor().executor_stats().tasks_executed();
        shard.count_tasks(tasks);
        wait_ms = next_wait_ms(wait_ms, tasks);
    }
}

/// The pause before the next tick, after one in which so many tasks were polled.
fn next_wait_ms(wait_ms: i64, tasks: u64) -> i64 {
    if tasks <= IDLE_TASKS { wait_ms.saturating_mul(2).min(TICK_IDLE_MS) } else { TICK_ACTIVE_MS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_is_steadily_at_work_ticks_often_and_an_idle_one_seldom() {
        let mut wait_ms = TICK_ACTIVE_MS;
        for _ in 0..100 {
            wait_ms = next_wait_ms(wait_ms, 50);
        }
        assert_eq!(wait_ms, TICK_ACTIVE_MS);
        for _ in 0..10 {
            wait_ms = next_wait_ms(wait_ms, 2);
        }
        assert_eq!(wait_ms, TICK_IDLE_MS);
        assert_eq!(next_wait_ms(wait_ms, 50), TICK_ACTIVE_MS);
    }
}
