package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// server is one etcd member.
type server struct {
	id, dir, peer, client, initial string
	heartbeat, election            time.Duration
}

// run serves until ctx ends.
func (s server) run(ctx context.Context) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = s.id, s.dir
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls(s.peer), urls(s.peer)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls(s.client), urls(s.client)
	var members []string
	for _, m := range strings.Split(s.initial, ",") {
		id, addr, ok := strings.Cut(m, "=")
		if !ok {
			return fmt.Errorf("initial-cluster: %q is not id=host:port", m)
		}
		addr, _, _ = strings.Cut(addr, "@") // the client address is of no use to etcd
		members = append(members, id+"=http://"+addr)
	}
	cfg.InitialCluster = strings.Join(members, ",")
	cfg.TickMs, cfg.ElectionMs = uint(s.heartbeat.Milliseconds()), uint(s.election.Milliseconds())
	cfg.LogLevel = "warn"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.Err():
		return err
	case <-e.Server.StopNotify():
		return errors.New("etcd has stopped")
	}
}

func urls(addr string) []url.URL { return []url.URL{{Scheme: "http", Host: addr}} }
