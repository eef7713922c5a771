//! The moment in which a finished copy takes the place of its log (KIP-113, storage.md 8.4): whichever log dir fails in it, or
//! whatever the system lacks, one log serves, or the controller is told that none does; the next start finds all of it.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use broker::handlers::{Outcome, RequestHandler};
use protocol::error::ErrorCode;
use protocol::types::*;
use storage::io::sim::{Crash, Fault, OpKind, SimTask};
use storage::io::{DirOp, Queue, Runtime};

use crate::harness::*;
use crate::moves::{alter, names, place, produce, watched, with_dirs};
use crate::moves_cut::{PLAIN, found, read_all, started};

const STORAGE: i16 = ErrorCode::KafkaStorageError.get();
const EXHAUSTED: ErrorKind = ErrorKind::OutOfMemory;

/// Produces to a log whose next write fails, which takes its log dir offline; nobody waits for the answer.
fn break_dir_of(broker: &Broker, topic: &'static str) -> SimTask {
    let client = broker.client();
    let request = client.request(9, &produce_request(-1, &[(topic, 0, batch(&[b"x"]))]));
    let handlers = broker.handlers[0].clone();
    broker.world().spawn(Queue::Request, async move {
        if let Outcome::Accepted(accepted) = handlers.handle(request).await {
            drop(accepted.await);
        }
    })
}

#[test]
fn whichever_log_dir_fails_around_a_swap_one_log_serves_or_is_told_to_be_gone() {
    let mut ends: BTreeMap<(&'static [&'static str], String), u32> = BTreeMap::new();
    let sources: &'static [&'static str] = &["v"];
    for failing in [sources, &["u"], &["v", "u"], &["u", "v"]] {
        for at in 0..100 {
            let case = format!("{failing:?} at {at}");
            let (broker, watch, told) = watched(1, 3);
            for (topic, dir) in [("t", "/data"), ("u", "/data2"), ("w", "/data3"), ("v", "/data")] {
                broker.create(topic, 1, PLAIN);
                let log = format!("{dir}/{topic}-0/00000000000000000000.log");
                assert!(broker.world().disk().content(log).is_some(), "{case}");
            }
            produce(&broker, 0, 0, 12);
            for path_contains in ["/data/v-0/", "/data2/u-0/"] {
                let fault = Fault { path_contains, times: u64::MAX, ..Fault::once(OpKind::Write) };
                broker.world().disk().fail(fault);
            }
            assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0], "{case}");
            broker.world().advance_nanos(at * 200_000);
            let mut tasks = Vec::new();
            for topic in failing.iter().copied() {
                tasks.push(break_dir_of(&broker, topic));
                broker.world().advance_nanos(150_000);
            }
            broker.world().advance_ms(3000);
            let is_told =
                told.borrow().iter().flat_map(|gone| &gone.partitions).any(|one| one.topic.get() == "t");
            let code = broker.client().fetch_one("t", 0, 0).error_code;
            assert_eq!(code, if is_told { STORAGE } else { 0 }, "{case}: {:?}", told.borrow());
            let mut count = 12;
            let end = if is_told { "offline".to_owned() } else { place_of(&broker) };
            if !is_told {
                produce(&broker, 0, 12, 1);
                count += 1;
            }
            *ends.entry((failing, end)).or_default() += 1;
            let disk = broker.world().disk().crash(Crash::KeepAll);
            drop((watch, broker, tasks));
            match found(&disk) {
                Ok(found) => {
                    let read = read_all(&started(&disk, found, PLAIN));
                    assert_eq!(read, Ok((0..count).collect::<Vec<u8>>()), "{case}");
                }
                // The dir of the copy has failed when it had its name: nobody can tell which of both is whole.
                Err(why) => assert!(failing.contains(&"u") && why.contains("both hold t-0"), "{case}: {why}"),
            }
        }
    }
    let seen = |failing: &'static [&'static str], end: &str| ends.contains_key(&(failing, end.to_owned()));
    assert!(seen(sources, "offline") && seen(sources, "/data2"), "{ends:?}");
    assert!(seen(&["u"], "/data"), "{ends:?}");
}

/// Where topic `t` is, of those in the log dirs.
fn place_of(broker: &Broker) -> String {
    let of = |sample: &broker::partition::ask::Sample| sample.partition.topic.get() == "t" && !sample.is_copy;
    let sample = broker.samples().into_iter().find(of).unwrap();
    sample.log_dir.display().to_string()
}

