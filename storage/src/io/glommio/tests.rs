//! What the simulation promises of files holds for the real ones.

use std::pin::pin;

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};

use super::*;

fn on_shard<F: Future<Output = ()> + 'static>(work: impl FnOnce(GlommioRuntime) -> F + Send + 'static) {
    LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(1 << 20)
        .ring_depth(128)
        .preempt_timer(Duration::from_millis(10))
        .blocking_thread_pool_placement(PoolPlacement::Unbound(2))
        .spawn(move || async move {
            let runtime = GlommioRuntime::new();
            // As on every shard: the bound on a park with tasks to run (glommio.md b1). Without it a test can hang.
            let tick = runtime.clone();
            let ticker = runtime.spawn(Queue::Background, async move {
                loop {
                    tick.sleep_until(tick.now().plus_ms(20)).await;
                }
            });
            work(runtime.clone()).await;
            drop(ticker);
            runtime.drain().await;
        })
        .unwrap()
        .join()
        .unwrap();
}

/// Waits for what happens soon: a queue has its turn when the executor finds time for it.
async fn until(runtime: &GlommioRuntime, happened: impl Fn() -> bool) {
    let deadline = runtime.now().plus_ms(60_000);
    while !happened() {
        assert!(runtime.now() < deadline, "it did not happen");
        runtime.sleep_until(runtime.now().plus_ms(1)).await;
    }
}

#[test]
fn a_file_is_written_read_cut_synced_and_outlives_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/f");
    on_shard(move |runtime| async move {
        let parent = path.parent().unwrap().to_owned();
        let missing = runtime.open(&path, Open::Create).await.err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        runtime.dir(DirOp::CreateAll(parent.clone())).await.unwrap();
        let file = runtime.open(&path, Open::Create).await.unwrap();
        assert_eq!(file.write_at(Bytes::from_static(b"hello world"), 0).await.unwrap(), 11);
        assert_eq!(file.read_at(6, 100).await.unwrap(), &b"world"[..]);
        assert!(file.read_at(11, 1).await.unwrap().is_empty());
        file.truncate(5).await.unwrap();
        assert_eq!(file.size().await.unwrap(), 5);
        futures_util::future::try_join_all((0..20).map(|_| file.sync_data())).await.unwrap();
        runtime.dir(DirOp::Sync(parent.clone())).await.unwrap();
        let span = file.span(1, 3);
        drop(file);
        runtime.dir(DirOp::Unlink(path.clone())).await.unwrap();
        runtime.dir(DirOp::Unlink(path.clone())).await.unwrap();
        let Span::File { fd, at, len } = span else { panic!() };
        let read = runtime.read_span(&fd, at, usize::try_from(len).unwrap()).await.unwrap();
        assert_eq!(read, &b"ell"[..]);
        let gone = runtime.open(&path, Open::Existing).await.err().unwrap();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn what_is_in_memory_is_read_at_once() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = dir.path().join("f");
    on_shard(move |runtime| async move {
        let file = runtime.open(&path, Open::CreateEmpty).await.unwrap();
        file.write_at(Bytes::from_static(b"hello world"), 0).await.unwrap();
        let mut into = [0; 20];
        // Not every file system says what is in memory.
        if let Some(read) = file.read_now(6, &mut into) {
            assert_eq!(into.get(..read.unwrap()), Some(&b"world"[..]));
            assert_eq!(file.read_now(11, &mut into).unwrap().unwrap(), 0, "the end of the file");
        }
        let mut much = vec![0; READ_NOW_BYTES_MAX + 1];
        assert!(file.read_now(0, &mut much).is_none());
    });
}

#[test]
fn a_large_write_is_made_in_pieces_whichever_way_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    on_shard(move |runtime| async move {
        let content = Bytes::from((0..=250u8).cycle().take(3 * WRITE_NOW_BYTES_MAX + 5).collect::<Vec<_>>());
        let file = runtime.open(&path, Open::CreateEmpty).await.unwrap();
        let write = async |content: &Bytes| {
            let mut done = 0;
            while done < content.len() {
                let at = u64::try_from(done).unwrap();
                done += file.write_at(content.slice(done..), at).await.unwrap();
            }
            file.read_at(0, content.len() + 1).await.unwrap()
        };
        assert_eq!(write(&content).await, content);
        // Slow writes: the ring has the next ones.
        let now = runtime.now();
        for _ in 0..2 {
            runtime.0.pace.borrow_mut().wrote(1, now, now.plus_ms(1000));
        }
        assert_eq!(runtime.0.pace.borrow_mut().way(now.plus_ms(1)).0, Way::Ring);
        let other = content.slice(1..);
        assert_eq!(write(&other).await.get(..other.len()), Some(&other[..]));
    });
}

