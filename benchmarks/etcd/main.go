// Command etcd is what NorthStar is measured beside, in a module of its own so that nothing else depends on it: an
// etcd server, and a client that does to etcd what the benchmark does to NorthStar.
//
//	etcd serve --id n1 --data-dir DIR --peer-addr H:P --client-addr H:P --initial-cluster n1=H:P,…
//	etcd drive --endpoints H:P,…    # one command a line on stdin, one answer a line on stdout
//	etcd hold --endpoints H:P,… --role R
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	const usage = "must be serve, drive or hold"
	if len(args) == 0 {
		return fmt.Errorf("no command: %s", usage)
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	endpoints := fs.String("endpoints", "", "etcd's client addresses, host:port, comma-separated")
	attach := fs.Bool("attach", false, "leases of holders end with their connections: only NorthStar knows that")
	switch args[0] {
	case "serve":
		var s server
		fs.StringVar(&s.id, "id", "", "name of this member")
		fs.StringVar(&s.dir, "data-dir", "", "an empty or an own directory")
		fs.StringVar(&s.peer, "peer-addr", "", "host:port for the other members")
		fs.StringVar(&s.client, "client-addr", "", "host:port for clients")
		fs.UintVar(&s.heartbeat, "heartbeat", heartbeat, "interval of heartbeats, in ms")
		fs.UintVar(&s.election, "election", election, "least time without one before an election, in ms")
		fs.StringVar(&s.initial, "initial-cluster", "", "id=host:port of every member's peer address, comma-separated")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return s.run(ctx)
	case "drive":
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return drive(ctx, strings.Split(*endpoints, ","), *attach, os.Stdin, os.Stdout)
	case "hold":
		role := fs.String("role", "", "to campaign for")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return hold(ctx, config(strings.Split(*endpoints, ","), *attach), *role, os.Stdin, os.Stdout)
	}
	return fmt.Errorf("unknown command %q: %s", args[0], usage)
}

// server is one etcd member.
type server struct {
	id, dir, peer, client, initial string
	heartbeat, election            uint
}

// The timeouts of NorthStar's defaults, in ms.
const heartbeat, election = 15, 150

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
	cfg.TickMs, cfg.ElectionMs = s.heartbeat, s.election
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
