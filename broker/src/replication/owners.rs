//! Which replicas this broker has, of which epoch, and which shard owns each. Pure: knows no shard, log or store;
//! [`super::receiver`] asks it before it tells owners, and tells it what they answered.

use std::collections::{BTreeMap, BTreeSet};

use protocol::error::ErrorCode;
use protocol::types::{BrokerId, LeaderEpoch, TopicId, TopicPartition};

use crate::controller::requests::{LeaderAndIsrPartition, StopReplicaPartition};
use crate::shard::ShardId;

/// A replica on this broker.
#[derive(Clone, Debug)]
struct Replica {
    topic_id: TopicId,
    owner: ShardId,
    leader_epoch: LeaderEpoch,
}

/// The replicas of one broker. How many each shard owns is the number of those that are placed on it.
#[derive(Debug)]
pub struct Owners {
    replicas: BTreeMap<TopicPartition, Replica>,
    load: Vec<usize>,
}

impl Owners {
    /// None yet, on so many shards.
    pub fn new(shards: u16) -> Self {
        Self { replicas: BTreeMap::new(), load: vec![0; usize::from(shards)] }
    }

    /// Whether a role is for the broker `own` and newer than what it has: the code of its answer so far.
    pub fn judge(&self, own: BrokerId, part: &LeaderAndIsrPartition) -> ErrorCode {
        match self.replicas.get(&part.partition) {
            Some(local) if local.topic_id != part.topic_id => ErrorCode::InconsistentTopicId,
            Some(local) if part.leadership.leader_epoch <= local.leader_epoch => {
                ErrorCode::StaleControllerEpoch
            }
            _ if !part.replicas.contains(&own) => ErrorCode::UnknownTopicOrPartition,
            _ => ErrorCode::None,
        }
    }

    /// Takes a role that was judged; a replica without an owner is given to the shard that owns the fewest.
    pub fn place(&mut self, part: &LeaderAndIsrPartition) -> ShardId {
        let owner = self.owner_of(&part.partition).unwrap_or_else(|| {
            let owner = least_loaded(&self.load, part.topic_id, part.partition.partition);
            if let Some(count) = self.load.get_mut(usize::from(owner.get())) {
                *count += 1;
            }
            owner
        });
        let leader_epoch = part.leadership.leader_epoch;
        self.replicas
            .insert(part.partition.clone(), Replica { topic_id: part.topic_id, owner, leader_epoch });
        owner
    }

    /// The owner did not take the role of this epoch: it is then taken again, not refused as stale. A role that came since
    /// stands. A replica whose log is offline keeps its owner, which tells clients so.
    pub fn not_taken(&mut self, of: &TopicPartition, leader_epoch: LeaderEpoch, error: ErrorCode) {
        let Some(replica) = self.replicas.get_mut(of).filter(|known| known.leader_epoch == leader_epoch)
        else {
            return;
        };
        if error == ErrorCode::KafkaStorageError {
            replica.leader_epoch = LeaderEpoch::NONE;
        } else {
            self.forget(of);
        }
    }

    /// The log of a replica went out of service: its role may be asked for again, whatever its epoch.
    pub fn out_of_service(&mut self, of: &TopicPartition) {
        if let Some(replica) = self.replicas.get_mut(of) {
            replica.leader_epoch = LeaderEpoch::NONE;
        }
    }

