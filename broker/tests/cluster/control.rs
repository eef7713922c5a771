//! Requests of a controller that is not the current one, or that are meant for an earlier life of this broker
//! (replication.md 15: V-59, V-60; controller.md 18: 3, 5).

use broker::controller::driver::BrokerLink;
use broker::controller::machine::Event;
use broker::controller::requests::{
    ControlReply, ControlRequest, Header, LeaderAndIsr, StopEpoch, StopReplica, StopReplicaPartition,
    UpdateMetadata,
};
use futures_channel::mpsc;
use futures_util::StreamExt;
use protocol::error::ErrorCode;
use protocol::types::*;

use crate::harness::*;

/// What this broker answers to a request.
fn reply(broker: &Broker, request: ControlRequest) -> ControlReply {
    let (replies, mut answers) = mpsc::unbounded();
    broker.local.link(ME).send(ME, request, &replies);
    match broker.world.block_on(async move { answers.next().await }) {
        Some(Event::Replied { from: ME, reply, .. }) => reply,
        _ => panic!("one answer of this broker"),
    }
}

fn stop_of(header: Header) -> StopReplica {
    let partition = StopReplicaPartition {
        partition: TopicPartition::new(TopicName::new("t"), 0),
        topic_id: TopicId::ZERO,
        leader_epoch: StopEpoch::Deleting,
        delete: true,
    };
    StopReplica { header, partitions: vec![partition] }
}

/// All three requests are refused with `expected`, and change nothing.
fn all_are_refused(broker: &Broker, header: Header, expected: ErrorCode) {
    let before = broker.image();
    let empty = LeaderAndIsr { header, partitions: Vec::new(), live_leaders: Vec::new() };
    let refused = ControlReply::LeaderAndIsr { error: expected, partitions: Vec::new() };
    assert_eq!(reply(broker, ControlRequest::LeaderAndIsr(empty)), refused);
    let update = UpdateMetadata { header, brokers: Vec::new(), partitions: Vec::new() };
    let refused = ControlReply::UpdateMetadata { error: expected };
    assert_eq!(reply(broker, ControlRequest::UpdateMetadata(update)), refused);
    match reply(broker, ControlRequest::StopReplica(stop_of(header))) {
        ControlReply::StopReplica { error, partitions } => {
            assert_eq!((error, partitions.len()), (expected, 1), "complete also after an error");
            assert_eq!(partitions[0].2, expected);
        }
        other => panic!("{other:?}"),
    }
    let after = broker.image();
    assert_eq!((after.version, after.brokers.len()), (before.version, before.brokers.len()));
    assert_eq!(broker.metadata(13, Some(&["t"])).topics[0].partitions[0].leader_id, 1);
}

#[test]
fn v59_v60_stale_controllers_and_requests_for_an_earlier_registration_change_nothing() {
    for shards in [1, 2] {
        let broker = Broker::new(shards);
        broker.create("t", 1);
        let epoch = broker.image().brokers[&ME].epoch;
        let header =
            |controller_epoch, broker_epoch| Header { controller: ME, controller_epoch, broker_epoch };
        let current = ControllerEpoch::new(1);
        let earlier = BrokerEpoch::new(epoch.get() - 1);
        all_are_refused(&broker, header(current, earlier), ErrorCode::StaleBrokerEpoch);
        let later = ControllerEpoch::new(9);
        all_are_refused(&broker, header(later, earlier), ErrorCode::StaleBrokerEpoch);
        all_are_refused(&broker, header(ControllerEpoch::new(0), epoch), ErrorCode::StaleControllerEpoch);
        // A refused request teaches no epoch: the current controller goes on.
        let empty =
            LeaderAndIsr { header: header(current, epoch), partitions: Vec::new(), live_leaders: Vec::new() };
        let taken = ControlReply::LeaderAndIsr { error: ErrorCode::None, partitions: Vec::new() };
        assert_eq!(reply(&broker, ControlRequest::LeaderAndIsr(empty)), taken);
        // A newer one fences it.
        let update = UpdateMetadata {
            header: header(ControllerEpoch::new(7), BrokerEpoch::new(-1)),
            brokers: Vec::new(),
            partitions: Vec::new(),
        };
        let taken = ControlReply::UpdateMetadata { error: ErrorCode::None };
        assert_eq!(reply(&broker, ControlRequest::UpdateMetadata(update)), taken);
        let old = ControlRequest::StopReplica(stop_of(header(current, epoch)));
        let ControlReply::StopReplica { error, .. } = reply(&broker, old) else { panic!("another answer") };
        assert_eq!(error, ErrorCode::StaleControllerEpoch);
    }
}
