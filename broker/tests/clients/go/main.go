// Command suites runs the Go clients against a broker: produce with each codec and acks, read by partition and in
// groups, admin.
//
// Usage: suites CLIENT BOOTSTRAP, where CLIENT is franz-go, sarama or kafka-go. It prints a line per check and ends
// with "N passed, N failed".
package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"os"
	"time"
)

// header is a record header; order and repeats matter.
type header struct {
	name  string
	value []byte
}

// record is what every client sends and must read back.
type record struct {
	key, value []byte
	headers    []header
	time       time.Time
}

func (r record) String() string {
	return fmt.Sprintf("%q=%d bytes %q headers=%v time=%d nil=%v,%v", r.key, len(r.value), r.value[:min(20, len(r.value))], r.headers, r.time.UnixMilli(), r.key == nil, r.value == nil)
}

func records() []record {
	now := time.UnixMilli(time.Now().UnixMilli())
	big := make([]byte, 300_000)
	rand.New(rand.NewSource(7)).Read(big)
	return []record{
		{[]byte("key"), []byte("value"), nil, now.Add(-4 * time.Second)},
		{nil, []byte("no key"), []header{{"h", []byte("1")}, {"h", []byte("2")}}, now.Add(-3 * time.Second)},
		{[]byte("no value"), nil, []header{{"é", []byte("ü")}}, now.Add(-2 * time.Second)},
		{[]byte("big"), big, nil, now},
	}
}

func same(got, want []record) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records read, %d sent", len(got), len(want))
	}
	for i := range want {
		equal := bytes.Equal(got[i].key, want[i].key) && bytes.Equal(got[i].value, want[i].value) &&
			(got[i].key == nil) == (want[i].key == nil) && (got[i].value == nil) == (want[i].value == nil) &&
			got[i].time.Equal(want[i].time) && len(got[i].headers) == len(want[i].headers)
		for j := 0; equal && j < len(want[i].headers); j++ {
			equal = got[i].headers[j].name == want[i].headers[j].name && bytes.Equal(got[i].headers[j].value, want[i].headers[j].value)
		}
		if !equal {
			return fmt.Errorf("record %d: got %v, want %v", i, got[i], want[i])
		}
	}
	return nil
}

// eventually repeats a check for what Kafka itself only promises soon.
func eventually(what string, check func() bool) error {
	return within(15*time.Second, what, check)
}

func unique(prefix string) string {
	return fmt.Sprintf("%s-%d-%d", prefix, time.Now().UnixNano(), rand.Int31())
}

var passed, failed int

func check(client, title string, run func() error) {
	started := time.Now()
	if err := run(); err != nil {
		failed++
		fmt.Printf("FAILED %s: %s: %v\n", client, title, err)
		return
	}
	passed++
	fmt.Printf("ok %s: %s (%.2f s)\n", client, title, time.Since(started).Seconds())
}

func main() {
	client, bootstrap := os.Args[1], os.Args[2]
	map[string]func(string){"franz-go": franz, "sarama": saramaSuite, "kafka-go": segmentio}[client](bootstrap)
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
