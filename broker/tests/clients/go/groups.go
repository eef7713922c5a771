package main

import (
	"fmt"
	"sync"
	"time"
)

// group is one client's way to be in a group.
type group struct {
	// start makes a member that notes values, and returns how to stop it.
	start func(name string, note func(string)) (func() error, error)
	// produce returns when the values are acknowledged.
	produce func(values []string) error
	// committed is the sum of the committed offsets.
	committed func() (int64, error)
}

const groupPartitions = 6

// rollingRestart puts a group under load: two members, a third that comes, then each of them leaves and comes back, while
// records are produced. Every record must reach somebody, those that were sent during a rebalance too, and be committed
// by somebody.
func rollingRestart(g group) error {
	var mutex sync.Mutex
	seen, sent := map[string]bool{}, 0
	note := func(value string) {
		mutex.Lock()
		defer mutex.Unlock()
		seen[value] = true
	}
	all := func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return len(seen) == sent
	}
	load := func() error {
		for range 10 {
			var values []string
			for i := range 40 {
				values = append(values, fmt.Sprintf("v%d", sent+i))
			}
			if err := g.produce(values); err != nil {
				return err
			}
			mutex.Lock()
			sent += len(values)
			mutex.Unlock()
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
	stops := map[string]func() error{}
	begin := func(name string) error {
		stop, err := g.start(name, note)
		if err == nil {
			stops[name] = stop
		}
		return err
	}
	underLoad := func(what string, change func() error) error {
		loaded := make(chan error, 1)
		go func() { loaded <- load() }()
		if err := change(); err != nil {
			<-loaded
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := <-loaded; err != nil {
			return fmt.Errorf("%s: producing: %w", what, err)
		}
		return within(time.Minute, what+": all records", all)
	}
	run := func() error {
		if err := underLoad("the first member", func() error { return begin("a") }); err != nil {
			return err
		}
		for _, name := range []string{"b", "c"} {
			if err := underLoad("one more member", func() error { return begin(name) }); err != nil {
				return err
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			err := underLoad("restart of "+name, func() error {
				stop := stops[name]
				delete(stops, name)
				if err := stop(); err != nil {
					return err
				}
				return begin(name)
			})
			if err != nil {
				return err
			}
		}
		return within(time.Minute, "all is committed", func() bool {
			committed, err := g.committed()
			return err == nil && committed == int64(sent)
		})
	}
	err := run()
	for _, stop := range stops {
		if stopped := stop(); err == nil {
			err = stopped
		}
	}
	if err != nil {
		return err
	}
	committed, err := g.committed()
	if err == nil && committed != int64(sent) {
		err = fmt.Errorf("%d committed, %d sent", committed, sent)
	}
	return err
}

func within(limit time.Duration, what string, check func() bool) error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if check() {
			return nil
		}
	}
	return fmt.Errorf("%s: not within %v", what, limit)
}
