//! How far the broker is, for whoever asks from outside the shards: a few atomics that the start, the shards and the
//! stop write, and that the admin endpoint reads without asking a shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering};

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
    /// The shards are made.
    #[error("starting")]
    Starting,
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
    to_load: AtomicUsize,
    loaded: AtomicUsize,
    listening: AtomicU16,
    controller: AtomicBool,
}

impl Progress {
    /// A broker of so many shards that has just begun to start.
    pub fn new(shards: u16) -> Self {
        Self(Arc::new(Inner {
            shards,
            state: AtomicU8::new(BrokerState::Starting as u8),
            to_load: AtomicUsize::new(0),
            loaded: AtomicUsize::new(0),
            listening: AtomicU16::new(0),
            controller: AtomicBool::new(false),
        }))
    }

    /// The broker gets to a state; it never goes back.
    pub fn reach(&self, state: BrokerState) {
        self.0.state.fetch_max(state as u8, Ordering::Relaxed);
    }

    /// The number of Kafka's BrokerState.
    pub fn state(&self) -> u8 {
        self.0.state.load(Ordering::Relaxed)
    }

    /// So many more partitions that were there before are to be loaded.
    pub fn to_load(&self, partitions: usize) {
        self.0.to_load.fetch_add(partitions, Ordering::Relaxed);
    }

    /// So many more are loaded, or have failed to.
    pub fn loaded(&self, partitions: usize) {
        self.0.loaded.fetch_add(partitions, Ordering::Relaxed);
    }

    /// A controller is known.
    pub fn controller_known(&self) {
        self.0.controller.store(true, Ordering::Relaxed);
    }

    /// One more shard takes connections; the broker runs when all do.
    pub fn listens(&self) {
        let before = self.0.listening.fetch_add(1, Ordering::Relaxed);
        if before.saturating_add(1) >= self.0.shards {
            self.reach(BrokerState::Running);
        }
    }

    /// Whether clients should come.
    ///
    /// # Errors
    /// Why not.
    pub fn ready(&self) -> Result<(), NotReady> {
        let inner = &*self.0;
        let state = self.state();
        let (loaded, of) = (inner.loaded.load(Ordering::Relaxed), inner.to_load.load(Ordering::Relaxed));
        let open = inner.listening.load(Ordering::Relaxed);
        if state > BrokerState::Running as u8 {
            Err(NotReady::Stopping)
        } else if state == BrokerState::Starting as u8 {
            Err(NotReady::Starting)
        } else if loaded < of {
            Err(NotReady::Loading { loaded, of })
        } else if !inner.controller.load(Ordering::Relaxed) {
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
        assert_eq!(progress.ready(), Err(NotReady::Starting));
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
}
