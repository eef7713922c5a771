package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// saramaSuite runs the suite of sarama, whose configured version picks the request versions.
func saramaSuite(bootstrap string) {
	for _, version := range []sarama.KafkaVersion{sarama.V1_0_0_0, sarama.V2_1_0_0, sarama.DefaultVersion, sarama.MaxVersion} {
		for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
			if codec == sarama.CompressionZSTD && !version.IsAtLeast(sarama.V2_1_0_0) {
				continue
			}
			for _, acks := range []sarama.RequiredAcks{sarama.NoResponse, sarama.WaitForLocal, sarama.WaitForAll} {
				check("sarama", fmt.Sprintf("round trip as %v, %v, acks=%d", version, codec, acks), func() error {
					return saramaRoundTrip(bootstrap, version, codec, acks)
				})
			}
		}
		check("sarama", fmt.Sprintf("topics as %v", version), func() error { return saramaTopics(bootstrap, version) })
		check("sarama", fmt.Sprintf("group under load as %v", version), func() error { return saramaGroup(bootstrap, version) })
	}
}

// saramaMember notes what it reads; its session ends with a rebalance.
type saramaMember struct{ note func(string) }

func (saramaMember) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.note(string(message.Value))
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func saramaGroup(bootstrap string, version sarama.KafkaVersion) error {
	config, topic, name := saramaConfig(version), unique("sarama-group"), unique("sarama-group")
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 10 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategySticky()}
	if err := saramaCreate(bootstrap, config, topic, groupPartitions); err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer admin.Close()
	start := func(_ string, note func(string)) (func() error, error) {
		member, err := sarama.NewConsumerGroup([]string{bootstrap}, name, config)
		if err != nil {
			return nil, err
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			for ctx.Err() == nil {
				if err := member.Consume(ctx, []string{topic}, saramaMember{note}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		return func() error {
			stop()
			return errors.Join(<-done, member.Close())
		}, nil
	}
	produce := func(values []string) error {
		var messages []*sarama.ProducerMessage
		for i, value := range values {
			messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: int32(i % groupPartitions), Value: sarama.StringEncoder(value)})
		}
		return producer.SendMessages(messages)
	}
	committed := func() (int64, error) {
		var partitions []int32
		for partition := range int32(groupPartitions) {
			partitions = append(partitions, partition)
		}
		offsets, err := admin.ListConsumerGroupOffsets(name, map[string][]int32{topic: partitions})
		if err != nil {
			return 0, err
		}
		var sum int64
		for _, block := range offsets.Blocks[topic] {
			sum += max(block.Offset, 0)
		}
		return sum, nil
	}
	if err := rollingRestart(group{start, produce, committed}); err != nil {
		return err
	}
	described, err := admin.DescribeConsumerGroups([]string{name})
	if err != nil || described[0].State != "Empty" {
		return fmt.Errorf("described as %v: %v", described, err)
	}
	listed, err := admin.ListConsumerGroups()
	if _, there := listed[name]; err != nil || !there {
		return fmt.Errorf("not listed: %v", err)
	}
	if version.IsAtLeast(sarama.V1_1_0_0) {
		return admin.DeleteConsumerGroup(name)
	}
	return nil
}

func saramaConfig(version sarama.KafkaVersion) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = version
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config
}

func saramaCreate(bootstrap string, config *sarama.Config, topic string, partitions int32) error {
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
}

func saramaRoundTrip(bootstrap string, version sarama.KafkaVersion, codec sarama.CompressionCodec, acks sarama.RequiredAcks) error {
	config, topic := saramaConfig(version), unique("sarama")
	config.Producer.Compression = codec
	config.Producer.RequiredAcks = acks
	if err := saramaCreate(bootstrap, config, topic, 1); err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	want := records()
	var messages []*sarama.ProducerMessage
	for _, r := range want {
		message := &sarama.ProducerMessage{Topic: topic, Timestamp: r.time}
		if r.key != nil {
			message.Key = sarama.ByteEncoder(r.key)
		}
		if r.value != nil {
			message.Value = sarama.ByteEncoder(r.value)
		}
		for _, h := range r.headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(h.name), Value: h.value})
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	got, err := saramaRead(bootstrap, config, topic, len(want))
	if err != nil {
		return err
	}
	return same(got, want)
}

func saramaRead(bootstrap string, config *sarama.Config, topic string, count int) ([]record, error) {
	consumer, err := sarama.NewConsumer([]string{bootstrap}, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(topic, 0, 0)
	if err != nil {
		return nil, err
	}
	defer partition.Close()
	var got []record
	for len(got) < count {
		select {
		case m := <-partition.Messages():
			in := record{key: m.Key, value: m.Value, time: m.Timestamp}
			for _, h := range m.Headers {
				in.headers = append(in.headers, header{string(h.Key), h.Value})
			}
			got = append(got, in)
		case err := <-partition.Errors():
			return nil, err
		case <-time.After(20 * time.Second):
			return nil, errors.New("no record within 20 s")
		}
	}
	return got, nil
}

func saramaTopics(bootstrap string, version sarama.KafkaVersion) error {
	config, topic := saramaConfig(version), unique("sarama-topics")
	if err := saramaCreate(bootstrap, config, topic, 2); err != nil {
		return err
	}
	if err := saramaCreate(bootstrap, config, topic, 2); !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("second creation: %v", err)
	}
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, config)
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := admin.CreatePartitions(topic, 4, nil, false); err != nil {
		return err
	}
	if err := eventually("4 partitions", func() bool {
		described, err := admin.DescribeTopics([]string{topic})
		return err == nil && len(described[0].Partitions) == 4
	}); err != nil {
		return err
	}
	if err := admin.DeleteTopic(topic); err != nil {
		return err
	}
	return eventually("deletion", func() bool {
		listed, err := admin.ListTopics()
		_, there := listed[topic]
		return err == nil && !there
	})
}
