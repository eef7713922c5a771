//! The file system of a simulation: a live state and, beside it, what a crash would leave. Content becomes durable by
//! `sync_data`, names by the sync of their directory. Knows no clock and no tasks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path};
use std::rc::Rc;

use super::world::Random;
use crate::io::{DirDone, DirEntry, DirOp, Open};

/// What tears on its own in a crash.
pub(super) const PAGE_BYTES: usize = 4096;

/// What a crash leaves of what was written and never synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Everything: the process died, the machine did not.
    KeepAll,
    /// Nothing: the machine lost its power before any writeback.
    DropUnsynced,
    /// Each page of 4 KiB, and for each directory a prefix of its changes, as the seed has it.
    Torn(u64),
    /// The same, but of the changes of names each by itself: a file system that brings them down in no order, which work is
    /// ready for that would lose data by it.
    Scattered(u64),
}

impl Crash {
    const fn seed(self) -> u64 {
        match self {
            Self::KeepAll | Self::DropUnsynced => 0,
            Self::Torn(seed) | Self::Scattered(seed) => seed,
        }
    }
}

#[derive(Default)]
pub(super) struct Inode {
    live: RefCell<Vec<u8>>,
    durable: RefCell<Vec<u8>>,
    dirty_pages: RefCell<BTreeSet<usize>>,
    modified_ms: Cell<i64>,
    /// Syncs that have begun.
    begun: Cell<u64>,
    /// The number of the newest sync that has ended.
    ended: Cell<u64>,
    /// How often pages were brought down without a sync.
    written_back: Cell<u64>,
}

/// A sync that has begun: what it brings down, which is nothing that is written later.
pub(super) struct Syncing {
    number: u64,
    written_back: u64,
    len: usize,
    pages: Vec<(usize, Vec<u8>)>,
}

impl Inode {
    pub(super) fn size(&self) -> usize {
        self.live.borrow().len()
    }

