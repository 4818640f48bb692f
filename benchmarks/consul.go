package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"northstar/chaos/proc"
)

// consulPackage is Consul's program, which the module benchmarks/consul requires as a tool.
const consulPackage = "github.com/hashicorp/consul"

// consulMultipliers are those of Consul's Raft timeouts of 1 s: the default, for small servers, and what its
// documentation recommends for production.
var consulMultipliers = []int{5, 1}

// consulSubjects prepares the clusters of Consul that NorthStar is measured beside.
func (b *bench) consulSubjects(kind fault, size int) (groups [][]*subject, err error) {
	for _, m := range consulMultipliers {
		s := &subject{
			name: fmt.Sprintf("Consul, raft_multiplier %d, HTTP at a survivor", m),
			open: openSurvivor, findLeader: consulLeader, timeout: time.Duration(m) * time.Second,
		}
		err := b.prepare(s, kind, func() (*proc.Cluster, error) { return proc.Consul(b.consulBin, size, m) })
		if err != nil {
			return nil, err
		}
		groups = append(groups, []*subject{s})
	}
	return groups, nil
}

// consulWait is how long Consul may take to make a server that was removed a voter again, and to start.
const consulWait = 2 * time.Minute

// consulLeader waits until all servers are voters and name the same leader, and returns it. All servers must run.
func consulLeader(ctx context.Context, c *proc.Cluster) (*proc.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, consulWait)
	defer cancel()
	for {
		if n := agreedServer(ctx, c); n != nil {
			return n, nil
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return nil, fmt.Errorf("consul: no leader of %d voters: %w\n%s", len(c.Nodes), err, c.Logs())
		}
	}
}

// agreedServer returns the leader that every server names, or nil. While a server is dead, autopilot may remove it; it
// is no voter then until 10 s after its return.
func agreedServer(ctx context.Context, c *proc.Cluster) (leader *proc.Node) {
	var peers struct {
		Servers []struct {
			Address string
			Voter   bool
		}
	}
	body, err := proc.Get(ctx, "http://"+c.Nodes[0].HTTP+"/v1/operator/raft/configuration")
	if err != nil || json.Unmarshal(body, &peers) != nil {
		return nil
	}
	voters := map[string]bool{}
	for _, s := range peers.Servers {
		voters[s.Address] = s.Voter
	}
	named := map[string]bool{}
	for _, n := range c.Nodes {
		var address string
		body, err := proc.Get(ctx, "http://"+n.HTTP+"/v1/status/leader")
		if err != nil || json.Unmarshal(body, &address) != nil || !voters[n.Raft] {
			return nil
		}
		named[address] = true
	}
	for _, n := range c.Nodes {
		if named[n.Raft] && len(named) == 1 {
			leader = n
		}
	}
	return leader
}