/// What has the name of the log cannot be opened: its log is read on, and nobody loses it until a restart.
#[test]
fn a_copy_that_cannot_be_opened_for_want_of_a_descriptor_is_tried_again() {
    let (broker, _watch, told) = watched(1, 2);
    broker.create("t", 1, PLAIN);
    produce(&broker, 0, 0, 12);
    let path_contains = "/data2/t-0/";
    let lacks = Fault { path_contains, times: u64::MAX, error: EXHAUSTED, ..Fault::once(OpKind::Open) };
    broker.world().disk().fail(lacks);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
    broker.world().advance_ms(5000);
    let client = broker.client();
    assert_eq!(read_all(&broker), Ok((0..12).collect()), "it is read where it was");
    assert_eq!(client.produce_one("t", 0, batch(&[b"x"])).error_code, STORAGE, "and takes nothing");
    // A new role meanwhile.
    broker.lead(&broker.topic("t"), 0, 7);
    broker.world().disk().heal();
    broker.world().advance_ms(2000);
    assert_eq!(place(&broker, 0), "/data2");
    produce(&broker, 0, 12, 1);
    assert_eq!(read_all(&broker), Ok((0..13).collect()));
    assert_eq!(batches(&client.fetch_one("t", 0, 12))[0].partition_leader_epoch(), LeaderEpoch::new(7));
    assert!(names(&broker, "/data").iter().all(|name| name.ends_with("-delete")));
    assert!(told.borrow().is_empty(), "no log dir has failed");
    assert!(broker.close().iter().all(|closed| closed.is_clean()));
}

#[test]
fn a_stop_a_kill_and_a_deletion_while_a_copy_waits_to_be_opened_leave_one_log_or_none() {
    for end in ["stop", "kill", "delete", "another place"] {
        let (broker, watch, _) = watched(1, 3);
        broker.create("t", 1, PLAIN);
        produce(&broker, 0, 0, 12);
        let path_contains = "/data2/t-0/";
        let lacks = Fault { path_contains, times: u64::MAX, error: EXHAUSTED, ..Fault::once(OpKind::Open) };
        broker.world().disk().fail(lacks);
        assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
        broker.world().advance_ms(3000);
        assert!(
            ["/data", "/data2"].into_iter().all(|dir| names(&broker, dir) == ["t-0"]),
            "both have the name"
        );
        match end {
            "stop" => assert!(broker.close().iter().all(|closed| closed.is_clean())),
            "delete" => {
                broker.delete("t");
                broker.world().advance_ms(61_000);
                let left = ["/data", "/data2"].map(|dir| names(&broker, dir));
                assert!(left.iter().all(Vec::is_empty), "{left:?}");
                continue;
            }
            "another place" => {
                assert_eq!(alter(&broker, 2, "t", &[("/data3", 0)]), [0]);
                broker.world().advance_ms(3000);
                assert_eq!(place(&broker, 0), "/data3");
                produce(&broker, 0, 12, 1);
                assert_eq!(read_all(&broker), Ok((0..13).collect()));
                continue;
            }
            _ => {}
        }
        let disk = broker.world().disk().crash(Crash::KeepAll);
        drop((watch, broker));
        let broker = started(&disk, found(&disk).unwrap(), PLAIN);
        assert_eq!(read_all(&broker), Ok((0..12).collect()), "{end}");
        assert_eq!(place(&broker, 0), "/data2", "{end}");
    }
}

/// What cannot get its name yet is no end of the move.
#[test]
fn a_move_waits_where_the_copy_cannot_get_its_name_for_want_of_something() {
    for (error, path_contains) in
        [(EXHAUSTED, "odradek-moved-here"), (ErrorKind::StorageFull, "odradek-moved-here")]
    {
        let (broker, _watch, told) = watched(1, 2);
        broker.create("t", 1, PLAIN);
        produce(&broker, 0, 0, 12);
        broker.world().disk().fail(Fault { path_contains, error, times: 2, ..Fault::once(OpKind::Open) });
        assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
        broker.world().advance_ms(900);
        produce(&broker, 0, 12, 1);
        broker.world().advance_ms(4000);
        assert_eq!((place(&broker, 0), told.borrow().len()), ("/data2".to_owned(), 0));
        assert_eq!(read_all(&broker), Ok((0..13).collect()));
    }
}

