package hostile

import "fmt"

// spareFiles are those that a process needs beside its connections.
const spareFiles = 256

// nodeConnections is how many connections a node takes at most, with its reserve, and some for its peers.
const nodeConnections = 16384 + 1024 + 512

// perProcess returns how many connections one attacker holds.
func perProcess(files int) int { return max(1, files-spareFiles) }

// fit returns the size of an attack on this machine, and why it is not the wanted one.
func fit(a Attack, f Form) (size int, scaled string) {
	size = a.Short
	if f.Full {
		size = a.Full
	}
	most := max(1, f.Files/2) * max(1, a.PerConn)
	if !a.Held || size <= most || f.Files >= nodeConnections+spareFiles {
		return size, ""
	}
	return most, fmt.Sprintf("%d connections in place of %d: a process may open %d files, and a node needs %d for its "+
		"limit of connections", most, size, f.Files, nodeConnections+spareFiles)
}
