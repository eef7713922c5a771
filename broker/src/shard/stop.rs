//! How a stop reaches all shards, and how they wait for each other in its phases. The only shared state between shards
//! beside mailboxes: a flag, counters, and one waker each. `main` hears signals before it does anything else
//! ([`SignalThread`]); called by [`super::start`]; the bodies of shards use [`Stopping`].

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use storage::io::Runtime;

/// How often a shard that waits for the others looks; only while they stop.
const MEET_POLL_MS: i64 = 2;

/// A signal so soon after the first is the same wish: `timeout` and shells send theirs to the process and to its group.
const SAME_WISH: Duration = Duration::from_secs(2);

/// The progress of a shard that has left.
const LEFT: u32 = u32::MAX;

/// Ends all shards. Clones do the same; may be used from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

struct Shared {
    requested: AtomicBool,
    shards: Vec<Progress>,
}

#[derive(Default)]
struct Progress {
    /// How many meetings the shard has come to.
    meetings: AtomicU32,
    waker: AtomicWaker,
}

impl Stopper {
    /// Makes the stopper of so many shards.
    pub fn new(shards: u16) -> Self {
        let shards = (0..shards).map(|_| Progress::default()).collect();
        Self(Arc::new(Shared { requested: AtomicBool::new(false), shards }))
    }

    /// Whether that was asked.
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::Acquire)
    }

    /// Asks all shards to stop. Asking again changes nothing.
    pub fn request(&self) {
        self.0.requested.store(true, Ordering::Release);
        for shard in &self.0.shards {
            shard.waker.wake();
        }
    }

    pub(super) fn leave(&self, shard: u16) {
        if let Some(progress) = self.0.shards.get(usize::from(shard)) {
            progress.meetings.store(LEFT, Ordering::Release);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a thread of its own, which no runtime gives the time")]
fn now() -> Instant {
    Instant::now()
}

/// Listens for SIGINT and SIGTERM until dropped.
pub struct SignalThread {
    handle: Handle,
    stopper: Arc<OnceLock<Stopper>>,
}

impl SignalThread {
    /// Hears signals from here on. As long as nothing is to be stopped, one ends the process at once with exit code 0: it
    /// has done nothing, and may be waiting for a name server.
    ///
    /// # Errors
    /// When the handlers or their thread cannot be made.
    pub fn start() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT])?;
        let (handle, stopper) = (signals.handle(), Arc::new(OnceLock::new()));
        let known = stopper.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || hear(signals, &known))?;
        Ok(Self { handle, stopper })
    }

    /// From now on the first signal asks these shards to stop, and one that comes 2 s later or more ends the process. Done
    /// once, before there is anything that a clean stop would have to finish.
    pub fn stops(&self, stopper: &Stopper) {
        assert!(self.stopper.set(stopper.clone()).is_ok(), "done once");
    }
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.handle.close();
    }
}

#[allow(clippy::exit, reason = "the wish of who sends the signal")]
fn hear(mut signals: Signals, stopper: &OnceLock<Stopper>) {
    let mut first: Option<Instant> = None;
    for signal in signals.forever() {
        let Some(stopper) = stopper.get() else { std::process::exit(0) };
        match first.map(|first| first.elapsed()) {
            None => {
                tracing::info!(signal, "stopping");
                first = Some(now());
                stopper.request();
            }
            Some(since) if since < SAME_WISH => {}
            Some(_) => {
                tracing::warn!(signal, "asked again: ending at once");
                std::process::exit(1);
            }
        }
    }
}

/// The stop as one shard sees it. Cheap to clone; does not leave its shard.
#[derive(Clone)]
pub struct Stopping {
    stopper: Stopper,
    shard: u16,
    /// Tasks of this shard that wait for the request.
    waiting: Rc<RefCell<Vec<Waker>>>,
    meetings: Rc<Cell<u32>>,
}

impl Stopping {
    pub(super) fn new(stopper: Stopper, shard: u16) -> Self {
        Self { stopper, shard, waiting: Rc::default(), meetings: Rc::default() }
    }

    /// Whether the shards are to stop.
    pub fn is_requested(&self) -> bool {
        self.stopper.is_requested()
    }

    /// Waits until the shards are to stop.
    pub fn requested(&self) -> impl Future<Output = ()> + 'static {
        let this = self.clone();
        poll_fn(move |context| {
            if this.is_requested() {
                return Poll::Ready(());
            }
            let mut waiting = this.waiting.borrow_mut();
            waiting.retain(|waker| !waker.will_wake(context.waker()));
            waiting.push(context.waker().clone());
            Poll::Pending
        })
    }

    /// Asks all shards to stop.
    pub fn request_all(&self) {
        self.stopper.request();
    }

    /// Waits until every shard has come to as many meetings, or has left.
    pub async fn meet<R: Runtime>(&self, runtime: &R) {
        let meeting = self.meetings.get().saturating_add(1);
        self.meetings.set(meeting);
        if let Some(own) = self.stopper.0.shards.get(usize::from(self.shard)) {
            own.meetings.store(meeting, Ordering::Release);
        }
        self.wait_for(runtime, meeting).await;
    }

    pub(super) fn leave(&self) {
        self.stopper.leave(self.shard);
    }

    pub(super) async fn all_left<R: Runtime>(&self, runtime: &R) {
        self.wait_for(runtime, LEFT).await;
    }

    async fn wait_for<R: Runtime>(&self, runtime: &R, meeting: u32) {
        let have_come =
            || self.stopper.0.shards.iter().all(|other| other.meetings.load(Ordering::Acquire) >= meeting);
        while !have_come() {
            runtime.sleep_until(runtime.now().plus_ms(MEET_POLL_MS)).await;
        }
    }

    /// The one task of the shard that other threads wake; it wakes the others.
    pub(super) fn listen(&self) -> impl Future<Output = ()> + 'static {
        let this = self.clone();
        poll_fn(move |context| {
            if let Some(own) = this.stopper.0.shards.get(usize::from(this.shard)) {
                own.waker.register(context.waker());
            }
            if !this.is_requested() {
                return Poll::Pending;
            }
            for waker in this.waiting.take() {
                waker.wake();
            }
            Poll::Ready(())
        })
    }
}
