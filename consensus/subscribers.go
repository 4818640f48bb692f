package consensus

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// raft.Raft tells followers the commit index with the next entries, or after commitTimeout: an idle leader's last write
// reaches the followers' states that late. A follower where a client waits for changes subscribes to the commit index.

const (
	// subscriptionTime is how long a subscription to the commit index lasts.
	subscriptionTime = 3 * time.Second
	// subscriberPause is the least time between two messages with a commit index to one follower. Under load the next
	// entries carry it before.
	subscriberPause = 2 * time.Millisecond
)

// subscribers are the followers that want each commit index immediately. Methods may be called by any goroutine.
type subscribers struct {
	wake chan struct{} // capacity 1: there may be something to send

	mu      sync.Mutex
	nodes   map[cluster.NodeID]*subscriber
	carried uint64 // the entries proposed last tell the followers this commit index
}

type subscriber struct {
	until   time.Time
	sent    uint64    // commit index of the last message
	at      time.Time // of the last message
	sending bool
}

func newSubscribers() *subscribers {
	return &subscribers{wake: make(chan struct{}, 1), nodes: map[cluster.NodeID]*subscriber{}}
}

// add adds a follower, or prolongs its subscription.
func (s *subscribers) add(id cluster.NodeID, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.nodes[id]
	if f == nil {
		f = &subscriber{}
		s.nodes[id] = f
	}
	f.until = until
	raftnode.Notify(s.wake)
}

// committed tells that no proposal waits to carry the newest commit index.
func (s *subscribers) committed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) > 0 {
		raftnode.Notify(s.wake)
	}
}

// carry tells that entries are proposed, which carry a commit index.
func (s *subscribers) carry(commit uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.carried = commit
}

// due returns the followers to which the commit index is to be sent now; sent must be called for each. wait is the time
// until the others are due, 0 if none is. It removes those whose subscription has ended.
func (s *subscribers) due(now time.Time, commit uint64) (to []cluster.NodeID, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, f := range s.nodes {
		switch pause := f.at.Add(subscriberPause).Sub(now); {
		case f.sending:
		case !now.Before(f.until):
			delete(s.nodes, id)
		case commit <= max(f.sent, s.carried):
		case pause > 0:
			wait = max(wait, pause)
		default:
			f.sending, f.sent, f.at = true, commit, now
			to = append(to, id)
		}
	}
	return to, wait
}

// sent notes the end of a message. A follower that was not reached subscribes again.
func (s *subscribers) sent(id cluster.NodeID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[id].sending = false
	if err != nil {
		delete(s.nodes, id)
	}
	raftnode.Notify(s.wake) // the commit index may have grown meanwhile
}

// Subscribe has this node send another one each commit index immediately, for subscriptionTime. CodeNoLeader: this node
// does not lead.
func (n *Node) Subscribe(id cluster.NodeID) error {
	inst := n.inst.Load()
	if inst == nil || !n.leads() {
		return n.notLeading()
	}
	if _, ok := cluster.FindServer(inst.Servers(), id); !ok || id == n.cfg.Self.NodeID {
		return cluster.Errorf(cluster.CodeBadRequest, "node %s is no follower", id)
	}
	n.subscribers.add(id, time.Now().Add(subscriptionTime))
	return nil
}

// informLoop sends the commit index to the subscribers, until ctx ends.
func (n *Node) informLoop(ctx context.Context, inst *raftnode.Instance) {
	var sending sync.WaitGroup
	defer sending.Wait()
	var later <-chan time.Time
	for {
		select {
		case <-n.subscribers.wake:
		case <-later:
		case <-ctx.Done():
			return
		}
		later = nil
		term := n.readyTerm.Load()
		if term == 0 || !inst.Leads(term) {
			continue
		}
		to, wait := n.subscribers.due(time.Now(), inst.CommitIndex())
		for _, id := range to {
			sending.Go(func() { n.subscribers.sent(id, inst.SendCommitIndex(id, term)) })
		}
		if wait > 0 {
			later = time.After(wait)
		}
	}
}
