package main

import "testing"

// The leader is killed in every third round of three nodes, then the others.
func TestVictim(t *testing.T) {
	t.Parallel()
	for leader := range 3 {
		for i := range 6 {
			node, leads := victim(leader, i, 3)
			if node != (leader+i)%3 || leads != (i%3 == 0) || leads != (node == leader) {
				t.Errorf("node %d leads, round %d: node %d, %v", leader, i, node, leads)
			}
		}
	}
}
