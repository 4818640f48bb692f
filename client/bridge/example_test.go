package bridge_test

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"northstar/client"
	"northstar/client/bridge"
	"northstar/client/postgres"
)

// A scheduler moves from an advisory lock to a role, by its flag -election: old, then both, then new.
func Example() {
	var phase bridge.Phase
	flags := flag.NewFlagSet("scheduler", flag.ExitOnError)
	flags.TextVar(&phase, "election", bridge.PhaseOld, "how to elect: old, both or new")
	_ = flags.Parse(os.Args[1:]) // it exits

	lock, err := postgres.NewAdvisoryLock(postgres.AdvisoryLockConfig{
		DSN: os.Getenv("DATABASE_URL"), Key: 0x464F52470001,
	})
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701", "10.0.0.2:7701", "10.0.0.3:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	candidate, err := c.NewCandidate(client.CandidateConfig{
		Role: "scheduler", Session: client.SessionConfig{Name: client.ProcessName()},
	})
	if err != nil {
		log.Fatal(err)
	}
	elector, err := bridge.New(bridge.Config{
		Phase: phase, Role: "scheduler", Elector: candidate, Lock: lock, TakeoverDelay: 10 * time.Second,
		Logger: slog.Default(),
	})
	if err != nil {
		log.Fatal(err)
	}
	err = client.RunAsLeader(context.Background(), elector, 2*time.Second,
		func(ctx context.Context, l *client.Leadership) error {
			fmt.Println("schedule jobs, with token", l.Token) // 0 in phase old
			<-ctx.Done()
			return ctx.Err()
		})
	fmt.Println(err)
}
