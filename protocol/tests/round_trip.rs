//! Every message, filled at random within its version, survives the way over the wire.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use proptest::prelude::*;
use protocol::api::served;
use protocol::codec::Sampler;
use support::{Half, NOT_SERVED_YET, codecs, declared};

#[test]
fn every_api_declared_has_both_messages() {
    let (codecs, declared) = (codecs(), declared());
    for (key, _) in &declared {
        for half in [Half::Request, Half::Response] {
            let count = codecs.iter().filter(|codec| codec.key == *key && codec.half == half).count();
            assert_eq!(count, 1, "{key:?} {half:?}");
        }
    }
    assert_eq!(codecs.len(), 2 * declared.len());
}

#[test]
fn what_is_served_is_not_told_to_wait_for_it() {
    for (key, _) in NOT_SERVED_YET {
        assert_eq!(served(*key), None, "{key:?} is served now: its row in NOT_SERVED_YET goes");
    }
}

#[test]
fn full_messages_survive_in_every_version() {
    for codec in codecs() {
        for version in codec.versions() {
            (codec.round_trip)(&mut Sampler::full(), version);
        }
    }
}

proptest! {
    #[test]
    fn random_messages_survive_in_every_version(seed: u64) {
        for codec in codecs() {
            for version in codec.versions() {
                (codec.round_trip)(&mut Sampler::random(seed), version);
            }
        }
    }
}
