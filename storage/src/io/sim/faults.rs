//! What can go wrong on a simulated disk, and the record of what was asked of it.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};

use super::world::Random;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    /// A file was opened.
    Open,
    /// Bytes were written.
    Write,
    /// Bytes were read.
    Read,
    /// Content was made durable.
    SyncData,
    /// A file was cut or extended.
    Truncate,
    /// Names of a directory were made durable.
    SyncDir,
    /// Any other operation on names.
    Names,
}

impl OpKind {
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Write => "write",
            Self::Read => "read",
            Self::SyncData | Self::SyncDir => "sync",
            Self::Truncate => "truncate",
            Self::Names => "operate on",
        }
    }
}

/// One operation, as it took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Counted from 1 over the life of the disk.
    pub number: u64,
    /// What it was.
    pub kind: OpKind,
    /// Its file or directory; the name under which a file was opened.
    pub path: PathBuf,
    /// Where it started; 0 when that has no meaning.
    pub at: u64,
    /// How many bytes took effect; 0 when that has no meaning.
    pub len: usize,
    /// Whether it succeeded.
    pub done: bool,
}

/// An error to be met by an operation.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which operations.
    pub kind: OpKind,
    /// Part of the path; "" for any.
    pub path_contains: &'static str,
    /// How many matching operations still succeed before.
    pub after: u64,
    /// How many fail then; `u64::MAX` for all that follow.
    pub times: u64,
    /// With what.
    pub error: io::ErrorKind,
}

impl Fault {
    /// The next operation of this kind fails once with EIO's kind.
    pub fn once(kind: OpKind) -> Self {
        Self { kind, path_contains: "", after: 0, times: 1, error: io::ErrorKind::Other }
    }
}

/// How long operations take: a uniform draw, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// At least.
    pub min_nanos: u64,
    /// At most.
    pub max_nanos: u64,
}

impl Latency {
    pub(super) fn draw(self, random: &Random) -> u64 {
        let spread = self.max_nanos.saturating_sub(self.min_nanos).saturating_add(1);
        self.min_nanos.saturating_add(random.below(spread))
    }
}

pub(super) struct Faults {
    pub(super) capacity_bytes: Cell<Option<u64>>,
    pub(super) short_write_percent: Cell<u64>,
    pub(super) write_now_percent: Cell<u64>,
    pub(super) read_now_percent: Cell<u64>,
    pub(super) latency: Cell<Latency>,
    pub(super) sync_latency: Cell<Latency>,
    /// What operations on paths that contain this take longer.
    pub(super) slow: Cell<Option<(&'static str, u64)>>,
    /// Operations from this number on never end: the machine is dead.
    pub(super) frozen_from: Cell<u64>,
    planned: RefCell<Vec<Fault>>,
    count: Cell<u64>,
    records: RefCell<Option<Vec<Operation>>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            capacity_bytes: Cell::new(None),
            short_write_percent: Cell::new(0),
            write_now_percent: Cell::new(0),
            read_now_percent: Cell::new(0),
            latency: Cell::new(Latency { min_nanos: 5_000, max_nanos: 50_000 }),
            sync_latency: Cell::new(Latency { min_nanos: 100_000, max_nanos: 500_000 }),
            slow: Cell::new(None),
            frozen_from: Cell::new(u64::MAX),
            planned: RefCell::default(),
            count: Cell::new(0),
            records: RefCell::default(),
        }
    }
}

impl Faults {
    /// What an operation takes longer than others.
    pub(super) fn extra_nanos(&self, path: &Path) -> u64 {
        let slow = self.slow.get().filter(|(part, _)| path.to_string_lossy().contains(part));
        slow.map_or(0, |(_, nanos)| nanos)
    }

    pub(super) fn plan(&self, fault: Fault) {
        self.planned.borrow_mut().push(fault);
    }

    pub(super) fn clear(&self) {
        self.planned.borrow_mut().clear();
        self.capacity_bytes.set(None);
        self.short_write_percent.set(0);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.count.set(self.count.get().saturating_add(1));
        self.count.get()
    }

    pub(super) fn is_frozen(&self, number: u64) -> bool {
        number >= self.frozen_from.get()
    }

    /// The error that this operation has to meet, if any.
    pub(super) fn check(&self, kind: OpKind, path: &Path) -> io::Result<()> {
        let mut planned = self.planned.borrow_mut();
        for fault in planned.iter_mut() {
            if fault.kind != kind || !path.to_string_lossy().contains(fault.path_contains) || fault.times == 0
            {
                continue;
            }
            if fault.after > 0 {
                fault.after = fault.after.saturating_sub(1);
                continue;
            }
            if fault.times != u64::MAX {
                fault.times = fault.times.saturating_sub(1);
            }
            return Err(fault.error.into());
        }
        Ok(())
    }

    pub(super) fn start_recording(&self) {
        *self.records.borrow_mut() = Some(Vec::new());
    }

    pub(super) fn record(&self, operation: impl FnOnce() -> Operation) {
        if let Some(records) = self.records.borrow_mut().as_mut() {
            records.push(operation());
        }
    }

    pub(super) fn records(&self) -> Vec<Operation> {
        self.records.borrow().clone().unwrap_or_default()
    }
}
