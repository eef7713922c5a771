//! What changed a simulated disk, step by step, so that the same can be done again on a copy of what it was: as it was
//! done, or with a step left out or moved. The copy crashes at each point (T-6). For tests; knows no format of a file.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;

use super::SimDisk;
use super::disk::{Inode, Syncing};
use super::world::Random;
use crate::io::{DirOp, Open};

/// What kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// A file was opened for writing; it may be new, or emptied.
    Open,
    /// Bytes were written.
    Write,
    /// A file was cut or extended.
    Truncate,
    /// Content was made durable: what was there when it began.
    SyncData,
    /// A directory was created.
    CreateDir,
    /// Something got another name.
    Rename,
    /// A name went away.
    Remove,
    /// Names of a directory were made durable.
    SyncDir,
    /// A time was set.
    SetModified,
}

#[derive(Clone, Debug)]
enum Change {
    Open { how: Open, handle: u64 },
    Write { handle: u64, at: usize, bytes: Bytes },
    Truncate { handle: u64, len: usize },
    SyncData { handle: u64, began: usize },
    Names(DirOp),
}

/// One step, as it took effect.
#[derive(Clone, Debug)]
pub struct Step {
    /// Of what kind.
    pub kind: StepKind,
    /// Its file or directory: the name under which a file was opened, the name that something had.
    pub path: PathBuf,
    /// The name that something got.
    pub to: Option<PathBuf>,
    /// Where in the source it was asked for.
    pub site: &'static Location<'static>,
    /// Its place among the steps.
    number: usize,
    wall_ms: i64,
    change: Change,
}

/// Steps, and the disk on which they began.
#[derive(Clone)]
pub struct Trace {
    start: SimDisk,
    /// In the order in which they took effect.
    pub steps: Vec<Step>,
}

impl Trace {
    /// A copy of the disk as it was before the first step.
    pub fn replay(&self) -> Replay {
        let mut begins: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
        for step in &self.steps {
            if let Change::SyncData { handle, began } = step.change {
                begins.entry(began).or_default().push((handle, step.number));
            }
        }
        let disk = self.start.crash(super::Crash::KeepAll);
        Replay { disk, files: BTreeMap::new(), begins, syncing: BTreeMap::new() }
    }
}

/// A disk on which steps are done again.
pub struct Replay {
    disk: SimDisk,
    files: BTreeMap<u64, Rc<Inode>>,
    /// Before which step syncs begin: of which file, and as which step they end.
    begins: BTreeMap<usize, Vec<(u64, usize)>>,
    /// Those that have begun, by the step as which they end.
    syncing: BTreeMap<usize, Syncing>,
}

impl Replay {
    /// The disk as it is now.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Does a step.
    ///
    /// # Errors
    /// What the step meets in another order than its own.
    pub fn apply(&mut self, step: &Step) -> io::Result<()> {
        for (handle, number) in self.begins.get(&step.number).into_iter().flatten() {
            if let Some(inode) = self.files.get(handle) {
                self.syncing.insert(*number, inode.begin_sync());
            }
        }
        let tree = &self.disk.tree;
        match &step.change {
            Change::Open { how, handle } => {
                let inode = tree.open(&step.path, *how, step.wall_ms)?;
                self.files.insert(*handle, inode);
            }
            Change::Write { handle, at, bytes } => self.file(*handle)?.write(bytes, *at, step.wall_ms),
            Change::Truncate { handle, len } => self.file(*handle)?.truncate(*len, step.wall_ms),
            Change::SyncData { handle, .. } => match self.syncing.remove(&step.number) {
                Some(syncing) => self.file(*handle)?.end_sync(syncing),
                // The step before which it began is left out.
                None => self.file(*handle)?.sync(),
            },
            Change::Names(op) => drop(tree.operate(op.clone())?),
        }
        Ok(())
    }

    /// Brings some pages down to the disk, and some changes of names, as a kernel does when it likes.
    pub fn write_back(&self, seed: u64) {
        self.disk.tree.write_back(&Random::new(seed));
    }

    fn file(&self, handle: u64) -> io::Result<&Rc<Inode>> {
        self.files.get(&handle).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Writes steps down, once it is told to.
#[derive(Default)]
pub(super) struct Recorder {
    start: RefCell<Option<SimDisk>>,
    steps: RefCell<Vec<Step>>,
    handles: Cell<u64>,
}

impl Recorder {
    /// Files that were opened before are not known.
    pub(super) fn start(&self, disk: SimDisk) {
        self.start.replace(Some(disk));
        self.steps.take();
    }

    pub(super) fn len(&self) -> usize {
        self.steps.borrow().len()
    }

    pub(super) fn trace(&self) -> Option<Trace> {
        let start = self.start.borrow().clone()?;
        Some(Trace { start, steps: self.steps.borrow().clone() })
    }

    /// A number for a file that was just opened.
    pub(super) fn opened(&self, path: &Path, how: Open, at: Asked) -> u64 {
        let handle = self.handles.get().saturating_add(1);
        self.handles.set(handle);
        if how != Open::Read {
            self.add(StepKind::Open, path, at, || Change::Open { how, handle });
        }
        handle
    }

    pub(super) fn written(&self, path: &Path, handle: u64, at: usize, bytes: &[u8], asked: Asked) {
        let change = || Change::Write { handle, at, bytes: Bytes::copy_from_slice(bytes) };
        self.add(StepKind::Write, path, asked, change);
    }

    pub(super) fn truncated(&self, path: &Path, handle: u64, len: usize, asked: Asked) {
        self.add(StepKind::Truncate, path, asked, || Change::Truncate { handle, len });
    }

    /// A sync that began before the step of this number has ended.
    pub(super) fn synced(&self, path: &Path, handle: u64, began: usize, asked: Asked) {
        self.add(StepKind::SyncData, path, asked, || Change::SyncData { handle, began });
    }

    pub(super) fn named(&self, op: &DirOp, asked: Asked) {
        let kind = match op {
            DirOp::List(_) | DirOp::Stat(_) | DirOp::Space(_) => return,
            DirOp::CreateAll(_) => StepKind::CreateDir,
            DirOp::Rename { .. } => StepKind::Rename,
            DirOp::Unlink(_) | DirOp::RemoveAll(_) => StepKind::Remove,
            DirOp::Sync(_) => StepKind::SyncDir,
            DirOp::SetModified { .. } => StepKind::SetModified,
        };
        self.add(kind, op.path(), asked, || Change::Names(op.clone()));
    }

    fn add(&self, kind: StepKind, path: &Path, asked: Asked, change: impl FnOnce() -> Change) {
        if self.start.borrow().is_none() {
            return;
        }
        let change = change();
        let to = match &change {
            Change::Names(DirOp::Rename { to, .. }) => Some(to.clone()),
            _ => None,
        };
        let Asked { site, wall_ms } = asked;
        let mut steps = self.steps.borrow_mut();
        let number = steps.len();
        steps.push(Step { kind, path: path.to_owned(), to, site, number, wall_ms, change });
    }
}

/// Where and when something was asked for.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) site: &'static Location<'static>,
    pub(super) wall_ms: i64,
}
