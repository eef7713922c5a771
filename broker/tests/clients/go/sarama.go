package main

import (
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
	}
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
