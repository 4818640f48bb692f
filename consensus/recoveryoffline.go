package consensus

import (
	"errors"
	"io"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
)

// OfflineNode is the data directory of a node that does not run, locked until Close.
type OfflineNode struct {
	inspection *storage.Inspection
	facts      recoveryFacts
}

// OpenOffline opens a data directory and changes nothing. Errors are those of storage.Inspect, or say what is wrong
// with the identity.
func OpenOffline(dir string) (*OfflineNode, error) {
	look, err := storage.Inspect(dir)
	if err != nil {
		return nil, err
	}
	s := &OfflineNode{inspection: look}
	s.facts.identity, err = readIdentity(look)
	if err != nil {
		return nil, errors.Join(err, look.Close())
	}
	s.facts.currentTerm, s.facts.lastIndex, s.facts.lastTerm = look.CurrentTerm, look.LastIndex, look.LastTerm
	s.facts.servers = raftnode.Servers(look.Configuration)
	return s, nil
}

// Identity returns the identity of the data directory.
func (s *OfflineNode) Identity() cluster.Identity { return s.facts.identity.Identity }

// Servers returns the latest configuration in its log.
func (s *OfflineNode) Servers() []cluster.Server { return s.facts.servers }

// Inspection returns the content of its log, snapshots and vote file.
func (s *OfflineNode) Inspection() *storage.Inspection { return s.inspection }

// Recover decides, with one write, that the directory begins the next generation as its only voter. The node's next
// start does the rest. confirm must be the cluster's ID. Errors are planRecovery's, or the disk's.
func (s *OfflineNode) Recover(confirm, operator string, entropy io.Reader) (cluster.Generation, error) {
	id, err := randomID(entropy)
	if err != nil {
		return cluster.Generation{}, err
	}
	next, err := planRecovery(s.facts, cluster.RecoveryRequest{Confirm: confirm, Operator: operator, Reason: "offline"},
		id)
	if err != nil {
		return cluster.Generation{}, err
	}
	i := &identity{files: s.inspection}
	if err := i.save(&next); err != nil {
		return cluster.Generation{}, err
	}
	s.facts.identity = next
	return next.Generation, nil
}

// Close releases the directory.
func (s *OfflineNode) Close() error { return s.inspection.Close() }
