//! Names of topics that have offsets in some group of the partition, each kept once: a million offsets name the same few
//! thousand topics. A name is held by every entry that uses it and goes with the last. Called by `offsets`.

use std::collections::BTreeMap;

use protocol::types::TopicName;

/// Stands for a topic's name: its place among the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TopicIndex(pub(super) u32);

#[derive(Debug)]
struct Slot {
    name: TopicName,
    uses: usize,
}

/// The names.
#[derive(Debug, Default)]
pub(super) struct Topics {
    by_name: BTreeMap<TopicName, TopicIndex>,
    /// Those that nobody holds are empty.
    slots: Vec<Option<Slot>>,
    free: Vec<TopicIndex>,
}

impl Topics {
    /// The index of a name, which lasts only while it is held. To be followed by [`Topics::hold`].
    pub(super) fn intern(&mut self, name: &TopicName) -> TopicIndex {
        if let Some(index) = self.by_name.get(name.get()) {
            return *index;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            let next = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            assert!(next < u32::MAX, "fewer topics than numbers");
            self.slots.push(None);
            TopicIndex(next)
        });
        self.by_name.insert(name.clone(), index);
        *self.place(index) = Some(Slot { name: name.clone(), uses: 0 });
        index
    }

    /// The index of a name that somebody holds.
    pub(super) fn find(&self, name: &str) -> Option<TopicIndex> {
        self.by_name.get(name).copied()
    }

    /// The name of an index that somebody holds.
    pub(super) fn name(&self, index: TopicIndex) -> &TopicName {
        let slot = usize::try_from(index.0).ok().and_then(|place| self.slots.get(place));
        match slot.and_then(Option::as_ref) {
            Some(slot) => &slot.name,
            None => unreachable!("an index is used while it is held"),
        }
    }

    /// One more entry uses the name.
    pub(super) fn hold(&mut self, index: TopicIndex) {
        match self.place(index) {
            Some(slot) => slot.uses += 1,
            None => unreachable!("an index is held again while it is held"),
        }
    }

    /// One entry less uses the name.
    pub(super) fn release(&mut self, index: TopicIndex) {
        let place = self.place(index);
        let Some(slot) = place else { unreachable!("an index is released as often as it was held") };
        slot.uses -= 1;
        if slot.uses == 0
            && let Some(slot) = place.take()
        {
            self.by_name.remove(slot.name.get());
            self.free.push(index);
        }
    }

    /// Drops some names, for when everything that holds them is gone.
    pub(super) fn drop_some(&mut self, budget: &mut usize) {
        while *budget > 0 && (self.by_name.pop_first().is_some() | self.slots.pop().is_some()) {
            *budget -= 1;
        }
    }

    fn place(&mut self, index: TopicIndex) -> &mut Option<Slot> {
        match usize::try_from(index.0).ok().and_then(|place| self.slots.get_mut(place)) {
            Some(place) => place,
            None => unreachable!("an index is one that was given"),
        }
    }

    /// How many entries use names.
    #[cfg(test)]
    pub(super) fn uses(&self) -> usize {
        self.slots.iter().flatten().map(|slot| slot.uses).sum()
    }

    /// How many names there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }
}