#[test]
fn directories_answer_as_the_simulated_ones_do() {
    let root = tempfile::tempdir().unwrap().keep();
    on_shard(move |runtime| async move {
        let dir = |op| runtime.dir(op);
        dir(DirOp::CreateAll(root.join("x"))).await.unwrap();
        let file = runtime.open(&root.join("y"), Open::CreateEmpty).await.unwrap();
        file.write_at(Bytes::from_static(b"12"), 0).await.unwrap();
        let entries = dir(DirOp::List(root.clone())).await.unwrap();
        let entry = |name: &str, is_dir, size| DirEntry { name: name.into(), is_dir, size };
        assert_eq!(entries, DirDone::Entries(vec![entry("x", true, 0), entry("y", false, 2)]));
        let modified_ms = 1_700_000_000_123;
        dir(DirOp::SetModified { path: root.join("y"), modified_ms }).await.unwrap();
        let stat = dir(DirOp::Stat(root.join("y"))).await.unwrap();
        assert_eq!(stat, DirDone::Stat { size: 2, modified_ms, is_dir: false });
        dir(DirOp::Rename { from: root.join("y"), to: root.join("x/z") }).await.unwrap();
        let DirDone::Space { total, usable } = dir(DirOp::Space(root.clone())).await.unwrap() else {
            panic!()
        };
        assert!(total >= usable && usable > 0);
        dir(DirOp::RemoveAll(root.clone())).await.unwrap();
        dir(DirOp::RemoveAll(root.clone())).await.unwrap();
        let gone = dir(DirOp::Stat(root.clone())).await.err().unwrap();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn time_passes_and_cancelled_tasks_stop() {
    on_shard(|runtime| async move {
        let before = runtime.now();
        runtime.sleep_until(before.plus_ms(5)).await;
        assert!(runtime.now() >= before.plus_ms(5));
        runtime.turn().await;
        runtime.sleep_until(before).await;
        let never = std::pin::pin!(runtime.sleep_until(MonoTime::new(u64::MAX)));
        let soon = std::pin::pin!(runtime.sleep_until(runtime.now().plus_ms(1)));
        let first = futures_util::future::select(never, soon).await;
        assert!(matches!(first, futures_util::future::Either::Right(_)));
        let ran = Rc::new(Cell::new(0));
        let inside = ran.clone();
        let task = runtime.spawn(Queue::Background, async move {
            inside.set(1);
            std::future::pending::<()>().await;
        });
        until(&runtime, || ran.get() == 1).await;
        drop(task);
        until(&runtime, || Rc::strong_count(&ran) == 1).await;
        assert!(runtime.wall_ms() > 1_600_000_000_000);
    });
}

/// The kernel holds locks of a file while it writes it back: whoever appends with the shard's own thread waits for them.
#[test]
fn a_file_that_is_being_synced_is_not_written_by_the_shard_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    on_shard(move |runtime| async move {
        let file = runtime.open(&path, Open::Create).await.unwrap();
        let other = runtime.open(&path.with_extension("other"), Open::Create).await.unwrap();
        let write = |file: &GlommioFile| file.write_now(&[IoSlice::new(b"x")], 0).map(Result::unwrap);
        // Where the machine has so many dirty pages that everything goes through the ring, this shows less.
        let is_inline = write(&file).is_some();
        let mut sync = pin!(file.sync_data());
        assert!(futures_util::poll!(sync.as_mut()).is_pending());
        assert_eq!(file.0.syncing.get(), 1);
        assert_eq!(write(&file.clone()), None, "clones are one file");
        assert_eq!(write(&other).is_some(), is_inline, "another file does not wait");
        sync.await.unwrap();
        assert_eq!(file.0.syncing.get(), 0);
        assert_eq!(write(&file).is_some(), is_inline, "nothing is left behind by a sync that has ended");
        let mut dropped = Box::pin(file.sync_data());
        assert!(futures_util::poll!(dropped.as_mut()).is_pending());
        drop(dropped);
        assert_eq!(file.0.syncing.get(), 0);
    });
}

/// Pages of the range that are dirty; `None` where the kernel does not tell.
fn dirty_pages_of(fd: RawFd, len: u64) -> Option<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [0u64, len];
    let mut statistics = [0u64; 5];
    // SAFETY: the descriptor is open; both arrays are laid out as the kernel's structures and live over the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, fd, range.as_ptr(), statistics.as_mut_ptr(), 0u32) };
    (result == 0).then(|| statistics[1] + statistics[2])
}

#[test]
fn what_appends_do_not_touch_any_more_is_written_back_before_a_sync() {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::io::Write::write_all(&mut file, &vec![7; (5 << 20) + 17]).unwrap();
    let fd = file.as_file().as_raw_fd();
    let Some(dirty) = dirty_pages_of(fd, 4 << 20) else { return };
    write_back_settled(fd).unwrap();
    assert_eq!(dirty_pages_of(fd, 4 << 20), Some(0), "{dirty} pages before");
}

#[test]
fn a_sync_takes_files_of_every_size_and_what_is_none() {
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    for len in [0, 1, 2 << 20, (2 << 20) + 1] {
        file.as_file_mut().set_len(len).unwrap();
        write_back_settled(file.as_file().as_raw_fd()).unwrap();
    }
    let (pipe, _writer) = io::pipe().unwrap();
    write_back_settled(pipe.as_raw_fd()).unwrap();
}

/// A file that an opener waits for until somebody writes to it: an operation that never ends.
fn fifo(path: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "{}", io::Error::last_os_error());
}

