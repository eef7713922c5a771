//! The metadata store of one machine: the tree in memory on shard 0, persisted by redb on a thread of its own (redb
//! blocks). What is queued while a commit runs shares the next one. Sessions are process lifetimes, so ephemeral nodes
//! are never written. Called by the broker's start.
//!
//! ```text
//! table "nodes"  path -> record (tree.rs)
//! table "meta"   "format" -> 1, "zxid" -> last transaction, ephemeral ones included: broker epochs never repeat
//! ```
//!
//! A commit that finds the disk full is tried again until there is room; what is asked meanwhile waits. Any other failed
//! commit is never retried, since the tree in memory is then ahead of the file: whoever opened the store is told, before
//! anybody is answered, and ends the process; where it does not, every later request answers `Unwritable`.

mod backing;

use std::io::{self, ErrorKind, Read};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use redb::{Database, ReadableTable, StorageBackend, TableDefinition, TableError};

use self::backing::{Backing, is_full};
use super::local::{Committer, Job, LocalStore, Shared};
use super::tree::{DamagedRecord, Tree};

/// Name of the file, at the top of the first log directory: Kafka ignores plain files there (S-11).
pub const FILE_NAME: &str = "odradek-metadata.redb";

const NODES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("nodes");
const META: TableDefinition<'_, &str, i64> = TableDefinition::new("meta");
const FORMAT: i64 = 1;
/// The tree itself is in memory, so redb needs no more than the pages of one commit.
const CACHE_BYTES: usize = 4 << 20;
/// On a full disk, how long after a failed commit the next one is tried: redb has to read its whole file for it. Each pause
/// is twice as long as the one before it, up to the last.
const FULL_PAUSE: Duration = Duration::from_millis(100);
const FULL_PAUSE_MAX: Duration = Duration::from_millis(3200);

/// Why the file of the metadata store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the metadata store is in use by another process")]
    InUse,
    /// It is not a metadata store, or its content is damaged.
    #[error("the metadata store is damaged: {0}")]
    Damaged(DamageKind),
    /// It was written by a release that knows more than this one.
    #[error("the metadata store has format {found}, this release knows {FORMAT}")]
    Format {
        /// The format it has.
        found: i64,
    },
    /// The operating system refused.
    #[error("the metadata store cannot be opened: {0}")]
    Io(#[from] io::Error),
}

