package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/cluster"
)

// deadAfter is how long a member must be unreachable to be shown as dead.
const deadAfter = 10 * time.Second

// getCluster serves GET /v1/cluster: the leader's view, or this node's own if the leader does not respond.
func getCluster(c *request) error {
	st := c.s.reads.Status()
	if st.Role != cluster.Leader && st.LeaderID != "" && !c.forwarded {
		body, err := c.leadersView(st.LeaderID)
		if err == nil {
			return c.replyJSON(body)
		}
		c.s.logger.Debug("leader unreachable: serving this node's own cluster view", "leader", st.LeaderID, "error",
			err)
	}
	return c.reply(c.s.clusterView(time.Now()))
}

// leadersView requests the leader's /v1/cluster. Concurrent requests with the same credential share one response.
func (c *request) leadersView(leader cluster.NodeID) ([]byte, error) {
	key := string(leader) + " " + c.leadersCaller().Authorization
	body, err, _ := c.s.views.Do(key, func() (any, error) {
		// The context of the first caller must not end the shared request.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), 2*c.s.deps.TimeoutMax)
		defer cancel()
		return c.fetchView(ctx, leader)
	})
	if err != nil {
		return nil, err
	}
	return body.([]byte), nil
}

// leadersCaller returns the caller for whom this node requests the leader's /v1/cluster. Only a credential that this
// node has accepted is sent on: invented ones would make a request of each call.
func (c *request) leadersCaller() forward.Caller {
	if !c.s.forward.ForwardToken || c.caller == (identity{}) {
		return forward.Caller{}
	}
	return forward.Caller{Authorization: c.r.Header.Get("Authorization")}
}

// fetchView requests the leader's /v1/cluster.
func (c *request) fetchView(ctx context.Context, leader cluster.NodeID) ([]byte, error) {
	addr := c.s.httpAddress(leader)
	if addr == "" || leader == c.s.deps.Node.ID {
		return nil, errors.New("address of the leader is not known")
	}
	answer, err := c.s.forward.Get(ctx, c.leadersCaller(), addr, apiv1.PathCluster, 1<<20)
	if err == nil && answer.Status != http.StatusOK {
		err = fmt.Errorf("leader %s answered %d", leader, answer.Status)
	}
	return answer.Body, err
}

func (s *Server) clusterView(now time.Time) apiv1.Cluster {
	st, view := s.reads.Status(), s.reads.View()
	out := apiv1.Cluster{
		ClusterID:    st.ClusterID,
		ClusterName:  s.deps.Node.ClusterName,
		Generation:   st.Generation.Number,
		Term:         st.Term,
		LeaderID:     string(st.LeaderID),
		Revision:     view.Revision(),
		AutoFailover: view.AutoFailover(now),
		ObservedBy:   string(s.deps.Node.ID),
		Members:      s.members(now, st, view.Members()),
		State: apiv1.StateSize{
			Keys: view.Keys(), Sessions: view.Sessions(), Bytes: view.StateBytes(),
			BytesLimit: view.Limits().StateBytes, SessionsPerIdentity: view.Limits().SessionsPerIdentity,
		},
	}
	for _, m := range out.Members {
		count(&out.Counts, m.Lifecycle)
	}
	out.Quorum = quorumOf(out.Members)
	return out
}

// members joins configuration, member records and the state of the peers: one item for each node, in order of ID.
func (s *Server) members(now time.Time, self cluster.NodeStatus, recorded []cluster.Member) []apiv1.Member {
	records := make(map[cluster.NodeID]cluster.Member)
	servers := make(map[cluster.NodeID]cluster.Server)
	for _, sv := range self.Servers {
		servers[sv.ID] = sv
		records[sv.ID] = cluster.Member{
			Priority: cluster.DefaultPriority, Eligible: true, Lifecycle: cluster.Joining,
		}
	}
	for _, m := range recorded {
		if _, ok := servers[m.ID]; ok || !m.Removed {
			records[m.ID] = m
		}
	}
	peers := s.reads.Peers()
	out := []apiv1.Member{}
	for _, id := range slices.Sorted(maps.Keys(records)) {
		m := s.member(id, servers[id], records[id])
		i := slices.IndexFunc(peers, func(p cluster.PeerStatus) bool { return p.ID == id })
		switch {
		case id == self.NodeID:
			s.fillSelf(&m, self)
		case i < 0:
			m.State, m.Reasons = "unknown", append(m.Reasons, "this node has nothing to do with it yet")
		default:
			fillPeer(&m, peers[i], self.LeaderID, now.Sub(s.deps.Node.StartedAt))
		}
		out = append(out, m)
	}
	return out
}

