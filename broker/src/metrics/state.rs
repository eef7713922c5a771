//! How far the broker is, for whoever asks from outside the shards: a few atomics that the start, the shards and the
//! stop write, and that the admin endpoint reads without asking a shard.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Kafka's BrokerState.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BrokerState {
    /// Before anything is loaded.
    Starting = 1,
    /// Logs are opened, and recovered where the last stop was not clean.
    Recovery = 2,
    /// Clients are served.
    Running = 3,
    /// No new connections; requests in work are finished.
    PendingShutdown = 6,
    /// Logs are closed.
    ShuttingDown = 7,
}

/// What a start is at before it opens logs: where it stands still, an operator is told what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Log dirs are locked.
    Locking,
    /// The embedded metadata store is read.
    Metadata,
    /// A session with ZooKeeper is wanted.
    Zookeeper,
    /// Log dirs are looked at and opened.
    LogDirs,
    /// The broker registers.
    Registering,
    /// ZooKeeper has not ended the session of the process before this one.
    PreviousLife,
    /// The controller is elected, and tells of the partitions.
    Electing,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Locking,
        Self::Metadata,
        Self::Zookeeper,
        Self::LogDirs,
        Self::Registering,
        Self::PreviousLife,
        Self::Electing,
    ];
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Locking => "locking the log directories",
            Self::Metadata => "reading the metadata store",
            Self::Zookeeper => "waiting for a session with ZooKeeper",
            Self::LogDirs => "opening the log directories",
            Self::Registering => "registering the broker",
            Self::PreviousLife => "waiting for ZooKeeper to end the session of the previous run",
            Self::Electing => "waiting for the controller",
        })
    }
}

/// Why clients should go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Not all of them are there.
    #[error("loading: {loaded} of {of} partitions")]
    Loading {
        /// How many are loaded.
        loaded: usize,
        /// Of how many.
        of: usize,
    },
    /// No log is opened yet.
    #[error("starting: {0}")]
    Starting(Stage),
    /// Some shard does not take connections.
    #[error("listeners are open on {open} of {of} shards")]
    Listening {
        /// On how many they are.
        open: u16,
        /// Of how many.
        of: u16,
    },
    /// Nobody decides.
    #[error("no controller is known")]
    NoController,
    /// The end.
    #[error("stopping")]
    Stopping,
}

/// The state of one broker. Clones share it.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shards: u16,
    state: AtomicU8,
    stage: AtomicU8,
    to_load: AtomicUsize,
    loaded: AtomicUsize,
    listening: AtomicU16,
    controller: AtomicBool,
    is_told: AtomicBool,
    when_ready: OnceLock<WhenReady>,
}

/// What is done once when the broker is ready.
struct WhenReady(Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for WhenReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WhenReady")
    }
}

impl Progress {
    /// A broker of so many shards that has just begun to start.
    pub fn new(shards: u16) -> Self {
        Self(Arc::new(Inner {
            shards,
            state: AtomicU8::new(BrokerState::Starting as u8),
            stage: AtomicU8::new(Stage::Locking as u8),
            to_load: AtomicUsize::new(0),
            loaded: AtomicUsize::new(0),
            listening: AtomicU16::new(0),
            controller: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            when_ready: OnceLock::new(),
        }))
    }

    /// The start is at this now.
    pub fn at(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Has this done once, on whichever shard brings it about, when the broker is ready. The first call counts.
    pub fn when_ready(&self, told: impl Fn() + Send + Sync + 'static) {
        // There is one start.
        let _ = self.0.when_ready.set(WhenReady(Box::new(told)));
    }

    /// To be called behind whatever may have been the last that was missing.
    fn look(&self) {
        if self.ready().is_ok()
            && !self.0.is_told.swap(true, Ordering::SeqCst)
            && let Some(WhenReady(told)) = self.0.when_ready.get()
        {
            told();
        }
    }

    /// The broker gets to a state; it never goes back.
    pub fn reach(&self, state: BrokerState) {
        self.0.state.fetch_max(state as u8, Ordering::SeqCst);
    }

    /// The number of Kafka's BrokerState.
    pub fn state(&self) -> u8 {
        self.0.state.load(Ordering::SeqCst)
    }

    /// So many more partitions that were there before are to be loaded.
    pub fn to_load(&self, partitions: usize) {
        self.0.to_load.fetch_add(partitions, Ordering::SeqCst);
    }

    /// So many more are loaded, or have failed to.
    pub fn loaded(&self, partitions: usize) {
        self.0.loaded.fetch_add(partitions, Ordering::SeqCst);
        self.look();
    }

    /// A controller is known.
    pub fn controller_known(&self) {
        self.0.controller.store(true, Ordering::SeqCst);
        self.look();
    }

    /// One more shard takes connections; the broker runs when all do.
    pub fn listens(&self) {
        let before = self.0.listening.fetch_add(1, Ordering::SeqCst);
        if before.saturating_add(1) >= self.0.shards {
            self.reach(BrokerState::Running);
            self.look();
        }
    }

    /// Whether clients should come.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<(), NotReady> {
        let inner = &*self.0;
        let state = self.state();
        // Of two threads that each bring what the other sees missing, one sees both: for all of these there is one order.
        let (loaded, of) = (inner.loaded.load(Ordering::SeqCst), inner.to_load.load(Ordering::SeqCst));
        let open = inner.listening.load(Ordering::SeqCst);
        if state > BrokerState::Running as u8 {
            Err(NotReady::Stopping)
        } else if state == BrokerState::Starting as u8 {
            let stage = Stage::ALL.get(usize::from(inner.stage.load(Ordering::Relaxed)));
            Err(NotReady::Starting(stage.copied().unwrap_or(Stage::Locking)))
        } else if loaded < of {
            Err(NotReady::Loading { loaded, of })
        } else if !inner.controller.load(Ordering::SeqCst) {
            Err(NotReady::NoController)
        } else if state < BrokerState::Running as u8 {
            Err(NotReady::Listening { open, of: inner.shards })
        } else {
            Ok(())
        }
    }
}

