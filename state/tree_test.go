package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func keysOf[T any](t *tree[string, T]) (keys []string) {
	for key := range t.from("") {
		keys = append(keys, key)
	}
	return keys
}

// treeModel is a transaction and what its tree must hold.
type treeModel struct {
	edited *treeTxn[string, int]
	want   map[string]int
}

func (m treeModel) clone() treeModel { return treeModel{m.edited.clone(), maps.Clone(m.want)} }

// checkTree compares a tree with its content, and checks the invariants of its nodes.
func checkTree(t *testing.T, tr *tree[string, int], want map[string]int) {
	t.Helper()
	if tr.len() != len(want) {
		t.Fatalf("%d keys, want %d", tr.len(), len(want))
	}
	if got := maps.Collect(tr.from("")); !maps.Equal(got, want) {
		t.Fatalf("tree has %v, want %v", got, want)
	}
	if keys := keysOf(tr); !slices.IsSorted(keys) {
		t.Fatalf("keys are not in order: %q", keys)
	}
	if tr.root != nil {
		depths := map[int]bool{}
		checkTreeNode(t, tr.root, "", "", 0, depths)
		if len(depths) != 1 {
			t.Fatalf("leaves at depths %v", slices.Collect(maps.Keys(depths)))
		}
	}
}

// checkTreeNode checks a node whose keys are not less than low and, unless high is "", less than high.
func checkTreeNode(t *testing.T, n *treeNode[string, int], low, high string, depth int, depths map[int]bool) {
	t.Helper()
	if len(n.keys) == 0 || len(n.keys) > treeWidth || len(n.keys) != max(len(n.values), len(n.children)) {
		t.Fatalf("node with %d keys, %d values, %d children", len(n.keys), len(n.values), len(n.children))
	}
	if n.children == nil {
		depths[depth] = true
		if !slices.IsSorted(n.keys) || n.keys[0] < low || high != "" && n.keys[len(n.keys)-1] >= high {
			t.Fatalf("leaf with keys %q between %q and %q", n.keys, low, high)
		}
		return
	}
	for i, child := range n.children {
		from, to := low, high
		if i > 0 {
			from = n.keys[i]
		}
		if i+1 < len(n.keys) {
			to = n.keys[i+1]
		}
		if from < low || high != "" && to > high {
			t.Fatalf("child from %q to %q under a node from %q to %q", from, to, low, high)
		}
		checkTreeNode(t, child, from, to, depth+1, depths)
	}
}

// TestTree compares trees with maps: several transactions that share nodes, and versions that must not change.
func TestTree(t *testing.T) {
	t.Parallel()
	for _, shape := range []struct {
		name string
		key  func(r *rand.Rand) string
	}{
		{"random", func(r *rand.Rand) string { return fmt.Sprintf("%05d", r.IntN(30000)) }},
		{"few", func(r *rand.Rand) string { return fmt.Sprint(r.IntN(40)) }},
		{"long", func(r *rand.Rand) string { return strings.Repeat("a", r.IntN(300)) }},
	} {
		t.Run(shape.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(len(shape.name))))
			models := []treeModel{{new(tree[string, int]).edit(), map[string]int{}}}
			type version struct {
				tree *tree[string, int]
				want map[string]int
			}
			var versions []version
			for step := range 20_000 {
				m := &models[r.IntN(len(models))]
				key := shape.key(r)
				removing := step/1000%2 == 1 // the trees grow and shrink
				switch n := r.IntN(100); {
				case n == 0:
					versions = append(versions, version{m.edited.commit(), maps.Clone(m.want)})
				case n == 1 && len(models) < 4:
					models = append(models, m.clone())
				case n == 2: // whole nodes
					var doomed []string
					for key := range m.edited.from(key) {
						if doomed = append(doomed, key); len(doomed) == 500 {
							break
						}
					}
					for _, key := range doomed {
						m.edited.remove(key)
						delete(m.want, key)
					}
				case n < 30 != removing:
					old, existed := m.edited.remove(key)
					if want, had := m.want[key]; existed != had || old != want {
						t.Fatalf("removed %q: %d, %v; want %d, %v", key, old, existed, want, had)
					}
					delete(m.want, key)
				default:
					old, replaced := m.edited.put(key, step)
					if want, had := m.want[key]; replaced != had || old != want {
						t.Fatalf("replaced %q: %d, %v; want %d, %v", key, old, replaced, want, had)
					}
					m.want[key] = step
				}
				want, exists := m.want[key]
				if got, ok := m.edited.get(key); got != want || ok != exists {
					t.Fatalf("%q is %d, %v; want %d, %v", key, got, ok, want, exists)
				}
				if step%1000 == 999 {
					checkTree(t, &m.edited.tree, m.want)
				}
			}
			for _, v := range versions {
				checkTree(t, v.tree, v.want)
			}
			for _, m := range models {
				checkTree(t, &m.edited.tree, m.want)
				for key := range m.want {
					m.edited.remove(key)
				}
				if m.edited.root != nil || m.edited.len() != 0 {
					t.Fatalf("%d keys left", m.edited.len())
				}
			}
		})
	}
}

// TestTreeFrom compares ranges with those of a sorted list.
func TestTreeFrom(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 2))
	var keys []string
	x := new(tree[string, int]).edit()
	for i := range 3000 {
		key := fmt.Sprintf("%d/%d", r.IntN(50), i)
		keys = append(keys, key)
		x.put(key, i)
	}
	slices.Sort(keys)
	all := x.commit()
	for range 500 {
		first := keys[r.IntN(len(keys))]
		if r.IntN(2) == 0 {
			first = first[:1+r.IntN(len(first))]
		}
		at, exact := slices.BinarySearch(keys, first)
		want := keys[at:min(at+100, len(keys))]
		var got []string
		for key := range all.from(first) {
			if got = append(got, key); len(got) == len(want) {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %q: %q, want %q", first, got, want)
		}
		n := 0
		for range all.after(first) {
			n++
		}
		if exact {
			at++
		}
		if n != len(keys)-at {
			t.Fatalf("%d keys after %q, want %d", n, first, len(keys)-at)
		}
	}
}

// TestTree_JoinedBranches has a key that is less than the first key of its branch says: what stood before it is gone.
func TestTree_JoinedBranches(t *testing.T) {
	t.Parallel()
	x, want := new(tree[string, int]).edit(), map[string]int{}
	for i := range 5000 {
		key := fmt.Sprintf("%05d", i)
		x.put(key, i)
		want[key] = i
	}
	branch := x.root.children[1]
	if branch.children == nil {
		t.Fatal("the tree is not deep enough")
	}
	first := slices.Clone(branch.children[0].keys)
	for _, key := range first {
		x.remove(key)
		delete(want, key)
	}
	x.put(first[1], 1)
	want[first[1]] = 1
	for i := range 5000 {
		if key := fmt.Sprintf("%05d", i); i%100 != 0 && key != first[1] {
			x.remove(key)
			delete(want, key)
			if _, ok := x.get(first[1]); !ok {
				t.Fatalf("%s is not found when %s is removed", first[1], key)
			}
		}
	}
	checkTree(t, &x.tree, want)
}