/// Does something, and says when it takes as long as for ever.
async fn soon<T>(runtime: &GlommioRuntime, what: &str, work: impl Future<Output = T>) -> T {
    let limit = pin!(runtime.sleep_until(runtime.now().plus_ms(30_000)));
    match futures_util::future::select(pin!(work), limit).await {
        futures_util::future::Either::Left((done, _)) => done,
        futures_util::future::Either::Right(_) => panic!("{what} waits for another directory"),
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "opens a pipe past the runtime, which waits for that")]
fn a_log_dir_whose_operations_hang_holds_up_no_other() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().to_owned();
    on_shard(move |runtime| async move {
        let (slow, fast) = (home.join("slow/t-0"), home.join("fast/t-0"));
        for dir in [&slow, &fast] {
            runtime.dir(DirOp::CreateAll(dir.clone())).await.unwrap();
        }
        let fifos: Vec<_> = (0..8).map(|number| slow.join(format!("{number}"))).collect();
        fifos.iter().for_each(|path| fifo(path));
        let opened = Rc::new(Cell::new(0));
        let open = |path: &std::path::PathBuf| {
            let (runtime, path, opened) = (runtime.clone(), path.clone(), opened.clone());
            let inside = runtime.clone();
            runtime.spawn(Queue::Background, async move {
                inside.open(&path, Open::Read).await.unwrap();
                opened.set(opened.get() + 1);
            })
        };
        let tasks: Vec<_> = fifos.iter().map(open).collect();
        // They stand in their lane.
        runtime.turn().await;
        let file = soon(&runtime, "an open", runtime.open(&fast.join("f"), Open::Create)).await.unwrap();
        soon(&runtime, "a write", file.write_at(Bytes::from_static(b"hello"), 0)).await.unwrap();
        soon(&runtime, "a cut", file.truncate(4)).await.unwrap();
        soon(&runtime, "a sync", file.sync_data()).await.unwrap();
        let Span::File { fd, .. } = file.span(0, 4) else { panic!() };
        soon(&runtime, "a cold read", runtime.read_ahead(&fd, 0, 4, 4)).await.unwrap();
        for op in [
            DirOp::List(fast.clone()),
            DirOp::Sync(fast.clone()),
            DirOp::Stat(fast.join("f")),
            DirOp::Rename { from: fast.join("f"), to: fast.join("g") },
            DirOp::RemoveAll(fast.clone()),
        ] {
            soon(&runtime, "an operation on names", runtime.dir(op)).await.unwrap();
        }
        assert_eq!(opened.get(), 0);
        // Of a pipe that is open both ways nobody waits.
        let held: Vec<_> =
            fifos.iter().map(|path| fs::File::options().read(true).write(true).open(path).unwrap()).collect();
        until(&runtime, || opened.get() == 8).await;
        drop((tasks, held));
    });
}

