package consensus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"northstar/cluster"
)

// TestStopAfterALostAnswer: the library loses answers when it ends. That is no failure of the stop.
func TestStopAfterALostAnswer(t *testing.T) {
	t.Parallel()
	_, leader := startClusterAt(t, 1, 1) // the stop waits as long as its leader would take to step down
	until := make(chan struct{})
	defer close(until)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, leader.ChangeWithoutAnswer(ctx, until), cluster.CodeOutcomeUnknown)
	leader.stop()
}

// TestStopAwaitsAnswers: changes that are committed get their answers, also when the leader stops before its state
// machine has taken the entries. The library would lose each with a probability of one half.
func TestStopAwaitsAnswers(t *testing.T) {
	t.Parallel()
	_, leader := startCalmCluster(t, 1)
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	hold := func() { <-free }
	leader.applied.Store(&hold)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const changes = 10
	answers := make(chan error, changes)
	for i := range changes {
		go func() { answers <- leader.AddNonvoter(ctx, fmt.Sprint("m", i), fmt.Sprint("127.0.0.1:", i+1)) }()
		eventually(t, "the change is committed", func() bool {
			return len(leader.Servers()) == i+2 && leader.EntriesCommitted()
		})
	}
	stopping := leader.Stopping()
	stopped := make(chan struct{})
	go func() { defer close(stopped); leader.stop() }()
	<-stopping
	select {
	case <-answers:
		t.Error("a change is answered before it is applied")
	case <-time.After(timeoutMin): // without the wait, the library ends in this time
	}
	release()
	<-stopped
	cancel() // for those whose answers are lost
	for range changes {
		if err := <-answers; err != nil {
			t.Errorf("a change that is committed: %v", err)
		}
	}
}
