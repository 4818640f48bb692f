//go:build !northstar_next

package state

// CommandVersion is the highest command version that this build can apply. A node publishes it as
// cluster.Member.CommandVersion. It grows by one with every new kind and every change of what an existing command does.
const CommandVersion uint32 = 9

// extension holds the payloads of kinds that exist only in builds for testing upgrades (build tag northstar_next).
//
//lint:ignore U1000 it has fields in those builds
type extension struct{}

func (Kind) extension() *kindInfo { return &unknownKind }