#[test]
fn long_work_of_one_kind_holds_up_no_other_in_the_same_log_dir() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().to_owned();
    on_shard(move |runtime| async move {
        let dir = home.join("t-0");
        runtime.dir(DirOp::CreateAll(dir.clone())).await.unwrap();
        let file = runtime.open(&dir.join("f"), Open::Create).await.unwrap();
        file.write_at(Bytes::from_static(b"hello"), 0).await.unwrap();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let removal = runtime.blocking(Place::of_dir(&dir), Kind::Removal, move || wait.recv().is_ok());
        let mut removal = pin!(removal);
        assert!(futures_util::poll!(removal.as_mut()).is_pending());
        let Span::File { fd, .. } = file.span(0, 5) else { panic!() };
        soon(&runtime, "a cold read", runtime.read_ahead(&fd, 0, 5, 5)).await.unwrap();
        soon(&runtime, "a sync", file.sync_data()).await.unwrap();
        soon(&runtime, "an open", runtime.open(&dir.join("g"), Open::Create)).await.unwrap();
        soon(&runtime, "a removal of a name", runtime.dir(DirOp::Unlink(dir.join("g")))).await.unwrap();
        // A second one waits behind it: the disk gains nothing from two.
        let mut second = pin!(runtime.dir(DirOp::Unlink(dir.join("f.deleted"))));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        go_on.send(()).unwrap();
        assert!(removal.await);
        second.await.unwrap();
    });
}

#[test]
fn threads_of_long_work_give_way_to_the_shard_and_those_that_it_waits_for_do_not() {
    // SAFETY: no memory is involved; 0 is the calling thread.
    let niceness = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    on_shard(move |runtime| async move {
        let place = Place::of_dir(Path::new("/d"));
        let own = niceness();
        for kind in [Kind::Ahead, Kind::Removal, Kind::Close] {
            let theirs = runtime.blocking(place.clone(), kind, niceness).await;
            assert!(theirs > own || own == 19, "{kind:?}: {theirs} beside {own}");
        }
        for kind in [Kind::Sync, Kind::Names] {
            assert_eq!(runtime.blocking(place.clone(), kind, niceness).await, own, "{kind:?}");
        }
    });
}

#[test]
fn what_is_quick_does_not_stand_behind_what_is_slow_while_a_thread_is_free() {
    on_shard(|runtime| async move {
        let place = || Place::Dir(Path::new("/somewhere").into());
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let mut slow = pin!(runtime.blocking(place(), Kind::Names, move || wait.recv().is_ok()));
        assert!(futures_util::poll!(slow.as_mut()).is_pending());
        let quick = (0..20).map(|number| runtime.blocking(place(), Kind::Names, move || number));
        let done = soon(&runtime, "what is quick", futures_util::future::join_all(quick)).await;
        assert_eq!(done, (0..20).collect::<Vec<_>>());
        go_on.send(()).unwrap();
        assert!(slow.await);
    });
}

