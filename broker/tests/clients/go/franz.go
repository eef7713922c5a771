package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franz runs the suite of franz-go, which follows the newest versions and uses topic ids.
func franz(bootstrap string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	codecs := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	for name, codec := range codecs {
		for acks, option := range map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()} {
			check("franz-go", "round trip, "+name+", acks="+acks, func() error {
				options := []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(option)}
				if acks != "all" {
					options = append(options, kgo.DisableIdempotentWrite())
				}
				return franzRoundTrip(ctx, bootstrap, admin, options)
			})
		}
	}
	check("franz-go", "topics", func() error { return franzTopics(ctx, admin) })
	check("franz-go", "offsets", func() error { return franzOffsets(ctx, bootstrap, admin) })
	for name, balancer := range map[string]kgo.GroupBalancer{"cooperative-sticky": kgo.CooperativeStickyBalancer(), "range": kgo.RangeBalancer()} {
		check("franz-go", "group under load, "+name, func() error { return franzGroup(bootstrap, balancer) })
	}
	check("franz-go", "exactly once per batch", func() error { return franzBatches(bootstrap) })
}

func franzGroup(bootstrap string, balancer kgo.GroupBalancer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	admin, topic, name := kadm.NewClient(client), unique("franz-group"), unique("franz-group")
	if _, err := admin.CreateTopic(ctx, groupPartitions, 1, nil, topic); err != nil {
		return err
	}
	start := func(_ string, note func(string)) (func() error, error) {
		member, err := kgo.NewClient(
			kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond),
			kgo.SessionTimeout(10*time.Second), kgo.AutoCommitMarks(), kgo.AutoCommitInterval(200*time.Millisecond),
		)
		if err != nil {
			return nil, err
		}
		polling, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for polling.Err() == nil {
				member.PollFetches(polling).EachRecord(func(r *kgo.Record) {
					note(string(r.Value))
					member.MarkCommitRecords(r)
				})
			}
		}()
		return func() error {
			stop()
			<-done
			err := member.CommitMarkedOffsets(ctx)
			member.Close()
			// What a rebalance took away somebody else reads again.
			if errors.Is(err, kerr.RebalanceInProgress) || errors.Is(err, kerr.IllegalGeneration) {
				err = nil
			}
			return err
		}, nil
	}
	produce := func(values []string) error {
		var records []*kgo.Record
		for i, value := range values {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % groupPartitions), Value: []byte(value)})
		}
		return client.ProduceSync(ctx, records...).FirstErr()
	}
	committed := func() (int64, error) {
		offsets, err := admin.FetchOffsets(ctx, name)
		var sum int64
		offsets.Each(func(o kadm.OffsetResponse) { sum += max(o.At, 0) })
		return sum, err
	}
	if err := rollingRestart(group{start, produce, committed}); err != nil {
		return err
	}
	described, err := admin.DescribeGroups(ctx, name)
	if err != nil || described[name].State != "Empty" {
		return fmt.Errorf("described as %v: %v", described[name], err)
	}
	listed, err := admin.ListGroups(ctx, "Empty")
	if _, there := listed[name]; err != nil || !there {
		return fmt.Errorf("not listed: %v", err)
	}
	deleted, err := admin.DeleteGroups(ctx, name)
	if err != nil {
		return err
	}
	return deleted.Error()
}

// franzBatches has each batch done when it is committed. Members follow each other, each leaves with a batch that it has
// taken and not committed: every record is done once.
func franzBatches(bootstrap string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	topic, name := unique("franz-batches"), unique("franz-batches")
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 2, 1, nil, topic); err != nil {
		return err
	}
	const count = 300
	var sent []*kgo.Record
	for i := range count {
		sent = append(sent, &kgo.Record{Topic: topic, Partition: int32(i % 2), Value: fmt.Appendf(nil, "v%d", i)})
	}
	if err := client.ProduceSync(ctx, sent...).FirstErr(); err != nil {
		return err
	}
	done, total := map[string]bool{}, 0
	life := func() error {
		member, err := kgo.NewClient(
			kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond),
		)
		if err != nil {
			return err
		}
		defer member.Close()
		for wanted := min(total+60, count); total < wanted; {
			fetches := member.PollRecords(ctx, 10)
			if err := fetches.Err(); err != nil {
				return err
			}
			batch := fetches.Records()
			if err := member.CommitRecords(ctx, batch...); err != nil {
				return err
			}
			for _, r := range batch {
				done[string(r.Value)] = true
			}
			total += len(batch)
		}
		if total < count {
			return member.PollRecords(ctx, 10).Err()
		}
		return nil
	}
	for total < count {
		if err := life(); err != nil {
			return err
		}
	}
	if total != count || len(done) != count {
		return fmt.Errorf("%d records are done, %d of them different, of %d", total, len(done), count)
	}
	return nil
}

func franzRoundTrip(ctx context.Context, bootstrap string, admin *kadm.Client, options []kgo.Opt) error {
	topic := unique("franz")
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		return err
	}
	producer, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer producer.Close()
	want := records()
	var sent []*kgo.Record
	for _, r := range want {
		out := &kgo.Record{Topic: topic, Key: r.key, Value: r.value, Timestamp: r.time}
		for _, h := range r.headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.name, Value: h.value})
		}
		sent = append(sent, out)
	}
	if err := producer.ProduceSync(ctx, sent...).FirstErr(); err != nil {
		return err
	}
	got, err := franzRead(ctx, bootstrap, topic, len(want))
	if err != nil {
		return err
	}
	return same(got, want)
}

func franzRead(ctx context.Context, bootstrap, topic string, count int) ([]record, error) {
	where := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumePartitions(where))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var got []record
	for len(got) < count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			in := record{key: r.Key, value: r.Value, time: r.Timestamp}
			for _, h := range r.Headers {
				in.headers = append(in.headers, header{h.Key, h.Value})
			}
			got = append(got, in)
		})
	}
	return got, nil
}

func franzTopics(ctx context.Context, admin *kadm.Client) error {
	topic := unique("franz-topics")
	retention := "12345"
	created, err := admin.CreateTopic(ctx, -1, -1, map[string]*string{"retention.ms": &retention}, topic)
	if err != nil {
		return err
	}
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, topic); !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("second creation: %v", err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" && config.MaybeValue() != "12345" {
			return fmt.Errorf("retention.ms is %s", config.MaybeValue())
		}
	}
	if _, err := admin.CreatePartitions(ctx, 2, topic); err != nil {
		return err
	}
	if err := eventually("3 partitions", func() bool {
		listed, err := admin.ListTopics(ctx, topic)
		return err == nil && len(listed[topic].Partitions) == int(created.NumPartitions)+2 && listed[topic].ID == created.ID
	}); err != nil {
		return err
	}
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	return eventually("deletion", func() bool {
		listed, err := admin.ListTopics(ctx)
		return err == nil && !listed.Has(topic)
	})
}

func franzOffsets(ctx context.Context, bootstrap string, admin *kadm.Client) error {
	topic := unique("franz-offsets")
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		return err
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, ms := range []int64{1000, 3000, 2000} {
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("v"), Timestamp: time.UnixMilli(ms)}).FirstErr(); err != nil {
			return err
		}
	}
	after, err := admin.ListOffsetsAfterMilli(ctx, 1500, topic)
	if err != nil {
		return err
	}
	end, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if a, e := after[topic][0].Offset, end[topic][0].Offset; a != 1 || e != 3 {
		return fmt.Errorf("by time %d, end %d", a, e)
	}
	return nil
}