/// What is damaged in the file of the metadata store.
#[derive(Debug, thiserror::Error)]
pub enum DamageKind {
    /// Its pages: not a redb file, a torn one, or a checksum that does not hold.
    #[error("{0}")]
    Pages(Box<redb::Error>),
    /// Its first page: not a redb file, or one that was cut.
    #[error("its first page does not fit the file")]
    Layout,
    /// Something that redb asserts; seen only in builds that unwind.
    #[error("its pages contradict each other")]
    Asserted,
    /// A checksum does not hold.
    #[error("a page fails its checksum")]
    Checksum,
    /// One record.
    #[error(transparent)]
    Record(#[from] DamagedRecord),
}

/// What is done when the store cannot write any more.
pub type OnFailure = fn(file: &Path, why: &dyn std::error::Error);

/// An opened file and the thread that writes it; becomes a store on the shard that will own it.
pub struct EmbeddedFile {
    tree: Tree,
    writer: Writer,
}

/// The embedded metadata store.
pub type EmbeddedStore = LocalStore<Writer>;

/// Hands jobs to the writer's thread; ends the thread, after what is queued, when it is dropped.
pub struct Writer {
    /// One job per unanswered request: who asks bounds them (the controller has one call open, admin one per wish).
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Committer for Writer {
    fn submit(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // After a failed commit the thread is gone, and dropping the job tells its caller.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Waits for the last commit only; a panic there aborts the process anyway (A-6).
            let _ = thread.join();
        }
    }
}

impl EmbeddedFile {
    /// Opens or creates the file, reads all of it and starts the writer's thread. Blocks: called before the shards
    /// start, so that the thread is not pinned to the core of one.
    ///
    /// redb asserts on some damages instead of reporting them, and a panic aborts the process (A-6). `on_panic` is
    /// called first, so that the process can end with a sentence and its own exit code instead. `on_failure` is called
    /// on the writer's thread with what ended it.
    ///
    /// # Errors
    /// See [`OpenError`]; the content of the file is the same then.
    pub fn open(path: &Path, on_panic: fn(), on_failure: OnFailure) -> Result<Self, OpenError> {
        let opener = thread::current().id();
        let before: Arc<dyn Fn(&PanicHookInfo<'_>) + Send + Sync> = Arc::from(panic::take_hook());
        let fallback = Arc::clone(&before);
        panic::set_hook(Box::new(move |info| {
            if thread::current().id() == opener {
                on_panic();
            }
            fallback(info);
        }));
        let opened = panic::catch_unwind(AssertUnwindSafe(|| {
            let database = open_database(path)?;
            let tree = load(&database)?;
            Ok::<_, OpenError>((database, tree))
        }));
        panic::set_hook(Box::new(move |info| before(info)));
        let (database, tree) = opened.unwrap_or(Err(OpenError::Damaged(DamageKind::Asserted)))?;
        let (jobs, queue) = mpsc::channel();
        let path = path.to_owned();
        let thread = Builder::new()
            .name("metadata-writer".to_owned())
            .spawn(move || write(database, &path, &queue, on_failure))?;
        Ok(Self { tree, writer: Writer { jobs: Some(jobs), thread: Some(thread) } })
    }

    /// Makes the store on this thread, with its first session.
    pub fn start(self, wall_ms: impl Fn() -> i64 + 'static) -> EmbeddedStore {
        LocalStore::first(&Shared::new(self.tree, self.writer, Box::new(wall_ms)))
    }
}

fn damaged(error: impl Into<redb::Error>) -> OpenError {
    match error.into() {
        // redb says so of a file that does not begin with its magic, and of pages beyond the end of the file.
        redb::Error::Io(error)
            if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) =>
        {
            OpenError::Damaged(DamageKind::Pages(Box::new(redb::Error::Io(error))))
        }
        redb::Error::Io(error) => OpenError::Io(error),
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse,
        error => OpenError::Damaged(DamageKind::Pages(Box::new(error))),
    }
}

/// What redb's first page says of the layout of the file. redb asserts on it where it should fail, and a panic ends the
/// process without a word, so it is looked at before (redb 2.6, `page_store/header.rs`).
struct Layout {
    recovery_required: bool,
    page_size: u32,
    region_header_pages: u32,
    region_data_pages: u32,
    full_regions: u32,
    trailing_pages: u32,
}

/// Layout fields that redb gives every file with pages of 4 KiB.
const PAGE_SIZE: u32 = 4096;
const REGION_HEADER_PAGES: u32 = 130;
const REGION_DATA_PAGES: u32 = 1 << 20;

impl Layout {
    fn parse(mut head: &[u8]) -> Option<Self> {
        if head.len() < 32 || !head.starts_with(b"redb\x1a\x0a\xa9\x0d\x0a") {
            return None;
        }
        head.advance(9);
        let recovery_required = head.get_u8() & 2 != 0;
        head.advance(2);
        Some(Self {
            recovery_required,
            page_size: head.get_u32_le(),
            region_header_pages: head.get_u32_le(),
            region_data_pages: head.get_u32_le(),
            full_regions: head.get_u32_le(),
            trailing_pages: head.get_u32_le(),
        })
    }

    /// Whether a file of this length can have this layout; after an unclean end it may be longer.
    fn fits(&self, file_len: u64) -> bool {
        let fixed = (self.page_size, self.region_header_pages, self.region_data_pages);
        if fixed != (PAGE_SIZE, REGION_HEADER_PAGES, REGION_DATA_PAGES)
            || self.trailing_pages >= REGION_DATA_PAGES
        {
            return false;
        }
        let header_pages = u64::from(REGION_HEADER_PAGES);
        let full = u64::from(self.full_regions) * (header_pages + u64::from(REGION_DATA_PAGES));
        let trailing =
            if self.trailing_pages == 0 { 0 } else { header_pages + u64::from(self.trailing_pages) };
        let len = (1 + full + trailing) * u64::from(PAGE_SIZE);
        full + trailing > 0 && if self.recovery_required { file_len >= len } else { file_len == len }
    }
}

#[allow(clippy::disallowed_methods, reason = "redb reads the file itself, before there is a runtime")]
fn check_layout(path: &Path) -> Result<(), OpenError> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let file_len = file.metadata()?.len();
    // A file of no bytes is what a crash leaves between creating it and writing the first page.
    if file_len == 0 {
        return Ok(());
    }
    let mut head = [0; 64];
    let fits = file.read_exact(&mut head).is_ok()
        && Layout::parse(&head).is_some_and(|layout| layout.fits(file_len));
    if fits { Ok(()) } else { Err(OpenError::Damaged(DamageKind::Layout)) }
}

fn open_database(path: &Path) -> Result<Database, OpenError> {
    check_layout(path)?;
    let backing = Backing::open(path).map_err(damaged)?;
    open_backend(backing)
}

