//! The simulated disk forgets what was not synced, and a seed repeats a run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;

fn write(runtime: &SimRuntime, path: &'static str, content: &'static [u8], sync: bool) {
    let inside = runtime.clone();
    runtime.block_on(async move {
        let file = inside.open(path.as_ref(), Open::Create).await.unwrap();
        assert_eq!(file.write_at(Bytes::from_static(content), 0).await.unwrap(), content.len());
        if sync {
            file.sync_data().await.unwrap();
        }
    });
}

fn dir(runtime: &SimRuntime, op: DirOp) -> io::Result<DirDone> {
    runtime.block_on(runtime.dir(op))
}

#[test]
fn a_crash_drops_names_and_content_that_were_not_synced() {
    let runtime = SimRuntime::new(1);
    dir(&runtime, DirOp::CreateAll("/d".into())).unwrap();
    dir(&runtime, DirOp::Sync("/".into())).unwrap();
    write(&runtime, "/d/synced", b"one", true);
    write(&runtime, "/d/unsynced", b"two", false);
    let before = runtime.disk().crash(Crash::DropUnsynced);
    assert_eq!(before.content("/d/synced"), None, "its name was never synced");
    dir(&runtime, DirOp::Sync("/d".into())).unwrap();
    let after = runtime.disk().crash(Crash::DropUnsynced);
    assert_eq!(after.content("/d/synced").unwrap(), b"one");
    assert_eq!(after.content("/d/unsynced").unwrap(), b"", "the name is there, the content is not");
    let kept = runtime.disk().crash(Crash::KeepAll);
    assert_eq!(kept.content("/d/unsynced").unwrap(), b"two");
}

