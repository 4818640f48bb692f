package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
		body, err := c.s.leadersView(c.r.Context(), st.LeaderID)
		if err == nil {
			return c.replyJSON(body)
		}
		c.s.logger.Debug("leader unreachable: serving this node's own cluster view", "leader", st.LeaderID, "error",
			err)
	}
	return c.reply(c.s.clusterView(time.Now()))
}

// leadersView requests the leader's /v1/cluster. Concurrent requests share one response.
func (s *Server) leadersView(ctx context.Context, leader cluster.NodeID) ([]byte, error) {
	addr := s.httpAddress(leader)
	if addr == "" || leader == s.deps.Node.ID {
		return nil, errors.New("address of the leader is not known")
	}
	body, err, _ := s.views.Do(addr, func() (any, error) {
		// The context of the first caller must not end the shared request.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*s.deps.TimeoutMax)
		defer cancel()
		answer, err := s.forward.Get(ctx, forward.Caller{}, addr, apiv1.PathCluster, 1<<20)
		if err == nil && answer.Status != http.StatusOK {
			err = fmt.Errorf("leader %s answered %d", leader, answer.Status)
		}
		return answer.Body, err
	})
	if err != nil {
		return nil, err
	}
	return body.([]byte), nil
}

// clusterView returns the cluster as this node sees it.
func (s *Server) clusterView(now time.Time) apiv1.Cluster {
	st, view := s.reads.Status(), s.reads.View()
	in := viewInput{
		self:      st,
		lifecycle: s.lifecycle(st),
		version:   s.deps.Node.Version,
		peers:     s.reads.Peers(),
		records:   view.Members(),
		addressOf: s.httpAddress,
		uptime:    now.Sub(s.deps.Node.StartedAt),
	}
	members := in.members()
	return apiv1.Cluster{
		ClusterID:    st.ClusterID,
		ClusterName:  s.deps.Node.ClusterName,
		Generation:   st.Generation.Number,
		Term:         st.Term,
		LeaderID:     string(st.LeaderID),
		Revision:     view.Revision(),
		AutoFailover: view.AutoFailover(now),
		ObservedBy:   string(s.deps.Node.ID),
		Quorum:       quorumOf(members),
		Counts:       countsOf(members),
		Members:      members,
	}
}

// viewInput is the input of members.
type viewInput struct {
	self      cluster.NodeStatus
	lifecycle cluster.Lifecycle // of self
	version   string            // of self
	peers     []cluster.PeerStatus
	records   []cluster.Member
	addressOf func(cluster.NodeID) string
	uptime    time.Duration
}

// members joins Raft's configuration, the member records and the state of the peers. It returns one item for each
// recorded or configured node, in order of ID.
func (in viewInput) members() []apiv1.Member {
	records := make(map[cluster.NodeID]cluster.Member)
	servers := make(map[cluster.NodeID]cluster.Server)
	var ids []cluster.NodeID
	for _, sv := range in.self.Servers {
		servers[sv.ID] = sv
		ids = append(ids, sv.ID)
	}
	for _, m := range in.records {
		if _, ok := servers[m.ID]; !ok && m.Removed {
			continue
		}
		records[m.ID] = m
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	out := []apiv1.Member{}
	for _, id := range slices.Compact(ids) {
		out = append(out, in.member(id, servers[id], records[id]))
	}
	return out
}

// member returns one item. sv and rec are zero if the node has none.
func (in viewInput) member(id cluster.NodeID, sv cluster.Server, rec cluster.Member) apiv1.Member {
	if rec.ID == "" {
		rec = cluster.Member{Priority: cluster.DefaultPriority, Eligible: true, Lifecycle: cluster.Joining}
	}
	m := apiv1.Member{
		ID:          string(id),
		RaftAddress: firstNonEmpty(sv.Address, rec.RaftAddress),
		HTTPAddress: firstNonEmpty(rec.HTTPAddress, in.addressOf(id)),
		Suffrage:    string(cluster.NonVoter),
		Priority:    rec.Priority,
		Eligible:    rec.Eligible,
		Zone:        rec.Zone,
		Lifecycle:   string(rec.Lifecycle),
		Reasons:     []string{},
		Version:     rec.Version,
	}
	if sv.Suffrage == cluster.Voter {
		m.Suffrage = string(cluster.Voter)
	}
	if m.Lifecycle == "" {
		m.Lifecycle = string(cluster.Active)
	}
	if id == in.self.NodeID {
		in.fillSelf(&m)
		return m
	}
	i := slices.IndexFunc(in.peers, func(p cluster.PeerStatus) bool { return p.ID == id })
	if i < 0 {
		m.State, m.Reasons = "unknown", append(m.Reasons, "this node has nothing to do with it yet")
		return m
	}
	in.fillPeer(&m, in.peers[i])
	return m
}

func (in viewInput) fillSelf(m *apiv1.Member) {
	m.State, m.Lifecycle, m.Version = string(in.self.Role), string(in.lifecycle), in.version
	m.LastContactMS = contactMS(in.self)
	if in.self.Disk.Stalled {
		m.Reasons = append(m.Reasons, "disk is stalled")
	}
	if in.self.Disk.ReadOnly {
		m.Reasons = append(m.Reasons, "disk is full: read-only")
	}
	if in.lifecycle == cluster.Dead {
		m.Reasons = append(m.Reasons, firstNonEmpty(in.self.DeadReason, "refused by the cluster"))
	}
	m.Healthy = len(m.Reasons) == 0
}

func (in viewInput) fillPeer(m *apiv1.Member, p cluster.PeerStatus) {
	m.Healthy, m.LagEntries = p.Healthy, p.LagEntries
	m.Reasons = append(m.Reasons, p.Reasons...)
	silent := in.uptime
	if p.Contacted {
		silent = p.LastContact
		n := p.LastContact.Milliseconds()
		m.LastContactMS = &n
	}
	switch {
	case p.ID == in.self.LeaderID:
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

func countsOf(members []apiv1.Member) apiv1.Counts {
	n := apiv1.Counts{Total: len(members)}
	for _, m := range members {
		switch cluster.Lifecycle(m.Lifecycle) {
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
	return n
}

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if strings.TrimSpace(v) != "" {
			return v
		}
	}
	return ""
}
