//! The manager against a model that remembers every event and works each answer out anew.

use super::*;

#[derive(Clone, Copy, Debug)]
struct Event {
    producer: i64,
    epoch: i16,
    sequence: i32,
    records: i32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Txn,
    Marker,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let kind = prop_oneof![4 => Just(Kind::Plain), 4 => Just(Kind::Txn), 2 => Just(Kind::Marker)];
    let event = (0..3_i64, 0..2_i16, 0..7_i32, 1..3_i32, kind).prop_map(
        |(producer, epoch, sequence, records, kind)| Event { producer, epoch, sequence, records, kind },
    );
    prop::collection::vec(event, 0..80)
}

/// Every appended event with its offset.
#[derive(Default)]
struct Model(Vec<(Event, i64)>);

impl Model {
    fn of(&self, producer: i64) -> impl DoubleEndedIterator<Item = &(Event, i64)> {
        self.0.iter().filter(move |(event, _)| event.producer == producer)
    }

    fn epoch(&self, producer: i64) -> Option<i16> {
        self.of(producer).next_back().map(|(event, _)| event.epoch)
    }

    /// Data batches since the producer's epoch last changed.
    fn batches(&self, producer: i64) -> Vec<(Event, i64)> {
        let epoch = self.epoch(producer);
        let mut batches: Vec<_> = self
            .of(producer)
            .rev()
            .take_while(|(event, _)| Some(event.epoch) == epoch)
            .filter(|(event, _)| event.kind != Kind::Marker)
            .copied()
            .collect();
        batches.reverse();
        batches
    }

    fn open_txn(&self, producer: i64) -> Option<i64> {
        let mut open = None;
        for (event, offset) in self.of(producer) {
            match event.kind {
                Kind::Plain => {}
                Kind::Txn => open = open.or(Some(*offset)),
                Kind::Marker => open = None,
            }
        }
        open
    }

    /// Short names of the answers: `append`, an original's first offset, or the error.
    fn check(&self, event: &Event) -> Result<Option<i64>, &'static str> {
        let epoch = self.epoch(event.producer);
        if event.kind == Kind::Marker {
            return if epoch.is_some_and(|epoch| event.epoch < epoch) { Err("epoch") } else { Ok(None) };
        }
        let batches = self.batches(event.producer);
        if epoch == Some(event.epoch) {
            let same =
                |(kept, _): &&(Event, i64)| (kept.sequence, kept.records) == (event.sequence, event.records);
            if let Some((_, offset)) = batches.iter().rev().take(BATCHES_KEPT).rev().find(same) {
                return Ok(Some(*offset));
            }
        }
        let Some(epoch) = epoch else { return Ok(None) };
        let expected = batches.last().map_or(0, |(last, _)| last.sequence + last.records);
        if event.epoch < epoch {
            Err("epoch")
        } else if event.sequence != if event.epoch == epoch { expected } else { 0 } {
            Err("sequence")
        } else if event.kind == Kind::Plain && self.open_txn(event.producer).is_some() {
            Err("transaction")
        } else {
            Ok(None)
        }
    }

    fn first_unstable(&self, high_watermark: i64) -> Option<i64> {
        let mut first = None;
        for producer in 0..3 {
            let mut open = None;
            for (event, offset) in self.of(producer) {
                match event.kind {
                    Kind::Plain => {}
                    Kind::Txn => open = open.or(Some(*offset)),
                    Kind::Marker if *offset < high_watermark => open = None,
                    Kind::Marker => {
                        first = first.into_iter().chain(open.take()).min();
                    }
                }
            }
            first = first.into_iter().chain(open).min();
        }
        first
    }
}

fn short(answer: Result<Check, ProducerStateError>) -> Result<Option<i64>, &'static str> {
    match answer {
        Ok(Check::Append) => Ok(None),
        Ok(Check::Duplicate { first_offset, .. }) => Ok(Some(first_offset.get())),
        Err(ProducerStateError::InvalidProducerEpoch { .. }) => Err("epoch"),
        Err(ProducerStateError::OutOfOrderSequence { .. }) => Err("sequence"),
        Err(ProducerStateError::InvalidTxnState { .. }) => Err("transaction"),
        Err(ProducerStateError::CoordinatorFenced { .. }) => Err("coordinator"),
    }
}