    fn mark_dirty(&self, from: usize, to: usize) {
        self.dirty_pages.borrow_mut().extend(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES));
    }

    pub(super) fn write(&self, bytes: &[u8], at: usize, wall_ms: i64) {
        let end = at.saturating_add(bytes.len());
        let mut live = self.live.borrow_mut();
        let before = live.len();
        if end > before {
            live.resize(end, 0);
        }
        if let Some(range) = live.get_mut(at..end) {
            range.copy_from_slice(bytes);
        }
        self.mark_dirty(at.min(before), end);
        self.modified_ms.set(wall_ms);
    }

    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let live = self.live.borrow();
        let end = at.saturating_add(len).min(live.len());
        live.get(at..end).unwrap_or_default().to_vec()
    }

    pub(super) fn truncate(&self, len: usize, wall_ms: i64) {
        let before = self.size();
        self.live.borrow_mut().resize(len, 0);
        self.mark_dirty(before.min(len), before.max(len));
        self.modified_ms.set(wall_ms);
    }

    /// Makes everything durable that is there now.
    pub(super) fn sync(&self) {
        // Those under way do less.
        self.ended.set(self.begun.get().saturating_add(1));
        let live = self.live.borrow();
        let mut durable = self.durable.borrow_mut();
        durable.resize(live.len(), 0);
        for page in std::mem::take(&mut *self.dirty_pages.borrow_mut()) {
            copy_page(&live, &mut durable, page);
        }
    }

    pub(super) fn begin_sync(&self) -> Syncing {
        let live = self.live.borrow();
        let pages = self.dirty_pages.borrow();
        let pages = pages.iter().map(|&page| (page, page_of(&live, page).to_vec())).collect();
        self.begun.set(self.begun.get().saturating_add(1));
        Syncing { number: self.begun.get(), written_back: self.written_back.get(), len: live.len(), pages }
    }

    /// Makes durable what was there when the sync began.
    pub(super) fn end_sync(&self, syncing: Syncing) {
        let Syncing { number, written_back, len, pages } = syncing;
        if number < self.ended.get() {
            // One that began later has done more.
            return;
        }
        self.ended.set(number);
        if written_back != self.written_back.get() {
            // Newer content has come down meanwhile, in what order nobody knows.
            return self.sync();
        }
        let live = self.live.borrow();
        let mut durable = self.durable.borrow_mut();
        durable.resize(len, 0);
        for (page, content) in pages {
            let start = page.saturating_mul(PAGE_BYTES);
            if let Some(target) = durable.get_mut(start..start.saturating_add(content.len())) {
                target.copy_from_slice(&content);
            }
            if page_of(&live, page) == page_of(&durable, page) {
                self.dirty_pages.borrow_mut().remove(&page);
            }
        }
    }

    /// As Linux does after a failed writeback: the pages count as clean, and no later sync brings them down.
    pub(super) fn fail_sync(&self) {
        self.dirty_pages.borrow_mut().clear();
    }

    /// Brings some pages down, as the kernel does when it likes.
    fn write_back(&self, random: &Random) {
        self.written_back.set(self.written_back.get().saturating_add(1));
        let live = self.live.borrow();
        let mut durable = self.durable.borrow_mut();
        let pages: Vec<_> = self.dirty_pages.borrow().iter().copied().collect();
        for page in pages.into_iter().filter(|_| random.below(2) == 0) {
            let end = page.saturating_add(1).saturating_mul(PAGE_BYTES).min(live.len());
            let len = durable.len().max(end);
            durable.resize(len, 0);
            copy_page(&live, &mut durable, page);
            self.dirty_pages.borrow_mut().remove(&page);
        }
        if durable.len() > live.len() && random.below(2) == 0 {
            durable.truncate(live.len());
        }
    }

    /// What the file holds after a crash.
    fn crashed(&self, mode: Crash, random: &Random) -> Vec<u8> {
        let live = self.live.borrow();
        let mut durable = self.durable.borrow().clone();
        match mode {
            Crash::KeepAll => live.clone(),
            Crash::DropUnsynced => durable,
            Crash::Torn(_) | Crash::Scattered(_) => {
                let (low, high) = (durable.len().min(live.len()), durable.len().max(live.len()));
                let len = match random.below(3) {
                    0 => durable.len(),
                    1 => live.len(),
                    _ => low.saturating_add(below_len(random, high.saturating_sub(low).saturating_add(1))),
                };
                durable.resize(len, 0);
                for &page in self.dirty_pages.borrow().iter() {
                    if random.below(2) == 0 {
                        copy_page(&live, &mut durable, page);
                    }
                }
                durable
            }
        }
    }
}

fn below_len(random: &Random, bound: usize) -> usize {
    usize::try_from(random.below(u64::try_from(bound).unwrap_or(u64::MAX))).unwrap_or(0)
}

/// A page, as far as the file has it.
fn page_of(content: &[u8], page: usize) -> &[u8] {
    let start = page.saturating_mul(PAGE_BYTES);
    let end = start.saturating_add(PAGE_BYTES).min(content.len());
    content.get(start..end).unwrap_or_default()
}

fn copy_page(from: &[u8], into: &mut [u8], page: usize) {
    let start = page.saturating_mul(PAGE_BYTES);
    let end = start.saturating_add(PAGE_BYTES).min(from.len()).min(into.len());
    if let (Some(source), Some(target)) = (from.get(start..end), into.get_mut(start..end)) {
        target.copy_from_slice(source);
    }
}

#[derive(Default)]
struct Dir {
    live: RefCell<BTreeMap<String, Node>>,
    durable: RefCell<BTreeMap<String, Node>>,
}

#[derive(Clone)]
enum Node {
    File(Rc<Inode>),
    Dir(Rc<Dir>),
}

/// One change of names that is not durable yet; its parts become durable together.
struct Change(Vec<(Rc<Dir>, String, Option<Node>)>);

