use proptest::prelude::*;

use super::*;

fn cache(entries: &[(i32, i64)]) -> LeaderEpochCache {
    let entries = entries.iter().map(|(epoch, offset)| EpochEntry {
        epoch: LeaderEpoch::new(*epoch),
        start_offset: Offset::new(*offset),
    });
    LeaderEpochCache { entries: entries.collect() }
}

fn assign(cache: &mut LeaderEpochCache, epoch: i32, offset: i64) -> bool {
    cache.assign(LeaderEpoch::new(epoch), Offset::new(offset))
}

fn end(cache: &LeaderEpochCache, epoch: i32, leo: i64) -> Option<(i32, i64)> {
    cache
        .end_offset_for(LeaderEpoch::new(epoch), Offset::new(leo))
        .map(|entry| (entry.epoch.get(), entry.start_offset.get()))
}

#[test]
fn assigning_the_latest_epoch_again_changes_nothing() {
    let mut c = cache(&[(1, 10), (3, 20)]);
    assert!(!assign(&mut c, 3, 20));
    assert!(!assign(&mut c, 3, 99));
    assert_eq!(c, cache(&[(1, 10), (3, 20)]));
}

#[test]
fn assigning_the_latest_epoch_at_a_lower_offset_moves_it() {
    let mut c = cache(&[(1, 10), (3, 20)]);
    assert!(assign(&mut c, 3, 15));
    assert_eq!(c, cache(&[(1, 10), (3, 15)]));
}

#[test]
fn assigning_a_newer_epoch_appends_it() {
    let mut c = cache(&[]);
    assert!(assign(&mut c, 0, 0));
    assert!(assign(&mut c, 5, 7));
    assert_eq!(c, cache(&[(0, 0), (5, 7)]));
}

#[test]
fn assigning_drops_entries_at_the_end_with_the_same_or_a_higher_epoch() {
    let mut c = cache(&[(1, 10), (3, 20), (5, 30)]);
    assert!(assign(&mut c, 3, 40));
    assert_eq!(c, cache(&[(1, 10), (3, 40)]));
}

#[test]
fn assigning_drops_entries_at_the_end_that_begin_at_or_above_it() {
    let mut c = cache(&[(1, 10), (3, 20), (5, 30)]);
    assert!(assign(&mut c, 6, 20));
    assert_eq!(c, cache(&[(1, 10), (6, 20)]));
}

#[test]
fn a_negative_epoch_or_offset_is_not_assigned() {
    let mut c = cache(&[]);
    assert!(!assign(&mut c, -1, 4));
    assert!(!assign(&mut c, 4, -1));
    assert_eq!(c, cache(&[]));
}

#[test]
fn truncating_the_end_drops_entries_that_begin_at_or_above_it() {
    let mut c = cache(&[(1, 10), (3, 20), (5, 30)]);
    assert!(!c.truncate_from_end(Offset::new(31)));
    assert!(!c.truncate_from_end(Offset::NONE));
    assert!(c.truncate_from_end(Offset::new(20)));
    assert_eq!(c, cache(&[(1, 10)]));
}

#[test]
fn truncating_the_start_moves_the_newest_dropped_entry_there() {
    let mut c = cache(&[(1, 10), (3, 20), (5, 30)]);
    assert!(!c.truncate_from_start(Offset::new(9)));
    assert!(!c.truncate_from_start(Offset::new(10)));
    assert!(c.truncate_from_start(Offset::new(25)));
    assert_eq!(c, cache(&[(3, 25), (5, 30)]));
    assert!(c.truncate_from_start(Offset::new(99)));
    assert_eq!(c, cache(&[(5, 99)]));
}

#[test]
fn clearing_leaves_nothing() {
    let mut c = cache(&[(1, 10)]);
    c.clear();
    assert_eq!(c, LeaderEpochCache::new());
    assert_eq!(c.latest(), None);
}

#[test]
fn the_end_of_no_epoch_is_undefined() {
    assert_eq!(end(&cache(&[(1, 10)]), -1, 50), None);
    assert_eq!(end(&cache(&[]), -1, 50), None);
}

#[test]
fn the_end_of_the_latest_epoch_is_the_log_end() {
    assert_eq!(end(&cache(&[(1, 10), (3, 20)]), 3, 50), Some((3, 50)));
}

#[test]
fn the_end_of_an_epoch_above_all_known_ones_is_undefined() {
    assert_eq!(end(&cache(&[(1, 10), (3, 20)]), 4, 50), None);
    assert_eq!(end(&cache(&[]), 0, 50), None);
}

#[test]
fn the_end_of_an_epoch_below_all_known_ones_is_the_start_of_the_first() {
    assert_eq!(end(&cache(&[(2, 10), (3, 20)]), 0, 50), Some((0, 10)));
}

