//go:build !northstar_next

package state

// CommandVersion is the highest command version that this build can apply. It
// is what a node publishes as cluster.Member.Reads, and it grows by one whenever
// a kind is added or what an existing command does is changed.
const CommandVersion uint32 = 4

// extension holds the payloads of kinds that only a build for testing upgrades
// has (build tag northstar_next). This build has none.
type extension struct{}

var unknownKind kindInfo

func (Kind) extension() *kindInfo { return &unknownKind }