#[test]
fn a_rename_without_sync_is_there_or_not_but_never_half() {
    let runtime = SimRuntime::new(2);
    write(&runtime, "/a", b"old", true);
    write(&runtime, "/b", b"new", true);
    dir(&runtime, DirOp::Sync("/".into())).unwrap();
    dir(&runtime, DirOp::Rename { from: "/b".into(), to: "/a".into() }).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let disk = runtime.disk().crash(Crash::Torn(seed));
        let state = (disk.content("/a"), disk.content("/b"));
        assert!(
            state == (Some(b"old".to_vec()), Some(b"new".to_vec())) || state == (Some(b"new".to_vec()), None)
        );
        seen.insert(state);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_torn_write_keeps_some_pages() {
    let runtime = SimRuntime::new(3);
    static OLD: [u8; 16384] = [1; 16384];
    static NEW: [u8; 16384] = [2; 16384];
    write(&runtime, "/f", &OLD, true);
    dir(&runtime, DirOp::Sync("/".into())).unwrap();
    write(&runtime, "/f", &NEW, false);
    let mut mixed = 0;
    for seed in 0..32 {
        let content = runtime.disk().crash(Crash::Torn(seed)).content("/f").unwrap();
        assert_eq!(content.len(), 16384);
        for page in content.chunks(4096) {
            assert!(page.iter().all(|&byte| byte == page[0]), "a page is old or new");
        }
        if content.contains(&1) && content.contains(&2) {
            mixed += 1;
        }
    }
    assert!(mixed > 16);
}

#[test]
fn a_failed_sync_loses_the_pages_for_ever() {
    let runtime = SimRuntime::new(4);
    write(&runtime, "/f", b"x", false);
    dir(&runtime, DirOp::Sync("/".into())).unwrap();
    runtime.disk().fail(Fault::once(OpKind::SyncData));
    let file = runtime.block_on(runtime.open("/f".as_ref(), Open::Existing)).unwrap();
    assert!(runtime.block_on(file.sync_data()).is_err());
    assert!(runtime.block_on(file.sync_data()).is_ok(), "Linux says so");
    assert_eq!(runtime.disk().crash(Crash::DropUnsynced).content("/f").unwrap(), [0], "size without content");
}

#[test]
fn a_full_disk_writes_what_fits_and_then_says_so() {
    let runtime = SimRuntime::new(5);
    runtime.disk().set_capacity_bytes(Some(10));
    let file = runtime.block_on(runtime.open("/f".as_ref(), Open::Create)).unwrap();
    let write = |at| runtime.block_on(file.write_at(Bytes::from_static(b"12345678"), at));
    assert_eq!(write(0).unwrap(), 8);
    assert_eq!(write(8).unwrap(), 2);
    assert_eq!(write(10).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(write(2).unwrap(), 8, "overwriting needs no room");
    let DirDone::Space { total, usable } = dir(&runtime, DirOp::Space("/".into())).unwrap() else { panic!() };
    assert_eq!((total, usable), (10, 0));
}

#[test]
fn a_dropped_write_happens_all_the_same() {
    let runtime = SimRuntime::new(6);
    let file = runtime.block_on(runtime.open("/f".as_ref(), Open::Create)).unwrap();
    let task = runtime.spawn(Queue::Request, async move {
        file.write_at(Bytes::from_static(b"x"), 0).await.unwrap();
        panic!("this task is cancelled");
    });
    let turn = runtime.turn();
    runtime.block_on(turn);
    drop(task);
    runtime.run_until_idle();
    assert_eq!(runtime.disk().content("/f").unwrap(), b"x");
}

#[test]
fn a_killed_process_leaves_no_task_and_a_frozen_disk_answers_nothing() {
    let runtime = SimRuntime::new(7);
    runtime.disk().freeze_from(2);
    let reached = Rc::new(Cell::new(0));
    let (inside, count) = (runtime.clone(), reached.clone());
    let _task = runtime.spawn(Queue::Request, async move {
        let file = inside.open("/f".as_ref(), Open::Create).await.unwrap();
        count.set(1);
        let _ = file.write_at(Bytes::from_static(b"x"), 0).await;
        count.set(2);
    });
    runtime.run_until_idle();
    assert_eq!(reached.get(), 1);
    assert_eq!(Rc::strong_count(&reached), 2);
    runtime.kill();
    assert_eq!(Rc::strong_count(&reached), 1);
}

#[test]
fn a_seed_repeats_the_order_and_another_changes_it() {
    let order = |seed| {
        let runtime = SimRuntime::new(seed);
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = (0..10)
            .map(|task| {
                let (runtime_inside, order) = (runtime.clone(), order.clone());
                runtime.spawn(Queue::Request, async move {
                    for _ in 0..3 {
                        order.borrow_mut().push(task);
                        runtime_inside.turn().await;
                    }
                })
            })
            .collect();
        runtime.advance_ms(1);
        drop(tasks);
        order.take()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_eq!(order(1).len(), 30);
}

#[test]
fn directories_move_with_what_is_in_them() {
    let runtime = SimRuntime::new(9);
    dir(&runtime, DirOp::CreateAll("/a/b".into())).unwrap();
    write(&runtime, "/a/b/f", b"1", true);
    dir(&runtime, DirOp::Rename { from: "/a/b".into(), to: "/a/c".into() }).unwrap();
    assert_eq!(runtime.disk().content("/a/c/f").unwrap(), b"1");
    assert_eq!(
        dir(&runtime, DirOp::List("/a".into())).unwrap(),
        DirDone::Entries(vec![crate::io::DirEntry { name: "c".into(), is_dir: true, size: 0 }])
    );
    dir(&runtime, DirOp::RemoveAll("/a".into())).unwrap();
    assert_eq!(dir(&runtime, DirOp::Stat("/a".into())).unwrap_err().kind(), io::ErrorKind::NotFound);
    dir(&runtime, DirOp::RemoveAll("/a".into())).unwrap();
    dir(&runtime, DirOp::Unlink("/nothing".into())).unwrap();
}

#[test]
fn a_trace_does_the_same_again_and_shows_what_a_missing_sync_costs() {
    let runtime = SimRuntime::new(10);
    runtime.disk().start_trace();
    dir(&runtime, DirOp::CreateAll("/d".into())).unwrap();
    dir(&runtime, DirOp::Sync("/".into())).unwrap();
    write(&runtime, "/d/a", b"one", true);
    dir(&runtime, DirOp::Rename { from: "/d/a".into(), to: "/d/b".into() }).unwrap();
    dir(&runtime, DirOp::Sync("/d".into())).unwrap();
    let file = runtime.block_on(runtime.open("/d/b".as_ref(), Open::Existing)).unwrap();
    runtime.block_on(file.write_at(Bytes::from_static(b"three"), 1)).unwrap();
    runtime.block_on(file.truncate(4)).unwrap();
    dir(&runtime, DirOp::Unlink("/d/nothing".into())).unwrap();
    let trace = runtime.disk().trace().unwrap();
    assert_eq!(trace.steps.len(), runtime.disk().trace_len());
    for without in [None, Some(StepKind::SyncData), Some(StepKind::SyncDir)] {
        let mut replay = trace.replay();
        for step in trace.steps.iter().filter(|step| Some(step.kind) != without) {
            replay.apply(step).unwrap();
        }
        assert_eq!(replay.disk().content("/d/b").unwrap(), b"othr");
        assert_eq!(replay.disk().fingerprint(), runtime.disk().fingerprint());
        let found = replay.disk().crash(Crash::DropUnsynced).content("/d/b");
        let expected = match without {
            None => Some(b"one".to_vec()),
            Some(StepKind::SyncData) => Some(Vec::new()),
            _ => None,
        };
        assert_eq!(found, expected, "without {without:?}");
    }
    let sites: Vec<_> = trace.steps.iter().map(|step| step.site.file().ends_with("sim/tests.rs")).collect();
    assert!(sites.iter().all(|is_here| *is_here), "the caller is told: {sites:?}");
}

#[test]
fn a_sync_makes_durable_what_was_written_before_it_began_and_nothing_later() {
    let runtime = SimRuntime::new(12);
    runtime.disk().start_trace();
    let inside = runtime.clone();
    runtime.block_on(async move {
        let file = inside.open("/f".as_ref(), Open::Create).await.unwrap();
        file.write_at(Bytes::from_static(b"before"), 0).await.unwrap();
        inside.disk().set_sync_latency(Latency { min_nanos: 1_000_000, max_nanos: 1_000_000 });
        let syncing = file.sync_data();
        let writing = async {
            inside.turn().await;
            file.write_at(Bytes::from_static(b", later"), 6).await.unwrap();
        };
        futures_util::future::join(syncing, writing).await.0.unwrap();
        inside.dir(DirOp::Sync("/".into())).await.unwrap();
    });
    assert_eq!(runtime.disk().content("/f").unwrap(), b"before, later");
    assert_eq!(runtime.disk().crash(Crash::DropUnsynced).content("/f").unwrap(), b"before");
    let mut replay = runtime.disk().trace().unwrap().replay();
    for step in &runtime.disk().trace().unwrap().steps {
        replay.apply(step).unwrap();
    }
    assert_eq!(replay.disk().crash(Crash::DropUnsynced).content("/f").unwrap(), b"before");
    // The rest is still to be brought down.
    let torn = |seed| replay.disk().crash(Crash::Torn(seed)).content("/f").unwrap();
    assert!((0..32).map(torn).any(|content| content == b"before, later"));
}

#[test]
fn a_kernel_that_writes_back_keeps_an_older_version_of_a_page() {
    let runtime = SimRuntime::new(11);
    runtime.disk().start_trace();
    write(&runtime, "/f", b"old", false);
    dir(&runtime, DirOp::Sync("/".into())).unwrap();
    write(&runtime, "/f", b"new", false);
    let trace = runtime.disk().trace().unwrap();
    let found = |seed| {
        let mut replay = trace.replay();
        for step in &trace.steps {
            replay.apply(step).unwrap();
            if step.kind == StepKind::SyncDir {
                replay.write_back(seed);
            }
        }
        replay.disk().crash(Crash::DropUnsynced).content("/f").unwrap()
    };
    let all: std::collections::BTreeSet<_> = (0..32).map(found).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [b"".to_vec(), b"old".to_vec()]);
}
