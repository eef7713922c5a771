//! Fetch sessions over the wire: protocol.md 5, statements 59 to 64; F37; V-69, V-70, V-72.

use broker::shard::ShardId;
use protocol::error::ErrorCode;
use protocol::messages::*;
use protocol::types::TopicId;

use crate::harness::*;

fn session(id: i32, epoch: i32, parts: &[(&str, i32, i64)]) -> FetchRequest<'static> {
    FetchRequest { session_id: id, session_epoch: epoch, ..fetch_request(parts) }
}

fn indexes(answer: &FetchResponse<'static>) -> Vec<i32> {
    answer
        .responses
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|data| data.partition_index))
        .collect()
}

#[test]
fn a_session_tells_only_what_changed() {
    // 59, 60, 62
    for shards in SHARDS {
        let broker = Broker::new(shards);
        broker.create("t", 3, &[]);
        let client = broker.client();
        let all = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)];
        let opened = client.fetch(11, &session(0, 0, &all));
        let id = opened.session_id;
        assert!(id > 0 && indexes(&opened) == [0, 1, 2]);
        let quiet = client.fetch(11, &session(id, 1, &[]));
        assert_eq!((quiet.session_id, quiet.error_code, indexes(&quiet)), (id, 0, vec![]));
        let again = client.fetch(11, &session(id, 1, &[]));
        assert_eq!(again.error_code, ErrorCode::InvalidFetchSessionEpoch.get());
        assert_eq!((again.session_id, indexes(&again)), (0, vec![]));
        client.produce_one("t", 1, batch(&[b"a"]));
        let news = client.fetch(11, &session(id, 2, &[]));
        assert_eq!(indexes(&news), [1]);
        let news = client.fetch(11, &session(id, 3, &[("t", 1, 1)]));
        assert_eq!(indexes(&news), Vec::<i32>::new(), "the same high watermark is no news");
        let closed = client.fetch(11, &session(id, -1, &all));
        assert_eq!((closed.session_id, indexes(&closed)), (0, vec![0, 1, 2]));
        let gone = client.fetch(11, &session(id, 4, &[]));
        assert_eq!((gone.error_code, gone.session_id), (ErrorCode::FetchSessionIdNotFound.get(), 0));
    }
}

#[test]
fn a_session_is_found_from_every_connection() {
    for shards in [2, 5] {
        let broker = Broker::new(shards);
        broker.create("t", 3, &[]);
        let all = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)];
        for home in 0..usize::from(shards) {
            let id = broker.client_on(home, "c").fetch(11, &session(0, 0, &all)).session_id;
            for (step, away) in (0..usize::from(shards)).enumerate() {
                let epoch = i32::try_from(step).unwrap() + 1;
                let answer = broker.client_on(away, "c").fetch(11, &session(id, epoch, &[]));
                assert_eq!((answer.error_code, answer.session_id), (0, id));
            }
        }
    }
}

#[test]
fn evicted_and_mixed_sessions_have_their_errors() {
    // 61, 64, V-72
    let broker = Broker::start(1, 1, Start { sessions_max: 1, ..Start::default() });
    broker.create("t", 1, &[]);
    let client = broker.client();
    let id = client.fetch(12, &session(0, 0, &[("t", 0, 0)])).session_id;
    assert_eq!(client.fetch(12, &session(0, 0, &[("t", 0, 0)])).session_id, 0, "no room is no error");
    let mixed = client.fetch(13, &session(id, 1, &[]));
    assert_eq!(mixed.error_code, ErrorCode::FetchSessionTopicIdError.get());
    broker.world().advance_ms(121_000);
    assert!(client.fetch(12, &session(0, 0, &[("t", 0, 0)])).session_id > 0);
    assert_eq!(client.fetch(12, &session(id, 1, &[])).error_code, ErrorCode::FetchSessionIdNotFound.get());
}

#[test]
fn forgetting_the_last_partition_ends_the_session() {
    // 63
    let broker = Broker::new(2);
    broker.create("t", 2, &[]);
    let client = broker.client();
    let id = client.fetch(11, &session(0, 0, &[("t", 0, 0), ("t", 1, 0)])).session_id;
    let forget = |partitions| {
        let topic = ForgottenTopic { topic: "t".into(), topic_id: TopicId::ZERO, partitions };
        vec![topic]
    };
    let one = FetchRequest { forgotten_topics_data: forget(vec![0]), ..session(id, 1, &[]) };
    assert_eq!(client.fetch(11, &one).session_id, id);
    let last = FetchRequest { forgotten_topics_data: forget(vec![1]), ..session(id, 2, &[]) };
    let answer = client.fetch(11, &last);
    assert_eq!((answer.error_code, answer.session_id), (0, 0));
    assert_eq!(client.fetch(11, &session(id, 3, &[])).error_code, ErrorCode::FetchSessionIdNotFound.get());
}

#[test]
fn unknown_ids_stay_in_the_session_until_they_are_known() {
    let broker = Broker::new(2);
    let client = broker.client();
    let id = TopicId::new([4; 16]);
    let mut topics = FetchTopics::default();
    topics.push("", id, [part(0, 0)]);
    let opened = client.fetch(13, &FetchRequest { topics, ..session(0, 0, &[]) });
    assert_eq!(opened.responses[0].partitions[0].error_code, ErrorCode::UnknownTopicId.get());
    let again = client.fetch(13, &session(opened.session_id, 1, &[]));
    assert_eq!(again.responses[0].partitions[0].error_code, ErrorCode::UnknownTopicId.get());
    broker.create_as("late", id, 1, &[]);
    client.produce_one("late", 0, batch(&[b"a"]));
    let found = client.fetch(13, &session(opened.session_id, 2, &[]));
    assert_eq!(found.responses[0].topic_id, id);
    assert_eq!(values(&found.responses[0].partitions[0]), [b"a"]);
}

///
#[test]
fn a_request_is_at_home_where_most_of_its_partitions_are() {
    use broker::handlers::{Request, RequestHandler};
    let broker = Broker::new(3);
    broker.create("t", 9, &[]);
    let client = broker.client();
    let home_of = |shard: usize, request: &Request| {
        broker.handlers[shard].home(request.api_key, request.api_version, &request.body)
    };
    let fetch = |partitions: &[i32]| {
        let parts: Vec<_> = partitions.iter().map(|partition| ("t", *partition, 0)).collect();
        home_of(0, &client.request(11, &fetch_request(&parts)))
    };
    let shard = |index| Some(ShardId::new(index));
    assert_eq!(fetch(&[1, 4, 7]), shard(1));
    assert_eq!(fetch(&[4, 7, 0]), shard(1), "twice as many as here");
    assert_eq!(fetch(&[4, 7, 0, 3]), shard(0));
    assert_eq!(fetch(&[1, 2]), shard(1), "no others to choose from");
    assert_eq!((fetch(&[]), fetch(&[100])), (None, None));
    let produce = client.request(9, &produce_request(-1, &[("t", 5, batch(&[b"a"]))]));
    assert_eq!(home_of(0, &produce), shard(2));
    assert_eq!(home_of(0, &client.request(9, &MetadataRequest::default())), None);
    // A session stays where it is, wherever its client connects again.
    let opening = FetchRequest { session_epoch: 0, ..fetch_request(&[("t", 1, 0)]) };
    let session_id = client.fetch(11, &opening).session_id;
    let next = FetchRequest { session_id, session_epoch: 1, ..fetch_request(&[("t", 1, 0)]) };
    assert_eq!(home_of(1, &client.request(11, &next)), shard(0));
}