fn open_backend(backing: impl StorageBackend) -> Result<Database, OpenError> {
    let is_new = backing.len().map_err(OpenError::Io)? == 0;
    let mut database = match redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backing) {
        Ok(database) => database,
        Err(error) => return Err(damaged(error)),
    };
    if is_new {
        return Ok(database);
    }
    let before = records(&database)?;
    // Reads every page once: the checksums are otherwise looked at only after an unclean end.
    if database.check_integrity().map_err(damaged)? {
        return Ok(database);
    }
    // It was repaired. A process that was killed while it repaired an unclean end leaves no more to do than that: then
    // nothing that was committed has changed, and there is nothing to repair a second time.
    if records(&database)? != before || !database.check_integrity().map_err(damaged)? {
        return Err(OpenError::Damaged(DamageKind::Checksum));
    }
    tracing::info!("the metadata store was left half repaired, and is in order now");
    Ok(database)
}

fn load(database: &Database) -> Result<Tree, OpenError> {
    match records(database)? {
        Some((zxid, records)) => Tree::load(zxid, records).map_err(|error| OpenError::Damaged(error.into())),
        None => Ok(Tree::new()),
    }
}

/// The last transaction, and all records by their paths.
type Records = (i64, Vec<(String, Bytes)>);

/// What a database holds; `None` before its first commit.
fn records(database: &Database) -> Result<Option<Records>, OpenError> {
    let read = database.begin_read().map_err(damaged)?;
    let meta = match read.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(damaged(error)),
    };
    let number = |key: &str| -> Result<i64, OpenError> {
        Ok(meta.get(key).map_err(damaged)?.map_or(0, |value| value.value()))
    };
    let found = number("format")?;
    if found != FORMAT {
        return Err(OpenError::Format { found });
    }
    let nodes = read.open_table(NODES).map_err(damaged)?;
    let mut records = Vec::new();
    for entry in nodes.iter().map_err(damaged)? {
        let (path, record) = entry.map_err(damaged)?;
        records.push((path.value().to_owned(), Bytes::copy_from_slice(record.value())));
    }
    Ok(Some((number("zxid")?, records)))
}

/// The writer's thread: everything that is queued goes into one commit.
fn write(mut database: Database, path: &Path, queue: &mpsc::Receiver<Job>, on_failure: OnFailure) {
    while let Ok(first) = queue.recv() {
        let mut jobs = vec![first];
        jobs.extend(queue.try_iter());
        let committed = match commit(&database, &jobs) {
            Err(error) if is_full(&error) => {
                tracing::warn!("the disk is full: changes of topics wait for room");
                drop(database);
                commit_when_there_is_room(path, queue, &mut jobs)
            }
            other => other.map(|()| Some(database)),
        };
        database = match committed {
            Ok(Some(database)) => database,
            Ok(None) => return,
            Err(error) => {
                on_failure(path, &error);
                return;
            }
        };
        jobs.into_iter().for_each(Job::finish);
    }
}

/// Commits what is queued as soon as it finds room; after an error redb has to be opened anew, and stands at the commit
/// before. `None` when nobody waits any more.
fn commit_when_there_is_room(
    path: &Path,
    queue: &mpsc::Receiver<Job>,
    jobs: &mut Vec<Job>,
) -> Result<Option<Database>, Box<redb::Error>> {
    let mut next_pause = FULL_PAUSE;
    loop {
        if !gather(queue, jobs, next_pause) {
            return Ok(None);
        }
        next_pause = longer(next_pause);
        let opened = match open_database(path) {
            Ok(database) => database,
            Err(OpenError::Io(error)) => {
                let error = redb::Error::Io(error);
                if is_full(&error) {
                    continue;
                }
                return Err(Box::new(error));
            }
            Err(error) => return Err(Box::new(redb::Error::Corrupted(error.to_string()))),
        };
        match commit(&opened, jobs) {
            Err(error) if is_full(&error) => {}
            other => {
                tracing::info!("the metadata store has room again");
                return other.map(|()| Some(opened));
            }
        }
    }
}

/// The pause behind one that was not enough.
fn longer(pause: Duration) -> Duration {
    pause.saturating_mul(2).min(FULL_PAUSE_MAX)
}

/// Takes what is asked during a pause, which that does not shorten; `false`, at once, when nobody waits any more.
#[allow(clippy::disallowed_methods, reason = "a thread of its own, which no runtime gives the time")]
fn gather<T>(queue: &mpsc::Receiver<T>, into: &mut Vec<T>, pause: Duration) -> bool {
    let until = Instant::now() + pause;
    loop {
        match queue.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(job) => into.push(job),
            Err(mpsc::RecvTimeoutError::Timeout) => return true,
            Err(mpsc::RecvTimeoutError::Disconnected) => return false,
        }
    }
}

