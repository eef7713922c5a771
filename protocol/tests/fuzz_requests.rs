//! Fuzzes the decoding of all messages; see `support/fuzz.rs` for the budget of time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod support;

use protocol::codec::Sampler;
use support::alloc::{Counting, assert_bounded};
use support::codecs;
use support::fuzz::{Rng, mutate, run};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn what_decodes_encodes_to_the_same_and_nothing_panics() {
    let codecs = codecs();
    run(|rng: &mut Rng| {
        let codec = &codecs[rng.below(codecs.len())];
        let versions: Vec<i16> = codec.versions().collect();
        let version = versions[rng.below(versions.len())];
        let mut frame = (codec.sample)(&mut Sampler::random(rng.next()), version);
        for _ in 0..20 {
            let decoded = assert_bounded(frame.len(), || (codec.decode)(&frame, version).is_ok());
            assert_eq!((codec.recode)(&frame, version).is_ok(), decoded, "{} version {version}", codec.name);
            mutate(rng, &mut frame);
        }
    });
}
