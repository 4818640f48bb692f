package sim

import (
	"fmt"
	"maps"
	"slices"
)

// DefaultKind is the kind of world that goes on with every fault at once.
const DefaultKind = "faults"

// kinds are worlds by their name: what differs between them is drawn from the
// seed in each.
var kinds = map[string]func(seed uint64, nodes int) Config{
	DefaultKind: DefaultConfig,
	"wiped": func(seed uint64, nodes int) Config { // a node that comes back with an empty disk is refused for good
		cfg := DefaultConfig(seed, nodes)
		cfg.Mix[WipeRejoin] = 3
		return cfg
	},
}

// Kinds are the names of the kinds of worlds.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// NewConfig is a world of one kind; "" is DefaultKind.
func NewConfig(kind string, seed uint64, nodes int) (Config, error) {
	if kind == "" {
		kind = DefaultKind
	}
	build := kinds[kind]
	if build == nil {
		return Config{}, fmt.Errorf("kind of world: %q is none of %v", kind, Kinds())
	}
	return build(seed, nodes), nil
}
