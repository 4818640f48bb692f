//go:build !northstar_next

package state

// CommandVersion is the highest command version that this build can apply. A node publishes it as
// cluster.Member.Reads. It grows by one with every new kind and every change of what an existing command does.
const CommandVersion uint32 = 4

// extension holds the payloads of kinds that exist only in builds for testing upgrades (build tag northstar_next).
type extension struct{}

var unknownKind kindInfo

func (Kind) extension() *kindInfo { return &unknownKind }