/// A log dir, for whoever asks whether it is in service. Clones share the state.
#[derive(Clone, Debug)]
pub struct LogDirState {
    /// Its path, as it is told.
    pub path: Arc<str>,
    is_offline: Arc<AtomicBool>,
}

impl LogDirState {
    /// In service.
    pub fn new(path: Arc<str>) -> Self {
        Self { path, is_offline: Arc::default() }
    }

    /// Whether it has failed.
    pub fn is_offline(&self) -> bool {
        self.is_offline.load(Ordering::Relaxed)
    }

    /// It has failed, until a restart.
    pub fn set_offline(&self) {
        self.is_offline.store(true, Ordering::Relaxed);
    }
}

impl Default for Progress {
    /// Of no shard: nobody looks.
    fn default() -> Self {
        Self::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_ready_when_all_is_loaded_and_all_shards_listen() {
        let progress = Progress::new(2);
        assert_eq!(progress.ready(), Err(NotReady::Starting(Stage::Locking)));
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            progress.at(stage);
            assert_eq!((usize::from(stage as u8), progress.ready()), (place, Err(NotReady::Starting(stage))));
        }
        progress.at(Stage::PreviousLife);
        let said = progress.ready().map_err(|why| why.to_string());
        let waits = "starting: waiting for ZooKeeper to end the session of the previous run";
        assert_eq!(said, Err(waits.to_owned()));
        progress.to_load(3);
        progress.reach(BrokerState::Recovery);
        progress.loaded(2);
        assert_eq!(progress.ready(), Err(NotReady::Loading { loaded: 2, of: 3 }));
        progress.loaded(1);
        assert_eq!(progress.ready(), Err(NotReady::NoController));
        progress.controller_known();
        progress.listens();
        assert_eq!(progress.ready(), Err(NotReady::Listening { open: 1, of: 2 }));
        progress.listens();
        assert_eq!((progress.ready(), progress.state()), (Ok(()), 3));
        progress.reach(BrokerState::PendingShutdown);
        progress.reach(BrokerState::Running);
        assert_eq!((progress.ready(), progress.state()), (Err(NotReady::Stopping), 6));
    }

    #[test]
    fn that_a_broker_is_ready_is_told_once_by_whatever_was_missing_last() {
        type Step = (&'static str, fn(&Progress));
        let steps: [Step; 3] = [
            ("loaded", |progress| progress.loaded(1)),
            ("controller", Progress::controller_known),
            ("listens", Progress::listens),
        ];
        for last in 0..steps.len() {
            let progress = Progress::new(1);
            let told = Arc::new(AtomicUsize::new(0));
            let count = told.clone();
            progress.when_ready(move || {
                count.fetch_add(1, Ordering::SeqCst);
            });
            progress.to_load(1);
            progress.reach(BrokerState::Recovery);
            for (_, step) in
                steps.iter().enumerate().filter(|(place, _)| *place != last).map(|(_, step)| step)
            {
                step(&progress);
            }
            assert_eq!(told.load(Ordering::SeqCst), 0, "{} is missing", steps[last].0);
            steps[last].1(&progress);
            assert_eq!(told.load(Ordering::SeqCst), 1, "{}", steps[last].0);
            // What comes later is loaded, too.
            progress.to_load(1);
            progress.loaded(1);
            assert_eq!(told.load(Ordering::SeqCst), 1);
        }
    }
}