/// The old directory cannot be renamed yet: its log dir stays in service, and another move may go there.
#[test]
fn what_a_move_leaves_behind_for_want_of_something_goes_when_there_is_some() {
    let (broker, _watch, told) = watched(1, 2);
    broker.create("t", 1, PLAIN);
    produce(&broker, 0, 0, 12);
    let lacks =
        Fault { path_contains: "/data/t-0", error: EXHAUSTED, times: u64::MAX, ..Fault::once(OpKind::Names) };
    broker.world().disk().fail(lacks);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [STORAGE], "its mark cannot be looked for");
    broker.world().disk().heal();
    let lacks = Fault {
        path_contains: "/data/t-0",
        error: EXHAUSTED,
        after: 1,
        times: u64::MAX,
        ..Fault::once(OpKind::Names)
    };
    broker.world().disk().fail(lacks);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
    broker.world().advance_ms(2000);
    produce(&broker, 0, 12, 1);
    assert_eq!(names(&broker, "/data"), ["t-0"]);
    // The wish to be back where that is ends the wait, and nothing can be done there.
    assert_eq!(alter(&broker, 2, "t", &[("/data", 0)]), [STORAGE]);
    broker.world().disk().heal();
    assert_eq!(alter(&broker, 2, "t", &[("/data", 0)]), [0]);
    broker.world().advance_ms(2000);
    assert_eq!((place(&broker, 0), told.borrow().len()), ("/data".to_owned(), 0));
    assert_eq!(read_all(&broker), Ok((0..13).collect()));
}

#[test]
fn a_copy_that_could_not_be_made_does_not_count() {
    let broker = with_dirs(1, 2);
    broker.create("t", 1, PLAIN);
    let lacks = Fault { path_contains: "-future", error: EXHAUSTED, ..Fault::once(OpKind::Names) };
    broker.world().disk().fail(lacks);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [STORAGE]);
    broker.create("first", 1, PLAIN);
    broker.create("second", 1, PLAIN);
    assert_eq!(names(&broker, "/data2"), ["first-0"]);
    assert_eq!(names(&broker, "/data"), ["second-0", "t-0"]);
}

/// As in Kafka: a copy of the log could be in the dir that is offline.
#[test]
fn no_move_begins_while_any_log_dir_is_offline() {
    let (broker, _watch, told) = watched(1, 3);
    for topic in ["t", "u", "v"] {
        broker.create(topic, 1, PLAIN);
    }
    let fault = Fault { path_contains: "/data3/v-0/", ..Fault::once(OpKind::Write) };
    broker.world().disk().fail(fault);
    assert_eq!(broker.client().produce_one("v", 0, batch(&[b"x"])).error_code, STORAGE);
    broker.world().run_until_idle();
    assert_eq!(told.borrow().len(), 1);
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [STORAGE]);
    assert_eq!(alter(&broker, 2, "t", &[("/data", 0)]), [0], "it is there");
}

/// Somebody else's directory of that name: it is not ours to delete, and nothing can take its name.
#[test]
fn what_no_move_of_ours_has_left_is_not_deleted_for_one() {
    let (broker, _watch, told) = watched(1, 2);
    broker.create("t", 1, PLAIN);
    produce(&broker, 0, 0, 12);
    let runtime = broker.shards[0].clone();
    broker.run(async move { runtime.dir(DirOp::CreateAll("/data2/t-0".into())).await.unwrap() });
    broker.world().disk().put("/data2/t-0/00000000000000000000.log", b"theirs").unwrap();
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [STORAGE]);
    broker.world().disk().put("/data2/t-0/odradek-moved-here", b"").unwrap();
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [STORAGE], "nor what claims to be newer");
    broker.world().advance_ms(70_000);
    let theirs = broker.world().disk().content("/data2/t-0/00000000000000000000.log");
    assert_eq!(theirs.as_deref(), Some(&b"theirs"[..]));
    produce(&broker, 0, 12, 1);
    assert_eq!((read_all(&broker), told.borrow().len()), (Ok((0..13).collect()), 0));
}

/// Neither can the copy be opened nor the log be marked: who deletes the topic does not wait for either.
#[test]
fn a_deletion_does_not_wait_until_a_swap_has_what_it_lacks() {
    let (broker, _watch, told) = watched(1, 2);
    broker.create("t", 1, PLAIN);
    produce(&broker, 0, 0, 12);
    for path_contains in ["/data2/t-0/", "/data/t-0/odradek-moved-here"] {
        let lacks = Fault { path_contains, times: u64::MAX, error: EXHAUSTED, ..Fault::once(OpKind::Open) };
        broker.world().disk().fail(lacks);
    }
    assert_eq!(alter(&broker, 2, "t", &[("/data2", 0)]), [0]);
    broker.world().advance_ms(3000);
    assert!(["/data", "/data2"].into_iter().all(|dir| names(&broker, dir) == ["t-0"]), "both have the name");
    broker.delete("t");
    broker.world().advance_ms(64_000);
    let left = ["/data", "/data2"].map(|dir| names(&broker, dir));
    assert!(left.iter().all(Vec::is_empty), "{left:?}");
    assert!(told.borrow().is_empty());
}