// member returns what is configured and recorded of a node. sv is zero if it is not configured.
func (s *Server) member(id cluster.NodeID, sv cluster.Server, rec cluster.Member) apiv1.Member {
	m := apiv1.Member{
		ID:          string(id),
		RaftAddress: cmp.Or(sv.Address, rec.RaftAddress),
		HTTPAddress: cmp.Or(rec.HTTPAddress, s.httpAddress(id)),
		Suffrage:    string(cluster.NonVoter),
		Priority:    rec.Priority,
		Eligible:    rec.Eligible,
		Zone:        rec.Zone,
		Lifecycle:   cmp.Or(string(rec.Lifecycle), string(cluster.Active)),
		Reasons:     []string{},
		Version:     rec.Version,
	}
	if sv.Suffrage == cluster.Voter {
		m.Suffrage = string(cluster.Voter)
	}
	return m
}

func (s *Server) fillSelf(m *apiv1.Member, self cluster.NodeStatus) {
	lifecycle := s.lifecycle(self)
	m.State, m.Lifecycle, m.Version = string(self.Role), string(lifecycle), s.deps.Node.Version
	m.LastContactMS = contactMS(self)
	if self.Disk.Stalled {
		m.Reasons = append(m.Reasons, "disk is stalled")
	}
	if self.Disk.ReadOnly {
		m.Reasons = append(m.Reasons, "disk is full: read-only")
	}
	if s.deps.SplitBrain.Refusing() != "" {
		m.Reasons = append(m.Reasons, "is part of a split brain and refuses service") // as its peers say
	}
	if lifecycle == cluster.Dead {
		m.Reasons = append(m.Reasons, cmp.Or(self.DeadReason, "refused by the cluster"))
	}
	m.Healthy = len(m.Reasons) == 0
}

// fillPeer adds what this node knows of another. silent is how long it has been silent if it was never in contact.
func fillPeer(m *apiv1.Member, p cluster.PeerStatus, leader cluster.NodeID, silent time.Duration) {
	m.Healthy, m.LagEntries = p.Healthy, p.LagEntries
	m.Reasons = append(m.Reasons, p.Reasons...)
	if p.Contacted {
		silent, m.LastContactMS = p.LastContact, new(p.LastContact.Milliseconds())
	}
	switch {
	case p.ID == leader:
		m.State = string(cluster.Leader)
	case p.Healthy:
		m.State = string(cluster.Follower)
	default:
		m.State = "unknown"
	}
	if p.Dead || !p.Healthy && silent > deadAfter {
		m.Lifecycle = string(cluster.Dead)
	}
}

func quorumOf(members []apiv1.Member) apiv1.Quorum {
	var q apiv1.Quorum
	for _, m := range members {
		if m.Suffrage == string(cluster.Voter) {
			q.Voters++
			if m.Healthy {
				q.Healthy++
			}
		}
	}
	q.Needed = cluster.Quorum(q.Voters)
	q.Tolerates = max(0, q.Healthy-q.Needed)
	return q
}

// count adds a member, or an application node, to n.
func count(n *apiv1.Counts, lifecycle string) {
	n.Total++
	switch cluster.Lifecycle(lifecycle) {
	case cluster.Joining:
		n.Joining++
	case cluster.Active:
		n.Active++
	case cluster.Draining:
		n.Draining++
	case cluster.Dead:
		n.Dead++
	}
}