impl Change {
    fn touches(&self, dir: &Rc<Dir>) -> bool {
        self.0.iter().any(|(of, _, _)| Rc::ptr_eq(of, dir))
    }

    fn apply(&self, tree: impl Fn(&Dir) -> &RefCell<BTreeMap<String, Node>>) {
        for (dir, name, node) in &self.0 {
            let before = match node {
                Some(node) => tree(dir).borrow_mut().insert(name.clone(), node.clone()),
                None => tree(dir).borrow_mut().remove(name),
            };
            drop(before);
        }
    }
}

/// Directories and files. Paths are taken as absolute; there are no links.
#[derive(Default)]
pub(super) struct Tree {
    root: Rc<Dir>,
    pending: RefCell<Vec<Change>>,
}

impl Tree {
    fn node(&self, path: &Path) -> io::Result<Node> {
        let mut node = Node::Dir(self.root.clone());
        for name in names(path) {
            let Node::Dir(dir) = node else { return Err(io::ErrorKind::NotADirectory.into()) };
            let found = dir.live.borrow().get(&name).cloned();
            node = found.ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(node)
    }

    fn dir(&self, path: &Path) -> io::Result<Rc<Dir>> {
        match self.node(path)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn parent(&self, path: &Path) -> io::Result<(Rc<Dir>, String)> {
        let name = path.file_name().and_then(OsStr::to_str).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.dir(path.parent().unwrap_or(Path::new("/")))?, name.to_owned()))
    }

    fn change(&self, parts: Vec<(Rc<Dir>, String, Option<Node>)>) {
        let change = Change(parts);
        change.apply(|dir| &dir.live);
        self.pending.borrow_mut().push(change);
    }