    /// The replica is gone.
    pub fn forget(&mut self, of: &TopicPartition) {
        if let Some(replica) = self.replicas.remove(of)
            && let Some(count) = self.load.get_mut(usize::from(replica.owner.get()))
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Who is to stop a replica, and its topic. One that nobody owns may still have a log, which any shard can delete.
    pub fn stopper_of(&self, part: &StopReplicaPartition) -> (ShardId, TopicId) {
        match self.replicas.get(&part.partition) {
            Some(known) => (known.owner, known.topic_id),
            None => (least_loaded(&self.load, part.topic_id, part.partition.partition), part.topic_id),
        }
    }

    /// The owner of a replica.
    pub fn owner_of(&self, of: &TopicPartition) -> Option<ShardId> {
        self.replicas.get(of).map(|replica| replica.owner)
    }

    /// The shards that own replicas of a topic.
    pub fn owners_of_topic(&self, id: TopicId) -> BTreeSet<ShardId> {
        self.replicas.values().filter(|replica| replica.topic_id == id).map(|replica| replica.owner).collect()
    }
}

/// The shard with the fewest replicas; a hash of the partition breaks ties, so that the choice depends on nothing else.
fn least_loaded(load: &[usize], topic_id: TopicId, partition: i32) -> ShardId {
    let fewest = load.iter().min().copied().unwrap_or_default();
    let candidates: Vec<u16> =
        (0..).zip(load).filter(|(_, count)| **count == fewest).map(|(shard, _)| shard).collect();
    let bytes = topic_id.get().into_iter().chain(partition.to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let count = u64::try_from(candidates.len().max(1)).unwrap_or(1);
    let index = usize::try_from(hash % count).unwrap_or_default();
    ShardId::new(candidates.get(index).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use protocol::types::{ControllerEpoch, PartitionEpoch, TopicName};

    use super::*;
    use crate::controller::requests::{Leadership, StopEpoch};

    const OWN: BrokerId = BrokerId::new(1);

    fn role(partition: i32, epoch: i32) -> LeaderAndIsrPartition {
        let leadership = Leadership {
            leader: OWN,
            leader_epoch: LeaderEpoch::new(epoch),
            isr: vec![OWN],
            recovering: false,
            controller_epoch: ControllerEpoch::new(1),
            partition_epoch: PartitionEpoch::new(0),
        };
        LeaderAndIsrPartition {
            partition: TopicPartition { topic: TopicName::new("t"), partition },
            topic_id: TopicId::new([7; 16]),
            leadership,
            replicas: vec![OWN],
            adding: Vec::new(),
            removing: Vec::new(),
            is_new: true,
        }
    }

    #[test]
    fn replicas_are_spread_evenly_and_stay_where_they_are() {
        let mut owners = Owners::new(3);
        let first: Vec<ShardId> = (0..12).map(|partition| owners.place(&role(partition, 0))).collect();
        for shard in 0..3 {
            assert_eq!(first.iter().filter(|owner| owner.get() == shard).count(), 4);
        }
        let again: Vec<ShardId> = (0..12).map(|partition| owners.place(&role(partition, 1))).collect();
        assert_eq!(first, again);
        assert_eq!(owners.load, [4, 4, 4]);
    }

    #[test]
    fn a_forgotten_replica_makes_room_and_may_take_its_epoch_again() {
        let mut owners = Owners::new(2);
        for partition in 0..4 {
            owners.place(&role(partition, 3));
        }
        assert_eq!(owners.judge(OWN, &role(0, 3)), ErrorCode::StaleControllerEpoch);
        owners.forget(&role(0, 3).partition);
        owners.forget(&role(0, 3).partition);
        assert_eq!(owners.load.iter().sum::<usize>(), 3);
        assert_eq!(owners.judge(OWN, &role(0, 3)), ErrorCode::None);
    }

    #[test]
    fn a_replica_whose_log_is_offline_keeps_its_owner_and_may_take_its_epoch_again() {
        let mut owners = Owners::new(2);
        let owner = owners.place(&role(0, 3));
        owners.not_taken(&role(0, 3).partition, LeaderEpoch::new(3), ErrorCode::KafkaStorageError);
        assert_eq!(owners.owner_of(&role(0, 3).partition), Some(owner));
        assert_eq!(owners.judge(OWN, &role(0, 3)), ErrorCode::None);
        owners.place(&role(0, 4));
        let refused = ErrorCode::InconsistentTopicId;
        owners.not_taken(&role(0, 3).partition, LeaderEpoch::new(3), refused);
        assert_eq!(owners.owner_of(&role(0, 3).partition), Some(owner), "a role that came since stands");
        owners.not_taken(&role(0, 3).partition, LeaderEpoch::new(4), refused);
        assert_eq!(owners.owner_of(&role(0, 3).partition), None);
    }

    #[test]
    fn a_role_of_another_topic_id_or_for_another_broker_is_refused() {
        let mut owners = Owners::new(1);
        owners.place(&role(0, 3));
        let of_another = LeaderAndIsrPartition { topic_id: TopicId::new([8; 16]), ..role(0, 4) };
        assert_eq!(owners.judge(OWN, &of_another), ErrorCode::InconsistentTopicId);
        assert_eq!(owners.judge(BrokerId::new(2), &role(1, 4)), ErrorCode::UnknownTopicOrPartition);
    }

    #[test]
    fn a_replica_that_nobody_owns_has_a_stopper_too() {
        let mut owners = Owners::new(2);
        let owner = owners.place(&role(0, 0));
        let stop = |partition| StopReplicaPartition {
            partition: role(partition, 0).partition,
            topic_id: TopicId::ZERO,
            leader_epoch: StopEpoch::Deleting,
            delete: true,
        };
        assert_eq!(owners.stopper_of(&stop(0)), (owner, TopicId::new([7; 16])));
        assert_eq!(owners.stopper_of(&stop(1)).1, TopicId::ZERO);
        assert_ne!(owners.stopper_of(&stop(1)).0, owner, "the least loaded");
    }
}
