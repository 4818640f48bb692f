package splitbrain

import (
	"encoding/json"
	"fmt"
	"net/http"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// ReadAnswer reads what a server at the HTTP address of node id answers to GET /leader. It may be any server.
func ReadAnswer(id cluster.NodeID, status int, header http.Header, body []byte) (Answer, error) {
	var p apiv1.Problem
	var l apiv1.Leader
	if status == http.StatusServiceUnavailable && json.Unmarshal(body, &p) == nil &&
		p.Code == int(cluster.CodeNoLeader) {
		return Answer{By: id}, nil
	}
	if status != http.StatusOK {
		return Answer{}, fmt.Errorf("it answered %d", status)
	}
	if err := json.Unmarshal(body, &l); err != nil {
		return Answer{}, fmt.Errorf("its answer cannot be read: %w", err)
	}
	by, err := cluster.ParseNodeID(l.ObservedBy)
	if err != nil {
		return Answer{}, fmt.Errorf("its answer cannot be read: observed_by: %w", err)
	}
	leader, err := cluster.ParseNodeID(l.LeaderID)
	if err != nil {
		return Answer{}, fmt.Errorf("its answer cannot be read: leader_id: %w", err)
	}
	generation, err := cluster.ParseGeneration(header.Get(apiv1.HeaderGeneration))
	if err != nil {
		return Answer{}, fmt.Errorf("its answer cannot be read: header %s: %w", apiv1.HeaderGeneration, err)
	}
	return Answer{
		By: by, ClusterID: header.Get(apiv1.HeaderCluster), Generation: generation,
		Term: l.Term, LeaderID: leader,
	}, nil
}
