package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"northstar/client"
)

func Example() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701", "10.0.0.2:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	res, err := c.Put(ctx, "app/config", []byte("v1"), client.WriteOptions{IfAbsent: true})
	switch {
	case errors.Is(err, client.ErrConditionFailed):
		fmt.Println("somebody was first")
	case errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Println("written or not: read it to find out")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println("written at revision", res.Revision)
	}
}

// A program that caches some keys: it lists them and watches the changes from there. After too long a gap it lists
// them again.
func ExampleClient_Watch() {
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	follow := func(ctx context.Context) error {
		page, err := c.ListPage(ctx, "app/", client.ListOptions{})
		if err != nil {
			return err
		}
		for change, err := range c.Watch(ctx, "app/", client.WatchOptions{Since: page.Revision}) {
			if err != nil {
				return err
			}
			fmt.Println(change.Key, change.Revision, change.Deleted)
		}
		return nil
	}
	for err := error(client.ErrCompacted); errors.Is(err, client.ErrCompacted); {
		err = follow(context.Background())
	}
}

// A cluster with TLS and tokens, as docs/install.md makes one.
func ExampleLoadTLS() {
	tls, err := client.LoadTLS("/etc/northstar/ca.crt", "", "") // or with the client's certificate and key
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(client.Config{
		Endpoints: []string{"10.0.0.11:7701", "10.0.0.12:7701", "10.0.0.13:7701"},
		TLS:       tls,
		Token:     os.Getenv("NORTHSTAR_TOKEN"),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	leader, err := c.Leader(context.Background())
	fmt.Println(leader.LeaderID, err)
}
