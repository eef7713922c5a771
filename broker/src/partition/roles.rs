//! Who is told of the roles that partitions take on this shard: what lives with the leadership of a partition, a
//! coordinator, begins and ends with it. Told when a role was taken and when it has ended, in the order of the changes.
//! Knows nobody who listens.

use std::cell::RefCell;
use std::rc::Rc;

use protocol::types::LeaderEpoch;
use storage::io::Runtime;

use super::ask::PartitionKey;
use super::replica::Partition;
use super::service::PartitionService;

/// What became of a partition of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// This broker leads it, and its log is open.
    Leads(LeaderEpoch),
    /// This broker does not lead it: another one does since this epoch, or it is stopped, whatever the epoch.
    Ended(Option<LeaderEpoch>),
}

type Listener = Rc<dyn Fn(PartitionKey, RoleChange)>;

/// Those who listen, each to the partitions of one topic.
#[derive(Default)]
pub(super) struct Roles(RefCell<Vec<(&'static str, Listener)>>);

impl Roles {
    fn tell(&self, topic: &str, key: PartitionKey, change: RoleChange) {
        let all = self.0.borrow();
        let told: Vec<_> =
            all.iter().filter(|(of, _)| *of == topic).map(|(_, listener)| listener.clone()).collect();
        drop(all);
        for listener in told {
            listener(key, change);
        }
    }
}

impl<R: Runtime> PartitionService<R> {
    /// Tells `listener` of the roles that partitions of a topic take from now on. It is called within a turn of the
    /// owner, which holds no borrow then; it must not wait, and may ask the owner by a task of its own only.
    pub fn on_role(&self, topic: &'static str, listener: impl Fn(PartitionKey, RoleChange) + 'static) {
        self.0.hub.roles.0.borrow_mut().push((topic, Rc::new(listener)));
    }
}

impl<R: Runtime> Partition<R> {
    /// A role was taken.
    pub(super) fn tell_role(&self) {
        let machine = self.machine.borrow();
        let (is_leader, epoch) = (machine.is_leader(), machine.leader_epoch());
        drop(machine);
        let change = if is_leader { RoleChange::Leads(epoch) } else { RoleChange::Ended(Some(epoch)) };
        if !is_leader {
            let ended = &self.appends.leaderships_ended;
            ended.set(ended.get().wrapping_add(1));
        }
        self.hub.roles.tell(self.name.topic.get(), self.key, change);
    }

    /// The partition is stopped, by a request of this epoch if it has one.
    pub(super) fn tell_stop(&self, epoch: Option<LeaderEpoch>) {
        self.hub.roles.tell(self.name.topic.get(), self.key, RoleChange::Ended(epoch));
    }
}
