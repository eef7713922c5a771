//! Copies of a log (KIP-113): what is of a format before 2 goes with it. Most of copies is tested where moves are.

use super::*;
use crate::io::DirOp;
use crate::log::tests::idle::old_message;

const COPY: &str = "/data/t-0.0123456789abcdef0123456789abcdef-future";

/// What lies in the segments of a log, by their names.
fn content(runtime: &SimRuntime, dir: &str, bases: &[i64]) -> Vec<u8> {
    let of = |base: &i64| {
        runtime.disk().content(Path::new(dir).join(format!("{base:020}.log"))).expect("a segment")
    };
    bases.iter().flat_map(of).collect()
}

/// KIP-113 copies batches as they are, of whatever format: a log that began before 0.11 moves too.
#[test]
fn a_log_that_begins_with_the_old_formats_is_copied_as_it_is() {
    let runtime = machine();
    let inside = runtime.clone();
    runtime.block_on(async move { inside.dir(DirOp::CreateAll(DIR.into())).await }).unwrap();
    // Offset 7 is of a wrapper, or of what compaction has left.
    let offsets = [0, 1, 2, 3, 7];
    let old: Vec<u8> = offsets.iter().flat_map(|at| old_message(*at, 1000 + at * 10, b"old")).collect();
    runtime.disk().put(file("00000000000000000000.log"), &old).unwrap();
    let config = LogConfig { segment_bytes: 400, ..LogConfig::default() };
    let source = open(&runtime, options(config.clone()));
    for _ in 0..4 {
        append(&runtime, &source, batch(2, 100, 2000));
    }
    settle(&runtime, &source);
    for step_bytes in [1, 100, 1 << 20] {
        let (for_copy, options) =
            (runtime.clone(), OpenOptions { tail_bytes_max: 0, ..options(config.clone()) });
        let from = source.clone();
        let copy = runtime.block_on(async move {
            let copy = Log::open(for_copy.clone(), Path::new(COPY), partition(), options).await.unwrap();
            while !copy.copy_from(&from, step_bytes, NOW).await.unwrap().is_all {}
            copy.close().await.unwrap();
            copy
        });
        assert_eq!(copy.log_end_offset(), source.log_end_offset());
        let bases = |log: &SimLog| log.segments.borrow().keys().map(|base| base.get()).collect::<Vec<_>>();
        let all = content(&runtime, DIR, &bases(&source));
        assert_eq!(content(&runtime, COPY, &bases(&copy)), all, "in steps of {step_bytes}");
        // As a start checks it.
        let inside = runtime.clone();
        let unclean = OpenOptions { clean: false, ..super::options(config.clone()) };
        runtime.block_on(async move {
            let again = Log::open(inside.clone(), Path::new(COPY), partition(), unclean).await.unwrap();
            assert_eq!(again.log_end_offset(), Offset::new(16));
            again.abandon().await;
            inside.dir(DirOp::RemoveAll(COPY.into())).await.unwrap();
        });
    }
}
