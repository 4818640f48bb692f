package client_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"northstar/client"
)

// A job that must run on one process at a time.
func ExampleClient_RunAsLeader() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701", "10.0.0.2:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.RunAsLeader(context.Background(), "cron.nightly", func(ctx context.Context, l *client.Leadership) error {
		tick := time.NewTicker(24 * time.Hour)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done(): // the role is lost
				return ctx.Err()
			case <-tick.C:
				fmt.Println("the nightly report, with token", l.Token)
			}
		}
	})
	fmt.Println(err)
}

// A coordinator hands over its work: nothing is in flight when the next one starts.
func ExampleLeave() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	candidate, err := c.NewCandidate(client.CandidateConfig{
		Role: "coordinator", TakeoverDelay: time.Second, Session: client.SessionConfig{Name: client.ProcessName()},
	})
	if err != nil {
		log.Fatal(err)
	}
	var gate client.Gate
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_ = client.RunAsLeader(ctx, candidate, 2*time.Second, func(ctx context.Context, l *client.Leadership) error {
			gate.Bind(l)
			<-ctx.Done()
			return gate.Drain(context.WithoutCancel(ctx)) // work in flight has ended before the next campaign
		})
	}()

	// For each piece of work.
	err = gate.Do(ctx, func(ctx context.Context, token uint64) error {
		fmt.Println("assign a job, with token", token)
		return nil
	})
	if err != nil {
		fmt.Println("somebody else's to do:", err)
	}

	// At the end of the process.
	shutdown, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := client.Leave(shutdown, &gate, candidate); err != nil {
		fmt.Println("the role ends with its lease:", err)
	}
	stop()
}

// An object store with conditional writes fences old holders by a pointer. Here the pointer is a key of the
// cluster, which checks the token itself.
func ExampleWriteOptions_fence() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.RunAsLeader(context.Background(), "publisher", func(ctx context.Context, l *client.Leadership) error {
		object := fmt.Sprintf("data/%d/index", l.Token) // no other tenure writes here
		// ... write the object to the store ...
		_, err := c.Put(ctx, "current", []byte(object), client.FencedBy(l))
		return err
	})
	fmt.Println(err)
}

// Work that must not run twice at the same time. The write is refused if the lock has ended before it.
func ExampleClient_Lock() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	lock, err := c.Lock(ctx, client.CandidateConfig{Role: "invoices"})
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)
	work, cancel := lock.Context(ctx, 2*time.Second) // ends with the lock
	defer cancel()
	_, err = c.Put(work, "invoices/last", []byte("4711"), client.FencedBy(lock.Leadership))
	fmt.Println(err)
}

// At most three processes do this at the same time.
func ExampleClient_Acquire() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	permit, err := c.Acquire(context.Background(), client.CandidateConfig{Role: "import"}, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer permit.Unlock(context.Background())
	fmt.Println("permit", permit.Role)
}

// A worker that others find in the registry, and that leaves without losing work.
func ExampleClient_Register() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	var work sync.WaitGroup // the jobs in progress
	reg, err := c.Register(ctx, client.RegistrationConfig{
		ID:   "worker-1",
		Node: client.NodePut{Address: "10.0.1.7", HTTPPort: 8080, Capabilities: []string{"pdf"}},
		Load: func() client.Load { return client.Load{CPU: 0.4, Memory: 0.2} },
	})
	if err != nil {
		log.Fatal(err)
	}

	// At the end of the process: no new work, then what is in progress, then the registry.
	if err := reg.Drain(ctx); err != nil {
		log.Print(err)
	}
	work.Wait()
	if err := reg.Close(ctx); err != nil {
		log.Print(err)
	}
}
