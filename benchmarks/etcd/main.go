// Command etcd is what NorthStar is measured beside, in a module of its own so
// that nothing else depends on it: an etcd server, and a client that does to etcd
// what the benchmark does to NorthStar.
//
//	etcd serve --id n1 --data-dir DIR --peer-addr H:P --client-addr H:P --initial-cluster n1=H:P,…
//	etcd drive --endpoints H:P,…    # one command a line on stdin, one answer a line on stdout
//	etcd hold --endpoints H:P,… --role R --ttl 1s
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
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
	const usage = "want serve, drive or hold"
	if len(args) == 0 {
		return fmt.Errorf("no command: %s", usage)
	}
	fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
	endpoints := fs.String("endpoints", "", "etcd's client addresses, host:port, comma-separated")
	switch args[0] {
	case "serve":
		var s server
		fs.StringVar(&s.id, "id", "", "name of this member")
		fs.StringVar(&s.dir, "data-dir", "", "an empty or an own directory")
		fs.StringVar(&s.peer, "peer-addr", "", "host:port for the other members")
		fs.StringVar(&s.client, "client-addr", "", "host:port for clients")
		fs.StringVar(&s.initial, "initial-cluster", "", "id=host:port of every member's peer address, comma-separated")
		fs.DurationVar(&s.heartbeat, "heartbeat", 15*time.Millisecond, "between two heartbeats")
		fs.DurationVar(&s.election, "election", 150*time.Millisecond, "election timeout")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return s.run(ctx)
	case "drive":
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return drive(ctx, strings.Split(*endpoints, ","), os.Stdin, os.Stdout)
	case "hold":
		role := fs.String("role", "", "to campaign for")
		ttl := fs.Duration("ttl", time.Second, "of the session; etcd takes whole seconds")
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		return hold(ctx, strings.Split(*endpoints, ","), *role, *ttl, os.Stdin, os.Stdout)
	}
	return fmt.Errorf("unknown command %q: %s", args[0], usage)
}
