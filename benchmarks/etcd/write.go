package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A write is tried again after each retryAfter without an answer; attempts before that go on, and end with writeLimit.
const (
	writeLimit = 5 * time.Second
	retryAfter = 25 * time.Millisecond
)

// writer writes one key after the other with a client of its own, whose options are the defaults.
type writer struct {
	endpoints string
	client    *clientv3.Client
	written   int
}

// write writes once at endpoints, which are separated by commas. It answers 1 when an attempt was acknowledged, 0 when
// none was in time, and how many attempts failed before. etcd may lose what it has forwarded to a leader that fails, and
// its client then waits until its deadline: the attempts show when the cluster takes writes again.
func (w *writer) write(ctx context.Context, endpoints string) (string, error) {
	if endpoints != w.endpoints {
		w.close()
		c, err := clientv3.New(config(strings.Split(endpoints, ","), false))
		if err != nil {
			return "", err
		}
		w.endpoints, w.client = endpoints, c
	}
	w.written++
	key := "/gap/" + string('a'+rune(w.written%26))
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	answers := make(chan error)
	waiting := 0 // attempts without an answer
	attempt := func() {
		c := w.client
		waiting++
		go func() { // ends with ctx
			_, err := c.Put(ctx, key, "0123456789abcdef")
			select {
			case answers <- err:
			case <-ctx.Done():
			}
		}()
	}
	again := time.NewTicker(retryAfter)
	defer again.Stop()
	attempt()
	for failed := 0; ; {
		select {
		case err := <-answers:
			if err == nil {
				return fmt.Sprint(1, failed), nil
			}
			failed++
			if waiting--; waiting == 0 {
				_ = wait(ctx, time.Millisecond)
				attempt()
			}
		case <-again.C:
			attempt()
		case <-ctx.Done():
			return fmt.Sprint(0, failed), nil
		}
	}
}

func (w *writer) close() {
	if w.client != nil {
		_ = w.client.Close()
	}
	w.endpoints, w.client = "", nil
}