#[test]
fn the_end_of_an_epoch_between_known_ones_is_its_floor_and_the_start_of_the_next() {
    let c = cache(&[(2, 10), (4, 20), (7, 30)]);
    assert_eq!(end(&c, 2, 50), Some((2, 20)));
    assert_eq!(end(&c, 3, 50), Some((2, 20)));
    assert_eq!(end(&c, 6, 50), Some((4, 30)));
}

#[test]
fn becoming_leader_notes_the_epoch_though_nothing_is_written() {
    // KAFKA-7415: two leaders in a row that write nothing leave one entry, the newer.
    let mut c = cache(&[(1, 10)]);
    assert!(assign(&mut c, 2, 30));
    assert!(assign(&mut c, 3, 30));
    assert_eq!(c, cache(&[(1, 10), (3, 30)]));
}

#[test]
fn the_epoch_of_an_offset_is_the_latest_that_began_there_or_before() {
    let c = cache(&[(2, 10), (4, 20)]);
    let at = |offset| c.epoch_for_offset(Offset::new(offset)).map(LeaderEpoch::get);
    assert_eq!([at(9), at(10), at(19), at(20), at(99)], [None, Some(2), Some(2), Some(4), Some(4)]);
}

#[test]
fn the_file_has_kafkas_bytes() {
    let text = "0\n2\n1 10\n3 20\n";
    assert_eq!(cache(&[(1, 10), (3, 20)]).to_text(), text);
    assert_eq!(LeaderEpochCache::parse(text.as_bytes()), Ok(cache(&[(1, 10), (3, 20)])));
    assert_eq!(LeaderEpochCache::new().to_text(), "0\n0\n");
    assert_eq!(LeaderEpochCache::parse(b""), Ok(cache(&[])));
}

#[test]
fn a_malformed_file_is_an_error() {
    for bad in ["1\n0\n", "0\n1\n1 2 3\n", "0\n1\n-1 2\n", "0\n1\n1 -2\n", "0\n2\n1 2\n", "0\n1\nx 2\n"] {
        assert!(LeaderEpochCache::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
}

#[test]
fn lines_out_of_order_give_way_to_later_ones() {
    assert_eq!(LeaderEpochCache::parse(b"0\n3\n1 10\n5 30\n3 20\n"), Ok(cache(&[(1, 10), (3, 20)])));
}

/// The table of storage.md 5 on a plain vector, one rule after the other.
#[derive(Default)]
struct Model(Vec<(i32, i64)>);

impl Model {
    fn assign(&mut self, epoch: i32, start: i64) {
        if let Some(last) = self.0.last()
            && last.0 == epoch
            && last.1 <= start
        {
            return;
        }
        while let Some(last) = self.0.last().copied() {
            if last.0 < epoch && last.1 < start {
                break;
            }
            self.0.pop();
        }
        self.0.push((epoch, start));
    }

    fn cut_end(&mut self, end: i64) {
        self.0.retain(|entry| entry.1 < end);
    }

    fn cut_start(&mut self, start: i64) {
        let dropped = self.0.iter().rev().find(|entry| entry.1 <= start).copied();
        self.0.retain(|entry| entry.1 > start);
        if let Some((epoch, _)) = dropped {
            self.0.insert(0, (epoch, start));
        }
    }

    fn end_of(&self, epoch: i32, leo: i64) -> Option<(i32, i64)> {
        if self.0.last().is_some_and(|last| last.0 == epoch) {
            return Some((epoch, leo));
        }
        let higher = self.0.iter().find(|entry| entry.0 > epoch)?;
        let floor = self.0.iter().rev().find(|entry| entry.0 <= epoch);
        Some((floor.map_or(epoch, |entry| entry.0), higher.1))
    }
}

proptest! {
    #[test]
    fn the_cache_equals_a_naive_model(
        steps in prop::collection::vec((0..3_u8, 0..8_i32, 0..40_i64), 0..60)
    ) {
        let mut model = Model::default();
        let mut real = LeaderEpochCache::new();
        for (step, epoch, offset) in steps {
            let before = real.clone();
            let changed = match step {
                0 => { model.assign(epoch, offset); assign(&mut real, epoch, offset) }
                1 => { model.cut_end(offset); real.truncate_from_end(Offset::new(offset)) }
                _ => { model.cut_start(offset); real.truncate_from_start(Offset::new(offset)) }
            };
            prop_assert_eq!(changed, before != real);
            prop_assert_eq!(&real, &cache(&model.0));
            prop_assert!(model.0.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
            for asked in 0..9 {
                prop_assert_eq!(end(&real, asked, 41), model.end_of(asked, 41));
            }
            prop_assert_eq!(LeaderEpochCache::parse(real.to_text().as_bytes()), Ok(real.clone()));
        }
    }
}
