//! P-6: idle costs nothing; SIGTERM ends all shards. Alone in its process, because it measures the process.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests, outside #[test] functions"
)]

use std::time::Duration;

use broker::shard::ask::{Reply, Seat, Shards, seats};
use broker::shard::glommio::GlommioShard;
use broker::shard::start::{Cores, Layout, StartOptions, prepare, start};
use broker::shard::stop::{SignalThread, Stopper};
use broker::shard::{Class, Service, ShardId};

#[derive(Clone)]
struct Silent;

impl Service for Silent {
    type Ask = ();
    type Answer = ();
    fn accept(&self, _from: ShardId, (): (), _reply: Reply<()>) {}
}

fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is the kernel's, and all zero is a value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap())
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap())
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

#[test]
fn two_idle_shards_use_a_thousandth_of_a_core_and_end_at_a_signal() {
    const SETTLE: Duration = Duration::from_secs(3);
    const MEASURE: Duration = Duration::from_secs(4);
    /// Neighbours on the machine add to what a process uses, never take away: the best of so many tells.
    const TRIES: u32 = 5;
    prepare::<String>().unwrap();
    let layout = Layout::new::<String>(&Cores::Count(2)).unwrap();
    let stopper = Stopper::new(2);
    let parts = seats::<GlommioShard, Silent>(2, Class::Client, 64);
    let signals = SignalThread::start().unwrap();
    signals.stops(&stopper);
    let measured = std::thread::spawn(move || {
        let wait = |time| std::thread::park_timeout(time);
        wait(SETTLE);
        let mut used = Duration::MAX;
        for _ in 0..TRIES {
            let before = cpu_time();
            wait(MEASURE);
            used = used.min(cpu_time() - before);
            if used <= MEASURE / 1000 {
                break;
            }
        }
        // SAFETY: a signal to this process, which has a handler for it.
        unsafe { libc::raise(libc::SIGTERM) };
        used
    });
    start(
        &StartOptions::default(),
        &layout,
        &stopper,
        parts,
        |shard, seat: Seat<_, Silent>, stopping| async move {
            let _shards = Shards::new(&shard, Silent, seat);
            stopping.requested().await;
            stopping.meet(&shard).await;
            Ok::<(), String>(())
        },
    )
    .unwrap();
    let used = measured.join().unwrap();
    assert!(used <= MEASURE / 1000, "{used:?} in {MEASURE:?}");
}