    pub(super) fn open(&self, path: &Path, how: Open, wall_ms: i64) -> io::Result<Rc<Inode>> {
        match self.node(path) {
            Ok(Node::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            Ok(Node::File(inode)) => {
                if how == Open::CreateEmpty {
                    inode.truncate(0, wall_ms);
                }
                Ok(inode)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if matches!(how, Open::Read | Open::Existing) {
                    return Err(error);
                }
                let (dir, name) = self.parent(path)?;
                let inode = Rc::new(Inode::default());
                inode.modified_ms.set(wall_ms);
                self.change(vec![(dir, name, Some(Node::File(inode.clone())))]);
                Ok(inode)
            }
            Err(error) => Err(error),
        }
    }

    /// Bytes of all files that have a name.
    pub(super) fn used_bytes(&self) -> u64 {
        fn of(dir: &Dir) -> u64 {
            let entries = dir.live.borrow();
            entries.values().fold(0, |sum: u64, node| {
                sum.saturating_add(match node {
                    Node::File(inode) => u64::try_from(inode.size()).unwrap_or(u64::MAX),
                    Node::Dir(dir) => of(dir),
                })
            })
        }
        of(&self.root)
    }

    pub(super) fn operate(&self, op: DirOp) -> io::Result<DirDone> {
        match op {
            DirOp::List(path) => return self.list(&path),
            DirOp::CreateAll(path) => self.create_all(&path)?,
            DirOp::Rename { from, to } => self.rename(&from, &to)?,
            DirOp::Unlink(path) => match self.node(&path) {
                Ok(Node::File(_)) => {
                    let (dir, name) = self.parent(&path)?;
                    self.change(vec![(dir, name, None)]);
                }
                Ok(Node::Dir(_)) => return Err(io::ErrorKind::IsADirectory.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            },
            DirOp::RemoveAll(path) => match self.node(&path) {
                Ok(node) => {
                    if let Node::Dir(dir) = node {
                        self.empty(&dir);
                    }
                    let (dir, name) = self.parent(&path)?;
                    self.change(vec![(dir, name, None)]);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            },
            DirOp::Sync(path) => {
                let dir = self.dir(&path)?;
                self.settle(|change| change.touches(&dir));
            }
            DirOp::Stat(path) => {
                return Ok(match self.node(&path)? {
                    Node::File(inode) => DirDone::Stat {
                        size: u64::try_from(inode.size()).unwrap_or(u64::MAX),
                        modified_ms: inode.modified_ms.get(),
                        is_dir: false,
                    },
                    Node::Dir(_) => DirDone::Stat { size: 0, modified_ms: 0, is_dir: true },
                });
            }
            DirOp::SetModified { path, modified_ms } => {
                if let Node::File(inode) = self.node(&path)? {
                    inode.modified_ms.set(modified_ms);
                }
            }
            // Answered by the disk, which knows its capacity.
            DirOp::Space(path) => drop(self.node(&path)?),
        }
        Ok(DirDone::Done)
    }

    fn list(&self, path: &Path) -> io::Result<DirDone> {
        let dir = self.dir(path)?;
        let entries = dir.live.borrow();
        let entry = |(name, node): (&String, &Node)| match node {
            Node::File(inode) => DirEntry {
                name: name.clone(),
                is_dir: false,
                size: u64::try_from(inode.size()).unwrap_or(u64::MAX),
            },
            Node::Dir(_) => DirEntry { name: name.clone(), is_dir: true, size: 0 },
        };
        Ok(DirDone::Entries(entries.iter().map(entry).collect()))
    }

    fn create_all(&self, path: &Path) -> io::Result<()> {
        let mut dir = self.root.clone();
        for name in names(path) {
            let found = dir.live.borrow().get(&name).cloned();
            dir = match found {
                Some(Node::Dir(next)) => next,
                Some(Node::File(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
                None => {
                    let next = Rc::new(Dir::default());
                    self.change(vec![(dir, name, Some(Node::Dir(next.clone())))]);
                    next
                }
            };
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.node(from)?;
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        if to.starts_with(from) {
            return if to == from { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) };
        }
        match (&node, self.node(to)) {
            (Node::File(_), Ok(Node::Dir(_))) => return Err(io::ErrorKind::IsADirectory.into()),
            (Node::Dir(_), Ok(Node::File(_))) => return Err(io::ErrorKind::NotADirectory.into()),
            (Node::Dir(_), Ok(Node::Dir(target))) if !target.live.borrow().is_empty() => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            _ => {}
        }
        self.change(vec![(from_dir, from_name, None), (to_dir, to_name, Some(node))]);
        Ok(())
    }

    /// One change per name, from the leaves up: a crash may leave a directory half empty.
    fn empty(&self, dir: &Rc<Dir>) {
        let entries: Vec<_> =
            dir.live.borrow().iter().map(|(name, node)| (name.clone(), node.clone())).collect();
        for (name, node) in entries {
            if let Node::Dir(child) = node {
                self.empty(&child);
            }
            self.change(vec![(dir.clone(), name, None)]);
        }
    }

    /// Makes the chosen changes durable, in their order.
    fn settle(&self, mut chosen: impl FnMut(&Change) -> bool) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        let mut rest = Vec::new();
        for change in pending {
            if chosen(&change) {
                change.apply(|dir| &dir.durable);
            } else {
                rest.push(change);
            }
        }
        *self.pending.borrow_mut() = rest;
    }

    /// Brings some pages of each file down, and the first of the pending changes of names.
    pub(super) fn write_back(&self, random: &Random) {
        fn of(dir: &Dir, random: &Random) {
            for node in dir.live.borrow().values() {
                match node {
                    Node::File(inode) => inode.write_back(random),
                    Node::Dir(dir) => of(dir, random),
                }
            }
        }
        of(&self.root, random);
        let mut left = below_len(random, self.pending.borrow().len().saturating_add(1));
        self.settle(|_| {
            let is_first = left > 0;
            left = left.saturating_sub(1);
            is_first
        });
    }

    /// A number that tells trees apart by what is in them.
    pub(super) fn fingerprint(&self) -> u64 {
        fn mix(sum: u64, next: u64) -> u64 {
            Random::new(sum ^ next).next()
        }
        fn crc(bytes: &[u8]) -> u64 {
            crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
        }
        fn of(dir: &Dir, sum: u64) -> u64 {
            let entries = dir.live.borrow();
            let sum = entries.iter().fold(sum, |sum, (name, node)| {
                let sum = mix(sum, crc(name.as_bytes()));
                match node {
                    Node::File(inode) => {
                        let live = inode.live.borrow();
                        mix(sum, crc(&live) ^ u64::try_from(live.len()).unwrap_or(u64::MAX))
                    }
                    Node::Dir(dir) => of(dir, sum),
                }
            });
            // Where a directory ends.
            mix(sum, 1)
        }
        of(&self.root, 0)
    }

    /// A new tree as the crash leaves it; this one is not changed, and its pending names stay pending.
    pub(super) fn crash(&self, mode: Crash) -> Self {
        let random = Random::new(mode.seed());
        let overlay = self.surviving_names(mode, &random);
        let root = copy_dir(&self.root, &overlay, mode, &random, &mut Vec::new());
        Self { root, pending: RefCell::default() }
    }

    /// Which pending changes survive: per directory a prefix, and a change in two directories only if in both; or any of
    /// them.
    fn surviving_names(&self, mode: Crash, random: &Random) -> Vec<(Rc<Dir>, String, Option<Node>)> {
        let mut stopped: Vec<Rc<Dir>> = Vec::new();
        let mut survivors = Vec::new();
        for change in self.pending.borrow().iter() {
            let keep = match mode {
                Crash::KeepAll => true,
                Crash::DropUnsynced => false,
                Crash::Torn(_) => random.below(4) != 0 && !stopped.iter().any(|dir| change.touches(dir)),
                Crash::Scattered(_) => random.below(2) == 0,
            };
            if keep {
                survivors.extend(change.0.iter().cloned());
            } else {
                stopped.extend(change.0.iter().map(|(dir, _, _)| dir.clone()));
            }
        }
        survivors
    }
}

type Copied = Vec<(Rc<Inode>, Rc<Inode>)>;

fn copy_dir(
    dir: &Rc<Dir>,
    overlay: &[(Rc<Dir>, String, Option<Node>)],
    mode: Crash,
    random: &Random,
    copied: &mut Copied,
) -> Rc<Dir> {
    let mut entries = dir.durable.borrow().clone();
    for (of, name, node) in overlay {
        if Rc::ptr_eq(of, dir) {
            match node {
                Some(node) => drop(entries.insert(name.clone(), node.clone())),
                None => drop(entries.remove(name)),
            }
        }
    }
    let mut after = BTreeMap::new();
    for (name, node) in entries {
        let node = match node {
            Node::File(inode) => Node::File(copy_file(&inode, mode, random, copied)),
            Node::Dir(child) => Node::Dir(copy_dir(&child, overlay, mode, random, copied)),
        };
        after.insert(name, node);
    }
    Rc::new(Dir { live: RefCell::new(after.clone()), durable: RefCell::new(after) })
}

/// A file that a torn rename left under two names stays one file.
fn copy_file(inode: &Rc<Inode>, mode: Crash, random: &Random, copied: &mut Copied) -> Rc<Inode> {
    if let Some((_, copy)) = copied.iter().find(|(original, _)| Rc::ptr_eq(original, inode)) {
        return copy.clone();
    }
    let content = inode.crashed(mode, random);
    let copy = Rc::new(Inode {
        live: RefCell::new(content.clone()),
        durable: RefCell::new(content),
        modified_ms: inode.modified_ms.clone(),
        ..Inode::default()
    });
    copied.push((inode.clone(), copy.clone()));
    copy
}

fn names(path: &Path) -> impl Iterator<Item = String> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    })
}