fn commit(database: &Database, jobs: &[Job]) -> Result<(), Box<redb::Error>> {
    let Some(last) = jobs.iter().rev().find_map(|job| job.changes.as_ref()) else { return Ok(()) };
    write_changes(database, jobs, last.zxid).map_err(Box::new)
}

#[allow(clippy::result_large_err, reason = "redb's error, boxed by the one caller; an error ends the thread")]
fn write_changes(database: &Database, jobs: &[Job], zxid: i64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut nodes = transaction.open_table(NODES)?;
        for (path, record) in
            jobs.iter().filter_map(|job| job.changes.as_ref()).flat_map(|changes| &changes.records)
        {
            match record {
                Some(record) => nodes.insert(path.as_str(), record.as_ref())?,
                None => nodes.remove(path.as_str())?,
            };
        }
        let mut meta = transaction.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("zxid", zxid)?;
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "files behind the store's back, and redb wants Sync"
)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file in memory that keeps what it was after each write.
    #[derive(Debug)]
    struct Recorder {
        content: Mutex<Vec<u8>>,
        states: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Recorder {
        fn change(&self, change: impl FnOnce(&mut Vec<u8>)) {
            let mut content = self.content.lock().unwrap();
            change(&mut content);
            self.states.lock().unwrap().push(content.clone());
        }
    }

    fn range(offset: u64, len: usize) -> std::ops::Range<usize> {
        let from = usize::try_from(offset).unwrap();
        from..from + len
    }

    impl StorageBackend for Recorder {
        fn len(&self) -> io::Result<u64> {
            Ok(self.content.lock().unwrap().len().try_into().unwrap())
        }

        fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
            Ok(self.content.lock().unwrap()[range(offset, len)].to_vec())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.change(|content| content.resize(usize::try_from(len).unwrap(), 0));
            Ok(())
        }

        fn sync_data(&self, _: bool) -> io::Result<()> {
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.change(|content| content[range(offset, data.len())].copy_from_slice(data));
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_tried_less_and_less_often_however_much_is_asked() {
        let mut pauses = vec![FULL_PAUSE];
        while pauses.last() != Some(&FULL_PAUSE_MAX) {
            pauses.push(longer(*pauses.last().unwrap()));
        }
        assert_eq!(pauses.len(), 6);
        assert_eq!(longer(FULL_PAUSE_MAX), FULL_PAUSE_MAX);
        let (asks, queue) = mpsc::channel();
        (0..100).for_each(|ask| asks.send(ask).unwrap());
        let (began, mut taken) = (Instant::now(), Vec::new());
        let pause = Duration::from_millis(30);
        assert!(gather(&queue, &mut taken, pause));
        assert!(began.elapsed() >= pause, "what is asked does not shorten the pause");
        assert_eq!(taken, Vec::from_iter(0..100));
        drop(asks);
        let began = Instant::now();
        assert!(!gather(&queue, &mut taken, Duration::from_secs(600)), "nobody waits");
        assert!(began.elapsed() < Duration::from_secs(300));
    }

    /// Five of 144 starts that were killed while they opened the store left one that the next start took for damaged.
    #[test]
    fn a_start_that_is_killed_while_it_opens_the_store_leaves_one_that_opens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let database = open_database(&path).unwrap();
        for round in 0..20_i64 {
            let write = database.begin_write().unwrap();
            {
                write.open_table(META).unwrap().insert("format", FORMAT).unwrap();
                write.open_table(META).unwrap().insert("zxid", round).unwrap();
                let mut nodes = write.open_table(NODES).unwrap();
                nodes.insert(&*format!("/n{round}"), &[7; 300][..]).unwrap();
            }
            write.commit().unwrap();
        }
        let known = records(&database).unwrap();
        // Its process dies.
        let killed = std::fs::read(&path).unwrap();
        drop(database);
        let states = Arc::new(Mutex::new(Vec::new()));
        let recorder = Recorder { content: Mutex::new(killed), states: states.clone() };
        let opened = open_backend(recorder).unwrap();
        assert_eq!(records(&opened).unwrap(), known);
        let states = std::mem::take(&mut *states.lock().unwrap());
        assert!(states.len() > 2, "it repairs: {}", states.len());
        for (at, state) in states.iter().enumerate() {
            std::fs::write(&path, state).unwrap();
            let opened = open_database(&path).unwrap_or_else(|error| panic!("after write {at}: {error}"));
            assert_eq!(records(&opened).unwrap(), known, "after write {at}");
        }
    }
}