/// How often the calling thread has given its core away to wait.
fn waits() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is the kernel's and lives over the call, which fills it.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    usage.ru_nvcsw
}

#[test]
fn a_turn_on_an_idle_shard_is_no_sleep() {
    const TURNS: i64 = 5_000;
    on_shard(|_| async move {
        // The first timer of an executor takes long.
        turn(TURN).await;
        for (timer, are_sleeps) in [(TURN, false), (Duration::from_micros(50), true)] {
            let before = waits();
            for _ in 0..TURNS {
                turn(timer).await;
            }
            let waited = waits() - before;
            assert_eq!(waited > TURNS / 4, are_sleeps, "{waited} of {TURNS} turns of {timer:?} were sleeps");
        }
    });
}

#[test]
fn a_turn_goes_through_the_reactor_also_when_its_timer_has_passed_too_early() {
    let mut context = Context::from_waker(std::task::Waker::noop());
    let mut made = 0;
    let waiting = pending(&mut context, || {
        made += 1;
        poll_fn(move |_| if made < 4 { Poll::Ready(made) } else { Poll::Pending })
    });
    drop(waiting);
    assert_eq!(made, 4);
}

#[test]
fn who_has_a_turn_finds_that_the_others_and_the_disk_had_theirs() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = dir.path().join("f");
    on_shard(move |runtime| async move {
        let file = runtime.open(&path, Open::CreateEmpty).await.unwrap();
        file.write_at(Bytes::from_static(b"hello"), 0).await.unwrap();
        let fd = file.fd().unwrap();
        let done = Rc::new(Cell::new(0));
        let (reader, count) = (runtime.clone(), done.clone());
        let _reading = runtime.spawn(Queue::Request, async move {
            loop {
                reader.read_span(&fd, 0, 5).await.unwrap();
                count.set(count.get() + 1);
            }
        });
        let deadline = runtime.now().plus_ms(60_000);
        while done.get() < 50 {
            assert!(runtime.now() < deadline, "nobody had a turn");
            runtime.turn().await;
        }
    });
}

#[test]
fn a_thread_without_work_ends_and_another_one_is_started_when_there_is_some() {
    use std::sync::mpsc::{Sender, TryRecvError, channel};
    thread_local! {
        static HELD: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
    }
    on_shard(|runtime| async move {
        let limits = Limits { idle_ms_max: 20, ..Limits::DEFAULT };
        let workers = Workers::new(Placing { unbind, give_way }, limits);
        let place = || Place::of_dir(Path::new("/d"));
        for _ in 0..2 {
            let (held, ended) = channel::<()>();
            workers.run(place(), Kind::Sync, move || HELD.set(Some(held))).await;
            assert_eq!(ended.try_recv(), Err(TryRecvError::Empty));
            until(&runtime, || ended.try_recv() == Err(TryRecvError::Disconnected)).await;
        }
    });
}

#[test]
fn without_a_thread_of_its_own_work_is_done_beside_the_shard_all_the_same() {
    on_shard(|runtime| async move {
        let limits = Limits { threads_max: 0, ..Limits::DEFAULT };
        let workers = Workers::new(Placing { unbind, give_way }, limits);
        let place = || Place::of_dir(Path::new("/d"));
        let shard = std::thread::current().id();
        let elsewhere = || std::thread::current().id();
        assert_ne!(workers.run(place(), Kind::Names, elsewhere).await, shard);
        let (tell, told) = std::sync::mpsc::channel();
        workers.post(place(), Kind::Close, move || tell.send(elsewhere()).unwrap());
        let by = Cell::new(None);
        until(&runtime, || told.try_recv().map(|id| by.set(Some(id))).is_ok()).await;
        assert_ne!(by.get(), Some(shard));
    });
}
