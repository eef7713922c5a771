package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// segmentio runs the suite of segmentio/kafka-go, which sends fixed old versions of many requests.
func segmentio(bootstrap string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for name, codec := range map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd} {
		for acks, required := range map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll} {
			check("kafka-go", "round trip, "+name+", acks="+acks, func() error {
				return segmentioRoundTrip(ctx, bootstrap, codec, required)
			})
		}
	}
	check("kafka-go", "seek", func() error { return segmentioSeek(ctx, bootstrap) })
	check("kafka-go", "group under load", func() error { return segmentioGroup(bootstrap) })
}

func segmentioGroup(bootstrap string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	topic, name := unique("segmentio-group"), unique("segmentio-group")
	if err := segmentioCreate(ctx, bootstrap, topic, groupPartitions); err != nil {
		return err
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Balancer: &kafka.RoundRobin{}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond, Transport: transport,
	}
	defer writer.Close()
	start := func(_ string, note func(string)) (func() error, error) {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{bootstrap}, GroupID: name, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 100 * time.Millisecond,
			HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: 10 * time.Second, RebalanceTimeout: 10 * time.Second,
			JoinGroupBackoff: 200 * time.Millisecond,
		})
		reading, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			for {
				message, err := reader.FetchMessage(reading)
				if err != nil {
					if reading.Err() != nil {
						err = nil
					}
					done <- err
					return
				}
				note(string(message.Value))
				// What a rebalance took away somebody else reads again.
				var refused kafka.Error
				if err := reader.CommitMessages(ctx, message); err != nil && !errors.As(err, &refused) {
					done <- err
					return
				}
			}
		}()
		return func() error {
			stop()
			return errors.Join(<-done, reader.Close())
		}, nil
	}
	produce := func(values []string) error {
		var messages []kafka.Message
		for _, value := range values {
			messages = append(messages, kafka.Message{Value: []byte(value)})
		}
		return writer.WriteMessages(ctx, messages...)
	}
	client := &kafka.Client{Addr: kafka.TCP(bootstrap), Transport: transport}
	committed := func() (int64, error) {
		var partitions []int
		for partition := range groupPartitions {
			partitions = append(partitions, partition)
		}
		offsets, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: name, Topics: map[string][]int{topic: partitions}})
		if err != nil {
			return 0, err
		}
		var sum int64
		for _, partition := range offsets.Topics[topic] {
			sum += max(partition.CommittedOffset, 0)
		}
		return sum, offsets.Error
	}
	return rollingRestart(group{start, produce, committed})
}

func segmentioCreate(ctx context.Context, bootstrap, topic string, count int) error {
	conn, err := kafka.DialContext(ctx, "tcp", bootstrap)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.CreateTopics(kafka.TopicConfig{Topic: topic, NumPartitions: count, ReplicationFactor: 1}); err != nil {
		return err
	}
	return eventually("metadata", func() bool {
		partitions, err := conn.ReadPartitions(topic)
		return err == nil && len(partitions) == count
	})
}

func segmentioWrite(ctx context.Context, bootstrap, topic string, codec kafka.Compression, acks kafka.RequiredAcks, list []record) error {
	// A transport of its own: the default one remembers for seconds that the topic did not exist.
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Compression: codec, RequiredAcks: acks,
		BatchTimeout: 5 * time.Millisecond, Transport: transport,
	}
	defer writer.Close()
	var messages []kafka.Message
	for _, r := range list {
		message := kafka.Message{Key: r.key, Value: r.value, Time: r.time}
		for _, h := range r.headers {
			message.Headers = append(message.Headers, kafka.Header{Key: h.name, Value: h.value})
		}
		messages = append(messages, message)
	}
	return writer.WriteMessages(ctx, messages...)
}

func segmentioRoundTrip(ctx context.Context, bootstrap string, codec kafka.Compression, acks kafka.RequiredAcks) error {
	topic := unique("segmentio")
	if err := segmentioCreate(ctx, bootstrap, topic, 1); err != nil {
		return err
	}
	want := records()
	if err := segmentioWrite(ctx, bootstrap, topic, codec, acks, want); err != nil {
		return err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, Partition: 0, MaxBytes: 10 << 20, MaxWait: 100 * time.Millisecond})
	defer reader.Close()
	var got []record
	for range want {
		m, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		in := record{key: m.Key, value: m.Value, time: m.Time}
		for _, h := range m.Headers {
			in.headers = append(in.headers, header{h.Key, h.Value})
		}
		// kafka-go reads null and empty as it likes; what was stored is checked by the other clients.
		if len(in.key) == 0 {
			in.key = nil
		}
		if len(in.value) == 0 {
			in.value = nil
		}
		got = append(got, in)
	}
	return same(got, want)
}

func segmentioSeek(ctx context.Context, bootstrap string) error {
	topic := unique("segmentio-seek")
	if err := segmentioCreate(ctx, bootstrap, topic, 1); err != nil {
		return err
	}
	var list []record
	for i := range 100 {
		list = append(list, record{value: fmt.Appendf(nil, "%d", i), time: time.UnixMilli(int64(1000 + i*100))})
	}
	if err := segmentioWrite(ctx, bootstrap, topic, 0, kafka.RequireAll, list); err != nil {
		return err
	}
	conn, err := kafka.DialLeader(ctx, "tcp", bootstrap, topic, 0)
	if err != nil {
		return err
	}
	defer conn.Close()
	first, last, err := conn.ReadOffsets()
	if err != nil {
		return err
	}
	at, err := conn.ReadOffset(time.UnixMilli(5050))
	if err != nil {
		return err
	}
	if first != 0 || last != 100 || at != 41 {
		return fmt.Errorf("first %d, last %d, by time %d", first, last, at)
	}
	if _, err := conn.Seek(77, kafka.SeekAbsolute); err != nil {
		return err
	}
	message, err := conn.ReadMessage(1 << 20)
	if err != nil {
		return err
	}
	if string(message.Value) != "77" {
		return fmt.Errorf("read %q", message.Value)
	}
	return nil
}
