package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

func TestLeader_HighestTermWins(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		fc.elect("n2")
		fc.nodes["n1"].stale = &apiv1.Leader{LeaderID: "n1", LeaderAddress: "n1:1", Term: 1, ObservedBy: "n1"}
		got, err := c.Leader(t.Context())
		if err != nil || got.LeaderID != "n2" {
			t.Fatalf("Leader = %+v, %v, want n2", got, err)
		}
	}, "n1", "n2", "n3")
}

func TestLeader_HungNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		fc.elect("n2")
		fc.hang("n1")
		start := time.Now()
		got, err := c.Leader(t.Context())
		if err != nil || got.LeaderID != "n2" || got.Term != 2 {
			t.Fatalf("Leader = %+v, %v, want n2", got, err)
		}
		within(t, start, 0, 50*time.Millisecond)
	}, "n1", "n2", "n3")
}

// The known leader responds late: it is still the leader, and its report is newer than the call.
func TestLeader_SlowResponse(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{60 * time.Millisecond, 600 * time.Millisecond} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			c := fc.client("n1", "n2", "n3")
			defer c.Close()
			fc.elect("n2")
			if _, err := c.Leader(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			fc.hang("n2")
			time.AfterFunc(late, func() { fc.resume("n2") })
			start := time.Now()
			got, err := c.Leader(t.Context())
			if err != nil || got.LeaderID != "n2" {
				t.Fatalf("Leader = %+v, %v, want n2", got, err)
			}
			within(t, start, 0, 320*time.Millisecond) // by then the reports of the others count
		}, "n1", "n2", "n3")
	}
}

func TestLeader_WaitsForElection(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		fc.depose()
		time.AfterFunc(time.Second, func() { fc.elect("n3") })
		start := time.Now()
		got, err := c.Leader(t.Context())
		if err != nil || got.LeaderID != "n3" {
			t.Fatalf("Leader = %+v, %v, want n3", got, err)
		}
		within(t, start, time.Second, 1150*time.Millisecond)
		time.Sleep(time.Millisecond) // earlier reports do not count
		fc.depose()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Leader(ctx); !errors.Is(err, ErrNoLeader) {
			t.Errorf("error %v, want %v", err, ErrNoLeader)
		}
	}, "n1", "n2", "n3")
}

// An unreachable cluster, for example with a wrong address or CA, is not a cluster without a leader.
func TestLeader_ErrorNamesUnreachableReason(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		for endpoint, want := range map[string]string{"down": "connection refused", "n1": "no node reports a leader"} {
			c := fc.client(endpoint)
			fc.depose()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := c.Leader(ctx); !errors.Is(err, ErrNoLeader) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", endpoint, err, want)
			}
			cancel()
			c.Close()
		}
	}, "n1")
}

// Results of removed endpoints do not count: a new cluster starts with low terms. A node that its cluster rejects
// knows no leader and no members; the client then asks other nodes.
func TestCluster_SkipsNodeWithoutLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		fc.elect("n2")
		for _, id := range []string{"n1", "n3"} {
			fc.setCutOff(id, true)
		}
		for range 6 { // for each first node
			if view, err := c.Cluster(t.Context()); err != nil || view.LeaderID != "n2" {
				t.Fatalf("leader %q, %v, want n2", view.LeaderID, err)
			}
		}
	}, "n1", "n2", "n3")
}

func TestLeaderFinder_DropsRemovedNodes(t *testing.T) {
	t.Parallel()
	c, err := New(Config{Endpoints: []string{"n1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := func(name string, term uint64) leaderReport {
		return leaderReport{
			endpoint: "http://" + name + ":1", info: apiv1.Leader{LeaderID: name, ObservedBy: name, Term: term},
		}
	}
	c.finder.record("old", at("old", 50))
	c.finder.record("n1", at("n1", 3))
	if leader, _ := c.finder.leader(); leader != "http://old:1" {
		t.Fatalf("leader %q", leader)
	}
	c.finder.forget(c.nodes.urls())
	c.finder.record("n1", at("n1", 3))
	if leader, _ := c.finder.leader(); leader != "http://n1:1" {
		t.Errorf("leader %q, want n1: the other one is no endpoint any more", leader)
	}
}

// The error of a client that uses plain HTTP with a TLS cluster, or contacts another service, says so.
func TestLeaderFinder_EndpointsNotNorthStar(t *testing.T) {
	t.Parallel()
	for want, answer := range map[string]http.HandlerFunc{
		"this is an HTTPS port": func(w http.ResponseWriter, _ *http.Request) {
			problem(w, cluster.Errorf(cluster.CodeBadRequest, "request: this is an HTTPS port"))
		},
		"404": http.NotFound,
	} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			srv := &http.Server{Handler: answer}
			go func() { _ = srv.Serve(fc.net.listen("odd:1")) }()
			defer srv.Close()
			c := fc.client("odd")
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := c.Leader(ctx); !errors.Is(err, ErrNoLeader) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not contain %q", err, want)
			}
		}, "n1")
	}
}

// A node that is cut off has the members of before. The client learns their addresses, and keeps those of the others.
func TestCluster_CutOffNodeReplacesNoAddress(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == apiv1.PathCluster {
				reply(w, apiv1.Cluster{Members: []apiv1.Member{
					{ID: "n1", HTTPAddress: "n1:1"}, {ID: "n2", HTTPAddress: "n2:1"}, {ID: "n3", HTTPAddress: "n3:1"},
				}})
				return
			}
			problem(w, cluster.Errorf(cluster.CodeNoLeader, "cut off"))
		})}
		go func() { _ = srv.Serve(fc.net.listen("n1:1")) }()
		defer srv.Close()
		c := fc.client("n1")
		defer c.Close()
		c.nodes.refresh([]string{"n1:1", "n4:1", "n5:1"}) // learned before n1 was cut off
		for range 10 {
			c.refreshNodes()
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Errorf("%v; nodes %v", err, c.Endpoints())
			}
		}
		alone := fc.client("n1")
		defer alone.Close()
		alone.refreshNodes()
		if got := alone.Endpoints(); len(got) != 3 {
			t.Errorf("%v, want the members of before", got)
		}
	}, "n4", "n5")
}
