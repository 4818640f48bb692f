package clientgo_test

import (
	"fmt"
	"log"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	clientgo "northstar/adapters/client-go"
	"northstar/client"
	"northstar/client/bridge"
)

// A controller that acts while it holds its Lease and the role.
func ExampleLease() {
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	lock, err := clientgo.NewLease(clientgo.LeaseConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "controller"}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: client.ProcessName()},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(client.Config{Endpoints: []string{"northstar-client:7701"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	candidate, err := c.NewCandidate(client.CandidateConfig{Role: "controller"})
	if err != nil {
		log.Fatal(err)
	}
	elector, err := bridge.New(bridge.Config{
		Phase: bridge.PhaseBoth, Role: "controller", Elector: candidate, Lock: lock,
	})
	fmt.Println(elector, err)
}
