//! Every message, filled at random within its version, survives the way over the wire.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use proptest::prelude::*;
use protocol::api::SERVED;
use protocol::codec::Sampler;
use support::{Half, codecs};

#[test]
fn every_api_served_has_both_messages() {
    let codecs = codecs();
    for api in SERVED {
        for half in [Half::Request, Half::Response] {
            let count = codecs.iter().filter(|codec| codec.key == api.key && codec.half == half).count();
            assert_eq!(count, 1, "{:?} {half:?}", api.key);
        }
    }
    assert_eq!(codecs.len(), 2 * SERVED.len());
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
