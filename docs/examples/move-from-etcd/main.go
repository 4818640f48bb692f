// Command move-from-etcd copies the keys of a live etcd to a NorthStar cluster, keeps the copy in step, and ends when
// the last write has arrived and both are equal.
//
//	go run . -from etcd-1:2379,etcd-2:2379 -to northstar-1:2379,northstar-2:2379
//
// Keys with a lease are left out: they belong to programs that make them again. Revisions are those of the new
// cluster.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func main() {
	from := flag.String("from", "", "addresses of etcd, with commas between them")
	to := flag.String("to", "", "addresses of the etcd API of NorthStar")
	prefix := flag.String("prefix", "", "copy only the keys with this prefix")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *from, *to, *prefix); err != nil {
		fmt.Fprintln(os.Stderr, "move-from-etcd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, from, to, prefix string) error {
	source, err := connect(from)
	if err != nil {
		return fmt.Errorf("-from: %w", err)
	}
	defer source.Close()
	destination, err := connect(to)
	if err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	defer destination.Close()
	m := &mover{from: source, to: destination, prefix: prefix}
	if err := m.requireEmpty(ctx); err != nil {
		return err
	}
	copied, err := m.copy(ctx)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	fmt.Printf("copied %d keys at revision %d\n", copied, m.revision)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	following := make(chan error, 1)
	seen := make(chan int64, 1)
	go func() { following <- m.follow(ctx, seen) }()
	if err := m.cutOver(ctx, following, seen); err != nil {
		return err
	}
	cancel()
	<-following
	keys, err := m.compare(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	fmt.Printf("equal: %d keys. Start the programs with the new addresses.\n", keys)
	return nil
}

func connect(endpoints string) (*clientv3.Client, error) {
	if endpoints == "" {
		return nil, errors.New("no addresses")
	}
	return clientv3.New(clientv3.Config{
		Endpoints: strings.Split(endpoints, ","), DialTimeout: 10 * time.Second,
		DialKeepAliveTime: 10 * time.Second, Logger: zap.NewNop(),
	})
}

// cutOver waits for the operator, and then for the last write.
func (m *mover) cutOver(ctx context.Context, following <-chan error, seen <-chan int64) error {
	if err := m.inStep(ctx, following, seen); err != nil {
		return err
	}
	fmt.Println("in step. Stop all programs that write to etcd, then press Enter.")
	enter := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		enter <- err
	}()
	for waiting := true; waiting; {
		select {
		case <-seen:
		case err := <-enter:
			if err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			waiting = false
		case err := <-following:
			return fmt.Errorf("follow: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return m.inStep(ctx, following, seen)
}

// inStep waits until everything is copied that etcd has now.
func (m *mover) inStep(ctx context.Context, following <-chan error, seen <-chan int64) error {
	now, err := m.from.Get(ctx, "a", clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	ask := time.NewTicker(100 * time.Millisecond)
	defer ask.Stop()
	for {
		select {
		case revision := <-seen:
			if revision >= now.Header.Revision {
				return nil
			}
		case <-ask.C: // the last revisions may be of other keys: then the answer has no events
			if err := m.from.RequestProgress(clientv3.WithRequireLeader(ctx)); err != nil {
				return err
			}
		case err := <-following:
			return fmt.Errorf("follow: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