/// One event as the log would do it; answers whether it was appended.
fn step(manager: &mut ProducerStateManager, event: &Event, offset: i64) -> Result<Option<i64>, &'static str> {
    let end_marker = marker(TxnOutcome::Abort, 0);
    let (info, marker) = match event.kind {
        Kind::Plain => (batch(event.producer, event.epoch, event.sequence, event.records, offset), None),
        Kind::Txn => (txn(event.producer, event.epoch, event.sequence, event.records, offset), None),
        Kind::Marker => (control(event.producer, event.epoch, offset), Some(&end_marker)),
    };
    let origin = if event.kind == Kind::Marker { COORDINATOR } else { CLIENT };
    let answer = short(manager.check(&info, marker, origin));
    if answer == Ok(None) {
        if let Some(done) = manager.update(&info, marker, ms(100)) {
            manager.complete(&done);
        }
        manager.set_map_end_offset(info.next_offset());
    }
    answer
}

proptest! {
    #[test]
    fn the_manager_equals_a_model_that_remembers_everything(events in events(), lag in 0..20_i64) {
        let (mut manager, mut model, mut end) = (ProducerStateManager::new(DAY_MS), Model::default(), 0);
        for event in &events {
            let expected = model.check(event);
            prop_assert_eq!(step(&mut manager, event, end), expected, "{:?}", event);
            if expected != Ok(None) {
                continue;
            }
            model.0.push((*event, end));
            end += if event.kind == Kind::Marker { 1 } else { i64::from(event.records) };
            manager.on_high_watermark(at(end - lag));
            prop_assert_eq!(manager.first_unstable_offset().map(Offset::get), model.first_unstable(end - lag));
            for producer in 0..3 {
                let open = manager.producer(id(producer)).and_then(ProducerState::txn_first_offset);
                prop_assert_eq!(open.map(Offset::get), model.open_txn(producer));
                let kept = manager.producer(id(producer)).map_or(0, |state| state.batches().len());
                prop_assert_eq!(kept, model.batches(producer).len().min(BATCHES_KEPT));
            }
        }
    }

    /// A snapshot and a replay of what follows give the same as never having stopped, except that the snapshot keeps
    /// one batch per producer (T-5, T-14).
    #[test]
    fn a_snapshot_and_a_replay_equal_the_state_that_never_stopped(events in events(), cut in 0..80_usize) {
        let mut manager = ProducerStateManager::new(DAY_MS);
        let (mut end, mut snapshot, mut replay) = (0, None, Vec::new());
        for (number, event) in events.iter().enumerate() {
            if number == cut {
                snapshot = manager.take_snapshot();
                replay.clear();
            }
            if step(&mut manager, event, end) == Ok(None) {
                replay.push((*event, end));
                end += if event.kind == Kind::Marker { 1 } else { i64::from(event.records) };
            }
        }
        let mut loaded = ProducerStateManager::new(DAY_MS);
        loaded.begin_reload(at(0));
        if let Some((offset, content)) = &snapshot {
            loaded.load_snapshot(*offset, content, ms(100)).unwrap();
        }
        for (event, offset) in &replay {
            prop_assert_eq!(step(&mut loaded, event, *offset), Ok(None));
        }
        prop_assert_eq!(loaded.map_end_offset(), manager.map_end_offset());
        prop_assert_eq!(loaded.first_undecided_offset(), manager.first_undecided_offset());
        prop_assert_eq!(loaded.producers().len(), manager.producers().len());
        for ((left, a), (right, b)) in loaded.producers().zip(manager.producers()) {
            prop_assert_eq!(left, right);
            prop_assert_eq!(
                (a.epoch(), a.last_sequence(), a.txn_first_offset(), a.coordinator_epoch(), a.last_timestamp()),
                (b.epoch(), b.last_sequence(), b.txn_first_offset(), b.coordinator_epoch(), b.last_timestamp())
            );
            // The file has one timestamp: a marker's takes the place of its last batch's.
            let places = |state: &ProducerState| {
                let place = |kept: &ProducedBatch| (kept.first_sequence, kept.last_sequence, kept.first_offset);
                state.batches().iter().map(place).collect::<Vec<_>>()
            };
            prop_assert!(places(b).ends_with(&places(a)));
        }
    }
}
