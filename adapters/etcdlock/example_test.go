package etcdlock_test

import (
	"fmt"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"northstar/adapters/etcdlock"
	"northstar/client"
	"northstar/client/bridge"
)

// A process that acts while it holds the election /app/leader and the role.
func Example() {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"10.0.1.1:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer etcd.Close()
	lock, err := etcdlock.New(etcdlock.Config{Client: etcd, Prefix: "/app/leader"})
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(client.Config{Endpoints: []string{"10.0.0.1:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	candidate, err := c.NewCandidate(client.CandidateConfig{Role: "app"})
	if err != nil {
		log.Fatal(err)
	}
	elector, err := bridge.New(bridge.Config{Phase: bridge.PhaseBoth, Role: "app", Elector: candidate, Lock: lock})
	fmt.Println(elector, err)
}
