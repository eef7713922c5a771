//! Topics, configs and ids over restarts, also with another number of shards, and after a crash at any write.

use protocol::messages::*;
use protocol::types::*;

use crate::harness::*;

#[test]
fn topics_configs_and_ids_survive_with_any_number_of_shards() {
    let mut disks = Disks::default();
    let mut id = TopicId::ZERO;
    for (life, shards) in [2, 5, 1, 2].into_iter().enumerate() {
        let broker = Broker::start(shards, disks, |_| {});
        if life == 0 {
            let mut wish = topic("t", 5, 1);
            wish.configs.push(CreatableTopicConfig { name: "retention.ms".into(), value: Some("77".into()) });
            let answer: CreateTopicsResponse<'static> = broker.call(7, &create_request(vec![wish]));
            id = answer.topics[0].topic_id;
        }
        // There before the first client: the start waits for it.
        for cell in &broker.cells {
            let image = cell.current();
            let topic = image.topic("t").unwrap();
            assert_eq!((topic.id, topic.partitions.len()), (id, 5));
            assert_eq!(topic.overrides["retention.ms"], "77");
            assert!(topic.partitions.iter().all(|p| p.leader == ME && p.leader_epoch == LeaderEpoch::new(0)));
            assert!(topic.partitions.iter().all(|p| p.owner.is_some_and(|owner| owner.get() < shards)));
            assert_eq!(image.brokers.len(), 1);
        }
        disks = broker.kill();
    }
}

#[test]
fn a_creation_cut_at_any_write_is_all_or_nothing_to_clients() {
    for writes in 0.. {
        let broker = Broker::new(2);
        broker.create("before", 1);
        broker.disks.tree.crash_after(writes);
        broker.send_and_forget(&create_request(vec![topic("t", 3, 1)]));
        broker.world.run_until_idle();
        let crashed = broker.disks.tree.has_crashed();
        let broker = Broker::start(1, broker.kill(), |_| {});
        let image = broker.image();
        assert!(image.topic("before").is_some());
        if let Some(topic) = image.topic("t") {
            assert_eq!(topic.partitions.iter().filter(|partition| partition.leader == ME).count(), 3);
            assert!(writes > 0);
        } else {
            assert_eq!(broker.create("t", 3).error_code, 0, "after {writes} writes the name is free");
        }
        if !crashed {
            return;
        }
    }
}

#[test]
fn a_changed_config_is_shown_on_every_shard_and_survives() {
    let broker = Broker::new(2);
    broker.create("t", 2);
    let config = protocol::messages::configs::AlterableConfig {
        name: "retention.ms".into(),
        value: Some("99".into()),
    };
    let resource = protocol::messages::configs::AlterConfigsResource {
        resource_type: 2,
        resource_name: "t".into(),
        configs: vec![config],
    };
    let request = AlterConfigsRequest { resources: vec![resource], validate_only: false };
    let answer: AlterConfigsResponse<'static> = broker.call(1, &request);
    assert_eq!(answer.responses[0].error_code, 0);
    broker.world.run_until_idle();
    for cell in &broker.cells {
        let image = cell.current();
        let topic = image.topic("t").unwrap();
        assert_eq!((topic.overrides["retention.ms"].as_str(), topic.config.log.retention_ms), ("99", 99));
    }
    let broker = Broker::start(1, broker.kill(), |_| {});
    assert_eq!(broker.image().topic("t").unwrap().config.log.retention_ms, 99);
}
